# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""Chosen heads: which are picked, by what measurement, and that they alone are supervised."""

import json

import numpy as np
import pytest
import torch
from numpy.testing import assert_allclose
from torch.testing import assert_close

from grounded_attention.heads.attention_grounding import AttentionGrounding
from grounded_attention.supervision import get_method
from grounded_attention.tasks import TASKS
from grounded_attention.training.loop.chosen_heads import (
    HeadChoice,
    check_heads,
    measure_heads,
    read_choice,
    supervise_chosen,
)
from grounded_attention.training.loop.data import Collator
from grounded_attention.training.recipes.recipe import Model, Recipe, RecipeError, SupervisionSection
from tests.helpers.tiny_scenes import tiny_recipe
from tests.helpers.tiny_trainer import make_trainer
from tests.helpers.tiny_vgp import losses_of, tiny_batch, tiny_model, tiny_processor, tiny_rows, tiny_table
from tests.training.runs import assert_words, results

ACCURACY = np.array([[0.2, 0.9, 0.4], [0.9, 0.1, 0.3]])
MEASURED = {"accuracy": ACCURACY.tolist(), "rows": 5}


def recipe_of(heads, methods=("direct",), **options):
    model = Model(config={"num_hidden_layers": 2, "num_attention_heads": 3})
    return Recipe(methods=[*methods], model=model, supervision=SupervisionSection(heads=heads, options=options))


@pytest.mark.parametrize(
    "kind, value, expected",
    [
        ("best", 1, [(0, 1)]),  # of equal ones the first
        ("best", 3, [(0, 1), (0, 2), (1, 0)]),
        ("worst", 2, [(0, 0), (1, 1)]),
        ("worst", 6, [(layer, head) for layer in (0, 1) for head in (0, 1, 2)]),
        ("layers", [1], [(1, 0), (1, 1), (1, 2)]),
        ("list", [[1, 2], [0, 0], [1, 2]], [(0, 0), (1, 2)]),
    ],
)
def test_picks(kind, value, expected):
    assert read_choice({kind: value}).pick(ACCURACY) == expected


# As `grounded-attention heads` writes it.
FILE = """
{"format": 2, "layers": ["0", "1"], "heads": 3, "about": {"word": "last"},
 "chosen": [{"layer": 1, "head": 2}, {"layer": 0, "head": 0}]}
"""


def test_the_heads_of_a_file_are_supervised(tmp_path):
    (tmp_path / "heads.json").write_text(FILE)
    recipe = recipe_of({"file": str(tmp_path)})
    check_heads(recipe)
    made, record = supervise_chosen(recipe, MEASURED)
    assert made.supervision.options["direct"]["heads"] == [[0, 0], [1, 2]]
    assert len(record["heads"]) == 2
    with pytest.raises(RecipeError, match=r"supervision\.heads\.file"):
        read_choice({"file": str(tmp_path / "nowhere")})
    (tmp_path / "heads.json").write_text(FILE.replace('["0", "1"]', '["0", "1", "2"]'))
    with pytest.raises(RecipeError, match="3 layers of 3 heads"):  # of another model, with indices that fit
        supervise_chosen(recipe, MEASURED)


@pytest.mark.parametrize(
    "heads, methods, words",
    [
        ({}, "direct", "supervision.heads ... one of best, worst, layers, list"),
        ({"best": 1, "worst": 1}, "direct", "supervision.heads ... one of best, worst, layers, list"),
        ({"best": 1}, "direct none", "method 'none' supervises no heads"),
        ({"layers": [0]}, "indirect", "method 'indirect' supervises no heads"),
        ({"best": 1}, "semi_direct", "method 'semi_direct' can only choose layers"),
    ],
)
def test_a_choice_that_cannot_be_followed_is_refused(heads, methods, words):
    with pytest.raises(RecipeError) as caught:
        check_heads(recipe_of(heads, methods.split()))
    assert_words(str(caught.value), words)


def test_the_methods_get_the_chosen_heads():
    recipe = recipe_of({"best": 2}, direct={"target": "any"})
    found, record = supervise_chosen(recipe, MEASURED)
    method = get_method("direct", **found.supervision.options["direct"])
    assert method.pairs == ((0, 1), (1, 0))
    assert method.target == "any"
    assert record["heads"] == [{"layer": 0, "head": 1, "accuracy": 0.9}, {"layer": 1, "head": 0, "accuracy": 0.9}]
    assert record["rows"] == 5
    assert record["choice"] == {"best": 2}
    layers, _ = supervise_chosen(recipe_of({"layers": [1]}, ["semi_direct"]), MEASURED)
    assert get_method("semi_direct", **layers.supervision.options["semi_direct"]).layers == (1,)
    assert supervise_chosen(recipe_of("all"), {}) == (recipe_of("all"), {})


# The direct method on pairs


