# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""Conversations about an image as examples of grounded generation: labels, phrases, scores of several answers."""

from itertools import chain
from types import SimpleNamespace
from unittest import mock

import numpy as np
import pytest
import torch
from PIL import Image
from transformers import AutoProcessor

from grounded_attention.dataset_scripts.builders import BUILDERS
from grounded_attention.dataset_scripts.builders.rows import Rows
from grounded_attention.processing.patch_grounding import PatchGroundingProcessor
from grounded_attention.tasks import TASKS
from grounded_attention.tasks.grounded_generation import (
    BEFORE_ANSWER,
    GroundedGenerationOptions,
    count_region_words,
    make_chat,
    score,
)
from grounded_attention.tasks.task import Examples
from tests.helpers.built import built

TASK = TASKS["grounded_generation"]

OPTIONS = GroundedGenerationOptions()
BOX = [0.5, 0.5, 0.75, 1.0]


@pytest.fixture(scope="module")
def made(scenes, tmp_path_factory):
    """The rows of scenes, their processor, and the folder of the pictures."""
    processor = PatchGroundingProcessor(AutoProcessor.from_pretrained(scenes / "llava" / "processor"), "llava")
    processor.tokenizer.add_tokens(["<point>"], special_tokens=True)
    return build(scenes, tmp_path_factory.mktemp("cache")), processor, scenes / "flickr30k-images"


def build(scenes, cache, **options):
    builder = built(BUILDERS["llava_instruct"], scenes, cache, **options)
    return TASK.to_rows(builder.as_dataset("train"))


def collate(made, rows, images=None, generator=None, training=False, **options):
    _, processor, folder = made
    if images is None:
        images = [Image.open(folder / made[0][0]["file_name"])] * len(rows)
    examples = Examples(rows, None, generator, images=images or None, training=training)
    return TASK.configure(GroundedGenerationOptions(**options)).collate(examples, processor)


def make_batch(made, count=3, rows=None, pictures=True, **options):
    chosen = [(rows or made[0])[number] for number in range(count)]
    images = [Image.open(made[2] / row["file_name"]) for row in chosen] if pictures else []
    return chosen, collate(made, chosen, images, **options)


def words_of(batch, number, phrase):
    """The positions of the words of a phrase."""
    return batch["text_positions"][number][batch["phrase_mask"][number, phrase]]


@pytest.mark.parametrize("pictures", [True, False])
def test_all_answers_are_learned_and_nothing_else(made, pictures):
    rows, batch = make_batch(made, pictures=pictures)
    tokenizer = made[1].tokenizer
    for row, labels in zip(rows, batch["labels"], strict=True):
        expected = []
        for message in row["messages"][1::2]:
            expected += [*tokenizer(message["content"])["input_ids"], tokenizer.eos_token_id]
        assert labels[labels >= 0].tolist() == expected
    image = tokenizer.convert_tokens_to_ids("<image>")
    assert (batch["input_ids"] == image).sum(1).tolist() == [64 * pictures] * 3
    assert ("pixel_values" in batch) == pictures


def test_phrases_stand_in_their_message(made):
    rows, batch = make_batch(made)
    tokenizer = made[1].tokenizer
    for number, row in enumerate(rows):
        assert row["phrases"]
        last = -1
        for place, phrase in enumerate(row["phrases"]):
            tokens = words_of(batch, number, place)
            assert batch["input_ids"][number, tokens].tolist() == tokenizer(phrase["text"])["input_ids"]
            assert (batch["labels"][number, tokens] >= 0).all()  # scenes have phrases in answers
            assert tokens[0] > last
            last = tokens[-1]


def test_answers_are_scored_one_by_one(made):
    """The model is right in every token of all answers but the second, where one token is wrong."""
    rows, batch = make_batch(made, count=2)
    labels = batch["labels"]
    logits = torch.nn.functional.one_hot(labels.clamp(min=0).roll(-1, 1), 300).float()
    outputs = SimpleNamespace(logits=logits)
    assert score(outputs, batch).scores["answers_accuracy"] == [1.0, 1.0]
    starts = ((labels[0, 1:] >= 0) & (labels[0, :-1] < 0)).nonzero()  # the columns before answers
    logits[0, starts[1], 299] = 9.0
    answers = len(rows[0]["messages"]) // 2
    assert score(outputs, batch).scores["answers_accuracy"] == [pytest.approx(1 - 1 / answers), 1.0]


