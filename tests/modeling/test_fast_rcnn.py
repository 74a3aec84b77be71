# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""The region-feature network: equal to a ResNet on a whole map, frozen parts, masks, saving, wrong input."""

import pytest
import torch
from huggingface_hub.errors import StrictDataclassError
from torch import nn
from torch.testing import assert_close
from transformers import AutoConfig, AutoModel, ResNetConfig, ResNetModel

from grounded_attention.modeling import FastRCNNConfig, FastRCNNFeatures
from grounded_attention.modeling import modeling_fast_rcnn as module
from grounded_attention.modeling.modeling_fast_rcnn import FastRCNNFrozenBatchNorm
from tests.helpers.padded_inputs import of_shapes

SIZES = {"embedding_size": 8, "hidden_sizes": [8, 12, 16, 20], "depths": [1, 2, 1, 2]}


def make_model(**fields):
    """A tiny network whose batch norms do something."""
    torch.manual_seed(0)
    model = FastRCNNFeatures(FastRCNNConfig(**{**SIZES, "roi_size": 4, **fields})).eval()
    for norm in model.modules():
        if isinstance(norm, FastRCNNFrozenBatchNorm):
            norm.weight.uniform_(0.5, 1.5)
            norm.bias.normal_(std=0.1)
            norm.running_mean.normal_(std=0.1)
            norm.running_var.uniform_(0.5, 1.5)
    return model


def make_inputs():
    """Two images on one canvas; the last region of the second is padding, -2 as in the public code."""
    generator = torch.Generator().manual_seed(1)
    return {
        "pixel_values": torch.randn(2, 3, 64, 80, generator=generator),
        "region_boxes": torch.tensor(
            [
                [[0.0, 0.0, 79.0, 63.0], [10.0, 4.0, 40.0, 50.0], [33.0, 20.0, 60.0, 62.0]],
                [[0.0, 0.0, 63.0, 63.0], [5.0, 30.0, 9.0, 33.0], [-2.0, -2.0, -2.0, -2.0]],
            ]
        ),
        "region_attention_mask": torch.tensor([[1, 1, 1], [1, 1, 0]]),
    }


# -- the same function as transformers' ResNet


@pytest.mark.parametrize("stride_in_1x1", [True, False])
@pytest.mark.parametrize("dilated_c5", [True, False])
def test_a_box_over_the_whole_map_gives_the_pooled_output_of_a_resnet(stride_in_1x1, dilated_c5):
    """Half a cell to the left and above, the samples fall on the cells, so RoIAlign cuts the map out as it is."""
    model = make_model(stride_in_1x1=stride_in_1x1, dilated_c5=dilated_c5)
    resnet = ResNetModel(ResNetConfig(**SIZES, downsample_in_bottleneck=stride_in_1x1)).eval()
    if dilated_c5:
        for layer in resnet.encoder.stages[3].layers:
            layer.layer[1].convolution.dilation = layer.layer[1].convolution.padding = (2, 2)
        for child in resnet.encoder.stages[3].modules():
            if isinstance(child, nn.Conv2d):
                child.stride = (1, 1)
    # Both list their tensors in the order of the stages; only ours has no counters.
    names = [name for name in resnet.state_dict() if "num_batches_tracked" not in name]
    weights = dict(zip(names, model.state_dict().values(), strict=True))
    resnet.load_state_dict(weights, strict=False)
    pixel_values = make_inputs()["pixel_values"][..., :64]
    boxes = torch.tensor([-8.0, -8.0, 56.0, 56.0]).expand(2, 1, 4)
    with torch.no_grad():
        features = model(pixel_values, boxes).region_features[:, 0]
        expected = resnet(pixel_values).pooler_output.flatten(1)
    assert expected.std() > 0.01
    assert_close(features, expected, rtol=1e-4, atol=1e-5)


def test_frozen_batch_norm_equals_one_in_evaluation_mode():
    norm = FastRCNNFrozenBatchNorm(5)
    reference = nn.BatchNorm2d(5).eval()
    for name, value in reference.state_dict().items():
        if value.dim():
            value.uniform_(0.5, 2.0)
            getattr(norm, name).copy_(value)
    inputs = torch.randn(2, 5, 3, 4)
    assert_close(norm.train()(inputs), reference(inputs))
    assert norm(inputs.bfloat16()).dtype == torch.bfloat16
    assert list(norm.parameters()) == []


def test_a_random_deep_network_keeps_its_scale():
    torch.manual_seed(0)
    model = FastRCNNFeatures(FastRCNNConfig(**{**SIZES, "hidden_sizes": [32] * 4, "depths": [3, 4, 23, 3]}))
    with torch.no_grad():
        feature_map = model.get_feature_map(torch.randn(1, 3, 64, 64))
    assert 0.05 < feature_map.std() < 5


# -- what is trained


def test_training_mode_changes_no_number_and_no_statistic():
    model = make_model()
    expected = model(**make_inputs()).region_features
    before = {name: value.clone() for name, value in model.named_buffers()}
    assert_close(model.train()(**make_inputs()).region_features, expected)
    assert_close(dict(model.named_buffers()), before, rtol=0, atol=0)


@pytest.mark.parametrize("frozen_stages", [0, 1, 2, 5])
def test_gradients_reach_all_but_the_frozen_stages(tmp_path, frozen_stages):
    make_model(frozen_stages=frozen_stages).save_pretrained(tmp_path)
    order = ["embedder.", "stages.0.", "stages.1.", "stages.2.", "head."]
    frozen = tuple(order[:frozen_stages])
    for model in (make_model(frozen_stages=frozen_stages), FastRCNNFeatures.from_pretrained(tmp_path)):
        model.train()
        if frozen_stages < 5:
            model(**make_inputs()).region_features.square().sum().backward()
        for name, parameter in model.named_parameters():
            assert parameter.requires_grad != name.startswith(frozen), name
            assert (parameter.grad is None) != parameter.requires_grad, name


