# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""Grounded generation: rows of every builder as chats, the language loss, scores of answers and boxes."""

import json
import math
from unittest import mock

import numpy as np
import pytest
import torch
from datasets import Dataset
from PIL import Image

from grounded_attention.dataset_scripts.builders import BUILDERS
from grounded_attention.processing.box_dialects import BOX_DIALECTS
from grounded_attention.processing.patch_grounding import PatchGroundingProcessor
from grounded_attention.tasks import TASKS
from grounded_attention.tasks.generated_answers import generate_answers, prompt_inputs, score_generated
from grounded_attention.tasks.grounded_generation import (
    AnswerLikelihood,
    GroundedGenerationOptions,
    language_loss,
    make_chat,
    score,
)
from grounded_attention.tasks.task import Examples, row_key
from tests.helpers.built import built
from tests.helpers.task_inputs import task_inputs
from tests.helpers.tiny_vlm_models import make_model
from tests.helpers.tiny_vlm_processors import make_processor

TASK = TASKS["grounded_generation"]

OPTIONS = GroundedGenerationOptions()
BUILT = {
    "flickr30k_entities": {},
    "coco_captions": {},
    "vgp": {"negatives": "random"},
    "refcoco": {"config_name": "refcoco+"},
    "vqa_v2": {},
    "gqa": {},
}


@pytest.fixture(scope="module", params=BUILT)
def rows(request, scenes, tmp_path_factory):
    """Name of the builder, its rows, and the same as chats."""
    cache = str(tmp_path_factory.mktemp("cache"))
    builder = built(BUILDERS[request.param], scenes, cache, **BUILT[request.param])
    split = builder.as_dataset("validation")
    return request.param, split, TASK.to_rows(split)


def test_phrases_stand_in_the_chat(rows):
    """A phrase of a row names the same words in the prompt or the answer, and keeps its boxes."""
    name, split, made = rows
    assert len(made) >= len(split)
    assert len({*map(row_key, made)}) == len(made)
    assert any(row.get("phrases") for row in made) == (name in ("flickr30k_entities", "gqa", "vgp", "refcoco"))
    for row in made:
        chat = make_chat(row, OPTIONS)
        grounded = [phrase for phrase in row.get("phrases") or () if phrase["boxes"]]
        assert chat.answer
        for phrase, expected in zip(chat.phrases, grounded, strict=True):
            text = chat.answer if phrase["sentence"] else chat.prompt
            assert text[phrase["start"] : phrase["end"]] == expected["text"]
            assert phrase["boxes"] == expected["boxes"]


def test_prompt_and_answer(rows):
    name, split, made = rows
    chat = make_chat(made[0], OPTIONS)
    row = split[0]
    if name == "refcoco":
        box = np.array(row["phrases"][0]["boxes"][0]) * 1000
        assert chat.prompt == f"Where is {row['text']}?"
        assert json.loads(chat.answer) == box.round().tolist()
        described = make_chat(made[0], GroundedGenerationOptions(expressions="describe"))
        assert (described.prompt, described.answer) == (f"What is at {chat.answer}?", row["text"])
    elif "captions" in row:
        assert chat.prompt == "Describe the image."
        assert chat.answer in row["captions"]
    else:
        answers = row.get("answers") or [row["answer"]]
        assert (chat.prompt, chat.answer) == (row["text"], max(answers, key=answers.count))


def test_rows_without_texts_are_refused():
    with pytest.raises(ValueError, match="pre-training needs text or captions"):
        TASK.to_rows(Dataset.from_list([{"image_id": "1"}]))


PHRASE = {"text": "a dog", "start": 0, "end": 5, "boxes": [[0.2, 0.1, 0.9, 0.8]]}
CAPTION = {"image_id": "7", "caption_id": "1", "text": "a dog runs after the small cat .", "phrases": [PHRASE]}
QUESTION = {"image_id": "7", "example_id": "2", "text": "a dog ?", "answer": "two", "phrases": [PHRASE]}


def collate(grounding, rows, pictures, **options):
    return TASK.configure(OPTIONS).collate(Examples(rows, None, None, images=pictures, **options), grounding)


@pytest.fixture(scope="module")
def trained():
    """A tiny LLaVA, its processor, and a batch of a caption and a question."""
    processor = make_processor("llava")
    pictures = [Image.new("RGB", (30, 40)), Image.new("RGB", (39, 40), (60, 60, 60))]
    grounding = PatchGroundingProcessor(processor)
    batch = collate(grounding, [CAPTION, QUESTION], pictures)
    return make_model("llava", processor.tokenizer), grounding, batch, pictures


@torch.no_grad()
def test_the_language_loss_by_a_loop(trained):
    model, _, batch, _ = trained
    outputs = model(**task_inputs(TASK, batch))
    total = 0.0
    right = ([], [])
    for row, place in (batch["labels"] >= 0).nonzero().tolist():
        shares = outputs.logits[row, place - 1].double().softmax(-1)
        label = batch["labels"][row, place]
        total -= math.log(shares[label])
        right[row].append(bool(shares.argmax() == label))
    (loss,) = TASK.losses
    assert int(loss.count(batch)) == 10 + 3
    assert language_loss(outputs, batch).item() == pytest.approx(total, rel=1e-5)
    metric = AnswerLikelihood()
    metric.update(outputs, batch)
    metric.update(outputs, batch)
    assert metric.compute(metric.state()) == {
        "answer_loss": pytest.approx(total / 13, rel=1e-5),
        "answer_perplexity": pytest.approx(math.exp(total / 13), rel=1e-5),
        "answer_token_accuracy": np.mean(right[0] + right[1]),
        "answer_tokens": 2 * 13,
    }
    assert score(outputs, batch).scores["answers_accuracy"] == [all(hits) for hits in right]


