# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""Figures that are not drawn: nine tenths of the time of a training of three steps go into drawing its figures."""

from pathlib import Path

import numpy as np
from PIL import Image


class Nothing:
    """Panels, lines and bars of a figure that is not drawn: whatever is asked of it, it is there and empty."""

    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)
        return self

    def __call__(self, *arguments, **options):
        return self

    def __iter__(self):
        return iter(())

    def __len__(self):
        return 0

    def __getitem__(self, index):
        raise IndexError(index)


def blank_figure(figure, fname, *, format="png", dpi=100, **options):
    """Replaces `Figure.savefig`: a white picture of the same size; a short text for a format that is no picture."""
    if format == "png":
        width, height = (round(inches * dpi) for inches in figure.get_size_inches())
        Image.new("RGB", (width, height), "white").save(fname, "png", compress_level=1)
    else:
        Path(fname).write_text("a figure")


def no_objects(figure, *arguments, **options):
    """Replaces `Figure.findobj`, which lays out the axes."""
    return []


def no_panels(figure, rows=1, columns=1, **options):
    """Replaces `Figure.subplots`."""
    places = np.empty((rows, columns), dtype=object)
    places.fill(Nothing())
    return places


def nothing(figure, *arguments, **options):
    """Replaces what a figure gets besides its panels: a title, a bar of colours, a legend."""
    return Nothing()


BLANK = {
    "savefig": blank_figure,
    "findobj": no_objects,
    "subplots": no_panels,
    **dict.fromkeys(("colorbar", "legend", "suptitle"), nothing),
}
