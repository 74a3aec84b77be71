# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""Writes the attention of every head in one captioned image to a file, for other tools.

The suffix of --output selects the format: .html is an interactive page that needs no network; .npz contains arrays.
With L layers, H heads, W words and R regions these are:

  attention  float32 (L, H, W, R)  share of the attention of each word that goes to each region, in [0, 1]
  back       float32 (L, H, R, W)  share of the attention of each region that goes to each word, in [0, 1]
  boxes      float32 (R, 4)        x1 y1 x2 y2 divided by width and height
  words, labels, layers            texts: the words, the detector's labels of the regions, the names of the layers

examples:
  grounded-attention export shapes.png "a red ball left of a blue cube" --model runs/scenes_vgp/direct \\
      --detector scenes --features scenes --output attention.npz

  grounded-attention export data/scenes/flickr30k-images/10004.jpg "the red ball" --model runs/scenes_vgp/direct \\
      --regions data/scenes/regions --output explorer.html
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import TYPE_CHECKING

from grounded_attention.utils.whole_files import whole_file, write_text

from .command_line import make_main, make_parser
from .image_options import add_region_options

if TYPE_CHECKING:
    from grounded_attention.heads.example_attention import ExampleAttention

FORMS = (".npz", ".html")


def capture(options: argparse.Namespace) -> ExampleAttention:
    """Captures the attention of the model in the image."""
    from transformers.utils import logging

    from grounded_attention.heads.example_attention import capture_image

    from .image_options import load_pipeline, open_input, read_regions

    logging.disable_progress_bar()
    image, known = open_input(options), read_regions(options, Path(options.image).stem)
    pipe = load_pipeline(options)
    return capture_image(pipe, image, options.caption, Path(options.image).stem, **known)


def write_arrays(example: ExampleAttention, path: Path) -> None:
    """Writes the arrays that the help of the command lists."""
    import numpy as np

    with whole_file(path) as draft, draft.open("wb") as file:
        np.savez(
            file,
            attention=example.attention.astype(np.float32),
            back=np.asarray(example.back, np.float32),
            boxes=np.asarray(example.boxes, np.float32),
            words=np.array([example.text(word) for word in range(len(example.words))]),
            labels=np.array(example.labels or [""] * len(example.boxes)),
            layers=np.array(example.layers),
        )


def export(options: argparse.Namespace) -> str:
    """Writes the file and returns the text to print."""
    from grounded_attention.pages.explorer import explorer_page

    if options.output.suffix not in FORMS:
        raise ValueError(f"--output {options.output}: expected a file that ends with {' or '.join(FORMS)}")
    example = capture(options)
    if options.output.suffix == ".html":
        write_text(options.output, explorer_page({Path(options.model).name: [example]}))
    else:
        write_arrays(example, options.output)
    layers, heads, words, regions = example.attention.shape
    about = {"output": str(options.output), "layers": layers, "heads": heads, "words": words, "regions": regions}
    return (
        json.dumps(about)
        if options.json
        else f"{options.output}: " + ", ".join(f"{value} {key}" for key, value in about.items() if key != "output")
    )


def build_parser() -> argparse.ArgumentParser:
    parser = make_parser("grounded-attention export", __doc__)
    add = parser.add_argument
    add("image", metavar="IMAGE", help="file of the image")
    add("caption", metavar="CAPTION", help="text that the model reads")
    add("--model", required=True, metavar="DIR", help="checkpoint with its processor, or a name on the Hub")
    add_region_options(parser)
    add("--output", required=True, type=Path, metavar="FILE", help="a file that ends with .npz or .html")
    add("--json", action="store_true", help="print what was written as JSON and nothing else")
    return parser


main = make_main(build_parser, export)
