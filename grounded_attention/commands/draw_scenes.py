# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""Draws scenes with captions, paraphrases and region features, in the file formats of the real data.

docs/data.md lists the files. The Python function is `write_scenes` of
`grounded_attention.dataset_scripts.scenes.dataset`.

examples:
  grounded-attention data scenes --output data/scenes --images 1000 --seed 0
  grounded-attention data scenes --output data/scenes --images 5000 --seed 0 --num-proc 4 --force --json
  grounded-attention data scenes --output data/scenes_held_out --images 8000 --seed 0 --held-out
"""

import argparse
import json
from pathlib import Path

from grounded_attention.dataset_scripts.scenes import MIN_IMAGES

from .command_line import make_main, make_parser
from .number_options import positive, processes, seed_number


def build_parser() -> argparse.ArgumentParser:
    parser = make_parser("grounded-attention data scenes", __doc__)
    parser.add_argument("--output", required=True, type=Path, help="folder for the files")
    parser.add_argument("--images", required=True, type=positive, help=f"number of images, at least {MIN_IMAGES}")
    parser.add_argument("--seed", required=True, type=seed_number, help="the same seed gives the same files")
    parser.add_argument(
        "--num-proc", type=processes, default=1, help="number of processes; the files are the same for any number"
    )
    parser.add_argument(
        "--held-out",
        action="store_true",
        help="hold combinations of colour and shape, and of relation and shape, out of train and val: only the images "
        "and texts of test have them",
    )
    parser.add_argument(
        "--force", action="store_true", help="replace scenes of another seed, size, version or value of --held-out"
    )
    parser.add_argument("--json", action="store_true", help="print what was written as JSON and nothing else")
    return parser


def _work(options: argparse.Namespace) -> str:
    from grounded_attention.dataset_scripts.scenes.dataset import write_scenes

    manifest = write_scenes(
        options.output, options.images, options.seed, options.num_proc, options.force, options.held_out
    )
    return json.dumps(manifest) if options.json else f"{options.output}: {json.dumps(manifest)}"


main = make_main(build_parser, _work)
