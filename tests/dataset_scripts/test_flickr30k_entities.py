# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
import numpy as np
import pytest

from grounded_attention.dataset_scripts.builders.flickr30k_entities import (
    Flickr30kEntities,
    parse_annotation,
    parse_sentence,
    parse_unrelated,
)
from grounded_attention.dataset_scripts.files.errors import DataError, MissingFileError
from tests.dataset_scripts.entities_files import CAPTIONS, box, write_annotation, write_entities
from tests.helpers.built import built


def build(data_dir, cache, **options):
    return built(Flickr30kEntities, data_dir, cache, **options)


@pytest.fixture
def entities(tmp_path):
    unrelated = "# format: <imageID> <sentence number>\n7 1\n9 5"
    return write_entities(tmp_path / "flickr30k_entities", {"7": CAPTIONS, "9": CAPTIONS}, {"train": "79"}, unrelated)


def test_sentence_text_and_spans():
    text, phrases = parse_sentence(CAPTIONS[0])
    assert text == "A man in a red coat feeds two dogs ."
    assert [(p["text"], p["start"], p["end"], p["entity"], p["types"]) for p in phrases] == [
        ("A man", 0, 5, "11", ["people"]),
        ("a red coat", 9, 19, "12", ["clothing"]),
        ("two dogs", 26, 34, "13", ["animals"]),
    ]


@pytest.mark.parametrize(
    "line, words, chain, types",
    [
        ("[/EN#5/bodyparts/people a man 's arm] .", "a man 's arm", "5", "bodyparts people"),
        ("[/EN#5 it]", "it", "5", ""),
        ("with [/EN#0/notvisual each other]\r", "each other", "0", "notvisual"),
        ("un [/EN#5/other cafe\u0301 ] # ''", "cafe\u0301", "5", "other"),
        ('"[/EN#5/people A man]" is written.', "A man", "5", "people"),
        ("\u201c[/EN#5/people A man]\u201d, he said", "A man", "5", "people"),
        ("near [/EN#5/other a blue cube].", "a blue cube", "5", "other"),
        ("([/EN#5/people/other a man]'s hat)", "a man", "5", "people other"),
        ("red\u2014[/EN#5/body_part a  hand]; half-done", "a hand", "5", "body_part"),
        ("[/EN#0/notvisual it]\u2019s late ...", "it", "0", "notvisual"),
    ],
)
def test_sentence_variants(line, words, chain, types):
    text, [phrase] = parse_sentence(line)
    assert phrase["text"] == words
    assert phrase["entity"] == chain
    assert phrase["types"] == types.split()
    assert text[phrase["start"] : phrase["end"]] == words
    assert not set(text) & set("[]")


@pytest.mark.parametrize(
    "line",
    [
        "[/EN#1/people A man walks .",
        "[/EN#1/people A man] walks ] .",
        "[/EN#1/people A [/EN#2/people man]] .",
        "[ A man] walks",
        "[/EN#man/people A man] walks",
        "[/EN#01/people A man] walks",
        "[/EN#1/people ] walks",
        "[/EN#1/body parts his hands] up",
        "beside [/EN#0/other/not visual each other]",
        '[/EN#1/"people" A man] walks',
        "/EN#1/people A man] walks",
        "(/EN#1/people A man) walks",
        "[/EN#1/people A man]walks",
        "old[/EN#1/people man] walks",
    ],
)
def test_malformed_tags(line):
    with pytest.raises(DataError, match=r"x/12\.txt, line 3: .*found.*expected .*/EN#<chain>"):
        parse_sentence(line, file="x/12.txt", where="line 3")


