# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""VL-BERT: inputs and their errors, heads against plain formulas, back ends."""

import pytest
import torch
from torch import nn
from transformers import AttentionInterface
from transformers.masking_utils import ALL_MASK_ATTENTION_FUNCTIONS, AttentionMaskInterface

from grounded_attention.modeling import VLBertConfig, VLBertForPreTraining, VLBertForVGP, VLBertModel
from grounded_attention.modeling.modeling_vl_bert import embed_coordinates
from grounded_attention.modeling.task_heads import pool_phrases
from tests.helpers.closeness import assert_close
from tests.helpers.padded_inputs import of_shapes
from tests.helpers.tiny_vl_bert import B, D, F, R, T, make_inputs, make_model, tiny_config


def valid_states(outputs, inputs):
    text = inputs["attention_mask"].bool()
    regions = inputs["region_attention_mask"].bool()
    return [outputs.text_hidden_state[text], outputs.region_hidden_state[regions], outputs.end_hidden_state]


# -- inputs and outputs


def test_output_names_the_columns():
    outputs = make_model()(**make_inputs(), output_hidden_states=True)
    columns = [outputs.text_hidden_state, outputs.region_hidden_state, outputs.end_hidden_state[:, None]]
    assert_close(torch.cat(columns, dim=1), outputs.last_hidden_state)
    assert outputs.last_hidden_state.shape == (B, T + R + 1, D)
    assert outputs.pooler_output.shape == (B, D)
    assert len(outputs.hidden_states) == 3


def test_text_only_equals_a_batch_row_whose_regions_are_all_padding():
    model = make_model()
    inputs = make_inputs()
    inputs["region_attention_mask"][1] = 0
    mixed = model(**inputs)
    alone = model(input_ids=inputs["input_ids"][1:2, :5], token_type_ids=inputs["token_type_ids"][1:2, :5])
    assert alone.region_hidden_state.shape == (1, 0, D)
    assert_close(alone.text_hidden_state[0], mixed.text_hidden_state[1, :5])
    assert_close(alone.end_hidden_state[0], mixed.end_hidden_state[1])


def test_text_sees_the_whole_image_region():
    """With the region columns cut off from attention, text still changes with the first region and only with it."""
    model = make_model()
    inputs = make_inputs()
    mask = inputs["region_attention_mask"].bool()

    def context(features):
        return model.embeddings.get_visual_context(model.region_encoder(features, inputs["region_boxes"]), mask)

    features = inputs["region_features"]
    before = context(features)
    features[:, 1:] += 1.0
    assert_close(context(features), before)
    features[:, 0] += 1.0
    assert not torch.allclose(context(features), before)


@pytest.mark.parametrize("cls", [VLBertModel, VLBertForVGP])
@pytest.mark.parametrize(
    "change, message",
    [
        ({"region_features": (3, 4, 11)}, rf"\(3, 4, {F + 1}\).*region_feature_size is {F}"),
        ({"region_boxes": None}, "region_features are given without region_boxes"),
        ({"region_features": None}, "region_boxes are given without region_features"),
        (
            {"region_features": None, "region_boxes": None},
            "region_attention_mask are given without region_features or pixel_values",
        ),
        ({"region_features": (3, 10)}, rf"expected \(3, num_regions, {F}\)"),
        ({"region_features": (4, 4, 10)}, r"region_features have the shape \(4, 4, 10\)"),
        ({"attention_mask": (3, 8)}, r"attention_mask have the shape \(3, 8\)"),
        ({"attention_mask": (7,)}, r"attention_mask have the shape \(7,\)"),
        ({"token_type_ids": (1, 7)}, r"token_type_ids have the shape \(1, 7\)"),
        ({"region_attention_mask": (3, 3)}, r"region_attention_mask .* \(3, 3\)"),
        ({"region_boxes": (3, 5, 4)}, r"region_boxes have the shape \(3, 5, 4\)"),
        ({"input_ids": None}, "exactly one of input_ids and inputs_embeds"),
        ({"input_ids": (3, 19)}, "19 tokens long, but this model takes at most 18"),
        ({"grounding_queries": {"text_to_regions": ()}}, "unknown entries.*text_to_regions"),
    ],
)
def test_wrong_inputs_are_named(cls, change, message):
    with pytest.raises(ValueError, match=message):
        make_model(cls)(**{**make_inputs(), **of_shapes(change)})


@pytest.mark.parametrize(
    "change, message",
    [
        ({"masked_regions": (3, 5)}, r"masked_regions have the shape \(3, 5\)"),
        ({"labels": (3, 8)}, r"labels have the shape \(3, 8\)"),
        ({"region_labels": (3, 5)}, r"region_labels have the shape \(3, 5\)"),
        ({"region_label_probs": (3, 4, 5)}, r"\(3, 4, 5\), expected \(3, 4, 6\)"),
        ({"relationship_labels": (2,)}, r"relationship_labels have the shape \(2,\)"),
        ({"labels": (3, 7), "text_only": (3, 1)}, r"text_only have the shape \(3, 1\)"),
    ],
)
def test_wrong_targets_are_named(change, message):
    with pytest.raises(ValueError, match=message):
        make_model(VLBertForPreTraining, relationship_head=True)(**make_inputs(), **of_shapes(change))


