# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""The campaign: processes are killed, disks fill, files are damaged or have wrong values; nothing may be lost,
unnoticed or a traceback.

examples:
  make campaign
  make campaign SEED=2
  make campaign CASE=fault/train/half/41 SEED=2
"""

import argparse
import gc
import os
import shutil
import sys
import tempfile
import time
from functools import partial
from itertools import groupby
from pathlib import Path

from .lanes import Result, Unit, run_lanes, table
from .sandbox import restart_with_faults, run_apart

MEMORY = Path("/dev/shm")  # a disk in memory, on which waiting for the disk takes no time
CHUNK = 100  # damaged files of a reader that are one unit of work


def main(arguments):
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seed", type=int, default=1, help="the same seed gives the same cases")
    parser.add_argument("--faults", type=int, default=200, help="number of kills, full disks and I/O errors")
    parser.add_argument("--damages", type=int, default=1000, help="number of damaged files")
    parser.add_argument("--fuzz", type=int, default=500, help="number of wrong values in files of a checkpoint")
    parser.add_argument("--only", default="", help="only jobs, readers and families whose name contains this")
    parser.add_argument("--case", default="", help="run this case only, as a failure prints it")
    parser.add_argument("--lanes", type=int, default=2, help="processes that work at the same time")
    parser.add_argument("--folder", type=Path, help="scratch folder; default: one for each seed, kept after a failure")
    options = parser.parse_args(arguments)
    folder = (options.folder or default_folder(options.seed)).resolve()
    folder.mkdir(parents=True, exist_ok=True)
    restart_with_faults(folder, "tests.campaign.run", [*arguments, "--folder", str(folder)])
    return _campaign(options, folder)


def default_folder(seed):
    """A folder of this user and seed, in memory where that is possible."""
    top = MEMORY if os.access(MEMORY, os.W_OK) else Path(tempfile.gettempdir())
    return top / f"grounded_attention_campaign_{os.getuid()}" / f"seed_{seed}"


def _campaign(options, folder):
    begin = time.monotonic()
    base = folder / "base"
    from matplotlib.figure import Figure

    from tests.helpers.quick_figures import blank_figure, no_objects

    from .jobs import prepare

    Figure.savefig, Figure.findobj = blank_figure, no_objects  # type: ignore[method-assign, assignment]
    gc.collect()
    gc.freeze()  # or each forked process would look at all objects of PyTorch again, and copy them
    for old in (base, *folder.glob("lane_*")):
        shutil.rmtree(old, ignore_errors=True)
    # Importing reads nothing that was trained.
    work = partial(prepare, base, whole=options.only != "import")
    ended = run_apart(work, folder / "prepare", seconds=1200)
    assert ended.status == 0, ended.err
    units = list(_units(options, base))
    print(f"prepared in {time.monotonic() - begin:.0f} s; {folder}", file=sys.stderr, flush=True)
    found = run_lanes(units, folder, options.lanes, partial(_tell, options.seed))
    missing = sum(len(unit.names) for unit in units) - len(found)
    failed = sum(result.failed for result in found)
    print(table(found))
    print(f"seed {options.seed}: {len(found)} cases, {failed} failed, {time.monotonic() - begin:.0f} s")
    if missing:
        print(f"{missing} cases have no result: a process of the campaign itself has ended")
    if not failed and not missing and folder == default_folder(options.seed):
        shutil.rmtree(folder)
    return int(failed > 0 or missing > 0)


def _tell(seed, result):
    if result.failed:
        again = f"make campaign SEED={seed} CASE={result.name}"
        print(f"FAILED {result.name}: {result.outcome}: {result.words}\n  {again}", flush=True)


def _units(options, base):
    """The work of a campaign."""
    wanted = options.case.partition("/")[0]
    if wanted in ("", "fuzz"):
        yield from _fuzz_units(options, base)
    if wanted in ("", "fault"):
        yield from _fault_units(options, base)
    if wanted in ("", "damage"):
        yield from _damage_units(options, base)


def _fuzz_units(options, base):
    from grounded_attention.families import FAMILIES

    from . import fuzz

    def work(case, folder):
        outcome, words = fuzz.Fuzzer(folder, base).check(case)
        failed = outcome not in ("refused", "same", "taken")
        yield Result(case.text, f"fuzz {case.family}", outcome, failed, words)

    families = [name for name in FAMILIES if options.only in name]
    chosen = fuzz.cases(options.fuzz, options.seed, base, families)
    if options.case:
        chosen = [fuzz.Case.parse(options.case)]
    for case in chosen:
        yield Unit([case.text], partial(work, case))


def _fault_units(options, base):
    from . import kills
    from .jobs import JOBS

    def work(case, folder):
        outcome, words = faults.check(case, folder)
        yield Result(case.text, f"fault {case.fault.kind}", outcome, outcome == kills.FAILED, words)

    only = kills.Case.parse(options.case) if options.case else None
    names = [only.job] if only else [name for name in JOBS if options.only in name and options.faults]
    faults = kills.Faults(base, names)
    for case in [only] if only else faults.cases(options.faults, options.seed):
        yield Unit([case.text], partial(work, case))


def _damage_units(options, base):
    from . import damage

    def work(chosen, folder):
        for verdict in damage.run_cases(folder, base, chosen):
            case = verdict.case
            yield Result(case.text, f"damage {case.mutation}", verdict.kind, verdict.failed, verdict.words)

    names = [name for name in damage.READERS if options.only in name]
    chosen = [damage.Case.parse(options.case, options.seed)] if options.case else []
    chosen = chosen or damage.cases(options.damages if names else 0, options.seed, names)
    for _, group in groupby(chosen, key=lambda case: case.reader):
        cases = list(group)
        for first in range(0, len(cases), CHUNK):
            part = cases[first : first + CHUNK]
            yield Unit([case.text for case in part], partial(work, part))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
