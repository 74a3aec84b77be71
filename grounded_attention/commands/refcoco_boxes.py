# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""Writes the candidates of RefCOCO's expressions as boxes for `grounded-attention regions extract --boxes`.

Without --detections the boxes are all annotated objects (the ground-truth track). With it they are the boxes of a
detector, such as those that MAttNet published (the detected track). Boxes are clipped at the edges of the image.
Images without a box are counted and listed; their expressions have no candidate, and evaluation counts them as misses.

examples:
  grounded-attention regions refcoco-boxes --data-dir data --config refcoco+ --output boxes_gt.json \\
      --images data/train2014 --image-list images_gt.txt
  grounded-attention regions refcoco-boxes --data-dir data --config refcoco+ --output boxes_detected.jsonl \\
      --detections detections/refcoco+_unc/res101_coco_minus_refer_notime_dets.json

  grounded-attention regions extract --images images_gt.txt --boxes boxes_gt.json --features fast_rcnn \\
      --output data/regions_gt
"""

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from grounded_attention.dataset_scripts.files.box_files import write_boxes, write_image_list
from grounded_attention.dataset_scripts.files.errors import DataError
from grounded_attention.utils.safe_paths import path_below, refuse_same_files

from .choices import COCO_IMAGE_IDS, REFCOCO_SETS
from .command_line import make_parser, run

NAMED = 10


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the command; returns 0, or 2 after a user error, which is one line on standard error."""
    return run(build_parser(), _work, arguments)


def _work(options: argparse.Namespace) -> str:
    summary = _write(options)
    return json.dumps(summary) if options.json else _report(summary)


def _write(options: argparse.Namespace) -> dict[str, Any]:
    from grounded_attention.dataset_scripts.builders.refcoco import RefCOCOConfig
    from grounded_attention.dataset_scripts.builders.refcoco_regions import (
        annotated_candidates,
        detected_candidates,
        read_ref_images,
    )

    if (options.image_list is None) != (options.images is None):
        raise DataError("--image-list and --images (the folder of the images) must be given together")
    instances = RefCOCOConfig(name=options.config, data_dir=str(options.data_dir)).instances_file
    inputs = {"the file of objects": instances, "--detections": options.detections}
    refuse_same_files({**inputs, "--output": options.output, "--image-list": options.image_list})
    images = read_ref_images(instances, options.image_id_format == "file_stem")
    if options.detections is None:
        found = annotated_candidates(instances, images)
    else:
        found = detected_candidates(options.detections, images)
    if not found.records:
        source = options.detections or instances
        expected = f"boxes in the {len(images)} images of {instances}"
        raise DataError("no image has a box", file=source, expected=expected)
    write_boxes(options.output, found.records)
    if options.image_list is not None:
        files = {image.image_id: path_below(options.images, image.file_name) for image in images.values()}
        write_image_list(options.image_list, {image_id: files[image_id] for image_id in found.records})
    return {
        "output": str(options.output),
        "track": "ground truth" if options.detections is None else "detected",
        "images": len(found.records),
        "boxes": found.boxes,
        "images_without_boxes": found.images_without_boxes,
        "boxes_clipped": found.clipped,
        "boxes_left_out": found.too_small,
        "boxes_in_other_images": found.in_unknown_images,
    }


def _report(summary: dict[str, Any]) -> str:
    without = summary["images_without_boxes"]
    boxes, images = f"{summary['boxes']:,} boxes", f"{summary['images']:,} images"
    lines = [f"{summary['track']}: {boxes} of {images} in {summary['output']}"]
    for key, words in (
        ("boxes_clipped", "boxes clipped at the edge of their image"),
        ("boxes_left_out", "boxes smaller than a pixel left out"),
        ("boxes_in_other_images", "boxes in images of other data sets left out"),
    ):
        lines += [f"  {summary[key]:,} {words}"] if summary[key] else []
    if without:
        more = f" and {len(without) - NAMED:,} more (all with --json)" if len(without) > NAMED else ""
        lines.append(f"  {len(without):,} images without a box: {', '.join(without[:NAMED])}{more}")
    return "\n".join(lines)


def build_parser() -> argparse.ArgumentParser:
    parser = make_parser("grounded-attention regions refcoco-boxes", __doc__)
    add = parser.add_argument
    add("--data-dir", required=True, type=Path, metavar="DIR", help="folder of the data set, or its parent folder")
    add("--config", choices=REFCOCO_SETS, default="refcoco+", help="the data set: %(default)s")
    add("--detections", type=Path, metavar="FILE", help="boxes of a detector; default: annotated objects")
    add("--output", required=True, type=Path, metavar="FILE", help=".json or .jsonl for --boxes of `regions extract`")
    add("--image-id-format", choices=COCO_IMAGE_IDS, default="number", help="ids of images: %(default)s")
    add("--images", type=Path, metavar="DIR", help="folder of the images, for --image-list")
    add("--image-list", type=Path, metavar="FILE", help="list of images with boxes, for --images of `regions extract`")
    add("--json", action="store_true", help="print counts, and all images without a box, as a line of JSON")
    return parser


if __name__ == "__main__":
    sys.exit(main())
