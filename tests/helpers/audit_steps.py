# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""Audits of the tiny model with several batch sizes; a test calls it, or two processes run it.

The argument is OUTPUT; each process writes its results to `OUTPUT/<batch size>_<rank>`.
"""

import dataclasses
import sys
from pathlib import Path

from accelerate import PartialState

from grounded_attention.heads.measure import audit
from grounded_attention.heads.table import AuditResult
from grounded_attention.utils.process_group import leave_group
from tests.helpers.tiny_audit import make_examples, make_regions, processor_of, vl_bert

# With the largest batch one process has nothing to do.
BATCHES = (3, 14)


def run_audit(batch_size: int) -> AuditResult:
    regions, model = make_regions(), vl_bert()
    examples = make_examples(regions)
    return audit(
        model, processor_of(model), examples, regions, relations=examples[::3], batch_size=batch_size, progress=False
    )


if __name__ == "__main__":
    for size in BATCHES:
        result, state = run_audit(size), PartialState()
        result = dataclasses.replace(result, about=result.about | {"processes": state.num_processes})
        result.save(Path(sys.argv[1]) / f"{size}_{state.process_index}")
    leave_group()
