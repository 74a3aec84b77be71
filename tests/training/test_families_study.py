# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""The study of the families (`make families`): equal sizes, and a tiny one from end to end."""

import json

import datasets
import pytest
import torch

from grounded_attention.tasks import TASKS
from grounded_attention.training.experiments.models import make_model, make_processor
from grounded_attention.training.studies.study import run_study
from grounded_attention.training.studies.study_recipe import load_study
from grounded_attention.utils.project import find_recipe
from tests.helpers.tiny_scenes import tiny_scenes

FAMILIES = ("vl_bert", "visualbert", "vilbert", "lxmert")
WIDTHS = {"hidden_size": 16, "intermediate_size": 16, "num_attention_heads": 2}
VISUAL = {"v_hidden_size": 16, "v_intermediate_size": 16, "bi_hidden_size": 16, "v_num_attention_heads": 2}
VISUAL |= {"bi_num_attention_heads": 2}


def models(study):
    return {name.replace("original", "vl_bert"): start.model for name, start in study.starts.items()}


def test_the_families_have_equal_sizes_and_the_same_training(tmp_path):
    scenes = tiny_scenes(tmp_path)
    study = load_study(find_recipe("families_scenes"), [f"original.model.tokenizer={scenes / 'vocab.txt'}"])
    sizes = {}
    head = TASKS["vqa"].head
    for name, model in models(study).items():
        made = make_model(head, model, make_processor(model), answers=[f"answer {n}" for n in range(35)])
        sizes[name] = sum(weight.numel() for weight in made.parameters())
    mean = sum(sizes[name] for name in FAMILIES) / len(FAMILIES)
    assert all(abs(sizes[name] - mean) < 0.1 * mean for name in sizes), sizes
    same = [study.starts[name] for name in FAMILIES[1:]]
    for start in same:
        for field in ("task", "options", "data", "training"):
            assert getattr(start, field) == getattr(study.starts["original"], field), field


def tiny(scenes, output):
    """Overrides that make every cell as small as can be."""
    training = {"max_steps": 1, "per_device_train_batch_size": 4, "per_device_eval_batch_size": 16}
    training |= {"warmup_steps": 0, "logging_steps": 1, "disable_tqdm": True}
    limit = {"train": 16, "validation": 8, "test": 8}
    changes = {"output_dir": str(output), "seeds": 1, "workers": 1, "data.limit": limit, "data.scenes": None}
    changes |= {"data.data_dir": str(scenes), "data.regions": str(scenes / "regions")}
    changes |= {"original.model.tokenizer": str(scenes / "vocab.txt"), "downstream.vqa.options.answers.fewest": 1}
    changes |= {f"original.model.config.{key}": value for key, value in WIDTHS.items()}
    for section in ("original", "fine_tuning", "downstream.vqa"):
        changes |= {f"{section}.training.{key}": value for key, value in training.items()}
        changes |= {f"{section}.data.limit.{split}": count for split, count in limit.items()}
    variants = (f"lxmert_{name}" for name in ("features", "labels", "scratch", "text"))
    for name in ("visualbert", "vilbert", "lxmert", *variants):
        own = {**WIDTHS, **(VISUAL if name == "vilbert" else {})}
        changes |= {f"starts.{name}.model.config.{key}": value for key, value in own.items()}
    return [f"{key}={json.dumps(value)}" for key, value in changes.items()]


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")


def test_a_tiny_study_of_the_families_from_end_to_end(tmp_path):
    rows = ["visualbert_direct", "vilbert_direct", "lxmert_none", "lxmert_direct", "lxmert_text"]
    scenes = tiny_scenes(tmp_path / "scenes")
    changes = [*tiny(scenes, tmp_path / "run"), f"rows={json.dumps(rows)}"]
    run_study(load_study(find_recipe("families_scenes"), changes))
    found = json.loads((tmp_path / "run" / "results.json").read_text())
    assert found["cells"]["finished"] == found["cells"]["all"]
    names = [column["name"] for column in found["columns"]]
    for row in rows[:4]:
        assert list(found["figures"][row]) == names
    assert list(found["figures"]["lxmert_text"]) == list(found["figures"]["vl_bert"]) == ["VQA val"]
    lines = (tmp_path / "run" / "families.md").read_text().splitlines()
    (difference,) = [line for line in lines if line.startswith("| lxmert_direct − lxmert_none |")]
    for name, cell in zip(names, difference.strip("| ").split(" | ")[1:], strict=True):
        direct, none = (found["figures"][row][name]["mean"] for row in ("lxmert_direct", "lxmert_none"))
        assert float(cell.split(" ")[0].replace("−", "-")) == pytest.approx(100 * (direct - none), abs=0.06)


def test_the_start_from_scratch_is_not_trained(tmp_path):
    start = load_study(find_recipe("families_scenes")).starts["lxmert_scratch"]
    assert (start.training["max_steps"], start.training["learning_rate"]) == (1, 0.0)
    weights = [torch.nn.Parameter(torch.ones(2))]
    optimizer = torch.optim.AdamW(weights, lr=start.training["learning_rate"], weight_decay=0.01)
    weights[0].grad = torch.ones(2)
    optimizer.step()
    assert weights[0].tolist() == [1, 1], "weight decay too is a share of the learning rate"
