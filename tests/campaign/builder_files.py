# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""Small official files of the data sets that drawn scenes do not imitate."""

from tests.helpers.vcr_files import question, write, write_image


def conceptual_captions(folder):
    content = "".join(f"a dog number {number}\thttp://example.org/{number}.jpg\n" for number in range(8))
    for name in ("Train_GCC-training.tsv", "Validation_GCC-1.1.0-Validation.tsv"):
        (folder / name).write_text(content)


def vcr(folder):
    for split in ("train", "val", "test"):
        write(folder, split, [question(number, split) for number in range(4)])
    write_image(folder)


IMAGE = '{"image_id": NUMBER, "width": 200, "height": 100, "coco_id": null, "url": "x"}'
REGION = '{"region_id": NUMBER, "image_id": IMAGE, "phrase": "a dog", "x": 10, "y": 20, "width": 30, "height": 40}'
REGIONS = f'{{"id": IMAGE, "regions": [{REGION.replace("NUMBER", "1IMAGE")}, {REGION.replace("NUMBER", "2IMAGE")}]}}'


def visual_genome_regions(folder):
    numbers = "012345"
    images = ", ".join(IMAGE.replace("NUMBER", number) for number in numbers)
    records = ", ".join(REGIONS.replace("IMAGE", number) for number in numbers)
    (folder / "image_data.json").write_text(f"[{images}]")
    (folder / "region_descriptions.json").write_text(f"[{records}]")


WRITERS = {write.__name__: write for write in (conceptual_captions, vcr, visual_genome_regions)}
