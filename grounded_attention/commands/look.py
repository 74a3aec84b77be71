# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""Asks a vision-language model about images, and shows where it looked for every word.

The model answers on its own attention back end. Then the attention of the words of question and answer is read beside
the output, without attention maps, so that it takes little more memory than the answer. The page --output shows the
map of each word, to click through; a name that ends in .png or .json gives a picture or the numbers.

Heads are those of heads.json beside the model (`grounded-attention heads` makes it), or else chosen for this question
without labels (Localization Heads). --form relative divides by the attention of a neutral question, sinks removes
image tokens that nearly every word attends to. --again crops the image where the model looked and asks once more.

examples:
  grounded-attention look dog.jpg "What does the dog hold?" --model Qwen/Qwen2.5-VL-3B-Instruct --dtype bfloat16

  # the difference of two pictures; one head; a given answer instead of a generated one
  grounded-attention look before.png after.png "What changed?" --model runs/my_vlm --heads 14-3 --answer "a red ball"

  # another model beside it on the same page
  grounded-attention look dog.jpg "What does the dog hold?" --model runs/my_vlm --beside runs/other_vlm
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from typing import Any

from grounded_attention.lens import FORMS

from .command_line import make_parser, run
from .number_options import positive
from .user_errors import explain_error
from .vlm_options import add_vlm_options


def look(options: argparse.Namespace) -> str:
    """Runs the command and returns the text to print."""
    from transformers.utils import logging

    from grounded_attention.lens.look import check_suffix
    from grounded_attention.lens.page import lens_page
    from grounded_attention.utils.whole_files import write_text

    logging.disable_progress_bar()
    output = check_suffix(options.output)
    if options.beside is not None and output.suffix != ".html":
        raise ValueError(f"--output {output}: two models need a page, a name that ends in .html")
    names, lenses = [options.model], [_look(options)]
    if options.beside is not None:
        names.append(options.beside)
        # Adapter and revision are those of --model.
        second = {"model": options.beside, "adapter": None, "revision": None}
        lenses.append(_look(argparse.Namespace(**vars(options) | second)))
    if options.beside is None:
        lenses[0].save(output)
    else:
        write_text(output, lens_page(lenses, names))
    if options.json:
        return json.dumps([lens.to_dict() for lens in lenses] if options.beside is not None else lenses[0].to_dict())
    lines = []
    for name, lens in zip(names, lenses, strict=True):
        lines += [f"{name}: {lens.answer}" if len(names) > 1 else lens.answer]
        if lens.second is not None:
            lines.append(f"asked again with the crop {lens.crop}: {lens.second.answer}")
        lines.append(f"heads: {_named(lens)} ({lens.heads_from})")
    return "\n".join([*lines, f"open {output}"])


def _look(options: argparse.Namespace) -> Any:
    from grounded_attention.lens.look import look as look_at
    from grounded_attention.utils.open_images import open_image

    from .vlm_options import load_vlm, read_heads

    images = [open_image(path, path) for path in options.images]
    model, processor = load_vlm(options)
    return look_at(
        model,
        processor,
        images,
        options.question,
        answer=options.answer,
        heads=read_heads(options.heads),
        form=options.form,
        again=options.again,
        max_new_tokens=options.max_new_tokens,
    )


def _named(lens: Any) -> str:
    shown = ", ".join(f"{layer}-{head}" for layer, head in lens.heads[:8])
    return shown + (f" … ({len(lens.heads)})" if len(lens.heads) > 8 else "") or "all"


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the command; returns 0, or 2 after a user error, which is one line on standard error."""
    return run(build_parser(), look, arguments, explain_error=explain_error)


def build_parser() -> argparse.ArgumentParser:
    parser = make_parser("grounded-attention look", __doc__)
    add = parser.add_argument
    add("images", nargs="+", metavar="IMAGE", help="files of images")
    add("question", metavar="QUESTION", help="words of the user")
    add("--model", required=True, metavar="NAME_OR_DIR", help="a vision-language model with its processor")
    add("--beside", metavar="NAME_OR_DIR", help="a second model, without --adapter and --revision, on the same page")
    add_vlm_options(parser)
    add("--answer", metavar="TEXT", help="read this answer instead of generating one")
    add("--heads", default="auto", metavar="WHICH", help="auto, all, a layer, 14-3,20-0 or heads.json (default: auto)")
    add("--form", default="plain", metavar="FORM", help=f"of {', '.join(FORMS)}, with commas (default: plain)")
    add("--again", action="store_true", help="crop the first image where the model looked, and ask once more")
    add("--max-new-tokens", type=positive, default=64, metavar="N", help="the most tokens of the answer (default: 64)")
    add("--output", default="lens.html", metavar="FILE", help="page, picture or numbers (default: lens.html)")
    add("--json", action="store_true", help="print the numbers as JSON")
    return parser


if __name__ == "__main__":
    sys.exit(main())
