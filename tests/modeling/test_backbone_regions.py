# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""Region features from tiny random backbones of several kinds; what is no vision model is refused."""

import json

import pytest
import torch
from huggingface_hub.errors import StrictDataclassError
from safetensors.torch import load_file, save_file
from torch.testing import assert_close
from transformers import (
    BertConfig,
    BertModel,
    CLIPConfig,
    CLIPModel,
    ConvNextConfig,
    ConvNextModel,
    Dinov2Backbone,
    Dinov2Config,
    Dinov2WithRegistersConfig,
    Dinov2WithRegistersModel,
    ResNetConfig,
    ResNetModel,
    SwinConfig,
    SwinModel,
    VideoMAEConfig,
    VideoMAEModel,
    ViTConfig,
    ViTForImageClassification,
    YolosConfig,
    YolosModel,
)

from grounded_attention.modeling import BackboneRegionFeatures, BackboneRegionsConfig, FastRCNNConfig, FastRCNNFeatures
from grounded_attention.modeling.region_feature_models import load_region_features

LAYERS = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 20}
VIT = {**LAYERS, "image_size": 64, "patch_size": 16}
DINO = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "image_size": 56, "patch_size": 14}
SWIN = {"embed_dim": 8, "depths": [1, 1], "num_heads": [2, 2], "window_size": 4, "image_size": 64}
WORDS = {**LAYERS, "vocab_size": 99, "bos_token_id": 0, "eos_token_id": 1}

# Name -> how to make the model, width and stride of its features.
BACKBONES = {
    "resnet": (lambda: ResNetModel(ResNetConfig(embedding_size=8, hidden_sizes=[8, 12], depths=[1, 1])), 12, 8),
    "convnext": (lambda: ConvNextModel(ConvNextConfig(hidden_sizes=[8, 12, 16, 20], depths=[1] * 4)), 20, 32),
    "vit": (lambda: ViTForImageClassification(ViTConfig(**VIT)), 16, 16),
    "dinov2": (lambda: Dinov2Backbone(Dinov2Config(**DINO)), 16, 14),
    "registers": (lambda: Dinov2WithRegistersModel(Dinov2WithRegistersConfig(**DINO)), 16, 14),
    "swin": (lambda: SwinModel(SwinConfig(**SWIN)), 16, 8),
    "clip": (lambda: CLIPModel(CLIPConfig(text_config=WORDS, vision_config=VIT)), 16, 16),
}


@pytest.fixture
def load(tmp_path):
    """Saves a backbone, and loads it as a model of region features."""

    def load(name, **options):
        torch.manual_seed(0)
        BACKBONES[name][0]().save_pretrained(tmp_path / name)
        return load_region_features(str(tmp_path / name), **options)

    return load


def make_inputs():
    generator = torch.Generator().manual_seed(0)
    boxes = torch.tensor([[[0.0, 0.0, 129.0, 89.0], [3.0, 5.0, 40.0, 60.0]], [[70.0, 2.0, 75.0, 9.0], [-2.0] * 4]])
    return {
        "pixel_values": torch.randn(2, 3, 90, 130, generator=generator),
        "region_boxes": boxes,
        "region_attention_mask": torch.tensor([[1, 1], [1, 0]]),
    }


@pytest.mark.parametrize("name", BACKBONES)
def test_any_backbone_gives_features_and_comes_back(load, tmp_path, name):
    model = load(name)
    _, width, stride = BACKBONES[name]
    inputs = make_inputs()
    assert model.config.feature_size == width
    assert model.config.feature_stride == stride
    assert not model.training
    features = model(**inputs).region_features
    assert features.shape == (2, 2, width)
    assert not features[1, 1].any()
    assert (features[0, 0] - features[0, 1]).abs().max() > 1e-4
    features.sum().backward()
    model.save_pretrained(tmp_path / "model")
    loaded = load_region_features(str(tmp_path / "model"))
    assert type(loaded) is BackboneRegionFeatures
    assert loaded.config.feature_size == width
    assert_close(loaded(**inputs).region_features, features)


@torch.no_grad()
def test_the_grid_of_patches_is_read_row_by_row_without_class_token(load):
    model = load("vit")
    pixel_values = torch.randn(1, 3, 32, 48)
    tokens = model.backbone(pixel_values, interpolate_pos_encoding=True).last_hidden_state[0]
    patches = tokens[1:].view(2, 3, 16)
    assert_close(model.get_feature_map(pixel_values)[0], patches.permute(2, 0, 1))


def test_padding_to_whole_cells_is_zeros_at_the_right_and_the_bottom(load):
    model = load("resnet")
    image = torch.randn(1, 3, 19, 30)
    canvas = torch.zeros(1, 3, 24, 32)
    canvas[..., :19, :30] = image
    assert_close(model.get_feature_map(image), model.get_feature_map(canvas))