def test_phrases_of_the_answer_are_supervised_where_the_answer_stands(trained):
    _, grounding, batch, _ = trained
    for row in range(2):
        positions = batch["text_positions"][row][batch["phrase_mask"][row, 0]]
        ids = batch["input_ids"][row][positions]
        assert grounding.tokenizer.convert_ids_to_tokens(ids) == ["a", "dog"]
        learned = batch["labels"][row][positions] >= 0
        assert learned.tolist() == [row == 0] * 2  # the caption is the answer; the question is not


def test_answers_are_generated_as_one_by_one(trained):
    """Greedy decoding by a loop without cache and padding gives the same words as a batch padded on the left."""
    model, grounding, batch, pictures = trained
    prompts = batch["prompt"]
    tokenizer = grounding.tokenizer
    given = {**batch, "prompt_inputs": prompt_inputs(grounding, prompts, pictures)}
    found = generate_answers(model, tokenizer, given, 5)["generated"]
    assert tokenizer.padding_side == "right"
    for prompt, picture, answer in zip(prompts, pictures, found, strict=True):
        inputs = dict(grounding.model_inputs(grounding([prompt], images=[picture])))
        length = inputs["input_ids"].shape[1]
        for _ in range(5):
            token = model(**inputs).logits[:, -1:].argmax(-1)
            if token == tokenizer.eos_token_id:
                break
            inputs["input_ids"] = torch.cat([inputs["input_ids"], token], dim=1)
            inputs["attention_mask"] = torch.ones_like(inputs["input_ids"])
        assert answer == tokenizer.decode(inputs["input_ids"][0, length:], skip_special_tokens=True).strip()


def test_a_learned_answer_ends_where_its_labels_end(trained):
    """The token that ends answers in the labels ends generated ones, whatever the tokenizer calls its end."""
    _, grounding, batch, _ = trained
    tokenizer = grounding.tokenizer
    end, dog = tokenizer.convert_tokens_to_ids(["<end_of_utterance>", "dog"])
    labels = torch.full_like(batch["labels"], -100)
    labels[:, -1] = torch.tensor([end, dog])  # the second is not a special token
    model = mock.Mock()
    model.generate.return_value = batch["input_ids"]
    given = {**batch, "labels": labels, "prompt_inputs": {"input_ids": batch["input_ids"]}}
    generate_answers(model, tokenizer, given, 5)
    assert model.generate.call_args.kwargs["eos_token_id"] == sorted([end, tokenizer.eos_token_id])


GENERATED = [
    {"kind": "question", "answer": "2", "answers": ["2"] * 3 + ["3"] * 7, "generated": "two"},
    {"kind": "question", "answer": "red", "answers": ["red"], "generated": "A Red."},
    {"kind": "question", "answer": "", "generated": "red"},
    {"kind": "expression", "answer": "[..]", "box": [0.1, 0.1, 0.5, 0.5], "generated": "[10, 10, 50, 50]"},
    {"kind": "expression", "answer": "[..]", "box": [0.1, 0.1, 0.5, 0.5], "generated": "[10, 10, 50, 29]"},
    {"kind": "expression", "answer": "[..]", "box": [0.1, 0.1, 0.5, 0.5], "generated": "no box 1 2 3"},
    {"kind": "caption", "answer": "a dog", "generated": "a dog"},
]


def test_scores_of_generated_answers():
    batch = {"box_dialect": [BOX_DIALECTS["plain_100"]] * 7}
    for key in ("kind", "answer", "answers", "box", "generated"):
        batch[key] = [row.get(key) for row in GENERATED]
    scores = score_generated(batch).scores
    assert scores["vqa_accuracy"] == [pytest.approx(0.9), *[None] * 6]
    assert scores["question_accuracy"] == [None, 1.0, *[None] * 5]
    assert scores["box_accuracy"] == [None, None, None, 1.0, 0.0, 0.0, None]
    # The middle of the second box is in the right one.
    assert scores["point_accuracy"] == [None, None, None, 1.0, 1.0, 0.0, None]
    batch["generated"][3:5] = ["[10, 10, 50, 101]", "10, 10, 50, 29"]
    scored = score_generated(batch)
    assert scored.scores["box_accuracy"][3] == 0.0
    assert scored.totals == {"boxes_off_scale": 1, "boxes_of_other_form": 1}
    assert scored.notes["other_form"] == [False] * 4 + [True, False, False]
    assert "101" in scored.notes["off_scale"][3]
    assert scored.notes["off_scale"][4:] == [None] * 3


def test_a_training_row_needs_an_answer(trained):
    _, grounding, _, pictures = trained
    rows = [{**QUESTION, "answer": ""}]
    with pytest.raises(ValueError, match="example 2 has no answer to learn"):
        collate(grounding, rows, pictures[:1], training=True)
    assert (collate(grounding, rows, pictures[:1])["labels"] < 0).all()
