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
from pathlib import Path

from .lanes import run_lanes, table
from .sandbox import restart_with_faults, run_apart

MEMORY = Path("/dev/shm")  # a disk in memory, on which waiting for the disk takes no time


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

    from tests.helpers.quick_figures import BLANK

    from .jobs import prepare

    for name, stand_in in BLANK.items():
        setattr(Figure, name, stand_in)
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
    from . import damage, fuzz, kills

    wanted = options.case.partition("/")[0]
    for kind, module in {"fuzz": fuzz, "fault": kills, "damage": damage}.items():
        if wanted in ("", kind):
            yield from module.units(options, base)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
