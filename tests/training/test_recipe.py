# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""Recipes: what is read, what is refused and how the refusal reads."""

import json
from pathlib import Path

import pytest

from grounded_attention.commands import train
from grounded_attention.commands.main import main as run_command
from grounded_attention.dataset_scripts.builders import BUILDERS
from grounded_attention.tasks import TASKS
from grounded_attention.training.experiments.checks import check
from grounded_attention.training.experiments.prepared_data import builder_options
from grounded_attention.training.recipes.recipe import RecipeError, check_names, load_recipe, read_recipe, read_yaml
from grounded_attention.utils.project import find_recipe
from tests.training.runs import assert_words

FILES = sorted(Path(__file__).parents[2].glob("recipes/*/*.yaml"))
RECIPES = [path for path in FILES if "study" not in read_recipe(path)]  # studies have tests of their own


def write(tmp_path, text):
    path = tmp_path / "recipe.yaml"
    path.write_text(text)
    return path


@pytest.mark.parametrize("path", RECIPES, ids=lambda p: p.name)
def test_shipped_recipes_load(path):
    recipe = load_recipe(path)
    assert recipe.methods
    assert recipe.output_dir
    assert recipe.data.data_dir or recipe.data.source


def test_a_recipe_may_extend_one_of_the_package_by_its_name(tmp_path):
    recipe = load_recipe(write(tmp_path, "extends: vgp_direct\nseed: 5\n"))
    assert recipe.methods == load_recipe(find_recipe("vgp_direct.yaml")).methods == ["direct"]
    assert recipe.seed == 5
    with pytest.raises(RecipeError, match="no_such_recipe"):
        load_recipe(write(tmp_path, "extends: no_such_recipe\n"))


# A recipe with a `source` goes on from what another recipe trained.
DRAWN = [path for path in RECIPES if load_recipe(path).data.scenes and not load_recipe(path).model.source]


@pytest.mark.parametrize("path", DRAWN, ids=lambda p: p.name)
def test_recipes_on_scenes_start_in_an_empty_folder(path):
    """Nothing is on disk on a fresh machine: what the scenes bring, a vocabulary among it, is written by the run."""
    recipe = load_recipe(path)
    data = recipe.data
    places = [recipe.model.tokenizer]
    for given in (data.regions, data.images, data.text_corpus, *data.tracks.values()):
        places += given if isinstance(given, list) else [given]
    for place in places:
        assert not isinstance(place, str) or Path(place).is_relative_to(data.data_dir)


def test_overrides_replace_nested_values_and_keep_the_rest(tmp_path):
    path = write(tmp_path, "data: {data_dir: a, regions: b}\nsupervision: {weight: 2}\n")
    recipe = load_recipe(path, ["data.data_dir=c", "training.learning_rate=1e-4", "methods=[direct]"])
    assert (recipe.data.data_dir, recipe.data.regions) == ("c", "b")
    assert recipe.training["learning_rate"] == 1e-4
    assert recipe.methods == ["direct"]
    assert recipe.supervision.weight == 2.0
    assert isinstance(recipe.supervision.weight, float)


@pytest.mark.parametrize(
    "text, words",
    [
        ("output_dri: runs/x", "unknown key 'output_dri' ... did you mean 'output_dir'?"),
        ("data: {data_dirr: x}", "'data.data_dirr' ... 'data.data_dir'"),
        ("data: {regions: [3]}", "data.regions.0 ... found 3"),
        ("seed: many", "seed:  ... 'many'"),
        ("supervision: {weight: heavy}", "supervision.weight:  ... 'heavy'"),
        ("supervision: {heads: {bst: 1}}", "'supervision.heads.bst' ... 'supervision.heads.best'"),
        ("supervision: {heads: {list: [[0, 1], [1]]}}", "supervision.heads.list.1 ... [1]"),
        ("supervision: {heads: 3}", "supervision.heads: "),
        ("start: 3", "start must be a section"),
        ("start: {seed: 3}", "'start.seed' ... data, methods, options"),
        ("a: [", "invalid YAML"),
    ],
)
def test_a_wrong_recipe_names_the_file_and_the_key(tmp_path, text, words):
    path = write(tmp_path, text)
    with pytest.raises(RecipeError) as error:
        load_recipe(path)
    assert str(path) in str(error.value)
    assert_words(str(error.value), words)


