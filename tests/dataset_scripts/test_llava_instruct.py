# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""LLaVA's instruction data: public layouts, phrases, errors, and the conversations of scenes with their processor."""

import json
from collections import Counter, defaultdict

import numpy as np
import pytest
from PIL import Image
from transformers import AutoProcessor

from grounded_attention.dataset_scripts.builders import BUILDERS
from grounded_attention.dataset_scripts.files.errors import DataError, MissingFileError
from grounded_attention.dataset_scripts.scenes.dataset import write_scenes
from grounded_attention.processing.patch_grounding import PatchGroundingProcessor
from tests.helpers.built import built

BUS = """{"id": "000000033471", "image": "coco/train2017/000000033471.jpg", "conversations": [
    {"from": "human", "value": "What are the colors of the bus?\\n<image>"},
    {"from": "gpt", "value": "The bus is white and red."},
    {"from": "human", "value": "Where is it?"},
    {"from": "gpt", "value": "On a street."}]}"""
GREETING = '{"id": "w", "conversations": [{"from": "human", "value": "Hello"}, {"from": "gpt", "value": "Hi"}]}'
PHRASE = """{"id": "000000033471", "image": "coco/train2017/000000033471.jpg",
    "conversations": [{"from": "human", "value": "<image>\\nDescribe."}, {"from": "gpt", "value": "A white bus."}],
    "phrases": [{"message": 1, "start": 2, "end": 11, "boxes": [[0, 0.25, 0.5, 1]]}]}"""


def read_rows(name, folder, tmp_path, split, **options):
    builder = built(BUILDERS[name], folder, tmp_path / "cache", **options)
    return builder.as_dataset(split=split), builder.report


def build(folder, tmp_path, split="train"):
    return read_rows("llava_instruct", folder, tmp_path, split, splits=split)


def write(tmp_path, text):
    (tmp_path / "data").mkdir(exist_ok=True)
    (tmp_path / "data" / "llava_v1_5_mix665k.json").write_text(text)
    return tmp_path / "data"


def test_the_public_layout(tmp_path):
    rows, report = build(write(tmp_path, f"[{BUS}, {GREETING}, {PHRASE}]"), tmp_path)
    assert [row["example_id"] for row in rows] == ["000000033471#0", "000000033471#2"]
    assert rows[0]["image_id"] == "000000033471"
    assert rows[0]["file_name"] == "coco/train2017/000000033471.jpg"
    messages = """[{"role": "user", "content": "What are the colors of the bus?"},
        {"role": "assistant", "content": "The bus is white and red."}, {"role": "user", "content": "Where is it?"},
        {"role": "assistant", "content": "On a street."}]"""
    assert rows[0]["messages"] == json.loads(messages)
    assert rows[0]["phrases"] == []
    phrase = '{"sentence": 1, "text": "white bus", "start": 2, "end": 11, "boxes": [[0.0, 0.25, 0.5, 1.0]]}'
    assert rows[1]["phrases"] == [json.loads(phrase)]
    assert report["train"]["conversations"] == 2
    assert report["train"]["without image"] == 1


@pytest.mark.parametrize(
    "conversations",
    [
        '[{"from": "gpt", "value": "Hi"}, {"from": "human", "value": "Hi"}, {"from": "gpt", "value": "Hi"}]',
        '[{"from": "system", "value": "Be kind."}, {"from": "human", "value": "Hi"}, {"from": "gpt", "value": "Hi"}]',
        '[{"from": "human", "value": "Hi"}, {"from": "human", "value": "Hi"}, {"from": "gpt", "value": "Hi"}]',
        '[{"from": "human", "value": "Hi"}, {"from": "function_call", "value": "{}"}]',
        '[{"from": "human", "value": ""}, {"from": "gpt", "value": "Hi"}]',
        '[{"from": "gpt", "value": "Hi"}]',
        "[]",
        "null",
        '["words"]',
        '"words"',
        '[], "image": null',
    ],
)
def test_conversations_without_an_image_are_not_read(tmp_path, conversations):
    text = f'[{{"id": "s", "conversations": {conversations}}}, {PHRASE}]'
    rows, report = build(write(tmp_path, text), tmp_path)
    assert [row["example_id"] for row in rows] == ["000000033471#1"]
    assert report["train"]["without image"] == 1


