# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""Kills, full disks and I/O errors at every kind of file operation; then the same command must finish, bit for bit."""

import json
import random
import re
import shutil
from dataclasses import dataclass
from functools import partial

from .fingerprint import differences
from .jobs import JOBS
from .sandbox import KILLS, Fault, run_apart

ONE = "one"  # a kill of one process of several
FAULTS = (*KILLS, ONE, "full", "broken")
FAILED = "failed"
SECONDS = 600  # of a machine that does other work too


@dataclass(frozen=True)
class Case:
    """One fault in one job. `text` names it, as in `make campaign CASE=...`."""

    job: str
    fault: Fault

    @property
    def text(self):
        return f"fault/{self.job}/{self.fault.kind}/{self.fault.at}"

    @classmethod
    def parse(cls, text):
        _, job, kind, at = text.split("/")
        return cls(job, Fault(kind, int(at)))


class Faults:
    """Runs jobs with faults; each is first run once without one, and every other run is compared with that."""

    def __init__(self, base, jobs):
        self.base = base
        self.jobs = jobs
        self._expected: dict[str, dict[str, str]] = {}
        self.operations: dict[str, list[str]] = {}
        for name in jobs:
            kept = base / "references" / f"{name}.json"
            if not kept.exists():
                self._straight(JOBS[name], kept)
            found = json.loads(kept.read_text())
            self._expected[name], self.operations[name] = found["expected"], found["operations"]

    def _straight(self, job, kept):
        """Twice: the first run fills the cache of rows, the second is counted."""
        kept.parent.mkdir(exist_ok=True)
        runs = []
        for name in ("first", "second"):
            place = self.base / "references" / job.name / name
            ended = self._run(job, place)
            assert ended.status == 0, f"{job.name} fails without a fault:\n{ended.out}\n{ended.err}"
            runs.append(job.result(place))
        found = differences(*runs)
        assert not found, f"{job.name} is not the same twice: {found[:5]}"
        kept.write_text(json.dumps({"expected": runs[1], "operations": ended.operations}))

    def _run(self, job, place, fault=None):
        return run_apart(partial(job.work, self.base), place, fault, SECONDS)

    def cases(self, count, seed):
        """A seeded choice of faults: all jobs and kinds in turn, at operations drawn without repetition."""
        rng = random.Random(f"faults {seed}")
        turns = [(job, kind) for kind in FAULTS for job in self.jobs if kind != ONE or JOBS[job].ranks > 1]
        every = {(job, kind): self._order(job, rng) for job, kind in turns}
        chosen = []
        for number in range(count if turns else 0):
            job, kind = turns[number % len(turns)]
            if every[job, kind]:
                chosen.append(Case(job, Fault(kind, every[job, kind].pop())))
        return chosen

    def _order(self, job, rng):
        """All operations, the first to draw at the end; of operations of a kind on a file, one comes in each round."""
        groups: dict[str, list[int]] = {}
        for number, line in enumerate(self.operations[job], start=1):
            groups.setdefault(re.sub(r"\d+", "", line), []).append(number)
        rounds = []
        for group in groups.values():
            rounds += list(enumerate(rng.sample(group, len(group))))
        rng.shuffle(rounds)
        return [number for _, number in sorted(rounds, key=lambda pair: -pair[0])]

    def check(self, case, folder):
        """`FAILED` or how the command met the fault before it finished as without one; and what went wrong."""
        job = JOBS[case.job]
        place = folder / case.job / "work"
        shutil.rmtree(place.parent, ignore_errors=True)
        ended = self._run(job, place, case.fault)
        problem = self._problem(case, ended, place)
        if problem is None and ended.status != 0:
            again = self._run(job, place)
            problem = self._finished(case, again, place, "the same command again")
        if problem is not None:
            return FAILED, f"{problem} (at operation {self._operation(case)})"
        shutil.rmtree(place.parent, ignore_errors=True)
        if ended.killed:
            met = "killed"
        else:
            if ended.status:
                met = "refused"
            else:
                met = "no harm" if ended.fired else "not reached"
        return met, ""

    def _problem(self, case, ended, place):
        """What is wrong with the run that met the fault."""
        if ended.status is None:
            return "it hangs"
        if ended.killed:
            if case.fault.kind in (*KILLS, ONE) and ended.fired:
                return None
            return "it was killed by another"
        if ended.status == 0:
            return self._finished(case, ended, place, "the fault went unnoticed")
        if ended.refused():
            return None
        return f"no line of ours, status {ended.status}: {_end(ended)}"

    def _finished(self, case, ended, place, what):
        if ended.status != 0:
            return f"{what}: status {ended.status}: {_end(ended)}"
        found = differences(self._expected[case.job], JOBS[case.job].result(place))
        if found:
            return f"{what}: {len(found)} differences: {', '.join(found[:3])}"
        return None

    def _operation(self, case):
        listed = self.operations[case.job]
        if case.fault.at <= len(listed):
            return listed[case.fault.at - 1]
        return f"{case.fault.at}"


def _end(ended):
    lines = [line for line in ended.err.splitlines() if line.strip()]
    return " | ".join(lines[-3:])[-600:]
