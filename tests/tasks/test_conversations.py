# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""Conversations about an image as examples of grounded generation: labels, phrases, scores of several answers."""

import json
from itertools import pairwise
from types import SimpleNamespace

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
from tests.helpers.tiny_scenes import tiny_scenes

TASK = TASKS["grounded_generation"]

OPTIONS = GroundedGenerationOptions()
BOX = [0.5, 0.5, 0.75, 1.0]


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """The rows of scenes, their processor, and the folder of the pictures."""
    scenes = tiny_scenes(tmp_path_factory.mktemp("scenes"))
    builder = BUILDERS["llava_instruct"](data_dir=str(scenes), cache_dir=str(tmp_path_factory.mktemp("cache")))
    builder.download_and_prepare()
    processor = PatchGroundingProcessor(AutoProcessor.from_pretrained(scenes / "llava" / "processor"), "llava")
    return TASK.to_rows(builder.as_dataset("train")), processor, scenes / "flickr30k-images"


def make_batch(made, count=3, pictures=True, training=False, options=OPTIONS):
    rows, processor, folder = made
    chosen = [rows[number] for number in range(count)]
    images = [Image.open(folder / row["file_name"]) for row in chosen] if pictures else None
    return chosen, TASK.configure(options).collate(
        Examples(chosen, None, None, images=images, training=training), processor
    )


def learned(batch, number):
    labels = batch["labels"][number]
    return labels[labels >= 0]


@pytest.mark.parametrize("pictures", [True, False])
def test_all_answers_are_learned_and_nothing_else(made, pictures):
    rows, batch = make_batch(made, pictures=pictures)
    tokenizer = made[1].tokenizer
    for number, row in enumerate(rows):
        answers = [each["content"] for each in row["messages"][1::2]]
        wanted = [*(token for text in answers for token in [*tokenizer(text)["input_ids"], tokenizer.eos_token_id])]
        assert learned(batch, number).tolist() == wanted
        assert (batch["input_ids"][number] == tokenizer.convert_tokens_to_ids("<image>")).sum() == 64 * pictures
    assert ("pixel_values" in batch) == pictures


def test_phrases_stand_in_their_message(made):
    rows, batch = make_batch(made)
    tokenizer = made[1].tokenizer
    for number, row in enumerate(rows):
        assert row["phrases"]
        last = -1
        for place, phrase in enumerate(row["phrases"]):
            tokens = batch["text_positions"][number][batch["phrase_mask"][number, place]]
            assert tokenizer.decode(batch["input_ids"][number, tokens]) == " ".join(
                tokenizer.convert_ids_to_tokens(tokenizer(phrase["text"])["input_ids"])
            )
            assert (batch["labels"][number, tokens] >= 0).all()  # scenes have phrases in answers
            assert int(tokens[0]) > last
            last = int(tokens[-1])


