# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""Q→A, QA→R and Q→AR from two runs of the task vcr, one with data.options.mode=answer and one with mode=rationale.

python -m tasks.join_vcr runs/vcr/none/items_validation.json runs/vcr_rationale/none/items_validation.json
"""

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path

from tasks.vcr import join_runs


def main(arguments: Sequence[str] | None = None) -> int:
    """The command; returns its exit status: 0, or 2 after an error in one line on standard error."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("answers", type=Path, help="items of the run that chose answers")
    parser.add_argument("rationales", type=Path, help="items of the run that chose rationales")
    options = parser.parse_args(arguments)
    try:
        items = [json.loads(path.read_text(encoding="utf-8")) for path in (options.answers, options.rationales)]
        figures = join_runs(*items)
    except (OSError, ValueError, KeyError) as error:
        print(f"error: {options.answers}, {options.rationales}: {error}", file=sys.stderr)
        return 2
    print(json.dumps(figures, indent=1))
    return 0


if __name__ == "__main__":
    sys.exit(main())
