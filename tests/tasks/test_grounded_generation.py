# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""Grounded generation: rows of every builder as chats, the language loss, scores of answers and boxes."""

import math
from types import SimpleNamespace

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
from tests.helpers.tiny_scenes import tiny_scenes
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


@pytest.fixture(scope="module")
def scenes(tmp_path_factory):
    return tiny_scenes(tmp_path_factory.mktemp("scenes"))


@pytest.fixture(scope="module", params=BUILT)
def rows(request, scenes, tmp_path_factory):
    """Name of the builder, its rows, and the same as chats."""
    cache = str(tmp_path_factory.mktemp("cache"))
    builder = BUILDERS[request.param](data_dir=str(scenes), cache_dir=cache, **BUILT[request.param])
    builder.download_and_prepare()
    split = builder.as_dataset("validation")
    return request.param, split, TASK.to_rows(split)


def spoken(chat, phrase):
    return (chat.prompt, chat.answer)[phrase["sentence"]][phrase["start"] : phrase["end"]]


def test_phrases_stand_in_the_chat(rows):
    """A phrase of a row names the same words in the prompt or the answer, and keeps its boxes."""
    name, split, made = rows
    assert len(made) >= len(split)
    assert len({*map(row_key, made)}) == len(made)
    for row in made:
        chat = make_chat(row, OPTIONS)
        grounded = [each for each in row.get("phrases") or () if each["boxes"]]
        assert [spoken(chat, phrase) for phrase in chat.phrases] == [each["text"] for each in grounded]
        assert [phrase["boxes"] for phrase in chat.phrases] == [each["boxes"] for each in grounded]
        assert chat.answer
    assert any(row.get("phrases") for row in made) == (name in ("flickr30k_entities", "gqa", "vgp", "refcoco"))


def test_what_is_said(rows):
    name, split, made = rows
    chat = make_chat(made[0], OPTIONS)
    row = split[0]
    if name == "refcoco":
        assert chat.prompt == f"Where is {row['text']}?"
        assert [int(part) for part in chat.answer.strip("[]").split(", ")] == [
            round(x * 1000) for x in row["phrases"][0]["boxes"][0]
        ]
        described = make_chat(made[0], GroundedGenerationOptions(expressions="describe"))
        assert (described.prompt, described.answer) == (f"What is at {chat.answer}?", row["text"])
    elif row.keys() & {"answer", "answers"}:
        usual = max(row["answers"], key=row["answers"].count) if "answers" in row else row["answer"]
        assert (chat.prompt, chat.answer) == (row["text"], usual)
    else:
        assert chat.prompt == "Describe the image."
        assert chat.answer in row["captions"]


def test_rows_without_texts_are_refused():
    with pytest.raises(ValueError, match="pre-training needs text or captions"):
        TASK.to_rows(Dataset.from_list([{"image_id": "1"}]))


def chat_rows():
    phrase = {"text": "a dog", "start": 0, "end": 5, "boxes": [[0.2, 0.1, 0.9, 0.8]]}
    common = {"image_id": "7", "phrases": [phrase]}
    long = {**common, "caption_id": "1", "text": "a dog runs after the small cat ."}
    short = {**common, "example_id": "2", "text": "a dog ?", "answer": "two"}
    return [long, short]


@pytest.fixture(scope="module")
def trained():
    """A tiny LLaVA, its processor, and a batch of a caption and a question."""
    processor = make_processor("llava")
    pictures = [Image.fromarray(np.full((40, 30 + 9 * i, 3), 60 * i, dtype=np.uint8)) for i in range(2)]
    grounding = PatchGroundingProcessor(processor)
    batch = TASK.configure(OPTIONS).collate(Examples(chat_rows(), None, None, images=pictures), grounding)
    return make_model("llava", processor.tokenizer), grounding, batch, pictures


@torch.no_grad()
def test_the_language_loss_by_a_loop(trained):
    model, _, batch, _ = trained
    outputs = model(**{name: batch[name] for name in TASKS["grounded_generation"].model_inputs if name in batch})
    total = 0.0
    tokens = 0
    right = 0
    exact = []
    for row in range(2):
        same = []
        for place in range(1, batch["labels"].shape[1]):
            label = int(batch["labels"][row, place])
            if label >= 0:
                shares = outputs.logits[row, place - 1].double().softmax(-1)
                total -= math.log(shares[label])
                same.append(int(shares.argmax()) == label)
        tokens = tokens + len(same)
        right = right + sum(same)
        exact.append(float(all(same)))
    (loss,) = TASKS["grounded_generation"].losses
    assert int(loss.count(batch)) == tokens == 10 + 3
    assert language_loss(outputs, batch).item() == pytest.approx(total, rel=1e-5)
    metric = AnswerLikelihood()
    for _ in range(2):
        metric.update(outputs, batch)
    figures = metric.compute(metric.state())
    assert figures["answer_perplexity"] == pytest.approx(math.exp(total / tokens), rel=1e-5)
    assert figures["answer_token_accuracy"] == right / tokens
    assert figures["answer_tokens"] == 2 * tokens
    assert score(outputs, batch).scores["answers_accuracy"] == exact


