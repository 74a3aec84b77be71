# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""Draws screens with instructions, for models that point: windows, menus, toolbars, forms, lists, buttons and icons.

The splits are image folders in ScreenSpot's columns, so `grounded-attention point --data` measures on them as on the
real sets; the same screens as conversations, in the form of GUI-Actor's data, are for training. The Python function is
`write_screens` of `grounded_attention.dataset_scripts.scenes.screen_files`.

examples:
  grounded-attention data screens --output data/screens --images 3000 --seed 0
  grounded-attention data show data/screens/test
  grounded-attention point --data data/screens/test --model runs/my_pointer
"""

import argparse
import json
from pathlib import Path

from grounded_attention.dataset_scripts.scenes import MIN_IMAGES

from .command_line import make_main, make_parser
from .number_options import positive, processes, seed_number


def build_parser() -> argparse.ArgumentParser:
    parser = make_parser("grounded-attention data screens", __doc__)
    parser.add_argument("--output", required=True, type=Path, help="folder for the files")
    parser.add_argument("--images", required=True, type=positive, help=f"number of screens, at least {MIN_IMAGES}")
    parser.add_argument("--seed", required=True, type=seed_number, help="the same seed gives the same screens")
    parser.add_argument("--large", action="store_true", help="few, large elements with few names, for small models")
    parser.add_argument("--num-proc", type=processes, default=1, help="number of processes")
    parser.add_argument("--force", action="store_true", help="replace screens of another seed, number or version")
    parser.add_argument("--json", action="store_true", help="print what was written as JSON and nothing else")
    return parser


def _work(options: argparse.Namespace) -> str:
    from grounded_attention.dataset_scripts.scenes.screen_files import write_screens

    given = (options.output, options.images, options.seed, options.num_proc, options.force, options.large)
    manifest = write_screens(*given)
    return json.dumps(manifest) if options.json else f"{options.output}: {json.dumps(manifest)}"


main = make_main(build_parser, _work)
