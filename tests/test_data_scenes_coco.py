# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""COCO captions and the corpus of the scenes, read back by the builders of the real data."""

import json

import pytest

from dataset_scripts.coco_captions import CocoCaptions
from dataset_scripts.errors import DataError
from dataset_scripts.flickr30k_entities import Flickr30kEntities
from dataset_scripts.region_table import RegionTable
from dataset_scripts.scene_dataset import scene_record, scene_texts, write_scenes
from dataset_scripts.text_corpus import TextCorpus

IMAGES, SEED = 20, 4


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    root = tmp_path_factory.mktemp("scenes")
    write_scenes(root, IMAGES, SEED)
    return root


@pytest.fixture(scope="module")
def flickr(folder, tmp_path_factory):
    return built(Flickr30kEntities, folder, tmp_path_factory)


@pytest.fixture(scope="module", params=["official", "karpathy"])
def coco(request, folder, tmp_path_factory):
    return built(CocoCaptions, folder, tmp_path_factory, config_name=request.param)


def built(builder_class, data_dir, tmp_path_factory, **options):
    builder = builder_class(data_dir=str(data_dir), cache_dir=str(tmp_path_factory.mktemp("cache")), **options)
    builder.download_and_prepare()
    return {split: list(data) for split, data in builder.as_dataset().items()}


def content(root):
    return {str(path.relative_to(root)): path.read_bytes() for path in sorted(root.rglob("*")) if path.is_file()}


def without_additions(root):
    """Makes finished scenes those of before there were COCO captions and a corpus."""
    for path in [*(root / "coco").rglob("*.json"), root / "corpus.txt"]:
        path.unlink()
    manifest = json.loads((root / "scenes.json").read_text())
    del manifest["coco_captions"], manifest["corpus_sentences"]
    (root / "scenes.json").write_text(json.dumps(manifest, indent=2) + "\n")


def test_captions_are_the_related_ones_of_the_same_images(coco, flickr, folder):
    assert set(coco) in ({"train", "validation"}, {"train", "validation", "test"})
    for split, rows in coco.items():
        expected = {
            row["image_id"]: [caption["text"] for caption in row["captions"] if caption["related"]]
            for row in flickr[split]
        }
        found = {row["image_id"]: [caption["text"] for caption in row["captions"]] for row in rows}
        assert found == expected
        assert all((folder / "flickr30k-images" / row["file_name"]).is_file() for row in rows)
    captions = [caption["caption_id"] for rows in coco.values() for row in rows for caption in row["captions"]]
    assert len(set(captions)) == len(captions)


def test_one_caption_is_of_another_image_and_left_out(folder):
    unrelated = [scene_record(SEED, number, IMAGES) for number in range(IMAGES)]
    assert sum(record.unrelated is not None for record in unrelated) == 1
    counted = json.loads((folder / "scenes.json").read_text())["coco_captions"]
    assert sum(counted.values()) == 5 * IMAGES - 1


def test_ids_and_sizes_are_those_of_the_regions(folder, tmp_path_factory):
    table = RegionTable.open(folder / "regions")
    rows = [row for rows in built(CocoCaptions, folder, tmp_path_factory).values() for row in rows]
    for row in rows:
        regions = table[row["image_id"]]
        assert (row["width"], row["height"]) == (regions.width, regions.height)
    by_stem = built(CocoCaptions, folder, tmp_path_factory, image_id_format="file_stem")
    assert [row["image_id"] for data in by_stem.values() for row in data] == [row["image_id"] for row in rows]


def test_corpus_is_in_the_language_of_the_captions_and_about_other_scenes(folder, flickr, tmp_path_factory):
    rows = built(TextCorpus, folder / "corpus.txt", tmp_path_factory)["train"]
    sentences = [row["text"] for row in rows]
    assert len(sentences) == 5 * IMAGES == json.loads((folder / "scenes.json").read_text())["corpus_sentences"]
    words = set((folder / "vocab.txt").read_text().split("\n"))
    assert {word.lower() for sentence in sentences for word in sentence.split()} <= words
    captions = {caption["text"] for data in flickr.values() for row in data for caption in row["captions"]}
    assert len(captions & set(sentences)) <= 1, "the corpus repeats captions"
    assert all(sentence[0].isupper() and sentence.endswith(" .") for sentence in sentences)
    assert (folder / "corpus.txt").read_text().count("\n\n") == IMAGES - 1, "a blank line between two scenes"


def test_karpathy_tokens(folder):
    [image, *_] = json.loads((folder / "coco" / "dataset_coco.json").read_text())["images"]
    [sentence, *_] = image["sentences"]
    assert sentence["raw"].lower() == " ".join([*sentence["tokens"], "."])
    assert [each["sentid"] for each in image["sentences"]] == image["sentids"]
    assert (folder / image["filepath"] / image["filename"]).is_file()


def test_another_seed_gives_other_sentences():
    assert scene_texts(1, 2, 5).sentences != scene_texts(2, 2, 5).sentences
    assert scene_texts(1, 2, 5).sentences == scene_texts(1, 2, 9).sentences


def test_scenes_of_before_are_completed_and_else_left_alone(tmp_path):
    write_scenes(tmp_path, 5, 0)
    fresh = content(tmp_path)
    without_additions(tmp_path)
    pairs = tmp_path / "vgp" / "test_data.csv"
    written = pairs.stat().st_mtime_ns
    manifest = write_scenes(tmp_path, 5, 0)
    assert content(tmp_path) == fresh and json.loads(fresh["scenes.json"]) == manifest
    assert pairs.stat().st_mtime_ns == written


def test_a_completion_that_was_cut_goes_on(tmp_path):
    write_scenes(tmp_path, 5, 0)
    fresh, coco = content(tmp_path), (tmp_path / "coco" / "dataset_coco.json").read_bytes()
    without_additions(tmp_path)
    (tmp_path / "coco" / "dataset_coco.json").write_bytes(coco)
    write_scenes(tmp_path, 5, 0)
    assert content(tmp_path) == fresh


def test_files_of_others_are_not_replaced_by_a_completion(tmp_path):
    write_scenes(tmp_path, 5, 0)
    without_additions(tmp_path)
    (tmp_path / "corpus.txt").write_text("mine")
    with pytest.raises(DataError, match=r"corpus\.txt: a file of another content.*move it away"):
        write_scenes(tmp_path, 5, 0)
    assert (tmp_path / "corpus.txt").read_text() == "mine"
    assert "corpus_sentences" not in json.loads((tmp_path / "scenes.json").read_text())


def test_force_replaces_these_files_too(tmp_path):
    write_scenes(tmp_path, 5, 0)
    (tmp_path / "coco" / "mine.txt").write_text("x")
    write_scenes(tmp_path, 5, 1, force=True)
    write_scenes(tmp_path / "other", 5, 1)
    other = content(tmp_path / "other")
    assert {name: data for name, data in content(tmp_path).items() if not name.startswith("other")} == other
