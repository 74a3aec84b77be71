# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""An extractor without a model, and `extract_table` with it; fast to import in a new process."""

import time
from types import SimpleNamespace
from unittest import mock

import numpy as np
from PIL import Image

from grounded_attention.dataset_scripts.files.image_files import list_images
from grounded_attention.dataset_scripts.regions.extraction_run import extract_table


class Extractor:
    """Makes regions from the first pixel of the image, which sets their number and values."""

    batch_size = 1

    def __init__(self, slow=0.0, **provenance):
        self.slow = slow
        self.provenance = {"detector": {"name": "stub"}, "options": {"max_regions": 9}, **provenance}

    def extract(self, images, image_ids=None):
        time.sleep(self.slow * len(images))
        return [self._regions(image) for image in images]

    def _regions(self, image):
        value = np.asarray(image)[0, 0, 0]
        if value == 255:
            raise ValueError("this picture is too bright")
        count = 1 + value % 3
        return SimpleNamespace(
            width=image.width,
            height=image.height,
            boxes=np.tile(np.float32([0, 0, 0.5, 1]), (count, 1)),
            features=np.full((count, 4), float(value), np.float32),
            classes=np.zeros(count, np.int32),
            scores=np.ones(count, np.float32),
            class_probs=None,
        )


def read(path):
    try:
        with Image.open(path) as image:
            return image.convert("RGB")
    except OSError as error:
        raise ValueError(f"{path}: cannot be read ({error})") from error


def extract(photos, output, extractor=None, **options):
    """Extracts into shards of few images."""
    with mock.patch("grounded_attention.dataset_scripts.regions.writer.SHARD_BYTES", 150):
        return extract_table(
            list_images(photos), extractor or Extractor(), output, read, source="photos", progress=False, **options
        )
