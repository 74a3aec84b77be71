# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""Two processes (gloo) against one: the same losses, weights and figures on the same global batch."""

import json
import os
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from tests.helpers.tiny_trainer import METHODS, assert_same
from tests.helpers.tiny_vgp import tiny_rows, tiny_table
from tests.helpers.two_processes import run_two
from tests.helpers.warm_python import run_python
from tests.training.train_steps import run_case

ROOT = Path(__file__).resolve().parents[2]
# eight rows a step, whatever the processes
LARGE = "{}:8:1"
SPLIT = "{}:4:1"
ACCUMULATED = "{}:2:2"
GROUPED = "{}:group_by_length"
MAPPED = "{}:mapped"
EVALUATIONS = ("evaluate:16", "evaluate:15", "evaluate:1")  # the last leaves one process without an example


@pytest.fixture(scope="module")
def two_processes(tmp_path_factory):
    """Every case of this file, in one launch of two processes."""
    output = tmp_path_factory.mktemp("two")
    cases = [case.format(m) for case in (SPLIT, ACCUMULATED) for m in METHODS]
    cases += [GROUPED.format(case.format("direct")) for case in (SPLIT, ACCUMULATED)] + list(EVALUATIONS)
    cases += [MAPPED.format(SPLIT.format("direct"))]
    run_two("tests.training.train_steps", output, *cases)
    return output


# What `torchrun --options -m MODULE ARGUMENTS` does; its processes are forks, not new ones that import all again.
TORCHRUN = """
import runpy, sys
from torch.distributed.launcher import elastic_launch
from torch.distributed.run import config_from_args, parse_args
config, _, [*_, module, folder, case] = config_from_args(parse_args(sys.argv[1:]))
config.start_method = "fork"

def start(*arguments):
    sys.argv[1:] = arguments
    runpy.run_module(module, run_name="__main__")

elastic_launch(config, start)(folder, case)
"""


def test_torchrun_starts_the_same(two_processes, tmp_path):
    case = SPLIT.format("direct")
    options = ["--rdzv-backend", "c10d", "--rdzv-endpoint", "127.0.0.1:0", "--nproc_per_node", "2"]
    options += ["-m", "tests.training.train_steps", str(tmp_path), case]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = run_python(TORCHRUN, options, cwd=tmp_path, env=environment)
    assert done.returncode == 0, done.stderr[-4000:]
    one, two = (json.loads((folder / f"{case}.json").read_text()) for folder in (tmp_path, two_processes))
    assert [entry.get("loss") for entry in one] == [entry.get("loss") for entry in two]
    assert_same(*(load_file(folder / f"{case}.safetensors") for folder in (tmp_path, two_processes)), 0)


def test_the_batches_are_ragged():
    """What the other tests rest on: the halves of a global batch hold unlike numbers of pairs and of gold boxes."""
    rows = list(tiny_rows(tiny_table(8)))
    for count in (lambda row: len(row["phrase_pairs"]), lambda row: sum(len(p["boxes"]) for p in row["phrases"])):
        assert len({count(row) for row in rows}) > 1


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("case", [SPLIT, ACCUMULATED], ids=["one_batch", "accumulated"])
def test_two_processes_train_as_one(two_processes, tmp_path, method, case):
    assert_trained_as_one(LARGE.format(method), case.format(method), two_processes, tmp_path)


@pytest.mark.parametrize("case", [SPLIT, ACCUMULATED], ids=["one_batch", "accumulated"])
def test_batches_of_like_lengths_are_those_of_one_process(two_processes, tmp_path, case):
    large, split = (GROUPED.format(each.format("direct")) for each in (LARGE, case))
    assert_trained_as_one(large, split, two_processes, tmp_path)
    any_lengths = LARGE.format("direct")
    run_case(any_lengths, tmp_path)
    losses = [json.loads((tmp_path / f"{name}.json").read_text())[0]["loss"] for name in (large, any_lengths)]
    assert losses[0] != pytest.approx(losses[1], abs=1e-4), "the first batch is the same: nothing is compared anew"


def test_learning_rates_find_the_weights_of_two_processes(two_processes, tmp_path):
    large, split = (MAPPED.format(each.format("direct")) for each in (LARGE, SPLIT))
    assert_trained_as_one(large, split, two_processes, tmp_path)
    run_case(LARGE.format("direct"), tmp_path)
    mapped, plain = (load_file(tmp_path / f"{case}.safetensors") for case in (large, LARGE.format("direct")))
    name = "vl_bert.embeddings.word_embeddings.weight"
    assert not torch.allclose(mapped[name], plain[name], atol=1e-4), "the mapping changed nothing"


def assert_trained_as_one(large, split, two_processes, tmp_path):
    run_case(large, tmp_path)
    one, two = (json.loads(path.read_text()) for path in (tmp_path / f"{large}.json", two_processes / f"{split}.json"))
    assert len(one) == len(two) == 2
    for expected, found in zip(one, two, strict=True):
        losses = {key for key in expected if key.startswith("loss")}
        assert losses == {key for key in found if key.startswith("loss")}
        assert len(losses) > 2
        for key in losses:
            assert found[key] == pytest.approx(expected[key], abs=1e-5), key
    assert_same(load_file(tmp_path / f"{large}.safetensors"), load_file(two_processes / f"{split}.safetensors"), 1e-5)


@pytest.mark.parametrize("case", EVALUATIONS)
def test_two_processes_measure_as_one(two_processes, tmp_path, case):
    run_case(case, tmp_path)
    one, two = (json.loads((directory / f"{case}.json").read_text()) for directory in (tmp_path, two_processes))
    assert two.keys() == one.keys()
    assert two["identification_count"] == int(case.split(":")[1])
    for key, value in one.items():
        assert _flat(two[key]) == pytest.approx(_flat(value), abs=1e-6), key


def _flat(value):
    if isinstance(value, dict):
        parts = value.values()
    else:
        parts = value if isinstance(value, list) else None
    if parts is None:
        return [value]
    return [number for part in parts for number in _flat(part)]
