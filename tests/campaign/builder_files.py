# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""Small official files of the data sets that drawn scenes do not imitate."""

import json

from tests.helpers.vcr_files import question, write, write_image


def conceptual_captions(folder):
    lines = [f"a dog number {number}\thttp://example.org/{number}.jpg" for number in range(8)]
    for name in ("Train_GCC-training.tsv", "Validation_GCC-1.1.0-Validation.tsv"):
        (folder / name).write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")


def vcr(folder):
    for split in ("train", "val", "test"):
        write(folder, split, [question(number, split) for number in range(4)])
    write_image(folder)


def visual_genome_regions(folder):
    images = [{"image_id": number, "width": 200, "height": 100, "coco_id": None, "url": "x"} for number in range(6)]
    place = {"x": 10, "y": 20, "width": 30, "height": 40}
    regions = [{"region_id": n, "image_id": n % 6, "phrase": f"a dog {n}", **place} for n in range(12)]
    records = [{"id": n, "regions": [each for each in regions if each["image_id"] == n]} for n in range(6)]
    (folder / "image_data.json").write_text(json.dumps(images))
    (folder / "region_descriptions.json").write_text(json.dumps(records))


WRITERS = {each.__name__: each for each in (conceptual_captions, vcr, visual_genome_regions)}
