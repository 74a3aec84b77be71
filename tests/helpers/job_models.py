# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""Rows and models for the jobs over data, by name, so that any process can make them."""

import io
import os
from pathlib import Path

import datasets
import numpy as np
from PIL import Image

from grounded_attention.dataset_scripts.regions.extraction_run import ExtractRegions
from grounded_attention.heads.examples import grounded_examples
from grounded_attention.heads.ranking import rank_heads
from grounded_attention.heads.scores import ScoreHeads, read_scores
from grounded_attention.heads.table import SUMS
from grounded_attention.labelling.phrases import ContentWords
from grounded_attention.labelling.run import LabelCaptions
from grounded_attention.lens.answered import ManyLooks
from grounded_attention.lens.lens_table import ReadAnswers
from tests.dataset_scripts.stub_extractor import Extractor
from tests.helpers.stub_grounder import Grounder
from tests.helpers.tiny_vlm_examples import examples
from tests.helpers.tiny_vlm_models import make_pair

COUNT = 12
HEADS = [(1, 2), (0, 0)]


def make_llava():
    return make_pair("llava")


def make_looks():
    return ManyLooks(*make_llava(), HEADS, batch_size=2)


def make_scores():
    """The job that counts heads: two texts are read together."""
    return ScoreHeads(make_llava, batch_size=2)


JOBS = {
    "regions": ExtractRegions(Extractor),
    "labels": LabelCaptions(Grounder, ContentWords(), batch_size=2),
    "answers": ReadAnswers(make_looks, "answer"),
    "scores": make_scores(),
}


def rows(count=COUNT):
    """Rows that every job reads; each has a picture of its own."""
    made = []
    for number, example in enumerate(examples(count)):
        pixels = np.random.default_rng(number).integers(0, 255, (20, 40, 3), dtype=np.uint8)
        file = io.BytesIO()
        Image.fromarray(pixels).save(file, "PNG")
        phrases = [{"start": one.start, "end": one.end, "boxes": one.boxes.tolist()} for one in example.phrases]
        made.append(
            {
                "image_id": f"i{number:02d}",
                "caption_id": f"c{number:02d}",
                "id": f"r{number:02d}",
                "image": {"bytes": file.getvalue(), "path": None},
                "text": example.caption,
                "phrases": phrases,
                "answer": "a small cat near two red balls" if number % 2 else "a dog",
            }
        )
    return made


def dataset(count=COUNT):
    return datasets.Dataset.from_list(rows(count))


# What orders the rows of a job: engines return batches in any order.
KEYS = {"regions": ["image_id"], "labels": ["caption_id"], "answers": ["id", "text", "start", "answer"]}


def by_key(table, name):
    return table.sort_by([(key, "ascending") for key in KEYS[name]]).to_pylist()


def check_scores(found_rows):
    """Scores in parts are those of the ranking of one process."""
    given = rows()
    pictures = {row["image_id"]: row["image"] for row in given}
    expected = rank_heads(*make_llava(), grounded_examples(given), pictures, ablate=0, batch_size=2).chosen_on
    found = read_scores(found_rows)
    assert (found.layers, found.heads) == (expected.layers, expected.heads)
    assert found.about["phrases"] == expected.about["phrases"]
    assert found.counts.image_ids == expected.counts.image_ids
    for name in SUMS:
        if getattr(found.counts, name) is not None:
            np.testing.assert_allclose(getattr(found.counts, name), getattr(expected.counts, name), atol=1e-5)


class KilledOnce(ExtractRegions):
    """Its process ends at one of the pictures, the first time; `folder` has a file of each try."""

    def __init__(self, folder):
        super().__init__(Extractor)
        self.folder = Path(folder)

    def work(self, rows):
        if any(row["image_id"] == "i05" for row in rows):
            (self.folder / f"try-{os.getpid()}").touch()
            if len(list(self.folder.iterdir())) == 1:
                os._exit(9)
        return super().work(rows)
