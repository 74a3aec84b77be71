# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""Wrong values in every field of a checkpoint, every key of a recipe, every option of a command.

Right is: one line that refuses the value, or a command that ends well. A traceback, a crash, a hang, or memory without
end is a failure. So is a field of another type that changes the result without a word.
"""

import random
import shutil
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from .fuzz_targets import TARGETS
from .sandbox import Ended, Limits, run_apart

LIMITS = Limits(memory=3 << 30, file=1 << 28, cpu=60)
SECONDS = 300  # of a machine that does other work too; a process that computes is stopped by `LIMITS`
OURS = ("error: ", "grounded-attention ")  # how a line of ours begins; argparse names the command first


@dataclass(frozen=True)
class Case:
    """One wrong value. `text` names it, as in `make campaign CASE=...`."""

    target: str
    place: str
    value: str

    @property
    def text(self) -> str:
        return f"fuzz/{self.target.replace(' ', '_')}/{self.place}/{self.value}"

    @classmethod
    def parse(cls, text: str) -> "Case":
        _, target, rest = text.split("/", 2)
        place, _, value = rest.rpartition("/")
        return cls({name.replace(" ", "_"): name for name in TARGETS}[target], place, value)


def cases(count: int, seed: int, base: Path, targets: Sequence[str] = tuple(TARGETS)) -> list[Case]:
    """A seeded choice without repetition: the kinds of targets in turn, in each all targets, in each all places."""
    rng = random.Random(f"fuzz {seed}")
    kinds: dict[str, list[list[Case]]] = {}
    for name in targets:
        kinds.setdefault(name.split(" ")[0], []).append(_order(name, rng, base))
    chosen: list[Case] = []
    for number in range(count):
        for orders in kinds.values():
            left = [order for order in orders if order]
            if left:
                chosen.append(left[number % len(left)].pop())
    return chosen[:count]


def _order(name: str, rng: random.Random, base: Path) -> list[Case]:
    """All cases of a target, the first to draw at the end; each place comes once in each round."""
    target = TARGETS[name]
    seen = Counter[str]()
    every = [Case(name, place, value) for place in target.places(base) for value in target.values]
    rng.shuffle(every)
    rounds = []
    for case in every:
        seen[case.place] += 1
        rounds.append((seen[case.place], case))
    return [case for _, case in sorted(rounds, key=lambda pair: -pair[0])]


class Fuzzer:
    """Runs cases, each in a process of its own with limits on memory, files and time; `base` is that of `prepare`."""

    def __init__(self, folder: Path, base: Path):
        self.folder = folder / "fuzz"
        self.base = base
        self._sound: dict[str, str] = {}

    def check(self, case: Case) -> tuple[str, str]:
        """The outcome and its words; `refused`, `same` (as with the sound value) and `taken` are right."""
        target = TARGETS[case.target]
        ended = self._run(partial(target.work, self.base, case.place, case.value))
        words = _end(ended)
        if ended.status is None or ended.status == -24:  # SIGXCPU
            return "hang", words
        if ended.status < 0:
            return "crash", f"status {ended.status}: {words}"
        if ended.status == 2 and "the memory is full" in ended.err:
            return "memory", words
        if ended.status != 0:
            return ("refused" if ended.refused(OURS) else "no line of ours"), words
        if "Traceback" in ended.err:
            return "traceback", words
        if target.result is None:
            return "taken", words
        if target.result(self.folder / "case") == self.sound(case.target):
            return "same", words
        return ("taken" if target.fits(self.base, case.place, case.value) else "silent"), words

    def sound(self, name: str) -> str:
        """What a target gives without a wrong value."""
        target = TARGETS[name]
        if name not in self._sound and target.result is not None:
            ended = self._run(partial(target.work, self.base, "", ""))
            assert ended.status == 0, f"{name} fails without a wrong value:\n{ended.out}\n{ended.err}"
            self._sound[name] = target.result(self.folder / "case")
        return self._sound[name]

    def _run(self, work: Callable[[], int]) -> Ended:
        place = self.folder / "case"
        shutil.rmtree(place, ignore_errors=True)
        return run_apart(work, place, seconds=SECONDS, limits=LIMITS)


def _end(ended: Ended) -> str:
    lines = [line for line in ended.err.splitlines() if line.strip()]
    return " | ".join(lines[-4:])[-700:]
