# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""Supervision over attention calls: a model of two streams, where a token's index must never reach a region's axis."""

import math

import pytest
import torch

from grounded_attention.heads.attention_grounding import AttentionGrounding
from grounded_attention.modeling import VisualBERTConfig, VLBertConfig
from grounded_attention.modeling.attention_calls import (
    REGIONS,
    SEQUENCE,
    TEXT,
    AttentionCall,
    layer_names,
    one_stream_calls,
)
from grounded_attention.supervision import get_method, supervise
from grounded_attention.supervision.rollout import attention_rollout, rollout_blocks
from tests.helpers.toy_two_streams import HEADS, LAYERS, WIDTH, toy_model

SIZES = [(7, 4), (4, 7), (5, 5)]


def make_batch(words: int, regions: int) -> dict[str, torch.Tensor]:
    """Two rows, ragged on both sides; the last word and the last region of the first row are grounded."""
    generator = torch.Generator().manual_seed(2)
    phrase_mask = torch.zeros(2, 2, words, dtype=torch.bool)
    phrase_regions = torch.zeros(2, 2, regions, dtype=torch.bool)
    for example, phrase, tokens, found in [
        (0, 0, [words - 1], [regions - 1, 0]),
        (0, 1, [1, 2], [1]),
        (1, 0, [0], [2]),
    ]:
        phrase_mask[example, phrase, tokens] = phrase_regions[example, phrase, found] = True
    masks = [torch.ones(2, size, dtype=torch.long) for size in (words, regions)]
    masks[0][1, -1], masks[1][1, -1] = 0, 0
    return {
        "text": torch.randn(2, words, WIDTH, generator=generator),
        "regions": torch.randn(2, regions, WIDTH, generator=generator),
        "attention_mask": masks[0],
        "region_attention_mask": masks[1],
        "region_candidate_mask": masks[1].bool(),
        "phrase_mask": phrase_mask,
        "phrase_regions": phrase_regions,
    }


def run(model, batch, **kwargs):
    names = ("text", "regions", "attention_mask", "region_attention_mask")
    return model(**{name: batch[name] for name in names}, **kwargs)


def cross_maps(batch) -> dict[str, list[torch.Tensor]]:
    """Direction -> the eager map of every cross layer. Calls in order: text, regions, cross both ways."""
    maps = run(toy_model("eager"), batch).attentions
    return {"text_to_region": list(maps[2::4]), "region_to_text": list(maps[3::4])}


def aligned_cells(batch, direction):
    """(example, row, gold columns, all columns) of every grounded row, by loops."""
    sides = [batch["phrase_mask"], batch["phrase_regions"]]
    masks = [batch["attention_mask"], batch["region_attention_mask"]]
    if direction == "region_to_text":
        sides, masks = sides[::-1], masks[::-1]
    for example in range(2):
        for row in range(sides[0].shape[2]):
            gold = {
                column
                for phrase in range(2)
                for column in range(sides[1].shape[2])
                if sides[0][example, phrase, row] and sides[1][example, phrase, column]
            }
            if gold:
                yield example, row, sorted(gold), masks[1][example].nonzero()[:, 0].tolist()


@pytest.mark.parametrize("layers", [None, ["cross 1"], [1]], ids=str)
@pytest.mark.parametrize(("words", "regions"), SIZES)
def test_direct_supervision_equals_loops_over_the_cross_calls(words, regions, layers):
    model, batch = toy_model(), make_batch(words, regions)
    method = get_method("direct", layers=layers)
    method.prepare(model)
    found = method.losses(run(model, batch, **method.forward_kwargs(batch)), batch)
    for direction, maps in cross_maps(batch).items():
        cells, losses = list(aligned_cells(batch, direction)), []
        for layer in maps if layers is None else maps[1:]:
            for head in range(HEADS):
                for example, row, gold, columns in cells:
                    values = layer[example, head, row]
                    whole = sum(values[c].item() for c in columns)
                    losses.append(-sum(math.log(values[g].item() / whole) for g in gold) / len(gold))
        total, count = found[direction]
        assert count.item() == len(cells)
        assert (total / count).item() == pytest.approx(sum(losses) / len(losses), rel=1e-4)


def test_permuted_regions_change_no_loss():
    model, batch = toy_model(), make_batch(7, 4)
    order = torch.tensor([2, 0, 3, 1])
    moved = {
        name: value[..., order]
        if name in ("phrase_regions", "region_attention_mask", "region_candidate_mask")
        else value
        for name, value in batch.items()
    }
    moved["regions"] = batch["regions"][:, order]
    method = get_method("direct")
    method.prepare(model)
    losses = [method.losses(run(model, each, **method.forward_kwargs(each)), each) for each in (batch, moved)]
    torch.testing.assert_close(*losses)


def test_chosen_heads_are_those_of_their_layer():
    model, batch = toy_model(), make_batch(7, 4)
    method = get_method("direct", heads=[[0, 1], [1, 0]], directions=["region_to_text"])
    method.prepare(model)
    found = method.losses(run(model, batch, **method.forward_kwargs(batch)), batch)
    maps = cross_maps(batch)["region_to_text"]
    wanted = get_method("direct", directions=["region_to_text"]).maps_losses(
        [maps[0][:, [1]], maps[1][:, [0]]], batch, [(REGIONS, TEXT)] * 2
    )
    torch.testing.assert_close(found, wanted)


