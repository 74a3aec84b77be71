# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""LLaVA's instruction data: public layouts, phrases, errors, and the conversations of scenes with their processor."""

import json
from collections import Counter

import numpy as np
import pytest
from PIL import Image
from transformers import AutoProcessor

from grounded_attention.dataset_scripts.builders import BUILDERS
from grounded_attention.dataset_scripts.files.errors import DataError, MissingFileError
from grounded_attention.dataset_scripts.scenes.dataset import write_scenes
from grounded_attention.processing.patch_grounding import PatchGroundingProcessor

PUBLIC = [
    {
        "id": "000000033471",
        "image": "coco/train2017/000000033471.jpg",
        "conversations": [
            {"from": "human", "value": "What are the colors of the bus?\n<image>"},
            {"from": "gpt", "value": "The bus is white and red."},
            {"from": "human", "value": "Where is it?"},
            {"from": "gpt", "value": "On a street."},
        ],
    },
    {"id": "wgByO4Y_0", "conversations": [{"from": "human", "value": "Hello"}, {"from": "gpt", "value": "Hi"}]},
    {
        "id": "000000033471",
        "image": "coco/train2017/000000033471.jpg",
        "conversations": [{"from": "human", "value": "<image>\nDescribe."}, {"from": "gpt", "value": "A white bus."}],
        "phrases": [{"message": 1, "start": 2, "end": 11, "boxes": [[0, 0.25, 0.5, 1]]}],
    },
]


def build(folder, tmp_path, split="train"):
    builder = BUILDERS["llava_instruct"](data_dir=str(folder), cache_dir=str(tmp_path / "cache"), splits=split)
    builder.download_and_prepare()
    return builder.as_dataset(split=split), builder.report


def write(tmp_path, content, name="llava_v1_5_mix665k.json"):
    (tmp_path / "data").mkdir(exist_ok=True)
    (tmp_path / "data" / name).write_text(json.dumps(content))
    return tmp_path / "data"


def test_the_public_layout(tmp_path):
    rows, report = build(write(tmp_path, PUBLIC), tmp_path)
    assert [row["example_id"] for row in rows] == ["000000033471#0", "000000033471#2"]
    assert rows[0]["image_id"] == "000000033471"
    assert rows[0]["file_name"] == PUBLIC[0]["image"]
    assert rows[0]["messages"] == [
        {"role": "user", "content": "What are the colors of the bus?"},
        {"role": "assistant", "content": "The bus is white and red."},
        {"role": "user", "content": "Where is it?"},
        {"role": "assistant", "content": "On a street."},
    ]
    assert rows[0]["phrases"] == []
    phrase = {"sentence": 1, "text": "white bus", "start": 2, "end": 11, "boxes": [[0.0, 0.25, 0.5, 1.0]]}
    assert rows[1]["phrases"] == [phrase]
    assert (report["train"]["conversations"], report["train"]["without image"]) == (2, 1)


HUMAN, GPT = ({"from": speaker, "value": speaker} for speaker in ("human", "gpt"))


@pytest.mark.parametrize(
    "conversations",
    [[GPT, HUMAN, GPT], [{"from": "system", "value": "Be kind."}, HUMAN, GPT], [HUMAN, HUMAN, GPT], [], [GPT], None,
     [HUMAN, {"from": "function_call", "value": "{}"}], [{**HUMAN, "value": ""}, GPT], ["words"], "words"],
)  # fmt: skip
@pytest.mark.parametrize("image", [{}, {"image": None}])
def test_conversations_without_an_image_are_not_read(tmp_path, conversations, image):
    rows, report = build(write(tmp_path, [{"id": "s", "conversations": conversations, **image}, PUBLIC[2]]), tmp_path)
    assert [row["example_id"] for row in rows] == ["000000033471#1"]
    assert report["train"]["without image"] == 1


