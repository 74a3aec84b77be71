# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""What benchmarks share: clocks, ways that take turns, peaks of memory, new processes, how ratios are printed."""

import argparse
import json
import math
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
from transformers import LlamaConfig

from grounded_attention.commands.command_line import make_parser
from grounded_attention.utils.progress import is_quiet

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
    ways: Mapping[str, Callable[[], Any]],
    rounds: int,
    device: str = "cpu",
    label: str = "rounds",
    seconds: float = math.inf,
) -> dict[str, list[float]]:
    """Runs all ways in each round, in alternating order; returns way -> seconds of each round.

    After so many `seconds` no other round begins.
    """
    times: dict[str, list[float]] = {name: [] for name in ways}
    begun = time.perf_counter()
    for turn in tqdm(range(rounds), desc=label, leave=False, disable=is_quiet()):
        if turn and time.perf_counter() - begun > seconds:
            break
        for name in list(ways)[:: 1 if turn % 2 else -1]:
            begin = clock(device)
            ways[name]()
            times[name].append(clock(device) - begin)
    return times


def quotients(upper: Sequence[float], lower: Sequence[float]) -> list[float]:
    """The ratio of each round."""
    return [one / other for one, other in zip(upper, lower, strict=True)]


def spread(ratios: Iterable[float]) -> str:
    """Median and range of ratios; a single number as it is."""
    ordered = sorted(ratios)
    middle = statistics.median(ordered)
    if len(ordered) == 1:
        if middle == 0 or abs(middle) >= 0.01:
            return f"{middle:.2f}"
        return f"{middle:.1e}"
    return f"{middle:.2f} ({ordered[0]:.2f} to {ordered[-1]:.2f})"


def peak_memory(step: Callable[[], Any], times: int = 2) -> float:
    """The bytes that steps take at most, beyond what the process has when they begin."""
    before = int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()
    for _ in range(times):
        step()
    return max(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 - before, 1)


def run_apart(function: Callable[..., Any], *arguments: Any) -> Any:
    """Calls a function of a module in a new process: what one leaves in memory does not change the next."""
    with ProcessPoolExecutor(1, get_context("spawn")) as pool:
        return pool.submit(function, *arguments).result()


def run_within(seconds: float, function: Callable[..., Any], *arguments: Any) -> Any:
    """Calls a function of a module in a new process, which is ended after so many seconds: `TimeoutError`."""
    context = get_context("spawn")
    receiver, sender = context.Pipe(duplex=False)
    process = context.Process(target=_send, args=(sender, function, arguments))
    process.start()
    sender.close()
    try:
        if not receiver.poll(seconds):
            raise TimeoutError(f"did not end within its {seconds:.0f} s")
        found = receiver.recv()
    finally:
        process.kill()
        process.join()
    if isinstance(found, Exception):
        raise found
    return found


def _send(sender: Any, function: Callable[..., Any], arguments: Sequence[Any]) -> None:
    try:
        found = function(*arguments)
    except Exception as error:
        found = RuntimeError(f"{type(error).__name__}: {error}")  # not every error can be sent
    sender.send(found)


class Budget:
    """Seconds that are shared by what is still to do, in proportion to weights."""

    def __init__(self, seconds: float, weight: float):
        self.end = time.perf_counter() + seconds
        self.weight = weight  # of everything that is still to do

    def take(self, weight: float) -> float:
        """The seconds of the next piece of work; nothing is left if they are not positive."""
        share = (self.end - time.perf_counter()) * weight / max(self.weight, weight)
        self.weight -= weight
        return share


class Workload:
    """One way to compute something. Subclasses take the way, a size and the options."""

    def step(self) -> Any:
        """The work that is measured."""
        raise NotImplementedError

    def warm_up(self) -> None:
        """What is done before memory is measured."""


def compare(
    make: Callable[..., Workload], ways: Sequence[str], pairs: Iterable[tuple[str, str]], size: int, options: Any
) -> dict[str, list[float]]:
    """Time and memory of the first way of each pair over those of the second: of each round, and of one process."""
    memory = {way: run_apart(measure_memory, make, way, size, options) for way in ways}
    times = run_apart(measure_times, make, ways, size, options)
    ratios = {}
    for one, other in pairs:
        ratios[f"time, {one} / {other}"] = quotients(times[one], times[other])
        ratios[f"memory, {one} / {other}"] = [memory[one] / memory[other]]
    return ratios


def measure_memory(make: Callable[..., Workload], way: str, size: int, options: Any) -> float:
    """The peak memory of a way in bytes, without weights and inputs."""
    workload = make(way, size, options)
    workload.warm_up()
    return peak_memory(workload.step)


def measure_times(
    make: Callable[..., Workload], ways: Sequence[str], size: int, options: Any
) -> dict[str, list[float]]:
    """Way -> CPU seconds of each round."""
    steps = {way: make(way, size, options).step for way in ways}
    for step in steps.values():
        step()
    return take_turns(steps, options.rounds, label=f"size {size}")


def small_llama(quick: bool) -> LlamaConfig:
    """LLaVA's language model in small: 4 layers of width 512, 8 heads."""
    width = 64 if quick else 512
    return LlamaConfig(
        hidden_size=width,
        intermediate_size=11 * width // 4,
        num_hidden_layers=4,
        num_attention_heads=8,
        num_key_value_heads=8,
        vocab_size=100,
        max_position_embeddings=8192,
    )


def data_sheet_peak(card: str) -> float | None:
    """The operations per second of a card by its name, in bfloat16; `None` for a card that is not known."""
    for pattern, peak in DATA_SHEETS:
        if re.search(rf"\b(?:{pattern})\b", card.lower()):
            if peak is None:
                return None
            return peak * 1e12
    return None


def matrix_peak(device: str, dtype: str, size: int = 8192) -> float:
    """The operations per second of a square matrix product, the best of ten."""
    left, right = (torch.randn(size, size, device=device, dtype=getattr(torch, dtype)) for _ in range(2))
    times = take_turns({"product": lambda: left @ right}, 10, device)["product"]
    return 2 * size**3 / min(times)


def benchmark_parser(name: str, docstring: str | None, rounds: int, *, quick: bool = True) -> argparse.ArgumentParser:
    """A parser with what most benchmarks have."""
    parser = make_parser(f"python -m benchmarks.{name}", docstring)
    add = parser.add_argument
    add("--rounds", type=int, default=rounds, metavar="N", help="timed rounds (default: %(default)s)")
    add("--json", action="store_true", help="print the numbers as JSON")
    if quick:
        add("--quick", action="store_true", help="only a tiny model, as a test")
    return parser


def report(ratios: Mapping[str, Mapping[str, Sequence[float]]], as_json: bool, aims: str = "") -> str:
    """What was compared -> name -> the ratio of each round, as JSON, or as lines with median and range."""
    if as_json:
        return json.dumps(ratios)
    lines = [
        f"{each:<28}{name:<36}{spread(rounds)}" for each, named in ratios.items() for name, rounds in named.items()
    ]
    return "\n".join([*lines, f"aims: {aims}"] if aims else lines)