def test_a_conversation_with_an_empty_answer_is_not_trained_on(made):
    row = made[0][0]
    messages = [*row["messages"][:-1], {"role": "assistant", "content": " "}]
    with pytest.raises(ValueError, match="has no answer to learn"):
        collate(made, [{**row, "messages": messages}], training=True)


def test_the_chat_is_that_of_the_messages(made):
    row = made[0][0]
    chat = make_chat(row, OPTIONS)
    texts = [message["content"] for message in row["messages"]]
    assert [*chain(*chat.messages)] == texts
    first, *others = [message["content"] for message in chat.conversation(1)]
    assert first == [{"type": "image"}, {"type": "text", "text": texts[0]}]
    assert others == [[{"type": "text", "text": text}] for text in texts[1:]]


def test_a_step_sees_some_turns_with_their_phrases(made):
    chat = make_chat(made[0][0], GroundedGenerationOptions(turns=2))
    seen = set()
    for seed in range(40):
        drawn = chat.draw_turns(2, np.random.default_rng(seed))
        turns = [chat.messages.index(message) for message in drawn.messages]
        assert len(turns) == 2
        assert turns == sorted(turns)
        seen |= phrases_of(drawn)
    assert seen == phrases_of(chat) != set()
    assert chat.draw_turns(99, np.random.default_rng(0)) is chat


def phrases_of(chat):
    """The messages and the words of the phrases."""
    found = set()
    for phrase in chat.phrases:
        turn, answer = divmod(phrase["sentence"], 2)
        message = chat.messages[turn]
        found.add((message, message[answer][phrase["start"] : phrase["end"]]))
    return found


def test_turns_are_drawn_in_training_only_from_the_generator_of_the_row(made):
    generator = mock.Mock(side_effect=lambda key: np.random.default_rng(0))
    rows, batch = make_batch(made, count=2, generator=generator, training=True, turns=1)
    for row, prompt, call in zip(rows, batch["prompt"], generator.call_args_list, strict=True):
        assert prompt in [message["content"] for message in row["messages"]]
        assert row["example_id"] in call.args[0]
    assert make_batch(made, count=2, turns=1)[1]["prompt"] == make_batch(made, count=2)[1]["prompt"]


CLICKS = """[{"image": "1.png", "conversations": [
    {"from": "human", "value": "<image>open the menu"},
    {"from": "gpt", "value": "pyautogui.click(x=0.50, y=0.06)", "bbox_gt": [0.48, 0.05, 0.52, 0.07]},
    {"from": "human", "value": "close it"},
    {"from": "gpt", "value": "pyautogui.click(x=0.50, y=0.06)",
     "bbox_gt": [[0.1, 0.1, 0.2, 0.2], [0.5, 0.5, 0.75, 1.0]]}]}]"""


def test_clicks_of_a_conversation_are_written_as_answers_to_expressions(tmp_path):
    """Rows of GUI-Actor's data: anchors with the boxes, or boxes in the family's words; several in one example."""
    Image.new("RGB", (400, 300)).save(tmp_path / "1.png")
    path = tmp_path / "rows.json"
    path.write_text(CLICKS)
    builder = built(Rows, path, tmp_path / "cache", form="llava_instruct")
    [row] = TASK.to_rows(builder.as_dataset("train"))
    point = make_chat(row, GroundedGenerationOptions(expressions="point"))
    assert point.messages == [("open the menu", "<point>"), ("close it", "<point>")]
    anchors = [phrase for phrase in point.phrases if phrase.get("text") == "<point>"]
    assert [(anchor["sentence"], anchor["start"], anchor["end"]) for anchor in anchors] == [(1, 0, 7), (3, 0, 7)]
    assert len(anchors[1]["boxes"]) == 2
    located = make_chat(row, OPTIONS)
    assert located.messages[0][1] == "[480, 50, 520, 70]"
    assert located.phrases == point.phrases[:2]
    assert make_chat(row, GroundedGenerationOptions(expressions="describe")).messages[0][1].startswith("pyautogui")