def test_annotation_names_and_boxes(tmp_path):
    objects = [
        "<name>1</name>" + box(1, 1, 100, 50),
        "<name>1</name>\n<name>6</name>" + box(11, 6, 21, 11),
        "<name>8</name><scene>1</scene><nobndbox>0</nobndbox>",
        "<name>10</name><scene>0</scene><nobndbox>1</nobndbox>",
        "<name>0</name>" + box(1, 1, 2, 2),
    ]
    width, height, boxes = parse_annotation(write_annotation(tmp_path / "1.xml", objects))
    assert width == 100
    assert height == 50
    # 1 is subtracted from every side, as in the official utilities.
    np.testing.assert_allclose(boxes["1"], [[0, 0, 0.99, 0.98], [0.1, 0.1, 0.2, 0.2]])
    assert boxes["6"] == boxes["1"][1:]
    assert boxes["8"] == boxes["10"] == []
    assert list(boxes) == ["1", "6", "8", "10"]


@pytest.mark.parametrize(
    "corners, problem",
    {
        "10 10 9 20": "the box is inverted, outside",
        "0.25 0.5 0.75 1": "the box is inverted, outside",
        "0.5 0.2 1.0000001 1": "the box is inverted, outside",
        "10 10 102 20": "the box is inverted, outside",
        "-1 10 20 20": "the box is inverted, outside",
        "10 nan 20 20": "ymin is not a finite number",
        "10 10 inf 20": "xmax is not a finite number",
        "10 10 20 high": "ymax is not a finite number",
        "10 10 20 ": "ymax is not a finite number",
    }.items(),
)
def test_impossible_boxes(tmp_path, corners, problem):
    wrong = "<name>5</name>" + box(*corners.split(" "))
    path = write_annotation(tmp_path / "3.xml", ["<name>4</name>" + box(1, 1, 2, 2), wrong])
    with pytest.raises(DataError, match=problem) as error:
        parse_annotation(path)
    assert f"{path}, object 2 (name 5)" in str(error.value)


def test_one_pixel_overshoot_is_clipped_and_one_pixel_box_is_kept(tmp_path):
    objects = ["<name>4</name>" + box(0, 0, 101, 51), "<name>5</name>" + box(51, 26, 51, 26)]
    _, _, boxes = parse_annotation(write_annotation(tmp_path / "3.xml", objects))
    assert boxes == {"4": [[0, 0, 1, 1]], "5": [[0.5, 0.5, 0.5, 0.5]]}


@pytest.mark.parametrize(
    "header",
    [
        '<!DOCTYPE annotation [<!ENTITY a "aaaa">]><annotation>&a;</annotation>',
        '<!DOCTYPE annotation SYSTEM "http://localhost/x.dtd"><annotation/>',
        '<!DOCTYPE annotation [<!ENTITY x SYSTEM "file:///etc/passwd">]><annotation>&x;</annotation>',
    ],
)
def test_xml_with_entities_or_dtd_is_refused(tmp_path, header):
    path = tmp_path / "3.xml"
    path.write_text(f'<?xml version="1.0"?>{header}')
    with pytest.raises(DataError, match="without declarations") as caught:
        parse_annotation(path)
    assert str(path) in str(caught.value)


def test_truncated_xml_and_bad_size(tmp_path):
    path = write_annotation(tmp_path / "3.xml", ["<name>4</name>" + box(1, 1, 2, 2)])
    path.write_bytes(path.read_bytes()[:-30])
    with pytest.raises(DataError, match="truncated"):
        parse_annotation(path)
    with pytest.raises(DataError, match="impossible image size"):
        parse_annotation(write_annotation(tmp_path / "4.xml", [], size=(0, 10)))


@pytest.mark.parametrize("encoding", ["shift_jis", "undefined", "nonsense"])
def test_xml_of_another_encoding_names_its_file(tmp_path, encoding):
    path = write_annotation(tmp_path / "3.xml", ["<name>4</name>" + box(1, 1, 2, 2)])
    path.write_text(f'<?xml version="1.0" encoding="{encoding}"?>{path.read_text()}')
    with pytest.raises(DataError, match=r"3\.xml: not well-formed XML .*; get the file again"):
        parse_annotation(path)


