# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""Kills, full disks and I/O errors at every kind of file operation; then the same command must finish, bit for bit."""

import random
import re
import shutil
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from .fingerprint import differences
from .jobs import JOBS, Job
from .sandbox import KILLS, Ended, Fault, run_apart

FAULTS = (*KILLS, "full", "broken")


@dataclass(frozen=True)
class Case:
    """One fault in one job. `text` names it, as in `make campaign CASE=...`."""

    job: str
    fault: Fault

    @property
    def text(self) -> str:
        return f"fault/{self.job}/{self.fault.kind}/{self.fault.at}"

    @classmethod
    def parse(cls, text: str) -> "Case":
        _, job, kind, at = text.split("/")
        return cls(job, Fault(kind, int(at)))


class Faults:
    """Runs jobs with faults. Each job is run once without a fault, which is what every other run is compared with.

    Args:
        folder (`Path`): scratch folder.
        base (`Path`): folder of `prepare`.
        jobs (`list[str]`): names of jobs.
    """

    def __init__(self, folder: Path, base: Path, jobs: list[str]):
        self.folder, self.base, self.jobs = folder, base, jobs
        self._expected: dict[str, dict[str, str]] = {}
        self.operations: dict[str, list[str]] = {}
        for name in jobs:
            self._straight(JOBS[name])

    def _straight(self, job: Job) -> None:
        """Twice: the first run fills the cache of rows, the second is counted."""
        for name in ("first", "straight"):
            place = self.folder / job.name / name
            ended = self._run(job, place)
            assert ended.status == 0, f"{job.name} fails without a fault:\n{ended.out}\n{ended.err}"
        self._expected[job.name], self.operations[job.name] = job.result(place), ended.operations
        found = differences(job.result(place.with_name("first")), self._expected[job.name])
        assert not found, f"{job.name} is not the same twice: {found[:5]}"

    def _run(self, job: Job, place: Path, fault: Fault | None = None) -> Ended:
        return run_apart(partial(job.work, self.base), place, fault)

    def cases(self, count: int, seed: int) -> list[Case]:
        """A seeded choice of faults: all jobs and kinds in turn, at operations drawn without repetition."""
        rng = random.Random(f"faults {seed}")
        every = {(job, kind): self._order(job, rng) for job in self.jobs for kind in FAULTS}
        turns = [(job, kind) for kind in FAULTS for job in self.jobs]
        chosen = []
        for number in range(count):
            job, kind = turns[number % len(turns)]
            if every[job, kind]:
                chosen.append(Case(job, Fault(kind, every[job, kind].pop())))
        return chosen

    def _order(self, job: str, rng: random.Random) -> list[int]:
        """All operations, the first to draw at the end; of operations of a kind on a file, one comes in each round."""
        groups: dict[str, list[int]] = {}
        for number, line in enumerate(self.operations[job], start=1):
            groups.setdefault(re.sub(r"\d+", "", line), []).append(number)
        rounds = []
        for group in groups.values():
            rounds += list(enumerate(rng.sample(group, len(group))))
        rng.shuffle(rounds)
        return [number for _, number in sorted(rounds, key=lambda pair: -pair[0])]

    def check(self, case: Case) -> str | None:
        """
        Runs one case.

        Returns:
            `str | None`: what went wrong; `None` if the command finished as without the fault.
        """
        job, place = JOBS[case.job], self.folder / case.job / "case"
        shutil.rmtree(place, ignore_errors=True)
        ended = self._run(job, place, case.fault)
        problem = self._problem(case, ended, place)
        if problem is None and ended.status != 0:
            again = self._run(job, place)
            problem = self._finished(case, again, place, "the same command again")
        return problem and f"{problem} (at operation {self._operation(case)})"

    def _problem(self, case: Case, ended: Ended, place: Path) -> str | None:
        """What is wrong with the run that met the fault."""
        if ended.status is None:
            return "it hangs"
        if ended.killed:
            return None if case.fault.kind in KILLS and ended.fired else "it was killed by another"
        if ended.status == 0:
            return self._finished(case, ended, place, "the fault went unnoticed")
        return None if ended.refused() else f"no line of ours, status {ended.status}: {_end(ended)}"

    def _finished(self, case: Case, ended: Ended, place: Path, what: str) -> str | None:
        if ended.status != 0:
            return f"{what}: status {ended.status}: {_end(ended)}"
        found = differences(self._expected[case.job], JOBS[case.job].result(place))
        return f"{what}: {len(found)} differences: {', '.join(found[:3])}" if found else None

    def _operation(self, case: Case) -> str:
        listed = self.operations[case.job]
        return listed[case.fault.at - 1] if case.fault.at <= len(listed) else f"{case.fault.at}"


def _end(ended: Ended) -> str:
    lines = [line for line in ended.err.splitlines() if line.strip()]
    return " | ".join(lines[-3:])[-600:]