def test_a_recipe_extends_another_section_by_section(tmp_path):
    (tmp_path / "base.yaml").write_text("seed: 1\ndata: {data_dir: a, regions: b}\nmethods: [none, direct]\n")
    recipe = load_recipe(write(tmp_path, "extends: base.yaml\ndata: {regions: c}\nmethods: [direct]\n"))
    assert (recipe.seed, recipe.data.data_dir, recipe.data.regions) == (1, "a", "c")
    assert recipe.methods == ["direct"]


def test_a_recipe_that_extends_itself(tmp_path):
    with pytest.raises(RecipeError, match="extends itself"):
        load_recipe(write(tmp_path, "extends: recipe.yaml"))


FAMILY_FIELDS = "{model: {config: {hidden_size: 8}, family_config: {vl_bert: {region_classes: 4}}}, start: {}}"


@pytest.mark.parametrize(
    "overrides, expected",
    [
        ([], {"region_classes": 4}),
        (["model.family=visualbert"], {}),
        (["model.source=x"], {}),
        (["model.config.region_classes=5"], {"region_classes": 5}),
    ],
)
def test_fields_of_one_family_reach_new_models_of_that_family(tmp_path, overrides, expected):
    recipe = load_recipe(write(tmp_path, FAMILY_FIELDS), overrides)
    assert recipe.model.config == recipe.start.model.config == {"hidden_size": 8, **expected}


@pytest.mark.parametrize("name", ["scenes_vgp", "pretrain_scenes", "scenes_vqa", "scenes_gqa", "scenes_refcoco"])
@pytest.mark.parametrize("family", ["vl_bert", "visualbert", "vilbert", "lxmert"])
def test_recipes_on_scenes_suit_every_family(name, family):
    check(load_recipe(find_recipe(name), [f"model.family={family}"]))