def test_masked_regions_need_regions():
    ids = torch.ones(B, T, dtype=torch.long)
    model = make_model(VLBertForPreTraining)
    with pytest.raises(ValueError, match=r"masked_regions have the shape \(3, 4\)"):
        model(ids, masked_regions=torch.ones(B, R))
    assert model(ids, masked_regions=torch.ones(B, 0)).region_logits.shape == (B, 0, 6)


def test_config_refuses_what_does_not_fit():
    with pytest.raises(Exception, match=r"hidden_size \(24\) must be a multiple of num_attention_heads \(5\)"):
        tiny_config(num_attention_heads=5)
    with pytest.raises(Exception, match="coordinate_embedding"):
        tiny_config(coordinate_embedding="middle")
    large = VLBertConfig.large(vocab_size=100)
    sizes = [large.num_hidden_layers, large.hidden_size, large.visual_size, large.vocab_size]
    assert sizes == [24, 1024, 1024, 100]


def test_position_ids_with_holes_and_offset():
    model = make_model(position_offset=2)
    mask = torch.tensor([[1, 0, 1, 1, 0], [0, 0, 0, 0, 1]]).bool()
    ids = model.embeddings.create_position_ids(mask, num_regions=2)
    attended = torch.cat([mask, torch.ones(2, 3, dtype=torch.bool)], dim=1)
    assert ids[0][attended[0]].tolist() == [2, 3, 4, 5, 5, 6]
    assert ids[1][attended[1]].tolist() == [2, 3, 3, 4]
    assert ids.max() < 20


# -- parts against plain formulas


@pytest.mark.parametrize("form", ["center", "corner"])
def test_coordinate_embedding_by_its_formula(form):
    box = [0.1, 0.2, 0.5, 0.9]
    numbers = [0.3, 0.55, 0.4, 0.7] if form == "center" else box
    expected = []
    for number in numbers:
        angles = [100 * number / 1000 ** (k / 4) for k in range(4)]
        expected += [torch.tensor(angles).sin(), torch.tensor(angles).cos()]
    assert_close(embed_coordinates(torch.tensor(box), 4, form), torch.cat(expected))


def test_region_encoder_by_its_formula():
    model = make_model()
    inputs = make_inputs()
    layer = model.region_encoder.projection
    boxes = inputs["region_boxes"]
    features = inputs["region_features"]
    joined = torch.cat([embed_coordinates(boxes, 3, "center"), features], dim=-1)
    expected = joined @ layer.weight.T + layer.bias
    assert_close(model.region_encoder(features, boxes), expected.clamp(min=0))


def test_pool_phrases_shares_the_gradient_of_equal_maxima():
    states = torch.randint(0, 2, (2, 9, 4), generator=torch.Generator().manual_seed(0)).float().requires_grad_()
    mask = torch.zeros(2, 3, 9, dtype=torch.bool)
    mask[0, 0, [1, 4, 8]] = mask[0, 1, 2:5] = mask[1, 0, :] = mask[1, 2, 6] = True
    pooled = pool_phrases(states, mask)
    assert not pooled[~mask.any(2)].any()
    weights = torch.arange(1.0, 1 + pooled.numel()).view_as(pooled)
    (pooled * weights).sum().backward()
    expected = torch.zeros_like(states)
    for b, p in mask.any(2).nonzero().tolist():
        words = mask[b, p, :, None]
        best = words & (states[b] == states[b][mask[b, p]].amax(0))  # (T, D)
        expected[b] += best * weights[b, p] / best.sum(0)
    assert_close(states.grad, expected)


# -- back ends


def test_flex_attention_equals_eager(uncompiled):
    model = make_model(hidden_size=32)
    inputs = make_inputs()
    with torch.no_grad():
        model.set_attn_implementation("eager")
        expected = valid_states(model(**inputs), inputs)
        model.set_attn_implementation("flex_attention")
        assert_close(valid_states(model(**inputs), inputs), expected)


# -- grounding queries


def test_grounding_queries_reach_the_attention_function_in_sequence_positions():
    calls = []

    def attention(module, query, key, value, attention_mask, scaling=None, dropout=0.0, **kwargs):
        calls.append({**kwargs, "mask": attention_mask})
        output = nn.functional.scaled_dot_product_attention(query, key, value, attention_mask, scale=scaling)
        return output.transpose(1, 2), query.mean()

    AttentionInterface.register("recording", attention)
    AttentionMaskInterface.register("recording", ALL_MASK_ATTENTION_FUNCTIONS["sdpa"])
    model = make_model(VLBertForVGP)
    model.set_attn_implementation("recording")
    rows = torch.tensor([[1, 2, -1]] * B)
    columns = torch.tensor([[0, 3, -1]] * B)
    queries = {"region_to_text": (columns, rows), "text_to_region": (rows, columns)}
    outputs = model(**make_inputs(), grounding_queries=queries, attention_share=False, output_attentions=True)
    assert len(calls) == 2
    assert len(outputs.attentions) == 2
    regions = torch.tensor([[T, T + 3, -1]] * B)
    for call in calls:
        assert call["attention_share"] is False
        assert call["mask"].shape == (B, 1, T + R + 1, T + R + 1)
        from_text, from_regions = call["attention_queries"]
        assert_close([*from_text], [rows, regions])
        assert_close([*from_regions], [regions, rows])
