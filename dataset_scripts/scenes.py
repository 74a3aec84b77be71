# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""Writes the embedded data.

    python -m dataset_scripts.scenes --output DIR --images N --seed S [--num-proc P] [--force] [--json]

What stands in DIR afterwards is told in `scene_dataset`; from Python call its `write_scenes`.
"""

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path

from dataset_scripts.scene_dataset import FEWEST_IMAGES, write_scenes


def main(arguments: Sequence[str] | None = None) -> int:
    """Command line; returns the exit status, 2 for an error of the user."""
    parser = argparse.ArgumentParser(
        prog="python -m dataset_scripts.scenes",
        description="Draw scenes with captions, paraphrases and region features in the layouts of the real data.",
        epilog="example: python -m dataset_scripts.scenes --output data/scenes --images 1000 --seed 0",
    )
    parser.add_argument("--output", required=True, type=Path, help="folder for the files")
    parser.add_argument("--images", required=True, type=int, help=f"number of images, at least {FEWEST_IMAGES}")
    parser.add_argument("--seed", required=True, type=int, help="the same seed gives the same files")
    parser.add_argument("--num-proc", type=int, default=1, help="number of processes; the files do not depend on it")
    parser.add_argument("--force", action="store_true", help="replace scenes of another seed, size or version")
    parser.add_argument("--json", action="store_true", help="print what was written as JSON and nothing else")
    options = parser.parse_args(arguments)
    try:
        manifest = write_scenes(options.output, options.images, options.seed, options.num_proc, options.force)
    except (ValueError, OSError) as error:
        print("error:", " ".join(str(error).split()), file=sys.stderr)
        return 2
    print(json.dumps(manifest) if options.json else f"{options.output}: {json.dumps(manifest)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
