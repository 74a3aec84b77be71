# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""Two processes (torchrun, gloo) audit as one: the same counts. Started by torchrun, this file is what they run."""

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from grounded_attention.analysis.audit.result import AuditResult
from grounded_attention.analysis.audit.run import audit
from tests.helpers.tiny_audit import make_examples, make_regions, processor_of, vl_bert

ROOT = Path(__file__).resolve().parents[2]
# With the largest batch one process has nothing to do.
BATCHES = (3, 14)


def run_audit(batch_size: int) -> AuditResult:
    regions, model = make_regions(), vl_bert()
    examples = make_examples(regions)
    return audit(
        model, processor_of(model), examples, regions, relations=examples[::3], batch_size=batch_size, progress=False
    )


@pytest.fixture(scope="module")
def two_processes(tmp_path_factory):
    output = tmp_path_factory.mktemp("two")
    launch = ["-m", "torch.distributed.run", "--rdzv-backend", "c10d", "--rdzv-endpoint", "127.0.0.1:0"]
    launch += ["--nproc_per_node", "2", str(Path(__file__)), str(output)]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    done = subprocess.run([sys.executable, *launch], env=environment, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr[-4000:]
    return output


@pytest.mark.parametrize("batch_size", BATCHES)
@pytest.mark.parametrize("rank", [0, 1])
def test_two_processes_count_as_one(two_processes, batch_size, rank):
    one = run_audit(batch_size)
    two = AuditResult.load(two_processes / f"{batch_size}_{rank}")
    assert two.about == one.about | {"processes": 2}
    assert two.counted.keys() == one.counted.keys()
    for kind, groups in one.counted.items():
        assert list(two.counted[kind]) == list(groups)
        for group, counts in groups.items():
            found = two.counted[kind][group]
            assert found.image_ids == counts.image_ids
            for name in ("items", "correct", "baseline", "reachable"):
                np.testing.assert_array_equal(getattr(found, name), getattr(counts, name))
            for name in ("share", "chance"):
                np.testing.assert_allclose(getattr(found, name), getattr(counts, name), atol=1e-6)


if __name__ == "__main__":
    import dataclasses

    from accelerate import PartialState

    for size in BATCHES:
        result, state = run_audit(size), PartialState()
        result = dataclasses.replace(result, about=result.about | {"processes": state.num_processes})
        result.save(Path(sys.argv[1]) / f"{size}_{state.process_index}")
    PartialState().destroy_process_group()