def test_pairs_are_the_mean_over_the_heads_alone():
    """However many a layer has: three of four heads in one layer, one in another, none in between."""
    model = tiny_model(num_hidden_layers=3, num_attention_heads=4, initializer_range=0.3)
    batch = tiny_batch(6)
    pairs = [[2, 3], [0, 0], [0, 2], [0, 3]]
    together = losses_of(model, get_method("direct", heads=pairs), batch)
    alone = []
    for layer, head in pairs:
        alone.append(losses_of(model, get_method("direct", layers=[layer], heads=[head]), batch))
    for name, (total, count) in together.items():
        expected = torch.stack([losses[name][0] for losses in alone])
        assert_close(total, expected.mean())
        assert expected.std() > 0
        assert all(losses[name][1] == count for losses in alone)


def test_only_the_chosen_head_learns():
    model = tiny_model(initializer_range=0.3)
    batch = tiny_batch(6)
    losses = losses_of(model, get_method("direct", heads=[[0, 1]]), batch)
    sum(total for total, _ in losses.values()).backward()
    width = model.config.hidden_size // model.config.num_attention_heads
    first, second = (layer.attention.self.query.weight.grad for layer in model.vl_bert.encoder.layer)
    assert first[:width].eq(0).all()
    assert first[width:].abs().sum() > 0
    assert second is None


def test_pairs_round_trip():
    method = get_method("direct", heads=[(1, 0), [0, 1], (1, 0)])
    config = json.loads(json.dumps(method.get_config_dict()))
    assert config["heads"] == [[0, 1], [1, 0]]
    assert config["layers"] is None
    assert get_method(**config).get_config_dict() == config


@pytest.mark.parametrize(
    "method, options, message",
    [
        ("direct", {"heads": [[0, 1], 2]}, "heads"),
        ("direct", {"heads": [[0, 1, 2]]}, "heads"),
        ("direct", {"heads": [[0, -1]]}, "heads"),
        ("direct", {"heads": [[0, 0.5]]}, "heads"),
        ("direct", {"heads": [[0, 1]], "layers": [0]}, "remove layers"),
        ("semi_direct", {"heads": [[0, 1]]}, "give layers"),
    ],
)
def test_wrong_pairs_are_refused(method, options, message):
    with pytest.raises(ValueError, match=message):
        get_method(method, **options)


@pytest.mark.parametrize("pair, words", [([5, 0], "layers"), ([0, 5], "heads")])
def test_pairs_that_a_model_does_not_have_are_refused(pair, words):
    method = get_method("direct", heads=[pair])
    with pytest.raises(ValueError, match=f"cannot supervise {words} .5.: "):
        method.prepare(tiny_model())


# The measurement


def test_the_measurement_is_that_of_gold_regions(tmp_path):
    table = tiny_table(8)
    rows = tiny_rows(table)
    model = tiny_model(num_hidden_layers=3, initializer_range=0.5).eval()
    trainer = make_trainer(tmp_path, "none", model=model, rows=rows)
    trainer.data_collator.labels = "random"  # what heads are measured by is gold all the same
    model.set_attn_implementation("supervised_sdpa")
    batch = Collator(TASKS["vgp"], tiny_processor(), table)(list(rows))
    given = {name: batch[name] for name in TASKS["vgp"].model_inputs if name in batch}
    metric = AttentionGrounding()
    with torch.no_grad():
        metric.update(model(**given, **metric.forward_kwargs(batch)), batch)
    expected = metric.compute(metric.state())
    found = measure_heads(trainer, seed=0)
    assert found["tokens"] == expected["text_to_region_tokens"]
    assert found["rows"] == len(rows) == 16
    assert_allclose(found["accuracy"], expected["text_to_region_by_head"], atol=1e-9)
    assert len(np.unique(found["accuracy"])) > 2


def test_nothing_grounded_can_not_be_measured(tmp_path):
    bare = tiny_rows(tiny_table(8)).map(lambda row: {"phrases": [], "phrase_pairs": []})
    trainer = make_trainer(tmp_path, "none", rows=bare)
    trainer.model.set_attn_implementation("supervised_sdpa")
    with pytest.raises(RecipeError, match="no word of 16 training rows is grounded"):
        measure_heads(trainer, seed=0)


def test_a_run_records_what_it_chose_and_keeps_it(scenes, tmp_path, monkeypatch, run_recipe):
    supervision = {"heads": {"best": 2}, "labels": "random"}
    recipe = tiny_recipe(scenes, tmp_path / "run", supervision=supervision, resume=True)
    run_recipe(recipe)
    record = results(tmp_path / "run")["supervised_heads"]
    assert record["rows"] == 16
    assert record["tokens"] > 0
    assert 0 < record["chance"] < 1
    accuracy = np.array(record["accuracy"])
    chosen = [(head["layer"], head["head"]) for head in record["heads"]]
    assert chosen == HeadChoice("best", 2).pick(accuracy)
    for head in record["heads"]:
        assert head["accuracy"] == accuracy[head["layer"], head["head"]]
    # A second measurement would fail.
    monkeypatch.setattr("grounded_attention.training.experiments.experiment.measure_heads", None)
    (tmp_path / "run/direct/results.json").unlink()
    run_recipe(recipe)
    assert results(tmp_path / "run")["supervised_heads"] == record
