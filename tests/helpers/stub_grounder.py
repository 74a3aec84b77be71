# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""Captions, pictures and a grounder without a model, and `label_captions` with them."""

import json
import os
import time
import zlib

import datasets
import numpy as np
from PIL import Image

from grounded_attention.labelling.grounder import Candidates, Selection
from grounded_attention.labelling.phrases import ContentWords
from grounded_attention.labelling.run import caption_rows, label_captions

WORDS = ("dog", "ball", "tree", "car", "house", "river")
SIZE = (40, 20)


class Grounder:
    """A box and a score from the words of a phrase; the word "nowhere" has no box, "broken" is refused."""

    reads_images = True

    def __init__(self, slow=0.0, name="stub"):
        self.slow = slow
        self.provenance = {"kind": "stub", "name": name}

    def ground(self, examples):
        time.sleep(self.slow)
        return [[self._ground(example, phrase.text) for phrase in example.phrases] for example in examples]

    def _ground(self, example, text):
        assert example.image.size == (example.width, example.height)
        if text == "broken":
            raise ValueError("this caption is broken")
        box, score = box_of(text)
        count = int(text != "nowhere")
        return Candidates(np.float32([box])[:count], np.float32([score])[:count])


def box_of(text):
    """The box in pixels and the score of a phrase."""
    value = zlib.crc32(text.encode())
    x = value % 30
    y = value // 30 % 10
    return [x, y, x + 5, y + 4], value % 97 / 100 + 0.01


def rows_of(texts, per_image=2):
    """Captions `c0`, `c1` ... of images `i0`, `i1` ...; each image has several."""
    ids = [f"c{number}" for number in range(len(texts))]
    images = [f"i{number // per_image}" for number in range(len(texts))]
    return caption_rows({"train": datasets.Dataset.from_dict({"caption_id": ids, "image_id": images, "text": texts})})


def many_texts(count):
    return [f"a {WORDS[n % 6]} and the {WORDS[n // 6 % 6]} by a {WORDS[n // 2 % 6]}" for n in range(count)]


def save_images(folder, rows):
    folder.mkdir(exist_ok=True)
    for number, image_id in enumerate(sorted(set(rows["image_id"]))):
        Image.new("RGB", SIZE, (number % 256, 0, 0)).save(folder / f"{image_id}.png")
    return folder


def label(rows, folder, output, grounder=None, phrases=None, **options):
    options = {"part_size": 5, "batch_size": 2, **options}
    return label_captions(
        rows,
        phrases or ContentWords(),
        grounder or Grounder(),
        output,
        lambda row: folder / f"{row['image_id']}.png",
        source={"builder": "stub", "licence": {"identifier": "mit", "redistribution": "allowed", "terms": "Yours."}},
        selection=options.pop("selection", Selection()),
        progress=False,
        **options,
    )


def contents(folder):
    """File name -> bytes."""
    return {name: (folder / name).read_bytes() for name in sorted(os.listdir(folder))}


def manifest(folder):
    return json.loads((folder / "pseudo_labels.json").read_text())
