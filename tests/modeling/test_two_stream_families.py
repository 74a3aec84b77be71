# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""ViLBERT and LXMERT: an index of a token never reaches the axis of the regions, and padding never matters."""

import re
from unittest import mock

import numpy as np
import pytest
import torch
from transformers.masking_utils import ALL_MASK_ATTENTION_FUNCTIONS
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from grounded_attention.families import FAMILIES
from grounded_attention.heads.attention_grounding import AttentionGrounding
from grounded_attention.modeling import ViLBertConfig, VisualBERTConfig, VLBertConfig
from grounded_attention.modeling.attention_calls import (
    DIRECTION_STREAMS,
    REGIONS,
    SEQUENCE,
    TEXT,
    layer_names,
    one_stream_calls,
)
from grounded_attention.supervision import get_method, row_plans, supervise
from grounded_attention.supervision.attention_function import supervised_implementation
from grounded_attention.supervision.rollout import attention_rollout, rollout_blocks, rollout_layers
from tests.helpers.closeness import assert_close
from tests.helpers.packed_kernel import packed_kernel
from tests.helpers.padded_inputs import of_shapes, padded_inputs
from tests.helpers.tiny_two_streams import make_lxmert, make_vilbert

MAKE = {"vilbert": make_vilbert, "lxmert": make_lxmert}
INPUTS = ("input_ids", "attention_mask", "region_features", "region_boxes", "region_attention_mask")
B = 3
F = 16

families = pytest.mark.parametrize("family", MAKE)
sizes = pytest.mark.parametrize("words, regions", [(9, 4), (4, 7)])


def make(family, back_end="sdpa", head="vgp", **fields):
    entry = FAMILIES[family]
    return MAKE[family](entry.heads.get(head, entry.base_model), back_end, **fields)


def make_batch(words=9, regions=4):
    """Ragged on both sides; the last word and the last region of the first row are grounded."""
    inputs = padded_inputs([words, words - 1, words], [regions, regions, regions - 2], F)
    phrase_mask = torch.zeros(B, 2, words, dtype=torch.bool)
    phrase_regions = torch.zeros(B, 2, regions, dtype=torch.bool)
    phrase_mask[[0, 2], 0, -1] = True
    phrase_mask[0, 1, 1:3] = True
    phrase_mask[1, 0, 0] = True
    phrase_regions[0, 0, [-1, 1]] = True
    phrase_regions[[0, 1, 2], [1, 0, 0], [2, 3, 1]] = True
    inputs["region_candidate_mask"] = inputs["region_attention_mask"].bool()
    return {**inputs, "phrase_mask": phrase_mask, "phrase_regions": phrase_regions}


def run(model, batch, **kwargs):
    return model(**{name: batch[name] for name in INPUTS}, **kwargs)


def supervised(model, batch, name="direct", **options):
    """The losses of a method, and the model's outputs."""
    method = get_method(name, **options)
    method.prepare(model)
    outputs = run(model, batch, **method.forward_kwargs(batch))
    return method.losses(outputs, batch), outputs


def cross_maps(family, batch):
    """Direction -> the eager maps of the co-attention; the other maps are those of one stream."""
    words = batch["phrase_mask"].shape[2]
    regions = batch["phrase_regions"].shape[2]
    with torch.no_grad():
        maps = run(make(family, "eager"), batch, output_attentions=True).attentions
    shapes = {"text_to_region": (words, regions), "region_to_text": (regions, words)}
    return {name: [layer for layer in maps if layer.shape[2:] == shape] for name, shape in shapes.items()}


def grounded_rows(batch, direction):
    """(example, row, gold columns, visible columns) of every grounded row."""
    queries = batch["phrase_mask"]
    keys = batch["phrase_regions"]
    visible = batch["region_attention_mask"]
    if direction == "region_to_text":
        queries, keys = keys, queries
        visible = batch["attention_mask"]
    gold = queries.long().transpose(1, 2) @ keys.long()  # (B, rows, columns): in how many phrases both are
    for example, row in gold.any(2).nonzero().tolist():
        yield example, row, gold[example, row].nonzero()[:, 0], visible[example].nonzero()[:, 0]


def row_loss(attention, gold, columns):
    """Cross-entropy of the attention of a row, renormalised over its columns, with a uniform target."""
    return -(attention[gold] / attention[columns].sum()).log().mean().item()