def test_a_first_message_of_the_assistant_and_an_empty_answer_are_left_out(tmp_path):
    begun = {**PUBLIC[2], "conversations": [GPT, *PUBLIC[2]["conversations"]]}
    begun["phrases"] = [{**PUBLIC[2]["phrases"][0], "message": 2}]
    silent = {**PUBLIC[0], "conversations": [HUMAN, {**GPT, "value": " "}]}
    rows, report = build(write(tmp_path, [begun, PUBLIC[2], silent]), tmp_path)
    assert rows[0]["messages"] == rows[1]["messages"]
    assert rows[0]["phrases"] == rows[1]["phrases"]
    assert len(rows) == 2
    assert report["train"]["with an empty answer"] == 1


@pytest.mark.parametrize(
    "change, message",
    [
        ({"conversations": []}, r"element 1.*0 messages.*in turns"),
        ({"conversations": PUBLIC[0]["conversations"][:3]}, "3 messages"),
        ({"conversations": [{"from": "gpt", "value": "a"}] * 2}, "message 1.*bad from.*gpt.*human"),
        ({"phrases": [{"message": 9, "start": 0, "end": 1, "boxes": []}]}, "phrase 1.*bad message.*9.*below 4"),
        ({"phrases": [{"message": 1, "start": 3, "end": 99, "boxes": []}]}, r"bad span.*\(3, 99\).*25"),
        ({"phrases": [{"message": 1, "start": 0, "end": 3, "boxes": [[0, 0, 50, 80]]}]}, "bad box.*50.*divided by"),
        ({"phrases": [{"message": 1, "start": 0, "end": 3, "boxes": [[0.5, 0, 0.5, 1]]}]}, "bad box"),
    ],
)
def test_errors_name_the_element(tmp_path, change, message):
    folder = write(tmp_path, [{**PUBLIC[0], **change}])
    with pytest.raises(DataError, match=rf"(?s)mix665k\.json.*{message}"):
        build(folder, tmp_path)


@pytest.mark.parametrize(
    "content, message",
    [
        ([], "0 without image"),
        (PUBLIC[1:2], "1 without image"),
        ({"a": PUBLIC[:1], "b": PUBLIC[:1]}, "element 1: not a list"),
    ],
)
def test_a_file_without_a_list_of_conversations_is_refused(tmp_path, content, message):
    folder = write(tmp_path, content)
    with pytest.raises(DataError, match=rf"mix665k\.json.*{message}"):
        build(folder, tmp_path)


def test_a_missing_file_says_where_to_get_it(tmp_path):
    (tmp_path / "data").mkdir()
    with pytest.raises(MissingFileError, match=r"train\.json.*LLaVA-Instruct-150K"):
        build(tmp_path / "data", tmp_path)


@pytest.fixture(scope="module")
def scenes(tmp_path_factory):
    root = tmp_path_factory.mktemp("drawn") / "scenes"
    write_scenes(root, images=20, seed=0)
    return root


def test_scenes_have_the_texts_and_phrases_of_their_other_files(scenes, tmp_path):
    root = scenes
    for split in ("train", "validation", "test"):
        rows, _ = build(root, tmp_path, split)
        entities = BUILDERS["flickr30k_entities"](data_dir=str(root), cache_dir=str(tmp_path / "cache"))
        entities.download_and_prepare()
        wanted = Counter()
        phrases = Counter()
        for image in entities.as_dataset(split=split):
            for number, text in enumerate(image["captions"]):
                wanted[image["image_id"], text] += image["related"][number]
                for each in image["phrases"]:
                    if each["sentence"] == number and each["boxes"]:
                        corners = tuple(np.round(each["boxes"], 3).ravel().tolist())
                        phrases[image["image_id"], text, each["text"], corners] += 1
            wanted = +wanted
        if split != "test":
            questions = BUILDERS["vqa_v2"](data_dir=str(root), cache_dir=str(tmp_path / "cache"))
            questions.download_and_prepare()
            for row in questions.as_dataset(split=split):
                usual = Counter(row["answers"]).most_common(1)[0][1]
                found = [m for r in rows if r["image_id"] == row["image_id"] for m in r["messages"]]
                answer = found[[m["content"] for m in found].index(row["text"]) + 1]["content"]
                assert row["answers"].count(answer) == usual
                wanted[row["image_id"], answer] += 1
        answers = Counter((row["image_id"], each["content"]) for row in rows for each in row["messages"][1::2])
        assert answers == wanted
        found = Counter(
            (row["image_id"], row["messages"][each["sentence"]]["content"], each["text"], corners)
            for row in rows
            for each in row["phrases"]
            for corners in [tuple(np.round(each["boxes"], 3).ravel().tolist())]
        )
        assert sum(found.values()) == sum(phrases.values())
        assert {key[:3] for key in found} == {key[:3] for key in phrases}


