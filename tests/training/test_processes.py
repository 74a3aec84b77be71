# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""Two processes (gloo) against one: the same losses, weights and figures on the same global batch."""

import os

import pytest
import torch
from safetensors.torch import load_file

from tests.helpers.project_files import ROOT
from tests.helpers.tiny_trainer import METHODS, assert_same
from tests.helpers.tiny_vgp import tiny_rows, tiny_table
from tests.helpers.two_processes import run_two
from tests.helpers.warm_python import run_python
from tests.training.runs import assert_ran, read_json
from tests.training.train_steps import run_case

SPLITS = ("4:1", "2:2")  # eight rows a step, as with 8:1 in one process
EVALUATIONS = ("evaluate:16", "evaluate:15", "evaluate:1")  # the last leaves one process without an example


@pytest.fixture(scope="module")
def one_process(tmp_path_factory):
    """The same cases in one process."""
    output = tmp_path_factory.mktemp("one")
    for case in (*EVALUATIONS, "direct:8:1:group_by_length", "direct:8:1:mapped"):
        run_case(case, output)
    for method in METHODS:
        run_case(f"{method}:8:1", output)
    return output


@pytest.fixture(scope="module")
def two_processes(tmp_path_factory):
    """Every case of this file, in one launch of two processes."""
    output = tmp_path_factory.mktemp("two")
    cases = [*EVALUATIONS, "direct:4:1:group_by_length", "direct:2:2:group_by_length", "direct:4:1:mapped"]
    for method in METHODS:
        cases += [f"{method}:{sizes}" for sizes in SPLITS]
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
    case = "direct:4:1"
    options = ["--rdzv-backend", "c10d", "--rdzv-endpoint", "127.0.0.1:0", "--nproc_per_node", "2"]
    options += ["-m", "tests.training.train_steps", str(tmp_path), case]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = run_python(TORCHRUN, options, cwd=tmp_path, env=environment)
    assert_ran(done)
    losses = [entry.get("loss") for entry in read_json(tmp_path / f"{case}.json")]
    assert losses == [entry.get("loss") for entry in read_json(two_processes / f"{case}.json")]
    weights = load_file(tmp_path / f"{case}.safetensors")
    assert_same(weights, load_file(two_processes / f"{case}.safetensors"), 0)


def test_the_batches_are_ragged():
    """What the other tests rest on: the halves of a global batch hold unlike numbers of pairs and of gold boxes."""
    rows = list(tiny_rows(tiny_table(8)))
    assert len({len(row["phrase_pairs"]) for row in rows}) > 1
    assert len({sum(len(phrase["boxes"]) for phrase in row["phrases"]) for row in rows}) > 1


def assert_trained_as_one(one_process, large, two_processes, split):
    one = read_json(one_process / f"{large}.json")
    two = read_json(two_processes / f"{split}.json")
    assert len(one) == len(two) == 2
    for expected, found in zip(one, two, strict=True):
        losses = {key: value for key, value in expected.items() if key.startswith("loss")}
        assert len(losses) > 2
        assert {key: found[key] for key in found if key.startswith("loss")} == pytest.approx(losses, abs=1e-5)
    weights = load_file(one_process / f"{large}.safetensors")
    assert_same(weights, load_file(two_processes / f"{split}.safetensors"), 1e-5)


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("sizes", SPLITS)
def test_two_processes_train_as_one(one_process, two_processes, method, sizes):
    assert_trained_as_one(one_process, f"{method}:8:1", two_processes, f"{method}:{sizes}")


@pytest.mark.parametrize("sizes", SPLITS)
def test_batches_of_like_lengths_are_those_of_one_process(one_process, two_processes, sizes):
    large = "direct:8:1:group_by_length"
    assert_trained_as_one(one_process, large, two_processes, f"direct:{sizes}:group_by_length")
    loss = read_json(one_process / f"{large}.json")[0]["loss"]
    other = read_json(one_process / "direct:8:1.json")[0]["loss"]
    assert loss != pytest.approx(other, abs=1e-4), "the first batch is the same: nothing is compared anew"


def test_learning_rates_find_the_weights_of_two_processes(one_process, two_processes):
    assert_trained_as_one(one_process, "direct:8:1:mapped", two_processes, "direct:4:1:mapped")
    name = "vl_bert.embeddings.word_embeddings.weight"
    mapped = load_file(one_process / "direct:8:1:mapped.safetensors")[name]
    plain = load_file(one_process / "direct:8:1.safetensors")[name]
    assert not torch.allclose(mapped, plain, atol=1e-4), "the mapping changed nothing"


@pytest.mark.parametrize("case", EVALUATIONS)
def test_two_processes_measure_as_one(one_process, two_processes, case):
    one = read_json(one_process / f"{case}.json")
    two = read_json(two_processes / f"{case}.json")
    assert two.keys() == one.keys()
    assert two["identification_count"] == int(case.split(":")[1])
    for key, value in one.items():
        assert flat(two[key]) == pytest.approx(flat(value), abs=1e-6), key


def flat(value):
    """The numbers of a figure, in their order."""
    if isinstance(value, dict):
        value = [*value.values()]
    if not isinstance(value, list):
        return [value]
    return [number for part in value for number in flat(part)]
