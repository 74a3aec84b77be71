# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""Supervision methods as the public VGP code computes them."""

from typing import Any

from grounded_attention.supervision import SupervisionMethod, get_method


def make_method(name: str, variant: str = "paper", normalization: str = "linear", **options: Any) -> SupervisionMethod:
    """`get_method` with the internal `variant` and `normalization`."""
    method = get_method(name, **options)
    for part in method.parts:
        vars(part).update(variant=variant, normalization=normalization)
    return method
