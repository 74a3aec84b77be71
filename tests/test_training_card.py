# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""Model cards: what training writes of itself, whether it is true, and whether its snippets run."""

import json
import re

import pytest
import yaml
from huggingface_hub import ModelCard

from tests.test_modeling_vl_bert_saving import run_elsewhere
from tests.tiny_scenes import run_train, tiny_recipe, tiny_scenes
from training.output import identity
from training.recipe import load_recipe
from training.recipe_text import recipe_yaml


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """(recipe, folder) of a run of one method with wrong labels, from a start; no test changes it."""
    directory = tmp_path_factory.mktemp("card")
    scenes = tiny_scenes(directory / "data")
    training = tiny_recipe(scenes, directory / "run")["training"]
    recipe = tiny_recipe(
        scenes,
        directory / "run",
        methods=["direct"],
        start={"task": "pretraining", "training": {**training, "max_steps": 1}},
        supervision={"labels": "shuffled", "weight": 2.0},
        card={"dataset": "org/scenes", "license": "mit", "name": "A tiny model"},
    )
    with pytest.MonkeyPatch.context() as patch:
        assert run_train(patch, directory, recipe) == 0
    return recipe, directory / "run" / "direct"


@pytest.fixture(scope="module")
def card(trained):
    return ModelCard.load(trained[1] / "README.md")


def snippets(card):
    return re.findall(r"^```python\n(.*?)^```$", card.text, re.DOTALL | re.MULTILINE)


def test_results_of_the_metadata_are_those_of_the_run(trained, card):
    results = json.loads((trained[1] / "results.json").read_text())
    found = {result.metric_type: result for result in card.data.eval_results}
    chosen = results["text_to_region_accuracy"]
    assert found["vgp_accuracy"].metric_value == pytest.approx(results["vgp_accuracy"], abs=1e-4)
    assert found["text_to_region_best_layer"].metric_value == pytest.approx(chosen["best_layer"], abs=1e-4)
    assert {result.dataset_split for result in found.values()} == {"test"}
    assert (
        card.data.datasets == ["org/scenes"] and card.data.license == "mit" and "direct-supervision" in card.data.tags
    )
    entries = yaml.safe_load((trained[1] / ".eval_results" / "results.yaml").read_text())
    assert {entry["dataset"]["id"] for entry in entries} == {"org/scenes"}
    assert {entry["dataset"]["task_id"]: entry["value"] for entry in entries} == {
        f"test_{name}": result.metric_value for name, result in found.items()
    }


def test_the_card_names_a_control_and_shows_every_layer(trained, card):
    by_head = json.loads((trained[1] / "results.json").read_text())["figures"]["test"]["text_to_region_by_head"]
    assert "**A control**" in card.text and "`shuffled`" in card.text
    for layer, heads in enumerate(by_head):
        assert re.search(rf"^\| {layer} \| {sum(heads) / len(heads):.3f} \|", card.text, re.MULTILINE)
    assert (trained[1] / "head_grounding.png").stat().st_size > 1000
    assert "su2020vlbert" in card.text and "samaran" in card.text


def test_the_recipe_of_the_card_is_the_recipe_that_was_run(tmp_path, trained, card):
    text = re.search(r"```yaml\n(.*?)```", card.text, re.DOTALL)[1]
    given, shown = tmp_path / "given.yaml", tmp_path / "shown.yaml"
    given.write_text(yaml.safe_dump(trained[0]))
    shown.write_text(text)
    assert identity(load_recipe(shown, [])) == identity(load_recipe(given, []))
    assert "hub_token" not in recipe_yaml(load_recipe(given, ["training.hub_token=secret"]))


def test_the_snippets_run_where_the_project_is_not(trained, card, tmp_path):
    code = snippets(card)
    assert len(code) == 2 and str(trained[1]) in code[0]
    done = run_elsewhere("\n".join(code), tmp_path)
    assert done.returncode == 0, done.stderr[-2000:]
    assert "xmin" in done.stdout