def test_unrelated_captions(tmp_path):
    path = tmp_path / "UNRELATED_CAPTIONS"
    path.write_text("# format: <imageID> <sentence number>\n129602216 5\n133010954 1")
    assert parse_unrelated(path) == {("129602216", 4), ("133010954", 0)}
    for number in ("five", "0", "9" * 5000):
        path.write_text(f"# format\n129602216 {number}")
        with pytest.raises(DataError, match=r"UNRELATED_CAPTIONS, line 2: not an unrelated caption"):
            parse_unrelated(path)


@pytest.mark.parametrize("inside", [False, True])
def test_rows(entities, tmp_path, inside):
    builder = build(entities if inside else entities.parent, tmp_path / "cache")
    first, second = builder.as_dataset("train")
    assert [split.num_examples for split in builder.info.splits.values()] == [2, 0, 0]
    assert first["image_id"] == "7"
    assert (first["width"], first["height"]) == (100, 50)
    assert first["caption_ids"] == ["7#0", "7#1", "7#2", "7#3", "7#4"]
    assert first["related"] == [False, True, True, True, True]
    assert second["related"] == [True, True, True, True, False]
    about = {"entity": "13", "types": ["animals", "other"], "boxes": [[0, 0, 0.5, 0.5]]}
    dogs = {"text": "two dogs", "start": 13, "end": 21, "sentence": 2, **about}
    assert dogs in first["phrases"]
    assert not any(phrase["boxes"] for phrase in first["phrases"] if phrase["sentence"] == 0)
    assert first["objects"] == dogs["boxes"]


MISSING = {
    "Annotations/9.xml": r"Annotations/9\.xml.*github\.com/BryanPlummer",
    "Sentences/9.txt": r"Sentences/9\.txt",
    "test.txt": r"test\.txt",
    "UNRELATED_CAPTIONS": "UNRELATED_CAPTIONS",
}


@pytest.mark.parametrize("name", MISSING)
def test_a_missing_file_is_named(entities, tmp_path, name):
    (entities / name).unlink()
    with pytest.raises(MissingFileError, match=MISSING[name]):
        build(entities, tmp_path / "cache")


def test_only_the_lists_of_the_splits_are_read(entities, tmp_path):
    (entities / "test.txt").unlink()
    (entities / "val.txt").write_text("7\n")
    assert list(build(entities, tmp_path / "cache", splits="validation").info.splits) == ["validation"]
    with pytest.raises(MissingFileError, match="does not exist"):
        build(tmp_path / "nowhere", tmp_path / "cache")


def test_record_errors_surface_as_themselves(entities, tmp_path):
    (entities / "Sentences" / "9.txt").write_text("\n".join([*CAPTIONS[:4], "[/EN#1/people A man"]))
    builder = Flickr30kEntities(data_dir=str(entities), cache_dir=str(tmp_path / "cache"))
    with pytest.raises(DataError, match=r"9\.txt, line 5: a tag that cannot be read"):
        builder.download_and_prepare()


def test_truncated_sentence_files(entities, tmp_path):
    path = entities / "Sentences" / "9.txt"
    path.write_text("\n".join(CAPTIONS[:3]))
    with pytest.raises(DataError, match=r"9\.txt: the sentence file looks truncated.*3 captions"):
        build(entities, tmp_path / "cache")
    rows = build(entities, tmp_path / "cache", captions_per_image=0).as_dataset("train")
    assert [len(row["captions"]) for row in rows] == [5, 3]
    path.write_bytes("\n".join(CAPTIONS).encode() + " caf\u00e9".encode()[:-1])
    with pytest.raises(DataError, match="UTF-8"):
        build(entities, tmp_path / "cache")


def test_original_vgp_layout(entities, tmp_path):
    for split in ("train", "val", "test"):
        (entities / f"{split}_captions").mkdir()
        (entities / f"{split}.txt").unlink()
    for path in (entities / "Sentences").iterdir():
        path.rename(entities / "train_captions" / path.name)
    (entities / "Sentences").rmdir()
    rows = build(entities, tmp_path / "cache").as_dataset("train")
    assert rows["image_id"][:] == ["7", "9"]
    assert not rows[0]["related"][0]
    assert str(rows.info.version) == "1.2.0"
    (entities / "test_captions").rmdir()
    with pytest.raises(MissingFileError, match="test_captions: the folder is missing"):
        build(entities, tmp_path / "cache")


