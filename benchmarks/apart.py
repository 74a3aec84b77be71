# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""Measurements in new processes: what one leaves in memory does not change the next."""

from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from typing import Any


def run_apart(function: Callable[..., Any], *arguments: Any) -> Any:
    """Calls a function in a process of its own.

    Args:
        function (`Callable`): a function of a module.
        arguments: its arguments; they are pickled, as its result is.

    Returns:
        `Any`: its result.
    """
    with ProcessPoolExecutor(1, get_context("spawn")) as pool:
        return pool.submit(function, *arguments).result()
