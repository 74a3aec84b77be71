# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""The study of the families (`make families`): equal sizes, and a tiny one from end to end."""

import datasets
import numpy as np
import pytest
import torch

from grounded_attention.tasks import TASKS
from grounded_attention.training.experiments.models import make_model, make_processor
from grounded_attention.training.studies.study import run_study
from grounded_attention.training.studies.study_recipe import load_study
from grounded_attention.utils.project import find_recipe
from tests.training.runs import results

FAMILIES = ("vl_bert", "visualbert", "vilbert", "lxmert")


def test_the_families_have_equal_sizes_and_the_same_training(scenes):
    starts = load_study(find_recipe("families_scenes"), [f"original.model.tokenizer={scenes / 'vocab.txt'}"]).starts
    starts["vl_bert"] = starts.pop("original")
    sizes = {}
    answers = [*map(str, range(35))]
    for name, start in starts.items():
        made = make_model(TASKS["vqa"].head, start.model, make_processor(start.model), answers=answers)
        sizes[name] = sum(weight.numel() for weight in made.parameters())
    mean = np.mean([sizes[name] for name in FAMILIES])
    assert [*sizes.values()] == pytest.approx([mean] * len(sizes), rel=0.1)
    for name in FAMILIES:
        for field in ("task", "options", "data", "training"):
            assert getattr(starts[name], field) == getattr(starts["vl_bert"], field), field


# Overrides that make every cell as small as can be.
SMALL = """
output_dir=FOLDER/run seeds=1 workers=1
data.scenes=null data.data_dir=SCENES data.regions=SCENES/regions
data.limit.train=16 data.limit.validation=8 data.limit.test=8
original.model.tokenizer=SCENES/vocab.txt downstream.vqa.options.answers.fewest=1
original.model.config.hidden_size=16 original.model.config.intermediate_size=16
original.model.config.num_attention_heads=2
starts.vilbert.model.config.v_hidden_size=16 starts.vilbert.model.config.v_intermediate_size=16
starts.vilbert.model.config.bi_hidden_size=16 starts.vilbert.model.config.v_num_attention_heads=2
starts.vilbert.model.config.bi_num_attention_heads=2
"""
SHORT = """
training.max_steps=1 training.per_device_train_batch_size=4 training.per_device_eval_batch_size=16
training.warmup_steps=0 training.logging_steps=1 training.disable_tqdm=true
data.limit.train=16 data.limit.validation=8 data.limit.test=8
"""
NARROW = ["hidden_size=16", "intermediate_size=16", "num_attention_heads=2"]
VARIANTS = ("lxmert_features", "lxmert_labels", "lxmert_scratch", "lxmert_text")


def tiny(scenes, folder):
    changes = SMALL.replace("SCENES", str(scenes)).replace("FOLDER", str(folder)).split()
    for section in ("original", "fine_tuning", "downstream.vqa"):
        changes += [f"{section}.{change}" for change in SHORT.split()]
    for name in (*FAMILIES[1:], *VARIANTS):
        changes += [f"starts.{name}.model.config.{size}" for size in NARROW]
    return changes


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")


def test_a_tiny_study_of_the_families_from_end_to_end(tmp_path, scenes):
    rows = ["visualbert_direct", "vilbert_direct", "lxmert_none", "lxmert_direct", "lxmert_text"]
    run_study(load_study(find_recipe("families_scenes"), [*tiny(scenes, tmp_path), f"rows={rows}"]))
    found = results(tmp_path / "run")
    assert found["cells"]["finished"] == found["cells"]["all"]
    names = [column["name"] for column in found["columns"]]
    for row in rows[:4]:
        assert list(found["figures"][row]) == names
    assert list(found["figures"]["lxmert_text"]) == list(found["figures"]["vl_bert"]) == ["VQA val"]
    lines = (tmp_path / "run/families.md").read_text().splitlines()
    (difference,) = [line for line in lines if line.startswith("| lxmert_direct − lxmert_none |")]
    direct = found["figures"]["lxmert_direct"]
    none = found["figures"]["lxmert_none"]
    for name, cell in zip(names, difference.strip("| ").split(" | ")[1:], strict=True):
        expected = 100 * (direct[name]["mean"] - none[name]["mean"])
        assert float(cell.split(" ")[0].replace("−", "-")) == pytest.approx(expected, abs=0.06)


def test_the_start_from_scratch_is_not_trained():
    start = load_study(find_recipe("families_scenes")).starts["lxmert_scratch"]
    assert (start.training["max_steps"], start.training["learning_rate"]) == (1, 0.0)
    weight = torch.ones(2, requires_grad=True)
    weight.grad = torch.ones(2)
    torch.optim.AdamW([weight], lr=start.training["learning_rate"], weight_decay=0.01).step()
    assert weight.tolist() == [1, 1], "weight decay too is a share of the learning rate"
