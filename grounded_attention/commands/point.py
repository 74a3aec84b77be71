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

import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from grounded_attention.commands.command_line import Count

from .command_line import Program, Result, explain_error
from .models import ModelOptions, read_heads
from .rows_options import RowSource


def point(
    image: str | None = None,
    text: str | None = None,
    *,
    source: RowSource,
    model: str,
    loading: ModelOptions,
    heads: str = "auto",
    zoom: Count = 0,
    output: Path | None = None,
) -> Result:
    """Points in an image, or measures on rows.

    Args:
        image: file of an image
        text: what to point at
        model (NAME_OR_DIR): a vision-language model with its processor
        heads (WHICH): without an anchor: as for look
        zoom (N): crop, enlarge and look again N times
        output (FILE): a picture of image, points and crops
    """
    from grounded_attention.utils.open_images import open_image

    if (source.data is None) == (image is None or text is None):
        raise ValueError("give either an image and a text, or --data")
    source.refuse_without_data()
    if source.data is not None and output is not None:
        raise ValueError("--output is a picture of one image; --data prints a table")
    if output is not None:
        # A ValueError before the model is loaded, if the picture could not be saved.
        from PIL import Image

        if output.suffix.lower() not in Image.registered_extensions():
            raise ValueError(f"--output {output}: expected the name of a picture, such as point.png")
        if not output.absolute().parent.is_dir():
            raise ValueError(f"--output {output}: no such folder")
    picture = None if image is None else open_image(image, image)
    from grounded_attention.lens.pointing import point as point_at

    (network, processor), chosen = loading.load(model), read_heads(heads)

    def ask(image: Any, text: str | None) -> Any:
        return point_at(network, processor, image, str(text), heads=chosen, zoom=zoom)

    if picture is None:
        return _measure(source, ask)
    pointed = ask(picture, text)
    lines = []
    for (x, y), score in zip(pointed.points, pointed.scores, strict=True):
        lines.append(f"{x * picture.width:.0f}, {y * picture.height:.0f} pixels ({score:.1%} of the attention)")
    lines.append(f"by {pointed.source}")
    if output is not None:
        _draw(picture, pointed).save(output)
        lines.append(f"open {output}")
    return pointed.to_dict(), "\n".join(lines)


def _measure(source: RowSource, ask: Callable[[Any, str], Any]) -> Result:
    """Points at every text of the rows that has boxes, and counts the hits by type of target."""
    from grounded_attention.heads.points import is_hit, point_scores
    from grounded_attention.metrics.significance import estimate_ratio
    from grounded_attention.utils.open_images import open_image
    from grounded_attention.utils.plain_text import markdown_table

    hits: list[dict[str, float]] = []
    groups: list[Sequence[str]] = []
    images: list[str] = []
    left_out = 0
    for row in source.open():
        pictures = row.get("images") or [row["image"]]
        for phrase in row["phrases"]:
            if not len(phrase["boxes"]):
                left_out += 1
                continue
            boxes = phrase["boxes"]
            pointed = ask(open_image(pictures[phrase.get("image") or 0], "image"), phrase["text"])
            top = any(is_hit(each, boxes) for each in pointed.points)
            overlap = is_hit(pointed.point, boxes, pointed.reach)
            hits.append({"hit": float(is_hit(pointed.point, boxes)), "overlap": float(overlap), "top": float(top)})
            groups.append(phrase.get("types") or ())
            images.append(row["image_id"])
    if not hits:
        raise ValueError(f"--data {source.data}: no phrase has a box")
    if left_out:
        print(f"{left_out} texts have no box, such as negative ones; they are not measured", file=sys.stderr)
    scores = point_scores(hits, groups)
    rows = []
    for name, each in scores.items():
        chosen = []
        for place, named in enumerate(groups):
            if name == "all" or name in named:
                chosen.append(place)
        where = [images[place] for place in chosen]
        shown = []
        for key in each:
            if chosen:
                shown.append(estimate_ratio([hits[place][key] for place in chosen], None, where).percent)
        rows.append([name, str(len(chosen) or "–"), *(shown or (f"{value:.1%}" for value in each.values()))])
    table = markdown_table(["targets", "number", "hit", "overlap", "hit of 3"], rows, aligned=True)
    note = "all: mean over targets, with 95 % intervals over images; mean of groups: each group counts the same"
    return scores, f"{table}\n\n{note}"


def _draw(image: Any, pointed: Any) -> Any:
    """Draws the points on the image, the first one filled, and the crops."""
    from PIL import ImageDraw

    pen = ImageDraw.Draw(image)
    size = max(4, round(max(image.size) / 100))
    for crop in pointed.crops:
        pen.rectangle(crop, outline=(0, 114, 178), width=max(1, size // 3))
    for number, (x, y) in enumerate(pointed.points):
        across = x * image.width
        down = y * image.height
        circle = (across - size, down - size, across + size, down + size)
        fill = (213, 94, 0) if number == 0 else None
        pen.ellipse(circle, fill=fill, outline=(213, 94, 0), width=max(1, size // 3))
    return image


main = Program("point", point, explain_error)
