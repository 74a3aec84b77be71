# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""Kills, full disks and I/O errors at every kind of file operation; then the same command must finish, bit for bit."""

import random
import re
import shutil
from collections import defaultdict
from dataclasses import dataclass
from functools import partial
from itertools import zip_longest
from operator import itemgetter

from .fingerprint import differences
from .jobs import JOBS
from .lanes import Result, Unit
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


def units(options, base):
    """The work of a campaign."""
    if options.case:
        chosen = [Case.parse(options.case)]
        faults = Faults(base, [chosen[0].job])
    else:
        faults = Faults(base, [name for name in JOBS if options.only in name and options.faults])
        chosen = faults.cases(options.faults, options.seed)
    return [Unit([case.text], partial(faults.check, case)) for case in chosen]


class Faults:
    """Runs jobs with faults; each is first run once without one, and every other run is compared with that."""

    def __init__(self, base, jobs):
        self.base = base
        self.jobs = jobs
        self._expected = {}
        self.operations = {}
        for name in jobs:
            self._run_straight(JOBS[name])

    def _run_straight(self, job):
        """Twice: the first run fills the cache of rows, the second is counted."""
        results = []
        for name in ("first", "second"):
            place = self.base / "references" / job.name / name
            ended = self._run(job, place)
            assert ended.status == 0, f"{job.name} fails without a fault:\n{ended.out}\n{ended.err}"
            results.append(job.result(place))
        found = differences(*results)
        assert not found, f"{job.name} is not the same twice: {found[:5]}"
        self._expected[job.name] = results[1]
        self.operations[job.name] = ended.operations

    def _run(self, job, place, fault=None):
        return run_apart(partial(job.work, self.base), place, fault, SECONDS)

    def cases(self, count, seed):
        """A seeded choice of faults: all jobs and kinds in turn, at operations drawn without repetition."""
        rng = random.Random(f"faults {seed}")
        turns = [(job, kind) for kind in FAULTS for job in self.jobs if kind != ONE or JOBS[job].ranks > 1]
        orders = [self._order(job, rng) for job, _ in turns]
        rounds = zip_longest(*orders)  # of one operation for each job and kind
        chosen = [(turn, at) for operations in rounds for turn, at in zip(turns, operations, strict=True)][:count]
        return [Case(job, Fault(kind, at)) for (job, kind), at in chosen if at is not None]

    def _order(self, job, rng):
        """All operations, in rounds: of the operations of a kind on a file, one comes in each round."""
        groups = defaultdict(list)
        for number, line in enumerate(self.operations[job], start=1):
            groups[re.sub(r"\d+", "", line)].append(number)
        pairs = [pair for group in groups.values() for pair in enumerate(rng.sample(group, len(group)))]
        rng.shuffle(pairs)
        return [number for _, number in sorted(pairs, key=itemgetter(0))]

    def check(self, case, folder):
        """`FAILED`, or how the command met the fault before it finished as without one."""
        job = JOBS[case.job]
        place = folder / case.job / "work"
        shutil.rmtree(place.parent, ignore_errors=True)
        ended = self._run(job, place, case.fault)
        met = _met(case, ended)
        if met == FAILED:
            problem = f"status {ended.status}: {_end(ended)}"
        else:
            if ended.status != 0:
                ended = self._run(job, place)
            problem = self._problem(job, ended, place)
        if problem:
            operation = self.operations[case.job][case.fault.at - 1 :][:1]
            problem = f"{met}, then {problem} (at operation {case.fault.at}: {operation})"
            met = FAILED
        else:
            shutil.rmtree(place.parent, ignore_errors=True)
        yield Result(case.text, f"fault {case.fault.kind}", met, met == FAILED, problem)

    def _problem(self, job, ended, place):
        """What is wrong with the run that finished the work."""
        if ended.status != 0:
            return f"status {ended.status}: {_end(ended)}"
        found = differences(self._expected[job.name], job.result(place))
        return f"{len(found)} differences: {', '.join(found[:3])}" if found else ""


def _met(case, ended):
    """How a run met its fault. A hang, a kill by another and an error without a line of ours are `FAILED`."""
    if ended.killed and ended.fired and case.fault.kind in (*KILLS, ONE):
        return "killed"
    if ended.refused():
        return "refused"
    if ended.status == 0:
        return "no harm" if ended.fired else "not reached"
    return FAILED


def _end(ended):
    lines = [line for line in ended.err.splitlines() if line.strip()]
    return " | ".join(lines[-3:])[-600:]
