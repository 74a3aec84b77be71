# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""Audits and rankings of tiny models with several batch sizes; a test calls them, or two processes run them.

The argument is OUTPUT; each process writes its results to `OUTPUT/<batch size>_<rank>`.
"""

import dataclasses
import json
import sys
from pathlib import Path

from accelerate import PartialState

from grounded_attention.heads.measure import audit
from grounded_attention.heads.ranking import rank_heads
from grounded_attention.utils.processes import leave_group
from tests.helpers.tiny_audit import make_examples, make_regions, processor_of, vl_bert
from tests.helpers.tiny_vlm_examples import examples as token_examples
from tests.helpers.tiny_vlm_examples import pictures
from tests.helpers.tiny_vlm_models import make_pair

# With the largest batch one process has nothing to do.
BATCHES = (3, 14)


def run_audit(batch_size):
    regions = make_regions()
    model = vl_bert()
    examples = make_examples(regions)
    return audit(
        model, processor_of(model), examples, regions, relations=examples[::3], batch_size=batch_size, progress=False
    )


def run_rankings(batch_size):
    """The content of `heads.json` of a model that reads regions, and of a vision-language model."""
    regions = make_regions()
    model = vl_bert()
    ways = {"count": 2, "ablate": 0, "batch_size": batch_size}
    reader = rank_heads(model, processor_of(model), make_examples(regions), {}, regions=regions, words="last", **ways)
    tokens = rank_heads(*make_pair("llava"), token_examples(6), pictures(6), rank="localization", **ways)
    return [reader.to_dict(), tokens.to_dict()]


if __name__ == "__main__":
    for size in BATCHES:
        result = run_audit(size)
        state = PartialState()
        result = dataclasses.replace(result, about=result.about | {"processes": state.num_processes})
        folder = result.save(Path(sys.argv[1]) / f"{size}_{state.process_index}")
        (folder / "rankings.json").write_text(json.dumps(run_rankings(size)))
    leave_group()
