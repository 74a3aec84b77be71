# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""What all figures share: colours, size, and saving the same bytes for the same picture.

The colours are those of Okabe and Ito (2008), which people with a colour vision deficiency can tell apart. What a
colour says is said a second time by line style, width or text.
"""

from pathlib import Path
from typing import Any

import matplotlib
from matplotlib.figure import Figure

from grounded_attention.utils.whole_files import whole_file

ORANGE, SKY, GREEN, YELLOW = "#E69F00", "#56B4E9", "#009E73", "#F0E442"
BLUE, VERMILLION, PURPLE, GREY = "#0072B2", "#D55E00", "#CC79A7", "#666666"

DPI = 100
WIDTH = 840  # pixels; what a README shows without shrinking

# Dates and versions would make the bytes differ from day to day.
_METADATA: dict[str, dict[str, Any]] = {
    ".png": {"Software": None},
    ".pdf": {"CreationDate": None},
    ".svg": {"Date": None},
}


def save(figure: Figure, path: str | Path) -> Figure:
    """Writes the figure to a .png, .pdf or .svg file (its folder is created) and returns it.

    Raises:
        ValueError: another file type.
    """
    path = Path(path)
    kind = path.suffix.lower()
    if kind not in _METADATA:
        raise ValueError(f"{path}: found the file type {kind!r}; figures are saved as one of {sorted(_METADATA)}")
    path.parent.mkdir(parents=True, exist_ok=True)
    with matplotlib.rc_context({"svg.hashsalt": "grounded-attention"}), whole_file(path) as draft:
        figure.savefig(draft, format=kind[1:], dpi=DPI, facecolor="white", metadata=_METADATA[kind])
    return figure
