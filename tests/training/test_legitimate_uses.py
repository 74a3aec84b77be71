# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""What users rightly do, and what was refused once, from recipes with anchors to machines that lack something."""

import errno
import fcntl
import io
import multiprocessing
import os
import subprocess
import sys
from pathlib import Path

import pytest
from PIL import Image
from transformers import AutoConfig
from transformers.models.auto.modeling_auto import MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES

from grounded_attention.commands.command_line import explain_cache
from grounded_attention.commands.main import main
from grounded_attention.dataset_scripts.builders import BUILDERS
from grounded_attention.dataset_scripts.rows.reader import grounded_rows
from grounded_attention.processing.image_tokens import IMAGE_TOKEN_FAMILIES
from grounded_attention.training.experiments.arguments import training_arguments
from grounded_attention.training.recipes.model_family import check_sizes
from grounded_attention.training.recipes.recipe import RecipeError, load_recipe, read_recipe
from grounded_attention.utils.processes import shares_memory
from grounded_attention.utils.schema import unknown_key
from tests.helpers.tiny_trainer import make_trainer

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
    assert recipe.data.data_dir == f"{tmp_path}/scenes"
    assert recipe.data.regions == [f"{tmp_path}/scenes/a", "/b"]
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


def test_the_usual_sizes_of_every_family_are_within_bounds():
    """Mistral Small's theta of RoPE is a thousand million, Qwen4's hashed n-grams are twenty million."""
    known = IMAGE_TOKEN_FAMILIES.keys() & MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES.keys()
    for model_type in known:
        check_sizes(AutoConfig.for_model(model_type).to_dict(), f"{model_type}: ")
    assert "mistral3" in known
    check_sizes({"rope_theta": 1000000000}, "")
    with pytest.raises(RecipeError, match="rope_theta is "):
        check_sizes({"rope_theta": 1e13}, "")


ROWS = """
[{"id": "1", "image": "",
  "conversations": [{"from": "human", "value": "hi"}, {"from": "gpt", "value": "hello"}]},
 {"id": "2", "image": "a.png",
  "conversations": [{"from": "human", "value": "<image>\\nWhere is the dog?"},
                    {"from": "gpt", "value": "[0.1, 0.2, 0.5, 0.6]"}]}]
"""


def test_a_row_without_a_picture_is_text_alone_and_counted(tmp_path):
    (tmp_path / "rows.json").write_text(ROWS)
    Image.new("RGB", (50, 40)).save(tmp_path / "a.png")
    rows = grounded_rows(tmp_path / "rows.json")
    first, second = list(rows)
    assert "image" not in first
    assert not first["phrases"]
    assert second["image"] is not None
    assert [count for reason, count in rows.report.dropped.items() if "text alone" in reason] == [1]


def test_an_unknown_key_is_told_the_nearest_few():
    known = ["alpha", "beta", *(f"option_{number}" for number in range(90))]
    found = unknown_key("model.adapter.", "zzz", known)
    assert len(found) < 250
    assert "80 more" in found


def test_a_machine_without_shared_memory_trains_in_one_process(tmp_path, monkeypatch, capsys):
    """A read-only /dev/shm."""

    def refuse(*_):
        raise OSError(errno.EROFS, os.strerror(errno.EROFS))

    monkeypatch.setattr(multiprocessing, "Lock", refuse)
    shares_memory.cache_clear()
    (tmp_path / "recipe.yaml").write_text("extends: scenes_vgp\nworkers: 4\ntraining: {dataloader_num_workers: 2}\n")
    try:
        recipe = load_recipe(tmp_path / "recipe.yaml")
        trainer = make_trainer(tmp_path, max_steps=1)
        trainer.train()
        assert not trainer.data_collator._epoch.is_shared()
        assert recipe.workers == 1
        assert training_arguments(recipe, tmp_path).dataloader_num_workers == 0
    finally:
        shares_memory.cache_clear()
    assert capsys.readouterr().err.count("share memory") == 1


def test_caches_that_cannot_be_written_are_named_with_the_variable(tmp_path, monkeypatch):
    monkeypatch.delenv("HF_HOME", raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    error = OSError(errno.EROFS, os.strerror(errno.EROFS), str(tmp_path / ".cache"))
    found = RecipeError("data.options: ...")
    found.__cause__ = error
    assert f"{tmp_path}/.cache" in explain_cache(found)
    assert "HF_HOME" in explain_cache(found)
    error.filename = str(tmp_path / "output")
    assert explain_cache(found) is None
    error.__context__ = found  # a circle, as `datasets` makes them
    assert explain_cache(found) is None


@pytest.mark.parametrize("number", [errno.ENOLCK, errno.EOPNOTSUPP])
def test_a_cache_without_locks_ends_with_one_line(tmp_path, monkeypatch, number):
    def refuse(*_):
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(fcntl, "flock", refuse)
    with pytest.raises(ValueError, match=f"{tmp_path}.*HF_HOME"):
        BUILDERS["vgp"](data_dir=str(tmp_path), cache_dir=str(tmp_path))


def test_names_are_read_under_a_locale_that_is_forced_to_ascii(tmp_path):
    (tmp_path / "größe.yaml").write_text("task: vgp\nsede: 1\n")
    (tmp_path / "recipe.yaml").write_text("extends: größe.yaml\n", encoding="utf-8")
    forced = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
    command = [sys.executable, "-m", "grounded_attention.commands.main", "train", str(tmp_path / "recipe.yaml")]
    done = subprocess.run(command, env={**os.environ, **forced}, capture_output=True, text=True)
    assert done.returncode == 2
    assert "'sede'; did you mean 'seed'?" in done.stderr


def test_what_an_encoding_lacks_is_printed_in_another_way(monkeypatch):
    stream = io.TextIOWrapper(io.BytesIO(), encoding="latin-1")
    monkeypatch.setattr(sys, "stdout", stream)
    assert main(["--version"]) == 0
    print("α ± 1", flush=True)
    assert stream.buffer.getvalue().endswith(b"\\u03b1 \xb1 1\n")


@pytest.mark.parametrize("given", [["data", "build", "vgp", "--output", "out", "--data-dir"], ["train"]])
def test_a_link_to_itself_is_one_line(given, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "loop").symlink_to(tmp_path / "loop")
    assert main([*given, str(tmp_path / "loop")]) == 2
    assert str(tmp_path / "loop") in capsys.readouterr().err.splitlines()[-1]