def test_a_first_message_of_the_assistant_and_an_empty_answer_are_left_out(tmp_path):
    greeted = PHRASE.replace('"conversations": [', '"conversations": [{"from": "gpt", "value": "Hi"}, ')
    greeted = greeted.replace('"message": 1', '"message": 2')
    silent = GREETING.replace('"id": "w"', '"id": "w", "image": "a.jpg"').replace('"Hi"', '" "')
    rows, report = build(write(tmp_path, f"[{greeted}, {PHRASE}, {silent}]"), tmp_path)
    assert rows[0]["messages"] == rows[1]["messages"]
    assert rows[0]["phrases"] == rows[1]["phrases"]
    assert len(rows) == 2
    assert report["train"]["with an empty answer"] == 1


@pytest.mark.parametrize(
    "change, message",
    {
        '"conversations": []': "0 messages.*in turns",
        '"conversations": [{"from": "human", "value": "a"}, {"from": "gpt", "value": "b"}, '
        '{"from": "human", "value": "c"}]': "3 messages",
        '"conversations": [{"from": "gpt"}, {"from": "gpt"}]': "message 1.*bad from.*gpt.*human",
        '"phrases": [{"message": 9, "start": 0, "end": 1, "boxes": []}]': "phrase 1.*message.* 9.* 4 text",
        '"phrases": [{"message": 1, "start": 3, "end": 99, "boxes": []}]': "phrase 1.*3 to 99.* 25 ",
        '"phrases": [{"message": 1, "start": 0, "end": 3, "boxes": [[0, 0, 50, 80]]}]': "bad box.*50.*divided by",
        '"phrases": [{"message": 1, "start": 0, "end": 3, "boxes": [[0.5, 0, 0.5, 1]]}]': "bad box",
    }.items(),
)
def test_errors_name_the_element(tmp_path, change, message):
    record = json.loads(BUS) | json.loads(f"{{{change}}}")
    folder = write(tmp_path, json.dumps([record]))
    with pytest.raises(DataError, match=rf"(?s)mix665k\.json.*element 1.*{message}"):
        build(folder, tmp_path)


@pytest.mark.parametrize(
    "text, message",
    {
        "[]": "0 without image",
        f"[{GREETING}]": "1 without image",
        f'{{"a": [{BUS}], "b": [{BUS}]}}': "element 1: not a list",
    }.items(),
)
def test_a_file_without_a_list_of_conversations_is_refused(tmp_path, text, message):
    folder = write(tmp_path, text)
    with pytest.raises(DataError, match=rf"mix665k\.json.*{message}"):
        build(folder, tmp_path)


def test_a_missing_file_says_where_to_get_it(tmp_path):
    with pytest.raises(MissingFileError, match=r"train\.json.*LLaVA-Instruct-150K"):
        build(tmp_path, tmp_path)


@pytest.fixture(scope="module")
def scenes(tmp_path_factory):
    root = tmp_path_factory.mktemp("drawn") / "scenes"
    write_scenes(root, images=20, seed=0)
    return root


