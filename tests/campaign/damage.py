# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""Damaged files for every reader: read right, or one line of ours; no traceback, no hang, no silence."""

import contextlib
import io
import json
import random
import re
import resource
import shutil
import signal
import traceback
from dataclasses import dataclass
from functools import partial
from itertools import cycle, groupby
from pathlib import Path

from .lanes import Result, Unit
from .mutations import MUTATIONS, mutate
from .reader import OUT, SLOW, digest_of_output
from .readers import READERS
from .sandbox import Ended, run_apart

SECONDS = 30  # of computing for one file
WAITING = 300  # on a machine that does other work too
MEMORY = 3 << 30  # bytes that reading one file may take beyond what the process has
BATCH = 25  # cases in one process
CHUNK = 100  # damaged files of a reader that are one unit of work
RIGHT = ("refused", "right", "read")  # "right": as the sound file; "read": as the damaged file says
# Lines say nothing of each other: fewer lines are a whole file, unless the last one has no end.
LINE_FORMATS = (".csv", ".tsv", ".txt", ".conllu", ".jsonl")


@dataclass(frozen=True)
class Case:
    """One damaged file. `text` names it, as in `make campaign CASE=...`."""

    reader: str
    mutation: str
    number: int
    seed: int

    @property
    def text(self):
        return f"damage/{self.reader.replace(' ', '_')}/{self.mutation}/{self.number}"

    @classmethod
    def parse(cls, text, seed):
        _, reader, mutation, number = text.split("/")
        known = {name.replace(" ", "_"): name for name in READERS}
        return cls(known[reader], mutation, int(number), seed)


def cases(count, seed, only):
    """A seeded choice: all readers and kinds of damage in turn, grouped by reader."""
    readers = [name for name in READERS if only in name]
    turns = [(name, kind) for kind in MUTATIONS for name in readers if kind in SLOW or not READERS[name].slow]
    chosen = [Case(*turn, at // len(turns), seed) for at, turn in zip(range(count), cycle(turns), strict=False)]
    return sorted(chosen, key=lambda case: readers.index(case.reader))


def units(options, base):
    """The work of a campaign."""
    chosen = cases(options.damages, options.seed, options.only)
    if options.case:
        chosen = [Case.parse(options.case, options.seed)]
    for _, group in groupby(chosen, key=lambda case: case.reader):
        group = list(group)
        for first in range(0, len(group), CHUNK):
            part = group[first : first + CHUNK]
            yield Unit([case.text for case in part], partial(run_cases, base, part))


def run_cases(base, chosen, folder):
    """Runs cases of a reader in forked processes; one that crashes or hangs ends one case, and the rest go on."""
    waiting = list(chosen)
    place = folder / "damage"
    while waiting:
        batch = waiting[:BATCH]
        shutil.rmtree(place, ignore_errors=True)
        ended = run_apart(partial(_batch, base, batch), place, seconds=WAITING * (len(batch) + 2))
        notes = place / "verdicts.jsonl"
        assert notes.exists(), f"{batch[0].reader}: the sound files are not read:\n{ended.out}{ended.err}"
        verdicts = [json.loads(line) for line in notes.read_text().splitlines()]
        if len(verdicts) < len(batch):
            hung = ended.status in (None, -signal.SIGALRM, -signal.SIGPROF)
            verdicts.append(("hang" if hung else "crash", f"status {ended.status}"))
        for case, (kind, words) in zip(batch, verdicts, strict=False):
            yield Result(case.text, f"damage {case.mutation}", kind, kind not in RIGHT, words)
        del waiting[: len(verdicts)]


def _batch(base, batch):
    """In a process of its own: reads the sound files, then each damaged one."""
    reader = READERS[batch[0].reader]
    sound = Path("sound")
    sound.mkdir()
    reader.make(base, sound)
    status, words = _read(reader, sound)
    assert status == 0, words
    expected = digest_of_output(), reader.rows(), _plain(words)
    with open("verdicts.jsonl", "a", buffering=1) as notes:
        for case in batch:
            signal.setitimer(signal.ITIMER_PROF, SECONDS)
            signal.alarm(WAITING)
            kind, words = _judge(reader, sound, case, *expected)
            signal.setitimer(signal.ITIMER_PROF, 0)
            signal.alarm(0)
            notes.write(json.dumps([kind, words[-400:]]) + "\n")
    return 0


def damaged_file(case, folder):
    """The file that a case damages, and its new content."""
    seed = f"{case.seed}/{case.text}"
    files = sorted(path for path in folder.rglob("*") if path.is_file() and path.stat().st_size)
    # One file of each kind has the same chance, or the many small ones would be all that is damaged.
    kinds = sorted({(path.parent.name, path.suffix) for path in files})
    rng = random.Random(f"file {seed}")
    kind = rng.choice(kinds)
    path = rng.choice([path for path in files if (path.parent.name, path.suffix) == kind])
    return path, mutate(case.mutation, path.read_bytes(), seed)


def _judge(reader, sound, case, digest, rows, lines):
    path, content = damaged_file(case, sound)
    original = path.read_bytes()
    what = f"{path.relative_to(sound)}, {len(content)} of {len(original)} bytes"
    path.write_bytes(content)
    before = _peak_memory()
    try:
        status, words = _read(reader, sound)
    except BaseException as error:
        place = traceback.extract_tb(error.__traceback__)[-1]
        return "traceback", f"{what}: {type(error).__name__}: {error!s:.200} ({place.filename}:{place.lineno})"
    finally:
        path.write_bytes(original)
    if _peak_memory() - before > MEMORY:
        return "memory", f"{what}: more than {MEMORY >> 30} GB"
    if status != 0:
        refused = Ended(status, "", words, [], False).refused()
        return ("refused" if refused else "no line of ours"), f"{what}: {words}"
    if digest_of_output() == digest:
        return "right", what
    whole = _has_lines(path, original) and (case.mutation != "cut" or content[-1:] in (b"\n", b""))
    if whole or reader.rows() >= rows or _plain(words) - lines:
        return "read", what
    return "silent", f"{what}: {reader.rows()} of {rows} rows, without a word"


def _peak_memory():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def _has_lines(path, original):
    """Whether each line is a record, so that nobody can see a cut between two lines. NLVR2 has JSON lines in .json."""
    first, *others = original.splitlines()[:2] or [b""]
    return path.suffix in LINE_FORMATS or bool(others and first.startswith(b"{") and first.endswith(b"}"))


def _read(reader, folder):
    shutil.rmtree(OUT, ignore_errors=True)
    for name in ("table", "measured"):
        shutil.rmtree(name, ignore_errors=True)
    out = io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(out):
        try:
            status = reader.read(folder)
        except SystemExit as error:
            status = error.code if isinstance(error.code, int) else 1
    return status, out.getvalue()


def _plain(words):
    """The lines without digits, which counts of rows change; and which counters there are."""
    return {re.sub(r"\d+", "", line).strip() for line in words.splitlines()}
