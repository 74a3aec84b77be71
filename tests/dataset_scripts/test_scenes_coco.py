# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""COCO captions and the corpus of the scenes, read back by the builders of the real data."""

import pytest

from grounded_attention.dataset_scripts.builders.coco_captions import CocoCaptions
from grounded_attention.dataset_scripts.builders.flickr30k_entities import Flickr30kEntities
from grounded_attention.dataset_scripts.builders.text_corpus import TextCorpus
from grounded_attention.dataset_scripts.regions.table import RegionTable
from grounded_attention.dataset_scripts.scenes.dataset import IMAGES_PER_DOCUMENT, write_scenes

IMAGES = 20
SEED = 4


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


def test_captions_are_the_related_ones_of_the_same_images(coco, flickr, folder):
    assert set(coco) in ({"train", "validation"}, {"train", "validation", "test"})
    for split, rows in coco.items():
        expected = {
            row["image_id"]: [text for text, own in zip(row["captions"], row["related"], strict=True) if own]
            for row in flickr[split]
        }
        found = {row["image_id"]: row["captions"] for row in rows}
        assert found == expected
        assert all((folder / "flickr30k-images" / row["file_name"]).is_file() for row in rows)
    captions = [caption for rows in coco.values() for row in rows for caption in row["caption_ids"]]
    assert len(set(captions)) == len(captions)


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
    documents = -(-IMAGES // IMAGES_PER_DOCUMENT)
    assert len(sentences) == 5 * documents
    words = set((folder / "vocab.txt").read_text().split("\n"))
    assert {word.lower() for sentence in sentences for word in sentence.split()} <= words
    captions = {caption for data in flickr.values() for row in data for caption in row["captions"]}
    assert len(captions & set(sentences)) <= 1, "the corpus repeats captions"
    assert all(sentence[0].isupper() and sentence.endswith(" .") for sentence in sentences)
    assert (folder / "corpus.txt").read_text().count("\n\n") == documents - 1, "a blank line between two scenes"
