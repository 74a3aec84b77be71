# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""Captured attention as input of bertviz, with regions as the tokens of a second sentence.

The arrays do not need bertviz (`pip install bertviz`). A page of bertviz loads d3, jQuery and RequireJS from the
network; the attention explorer needs no network. Shape letters: L layers, H heads, W words, R regions.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from grounded_attention.heads.example_attention import ExampleAttention
from grounded_attention.utils.whole_files import write_text

from . import VIEWS


@dataclass(frozen=True)
class BertvizInputs:
    """The arguments of bertviz's `head_view` and `model_view`: `head_view(**vars(inputs))`."""

    attention: list[Tensor]
    tokens: list[str]
    sentence_b_start: int


def bertviz_inputs(example: ExampleAttention) -> BertvizInputs:
    """Converts captured attention to the format of bertviz; rows of regions are 0 if they were not captured."""
    layers, heads, words, regions = example.attention.shape
    maps = np.zeros((layers, heads, words + regions, words + regions), dtype=np.float32)
    maps[:, :, :words, words:] = example.attention
    if example.back is not None:
        maps[:, :, words:, :words] = example.back
    labels = example.labels or ("",) * regions
    names = [f"[{number}] {label}".rstrip() for number, label in enumerate(labels)]
    tokens = [*(example.text(word) for word in range(words)), *names]
    return BertvizInputs([torch.from_numpy(layer)[None] for layer in maps], tokens, words)


def write_bertviz(example: ExampleAttention, path: str | Path, view: str = "head") -> Path:
    """Writes a view of bertviz as an HTML page, which needs a network when it is opened."""
    if view not in VIEWS:
        raise ValueError(f"unknown view {view!r}; expected one of {', '.join(VIEWS)}")
    draw = getattr(_import_bertviz(), f"{view}_view")
    inputs = bertviz_inputs(example)
    # bertviz does not escape tokens in its script; a "<" could end the script.
    tokens = [token.replace("<", "‹") for token in inputs.tokens]
    drawn = draw(inputs.attention, tokens, inputs.sentence_b_start, prettify_tokens=False, html_action="return")
    path = Path(path)
    head = '<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8"><title>bertviz</title>'
    require = '<script src="https://cdnjs.cloudflare.com/ajax/libs/require.js/2.3.6/require.min.js"></script>'
    write_text(path, f"{head}{require}</head><body>\n{drawn.data}\n</body></html>\n")
    return path


def _import_bertviz() -> Any:
    try:
        import bertviz
    except ImportError as error:
        raise ImportError(f"cannot import bertviz ({error}); install it with pip install bertviz") from error
    return bertviz
