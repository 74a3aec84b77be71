# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""The builder of LXMERT's pre-training data, on small files in the layout of the public ones."""

import json
from collections import Counter

import pytest

from grounded_attention.dataset_scripts.builders import BUILDERS
from grounded_attention.dataset_scripts.builders.lxmert_pretraining import LXMERTPretraining
from grounded_attention.dataset_scripts.files.errors import DataError, MissingFileError
from grounded_attention.dataset_scripts.scenes.dataset import write_scenes

TRAIN = "mscoco_train"
REST = "mscoco_nominival"
OTHERS = "vgnococo"
MINIVAL = "mscoco_minival"


def image(image_id, **changes):
    return {
        "img_id": image_id,
        "labelf": {"vqa": [{"net": 1, "a net": 0.3}, {}], "gqa": [{"yes": 1.0}]},
        "sentf": {"mscoco": ["A net.", " "], "vqa": ["What is this?", "Who?"], "gqa": ["Is it red?"]},
        **changes,
    }


def write(folder, **files):
    names = {
        TRAIN: [image("COCO_train2014_000000000009")],
        REST: [image("COCO_val2014_000000000042")],
        OTHERS: [{"img_id": "2407890", "labelf": {}, "sentf": {"vg": ["a red bus"]}}],
        MINIVAL: [image("COCO_val2014_000000000073")],
    }
    folder.mkdir(parents=True, exist_ok=True)
    for name, content in (names | files).items():
        (folder / f"{name}.json").write_text(content if isinstance(content, str) else json.dumps(content))
    return folder


def build(data_dir, tmp_path, **options):
    builder = LXMERTPretraining(data_dir=str(data_dir), cache_dir=str(tmp_path / "cache"), **options)
    builder.download_and_prepare()
    return builder


def test_one_row_a_sentence_in_the_splits_of_the_public_code(tmp_path):
    write(tmp_path / "data" / "lxmert")
    builder = build(tmp_path / "data", tmp_path)
    rows = builder.as_dataset()
    assert rows["train"].unique("image_id") == ["COCO_train2014_000000000009", "COCO_val2014_000000000042", "2407890"]
    assert rows["validation"]["caption_id"][:] == [
        f"COCO_val2014_000000000073_{end}" for end in ("mscoco_000", "vqa_000", "vqa_001", "gqa_000")
    ]
    assert rows["validation"]["text"][:] == ["A net.", "What is this?", "Who?", "Is it red?"]
    assert rows["validation"]["source"][:] == ["mscoco", "vqa", "vqa", "gqa"]
    answers = [[(a["answer"], round(a["score"], 4)) for a in row["answers"]] for row in rows["validation"]]
    assert answers == [[], [("net", 1.0), ("a net", 0.3)], [], [("yes", 1.0)]]
    expected = {"images": 3, "sentences": 9, "sentences_with_answers": 4, "sentences_without_words": 2}
    assert expected.items() <= builder.report["train"].items()


