# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""The campaign: processes are killed, disks fill, files are damaged; nothing may be lost, unnoticed or a traceback.

examples:
  make campaign
  make campaign SEED=2
  make campaign CASE=fault/train/half/41 SEED=2
"""

import argparse
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

from grounded_attention.utils.plain_text import printable

from .sandbox import restart_with_faults, run_apart


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seed", type=int, default=1, help="the same seed gives the same cases")
    parser.add_argument("--faults", type=int, default=200, help="number of kills, full disks and I/O errors")
    parser.add_argument("--damages", type=int, default=1000, help="number of damaged files")
    parser.add_argument("--only", default="", help="only jobs and readers whose name contains this")
    parser.add_argument("--case", default="", help="run this case only, as a failure prints it")
    parser.add_argument("--folder", type=Path, help="scratch folder, kept; default: a temporary one")
    options = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory(prefix="campaign_") as temporary:
        folder = (options.folder or Path(temporary)).resolve()
        folder.mkdir(parents=True, exist_ok=True)
        restart_with_faults(folder, "tests.campaign.run", [*arguments, "--folder", str(folder)])
        return _campaign(options, folder)


def _campaign(options: argparse.Namespace, folder: Path) -> int:
    from . import damage, kills
    from .jobs import JOBS, prepare

    begin, base = time.monotonic(), folder / "base"
    ended = run_apart(lambda: prepare(base), folder / "prepare")
    assert ended.status == 0, ended.err
    tally = Tally(options.seed)
    if not options.case.startswith("damage/"):
        only = [kills.Case.parse(options.case)] if options.case else None
        names = [only[0].job] if only else [name for name in JOBS if options.only in name]
        faults = kills.Faults(folder, base, names if options.faults else [])
        for case in only or faults.cases(options.faults, options.seed):
            tally.add(f"fault {case.fault.kind}", case.text, faults.check(case))
    if not options.case.startswith("fault/"):
        readers = [name for name in damage.READERS if options.only in name]
        chosen = [damage.Case.parse(options.case, options.seed)] if options.case else []
        chosen = chosen or damage.cases(options.damages if readers else 0, options.seed, readers)
        for verdict in damage.run_cases(folder, base, chosen):
            words = f"{verdict.kind}: {verdict.words}" if verdict.failed else None
            tally.add(f"damage {verdict.case.mutation}", verdict.case.text, words, "" if words else verdict.kind)
    print(tally.table())
    print(f"seed {options.seed}: {tally.cases} cases, {tally.failed} failed, {time.monotonic() - begin:.0f} s")
    return int(tally.failed > 0)


class Tally:
    """Counts of cases by kind; prints each failure with the command that repeats it."""

    def __init__(self, seed: int) -> None:
        self.seed, self.done, self.bad = seed, Counter[str](), Counter[str]()
        self.outcomes: dict[str, Counter[str]] = {}

    def add(self, kind: str, name: str, problem: str | None, outcome: str = "") -> None:
        self.done[kind] += 1
        if problem:
            self.bad[kind] += 1
            again = f"make campaign SEED={self.seed} CASE={name}"
            print(f"FAILED {name}: {printable(problem)}\n  {again}", flush=True)
        elif outcome:
            self.outcomes.setdefault(kind, Counter())[outcome] += 1
        if self.cases % 20 == 0:
            print(f"{self.cases} cases, {self.failed} failed", file=sys.stderr, flush=True)

    @property
    def cases(self) -> int:
        return sum(self.done.values())

    @property
    def failed(self) -> int:
        return sum(self.bad.values())

    def table(self) -> str:
        lines = []
        for kind, count in self.done.items():
            outcomes = ", ".join(f"{n} {name}" for name, n in sorted(self.outcomes.get(kind, Counter()).items()))
            lines.append(f"{kind:16} {count:6} cases {self.bad[kind]:4} failed   {outcomes}".rstrip())
        return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
