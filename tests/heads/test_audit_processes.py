# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""Two processes (gloo) audit as one: the same counts."""

import json

import pytest
from numpy.testing import assert_allclose

from grounded_attention.heads.table import HeadTable
from tests.heads.audit_steps import BATCHES, run_audit, run_rankings
from tests.helpers.two_processes import run_two


@pytest.fixture(scope="module")
def one_process():
    return {batch_size: run_audit(batch_size) for batch_size in BATCHES}


@pytest.fixture(scope="module")
def two_processes(tmp_path_factory):
    output = tmp_path_factory.mktemp("two")
    run_two("tests.heads.audit_steps", output)
    return output


@pytest.mark.parametrize("batch_size", BATCHES)
@pytest.mark.parametrize("rank", [0, 1])
def test_two_processes_count_as_one(one_process, two_processes, batch_size, rank):
    one = one_process[batch_size]
    two = HeadTable.load(two_processes / f"{batch_size}_{rank}")
    assert two.about == one.about | {"processes": 2}
    assert two.counted.keys() == one.counted.keys()
    for kind, groups in one.counted.items():
        assert list(two.counted[kind]) == list(groups)
        for group, counts in groups.items():
            found = two.counted[kind][group]
            assert found.image_ids == counts.image_ids
            for name in ("items", "correct", "baseline", "reachable", "share", "chance"):
                assert_allclose(getattr(found, name), getattr(counts, name), rtol=0, atol=1e-6)


@pytest.mark.parametrize("batch_size", BATCHES)
def test_two_processes_choose_and_box_as_one(two_processes, batch_size):
    """Each process reads only its batches, but chooses heads and scores boxes by the phrases of all."""
    one = json.loads(json.dumps(run_rankings(batch_size)))
    for rank in (0, 1):
        two = json.loads((two_processes / f"{batch_size}_{rank}" / "rankings.json").read_text())
        for ours, theirs in zip(one, two, strict=True):
            for mine, other in zip(ours["chosen"], theirs["chosen"], strict=True):
                assert (mine["layer"], mine["head"]) == (other["layer"], other["head"])
            assert theirs["boxes"] == ours["boxes"]
            assert theirs["centre_size"] == ours["centre_size"]