def test_the_mean_over_a_box_sits_at_its_centre(load, monkeypatch):
    """On a map that holds the pixel coordinates of its cells' centres, a feature is the centre of its box."""
    model = load("resnet")
    rows, columns = torch.meshgrid(torch.arange(12.0), torch.arange(17.0), indexing="ij")
    places = (torch.stack([columns, rows]) + 0.5) * model.config.feature_stride
    monkeypatch.setattr(model, "get_feature_map", lambda pixel_values: places[None])
    boxes = torch.tensor([[[8.0, 8.0, 40.0, 24.0], [31.0, 17.0, 77.5, 60.0], [50.0, 50.0, 58.0, 60.0]]])
    centres = (boxes[..., :2] + boxes[..., 2:]) / 2
    assert_close(model(torch.zeros(1, 3, 96, 136), boxes).region_features, centres)


def test_load_region_features_knows_our_own_network(tmp_path):
    sizes = {"embedding_size": 8, "hidden_sizes": [8, 8, 8, 12], "depths": [1] * 4}
    FastRCNNFeatures(FastRCNNConfig(**sizes)).save_pretrained(tmp_path)
    model = load_region_features(str(tmp_path), dtype=torch.bfloat16)
    assert type(model) is FastRCNNFeatures
    assert model.dtype == torch.bfloat16
    assert model.config.feature_size == 12


def test_options_reach_the_backbone(tmp_path):
    BACKBONES["dinov2"][0]().save_pretrained(tmp_path)
    model = BackboneRegionFeatures.from_backbone(str(tmp_path), roi_size=3, sampling_ratio=1, dtype=torch.bfloat16)
    assert model.config.roi_size == 3
    assert model.config.sampling_ratio == 1
    assert model(**make_inputs()).region_features.dtype == torch.bfloat16


# -- wrong input


@pytest.mark.parametrize(
    "make, message",
    [
        (lambda: BertModel(BertConfig(**WORDS)), "a bert model reads input_ids, not images"),
        (lambda: YolosModel(YolosConfig(**{**VIT, "image_size": [64, 64]})), "expected a map"),
        (lambda: VideoMAEModel(VideoMAEConfig(**VIT)), "cannot be run on an image alone"),
    ],
)
def test_what_gives_no_map_of_an_image_is_refused(tmp_path, make, message):
    make().save_pretrained(tmp_path)
    with pytest.raises(ValueError, match=message) as caught:
        load_region_features(str(tmp_path))
    assert str(tmp_path) in str(caught.value)


def test_a_checkpoint_without_some_weights_is_refused(tmp_path):
    BACKBONES["resnet"][0]().save_pretrained(tmp_path)
    weights = load_file(tmp_path / "model.safetensors")
    rest = {name: value for name, value in weights.items() if not name.startswith("encoder.stages.1")}
    save_file(rest, tmp_path / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(ValueError, match=r"has no weights for encoder\.stages\.1"):
        load_region_features(str(tmp_path))


def test_an_unknown_place_is_named(tmp_path):
    with pytest.raises(OSError, match="nowhere"):
        load_region_features(str(tmp_path / "nowhere"))
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "no such model"}))
    with pytest.raises(ValueError, match="no such model"):
        load_region_features(str(tmp_path))


def test_configuration_needs_what_running_the_backbone_tells():
    config = BackboneRegionsConfig(backbone_config=ResNetConfig(depths=[1], hidden_sizes=[8]))
    with pytest.raises(ValueError, match="from_backbone to find them"):
        BackboneRegionFeatures(config)
    with pytest.raises(StrictDataclassError, match="feature_stride must be positive, found 0"):
        BackboneRegionsConfig(feature_stride=0)


def test_wrong_boxes_are_named(load):
    inputs = make_inputs()
    inputs["region_boxes"] = inputs["region_boxes"][:, :, :3]
    with pytest.raises(ValueError, match=r"region_boxes have the shape \(2, 2, 3\)"):
        load("resnet")(**inputs)


def checkpoint_activations(model):
    getattr(model, "activation_checkpointing_enable", model.gradient_checkpointing_enable)()


def test_gradient_checkpointing_where_the_backbone_can(load):
    gradients = []
    for checkpointing in (False, True):
        model = load("vit").train()
        if checkpointing:
            checkpoint_activations(model)
        model(**make_inputs()).region_features.square().sum().backward()
        gradients.append([p.grad for p in model.parameters() if p.grad is not None])
    assert_close(*gradients)


def test_gradient_checkpointing_is_refused_where_the_backbone_cannot(load):
    with pytest.raises(ValueError, match="does not support"):
        checkpoint_activations(load("resnet"))