def test_answers_are_scored_one_by_one(made):
    """The model is right in every token of all answers but the second, where one token is wrong."""
    rows, batch = make_batch(made, count=2)
    logits = torch.nn.functional.one_hot(batch["labels"].clamp(min=0).roll(-1, 1), 300).float() * 9
    answers = [len(row["messages"]) // 2 for row in rows]
    assert score(SimpleNamespace(logits=logits), batch).scores["answers_accuracy"] == [1.0, 1.0]
    places = (batch["labels"][0] >= 0).nonzero().flatten().tolist()
    second = next(b for a, b in pairwise(places) if b > a + 1)
    logits[0, second - 1] = 0.0
    logits[0, second - 1, 299] = 9.0
    found = score(SimpleNamespace(logits=logits), batch).scores["answers_accuracy"]
    assert found == [pytest.approx(1 - 1 / answers[0]), 1.0]


def test_a_conversation_with_an_empty_answer_is_not_trained_on(made):
    rows, processor, _ = made
    row = {**rows[0], "messages": [*rows[0]["messages"][:-1], {"role": "assistant", "content": " "}]}
    with pytest.raises(ValueError, match="has no answer to learn"):
        TASK.configure(OPTIONS).collate(Examples([row], None, None, training=True), processor)


def test_the_chat_is_that_of_the_messages(made):
    chat = make_chat(made[0][0], OPTIONS)
    texts = [each["content"] for each in made[0][0]["messages"]]
    assert [text for pair in chat.messages for text in pair] == texts
    spoken = chat.conversation(1)
    assert [each["content"][-1]["text"] for each in spoken] == texts
    assert [len(each["content"]) for each in spoken] == [2, *[1] * (len(texts) - 1)]


def test_a_step_sees_some_turns_with_their_phrases(made):
    options = GroundedGenerationOptions(turns=2)
    whole = [make_chat(row, options) for row in made[0]]
    seen = [set(), set()]
    for seed in range(40):
        chat = whole[0].draw_turns(2, np.random.default_rng(seed))
        turns = [whole[0].messages.index(message) for message in chat.messages]
        assert len(turns) == 2
        assert turns == sorted(turns)
        for phrase in chat.phrases:
            words = chat.messages[phrase["sentence"] // 2][phrase["sentence"] % 2][phrase["start"] : phrase["end"]]
            seen[0].add((chat.messages[phrase["sentence"] // 2], words))
    for phrase in whole[0].phrases:
        message = whole[0].messages[phrase["sentence"] // 2]
        seen[1].add((message, message[phrase["sentence"] % 2][phrase["start"] : phrase["end"]]))
    assert seen[0] == seen[1] != set()
    assert whole[0].draw_turns(99, np.random.default_rng(0)) is whole[0]


def test_turns_are_drawn_in_training_only_from_the_generator_of_the_row(made):
    rows, processor, folder = made
    options = GroundedGenerationOptions(turns=1)
    keys = []

    def generator(key):
        keys.append(key)
        return np.random.default_rng(len(keys))

    chosen = [rows[0], rows[1]]
    images = [Image.open(folder / row["file_name"]) for row in chosen]
    examples = Examples(chosen, None, generator, images=images, training=True)
    batch = TASK.configure(options).collate(examples, processor)
    assert all(
        prompt in [m["content"] for m in row["messages"]] for prompt, row in zip(batch["prompt"], chosen, strict=True)
    )
    assert all(row["example_id"] in key for row, key in zip(chosen, keys, strict=True))
    assert make_batch(made, count=2, options=options)[1]["prompt"] == make_batch(made, count=2)[1]["prompt"]


def test_clicks_of_a_conversation_are_written_as_answers_to_expressions(tmp_path):
    """Rows of GUI-Actor's data: anchors with the boxes, or boxes in the family's words; several in one example."""
    Image.new("RGB", (400, 300)).save(tmp_path / "1.png")
    turns = []
    for text, box in (("open the menu", [0.48, 0.05, 0.52, 0.07]), ("close it", [[0.1, 0.1, 0.2, 0.2], BOX])):
        turns += [{"from": "human", "value": f"<image>{text}" if not turns else text}]
        turns += [{"from": "gpt", "value": "pyautogui.click(x=0.50, y=0.06)", "bbox_gt": box}]
    (tmp_path / "rows.json").write_text(json.dumps([{"image": "1.png", "conversations": turns}]))
    builder = Rows(data_dir=str(tmp_path / "rows.json"), form="llava_instruct", cache_dir=str(tmp_path / "cache"))
    builder.download_and_prepare()
    [row] = TASK.to_rows(builder.as_dataset("train"))
    point = make_chat(row, GroundedGenerationOptions(expressions="point"))
    assert point.messages == [("open the menu", "<point>"), ("close it", "<point>")]
    anchors = {each["sentence"]: each for each in point.phrases if each.get("text") == "<point>"}
    assert {*anchors} == {1, 3}
    assert len(anchors[3]["boxes"]) == 2
    assert (anchors[1]["start"], anchors[1]["end"]) == (0, 7)
    located = make_chat(row, OPTIONS)
    assert located.messages[0][1] == "[480, 50, 520, 70]"
    assert located.phrases == point.phrases[:2]
    assert make_chat(row, GroundedGenerationOptions(expressions="describe")).messages[0][1].startswith("pyautogui")


def test_an_anchor_twice_or_without_a_box_is_refused_in_one_line(made):
    rows, processor, folder = made
    processor.tokenizer.add_tokens(["<point>"], special_tokens=True)
    task = TASK.configure(GroundedGenerationOptions(expressions="point"))
    picture = Image.open(folder / rows[0]["file_name"])

    def collate(asked, answer, *boxed):
        messages = [{"role": "user", "content": asked}, {"role": "assistant", "content": answer}]
        phrases = [{"sentence": each, "start": 0, "end": len((asked, answer)[each]), "boxes": [BOX]} for each in boxed]
        row = {**rows[0], "messages": messages, "phrases": phrases}
        return task.collate(Examples([row], None, None, images=[picture]), processor)

    assert collate("open it", "click", 0)["phrase_anchor"].sum() == 1
    assert collate("open it", "<point>", 1)["phrase_anchor"].sum() == 1
    for given in (("open the <point>", "click", 0), ("open it", "<point>"), ("is it red ?", "yes <point> <point>")):
        with pytest.raises(ValueError, match=rf"{rows[0]['example_id']}.*<point>") as refused:
            collate(*given)
        assert "\n" not in str(refused.value)


def test_captions_have_nothing_to_point_at(made):
    rows, processor, folder = made
    processor.tokenizer.add_tokens(["<point>"], special_tokens=True)
    row = {"caption_id": "1", "text": "a ball", **{name: rows[0][name] for name in ("image_id", "file_name")}}
    task = TASK.configure(GroundedGenerationOptions(expressions="point"))
    with pytest.raises(ValueError, match="caption rows"):
        task.collate(Examples([row], None, None, images=[Image.open(folder / row["file_name"])]), processor)


def test_the_token_before_an_answer_asks_for_what_decides_it(made, tmp_path):
    scenes = made[2].parent
    builder = BUILDERS["llava_instruct"](config_name="questions", data_dir=str(scenes), cache_dir=str(tmp_path))
    builder.download_and_prepare()
    rows = TASK.to_rows(builder.as_dataset("train"))
    asking = (rows, *made[1:])
    plain = make_batch(asking, options=GroundedGenerationOptions())[1]
    chosen, batch = make_batch(asking, options=GroundedGenerationOptions(before_answers=True, region_words=1.0))
    tokenizer = made[1].tokenizer
    assistant = tokenizer.convert_tokens_to_ids("<assistant>")
    seen = 0
    for number, row in enumerate(chosen):
        turns = (batch["input_ids"][number] == assistant).nonzero().flatten()  # one before each answer
        for place, phrase in enumerate(row["phrases"]):
            words = batch["text_positions"][number][batch["phrase_mask"][number, place]]
            text = row["messages"][phrase["sentence"]]["content"]
            if phrase["sentence"] % 2 and phrase["text"] == text:
                assert words.tolist() == [turns[phrase["sentence"] // 2]]
                seen += 1
            else:
                before = plain["text_positions"][number][plain["phrase_mask"][number, place]]
                assert words.tolist() == before.tolist()
    assert int(batch[BEFORE_ANSWER].sum()) == seen > 3
    assert torch.equal(batch["phrase_regions"], plain["phrase_regions"])
    # Region words are those of the other phrases.
    spoken = plain["phrase_mask"].sum(-1) * (plain["phrase_regions"] > 0).any(-1) * ~batch[BEFORE_ANSWER]
    assert int(count_region_words(batch)) == int(spoken.sum())


def test_the_evidence_of_a_question_is_asked_for_before_its_answer(made):
    rows, processor, folder = made
    phrase = {"text": "what is it ?", "start": 0, "end": 12, "boxes": [BOX], "sentence": 0}
    about = {"image_id": "1", "example_id": "1", "text": "what is it ?", "phrases": [phrase]}
    row = {**about, "answer": "a ball"}
    picture = Image.open(folder / rows[0]["file_name"])
    task = TASK.configure(GroundedGenerationOptions(before_answers=True))
    batch = task.collate(Examples([row], None, None, images=[picture]), processor)
    (asks,) = batch["text_positions"][0][batch["phrase_mask"][0, 1]].tolist()
    assert batch["labels"][0, asks] < 0 <= batch["labels"][0, asks + 1]
    assert torch.equal(batch["phrase_regions"][0, 0], batch["phrase_regions"][0, 1])
    task.remarks({"train": [row]})
    with pytest.raises(ValueError, match="before_answers: no answer"):
        task.remarks({"train": [{**row, "phrases": []}]})
