# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""A study whose recipes are sound, and what stands in the place of its trainings."""

from pathlib import Path

import numpy as np
import torch
import yaml
from safetensors.torch import save_file

from grounded_attention.modeling.configuration_lxmert import LXMERTConfig
from grounded_attention.training.loop.checkpoint import seal
from grounded_attention.training.studies.study_recipe import load_study
from grounded_attention.utils.whole_files import write_json

TWO_STREAMS = LXMERTConfig(hidden_size=4, num_attention_heads=2, l_layers=1, r_layers=1, x_layers=2)
GAIN = {"direct": 0.2, "none": 0.0, "original": 0.0, "continued": 0.05}


# Nothing of what it names is on disk.
STUDY = """
study: table
output_dir: FOLDER/run
seeds: [1, 2]
rows: [original, direct]
data: {data_dir: FOLDER/data, regions: FOLDER/data/regions}
original: {options: {relationship: false}, training: {max_steps: 3, use_cpu: true}}
fine_tuning: {task: vgp, data: {limit: {validation: 8}}, training: {max_steps: 5, use_cpu: true}}
known_rows:
  original: null
  none: {methods: [none]}
  direct: {methods: [direct], supervision: {weight: 3.0}}
  continued: {task: pretraining, options: {relationship: false}, training: {learning_rate: 0.5}}
downstream:
  vqa: {task: vqa, training: {use_cpu: true}}
  refs: {task: referring_expressions, data: {tracks: {found: FOLDER/data/regions}}}
columns:
- {name: VQA, task: vqa, split: validation, score: vqa_accuracy}
- {task: refs, track: found, split: testA, score: expressions_accuracy}
"""


def study_of(tmp_path, *overrides, **sections):
    """The study, loaded from a file in `tmp_path`; its output is `tmp_path/run`."""
    path = tmp_path / "study.yaml"
    (tmp_path / "data/regions").mkdir(parents=True, exist_ok=True)
    content = yaml.safe_load(STUDY.replace("FOLDER", str(tmp_path)))
    path.write_text(yaml.safe_dump({**content, **sections}, sort_keys=False))
    return load_study(path, overrides)


class Experiment:
    """In the place of training: writes what a run leaves behind, with scores that its row and seed decide.

    Runs of the task VGP leave a configuration behind, and figures of two layers with two heads.
    """

    def __init__(self, fails_at=None, error=KeyboardInterrupt):
        self.recipes = []
        self.fails_at = fails_at
        self.error = error

    @property
    def by_name(self):
        return dict(zip(self.names, self.recipes, strict=True))

    @property
    def names(self):
        return [recipe.output_dir.split("/run/")[1] for recipe in self.recipes]

    def __call__(self, recipe):
        name = recipe.output_dir.split("/run/")[1]
        identity = {"task": recipe.task, "methods": recipe.methods}
        write_json(f"{recipe.output_dir}/recipe.json", identity)  # all checks have passed
        if name == self.fails_at:
            raise self.error
        self.recipes.append(recipe)
        directory = Path(recipe.output_dir, recipe.methods[0])
        directory.mkdir(parents=True, exist_ok=True)
        save_file({"weight": torch.ones(2)}, directory / "model.safetensors")
        gain = GAIN.get(name.split("/")[0], 0.0)
        values = (np.random.default_rng(recipe.seed).random(12) / 2 + gain).tolist()
        items = {"example_id": [*map(str, range(12))], "image_id": [*"000111222333"]}
        items |= {"vqa_accuracy": [*values[:-1], None], "found_expressions_accuracy": values}
        for split in ("validation", "testA"):
            write_json(directory / f"items_{split}.json", items)
        figures = {"validation": {"vqa_majority": 0.25}, "testA": {"found_expressions_chance": 0.125}}
        if recipe.task == "vgp":
            TWO_STREAMS.save_pretrained(directory)
            figures = tuned_figures(recipe.seed, gain)
        write_json(directory / "results.json", {"figures": figures, "train_seconds": 10.0 * recipe.seed})
        seal(directory)


def tuned_figures(seed, gain):
    """Figures of a VGP fine-tuning; the best layer and head of validation are not those of test."""
    common = {
        "vgp_accuracy": 0.5 + gain + seed / 100,
        "vgp_majority": 0.25,
        "text_to_region_rollout_by_layer": [0.1, 0.2],
        "text_to_region_chance": 0.125,
        "text_to_region_best_layer": 0.99,
    }
    return {
        "validation": {**common, "text_to_region_by_head": [[0.1, 0.5], [0.2, 0.3]]},
        "test": {**common, "text_to_region_by_head": [[0.2, 0.25 + gain], [0.5, 0.75]]},
    }
