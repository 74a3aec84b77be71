# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""Original pixel networks become Hub directories that give the reference numbers; every key is accounted for."""

import json
from itertools import chain

import pytest
import torch
from torch.testing import assert_close

from grounded_attention.conversion.fast_rcnn import FAST_RCNN, explain_image_key, rename_image_key
from grounded_attention.modeling import FastRCNNConfig, FastRCNNFeatures
from tests.conversion.resnet_checkpoints import (
    DEPTHS,
    IMAGE,
    WIDTHS,
    list_image_shapes,
    make_resnet_checkpoint,
    reference_weights,
)


def test_network_equals_the_reference(shared):
    """Feature map, region features and a padded region of the public code's dilated ResNet-50."""
    reference = torch.load(shared / "parity" / "fast_rcnn.pt", weights_only=True)["resnet50"]
    model, _ = FAST_RCNN.build_model(reference_weights(reference))
    given = reference["inputs"]
    maps = []
    model.eval().double().stages[-1].register_forward_hook(lambda *call: maps.append(call[-1].float()))
    with torch.no_grad():  # in float64: how a machine adds up float32 moves deep maps by more than the tolerance
        features = model(given["images"].double(), given["boxes"], given["box_mask"]).region_features.float()
    assert_close(maps[0][:, ::64], reference["body4"], rtol=1e-5, atol=1e-4)
    assert_close(features, reference["obj_reps_raw"], rtol=1e-5, atol=1e-4)
    assert features[1, 2].abs().max() == 0


def test_every_key_of_the_public_checkpoints_has_a_place_or_a_reason():
    with torch.device("meta"):
        expected = {name: value.shape for name, value in FastRCNNFeatures(FastRCNNConfig()).state_dict().items()}
    found = {}
    for key, shape in list_image_shapes().items():
        name = rename_image_key(key, end_to_end=True)
        if name is None:
            assert explain_image_key(key), key
        else:
            assert name not in found, key
            found[name] = torch.Size(shape)
    assert found == expected
    heads = {explain_image_key(key) for key in list_image_shapes() if key.startswith(IMAGE + "head.0.")}
    assert heads == {"second copy of roi_head_feature_extractor"}


def test_keys_of_other_parts_have_neither():
    for key in ("vlbert.end_embedding.weight", IMAGE + "obj_downsample.1.weight", "layer5.0.conv1.weight", "conv1x"):
        assert rename_image_key(key, end_to_end=True) is None
        assert rename_image_key(key, end_to_end=False) is None
        assert explain_image_key(key) is None


def test_command_writes_a_directory_with_every_tensor_in_its_place(convert):
    state_dict = make_resnet_checkpoint()
    directory, printed = convert("fast_rcnn", state_dict)
    assert "2 tensors: classifier of the ResNet pre-training" in printed
    model = FastRCNNFeatures.from_pretrained(directory)
    assert model.config.hidden_sizes == [8, 8, 12, 16]
    assert model.config.depths == [1, 2, 1, 2]
    record = json.loads((directory / "conversion.json").read_text())
    places = record["converted"]
    assert record["left_out"]["classifier of the ResNet pre-training"] == ["fc.weight", "fc.bias"]
    assert sorted([*places, *chain(*record["left_out"].values())]) == sorted(state_dict)
    found = {places[key]: state_dict[key] for key in places}
    assert_close(found, dict(model.state_dict()), rtol=0, atol=0)
    # Same places, seen from the modules.
    block = model.stages[1][0]
    assert torch.equal(block.layer[2].convolution.weight, state_dict["layer2.0.conv3.weight"])
    assert torch.equal(block.shortcut.normalization.running_var, state_dict["layer2.0.downsample.1.running_var"])
    assert torch.equal(model.head[1].layer[0].normalization.bias, state_dict["layer4.1.bn1.bias"])
    assert torch.equal(model.embedder.embedder.normalization.weight, state_dict["bn1.weight"])


def test_an_end_to_end_checkpoint_gives_its_pixel_network(tmp_path):
    shapes = {**list_image_shapes(widths=WIDTHS, depths=DEPTHS), "vlbert.end_embedding.weight": (1, 4)}
    state_dict = {f"module.{key}": torch.full(shape, 2.0).half() for key, shape in shapes.items()}
    state_dict["module.conv1.weight"] = torch.zeros(1)
    model, conversion = FAST_RCNN.build_model(state_dict)
    assert conversion.left_out["module.vlbert.end_embedding.weight"] == "not part of the pixel network"
    assert conversion.left_out["module.conv1.weight"] == "not part of the pixel network"
    for value in model.state_dict().values():
        assert value.dtype == torch.float32
        assert (value == 2).all()


@pytest.mark.parametrize(
    "key, shape, message",
    [
        ("layer1.0.bn1.bias", 5, "layer1.0.bn1.bias has the shape (5,)"),
        ("layer1.0.conv1.bias", 2, "has layer1.0.conv1.bias, which FastRCNNFeatures does not have"),
        ("module.conv1.weight", 2, "conv1.weight and module.conv1.weight are the same key"),
    ],
)
def test_checkpoints_that_do_not_fit_are_refused(refused, key, shape, message):
    assert message in refused("fast_rcnn", {**make_resnet_checkpoint(), key: torch.zeros(shape)})


def test_a_file_of_something_else_is_refused(refused):
    assert "Expected a ResNet of bottleneck blocks" in refused("fast_rcnn", {"embeddings.weight": torch.zeros(3)})


def test_overrides_win(convert):
    directory, _ = convert("fast_rcnn", make_resnet_checkpoint(), frozen_stages=0, dilated_c5=False)
    config = FastRCNNConfig.from_pretrained(directory)
    assert config.frozen_stages == 0
    assert config.dilated_c5 is False
    assert config.stride_in_1x1 is True
