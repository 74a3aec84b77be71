# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""Runs the cases of a campaign in several processes."""

import os
import sys
import time
from collections import Counter, defaultdict
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass, replace
from multiprocessing import get_context

from grounded_attention.utils.plain_text import printable


@dataclass(frozen=True)
class Result:
    """What came of a case."""

    name: str  # as in `make campaign CASE=...`
    kind: str  # what the table counts it under
    outcome: str
    failed: bool
    words: str = ""  # what was printed or found


@dataclass(frozen=True)
class Unit:
    """Cases that one process runs together: their names, and the work, which gives a result for each of them."""

    names: list[str]
    work: Callable


_UNITS = []  # which the forked processes have, since work cannot be sent


def run_lanes(units, folder, lanes, report):
    """Runs units in `lanes` processes and reports each result; those of a unit that fails are left out."""
    _UNITS[:] = units
    wanted = sum(len(unit.names) for unit in units)
    results = []
    printed = time.monotonic()
    with ProcessPoolExecutor(lanes, get_context("fork")) as pool:
        for future in as_completed([pool.submit(_run, number, folder) for number in range(len(units))]):
            if error := future.exception():
                print(f"a process of the campaign: {error!r}", file=sys.stderr)
                continue
            for result in future.result():
                report(result)
                results.append(result)
            if time.monotonic() - printed > 20:
                printed = time.monotonic()
                failed = sum(result.failed for result in results)
                print(f"{len(results)} of {wanted} cases, {failed} failed", file=sys.stderr, flush=True)
    return results


def _run(number, folder):
    place = folder / f"lane_{os.getpid()}"
    return [replace(result, words=printable(result.words)[-1500:]) for result in _UNITS[number].work(place)]


def table(results):
    """Counts by kind and outcome."""
    outcomes = defaultdict(Counter)
    failed = Counter()
    for result in results:
        outcomes[result.kind][result.outcome] += 1
        failed[result.kind] += result.failed
    lines = []
    for kind, counts in sorted(outcomes.items()):
        words = ", ".join(f"{count} {name}" for name, count in sorted(counts.items()))
        lines.append(f"{kind:22} {counts.total():6} cases {failed[kind]:4} failed   {words}")
    return "\n".join(lines)
