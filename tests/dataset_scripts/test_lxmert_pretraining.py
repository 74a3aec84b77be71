# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""The builder of LXMERT's pre-training data, on small files in the layout of the public ones."""

from collections import Counter

import pytest

from grounded_attention.dataset_scripts.builders import BUILDERS
from grounded_attention.dataset_scripts.builders.lxmert_pretraining import LXMERTPretraining
from grounded_attention.dataset_scripts.files.errors import DataError, MissingFileError
from grounded_attention.dataset_scripts.scenes.dataset import write_scenes
from tests.helpers.built import built

IMAGE = """[{"img_id": "ID", "labelf": {"vqa": [{"net": 1, "a net": 0.3}, {}], "gqa": [{"yes": 1.0}]},
    "sentf": {"mscoco": ["A net.", " "], "vqa": ["What is this?", "Who?"], "gqa": ["Is it red?"]}}]"""
FILES = {
    "mscoco_train": IMAGE.replace("ID", "COCO_train2014_000000000009"),
    "mscoco_nominival": IMAGE.replace("ID", "COCO_val2014_000000000042"),
    "vgnococo": '[{"img_id": "2407890", "labelf": {}, "sentf": {"vg": ["a red bus"]}}]',
    "mscoco_minival": IMAGE.replace("ID", "COCO_val2014_000000000073"),
}


def write(folder, **files):
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in (FILES | files).items():
        (folder / f"{name}.json").write_text(text)
    return folder


def build(data_dir, tmp_path, **options):
    return built(LXMERTPretraining, data_dir, tmp_path / "cache", **options)


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
    caption, what, who, is_it = rows["validation"]["answers"][:]
    assert [answer["answer"] for answer in what] == ["net", "a net"]
    assert [answer["score"] for answer in what] == pytest.approx([1, 0.3])
    assert is_it == [{"answer": "yes", "score": 1}]
    assert caption == who == []
    expected = {"images": 3, "sentences": 9, "sentences_with_answers": 4, "sentences_without_words": 2}
    assert expected.items() <= builder.report["train"].items()


def images_of(builder):
    return builder.as_dataset("train").unique("image_id")


def test_test_images_and_listed_images_are_left_out(tmp_path):
    of_test = IMAGE.replace("ID", "COCO_test2015_000000000001")
    data = write(tmp_path / "data", mscoco_train=of_test[:-1] + "," + FILES["mscoco_train"][1:])
    flickr = tmp_path / "flickr30k.txt"
    flickr.write_text("1\n\n 2407890 \n")
    nlvr = tmp_path / "nlvr2.txt"
    nlvr.write_text("COCO_val2014_000000000042.jpg\r\n000000000007\n")
    builder = build(data, tmp_path, excluded_images=[str(flickr), str(nlvr)], splits="train")
    assert images_of(builder) == ["COCO_train2014_000000000009"]
    assert builder.report["train"]["excluded_images"] == 3
    assert len(images_of(build(data, tmp_path, excluded_images=str(flickr), splits="train"))) == 2
    # A list that changes makes the cached rows stale.
    flickr.write_text("9\n")
    again = build(data, tmp_path, excluded_images=str(flickr), splits="train")
    assert images_of(again) == ["COCO_val2014_000000000042", "2407890"]


def test_a_list_of_other_ids_is_refused(tmp_path):
    data = write(tmp_path / "data")
    listed = tmp_path / "flickr30k.txt"
    listed.write_text("000002407890\n")  # twelve digits are those of COCO
    with pytest.raises(DataError, match=r"flickr30k\.txt: .*found '000002407890', expected ids such as '"):
        build(data, tmp_path, excluded_images=str(listed))
    assert len(build(data, tmp_path, excluded_images=str(listed), splits="validation").as_dataset("validation"))
    with pytest.raises(MissingFileError, match=r"none\.txt: the file is missing"):
        build(data, tmp_path, excluded_images=str(tmp_path / "none.txt"))


@pytest.mark.parametrize(
    "part, replacement, message",
    [
        (IMAGE, f"{IMAGE[:-1]}, {IMAGE[1:]}", "element 2: the image occurs twice .*'ID'"),
        (", {}]", "]", "image 'ID', labelf: wrong number of answers in vqa: .*2, one for"),
        ('"gqa": [{', '"vcr": [{', "image 'ID', labelf: answers without sentences: .*vcr"),
        ('{"yes": 1.0}', '"yes"', "image 'ID', labelf, gqa 1: .*{answer: score}"),
        ("1.0", "-1", "gqa 1: bad score of 'yes': .*0 or more"),
        ("1.0", "1" * 400, "gqa 1: impossible yes: .*a finite number"),
        ('["Is it red?"]', '"Who?"', "image 'ID', sentf: bad gqa: .*a list"),
        (IMAGE, '[{"img_id": "ID", "labelf": {}}]', "image 'ID': sentf is missing"),
        ("A net.", r"\ud800", "image 'ID', sentf: bad mscoco: .*unpaired surrogates"),
        ("yes", r"\ud800", "gqa 1: bad name.*unpaired surrogates"),
        (IMAGE, f'{{"7": {IMAGE}}}', "not a list: .*expected a list"),
        (IMAGE, "[]", "no images"),
    ],
)
def test_an_invalid_file_names_file_and_image(tmp_path, part, replacement, message):
    data = write(tmp_path / "data", vgnococo=IMAGE.replace(part, replacement))
    with pytest.raises(DataError, match=rf"vgnococo\.json.*{message}"):
        build(data, tmp_path, splits="train")


def test_a_missing_file_is_named(tmp_path):
    data = write(tmp_path / "data")
    (data / "vgnococo.json").unlink()
    with pytest.raises(MissingFileError, match=r"vgnococo\.json.*lxmert#pre-training"):
        build(data, tmp_path)
    assert build(data, tmp_path, splits="validation").as_dataset("validation").num_rows == 4


def build_rows(root, tmp_path, name, split, **options):
    builder = built(BUILDERS[name], root, tmp_path / "cache", **options)
    return builder.as_dataset(split=split)


def test_scenes_have_the_sentences_of_their_other_files(tmp_path):
    """Every caption and question of train and val once, with the answers that the other builders read."""
    root = tmp_path / "scenes"
    write_scenes(root, images=30, seed=0)
    for split in ("train", "validation"):
        rows = build_rows(root, tmp_path, "lxmert_pretraining", split)
        expected = Counter()
        for row in build_rows(root, tmp_path, "coco_captions", split):
            expected.update((row["image_id"], caption) for caption in row["captions"])
        questions = build_rows(root, tmp_path, "vqa_v2", split)
        expected |= Counter(zip(questions["image_id"], questions["text"], strict=True))
        gqa = build_rows(root, tmp_path, "gqa", split, config_name="balanced")
        answers = dict(zip(zip(gqa["image_id"], gqa["text"], strict=True), gqa["answer"], strict=True))
        expected += Counter(answers.keys())
        assert Counter(zip(rows["image_id"], rows["text"], strict=True)) == expected
        composed = [row for row in rows if row["source"] == "gqa"]
        assert len(composed) == len(gqa) > 0
        for row in composed:
            assert row["answers"][0]["answer"] == answers[row["image_id"], row["text"]]
        assert split != "train" or set(rows["source"]) == {"mscoco", "vg", "vqa", "gqa"}
