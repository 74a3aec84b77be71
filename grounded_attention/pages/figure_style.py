# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""Shared by all figures: size, and saving with the same bytes for the same figure. Colours are in `colours.py`."""

from pathlib import Path
from typing import Any

import matplotlib
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.text import Text

from grounded_attention.utils.named_types import Fields
from grounded_attention.utils.plain_text import check_one_of, printable
from grounded_attention.utils.whole_files import whole_file

DPI = 100
TICK = "$\\mathdefault{"  # how matplotlib begins the numbers of a logarithmic axis
WIDTH = 840  # pixels; the width of a README without scaling

# Without dates and versions, which would change the bytes.
_METADATA: dict[str, Fields] = {
    ".png": {"Software": None},
    ".pdf": {"CreationDate": None},
    ".svg": {"Date": None},
}


def panels(count: int, across: int, size: tuple[float, float], **shared: Any) -> tuple[Figure, list[Axes]]:
    """A figure of a size in inches, and its panels row by row; places after the last one stay empty."""
    figure = Figure(figsize=size, dpi=DPI, layout="constrained")
    places = list(figure.subplots(-(-count // across), across, squeeze=False, **shared).flat)
    for axes in places[count:]:
        axes.remove()
    return figure, places[:count]


def save(figure: Figure, path: str | Path) -> Figure:
    """Writes the figure to a .png, .pdf or .svg file (its folder is created) and returns it."""
    path = Path(path)
    kind = path.suffix.lower()
    check_one_of(kind, sorted(_METADATA), f"{path}: file type ")
    # Names from data are no formulas, and have no control characters, which an SVG file must not contain.
    for text in figure.findobj(Text):
        content = text.get_text()
        if "$" in content and not content.startswith(TICK):
            text.set_parse_math(False)
        shown = "\n".join(printable(line) for line in content.split("\n"))
        if shown != content:
            text.set_text(shown)
    with matplotlib.rc_context({"svg.hashsalt": "grounded-attention"}), whole_file(path) as draft:
        figure.savefig(draft, format=kind[1:], dpi=DPI, facecolor="white", metadata=_METADATA[kind])
    return figure
