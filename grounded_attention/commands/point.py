# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""Points at what a text asks for in an image: "open the cart" on a screenshot.

A model that was taught an anchor token (method `pointer`) points with it. Any other vision-language model points with
the attention of the words, in the heads of heads.json beside it, or else in heads that are chosen for the text without
labels. --zoom crops the image at the point, enlarges it and looks again.

With --data, every text of the rows is pointed at: the share of points in the right box (hit), within half a cell of
the map of it (overlap), and of the best points any (hit of the top), by type of target.

examples:
  grounded-attention point shop.png "open the cart" --model runs/my_pointer --zoom 1 --output point.png

  grounded-attention point --data rootsautomation/ScreenSpot --model Qwen/Qwen2.5-VL-3B-Instruct --max-rows 100
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from .command_line import make_main, make_parser
from .number_options import not_negative
from .rows_options import add_source_options, open_rows, refuse_row_options
from .user_errors import explain_error
from .vlm_options import add_vlm_options

TOP = 3  # the most points


def point(options: argparse.Namespace) -> str:
    """Runs the command and returns the text to print."""
    from transformers.utils import logging

    from grounded_attention.utils.open_images import open_image

    from .vlm_options import load_vlm

    logging.disable_progress_bar()
    if (options.data is None) == (options.image is None or options.text is None):
        raise ValueError("give either an image and a text, or --data")
    refuse_row_options(options, "split", "images", "columns", "boxes", "max_rows")
    if options.data is not None:
        if options.output is not None:
            raise ValueError("--output is a picture of one image; --data prints a table")
        return _measure(options)
    if options.output is not None:
        _check_picture(Path(options.output))
    image = open_image(options.image, options.image)
    pointed = _point(options, *load_vlm(options), image, options.text)
    if options.output is not None:
        _draw(image, pointed).save(options.output)
    if options.json:
        return json.dumps(pointed.to_dict())
    places = [f"{x * image.width:.0f}, {y * image.height:.0f}" for x, y in pointed.points]
    lines = [
        f"{place} pixels ({score:.1%} of the attention)" for place, score in zip(places, pointed.scores, strict=True)
    ]
    return "\n".join([*lines, f"by {pointed.source}", *([f"open {options.output}"] if options.output else [])])


def _point(options: argparse.Namespace, model: Any, processor: Any, image: Any, text: str) -> Any:
    from grounded_attention.lens.pointing import point as point_at

    from .vlm_options import read_heads

    chosen = {"heads": read_heads(options.heads), "anchor": options.anchor, "zoom": options.zoom, "top": TOP}
    return point_at(model, processor, image, text, **chosen)


def _measure(options: argparse.Namespace) -> str:
    from grounded_attention.heads.points import is_hit, point_scores
    from grounded_attention.metrics.significance import estimate_ratio
    from grounded_attention.utils.open_images import open_image
    from grounded_attention.utils.plain_text import markdown_table

    from .vlm_options import load_vlm

    model, processor = load_vlm(options)
    hits: list[dict[str, float]] = []
    groups: list[Sequence[str]] = []
    images: list[str] = []
    left_out = 0
    for row in open_rows(options.data, options, split=options.split, max_rows=options.max_rows):
        pictures = row.get("images") or [row["image"]]
        for phrase in row["phrases"]:
            if not len(phrase["boxes"]):
                left_out += 1
                continue
            image = open_image(pictures[phrase.get("image") or 0], "image")
            pointed, boxes = _point(options, model, processor, image, phrase["text"]), phrase["boxes"]
            top = any(is_hit(each, boxes) for each in pointed.points)
            overlap = is_hit(pointed.point, boxes, pointed.reach)
            hits.append({"hit": float(is_hit(pointed.point, boxes)), "overlap": float(overlap), "top": float(top)})
            groups.append(phrase.get("types") or ())
            images.append(row["image_id"])
    if not hits:
        raise ValueError(f"--data {options.data}: no phrase has a box")
    if left_out:
        print(f"{left_out} texts have no box, such as negative ones; they are not measured", file=sys.stderr)
    scores = point_scores(hits, groups)
    if options.json:
        return json.dumps(scores)
    rows = []
    for name, each in scores.items():
        chosen = [place for place, named in enumerate(groups) if name == "all" or name in named]
        where = [images[place] for place in chosen]
        shown = [estimate_ratio([hits[place][key] for place in chosen], None, where).percent for key in each if chosen]
        rows.append([name, str(len(chosen) or "–"), *(shown or (f"{value:.1%}" for value in each.values()))])
    table = markdown_table(["targets", "number", "hit", "overlap", f"hit of {TOP}"], rows, aligned=True)
    note = "all: mean over targets, with 95 % intervals over images; mean of groups: each group counts the same"
    return f"{table}\n\n{note}"


def _check_picture(output: Path) -> None:
    """A ValueError before the model is loaded, if the picture could not be saved."""
    from PIL import Image

    if output.suffix.lower() not in Image.registered_extensions():
        raise ValueError(f"--output {output}: expected the name of a picture, such as point.png")
    if not output.absolute().parent.is_dir():
        raise ValueError(f"--output {output}: no such folder")


def _draw(image: Any, pointed: Any) -> Any:
    """Draws the points on the image, the first one filled, and the crops."""
    from PIL import ImageDraw

    pen, size = ImageDraw.Draw(image), max(4, round(max(image.size) / 100))
    for crop in pointed.crops:
        pen.rectangle(crop, outline=(0, 114, 178), width=max(1, size // 3))
    for number, (x, y) in enumerate(pointed.points):
        across, down = x * image.width, y * image.height
        circle = (across - size, down - size, across + size, down + size)
        fill = (213, 94, 0) if number == 0 else None
        pen.ellipse(circle, fill=fill, outline=(213, 94, 0), width=max(1, size // 3))
    return image


def build_parser() -> argparse.ArgumentParser:
    parser = make_parser("grounded-attention point", __doc__)
    add = parser.add_argument
    add("image", nargs="?", metavar="IMAGE", help="file of an image")
    add("text", nargs="?", metavar="TEXT", help="what to point at")
    add_source_options(parser, "pictures, and texts with boxes to measure on")
    add("--model", required=True, metavar="NAME_OR_DIR", help="a vision-language model with its processor")
    add_vlm_options(parser)
    add("--heads", default="auto", metavar="WHICH", help="without an anchor: as for look (default: auto)")
    add("--anchor", default="<point>", metavar="TOKEN", help="the anchor token (default: <point>)")
    add("--zoom", type=not_negative, default=0, metavar="N", help="crop, enlarge and look again N times (default: 0)")
    add("--output", metavar="FILE", help="a picture of image, points and crops")
    add("--json", action="store_true", help="print the numbers as JSON")
    return parser


main = make_main(build_parser, point, explain_error=explain_error)
