# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""Learning rates of some weights: one step against the same step without them, groups, resume, refusals."""

import pytest
import torch

from grounded_attention.training.experiments.arguments import training_arguments
from grounded_attention.training.experiments.checks import check
from grounded_attention.training.loop.trainer import GroundingTrainingArguments, map_learning_rates
from grounded_attention.training.recipes.recipe import RecipeError, load_recipe
from grounded_attention.utils.project import find_recipe
from tests.helpers.tiny_trainer import make_trainer, weights
from tests.helpers.tiny_vgp import tiny_model

ONE_STEP = {"max_steps": 1, "per_device_train_batch_size": 16}


def changes(directory, mapping):
    """Name of each weight -> what one step of plain gradient descent adds to it."""
    torch.manual_seed(0)
    trainer = make_trainer(
        directory, arguments_class=GroundingTrainingArguments, learning_rate_mapping=mapping, **ONE_STEP
    )
    before = weights(trainer.model)
    trainer.train()
    return {name: value - before[name] for name, value in weights(trainer.model).items()}


def test_the_length_of_a_step_follows_the_learning_rate(tmp_path):
    """Of the patterns that match a weight the first counts; the rate of all others is 0.1."""
    plain = changes(tmp_path, {})
    mapped = changes(tmp_path, {r"region_encoder\.": 0.02, "bias$": 0.2, "word_embeddings": 0})
    moved = set()
    for name, step in plain.items():
        factor = 1.0
        if "region_encoder." in name:
            factor = 0.2
        elif name.endswith("bias"):
            factor = 2.0
        elif "word_embed" in name:
            factor = 0.0
        assert torch.allclose(mapped[name], factor * step, atol=1e-7, rtol=1e-4), name
        if step.any():
            moved.add(factor)
    assert moved == {0.0, 0.2, 1.0, 2.0}


def groups_of(directory, mapping):
    """Name of each weight -> its decay and its rate."""
    given = {"learning_rate_mapping": mapping, "optim": "adamw_torch", "weight_decay": 0.5}
    trainer = make_trainer(directory, arguments_class=GroundingTrainingArguments, **given)
    names = {id(weight): name for name, weight in trainer.model.named_parameters()}
    found = []
    for group in trainer.create_optimizer().param_groups:
        found += [(names[id(weight)], (group["weight_decay"], group["lr"])) for weight in group["params"]]
    assert len(found) == len(names), "every weight is in one group"
    return dict(found)


def test_every_weight_is_in_one_group_and_keeps_its_decay(tmp_path):
    plain = groups_of(tmp_path, {})
    mapped = groups_of(tmp_path, {"region_encoder": 0.01, "pooler": 0.03})
    assert mapped.keys() == plain.keys()
    assert {decay for decay, _ in plain.values()} == {0.0, 0.5}
    for name, (decay, rate) in mapped.items():
        expected = 0.1
        if "region_encoder" in name:
            expected = 0.01
        elif "pooler" in name:
            expected = 0.03
        assert (decay, rate) == (plain[name][0], expected), name


@pytest.mark.parametrize("wrapper", ["module", "_orig_mod", "_fsdp_wrapped_module", "_checkpoint_wrapped_module"])
def test_names_are_those_of_the_model_within_a_wrapper(wrapper):
    model = tiny_model()
    outer = torch.nn.ModuleDict({wrapper: model})
    optimizer = torch.optim.SGD(outer.parameters(), lr=0.1)
    map_learning_rates(optimizer, outer, {r"^vl_bert\.region_encoder\.": 0.02})
    rates = {id(weight): group["lr"] for group in optimizer.param_groups for weight in group["params"]}
    for name, weight in model.named_parameters():
        assert rates[id(weight)] == (0.02 if name.startswith("vl_bert.region_encoder.") else 0.1), name


@pytest.mark.parametrize(
    "mapping, nearest",
    [({"region_encodr": 0.1}, "region_encoder"), ({"region": 0.1, "region_encoder": 0.2}, "region_encoder")],
)
def test_a_pattern_that_takes_no_weight_is_refused(tmp_path, mapping, nearest):
    with pytest.raises(RecipeError, match="matches no trained weight") as error:
        changes(tmp_path, mapping)
    assert repr(list(mapping)[-1]) in str(error.value)
    assert nearest in str(error.value).split("nearest name is")[1]


@pytest.mark.parametrize(
    "override, message",
    [
        ("training.learning_rate_mapping=[region_encoder]", "^training.learning_rate_mapping: .* dictionary, found"),
        ("training.learning_rate_mapping={region: fast}", "^training.learning_rate_mapping.region: .* 'fast'"),
        ("training.learning_rate_mapping={region: -1.0}", "greater than or equal to 0, found -1.0"),
        ("training.learning_rate_mapping={region: .nan}", "learning_rate_mapping.region: .*, found nan"),
        ("start.training.learning_rate_mapping={region: fast}", "^start.training.learning_rate_mapping"),
        ("training={learning_rate_mapping: {region: 1e-4}, deepspeed: zero.json}", "training.deepspeed"),
    ],
)
def test_a_recipe_that_cannot_be_followed_is_refused_before_training(override, message):
    with pytest.raises(RecipeError, match=message):
        check(load_recipe(find_recipe("scenes_vgp"), [override]))


@pytest.mark.parametrize("override, expected", [("null", None), ("{region_encoder: 1e-4}", {"region_encoder": 1e-4})])
def test_the_mapping_of_an_extended_recipe_is_replaced(tmp_path, override, expected):
    text = "extends: scenes_vgp\ntraining: {learning_rate_mapping: {pooler: 1e-4}}\n"
    (tmp_path / "base.yaml").write_text(text)
    recipe = load_recipe(tmp_path / "base.yaml", [f"training.learning_rate_mapping={override}"])
    check(recipe)
    assert training_arguments(recipe, tmp_path).learning_rate_mapping == expected
