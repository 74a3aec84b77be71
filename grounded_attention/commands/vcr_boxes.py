# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""Writes the objects of VCR's images as boxes for `grounded-attention regions extract --boxes`.

The regions of an image are its objects, in the order in which the tags of the texts number them. An object without a
box gets the box of the whole image.

examples:
  grounded-attention regions vcr-boxes --data-dir data/vcr --output boxes.jsonl --image-list images.txt
  grounded-attention regions extract --images images.txt --boxes boxes.jsonl --features fast_rcnn \\
      --output data/vcr/regions
"""

import argparse
import json
import sys
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

from tqdm import tqdm

from grounded_attention.dataset_scripts.builders.vcr_files import read_objects, read_questions
from grounded_attention.dataset_scripts.files.box_files import write_boxes, write_image_list
from grounded_attention.utils.quiet import is_quiet
from grounded_attention.utils.safe_paths import path_below, refuse_same_files

from .choices import VCR_IMAGE_IDS
from .command_line import make_parser, run


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the command; returns 0, or 2 after a user error, which is one line on standard error."""
    return run(build_parser(), _work, arguments)


def _work(options: argparse.Namespace) -> str:
    from grounded_attention.dataset_scripts.builders.vcr import VCRConfig, image_id_of, read_image_objects

    config = VCRConfig(name="default", data_dir=str(options.data_dir), image_id_format=options.image_id_format)
    inputs = {f"the questions of {split}": config.questions(split) for split in config.SPLIT_NAMES}
    refuse_same_files({**inputs, "--output": options.output, "--image-list": options.image_list})
    records: dict[str, dict[str, Any]] = {}
    files: dict[str, Path] = {}
    missing = 0
    read = lru_cache(maxsize=64)(read_objects)
    for split in config.available_splits():
        questions = read_questions(config.questions(split))
        for question in tqdm(questions, unit=" questions", desc=split, disable=is_quiet()):
            image_id, file = image_id_of(question, split, config.image_id_format), question.non_empty_text("img_fn")
            if image_id not in records:
                image = read_image_objects(question, config, read)
                files[image_id] = path_below(config.images, file)
                missing += sum(box is None for box in image.boxes)
                records[image_id] = {"boxes": image.filled_boxes}
            elif files[image_id] != config.images / file:
                raise question.error("two images have one id", found=file, expected=str(files[image_id]))
    write_boxes(options.output, records)
    if options.image_list is not None:
        write_image_list(options.image_list, files)
    count = sum(len(record["boxes"]) for record in records.values())
    if options.json:
        counts = {"boxes": count, "images": len(records), "boxes_of_the_whole_image": missing}
        return json.dumps({"output": str(options.output), **counts})
    return f"{count:,} boxes of {len(records):,} images in {options.output}, {missing:,} of them of the whole image"


def build_parser() -> argparse.ArgumentParser:
    parser = make_parser("grounded-attention regions vcr-boxes", __doc__)
    add = parser.add_argument
    add("--data-dir", required=True, type=Path, metavar="DIR", help="folder of vcr1annots and vcr1images")
    add("--output", required=True, type=Path, metavar="FILE", help=".json or .jsonl for --boxes of `regions extract`")
    add("--image-list", type=Path, metavar="FILE", help="list of the images for --images of `regions extract`")
    add("--image-id-format", choices=VCR_IMAGE_IDS, default=VCR_IMAGE_IDS[0], help="ids of images: %(default)s")
    add("--json", action="store_true", help="print the counts as a line of JSON")
    return parser


if __name__ == "__main__":
    sys.exit(main())
