# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""Model cards: what training writes of itself, whether it is true, and whether its snippets run."""

import re
import tempfile

import pytest
import yaml
from huggingface_hub import ModelCard, parse_eval_result_entries

from grounded_attention.dataset_scripts.hub.tables import RemoteRows
from grounded_attention.training.experiments.output import identity
from grounded_attention.training.experiments.prepared_data import PreparedData
from grounded_attention.training.publish.card_results import eval_entries
from grounded_attention.training.publish.card_snippets import move_card
from grounded_attention.training.publish.model_card import progress_card
from grounded_attention.training.recipes.recipe import load_recipe, recipe_yaml
from tests.helpers.run_elsewhere import run_elsewhere
from tests.helpers.tiny_scenes import tiny_recipe
from tests.training.runs import assert_ran, assert_words, read_json, train_in

SECTIONS = """
start: {task: pretraining}
supervision: {labels: shuffled, weight: 2.0, options: {direct: {box_weight: 1.0}}}
card: {dataset: org/scenes, license: mit, name: A tiny model}
"""


@pytest.fixture(scope="module")
def trained(tmp_path_factory, scenes):
    """(recipe, folder) of a run of one method with wrong labels and boxes, from a start; no test changes it."""
    directory = tmp_path_factory.mktemp("card")
    recipe = tiny_recipe(scenes, directory / "run", **yaml.safe_load(SECTIONS))
    recipe["start"]["training"] = {**recipe["training"], "max_steps": 1}
    train_in(directory, recipe)
    return recipe, directory / "run/direct"


@pytest.fixture(scope="module")
def card(trained):
    return ModelCard.load(trained[1] / "README.md")


@pytest.fixture(scope="module")
def blind(tmp_path_factory, scenes):
    """Folder of a run of VQA without supervision, with a text-only baseline."""
    directory = tmp_path_factory.mktemp("blind")
    recipe = tiny_recipe(scenes, directory / "run", task="vqa", options={"answers": {"fewest": 1}})
    train_in(directory, recipe, "methods=[none]", "text_only_baseline=true")
    return directory / "run"


def snippets(card):
    return re.findall(r"^```python\n(.*?)^```$", card.text, re.DOTALL | re.MULTILINE)


def load_recipe_of(content, **changed):
    with tempfile.NamedTemporaryFile("w", suffix=".yaml") as file:
        yaml.safe_dump({**content, "card": {}, "start": None, **changed}, file)
        return load_recipe(file.name, [])


def test_results_of_the_metadata_are_those_of_the_run(trained, card):
    results = read_json(trained[1] / "results.json")
    found = {result.metric_type: result for result in card.data.eval_results}
    chosen = results["text_to_region_accuracy"]
    assert found["vgp_accuracy"].metric_value == pytest.approx(results["vgp_accuracy"], abs=1e-4)
    assert found["text_to_region_best_layer"].metric_value == pytest.approx(chosen["best_layer"], abs=1e-4)
    assert {result.dataset_split for result in found.values()} == {"test"}
    assert card.data.datasets == ["org/scenes"]
    assert card.data.license == "mit"
    assert "direct-supervision" in card.data.tags
    entries = yaml.safe_load((trained[1] / ".eval_results/results.yaml").read_text())
    assert len(entries) == len(found)
    for entry in entries:
        assert entry["dataset"]["id"] == "org/scenes"
        assert entry["value"] == found[entry["dataset"]["task_id"].removeprefix("test_")].metric_value


def test_the_card_names_a_control_and_shows_every_layer(trained, card):
    by_head = read_json(trained[1] / "results.json")["figures"]["test"]["text_to_region_by_head"]
    assert_words(card.text, "**A control** ... `shuffled` ... predict the boxes ... su2020vlbert ... samaran")
    for layer, heads in enumerate(by_head):
        assert re.search(rf"^\| {layer} \| {sum(heads) / len(heads):.3f} \|", card.text, re.MULTILINE)
    assert (trained[1] / "head_grounding.png").stat().st_size > 1000


def test_the_recipe_of_the_card_is_the_recipe_that_was_run(tmp_path, trained, card):
    text = re.search(r"```yaml\n(.*?)```", card.text, re.DOTALL)[1]
    given = tmp_path / "given.yaml"
    shown = tmp_path / "shown.yaml"
    given.write_text(yaml.safe_dump(trained[0]))
    shown.write_text(text)
    assert identity(load_recipe(shown, [])) == identity(load_recipe(given, []))
    assert "hub_token" not in recipe_yaml(load_recipe(given, ["training.hub_token=secret"]))


def test_the_snippets_run_where_the_project_is_not(trained, card, blind, tmp_path):
    start = ModelCard.load(trained[1].parent / "start/README.md")
    questions = ModelCard.load(blind / "none/README.md")
    script = ""
    for shown, name in ((card, "VGP"), (start, "PreTraining"), (questions, "VisualQuestionAnswering")):
        code = snippets(shown)
        assert len(code) == 2
        assert "those of scenes" in shown.text
        script += "\n".join([*code, f"assert type(model).__name__ == 'VLBertFor{name}'\n"])
    done = run_elsewhere(script, tmp_path)
    assert_ran(done)
    assert done.stdout.count("xmin") == 3
    for message in ("both captions describe the image: ", "in the place of '", "answer: "):  # the forward calls
        assert done.stdout.count(message) == 1


def test_cards_of_start_and_text_only_baseline(trained, blind):
    start = (trained[1].parent / "start/README.md").read_text()
    assert_words(start, "Other models start from this one ... nothing was measured")
    assert "majority" not in start
    alone = (blind / "text_only/README.md").read_text()
    assert_words(alone, "without regions ... **A control** ... this one is `text_only_baseline`")


def test_a_pushed_card_loads_from_where_it_is_pushed_to(trained, card):
    text = (trained[1] / "README.md").read_text()
    moved = move_card(move_card(text, "org/elsewhere"), "org/model", "tries/one")
    line = 'name, revision = "org/model", "tries/one"'
    assert moved.count(line) == 2
    assert str(trained[1]) not in "".join(snippets(ModelCard(moved)))
    assert moved.replace(line, "") == text.replace(f'name, revision = "{trained[1]}", "main"', "")


@pytest.mark.parametrize(
    "scenes_of_record, licence",
    [(None, None), ({"version": 4, "seed": 1, "images": 24}, "apache-2.0")],
    ids=["rows of others", "scenes"],
)
def test_data_of_the_hub_bring_their_terms_and_commit(trained, scenes_of_record, licence):
    """Scenes that were pulled are scenes; rows of others are under the terms of their record."""
    recipe = load_recipe_of(trained[0], data={**trained[0]["data"], "data_dir": "hub://org/rows@abc"})
    terms = {"identifier": "cc-by-4.0", "redistribution": "allowed", "terms": "As you like.", "source": ""}
    record = {"scenes": scenes_of_record, "licence": terms, "citation": "@misc{rows}"}
    pulled = RemoteRows("org/rows", "c" * 40, "typology", record)
    text = progress_card(recipe, "direct", PreparedData({}, None, pulled=pulled), 7)
    assert_words(text, "cc-by-4.0. As you like. ... step 7")
    assert ModelCard(text).data.datasets == ["org/rows"]
    assert ModelCard(text).data.license == licence


def test_results_on_data_of_the_hub_name_their_commit():
    figures = {"validation": {"vgp_accuracy": 0.5}}
    (entry,) = parse_eval_result_entries(eval_entries(figures, "org/rows", "c" * 40))
    assert (entry.dataset_id, entry.dataset_revision, entry.value) == ("org/rows", "c" * 40, 0.5)
