# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""VL-BERT from pixels: its own region features, hidden pixels, training end to end, wrong inputs."""

import pytest
import torch
from torch import nn
from transformers import AutoModel

from grounded_attention.modeling import (
    FastRCNNConfig,
    VLBertForPreTraining,
    VLBertForReferringExpression,
    VLBertForVGP,
    VLBertForVisualQuestionAnswering,
    VLBertModel,
)
from grounded_attention.modeling.modeling_vl_bert import mask_region_pixels
from tests.helpers.closeness import assert_close
from tests.helpers.padded_inputs import of_shapes
from tests.helpers.tiny_vl_bert import make_model, tiny_config
from tests.modeling.tiny_vl_bert_pixels import VISION, as_features, make_inputs, make_pixel_model

CLASSES = [VLBertModel, VLBertForPreTraining, VLBertForVGP]


MASKED = torch.tensor([[0, 1, 0, 0], [0, 0, 1, 0], [0, 0, 0, 0]]).bool()


@pytest.mark.parametrize("cls", [*CLASSES, VLBertForReferringExpression, VLBertForVisualQuestionAnswering])
def test_pixels_equal_the_features_of_their_boxes(cls):
    model = make_pixel_model(cls)
    inputs = make_inputs()
    if cls is VLBertForVisualQuestionAnswering:
        inputs["answer_positions"] = torch.tensor([1, 1, 1])
    mine = model(**inputs, output_hidden_states=True).hidden_states
    theirs = model(**as_features(model, inputs), output_hidden_states=True).hidden_states
    regions = torch.cat([torch.ones(3, 7), inputs["region_attention_mask"], torch.ones(3, 1)], dim=1).bool()
    assert_close([states[regions] for states in mine], [states[regions] for states in theirs])
    inputs["pixel_values"][1] += 30.0
    assert not torch.allclose(model(**inputs, output_hidden_states=True).hidden_states[-1][1], theirs[-1][1])


def test_text_alone_and_rows_of_text_alone_need_no_image():
    model = make_pixel_model()
    inputs = make_inputs()
    expected = model(**inputs)
    alone = model(input_ids=inputs["input_ids"][2:, :3])
    assert_close(alone.text_hidden_state[0], expected.text_hidden_state[2, :3])
    inputs["region_attention_mask"].zero_()
    nothing = model(**inputs)
    assert_close(nothing.text_hidden_state[2], expected.text_hidden_state[2])


@pytest.mark.parametrize("back_end", ["eager", "sdpa", "flex_attention"])
def test_a_back_end_of_the_whole_model_is_set_and_asked_for(back_end):
    model = make_pixel_model()
    inputs = make_inputs()
    expected = model(**inputs).text_hidden_state
    model.set_attn_implementation(back_end)
    assert model.config._attn_implementation == back_end
    if back_end != "flex_attention":
        assert_close(model(**inputs).text_hidden_state, expected)
    asked = VLBertModel._from_config(make_pixel_model().config, attn_implementation=back_end)
    assert asked.config._attn_implementation == back_end


def test_training_reaches_the_pixel_network_except_its_frozen_stages():
    model = make_pixel_model(VLBertForPreTraining).train()
    inputs = make_inputs()
    model(**inputs, masked_regions=MASKED, region_labels=torch.where(MASKED, 3, -100)).loss.backward()
    vision = model.vl_bert.vision_model
    for part in (vision.stages[1], vision.stages[2], vision.head):
        assert all(weight.grad.abs().sum() > 0 for weight in part.parameters())
    assert all(weight.grad is None for weight in vision.embedder.parameters())
    assert model.vl_bert.region_encoder.projection.weight.grad.abs().sum() > 0


@pytest.mark.parametrize("cls", CLASSES)
def test_the_pixel_network_is_saved_with_the_model(tmp_path, cls):
    model = make_pixel_model(cls, region_masking="pixels")
    inputs = make_inputs()
    model.save_pretrained(tmp_path)
    loaded = cls.from_pretrained(tmp_path)
    assert isinstance(loaded.config.vision_config, FastRCNNConfig)
    assert loaded.config.vision_config.hidden_sizes == VISION["hidden_sizes"]
    assert loaded.config.region_masking == "pixels"
    assert_close(loaded(**inputs)[0], model(**inputs)[0])
    base = AutoModel.from_pretrained(tmp_path)
    expected = getattr(model, "vl_bert", model).vision_model.state_dict()
    for name, value in base.vision_model.state_dict().items():
        assert torch.equal(value, expected[name]), name
    assert "class FastRCNNFeatures" in (tmp_path / "modeling_vl_bert.py").read_text()


# -- hidden regions


def test_masked_pixels_are_those_of_the_boxes_both_edges_included():
    generator = torch.Generator().manual_seed(3)
    image = torch.rand(2, 3, 9, 11, generator=generator) + 1.0
    corners = torch.rand(2, 5, 2, 2, generator=generator).sort(dim=2).values.flatten(2)
    boxes = corners * torch.tensor([[[11, 9, 11, 9]], [[7, 8, 7, 8]]])
    boxes[0, 0] = torch.tensor([3.0, 2.0, 6.0, 5.0])
    masked = torch.tensor([[1, 0, 1, 0, 0], [0, 0, 0, 1, 0]]).bool()
    expected = image.clone()
    for row, region in ((0, 0), (0, 2), (1, 3)):
        x1, y1, x2, y2 = boxes[row, region].int().tolist()
        expected[row, :, y1 : y2 + 1, x1 : x2 + 1] = 0.0
    assert torch.equal(mask_region_pixels(image, boxes, masked), expected)
    assert torch.equal(mask_region_pixels(image, boxes, masked & False), image)


