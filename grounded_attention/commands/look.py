# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""Asks a vision-language model about images, and shows where it looked for every word.

The model answers on its own attention back end. The attention of the words of question and answer is read beside the
output, without attention maps, so that it takes little more time than the answer. The page --output shows the
map of each word, to click through; a name that ends in .png or .json gives a picture or the numbers.

Heads are those of heads.json beside the model (`grounded-attention heads` makes it), or else chosen for this question
without labels (Localization Heads). --form relative divides by the attention of a neutral question, sinks removes
image tokens that nearly every word attends to. --again crops the image where the model looked and asks once more.

examples:
  grounded-attention look dog.jpg "What does the dog hold?" --model Qwen/Qwen2.5-VL-3B-Instruct --dtype bfloat16

  # the difference of two pictures; one head; a given answer instead of a generated one
  grounded-attention look before.png after.png "What changed?" --model runs/my_vlm --heads 14-3 --answer "a red ball"

  # a video: a file, or a folder with its frames
  grounded-attention look clip.mp4 "When does the ball fall?" --model Qwen/Qwen2.5-VL-3B-Instruct --fps 2

  # rows of a data set, on one page
  grounded-attention look --data lmms-lab/RefCOCO --split val --max-rows 4 --model Qwen/Qwen2.5-VL-3B-Instruct

  # another model beside it on the same page
  grounded-attention look dog.jpg "What does the dog hold?" --model runs/my_vlm --beside runs/other_vlm
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from typing import Any

from grounded_attention.lens import FORMS, ROWS

from .command_line import make_main, make_parser
from .number_options import positive
from .rows_options import add_source_options, refuse_row_options, rows_from
from .user_errors import explain_error
from .vlm_options import add_vlm_options


def look(options: argparse.Namespace) -> str:
    """Runs the command and returns the text to print."""
    from transformers.utils import logging

    from grounded_attention.lens.page import lens_page
    from grounded_attention.lens.word_maps import check_suffix
    from grounded_attention.utils.whole_files import write_text

    logging.disable_progress_bar()
    output = check_suffix(options.output)
    inputs = _read_inputs(options)
    if len(inputs) * (1 if options.beside is None else 2) > 1 and output.suffix != ".html":
        raise ValueError(f"--output {output}: two models or rows need a page, a name that ends in .html")
    models = [options]
    if options.beside is not None:
        # Adapter and revision are those of --model.
        second = {"model": options.beside, "adapter": None, "revision": None}
        models.append(argparse.Namespace(**vars(options) | second))
    looks = [_look(each, inputs) for each in models]
    lenses = [lens for of_row in zip(*looks, strict=True) for lens in of_row]
    names = [
        ": ".join(filter(None, (row, each.model if options.beside else ""))) for row, *_ in inputs for each in models
    ]
    if len(lenses) == 1:
        lenses[0].save(output)
    else:
        write_text(output, lens_page(lenses, names))
    if options.json:
        return json.dumps([lens.to_dict() for lens in lenses] if len(lenses) > 1 else lenses[0].to_dict())
    lines = []
    for name, lens in zip(names, lenses, strict=True):
        said = lens.answer if lens.answer.strip() else "(no words)"
        lines += [f"{name}: {said}" if name else said]
        if lens.second is not None:
            lines.append(f"asked again with the crop {lens.crop}: {lens.second.answer}")
        lines.append(f"heads: {_named(lens)} ({lens.heads_from})")
    return "\n".join([*lines, f"open {output}"])


def _read_inputs(options: argparse.Namespace) -> list[tuple[str, list[Any], str]]:
    """Name, pictures and question of each row, or of the command line, where the name is empty."""
    from grounded_attention.processing.phrase import row_texts
    from grounded_attention.processing.videos import FPS, is_video_file, open_video
    from grounded_attention.utils.open_images import open_image

    words = options.images_and_question
    if options.data is None:
        refuse_row_options(options, "split", "images", "columns", "boxes", "max_rows", "row")
        if len(words) < 2:
            raise ValueError("give images and a question, or --data")
        if not words[-1].strip():
            raise ValueError("the question is empty: give the words of the user in quotation marks, after the images")
        videos, fps = [is_video_file(word) for word in words[:-1]], FPS if options.fps is None else options.fps
        if options.fps is not None and not any(videos):
            raise ValueError("--fps is for videos: give a video or a folder of frames")
        paired = zip(words[:-1], videos, strict=True)
        pictures = [open_video(each, fps) if video else open_image(each, each) for each, video in paired]
        return [("", pictures, words[-1])]
    from grounded_attention.dataset_scripts.builders.llava_instruct import IMAGE_MARK

    if len(words) > 1:
        raise ValueError(f"{words[0]}: the images are those of --data; give a question alone, or none")
    inputs = []
    for number, row in enumerate(rows_from(options), options.row):
        question = words[0] if words else row_texts(row)[0].replace(IMAGE_MARK, "").strip()
        inputs.append((f"row {number}, {question}", row.get("images") or [row["image"]], question))
    return inputs


def _look(options: argparse.Namespace, inputs: Sequence[tuple[str, list[Any], str]]) -> list[Any]:
    """What a model looks at in each input."""
    from grounded_attention.lens.look import look as look_at

    from .vlm_options import load_vlm, read_heads

    model, processor = load_vlm(options)
    asked = {name: getattr(options, name) for name in ("answer", "form", "rows", "again", "max_new_tokens")}
    heads = read_heads(options.heads)
    return [look_at(model, processor, images, question, heads=heads, **asked) for _, images, question in inputs]


def _named(lens: Any) -> str:
    shown = ", ".join(f"{layer}-{head}" for layer, head in lens.heads[:8])
    return shown + (f" … ({len(lens.heads)})" if len(lens.heads) > 8 else "") or "all"


def build_parser() -> argparse.ArgumentParser:
    parser = make_parser("grounded-attention look", __doc__)
    add = parser.add_argument
    words = "files of images, videos, folders of frames, then the words of the user; with --data words alone"
    words += " (default: the text of each row)"
    add("images_and_question", nargs="*", metavar="IMAGE ... QUESTION", help=words)
    add_source_options(parser, "pictures and texts", some=True)
    add("--model", required=True, metavar="NAME_OR_DIR", help="a vision-language model with its processor")
    add("--beside", metavar="NAME_OR_DIR", help="a second model, without --adapter and --revision, on the same page")
    add_vlm_options(parser)
    add("--fps", type=float, metavar="N", help="frames of a video in a second (default: 2)")
    add("--answer", metavar="TEXT", help="read this answer instead of generating one")
    add("--heads", default="auto", metavar="WHICH", help="auto, all, a layer, 14-3,20-0 or heads.json (default: auto)")
    add("--form", default="plain", metavar="FORM", help=f"of {', '.join(FORMS)}, with commas (default: plain)")
    add("--rows", choices=ROWS, default=ROWS[0], help="of a word its own tokens, or what produced them (default: own)")
    add("--again", action="store_true", help="crop the first image where the model looked, and ask once more")
    add("--max-new-tokens", type=positive, default=64, metavar="N", help="the most tokens of the answer (default: 64)")
    add("--output", default="lens.html", metavar="FILE", help="page, picture or numbers (default: lens.html)")
    add("--json", action="store_true", help="print the numbers as JSON")
    return parser


main = make_main(build_parser, look, explain_error=explain_error, intermixed=True)
