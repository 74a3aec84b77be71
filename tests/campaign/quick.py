# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""Makes small commands small: nine tenths of the time of a training of three steps go into drawing its figures."""

from pathlib import Path
from typing import Any

from matplotlib.figure import Figure


def quick_figures() -> None:
    """From here on figures are files with the same name and fixed content; all other file operations stay."""

    def savefig(figure: Figure, fname: Any, **options: Any) -> None:
        Path(fname).write_bytes(b"a figure")

    Figure.savefig = savefig  # type: ignore[method-assign, assignment]
    Figure.findobj = lambda figure, *arguments, **options: []  # type: ignore[method-assign, assignment]
