# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""What benchmarks share: clocks, ways that take turns, peaks of memory, new processes, ratios."""

import argparse
import json
import re
import resource
import statistics
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import torch
from tqdm.auto import tqdm

from grounded_attention.commands.command_line import make_parser
from grounded_attention.utils.quiet import is_quiet

# Operations per second of dense matrix products in bfloat16, in units of 1e12, from the data sheets of the makers. The
# first pattern that occurs in the name of the card counts, so variants come before the plain name.
DATA_SHEETS = (
    (r"laptop|max-q|mig|4090 d", None),  # slower than the card whose name they bear
    (r"h100 pcie", 756),
    (r"h[12]00 nvl", 835),
    (r"h[12]00", 989),
    (r"a100", 312),
    (r"l40s", 362),
    (r"l4", 121),
    (r"rtx 4090", 165),
)


def clock(device: str = "cpu") -> float:
    """Returns seconds: of the process on a CPU, which other processes change little; on a GPU, of finished work."""
    if device == "cpu":
        return time.process_time()
    torch.cuda.synchronize()
    return time.perf_counter()


def take_turns(
    ways: Mapping[str, Callable[[], Any]], rounds: int, device: str = "cpu", label: str = "rounds"
) -> dict[str, list[float]]:
    """Runs all ways in each round, in alternating order; returns way -> seconds of each round."""
    times: dict[str, list[float]] = {name: [] for name in ways}
    for turn in tqdm(range(rounds), desc=label, leave=False, disable=is_quiet()):
        for name in list(ways)[:: 1 if turn % 2 else -1]:
            begin = clock(device)
            ways[name]()
            times[name].append(clock(device) - begin)
    return times


def quotients(upper: Sequence[float], lower: Sequence[float]) -> list[float]:
    """The ratio of each round."""
    return [one / other for one, other in zip(upper, lower, strict=True)]


def spread(ratios: Iterable[float]) -> str:
    """Median and range of ratios."""
    ordered = sorted(ratios)
    return f"{statistics.median(ordered):.2f} ({ordered[0]:.2f} to {ordered[-1]:.2f})"


def peak_memory(step: Callable[[], Any], device: str) -> float:
    """The bytes that two steps take at most, beyond what the process has when they begin."""
    gpu = device == "cuda"
    if gpu:
        torch.cuda.reset_peak_memory_stats()
    statm = Path("/proc/self/statm")
    before = torch.cuda.memory_allocated() if gpu else int(statm.read_text().split()[1]) * resource.getpagesize()
    step()
    step()
    used = torch.cuda.max_memory_allocated() if gpu else resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    return max(used - before, 1)


def run_apart(function: Callable[..., Any], *arguments: Any) -> Any:
    """Calls a function of a module in a new process: what one leaves in memory does not change the next."""
    with ProcessPoolExecutor(1, get_context("spawn")) as pool:
        return pool.submit(function, *arguments).result()


def data_sheet_peak(card: str) -> float | None:
    """The operations per second of a card by its name, in bfloat16; `None` for a card that is not known."""
    for pattern, peak in DATA_SHEETS:
        if re.search(rf"\b(?:{pattern})\b", card.lower()):
            return None if peak is None else peak * 1e12
    return None


def matrix_peak(device: str, dtype: str, size: int = 8192) -> float:
    """The operations per second of a square matrix product, the best of ten."""
    left, right = (torch.randn(size, size, device=device, dtype=getattr(torch, dtype)) for _ in range(2))
    times = take_turns({"product": lambda: left @ right}, 10, device)["product"]
    return 2 * size**3 / min(times)


def benchmark_parser(
    name: str, docstring: str | None, rounds: int, *, quick: bool = True, device: bool = False
) -> argparse.ArgumentParser:
    """A parser with what most benchmarks have."""
    parser = make_parser(f"python -m benchmarks.{name}", docstring)
    add = parser.add_argument
    add("--rounds", type=int, default=rounds, metavar="N", help="timed rounds (default: %(default)s)")
    add("--json", action="store_true", help="print the numbers as JSON")
    if quick:
        add("--quick", action="store_true", help="only a tiny model, as a test")
    if device:
        add("--device", default="cpu", choices=("cpu", "cuda"), help="default: %(default)s")
        add("--dtype", default="float32", choices=("float32", "bfloat16"), help="default: %(default)s")
    return parser


def printed(numbers: Any, as_json: bool, lines: Callable[[Any], Iterable[str]]) -> str:
    """The numbers as JSON or as lines."""
    return json.dumps(numbers) if as_json else "\n".join(lines(numbers))