def test_a_source_that_is_still_to_be_trained_is_named(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    recipe = load_recipe(find_recipe("scenes_nlvr2"))
    with pytest.raises(RecipeError, match=r"scenes_visualbert_vgp/direct: no such folder.*run that first"):
        check(recipe)


def sections(path):
    """The mappings of a file that have data: a recipe, its start, and the recipes within a study."""
    pending = [read_yaml(path)]
    while pending:
        section = pending.pop()
        pending += [value for value in section.values() if isinstance(value, dict)]
        if isinstance(section.get("data"), dict):
            yield section


SPLITS = {str(name) for builder in BUILDERS.values() for name in builder.BUILDER_CONFIG_CLASS.SPLIT_NAMES.values()}


@pytest.mark.parametrize("path", FILES, ids=lambda p: p.name)
def test_shipped_recipes_give_options_and_splits_that_a_builder_has(path):
    """A typing error would show only when the real data are there."""
    found = 0
    for section in sections(path):
        data = section["data"]
        assert SPLITS >= data.get("limit", {}).keys()
        if section.get("task") and data.get("options"):
            found += 1
            builder = data.get("builder") or TASKS[section["task"]].builder
            check_names(data["options"], builder_options(BUILDERS[builder]), "data.options.")
    assert found or path.name not in ("refcoco_plus.yaml", "table1.yaml"), "the scan finds no options"


@pytest.mark.parametrize("name", ["*", "**", "scenes_vg[p]", "scenes_vg?"])
def test_names_of_recipes_are_no_patterns(name, tmp_path):
    assert find_recipe(name) == Path(name)
    (tmp_path / "mine.yaml").write_text(f"extends: {json.dumps(name)}\n")
    with pytest.raises(RecipeError, match="cannot be read"):
        load_recipe(tmp_path / "mine.yaml")


def test_a_key_that_is_given_twice_is_refused_with_its_lines(tmp_path):
    (tmp_path / "mine.yaml").write_text("task: vgp\ntraining: {max_steps: 5}\nseed: 1\ntraining: {max_steps: 3}\n")
    with pytest.raises(RecipeError, match=r"mine\.yaml: .*lines 2 and 4 have the same key 'training'; remove one"):
        load_recipe(tmp_path / "mine.yaml")
    (tmp_path / "merged.yaml").write_text("task: vgp\nmodel: {config: {<<: {a: 1}, a: 2}}\n")  # no repetition
    assert load_recipe(tmp_path / "merged.yaml").model.config == {"a": 2}


@pytest.mark.parametrize(
    "override, message",
    [
        ("data.limit.val=3", "unknown key 'data.limit.val'"),
        ("start.data.limit.dev=3", "unknown key 'start.data.limit.dev'"),
        (
            "supervision.options.indirect.wieght=3",
            "unknown key 'supervision.options.indirect.wieght'; did you mean 'supervision.options.indirect.weight'",
        ),
        ("data.options.negative=3", "unknown key 'data.options.negative'; did you mean 'data.options.negatives'"),
        ("start.data.options.split=3", "'start.data.options.split'; did you mean 'start.data.options.splits'"),
        ("training.output_dir=a", "training.output_dir ... of the recipe"),
        ("learning_rate", "expected key=value"),
    ],
)
def test_a_wrong_override_is_refused_before_there_are_data(override, message):
    with pytest.raises(RecipeError) as error:
        check(load_recipe(find_recipe("scenes_vgp"), [override]))
    assert_words(str(error.value), message)


def test_limits_of_splits_that_another_builder_has():
    """Rows on the Hub have splits of their own; recipes of a study share a limit over builders with other splits."""
    check(load_recipe(find_recipe("scenes_vgp"), ["data={data_dir: hub://ORG/NAME, regions: r, limit: {val: 3}}"]))
    check(load_recipe(find_recipe("scenes_vgp"), ["data.limit={train: 8, testA: 8, testB: 8}"]))


def test_a_name_near_a_recipe_is_corrected_and_all_are_listed(capsys):
    for given in ("scene_vgp", "recipes/scenes/scenes_vpg.yaml"):
        assert train.main([given]) == 2
        assert "'scenes_vgp'" in capsys.readouterr().err
    assert train.main([]) == 2
    assert "--list" in capsys.readouterr().err
    assert train.main(["--list"]) == 0
    listed = dict(line.split(maxsplit=1) for line in capsys.readouterr().out.splitlines())
    assert set(listed) == {path.stem for path in FILES}
    assert all(listed.values())


COMMANDS = """
ground PICTURE dog --model RUN --detector scenes --features scenes
heads --model RUN --data flickr30k_entities --data-dir . --output out --images .
space run --model . --model RUN
evaluate RUN --task vgp --data-dir . --regions . --output out
evaluate RUN --task vgp --data-dir . --regions . --faithful all
push RUN ORG/NAME
"""


@pytest.mark.parametrize("command", COMMANDS.strip().splitlines())
def test_the_folder_of_a_run_is_no_model_for_any_command(tmp_path, monkeypatch, capsys, command):
    monkeypatch.chdir(tmp_path)
    for name in ("none", "direct"):
        (tmp_path / "RUN" / name).mkdir(parents=True)
        (tmp_path / "RUN" / name / "config.json").write_text("{}")
    (tmp_path / "PICTURE").touch()
    assert run_command(command.split()) == 2
    assert "RUN/direct, RUN/none" in capsys.readouterr().err.splitlines()[-1]