@sizes
@families
@pytest.mark.parametrize("layers", [None, ["cross 1"]], ids=str)
@pytest.mark.parametrize("unpad", [False, True])
@pytest.mark.parametrize("back_end", ["eager", "sdpa"])
def test_direct_supervision_equals_loops_over_eager_maps(family, words, regions, layers, unpad, back_end):
    batch = make_batch(words, regions)
    found, _ = supervised(make(family, back_end, unpad=unpad), batch, layers=layers)
    for direction, maps in cross_maps(family, batch).items():
        assert len(maps) == 2
        cells = []
        for layer in maps if layers is None else maps[1:]:
            for example, row, gold, columns in grounded_rows(batch, direction):
                cells += [row_loss(head[row], gold, columns) for head in layer[example]]
        total, count = found[direction]
        assert (total / count).item() == pytest.approx(np.mean(cells), rel=1e-4)


@families
@pytest.mark.parametrize("unpad", [False, True])
def test_layers_share_a_plan_for_each_direction(family, unpad):
    model = make(family, unpad=unpad)
    with mock.patch.object(row_plans, "make_plan", wraps=row_plans.make_plan) as make_plan:
        supervised(model, make_batch())
    assert len(model.config.grounding_calls) > make_plan.call_count == 2


@families
def test_permuted_regions_change_only_their_order(family):
    # the whole image of ViLBERT stays the first
    batch = make_batch()
    order = torch.tensor([0, 3, 1, 2])
    moved = {name: value[:, order] if name.startswith("region_") else value for name, value in batch.items()}
    moved["phrase_regions"] = batch["phrase_regions"][..., order]
    model = make(family)
    assert_close(supervised(model, moved)[0], supervised(model, batch)[0])
    expected = run(model.base_model, batch)
    found = run(model.base_model, moved)
    assert_close(found.text_hidden_state, expected.text_hidden_state)
    assert_close(found.region_hidden_state, expected.region_hidden_state[:, order])
    assert_close(found.pooler_output, expected.pooler_output)


@families
@pytest.mark.parametrize("back_end", ["eager", "sdpa"])
def test_padding_and_unpadding_change_no_valid_state(family, back_end):
    batch = make_batch()
    model = make(family, back_end, head=None)
    padded = run(model, batch, output_hidden_states=True)
    model.config.unpad = True
    unpadded = run(model, batch, output_hidden_states=True)
    for name, history, mask in (
        ("text_hidden_state", "hidden_states", "attention_mask"),
        ("region_hidden_state", "region_hidden_states", "region_attention_mask"),
    ):
        valid = batch[mask].bool()
        assert not unpadded[name][~valid].any()
        states = [[*outputs[history], outputs[name]] for outputs in (unpadded, padded)]
        assert len(states[0]) > 3
        assert_close(*([state[valid] for state in layers] for layers in states))
    model.config.unpad = False
    alone = {name: value[2:, :-2] if name.startswith("region_") else value[2:] for name, value in batch.items()}
    assert_close(run(model, alone).pooler_output, padded.pooler_output[2:])


@families
def test_gradient_checkpointing_gives_supervision_the_same_gradient(family):
    gradients = []
    for checkpointing in (False, True):
        model = make(family).train()
        if checkpointing:
            model.gradient_checkpointing_enable({"use_reentrant": False})
        torch.manual_seed(0)  # of dropout
        losses, _ = supervised(model, make_batch())
        sum(total for total, _ in losses.values()).backward()
        gradients.append({name: p.grad for name, p in model.named_parameters() if p.grad is not None})
    assert len(gradients[0]) > 20
    assert_close(*gradients)


def rollout_squares(family, batch):
    """Of each call of words and regions: one square matrix of the whole input (B, N, N), from the eager maps."""
    words = batch["phrase_mask"].shape[2]
    regions = batch["phrase_regions"].shape[2]
    model = make(family, "eager")
    with torch.no_grad():
        maps = run(model, batch, output_attentions=True).attentions
    joint = torch.eye(words + regions).repeat(B, 1, 1)
    before = None
    name = None
    found = {}
    places = {"text": slice(0, words), "regions": slice(words, None)}
    for call, attention in zip(model.config.attention_calls, maps, strict=True):
        if call.name != name:
            before = joint
            name = call.name
        rows = places[call.query_stream]
        columns = places[call.key_stream]
        step = torch.eye(words + regions).repeat(B, 1, 1)
        step[:, rows, columns] += attention.mean(1)
        step = step / step.sum(-1, keepdim=True)
        # The directions of one name read the same state: rows of this stream are new, the others stay.
        joint = joint.clone()
        joint[:, rows] = (step @ before)[:, rows]
        if call.directions:
            found[name] = joint
    return found, places


