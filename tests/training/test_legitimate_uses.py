# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""What users rightly do, and what was refused once: recipes from pipes, with anchors and `~`."""

import json
import os
from pathlib import Path

from PIL import Image

from grounded_attention.dataset_scripts.rows import grounded_rows
from grounded_attention.training.recipes.recipe import load_recipe, read_recipe
from grounded_attention.utils.schema import unknown_key

RECIPE = """
x-sizes: &sizes {hidden_size: 32, intermediate_size: &wide 64}
extends: scenes_vgp
data: {data_dir: ~/scenes, regions: [~/scenes/a, /b]}
model: {config: {<<: *sizes, visual_size: *wide}}
"""


def test_a_recipe_has_anchors_below_a_key_of_its_own_and_paths_from_home(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    path = tmp_path / "recipe.yaml"
    path.write_text(RECIPE)
    recipe = load_recipe(path, ["output_dir=~/runs"])
    assert recipe.data.data_dir == f"{tmp_path}/scenes" and recipe.data.regions == [f"{tmp_path}/scenes/a", "/b"]
    assert recipe.output_dir == f"{tmp_path}/runs"
    assert [recipe.model.config[key] for key in ("hidden_size", "intermediate_size", "visual_size")] == [32, 64, 64]


def test_a_recipe_comes_from_a_process_of_the_shell():
    """`train <(cat recipe.yaml)`, which the command reads twice."""
    reader, writer = os.pipe()
    os.write(writer, RECIPE.encode())
    os.close(writer)
    path = Path(f"/dev/fd/{reader}")
    assert read_recipe(path)["model"]["config"]["visual_size"] == 64
    assert load_recipe(path).task == "vgp"
    os.close(reader)


def test_a_row_without_a_picture_is_text_alone_and_counted(tmp_path):
    said = [{"from": "human", "value": "hi"}, {"from": "gpt", "value": "hello"}]
    asked = [
        {"from": "human", "value": "<image>\nwhere?"},
        {"from": "gpt", "value": "The dog is at [0.1, 0.2, 0.5, 0.6]."},
    ]
    records = [{"id": "1", "image": "", "conversations": said}, {"id": "2", "image": "a.png", "conversations": asked}]
    (tmp_path / "rows.json").write_text(json.dumps(records))
    Image.new("RGB", (50, 40)).save(tmp_path / "a.png")
    rows = grounded_rows(tmp_path / "rows.json")
    first, second = list(rows)
    assert "image" not in first and not first["phrases"] and second["image"] is not None
    assert [count for reason, count in rows.report.dropped.items() if "text alone" in reason] == [1]


def test_an_unknown_key_is_told_the_nearest_few():
    known = ["r", "lora_alpha", "rank_pattern", *(f"option_{number}" for number in range(90))]
    found = unknown_key("model.adapter.lora", "rank", known)
    assert " r," in found and len(found) < 200
