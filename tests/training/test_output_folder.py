# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""`overwrite=true` deletes only what a run wrote, and no run writes through a symbolic link or outside its folder."""

import json
from dataclasses import replace
from types import SimpleNamespace

import pytest
from datasets import Dataset

from grounded_attention.training.experiments.output import check_output, identity, open_output
from grounded_attention.training.experiments.report import _to_show
from grounded_attention.training.recipes.recipe import Data, Recipe, RecipeError
from grounded_attention.utils.safe_paths import path_below
from tests.training.runs import read_json

WRITTEN = ("results.json", "table.md", "loss_curves.png", "none/model.safetensors", "start/config.json", "log.txt")


def files_below(folder):
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.fixture
def recipe(tmp_path):
    return Recipe(output_dir=str(tmp_path / "run"), methods=["none"])


@pytest.fixture
def earlier(tmp_path, recipe):
    """A folder with an earlier run."""
    for name in WRITTEN:
        path = tmp_path / "run" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(name)
    (tmp_path / "run/recipe.json").write_text(json.dumps(identity(recipe)))
    return tmp_path / "run"


@pytest.mark.parametrize("folder", ["run", "linked"])
def test_overwrite_deletes_an_earlier_run(tmp_path, earlier, recipe, folder):
    """The output folder itself may be a link."""
    (tmp_path / "linked").symlink_to(earlier)
    recipe = replace(recipe, output_dir=str(tmp_path / folder), overwrite=True, seed=3)
    check_output(recipe)
    open_output(recipe)
    assert list(files_below(earlier)) == ["recipe.json"]
    assert read_json(earlier / "recipe.json")["seed"] == 3


@pytest.mark.parametrize("other", ["thesis.tex", "photos/dog.jpg", "none.txt"])
def test_overwrite_leaves_what_is_beside_a_run(earlier, recipe, other):
    (earlier / other).parent.mkdir(parents=True, exist_ok=True)
    (earlier / other).write_text("years of work")
    open_output(replace(recipe, overwrite=True))
    assert files_below(earlier).keys() == {"recipe.json", other}


@pytest.mark.parametrize("content", [None, "{}", "[]", '{"task": "vgp"}', '{"title": "soup", "methods": "boil"}'])
def test_overwrite_refuses_a_folder_that_no_run_wrote(tmp_path, recipe, content):
    folder = tmp_path / "run"
    (folder / "none").mkdir(parents=True)
    (folder / "none/thesis.tex").write_text("years of work")
    if content is not None:  # somebody else's recipe.json
        (folder / "recipe.json").write_text(content)
    before = files_below(folder)
    for overwrite in (True, False):
        with pytest.raises(RecipeError, match=r"none|recipe"):
            check_output(replace(recipe, overwrite=overwrite))
    assert files_below(folder) == before


def test_a_recipe_json_cannot_name_files_elsewhere(tmp_path, recipe):
    (tmp_path / "precious").mkdir()
    (tmp_path / "run").mkdir()
    content = {**identity(recipe), "methods": ["../precious", str(tmp_path / "precious")]}
    (tmp_path / "run/recipe.json").write_text(json.dumps(content))
    open_output(replace(recipe, overwrite=True))
    assert (tmp_path / "precious").is_dir()


@pytest.mark.parametrize("resume", [{"overwrite": True}, {"resume": True}])
@pytest.mark.parametrize("place", ["none", "none/config.json", "results.json"])
def test_a_link_in_the_output_folder_is_refused(tmp_path, earlier, recipe, resume, place):
    target = tmp_path / "precious"
    target.write_text("years of work")
    path = earlier / place
    if path.is_dir():
        (path / "model.safetensors").unlink()
        path.rmdir()
    path.unlink(missing_ok=True)
    path.symlink_to(target)
    with pytest.raises(ValueError, match=f"{path}: a symbolic link to {target}"):
        check_output(replace(recipe, **resume))
    assert target.read_text() == "years of work"
    assert path.is_symlink()


def test_links_that_lead_nowhere_else_or_are_not_written_may_stay(tmp_path, earlier, recipe):
    (earlier / "latest").symlink_to("none")
    (earlier / "none/same.json").symlink_to(earlier / "none/config.json")
    (earlier / "notes").symlink_to(tmp_path)
    check_output(replace(recipe, resume=True))


@pytest.mark.parametrize(
    "name", ["../a.jpg", "a/../../b.jpg", "/etc/passwd", "..", "", "a\0b", "C:\\a", "..\\a", "\\a"]
)
def test_names_outside_the_folder_are_refused(tmp_path, name):
    with pytest.raises(ValueError, match="expected a path inside this folder"):
        path_below(tmp_path, name)


@pytest.mark.parametrize("name", ["a.jpg", "train2014/a.jpg", "a..b.jpg", "...jpg", "1#2.txt"])
def test_names_inside_the_folder_are_joined(tmp_path, name):
    assert path_below(tmp_path, name) == tmp_path / name


def test_no_picture_is_read_outside_the_folder(tmp_path):
    recipe = Recipe(data=Data(data_dir=str(tmp_path)), pictures=1)
    row = {"image_id": "../evil", "text": "dog", "phrases": [{"text": "dog", "boxes": [[0.0, 0.0, 1.0, 1.0]]}]}
    with pytest.raises(ValueError, match=r"\.\./evil"):
        _to_show("test", recipe, SimpleNamespace(splits={"test": Dataset.from_list([row])}))