def test_real_excerpts(shared):
    folder = shared / "real" / "flickr30k_entities"
    for path in (folder / "Sentences").iterdir():
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
            text, phrases = parse_sentence(line, file=path, where=f"line {number}")
            assert phrases
            for phrase in phrases:
                assert text[phrase["start"] : phrase["end"]] == phrase["text"]
    assert len(parse_unrelated(folder / "UNRELATED_CAPTIONS")) == 21
    width, height, boxes = parse_annotation(folder / "1000092795.partial.xml")
    assert width == 333
    assert height == 500
    assert boxes["6"] == boxes["1"][1:]
    assert len(boxes["4"]) == 2
    np.testing.assert_allclose(np.multiply(boxes["6"][0], [333, 500, 333, 500]), [196, 109, 260, 372])
    assert boxes["10"] == []


@pytest.mark.parametrize("image_id", ["../secret", "/etc/7", "a/../../7"])
def test_an_id_with_a_path_reads_nothing_outside_the_folder(entities, tmp_path, image_id):
    # A file of the same name inside does not help.
    for place in ("secret", f"Sentences/{image_id.split('/')[-1]}", f"Annotations/{image_id.split('/')[-1]}"):
        (entities / f"{place}.txt").write_text("\n".join(CAPTIONS))
        write_annotation(entities / f"{place}.xml", [])
    (entities / "train.txt").write_text(f"7\n{image_id}\n")
    with pytest.raises(ValueError, match="expected a path inside this folder") as error:
        build(entities.parent, tmp_path / "cache", splits="train")
    assert image_id in str(error.value)


@pytest.mark.parametrize("name", ["man", "1x", "01", "\u0661"])
def test_a_chain_that_no_caption_can_name_is_refused(tmp_path, name):
    path = write_annotation(tmp_path / "1.xml", [f"<name>{name}</name>" + box(1, 1, 10, 10)])
    with pytest.raises(DataError, match="the number of a chain") as caught:
        parse_annotation(path)
    assert "1.xml, object 1" in str(caught.value)


@pytest.mark.parametrize("content", ["", "\n \n", "\ufeff"])
def test_an_empty_list_of_images_is_refused(entities, tmp_path, content):
    (entities / "train.txt").write_text(content, encoding="utf-8")
    with pytest.raises(DataError, match=r"train\.txt: the split has no image"):
        build(entities.parent, tmp_path / "cache", splits="train")


@pytest.mark.parametrize(
    "splits, message",
    [
        ({"train": "797"}, r"train\.txt, line 3: .*'7'.* line 1"),
        ({"train": "79", "val": "9"}, r"val\.txt: .*9.*train\.txt"),
    ],
)
def test_an_image_that_is_listed_twice(tmp_path, splits, message):
    """Its rows would be counted twice, or be trained on and then judged."""
    folder = write_entities(tmp_path / "flickr30k_entities", {"7": CAPTIONS, "9": CAPTIONS}, splits)
    with pytest.raises(DataError, match=message):
        build(folder, tmp_path / "cache")


def test_an_image_of_two_splits_may_be_read_in_one(tmp_path):
    folder = write_entities(tmp_path / "a", {"7": CAPTIONS, "9": CAPTIONS}, {"train": "79", "val": "9"})
    assert len(build(folder, tmp_path / "cache", splits=["train"]).as_dataset("train")) == 2


def test_a_list_without_an_end_is_read_with_a_warning(entities, tmp_path, caplog):
    """The list was cut behind an id: it is whole by its looks."""
    (entities / "train.txt").write_text("7")
    assert len(build(entities, tmp_path / "cache").as_dataset("train")) == 1
    assert "train.txt: line 1 has no end, so the file may be cut" in caplog.text
