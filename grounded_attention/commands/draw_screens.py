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

import json
from pathlib import Path

from grounded_attention.commands.command_line import Positive, Processes, Seed

from .command_line import Program, Result


def screens(*, output: Path, images: Positive, seed: Seed, num_proc: Processes = 1, force: bool = False) -> Result:
    """Draws screens.

    Args:
        output (DIR): folder for the files
        images (N): number of screens, at least 5
        seed (N): the same seed gives the same screens
        num_proc (N): number of processes
        force: replace screens of another seed, number or version
    """
    from grounded_attention.dataset_scripts.scenes.screen_files import write_screens

    manifest = write_screens(output, images, seed, num_proc, force)
    return manifest, f"{output}: {json.dumps(manifest)}"


main = Program("data screens", screens, json=False)
