# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""Values of another type in recipes, configurations and processors: the key is named, and nothing is read."""

import pytest
import torch

from grounded_attention.dataset_scripts.builders import BUILDERS
from grounded_attention.dataset_scripts.files.errors import DataError
from grounded_attention.modeling import VLBertConfig
from grounded_attention.training.experiments.arguments import (
    CHECKPOINTING,
    check_training,
    field_names,
    training_arguments,
)
from grounded_attention.training.loop.trainer import GroundingTrainingArguments
from grounded_attention.training.recipes.model_family import check_sizes
from grounded_attention.training.recipes.recipe import Recipe, RecipeError, load_recipe
from tests.helpers.tiny_vgp import tiny_processor


def test_a_date_is_text(tmp_path):
    (tmp_path / "recipe.yaml").write_text("card: {name: 2020-01-02}")
    assert load_recipe(tmp_path / "recipe.yaml").card.name == "2020-01-02"
    assert load_recipe(tmp_path / "recipe.yaml", ["card.name=2021-01-02"]).card.name == "2021-01-02"


def test_a_training_argument_of_another_type():
    with pytest.raises(RecipeError, match=r"training\.metric_for_best_model: .*string, found 3"):
        check_training({"metric_for_best_model": 3}, "training.")


def test_a_whole_number_that_no_tensor_holds(tmp_path):
    """As a float, which its type allows: PyTorch divides by no larger whole number than 64 bits hold."""
    made = training_arguments(Recipe(training={"neftune_noise_alpha": 10**30, "weight_decay": 0}), tmp_path)
    assert torch.ones(1) * made.neftune_noise_alpha == 1e30
    assert made.weight_decay == 0


@pytest.mark.parametrize("name", CHECKPOINTING)
@pytest.mark.parametrize("own", [None, *CHECKPOINTING])
def test_checkpointing_under_both_names(name, own, tmp_path):
    known = field_names(GroundingTrainingArguments)
    given = {name: True} | ({f"{own}_kwargs": {"determinism_check": "none"}} if own else {})
    if not set(given) <= set(known):
        pytest.skip("this transformers has the older name only")
    made = training_arguments(Recipe(training=given), tmp_path)
    read = [getattr(made, f"{kind}_kwargs", None) or {} for kind in CHECKPOINTING]
    expected = ({} if own == CHECKPOINTING[0] else {"use_reentrant": False}) | given.get(f"{own}_kwargs", {})
    assert read[0 if CHECKPOINTING[0] in known else 1] == expected
    assert made.gradient_checkpointing
    assert made.ddp_find_unused_parameters


@pytest.mark.parametrize(
    "config, name",
    [
        ({"num_hidden_layers": 10**9}, "num_hidden_layers"),
        ({"vision_config": {"hidden_size": 1e12}}, "vision_config.hidden_size"),
        ({"attention_dropout": float("nan")}, "attention_dropout"),
    ],
)
def test_a_configuration(config, name):
    check_sizes(VLBertConfig().to_dict(), "config.json: ")
    with pytest.raises(RecipeError, match=f"^config.json: {name} is "):
        check_sizes({**VLBertConfig().to_dict(), **config}, "config.json: ")


@pytest.mark.parametrize("options", [{"splits": 0.5}, {"splits": ["train", 3]}, {"seed": "1"}, {"negatives": 3}])
def test_options_of_a_builder(tmp_path, options):
    given = {"data_dir": str(tmp_path), "cache_dir": str(tmp_path / "cache"), "negatives": "random", **options}
    builder = BUILDERS["vgp"](**given)
    with pytest.raises(DataError, match=f"option {min(options)}"):
        builder.download_and_prepare()


@pytest.mark.parametrize(
    "setting, value",
    [("max_regions", "3"), ("max_regions", True), ("region_feature_size", 8.5), ("iou_threshold", [0.5])],
)
def test_a_processor(setting, value):
    found = tiny_processor()
    with pytest.raises(ValueError, match=f"{setting} must be of type"):
        type(found)(found.tokenizer, **{setting: value})


@pytest.mark.parametrize("length", [float("nan"), 0, "8", None, True])
def test_a_tokenizer_without_a_length(length):
    found = tiny_processor()
    found.tokenizer.model_max_length = length
    with pytest.raises(ValueError, match="model_max_length of the tokenizer must be a positive number"):
        type(found)(found.tokenizer)
