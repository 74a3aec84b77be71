# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""Runs the cases of a campaign in several processes, and keeps every result in a file, so that a campaign goes on."""

import hashlib
import json
import os
import signal
import struct
import sys
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from grounded_attention.utils.plain_text import printable

ROOT = Path(__file__).resolve().parents[2]
_NUMBER = struct.Struct("I")
_PIPE = 65536  # bytes that a pipe of Linux holds


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


class Results:
    """The results so far, one line of JSON each; results of other sources of the project are deleted."""

    def __init__(self, path: Path):
        self.path, sources = path, digest_of_sources()
        lines = path.read_bytes().split(b"\n") if path.exists() else []
        if not lines or lines[0].decode(errors="replace") != sources:
            lines = [sources.encode(), b""]
        path.write_bytes(b"\n".join(lines[:-1]) + b"\n")  # without a last line that a kill has cut
        self._read = 0
        self.found: dict[str, Result] = {}
        self.update()

    def add(self, result: Result) -> None:
        """Appends a result; processes may do so at the same time."""
        line = json.dumps({**asdict(result), "words": printable(result.words)[-1500:]}) + "\n"
        with open(self.path, "ab", buffering=0) as file:
            file.write(line.encode())

    def update(self) -> list[Result]:
        """Reads what was appended; returns it."""
        with open(self.path, "rb") as file:
            file.seek(self._read)
            content = file.read()
        whole = content[: content.rfind(b"\n") + 1]
        lines = whole.splitlines()[0 if self._read else 1 :]
        self._read += len(whole)
        new = [Result(**json.loads(line)) for line in lines]
        self.found.update({result.name: result for result in new})
        return new


def digest_of_sources() -> str:
    """A digest of the project's Python files: results of other sources say nothing."""
    found = hashlib.sha256()
    for top in ("grounded_attention", "tests"):
        for path in sorted((ROOT / top).rglob("*")):
            if path.suffix in (".py", ".c", ".yaml") and path.is_file():
                found.update(path.read_bytes())
    return found.hexdigest()


def run_lanes(
    units: Sequence[Unit], results: Results, folder: Path, lanes: int, tell: Callable[[Result], None]
) -> int:
    """Runs the units that `results` lacks in `lanes` processes that take one after another; tells each new result.

    Returns the number of cases without a result, because a process of the campaign itself ended early.
    """
    left = [number for number, unit in enumerate(units) if any(name not in results.found for name in unit.names)]
    wanted = sum(len(unit.names) for unit in units)
    source, sink = os.pipe()
    assert len(left) * _NUMBER.size < _PIPE, f"at most {_PIPE // _NUMBER.size} units, found {len(left)}"
    os.write(sink, b"".join(map(_NUMBER.pack, left)))
    os.close(sink)
    sys.stdout.flush()
    processes = [_fork(units, source, results, folder / f"lane_{number}") for number in range(lanes)]
    os.close(source)
    begin = time.monotonic()
    before = len(results.found)
    said = 0.0
    try:
        while processes:
            processes = [process for process in processes if not os.waitpid(process, os.WNOHANG)[0]]
            for result in results.update():
                tell(result)
            done = len(results.found)
            now = time.monotonic()
            if now - said > 20:
                said = now
                rate = (done - before) / max(now - begin, 1e-9)
                rest = f", about {(wanted - done) / rate / 60:.0f} min left" if done > before else ""
                failed = sum(result.failed for result in results.found.values())
                print(f"{done} of {wanted} cases, {failed} failed{rest}", file=sys.stderr, flush=True)
            time.sleep(0.2)
    finally:
        for process in processes:
            os.kill(process, signal.SIGTERM)
    return sum(name not in results.found for unit in units for name in unit.names)


def _fork(units: Sequence[Unit], source: int, results: Results, folder: Path) -> int:
    process = os.fork()
    if process:
        return process
    status = 0
    try:
        while number := os.read(source, _NUMBER.size):
            for result in units[_NUMBER.unpack(number)[0]].work(folder):
                results.add(result)
    except BaseException:
        traceback.print_exc()
        status = 1
    sys.stderr.flush()
    os._exit(status)


def table(results: Iterable[Result]) -> str:
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