@pytest.mark.parametrize("split", ["train", "validation", "test"])
def test_scenes_have_the_texts_and_phrases_of_their_other_files(scenes, tmp_path, split):
    answers = Counter()
    answer_of = {}
    phrases = Counter()
    rows, _ = build(scenes, tmp_path, split)
    for row in rows:
        image = row["image_id"]
        texts = [message["content"] for message in row["messages"]]
        for question, answer in zip(texts[::2], texts[1::2], strict=True):
            answers[image, answer] += 1
            answer_of[image, question] = answer
        phrases.update((image, texts[phrase["sentence"]], phrase["text"]) for phrase in row["phrases"])
    captions, _ = read_rows("flickr30k_entities", scenes, tmp_path, split)
    for row in captions:
        image = row["image_id"]
        for caption, related in zip(row["captions"], row["related"], strict=True):
            answers[image, caption] -= related
        for phrase in row["phrases"]:
            if phrase["boxes"]:
                phrases[image, row["captions"][phrase["sentence"]], phrase["text"]] -= 1
    if split != "test":
        questions, _ = read_rows("vqa_v2", scenes, tmp_path, split)
        for row in questions:
            answer = answer_of[row["image_id"], row["text"]]
            assert row["answers"].count(answer) == max(map(row["answers"].count, row["answers"]))
            answers[row["image_id"], answer] -= 1
    assert not any(answers.values())
    assert not any(phrases.values())


@pytest.fixture(scope="module")
def objects_of(scenes):
    """For each image the shape and the corners of its objects, by the files of referring expressions."""
    listed = json.loads((scenes / "refcoco+" / "instances.json").read_text())
    sizes = {image["id"]: (image["width"], image["height"]) * 2 for image in listed["images"]}
    shapes = {category["id"]: category["name"] for category in listed["categories"]}
    objects = defaultdict(list)
    for annotation in listed["annotations"]:
        image = annotation["image_id"]
        x, y, width, height = annotation["bbox"]
        corners = np.divide((x, y, x + width, y + height), sizes[image])
        objects[str(image)].append((shapes[annotation["category_id"]], corners))
    return objects


def test_questions_of_scenes_have_the_boxes_of_what_they_mean(scenes, objects_of, tmp_path):
    shapes = {shape for objects in objects_of.values() for shape, _ in objects}
    rows, _ = read_rows("llava_instruct", scenes, tmp_path, "train", config_name="questions")
    kinds = Counter()
    for row in rows:
        assert [message["role"] for message in row["messages"]] == ["user", "assistant"] * 5
        texts = [message["content"] for message in row["messages"]]
        for phrase in row["phrases"]:
            place = phrase["sentence"]
            question = texts[place - place % 2]
            if question == "Describe the image.":
                continue
            meant = []
            for box in phrase["boxes"]:
                objects = objects_of[row["image_id"]]
                meant.append({shape for shape, corners in objects if np.allclose(box, corners, atol=1e-4)})
            assert all(meant)
            named = shapes & set(phrase["text"].split())
            if place % 2:
                kinds["answer"] += 1
                if question.startswith("What is") and texts[place] in shapes:
                    assert {texts[place]} in meant
            elif named:
                kinds["named"] += 1
                kinds["its name"] += all(named & found for found in meant)
            else:
                kinds["described"] += 1
    assert min(kinds.values()) > 3
    assert len(kinds) == 4
    assert kinds["its name"] > 0.8 * kinds["named"]  # a shape between two names has the other one here


def test_the_processor_knows_all_words_and_places_phrases(scenes, tmp_path):
    processor = AutoProcessor.from_pretrained(scenes / "llava" / "processor", backend="pil")
    tokenizer = processor.tokenizer
    wrapped = PatchGroundingProcessor(processor, "llava")
    rows, _ = build(scenes, tmp_path)
    for row in list(rows)[:5]:
        image = Image.open(scenes / "flickr30k-images" / row["file_name"])
        conversation = []
        for message in row["messages"]:
            conversation.append({"role": message["role"], "content": [{"type": "text", "text": message["content"]}]})
        conversation[0]["content"].insert(0, {"type": "image"})
        batch = wrapped([conversation], images=[image], phrases=[row["phrases"]])
        assert (batch["input_ids"] != tokenizer.unk_token_id).all()
        assert batch["region_positions"].shape[1] == 64
        assert not batch.dropped_phrases[0]
        for phrase, mask in zip(row["phrases"], batch["phrase_mask"][0], strict=False):
            tokens = batch["input_ids"][0, batch["text_positions"][0][mask]]
            words = tokenizer.decode(tokens)
            assert words.replace(" ", "") == phrase["text"].lower().replace(" ", "")
