# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""Runs the cases of a campaign in several processes."""

import json
import os
import sys
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

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

    names: Sequence[str]
    work: Callable[[Path], Iterable[Result]]


def run_lanes(units, folder, lanes, tell):
    """Runs units in `lanes` processes and tells each result; a process that ends early leaves its last units out."""
    sys.stdout.flush()
    running = {_fork(units[lane::lanes], folder / f"lane_{lane}") for lane in range(lanes)}
    wanted = sum(len(unit.names) for unit in units)
    results: list[Result] = []
    said = time.monotonic()
    while True:
        running -= {process for process in running if os.waitpid(process, os.WNOHANG)[0]}
        found = [result for lane in range(lanes) for result in _read(folder / f"lane_{lane}" / "results.jsonl")]
        for result in found:
            if result not in results:
                tell(result)
        results = found
        if not running:
            return results
        if time.monotonic() - said > 20:
            said = time.monotonic()
            failed = sum(result.failed for result in results)
            print(f"{len(results)} of {wanted} cases, {failed} failed", file=sys.stderr, flush=True)
        time.sleep(0.2)


def _read(path):
    lines = path.read_text().split("\n")[:-1] if path.exists() else []  # the last line may not be whole yet
    return [Result(**json.loads(line)) for line in lines]


def _fork(units, folder):
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "results.jsonl").write_text("")
    process = os.fork()
    if process:
        return process
    status = 0
    try:
        with open(folder / "results.jsonl", "a", buffering=1) as file:
            for unit in units:
                for result in unit.work(folder):
                    file.write(json.dumps({**asdict(result), "words": printable(result.words)[-1500:]}) + "\n")
    except BaseException:
        traceback.print_exc()
        status = 1
    sys.stderr.flush()
    os._exit(status)


def table(results):
    """Counts by kind and outcome."""
    by_kind: dict[str, Counter[str]] = {}
    failed: Counter[str] = Counter()
    for result in results:
        by_kind.setdefault(result.kind, Counter())[result.outcome] += 1
        failed[result.kind] += result.failed
    lines = []
    for kind, outcomes in sorted(by_kind.items()):
        words = ", ".join(f"{count} {name}" for name, count in sorted(outcomes.items()))
        lines.append(f"{kind:22} {outcomes.total():6} cases {failed[kind]:4} failed   {words}")
    return "\n".join(lines)