@pytest.mark.parametrize("width", [333, 600, 901, 1000])
def test_edges_on_a_pixel_survive_the_division_by_the_size(width):
    edges = torch.arange(width).float()
    zeros = torch.zeros(width)
    boxes = torch.stack([edges, zeros, edges, zeros], dim=-1) / width * width
    image = torch.ones(width, 1, 1, width)
    masked = mask_region_pixels(image, boxes[:, None], torch.ones(width, 1).bool())
    assert torch.equal(masked[:, 0, 0] == 0, torch.eye(width, dtype=torch.bool))


def test_pixel_masking_hides_pixels_and_word():
    model = make_pixel_model(VLBertForPreTraining, region_masking="pixels")
    inputs = make_inputs()
    assert model.region_mask_embedding is None
    masked = torch.tensor([[0, 1, 0, 1], [0, 0, 1, 0], [1, 0, 0, 0]]).bool()  # two of them are padding
    mine = model(**inputs, masked_regions=masked)
    blanked = {**inputs, "pixel_values": inputs["pixel_values"].clone()}
    words = model.vl_bert.embeddings.region_embedding.weight.expand(3, 4, -1).clone()
    for row, region in ((0, 1), (1, 2)):
        box = inputs["region_boxes"][row, region] * inputs["image_sizes"][row].repeat(2)
        x1, y1, x2, y2 = box.int().tolist()
        blanked["pixel_values"][row, :, y1 : y2 + 1, x1 : x2 + 1] = 0.0
        words[row, region] = model.masked_region_embedding.weight[0]
    expected = model.vl_bert(**blanked, region_linguistic_embeds=words)
    assert_close(mine.mlm_logits, model.mlm_head(expected.text_hidden_state))
    assert not torch.allclose(mine.mlm_logits[0], model(**inputs).mlm_logits[0])


def test_feature_masking_from_pixels_equals_that_from_features():
    model = make_pixel_model(VLBertForPreTraining)
    inputs = make_inputs()
    nn.init.normal_(model.region_mask_embedding.weight)
    mine = model(**inputs, masked_regions=MASKED).mlm_logits
    theirs = model(**as_features(model, inputs), masked_regions=MASKED).mlm_logits
    assert_close(mine, theirs)
    assert not torch.allclose(mine, model(**inputs).mlm_logits)


@pytest.mark.parametrize("masking", ["feature", "pixels"])
def test_leaving_padding_out_keeps_the_loss(masking):
    labels = torch.full((3, 7), -100)
    labels[0, 1] = 4
    labels[2, 2] = 5
    targets = {"labels": labels, "region_labels": torch.where(MASKED, 3, -100), "text_only": torch.tensor([0, 0, 1])}
    losses = []
    for unpad in (False, True):
        model = make_pixel_model(VLBertForPreTraining, region_masking=masking, unpad=unpad)
        losses.append(model(**make_inputs(), masked_regions=MASKED, **targets).loss)
    assert_close(*losses)


# -- wrong inputs


@pytest.mark.parametrize("cls", [VLBertModel, VLBertForVGP])
@pytest.mark.parametrize(
    "change, message",
    [
        ({"region_features": (3, 4, 16)}, "Give region_features or pixel_values, not both"),
        ({"image_sizes": None}, "pixel_values are given without image_sizes"),
        ({"pixel_values": None, "region_features": (3, 4, 16)}, "image_sizes are given without pixel_values"),
        ({"region_boxes": None}, "pixel_values are given without region_boxes"),
        ({"pixel_values": (3, 48, 64)}, r"pixel_values have the shape \(3, 48, 64\)"),
        ({"pixel_values": (2, 3, 48, 64)}, r"pixel_values have the shape \(2, 3, 48, 64\)"),
        ({"image_sizes": (3, 4)}, r"image_sizes have the shape \(3, 4\)"),
        ({"image_sizes": torch.tensor([[40, 64]] * 3)}, "canvas 64 wide and 48 high"),
        ({"image_sizes": torch.zeros(3, 2).long()}, "expected the width and height of each image in pixels"),
        ({"region_boxes": (3, 4)}, r"region_boxes have the shape \(3, 4\)"),
        ({"region_attention_mask": (3, 5)}, r"region_attention_mask have the shape \(3, 5\)"),
    ],
)
def test_wrong_pixel_inputs_are_named(cls, change, message):
    with pytest.raises(ValueError, match=message):
        make_pixel_model(cls)(**{**make_inputs(), **of_shapes(change)})


@pytest.mark.parametrize("cls", CLASSES)
def test_a_model_without_pixel_network_refuses_pixels(cls):
    with pytest.raises(ValueError, match="this model has no pixel network"):
        make_model(cls)(**make_inputs())


def test_pixel_masking_needs_pixels():
    model = make_pixel_model(VLBertForPreTraining, region_masking="pixels")
    inputs = as_features(model, make_inputs())
    assert model(**inputs).mlm_logits.isfinite().all()
    with pytest.raises(ValueError, match=r'config\.region_masking is "pixels"'):
        model(**inputs, masked_regions=torch.ones(3, 4).bool())


@pytest.mark.parametrize(
    "fields, message",
    [
        ({"region_masking": "pixels"}, 'region_masking "pixels" needs vision_config'),
        ({"region_masking": "boxes"}, "region_masking"),
        ({"vision_config": VISION}, r"region_feature_size \(10\) must equal the feature width .* \(16\)"),
        ({"vision_config": {**VISION, "depths": [1]}}, "depths must be 4 positive numbers"),
        ({"vision_config": 3}, "vision_config"),
    ],
)
def test_config_refuses_what_does_not_fit(fields, message):
    with pytest.raises(Exception, match=message):
        tiny_config(**fields)