def test_questions_of_scenes_have_the_boxes_of_what_they_mean(scenes, tmp_path):
    """Against the objects and their shapes that the files of referring expressions list."""
    root = scenes
    options = {"data_dir": str(root), "cache_dir": str(tmp_path / "cache")}
    builder = BUILDERS["llava_instruct"](config_name="questions", **options)
    builder.download_and_prepare()
    listed = json.loads((root / "refcoco+" / "instances.json").read_text())
    sizes = {each["id"]: (each["width"], each["height"]) * 2 for each in listed["images"]}
    names = {each["id"]: each["name"] for each in listed["categories"]}
    shapes = {}
    for each in listed["annotations"]:
        x, y, w, h = each["bbox"]
        corners = np.divide((x, y, x + w, y + h), sizes[each["image_id"]])
        shapes.setdefault(str(each["image_id"]), []).append((names[each["category_id"]], corners))
    kinds = Counter()
    for row in builder.as_dataset("train"):
        assert [each["role"] for each in row["messages"]] == ["user", "assistant"] * 5
        for phrase in row["phrases"]:
            turn, answers = divmod(phrase["sentence"], 2)
            question, answer = (row["messages"][2 * turn + side]["content"] for side in (0, 1))
            if question == "Describe the image.":
                continue
            objects = [
                [name for name, corners in shapes[row["image_id"]] if np.allclose(box, corners, atol=1e-4)]
                for box in phrase["boxes"]
            ]
            assert all(objects)
            named = set(phrase["text"].split()) & set(names.values())
            if not answers and named:  # a shape between two names has the other one here
                kinds["its name"] += all(named & set(of_box) for of_box in objects)
            if answers and question.startswith("What is") and answer in names.values():
                assert [answer] in objects
            kinds["answer" if answers else "named" if named else "described"] += 1
    assert min(kinds.values()) > 3
    assert len(kinds) == 4
    assert kinds["its name"] > 0.8 * kinds["named"]


def test_the_processor_knows_all_words_and_places_phrases(scenes, tmp_path):
    root = scenes
    processor = AutoProcessor.from_pretrained(root / "llava" / "processor", backend="pil")
    tokenizer = processor.tokenizer
    wrapped = PatchGroundingProcessor(processor, "llava")
    rows, _ = build(root, tmp_path, "train")
    for row in list(rows)[:5]:
        image = Image.open(root / "flickr30k-images" / row["file_name"])
        conversation = [
            {"role": each["role"], "content": [{"type": "text", "text": each["content"]}]} for each in row["messages"]
        ]
        conversation[0]["content"].insert(0, {"type": "image"})
        batch = wrapped([conversation], images=[image], phrases=[row["phrases"]])
        assert (batch["input_ids"] != tokenizer.unk_token_id).all()
        assert batch["region_positions"].shape[1] == 64
        assert not batch.dropped_phrases[0]
        for number, phrase in enumerate(row["phrases"]):
            tokens = batch["text_positions"][0][batch["phrase_mask"][0, number]]
            words = tokenizer.decode(batch["input_ids"][0, tokens])
            assert words.replace(" ", "") == phrase["text"].lower().replace(" ", "")