def test_test_images_and_listed_images_are_left_out(tmp_path):
    hidden = [image("COCO_test2015_000000000001"), image("COCO_train2014_000000000009")]
    data = write(tmp_path / "data", **{TRAIN: hidden})
    lists = [tmp_path / "flickr30k.txt", tmp_path / "nlvr2.txt"]
    lists[0].write_text("1\n\n 2407890 \n")
    lists[1].write_text("COCO_val2014_000000000042.jpg\r\n000000000007\n")
    builder = build(data, tmp_path, excluded_images=[str(path) for path in lists], splits="train")
    assert builder.as_dataset("train").unique("image_id") == ["COCO_train2014_000000000009"]
    assert builder.report["train"]["excluded_images"] == 3
    one = build(data, tmp_path, excluded_images=str(lists[0]), splits="train")
    assert len(one.as_dataset("train").unique("image_id")) == 2
    # A list that changes makes the cached rows stale.
    lists[0].write_text("9\n")
    again = build(data, tmp_path, excluded_images=str(lists[0]), splits="train")
    assert again.as_dataset("train").unique("image_id") == ["COCO_val2014_000000000042", "2407890"]
    lists[0].write_text("000002407890\n")  # twelve digits are those of COCO
    with pytest.raises(DataError, match=r"flickr30k\.txt: .*found '000002407890', expected ids such as '"):
        build(data, tmp_path, excluded_images=[str(path) for path in lists])
    assert len(build(data, tmp_path, excluded_images=str(lists[0]), splits="validation").as_dataset("validation"))
    with pytest.raises(MissingFileError, match=r"none\.txt: the file is missing"):
        build(data, tmp_path, excluded_images=str(tmp_path / "none.txt"))


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ([image("7"), image("7")], ["the image occurs twice", "element 2", "'7'"]),
        ([image("7", labelf={"vqa": [{}]})], ["image '7', labelf", "wrong number of answers in vqa", "2, one for"]),
        ([image("7", labelf={"vcr": []})], ["image '7', labelf", "answers without sentences", "vcr"]),
        ([image("7", labelf={"gqa": ["yes"]})], ["image '7', labelf, gqa 1", "{answer: score}"]),
        ([image("7", labelf={"gqa": [{"yes": -1}]})], ["gqa 1", "bad score of 'yes'", "0 or more"]),
        ([image("7", labelf={"gqa": [{"yes": 10**400}]})], ["gqa 1", "impossible yes", "a finite number"]),
        ([image("7", labelf={}, sentf={"vqa": "Who?"})], ["image '7', sentf", "bad vqa", "a list"]),
        ([{"img_id": "7", "labelf": {}}], ["image '7'", "sentf is missing"]),
        ([image("7", labelf={}, sentf={"vg": ["\ud800"]})], ["image '7', sentf", "bad vg", "unpaired surrogates"]),
        ([image("7", labelf={"gqa": [{"\ud800": 1}]})], ["gqa 1", "bad name", "unpaired surrogates"]),
        ({"7": [image("7")]}, ["not a list", "expected a list"]),
        ([], ["no images"]),
    ],
)
def test_an_invalid_file_names_file_and_image(tmp_path, content, words):
    data = write(tmp_path / "data", **{OTHERS: content})
    with pytest.raises(DataError) as error:
        build(data, tmp_path, splits="train")
    for word in ["vgnococo.json", *words]:
        assert word in str(error.value)


def test_a_missing_file_is_named(tmp_path):
    data = write(tmp_path / "data")
    (data / "vgnococo.json").unlink()
    with pytest.raises(MissingFileError, match=r"vgnococo\.json.*lxmert#pre-training"):
        build(data, tmp_path)
    assert build(data, tmp_path, splits="validation").as_dataset("validation").num_rows == 4
    with pytest.raises(DataError, match="no such split"):
        build(data, tmp_path, splits="test")


def test_scenes_have_the_sentences_of_their_other_files(tmp_path):
    """Every caption and question of train and val once, with the answers that the other builders read."""
    root = tmp_path / "scenes"
    write_scenes(root, images=30, seed=0)
    found = {split: build_rows(root, tmp_path, "lxmert_pretraining", split) for split in ("train", "validation")}
    for split, rows in found.items():
        captions = build_rows(root, tmp_path, "coco_captions", split)
        wanted = Counter((row["image_id"], caption) for row in captions for caption in row["captions"])
        wanted |= Counter((row["image_id"], row["text"]) for row in build_rows(root, tmp_path, "vqa_v2", split))
        gqa = build_rows(root, tmp_path, "gqa", split, config_name="balanced")
        wanted += Counter((row["image_id"], row["text"]) for row in gqa)
        assert Counter((row["image_id"], row["text"]) for row in rows) == wanted
        answers = {(row["image_id"], row["text"]): row["answers"] for row in rows if row["source"] == "gqa"}
        assert {key: given[0]["answer"] for key, given in answers.items()} == {
            (row["image_id"], row["text"]): row["answer"] for row in gqa
        }
    assert {row["source"] for row in found["train"]} == {"mscoco", "vg", "vqa", "gqa"}


def build_rows(root, tmp_path, name, split, **options):
    builder = BUILDERS[name](data_dir=str(root), cache_dir=str(tmp_path / "cache"), **options)
    builder.download_and_prepare()
    return builder.as_dataset(split=split)
