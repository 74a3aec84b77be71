# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""Hands what attention modules compute to a reader, while a model runs as it is."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from torch import Tensor

from grounded_attention.supervision.row_states import HandedStates
from grounded_attention.supervision.supervise import find_language_model, supervise, unwrap_model


class AttentionReader:
    """What attention modules hand their states to inside [`reading`]. B batch, N queries, M keys, G value heads."""

    # layer -> what its attention function returns instead of attention, (B, N, H, d); None: it attends
    outputs: dict[int, Tensor] | None = None

    def keep(self, handed: HandedStates) -> None:
        """Keeps the queries and keys of a layer in a pass."""

    def keep_output(self, module: Any, value: Tensor, output: Tensor) -> Tensor:
        """Keeps the values of all positions (B, G, M, d), and what the heads give (B, N, H, d); returns the latter."""
        return output

    def watch(self, model: Any) -> Sequence[Any]:
        """Adds hooks to a model, and returns their handles."""
        return ()


@contextmanager
def reading(model: Any, reader: AttentionReader) -> Iterator[None]:
    """Inside it, the attention modules hand their states to `reader`."""
    inner = unwrap_model(model)
    inside = find_language_model(inner).modules()
    modules: list[Any] = [each for each in inside if getattr(each, "layer_idx", None) is not None]
    handles = reader.watch(inner)
    with supervise(inner):
        for module in modules:
            module.row_reader = reader
        try:
            yield
        finally:
            for module in modules:
                del module.row_reader
            for handle in handles:
                handle.remove()
