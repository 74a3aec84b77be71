# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""Makes the small checkpoints of the Space from a finished run: half-precision weights without task heads, no code.

`grounded-attention train space_scenes` trains the run in minutes on two cores. The checkpoints are written below
--output, one folder for each method; each is about half a megabyte. The vision-language model is that of `make vlm`.

examples:
  grounded-attention train space_scenes
  grounded-attention space build runs/space_scenes --output space/models
  grounded-attention space build runs/vlm_scenes --methods direct --output space/models/vlm
"""

import argparse
import json
from pathlib import Path

from .command_line import make_main, make_parser


def build(options: argparse.Namespace) -> str:
    """Writes the small checkpoints and returns the text to print."""
    from grounded_attention.space.small_checkpoints import write_small

    folders = {name: options.run / name for name in options.methods}
    for folder in folders.values():
        if not (folder / "config.json").is_file():
            raise ValueError(f"{folder} contains no model; train it with `grounded-attention train space_scenes`")
    sizes = {name: write_small(folder, options.output / name) for name, folder in folders.items()}
    if options.json:
        return json.dumps({"output": str(options.output), "bytes": sizes})
    return "\n".join(f"{options.output / name}: {size / 1e6:.2f} MB" for name, size in sizes.items())


def build_parser() -> argparse.ArgumentParser:
    parser = make_parser("grounded-attention space build", __doc__)
    add = parser.add_argument
    add("run", type=Path, help="folder of the run")
    add("--output", type=Path, default=Path("space/models"), metavar="DIR", help="default: %(default)s")
    add("--methods", nargs="+", default=["none", "direct"], metavar="NAME", help="folders of the run: none direct")
    add("--json", action="store_true", help="print sizes as JSON")
    return parser


main = make_main(build_parser, build)
