# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""Draws scenes with captions, paraphrases and region features, in the file formats of the real data.

docs/data.md lists the files. The Python function is `write_scenes` of
`grounded_attention.dataset_scripts.scenes.dataset`.

examples:
  grounded-attention data scenes --output data/scenes --images 1000 --seed 0
  grounded-attention data scenes --output data/scenes --images 5000 --seed 0 --num-proc 4 --force
  grounded-attention data scenes --output data/scenes_held_out --images 8000 --seed 0 --held-out
"""

import json
from pathlib import Path

from grounded_attention.commands.command_line import Positive, Processes, Seed

from .command_line import Program, Result


def scenes(
    *, output: Path, images: Positive, seed: Seed, num_proc: Processes = 1, held_out: bool = False, force: bool = False
) -> Result:
    """Draws scenes.

    Args:
        output (DIR): folder for the files
        images (N): number of images, at least 5
        seed (N): the same seed gives the same files
        num_proc (N): number of processes; the files are the same for any number
        held_out: hold combinations of colour and shape, and of relation and shape, out of train and val: only the
            images and texts of test have them
        force: replace scenes of another seed, size, version or value of --held-out
    """
    from grounded_attention.dataset_scripts.scenes.dataset import write_scenes

    manifest = write_scenes(output, images, seed, num_proc, force, held_out)
    return manifest, f"{output}: {json.dumps(manifest)}"


main = Program("data scenes", scenes, json=False)