def explicit_rollout(maps: list[torch.Tensor]) -> list[torch.Tensor]:
    """(words + regions) square rollouts after each layer, with a matrix of the whole input for every call."""
    words, regions = maps[0].shape[-1], maps[1].shape[-1]
    joint, rollouts = torch.eye(words + regions), []
    for layer in range(LAYERS):
        text, region, cross, back = (each.mean(1) for each in maps[4 * layer : 4 * layer + 4])
        for blocks in ((text, region, None, None), (None, None, cross, back)):
            step = torch.zeros(len(text), words + regions, words + regions)
            for rows, columns, block in (
                (slice(0, words), slice(0, words), blocks[0]),
                (slice(words, None), slice(words, None), blocks[1]),
                (slice(0, words), slice(words, None), blocks[2]),
                (slice(words, None), slice(0, words), blocks[3]),
            ):
                if block is not None:
                    step[:, rows, columns] = block
            step = step + torch.eye(words + regions)
            joint = (step / step.sum(-1, keepdim=True)) @ joint
        rollouts.append(joint)
    return rollouts


@pytest.mark.parametrize(("words", "regions"), SIZES)
def test_rollout_in_blocks_equals_the_rollout_of_one_matrix(words, regions):
    model, batch = toy_model(), make_batch(words, regions)
    method = get_method("semi_direct")
    method.prepare(model)
    found = method.losses(run(model, batch, **method.forward_kwargs(batch)), batch)
    joint = explicit_rollout(list(run(toy_model("eager"), batch).attentions))
    rows = {"text_to_region": slice(0, words), "region_to_text": slice(words, None)}
    columns = {"text_to_region": slice(words, None), "region_to_text": slice(0, words)}
    for direction, (total, count) in found.items():
        blocks = [each[:, rows[direction], columns[direction]] for each in joint]
        losses = []
        for block in blocks:
            for example, row, gold, everything in aligned_cells(batch, direction):
                whole = sum(block[example, row, c].item() for c in everything)
                losses.append(-sum(math.log(block[example, row, g].item() / whole) for g in gold) / len(gold))
        assert (total / count).item() == pytest.approx(sum(losses) / len(losses), rel=1e-4)


def test_one_stream_in_blocks_is_the_rollout_of_abnar_and_zuidema():
    means = list(torch.rand(3, 2, 5, 5).softmax(-1))
    blocks = rollout_blocks(means, one_stream_calls(3, 4))
    assert [list(each) for each in blocks] == [[(SEQUENCE, SEQUENCE)]] * 3
    expected = torch.eye(5).expand(2, -1, -1)
    for mean, rollout, after in zip(means, attention_rollout(means), blocks, strict=True):
        expected = (mean + torch.eye(5)) / 2 @ expected
        torch.testing.assert_close(rollout, expected)
        assert torch.equal(after[SEQUENCE, SEQUENCE], rollout)


@torch.no_grad()
def test_grounding_is_measured_over_calls():
    model, batch, metric = toy_model(), make_batch(7, 4), AttentionGrounding()
    supervise(model)
    metric.update(run(model, batch, **metric.forward_kwargs(batch)), batch)
    figures = metric.compute(metric.state())
    cells = list(aligned_cells(batch, "text_to_region"))
    assert figures["text_to_region_tokens"] == len(cells)
    maps = cross_maps(batch)["text_to_region"]
    joint = explicit_rollout(list(run(toy_model("eager"), batch).attentions))
    for layer in range(LAYERS):
        rollout = [int(joint[layer][e, row, 7:].argmax()) in gold for e, row, gold, _ in cells]
        assert figures["text_to_region_rollout_by_layer"][layer] == pytest.approx(sum(rollout) / len(cells))
        for head in range(HEADS):
            right = [int(maps[layer][e, head, row].argmax()) in gold for e, row, gold, _ in cells]
            assert figures["text_to_region_by_head"][layer][head] == pytest.approx(sum(right) / len(cells))


# Which calls there are


def test_calls_of_the_families():
    for config in (VLBertConfig(num_hidden_layers=2), VisualBERTConfig(num_hidden_layers=2)):
        assert config.grounding_calls == one_stream_calls(2, 12)
        assert layer_names(config.grounding_calls) == ["layer 0", "layer 1"]
        assert all(call.directions == ("text_to_region", "region_to_text") for call in config.grounding_calls)
    assert VisualBERTConfig(bypass_transformer=True).grounding_calls == ()
    assert AttentionCall("cross 0", TEXT, REGIONS, 8).directions == ("text_to_region",)
    assert AttentionCall("text 0", TEXT, TEXT, 8).directions == ()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"layers": ["cross 2"]}, r"layers \['cross 2'\]: the layers of ToyModel are cross 0, cross 1"),
        ({"layers": [2]}, r"layers \[2\]: ToyModel has 2 layers"),
        ({"heads": [2]}, r"heads \[2\]: ToyModel has 2 heads"),
    ],
)
def test_what_no_call_has_is_refused(options, message):
    with pytest.raises(ValueError, match=message):
        get_method("direct", **options).prepare(toy_model())
