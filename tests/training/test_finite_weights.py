# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""Weights that are no numbers are refused where a checkpoint is loaded."""

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModel

from grounded_attention.modeling import VLBertForVGP
from grounded_attention.modeling.finite_numbers import check_finite
from grounded_attention.training.experiments.models import load_model
from grounded_attention.training.recipes.recipe import Model, RecipeError
from tests.helpers.tiny_vl_bert import tiny_config


@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf")])
def test_a_checkpoint_with_nan_is_not_loaded(tmp_path, value):
    VLBertForVGP(tiny_config()).save_pretrained(tmp_path)
    check_finite(AutoModel.from_pretrained(tmp_path), "whole")
    weights = load_file(tmp_path / "model.safetensors")
    name = next(name for name in weights if name.endswith("encoder.layer.1.output.dense.weight"))
    weights[name][3, 2] = value
    save_file(weights, tmp_path / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(ValueError, match=r"encoder\.layer\.1\.output\.dense\.weight contains NaN or infinity \(1 "):
        check_finite(AutoModel.from_pretrained(tmp_path), str(tmp_path))
    with pytest.raises(RecipeError, match="contains NaN or infinity"):
        load_model(VLBertForVGP, Model(source=str(tmp_path)))


def test_weights_of_any_kind_are_checked():
    model = torch.nn.Module()
    model.register_buffer("counts", torch.tensor([1, 2]))
    model.register_buffer("empty", torch.empty(0))
    model.scale = torch.nn.Parameter(torch.ones(3, dtype=torch.bfloat16))
    check_finite(model, "a model")
    model.scale.data[1] = float("nan")
    with pytest.raises(ValueError, match="a model: the weight scale"):
        check_finite(model, "a model")