@sizes
@families
def test_rollout_in_blocks_is_that_of_one_matrix(family, words, regions):
    batch = make_batch(words, regions)
    model = make(family)
    losses, _ = supervised(model, batch, "semi_direct")
    found = rollout_layers(run(model, batch, attention_mean=True, output_attentions=True).attentions)
    squares, places = rollout_squares(family, batch)
    assert layer_names(model.config.grounding_calls) == list(squares)
    for blocks, square in zip(found, squares.values(), strict=True):
        for (stream, source), block in blocks.items():
            assert_close(block, square[:, places[stream], places[source]])
    for direction, (total, count) in losses.items():
        rows, columns = (places[stream] for stream in DIRECTION_STREAMS[direction])
        cells = []
        for square in squares.values():
            block = square[:, rows, columns]
            cells += [row_loss(block[place[:2]], *place[2:]) for place in grounded_rows(batch, direction)]
        assert (total / count).item() == pytest.approx(np.mean(cells), rel=1e-4)


@families
def test_chosen_heads_are_those_of_their_layer(family):
    batch = make_batch()
    directions = ["region_to_text"]
    found, _ = supervised(make(family), batch, heads=[[0, 1], [1, 0]], directions=directions)
    first, second = cross_maps(family, batch)["region_to_text"]
    maps = [first[:, [1]], second[:, [0]]]
    wanted = get_method("direct", directions=directions).maps_losses(maps, batch, [(REGIONS, TEXT)] * 2)
    assert_close(found, wanted)


@families
@torch.no_grad()
def test_grounding_is_measured_over_calls(family):
    model = make(family)
    batch = make_batch()
    metric = AttentionGrounding()
    supervise(model)
    metric.update(run(model, batch, **metric.forward_kwargs(batch)), batch)
    figures = metric.compute(metric.state())
    cells = list(grounded_rows(batch, "text_to_region"))
    assert figures["text_to_region_tokens"] == len(cells)
    squares, _ = rollout_squares(family, batch)
    maps = cross_maps(family, batch)["text_to_region"]
    for layer, square in enumerate(squares.values()):
        rollout = [square[e, row, 9:][seen].argmax() in gold for e, row, gold, seen in cells]
        assert figures["text_to_region_rollout_by_layer"][layer] == pytest.approx(np.mean(rollout))
        for head, attention in enumerate(maps[layer].unbind(1)):
            right = [attention[e, row].argmax() in gold for e, row, gold, _ in cells]
            assert figures["text_to_region_by_head"][layer][head] == pytest.approx(np.mean(right))


@families
@pytest.mark.parametrize("option, value", [("layers", ["cross 2"]), ("layers", [2]), ("heads", [4])])
def test_what_no_call_has_is_refused(family, option, value):
    with pytest.raises(ValueError, match=re.escape(f"{option} {value}")):
        get_method("direct", **{option: value}).prepare(make(family))


def test_the_calls_of_one_stream_and_its_rollout():
    """Its blocks are the rollout of Abnar and Zuidema."""
    for config in (VLBertConfig(num_hidden_layers=2), VisualBERTConfig(num_hidden_layers=2)):
        assert config.grounding_calls == one_stream_calls(2, 12)
        assert layer_names(config.grounding_calls) == ["layer 0", "layer 1"]
        assert all(call.directions == ("text_to_region", "region_to_text") for call in config.grounding_calls)
    assert VisualBERTConfig(bypass_transformer=True).grounding_calls == ()
    means = list(torch.rand(3, 2, 5, 5).softmax(-1))
    blocks = rollout_blocks(means, one_stream_calls(3, 4))
    assert [list(each) for each in blocks] == [[(SEQUENCE, SEQUENCE)]] * 3
    expected = torch.eye(5).expand(2, -1, -1)
    for mean, rollout, after in zip(means, attention_rollout(means), blocks, strict=True):
        expected = (mean + torch.eye(5)) / 2 @ expected
        assert_close(rollout, expected)
        assert torch.equal(after[SEQUENCE, SEQUENCE], rollout)


@families
def test_a_row_without_regions_is_text_alone(family):
    batch = make_batch()
    model = make(family, head=None)
    alone = model(input_ids=batch["input_ids"], attention_mask=batch["attention_mask"])
    assert alone.region_hidden_state.shape[1] == 0
    assert alone.pooler_output.isfinite().all()
    hidden = {name: torch.zeros_like(value) if name.startswith("region_") else value for name, value in batch.items()}
    assert_close(run(model, hidden).pooler_output, alone.pooler_output)


