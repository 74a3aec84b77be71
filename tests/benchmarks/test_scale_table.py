# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""The tables of docs/scale.md are those of the script; its figures agree with sums made by hand."""

import re
import shlex
from pathlib import Path

import pytest
from accelerate.commands.launch import launch_command_parser
from torch.distributed.run import get_args_parser

from benchmarks import pretraining_step, scale_table
from grounded_attention.commands import extract_regions
from grounded_attention.modeling import VLBertConfig, VLBertForPreTraining
from grounded_attention.training.recipes.recipe import load_recipe

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "scale.md"


@pytest.mark.parametrize("name", ["sizes", "training", "extraction"])
def test_the_page_has_the_tables_of_the_script(name):
    shown = re.search(rf"<!-- table: {name} -->\n((?:\|.*\n)+)", PAGE.read_text(encoding="utf-8"))
    assert shown and shown[1].rstrip("\n") == scale_table.tables()[name]


def test_the_text_of_the_page_has_the_measured_figures():
    text = PAGE.read_text(encoding="utf-8")
    for work in (scale_table.STEP, scale_table.FEATURES):
        low, high = (f"{rate:.3g}" if rate > 1 else f"{rate:.3f}" for rate in work.per_second)
        assert f"{work.operations / 1e9:.4g} GFLOP" in text and f"{low} to {high}" in text
    assert all(f"{share:.0%}"[:-1] in text for share in scale_table.SHARES)


def test_cc3m_has_the_size_of_the_paper():
    row = next(line for line in scale_table.tables()["sizes"].splitlines() if "CC3M" in line)
    assert 3_318_333 * 36 * 2048 * 2 == 489_308_110_848 and "| 489 GB |" in row


@pytest.mark.parametrize(
    ("rates", "expected"),
    [
        ((100, 100), "1.7 min"),
        ((2.5, 5), "0.56 to 1.1 h"),
        ((0.01, 0.02), "5.8 to 12 days"),
    ],
)
def test_durations(rates, expected):
    assert scale_table.duration(10_000, rates) == expected


def test_measured_samples_replace_the_estimate():
    training, estimated = (scale_table.tables(rate)["training"].splitlines() for rate in (5000.0, None))
    assert "1 GPU, measured" in training[0] and "1 H100, *estimated*" in estimated[0]
    assert "| 1.8 h |" in training[4]  # 33,183,330 pairs
    fast = 0.4 * 989e12 / scale_table.STEP.operations
    assert f"{33_183_330 / fast / 3600:.2f} to " in estimated[4]
    assert scale_table.main(["--gpu-samples", "0"]) == 2


def counted(layers):
    config = VLBertConfig(num_hidden_layers=layers, **pretraining_step.TINY)
    model = VLBertForPreTraining(config)
    [batch] = pretraining_step.make_batches(pretraining_step.make_examples(4, config, (9, 9), (5, 5)), 4, False, "cpu")
    return scale_table.measure(lambda: model(**batch).loss.backward(), 4)


def test_operations_are_counted_for_one_sample():
    """One layer more adds the products of its 15 columns, forward and twice as many backward."""
    width, inner, columns = 48, 96, 9 + 5 + 1
    layer = 2 * columns * (4 * width**2 + 2 * width * inner) + 4 * columns**2 * width
    one, two = counted(1), counted(2)
    assert two.operations - one.operations == pytest.approx(3 * layer, rel=0.03)
    assert 0 < one.per_second[0] <= one.per_second[1]


def test_a_step_of_base_width_takes_what_its_layers_do():
    """12 layers of width 768, one sequence of 15 tokens, 36 regions and END: nine tenths of the counted operations."""
    width, columns = 768, 15 + 36 + 1
    layers = 12 * (2 * columns * 12 * width**2 + 4 * columns**2 * width)
    assert 0.85 < 3 * layers / scale_table.STEP.operations < 0.95


def commands(program):
    text = "".join(re.findall(r"```bash\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)).replace("\\\n", "")
    return [shlex.split(line)[1:] for line in text.splitlines() if line.startswith(program)]


def test_launchers_know_the_options_of_the_page():
    extraction, training = (launch_command_parser().parse_args(words[1:]) for words in commands("accelerate"))
    [on_cpus] = (get_args_parser().parse_args(words) for words in commands("torchrun"))
    for given in (extraction, on_cpus):
        assert given.module and given.training_script == "grounded_attention.commands.extract_regions"
        options = extract_regions.build_parser().parse_args(given.training_script_args)
        assert str(options.output) == "/shared/regions"
    assert (training.num_machines, training.num_processes, training.training_script) == (2, 16, "train.py")
    recipe = load_recipe(ROOT / training.training_script_args[0], training.training_script_args[1:])
    assert recipe.training["per_device_train_batch_size"] * training.num_processes == 256