def test_phrases_of_the_answer_are_supervised_where_the_answer_stands(trained):
    _, grounding, batch, _ = trained
    for row, words in ((0, ["a", "dog"]), (1, ["a", "dog"])):
        positions = batch["text_positions"][row][batch["phrase_mask"][row, 0]]
        assert grounding.tokenizer.convert_ids_to_tokens(batch["input_ids"][row][positions]) == words
        learned = batch["labels"][row][positions] >= 0
        assert learned.all() if row == 0 else not learned.any()  # the caption is the answer; the question is not


def test_answers_are_generated_as_one_by_one(trained):
    """Greedy decoding by a loop without cache and padding gives the same words as a batch padded on the left."""
    model, grounding, batch, pictures = trained
    prompts = batch["prompt"]
    given = {**batch, "prompt_inputs": prompt_inputs(grounding, prompts, pictures)}
    found = generate_answers(model, grounding.tokenizer, given, 5)["generated"]
    assert grounding.tokenizer.padding_side == "right"
    for prompt, picture, answer in zip(prompts, pictures, found, strict=True):
        inputs = dict(grounding.model_inputs(grounding([prompt], images=[picture])))
        made = []
        for _ in range(5):
            token = model(**inputs).logits[0, -1].argmax()
            if int(token) == grounding.tokenizer.eos_token_id:
                break
            made.append(int(token))
            inputs["input_ids"] = torch.cat([inputs["input_ids"], token[None, None]], dim=1)
            inputs["attention_mask"] = torch.ones_like(inputs["input_ids"])
        assert answer == grounding.tokenizer.decode(made, skip_special_tokens=True).strip()


def test_a_learned_answer_ends_where_its_labels_end(trained):
    """The token that ends answers in the labels ends generated ones, whatever the tokenizer calls its end."""
    _, grounding, batch, _ = trained
    asked = {}

    def generate(**arguments):
        asked.update(arguments)
        return batch["input_ids"]

    labels = torch.full_like(batch["labels"], -100)
    labels[0, -1] = grounding.tokenizer.convert_tokens_to_ids("<end_of_utterance>")
    labels[1, -1] = grounding.tokenizer.convert_tokens_to_ids("dog")  # not a special token
    given = {**batch, "labels": labels, "prompt_inputs": {"input_ids": batch["input_ids"]}}
    generate_answers(SimpleNamespace(generate=generate), grounding.tokenizer, given, 5)
    assert asked["eos_token_id"] == sorted([int(labels[0, -1]), grounding.tokenizer.eos_token_id])


def test_scores_of_generated_answers():
    box = [0.1, 0.1, 0.5, 0.5]
    batch = {
        "kind": ["question", "question", "question", "expression", "expression", "expression", "caption"],
        "answer": ["2", "red", "", "[..]", "[..]", "[..]", "a dog"],
        "answers": [["2"] * 3 + ["3"] * 7, ["red"], None, None, None, None, None],
        "box": [None, None, None, box, box, box, None],
        "generated": ["two", "A Red.", "red", "[10, 10, 50, 50]", "[10, 10, 50, 29]", "no box 1 2 3", "a dog"],
        "box_dialect": [BOX_DIALECTS["plain_100"]] * 7,
    }
    scores = score_generated(batch).scores
    assert scores["vqa_accuracy"] == [pytest.approx(0.9), *[None] * 6]
    assert scores["question_accuracy"] == [None, 1.0, *[None] * 5]
    assert scores["box_accuracy"] == [None, None, None, 1.0, 0.0, 0.0, None]
    # The middle of the second box is in the right one.
    assert scores["point_accuracy"] == [None, None, None, 1.0, 1.0, 0.0, None]
    batch["generated"][3:5] = ["[10, 10, 50, 101]", "10, 10, 50, 29"]
    scored = score_generated(batch)
    assert scored.scores["box_accuracy"][3] == 0.0
    assert scored.totals == {
        "boxes_off_scale": 1,
        "boxes_of_other_form": 1,
    }
    assert scored.notes["other_form"] == [False] * 4 + [True, False, False]
    assert "101" in scored.notes["off_scale"][3]
    assert scored.notes["off_scale"][4:] == [None] * 3


def test_a_training_row_needs_an_answer(trained):
    _, grounding, _, pictures = trained
    row = {**chat_rows()[1], "answer": ""}
    with pytest.raises(ValueError, match="example 2 has no answer to learn"):
        TASK.configure(OPTIONS).collate(Examples([row], None, None, images=pictures[:1], training=True), grounding)
    batch = TASK.configure(OPTIONS).collate(Examples([row], None, None, images=pictures[:1]), grounding)
    assert (batch["labels"] < 0).all()