def point_at(made, question, answer, boxed=None):
    """A batch of one question and its answer, of which one may have a box."""
    texts = [question, answer]
    row = {**made[0][0], "phrases": []}
    row["messages"] = [{"role": "user", "content": question}, {"role": "assistant", "content": answer}]
    if boxed is not None:
        row["phrases"] = [{"sentence": boxed, "start": 0, "end": len(texts[boxed]), "boxes": [BOX]}]
    return collate(made, [row], expressions="point")


@pytest.mark.parametrize("answer, boxed", [("click", 0), ("<point>", 1)])
def test_an_anchor_has_the_box_of_the_question_or_of_itself(made, answer, boxed):
    assert point_at(made, "open it", answer, boxed)["phrase_anchor"].sum() == 1


@pytest.mark.parametrize(
    "conversation",
    [("open the <point>", "click", 0), ("open it", "<point>"), ("is it red ?", "yes <point> <point>")],
)
def test_an_anchor_twice_or_without_a_box_is_refused_in_one_line(made, conversation):
    with pytest.raises(ValueError, match=rf"{made[0][0]['example_id']}.*<point>") as refused:
        point_at(made, *conversation)
    assert "\n" not in str(refused.value)


def test_captions_have_nothing_to_point_at(made):
    row = {"caption_id": "1", "text": "a ball", "image_id": "1", "file_name": made[0][0]["file_name"]}
    with pytest.raises(ValueError, match="caption rows"):
        collate(made, [row], expressions="point")


def test_the_token_before_an_answer_asks_for_what_decides_it(made, tmp_path):
    rows = build(made[2].parent, tmp_path, config_name="questions")
    chosen, plain = make_batch(made, rows=rows)
    _, batch = make_batch(made, rows=rows, before_answers=True, region_words=1.0)
    assistant = made[1].tokenizer.convert_tokens_to_ids("<assistant>")
    count = 0
    for number, row in enumerate(chosen):
        turns = (batch["input_ids"][number] == assistant).nonzero().flatten()  # one before each answer
        for place, phrase in enumerate(row["phrases"]):
            expected = words_of(plain, number, place)
            turn, answer = divmod(phrase["sentence"], 2)
            if answer and phrase["text"] == row["messages"][phrase["sentence"]]["content"]:
                expected = turns[turn : turn + 1]
                count += 1
            assert torch.equal(words_of(batch, number, place), expected)
    asks = batch[BEFORE_ANSWER]
    assert int(asks.sum()) == count > 3
    assert torch.equal(batch["phrase_regions"], plain["phrase_regions"])
    # Region words are those of the other phrases.
    grounded = (plain["phrase_regions"] > 0).any(-1) & ~asks
    assert int(count_region_words(batch)) == int(plain["phrase_mask"][grounded].sum())


def test_the_evidence_of_a_question_is_asked_for_before_its_answer(made):
    phrase = {"text": "what is it ?", "start": 0, "end": 12, "boxes": [BOX], "sentence": 0}
    row = {"image_id": "1", "example_id": "1", "text": "what is it ?", "answer": "a ball", "phrases": [phrase]}
    batch = collate(made, [row], before_answers=True)
    (asks,) = words_of(batch, 0, 1)
    labels = batch["labels"][0]
    assert labels[asks] < 0 <= labels[asks + 1]
    assert torch.equal(batch["phrase_regions"][0, 0], batch["phrase_regions"][0, 1])
    task = TASK.configure(GroundedGenerationOptions(before_answers=True))
    task.remarks({"train": [row]})
    with pytest.raises(ValueError, match="before_answers: no answer"):
        task.remarks({"train": [{**row, "phrases": []}]})