@families
@pytest.mark.parametrize(
    "change, message",
    [
        (
            {"region_features": (3, 4, 15)},
            r"have the shape \(3, 4, 15\), expected .* is 16",
        ),
        ({"region_boxes": None}, "region_boxes are missing"),
        ({"region_boxes": (3, 4, 5)}, r"region_boxes have the shape \(3, 4, 5\)"),
        ({"region_features": None}, "region_boxes are given without region_features"),
        ({"pixel_values": (3, 3, 8, 8)}, "no pixel network"),
        ({"input_ids": (3, 21), "attention_mask": None}, "21 tokens long"),
        ({"grounding_queries": {"text_to_text": ()}}, "unknown entries"),
        ({"region_token_type_ids": (3, 4)}, "takes one image"),
        ({"input_ids": (3, 4, 9)}, r"expected \(batch_size, text_length\); .* choice"),
    ],
)
def test_mistakes_are_named(family, change, message):
    batch = make_batch()
    inputs = {name: batch[name] for name in INPUTS}
    with pytest.raises(ValueError, match=message):
        make(family, head=None)(**{**inputs, **of_shapes(change)})


@pytest.mark.parametrize(
    "fields, message",
    [
        ({"t_biattention_id": [3, 2], "v_biattention_id": [0, 1]}, "increasing"),
        ({"t_biattention_id": [13], "v_biattention_id": [0]}, "from 0 to num_hidden_layers"),
        ({"t_biattention_id": [3], "v_biattention_id": [0, 1]}, "1 entries, but v_biattention_id 2"),
        ({"bi_hidden_size": 10, "bi_num_attention_heads": 4}, "multiple of bi_num_attention_heads"),
    ],
)
def test_schedules_that_cannot_be(fields, message):
    with pytest.raises(Exception, match=message):
        ViLBertConfig(**fields)


def test_task_tokens_need_the_task():
    model = make("vilbert", head=None, task_specific_tokens=True)
    batch = make_batch()
    with pytest.raises(ValueError, match="task_ids are missing"):
        run(model, batch)
    one = run(model, batch, task_ids=torch.full((B,), 1)).text_hidden_state
    other = run(model, batch, task_ids=torch.full((B,), 2)).text_hidden_state
    assert one.shape[1] == 9
    assert not torch.allclose(one, other)


@sizes
@families
@pytest.mark.parametrize("direct", [False, True])
@pytest.mark.parametrize("name", ["flash_attention_2", "someone/kernel"])
def test_flash_attention_between_streams_leaves_out_padded_keys(family, words, regions, direct, name, monkeypatch):
    """Its own function would apply the mask of the keys to the queries of the other stream."""
    batch = make_batch(words, regions)
    lengths = []
    model = make(family)
    losses, wanted = supervised(model, batch)
    monkeypatch.setitem(ALL_ATTENTION_FUNCTIONS._local_mapping, name, packed_kernel(lengths))
    own_mask = ALL_MASK_ATTENTION_FUNCTIONS["flash_attention_2"]
    monkeypatch.setitem(ALL_MASK_ATTENTION_FUNCTIONS._global_mapping, name, own_mask)
    model.config._attn_implementation_internal = name
    if direct:
        model.config._attn_implementation_internal = supervised_implementation(model)
        method = get_method("direct")
        found = run(model, batch, **method.forward_kwargs(batch))
        assert_close(method.losses(found, batch), losses)
    else:
        found = run(model, batch)
    assert_close(found.identification_logits, wanted.identification_logits)
    assert {call[:2] for call in lengths} == {(words, regions), (regions, words)}
    assert len(lengths) > len({place for *_, place in lengths}) == 2  # counted once a pass, not in every layer


@families
def test_features_to_predict_may_differ_from_those_that_are_seen(family):
    """Exchanged regions show another feature than the one to predict."""
    options = {"visual_target": "features"} if family == "vilbert" else {"visual_loss": "masked"}
    model = make(family, head="pretraining", **options)
    batch = make_batch()
    wanted = torch.zeros(B, 4, dtype=torch.bool)
    wanted[0, 1] = wanted[2, 0] = True
    targets = torch.randn(B, 4, F, generator=torch.Generator().manual_seed(5))
    found = run(model, batch, predicted_regions=wanted, region_feature_targets=targets)
    predicted = found.region_logits if family == "vilbert" else found.predicted_features
    assert_close(found.loss, (predicted[wanted] - targets[wanted]).square().mean())
    with pytest.raises(ValueError, match="region_feature_targets have the shape"):
        run(model, batch, predicted_regions=wanted, region_feature_targets=targets[..., :3])
