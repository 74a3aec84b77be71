# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""A study whose recipes are sound, and what stands in the place of its trainings."""

import json
from pathlib import Path

import numpy as np
import torch
import yaml
from safetensors.torch import save_file

from grounded_attention.training.loop.checkpoint import seal
from grounded_attention.training.studies.study_recipe import load_study

GAIN = {"direct": 0.2, "none": 0.0, "original": 0.0, "continued": 0.05}


def content(output, **sections):
    """A study whose recipes are sound, though nothing of what they name is on disk."""
    limit = {"validation": 8}
    return {
        "study": "table",
        "output_dir": str(output),
        "seeds": [1, 2],
        "rows": ["original", "direct"],
        "data": {"data_dir": "absent", "regions": "absent/regions"},
        "original": {"options": {"relationship": False}, "training": {"max_steps": 3, "use_cpu": True}},
        "fine_tuning": {"task": "vgp", "data": {"limit": limit}, "training": {"max_steps": 5, "use_cpu": True}},
        "known_rows": {
            "original": None,
            "none": {"methods": ["none"]},
            "direct": {"methods": ["direct"], "supervision": {"weight": 3.0}},
            "continued": {
                "task": "pretraining",
                "options": {"relationship": False},
                "training": {"learning_rate": 0.5},
            },
        },
        "downstream": {
            "vqa": {"task": "vqa", "training": {"use_cpu": True}},
            "refs": {"task": "referring_expressions", "data": {"tracks": {"found": "absent/regions"}}},
        },
        "columns": [
            {"name": "VQA", "task": "vqa", "split": "validation", "score": "vqa_accuracy"},
            {"task": "refs", "track": "found", "split": "testA", "score": "expressions_accuracy"},
        ],
        **sections,
    }


def study_of(tmp_path, *overrides, **sections):
    """The study, loaded from a file in `tmp_path`; its output is `tmp_path/run`."""
    path = tmp_path / "study.yaml"
    (tmp_path / "data" / "regions").mkdir(parents=True, exist_ok=True)
    text = yaml.safe_dump(content(tmp_path / "run", **sections), sort_keys=False)
    path.write_text(text.replace("absent", str(tmp_path / "data")))
    return load_study(path, overrides)


class Experiment:
    """In the place of training: writes what a run leaves behind, with scores that its row and seed decide.

    With a `config`, runs of the task VGP leave it behind, and figures of two layers with two heads.
    """

    def __init__(self, fails_at=None, config=None, error=KeyboardInterrupt):
        self.recipes = []
        self.fails_at = fails_at
        self.config = config
        self.error = error

    @property
    def names(self):
        return [recipe.output_dir.split("/run/")[1] for recipe in self.recipes]

    def __call__(self, recipe):
        name = recipe.output_dir.split("/run/")[1]
        identity = {"task": recipe.task, "methods": recipe.methods}
        (Path(recipe.output_dir) / "recipe.json").write_text(json.dumps(identity))  # all checks have passed
        if name == self.fails_at:
            raise self.error
        self.recipes.append(recipe)
        directory = Path(recipe.output_dir) / recipe.methods[0]
        directory.mkdir(parents=True, exist_ok=True)
        save_file({"weight": torch.ones(2)}, directory / "model.safetensors")
        rng = np.random.default_rng(recipe.seed)
        row = name.split("/")[0]
        values = (rng.random(12) / 2 + GAIN.get(row, 0.0)).tolist()
        ids = {"example_id": [str(i) for i in range(12)], "image_id": [str(i // 3) for i in range(12)]}
        items = {**ids, "vqa_accuracy": [*values[:-1], None], "found_expressions_accuracy": values}
        for split in ("validation", "testA"):
            (directory / f"items_{split}.json").write_text(json.dumps(items))
        figures = {"validation": {"vqa_majority": 0.25}, "testA": {"found_expressions_chance": 0.125}}
        if self.config is not None and recipe.task == "vgp":
            self.config.save_pretrained(directory)
            figures = tuned_figures(recipe.seed, GAIN.get(row, 0.0))
        content = {"figures": figures, "train_seconds": 10.0 * recipe.seed}
        (directory / "results.json").write_text(json.dumps(content))
        seal(directory)


def tuned_figures(seed, gain):
    """Figures of a VGP fine-tuning; the best layer and head of validation are not those of test."""
    by_head = {"validation": [[0.1, 0.5], [0.2, 0.3]], "test": [[0.2, 0.25 + gain], [0.5, 0.75]]}
    return {
        split: {
            "vgp_accuracy": 0.5 + gain + seed / 100,
            "vgp_majority": 0.25,
            "text_to_region_by_head": values,
            "text_to_region_rollout_by_layer": [0.1, 0.2],
            "text_to_region_chance": 0.125,
            "text_to_region_best_layer": 0.99,
        }
        for split, values in by_head.items()
    }


def results(tmp_path):
    """The results of the study in `tmp_path`."""
    return json.loads((tmp_path / "run" / "results.json").read_text())