@pytest.mark.filterwarnings("ignore:None of the inputs have requires_grad")  # in frozen stages, rightly
@pytest.mark.parametrize("reentrant", [True, False])
@pytest.mark.parametrize("frozen_stages", [0, 2, 4])
def test_gradient_checkpointing_gives_the_same_gradients(reentrant, frozen_stages):
    gradients = []
    for checkpointing in (False, True):
        model = make_model(frozen_stages=frozen_stages).train()
        if checkpointing:
            enable = getattr(model, "activation_checkpointing_enable", model.gradient_checkpointing_enable)
            enable({"use_reentrant": reentrant})
        calls = []
        model.head[0].layer[0].register_forward_hook(lambda *_, calls=calls: calls.append(1))
        model(**make_inputs()).region_features.square().sum().backward()
        assert len(calls) == 1 + checkpointing
        gradients.append({name: p.grad for name, p in model.named_parameters() if p.grad is not None})
    assert gradients[0]
    assert_close(*gradients)


# -- regions


def test_padded_regions_are_zero_and_their_boxes_do_not_matter():
    model = make_model()
    inputs = make_inputs()
    expected = model(**inputs).region_features
    assert expected.shape == (2, 3, model.config.feature_size)
    assert not expected[1, 2].any()
    assert expected[1, 1].any()
    inputs["region_boxes"][1, 2] = float("nan")
    assert_close(model(**inputs).region_features, expected)
    for row in range(2):
        alone = {name: value[row : row + 1] for name, value in inputs.items()}
        assert_close(model(**alone).region_features[0], expected[row])


def test_a_batch_without_any_region_is_zeros_with_a_graph():
    model = make_model().train()
    inputs = make_inputs()
    inputs["region_attention_mask"].zero_()
    features = model(**inputs).region_features
    assert not features.any()
    features.sum().backward()
    assert not model.head[0].layer[0].convolution.weight.grad.any()


def test_regions_in_parts_change_nothing(monkeypatch):
    model = make_model()
    expected = model(**make_inputs()).region_features
    monkeypatch.setattr(module, "_REGIONS_AT_ONCE", 2)
    assert_close(model(**make_inputs()).region_features, expected)


def test_bfloat16_is_close():
    model = make_model()
    inputs = make_inputs()
    with torch.no_grad():
        expected = model(**inputs).region_features
        with torch.autocast("cpu", dtype=torch.bfloat16):
            automatic = model(**inputs).region_features
        lowered = model.bfloat16()(**inputs).region_features
    assert lowered.dtype == torch.bfloat16
    most = 0.05 * expected.abs().max().item()
    assert_close(lowered.float(), expected, rtol=0, atol=most)
    assert_close(automatic.float(), expected, rtol=0, atol=most)


# -- saving


def test_registered_classes_load_every_tensor(tmp_path):
    model = make_model(dilated_c5=False, frozen_stages=3)
    model.save_pretrained(tmp_path)
    assert type(AutoConfig.from_pretrained(tmp_path)) is FastRCNNConfig
    loaded, info = AutoModel.from_pretrained(tmp_path, output_loading_info=True)
    assert type(loaded) is FastRCNNFeatures
    assert not info["missing_keys"]
    assert not info["unexpected_keys"]
    assert (loaded.config.dilated_c5, loaded.config.frozen_stages) == (False, 3)
    assert_close(loaded.state_dict(), model.state_dict(), rtol=0, atol=0)


# -- wrong input


@pytest.mark.parametrize(
    "change, message",
    [
        ({"region_boxes": (2, 3, 5)}, r"region_boxes have the shape \(2, 3, 5\)"),
        ({"region_boxes": (1, 3, 4)}, r"region_boxes have the shape \(1, 3, 4\)"),
        ({"region_boxes": (3, 4)}, r"region_boxes have the shape \(3, 4\)"),
        ({"region_attention_mask": (2, 2)}, r"region_attention_mask has the shape \(2, 2\)"),
        ({"region_boxes": torch.full((2, 3, 4), torch.inf)}, r"region_boxes\[0, 0\] is \[inf"),
        ({"pixel_values": (2, 1, 64, 80)}, "channel"),
    ],
)
def test_wrong_inputs_are_named(change, message):
    with pytest.raises(ValueError, match=message):
        make_model()(**{**make_inputs(), **of_shapes(change)})


@pytest.mark.parametrize(
    "fields, message",
    [
        ({"depths": [1, 1, 1]}, "depths must be 4 positive numbers"),
        ({"hidden_sizes": [8, 8, 8, 0]}, "hidden_sizes must be 4 positive numbers"),
        ({"hidden_sizes": [8, 8, 8, 10]}, "multiples of 4"),
        ({"roi_size": 0}, "roi_size must be positive"),
        ({"sampling_ratio": -1}, "sampling_ratio must be positive"),
        ({"frozen_stages": 6}, "frozen_stages must be from 0 to 5"),
        ({"stride_in_1x1": "yes"}, "stride_in_1x1"),
    ],
)
def test_config_refuses_what_does_not_fit(fields, message):
    with pytest.raises(StrictDataclassError, match=message):
        FastRCNNConfig(**fields)
