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

from .sandbox import restart_with_faults


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seed", type=int, default=1, help="the same seed gives the same cases")
    parser.add_argument("--faults", type=int, default=200, help="number of kills, full disks and I/O errors")
    parser.add_argument("--jobs", nargs="*", help="names of jobs; default: all")
    parser.add_argument("--case", default="", help="run this case only, as a failure prints it")
    parser.add_argument("--folder", type=Path, help="scratch folder, kept; default: a temporary one")
    options = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory(prefix="campaign_") as temporary:
        folder = (options.folder or Path(temporary)).resolve()
        folder.mkdir(parents=True, exist_ok=True)
        restart_with_faults(folder, "tests.campaign.run", [*arguments, "--folder", str(folder)])
        return _campaign(options, folder)


def _campaign(options: argparse.Namespace, folder: Path) -> int:
    from .jobs import JOBS
    from .kills import Case, Faults

    begin, only = time.monotonic(), options.case and Case.parse(options.case)
    faults = Faults(folder, [only.job] if only else options.jobs or list(JOBS))
    counts = {name: len(listed) for name, listed in faults.operations.items()}
    print(f"file operations without a fault: {counts}", flush=True)
    failed: Counter[str] = Counter()
    done: Counter[str] = Counter()
    for case in [only] if only else faults.cases(options.faults, options.seed):
        problem = faults.check(case)
        done[case.fault.kind] += 1
        if problem:
            failed[case.fault.kind] += 1
            print(f"FAILED {case.text}: {problem}\n  make campaign CASE={case.text}", flush=True)
    for kind, count in done.items():
        print(f"{kind:10} {count:5} cases, {failed[kind]} failed")
    print(f"seed {options.seed}: {sum(done.values())} faults, {sum(failed.values())} failed, "
          f"{time.monotonic() - begin:.0f} s")
    return int(bool(failed))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
