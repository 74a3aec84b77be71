# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""Where a vision-language model looks: maps of every word of a prompt and its answer."""

from pathlib import Path

from grounded_attention.utils.project import require

FORMS = ("plain", "relative", "sinks", "rollout", "contribution", "tam", "two-hop")
ROWS = ("own", "before")
EXPORTS = ("label-studio", "fiftyone", "coco")
# What takes the place of image tokens that are covered.
COVERS = ("mean", "blur", "neighbours")
INSTRUCTION = "Describe the image."
# What `Lens.save` can write.
SUFFIXES = (".html", ".png", ".pdf", ".svg", ".json")


def check_suffix(path: str | Path) -> Path:
    """The path of a file that `Lens.save` can write; a ValueError if it has another suffix."""
    path = Path(path)
    if path.suffix not in SUFFIXES:
        raise ValueError(f"{path}: expected a name that ends in {', '.join(SUFFIXES[:-1])} or {SUFFIXES[-1]}")
    if path.suffix not in (".html", ".json"):
        require("matplotlib")  # or the model would answer for nothing
    return path
