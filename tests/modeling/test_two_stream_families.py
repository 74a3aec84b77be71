# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""ViLBERT and LXMERT: an index of a token never reaches the axis of the regions, and padding never matters."""

import math
import re

import pytest
import torch
from transformers.masking_utils import ALL_MASK_ATTENTION_FUNCTIONS
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from grounded_attention import modeling
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
from tests.helpers.tiny_two_streams import make_lxmert, make_vilbert

SIZES = [(9, 4), (4, 7)]
MAKE = {"vilbert": make_vilbert, "lxmert": make_lxmert}
VGP = {"vilbert": modeling.ViLBertForVGP, "lxmert": modeling.LXMERTForVGP}
B = 3
F = 16

families = pytest.mark.parametrize("family", MAKE)
sizes = pytest.mark.parametrize(("words", "regions"), SIZES)


def make_batch(words, regions):
    """Ragged on both sides; the last word and the last region of the first row are grounded."""
    generator = torch.Generator().manual_seed(1)
    text_mask = torch.ones(B, words, dtype=torch.long)
    region_mask = torch.ones(B, regions, dtype=torch.long)
    text_mask[1, words - 1 :], region_mask[2, regions - 2 :] = 0, 0
    phrase_mask = torch.zeros(B, 2, words, dtype=torch.bool)
    phrase_regions = torch.zeros(B, 2, regions, dtype=torch.bool)
    for row, phrase, tokens, found in [
        (0, 0, [words - 1], [regions - 1, 1]),
        (0, 1, [1, 2], [2]),
        (1, 0, [0], [3]),
        (2, 0, [words - 1], [1]),
    ]:
        phrase_mask[row, phrase, tokens] = phrase_regions[row, phrase, found] = True
    return {
        "input_ids": torch.randint(1, 40, (B, words), generator=generator),
        "attention_mask": text_mask,
        "region_features": torch.randn(B, regions, F, generator=generator),
        "region_boxes": torch.rand(B, regions, 2, 2, generator=generator).sort(dim=2).values.flatten(2),
        "region_attention_mask": region_mask,
        "region_candidate_mask": region_mask.bool(),
        "phrase_mask": phrase_mask,
        "phrase_regions": phrase_regions,
    }


def run(model, batch, **kwargs):
    names = ("input_ids", "attention_mask", "region_features", "region_boxes", "region_attention_mask")
    return model(**{name: batch[name] for name in names}, **kwargs)


def cross_maps(family, batch):
    """Direction -> the eager maps of the co-attention; the other maps are those of one stream."""
    model = MAKE[family](VGP[family], "eager")
    words = batch["phrase_mask"].shape[2]
    regions = batch["phrase_regions"].shape[2]
    with torch.no_grad():
        maps = run(model, batch, output_attentions=True).attentions
    shapes = {"text_to_region": (words, regions), "region_to_text": (regions, words)}
    return {name: [each for each in maps if each.shape[2:] == shape] for name, shape in shapes.items()}


def grounded_rows(batch, direction):
    """(example, row, gold columns, visible columns) of every grounded row, by loops."""
    sides = [batch["phrase_mask"], batch["phrase_regions"]]
    masks = [batch["attention_mask"], batch["region_attention_mask"]]
    if direction == "region_to_text":
        sides = sides[::-1]
        masks = masks[::-1]
    for example in range(B):
        for row in range(sides[0].shape[2]):
            gold = {
                column
                for phrase in range(2)
                for column in range(sides[1].shape[2])
                if sides[0][example, phrase, row] and sides[1][example, phrase, column]
            }
            if gold:
                yield example, row, sorted(gold), masks[1][example].nonzero()[:, 0].tolist()


@sizes
@families
@pytest.mark.parametrize("layers", [None, ["cross 1"]], ids=str)
@pytest.mark.parametrize("unpad", [False, True])
@pytest.mark.parametrize("back_end", ["eager", "sdpa"])
def test_direct_supervision_equals_loops_over_eager_maps(family, words, regions, layers, unpad, back_end):
    batch = make_batch(words, regions)
    model = MAKE[family](VGP[family], back_end, unpad=unpad)
    method = get_method("direct", layers=layers)
    method.prepare(model)
    found = method.losses(run(model, batch, **method.forward_kwargs(batch)), batch)
    for direction, maps in cross_maps(family, batch).items():
        assert len(maps) == 2
        cells = [
            -sum(math.log(layer[example, head, row, g] / layer[example, head, row, columns].sum()) for g in gold)
            / len(gold)
            for layer in (maps if layers is None else maps[1:])
            for head in range(layer.shape[1])
            for example, row, gold, columns in grounded_rows(batch, direction)
        ]
        total, count = found[direction]
        assert (total / count).item() == pytest.approx(sum(cells) / len(cells), rel=1e-4)


@sizes
@families
def test_heads_that_see_nothing_have_a_known_loss(family, words, regions):
    """Without keys attention is uniform, so the loss of a row is the logarithm of the number of its columns."""
    batch = make_batch(words, regions)
    model = MAKE[family](VGP[family])
    method = get_method("direct")
    for name, parameter in model.named_parameters():
        if ".biattention.key" in name or ".visual_attention.att.key" in name:
            parameter.data.zero_()
    method.prepare(model)
    found = method.losses(run(model, batch, **method.forward_kwargs(batch)), batch)
    for direction, (total, count) in found.items():
        rows = [len(columns) for *_, columns in grounded_rows(batch, direction)]
        assert count == len(rows)
        assert total.item() == pytest.approx(sum(map(math.log, rows)), rel=1e-5)


@families
@pytest.mark.parametrize("unpad", [False, True])
def test_layers_share_a_plan_for_each_direction(family, unpad, monkeypatch):
    made = []
    make = row_plans.make_plan
    monkeypatch.setattr(row_plans, "make_plan", lambda *given: made.append(given) or make(*given))
    model = MAKE[family](VGP[family], unpad=unpad)
    method = get_method("direct")
    batch = make_batch(9, 4)
    method.prepare(model)
    run(model, batch, **method.forward_kwargs(batch))
    assert len(model.config.grounding_calls) > len(made) == 2


@families
def test_permuted_regions_change_only_their_order(family):
    # the whole image of ViLBERT stays the first
    batch = make_batch(9, 4)
    order = torch.tensor([0, 3, 1, 2])
    moved = {**batch, **{name: batch[name][:, order] for name in batch if name.startswith("region_")}}
    moved["phrase_regions"] = batch["phrase_regions"][..., order]
    model = MAKE[family](VGP[family])
    method = get_method("direct")
    method.prepare(model)
    results = []
    for each in (batch, moved):
        base = run(model.base_model, each)
        losses = method.losses(run(model, each, **method.forward_kwargs(each)), each)
        results.append((base.text_hidden_state, base.region_hidden_state, base.pooler_output, losses))
    assert_close(results[0][0], results[1][0])
    assert_close(results[0][1][:, order], results[1][1])
    assert_close(results[0][2:], results[1][2:])


@families
@pytest.mark.parametrize("back_end", ["eager", "sdpa"])
def test_padding_and_unpadding_change_no_valid_state(family, back_end):
    batch = make_batch(9, 4)
    cls = FAMILIES[family].base_model
    padded, unpadded = (
        run(MAKE[family](cls, back_end, unpad=unpad), batch, output_hidden_states=True) for unpad in (False, True)
    )
    for name, history, mask in (
        ("text", "hidden_states", "attention_mask"),
        ("region", "region_hidden_states", "region_attention_mask"),
    ):
        seen = batch[mask].bool()
        one, other = (getattr(each, f"{name}_hidden_state") for each in (padded, unpadded))
        assert_close(one[seen], other[seen])
        assert not other[~seen].any()
        assert len(padded[history]) == len(unpadded[history]) > 2
        for one, other in zip(padded[history], unpadded[history], strict=True):
            assert_close(one[seen], other[seen])
    alone = {name: value[2:, :-2] if name.startswith("region_") else value[2:] for name, value in batch.items()}
    assert_close(run(MAKE[family](cls, back_end), alone).pooler_output, padded.pooler_output[2:])


@families
def test_gradient_checkpointing_gives_supervision_the_same_gradient(family):
    gradients = []
    for checkpointing in (False, True):
        model = MAKE[family](VGP[family])
        batch = make_batch(9, 4)
        method = get_method("direct")
        model.train()
        for module in model.modules():
            if isinstance(module, torch.nn.Dropout):
                module.p = 0.0
        for name in ("attention_probs_dropout_prob", "v_attention_probs_dropout_prob"):
            if hasattr(model.config, name):
                setattr(model.config, name, 0.0)
        if checkpointing:
            model.gradient_checkpointing_enable({"use_reentrant": False})
        method.prepare(model)
        losses = method.losses(run(model, batch, **method.forward_kwargs(batch)), batch)
        sum(total for total, _ in losses.values()).backward()
        gradients.append({name: p.grad for name, p in model.named_parameters() if p.grad is not None})
    assert gradients[0].keys() == gradients[1].keys()
    assert len(gradients[0]) > 20
    assert_close(*gradients)


def rollout_squares(family, batch):
    """Of each call of words and regions: one square matrix of the whole input (B, N, N), from the eager maps."""
    words = batch["phrase_mask"].shape[2]
    regions = batch["phrase_regions"].shape[2]
    model = MAKE[family](VGP[family], "eager")
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
        step[:, rows] = step[:, rows] / step[:, rows].sum(-1, keepdim=True)
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
    model = MAKE[family](VGP[family])
    method = get_method("semi_direct")
    method.prepare(model)
    found = rollout_layers(run(model, batch, attention_mean=True, output_attentions=True).attentions)
    squares, places = rollout_squares(family, batch)
    assert layer_names(model.config.grounding_calls) == list(squares)
    for blocks, square in zip(found, squares.values(), strict=True):
        for (stream, source), block in blocks.items():
            assert_close(block, square[:, places[stream], places[source]])
    for direction, (total, count) in method.losses(run(model, batch, **method.forward_kwargs(batch)), batch).items():
        sides = [places[stream] for stream in DIRECTION_STREAMS[direction]]
        cells = [
            -sum(math.log(block[example, row, g] / block[example, row, columns].sum()) for g in gold) / len(gold)
            for block in (square[:, sides[0], sides[1]] for square in squares.values())
            for example, row, gold, columns in grounded_rows(batch, direction)
        ]
        assert (total / count).item() == pytest.approx(sum(cells) / len(cells), rel=1e-4)


@families
def test_chosen_heads_are_those_of_their_layer(family):
    model = MAKE[family](VGP[family])
    batch = make_batch(9, 4)
    method = get_method("direct", heads=[[0, 1], [1, 0]], directions=["region_to_text"])
    method.prepare(model)
    found = method.losses(run(model, batch, **method.forward_kwargs(batch)), batch)
    maps = cross_maps(family, batch)["region_to_text"]
    wanted = get_method("direct", directions=["region_to_text"]).maps_losses(
        [maps[0][:, [1]], maps[1][:, [0]]], batch, [(REGIONS, TEXT)] * 2
    )
    assert_close(found, wanted)


@families
@torch.no_grad()
def test_grounding_is_measured_over_calls(family):
    model = MAKE[family](VGP[family])
    batch = make_batch(9, 4)
    metric = AttentionGrounding()
    supervise(model)
    metric.update(run(model, batch, **metric.forward_kwargs(batch)), batch)
    figures = metric.compute(metric.state())
    cells = list(grounded_rows(batch, "text_to_region"))
    assert figures["text_to_region_tokens"] == len(cells)
    squares, _ = rollout_squares(family, batch)
    for layer, (maps, square) in enumerate(
        zip(cross_maps(family, batch)["text_to_region"], squares.values(), strict=True)
    ):
        rollout = [int(square[e, row, 9:][seen].argmax()) in gold for e, row, gold, seen in cells]
        assert figures["text_to_region_rollout_by_layer"][layer] == pytest.approx(sum(rollout) / len(cells))
        for head in range(maps.shape[1]):
            right = [int(maps[e, head, row].argmax()) in gold for e, row, gold, _ in cells]
            assert figures["text_to_region_by_head"][layer][head] == pytest.approx(sum(right) / len(cells))


@families
@pytest.mark.parametrize("options", [{"layers": ["cross 2"]}, {"layers": [2]}, {"heads": [4]}], ids=str)
def test_what_no_call_has_is_refused(family, options):
    ((option, value),) = options.items()
    with pytest.raises(ValueError, match=rf"{option} {re.escape(str(value))}"):
        get_method("direct", **options).prepare(MAKE[family](VGP[family]))


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
    batch = make_batch(9, 4)
    model = MAKE[family](FAMILIES[family].base_model)
    alone = model(input_ids=batch["input_ids"], attention_mask=batch["attention_mask"])
    assert alone.region_hidden_state.shape[1] == 0
    assert alone.pooler_output.isfinite().all()
    hidden = {**batch, "region_attention_mask": torch.zeros_like(batch["region_attention_mask"])}
    hidden["region_features"] = torch.zeros_like(hidden["region_features"])
    hidden["region_boxes"] = torch.zeros_like(hidden["region_boxes"])
    assert_close(run(model, hidden).pooler_output, alone.pooler_output)


@families
@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            {"region_features": torch.zeros(B, 4, 15)},
            r"have the shape \(3, 4, 15\), expected .* is 16",
        ),
        ({"region_boxes": None}, "region_boxes are missing"),
        ({"region_boxes": torch.zeros(B, 4, 5)}, r"region_boxes have the shape \(3, 4, 5\)"),
        ({"region_features": None}, "region_boxes are given without region_features"),
        ({"pixel_values": torch.zeros(B, 3, 8, 8)}, "no pixel network"),
        ({"input_ids": torch.ones(B, 21, dtype=torch.long), "attention_mask": None}, "21 tokens long"),
        ({"grounding_queries": {"text_to_text": ()}}, "unknown entries"),
        ({"region_token_type_ids": torch.zeros(B, 4, dtype=torch.long)}, "takes one image"),
        ({"input_ids": torch.ones(B, 4, 9, dtype=torch.long)}, r"expected \(batch_size, text_length\); .* choice"),
    ],
    ids=["width", "no boxes", "five numbers", "no features", "pixels", "long", "direction", "two images", "choices"],
)
def test_mistakes_are_named(family, change, message):
    model = MAKE[family](FAMILIES[family].base_model)
    names = ("input_ids", "attention_mask", "region_features", "region_boxes", "region_attention_mask")
    inputs = {name: value for name, value in make_batch(9, 4).items() if name in names}
    with pytest.raises(ValueError, match=message):
        model(**{**inputs, **change})


@pytest.mark.parametrize(
    ("fields", "message"),
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
    model = make_vilbert(modeling.ViLBertModel, task_specific_tokens=True)
    batch = make_batch(9, 4)
    with pytest.raises(ValueError, match="task_ids are missing"):
        run(model, batch)
    one, other = (run(model, batch, task_ids=torch.full((B,), task)).text_hidden_state for task in (1, 2))
    assert one.shape[1] == 9
    assert not torch.allclose(one, other)


def packed_kernel(lengths):
    """FlashAttention for packed rows, by loops; a mask goes to all queries, as in a stream's own attention."""

    def kernel(module, query, key, value, mask, *, cu_seq_lens_q=None, cu_seq_lens_k=None, scaling=None, **kwargs):
        if cu_seq_lens_q is None:
            assert query.shape[2] == key.shape[2]
            hidden = None if mask is None else mask[:, None, None].bool()
            context = torch.nn.functional.scaled_dot_product_attention(query, key, value, hidden, scale=scaling)
            return context.transpose(1, 2), None
        assert mask is None
        assert query.shape[0] == key.shape[0] == 1
        lengths.append((kwargs["max_length_q"], kwargs["max_length_k"], id(cu_seq_lens_k)))
        rows = []
        first = 0
        start = 0
        for last, end in zip(cu_seq_lens_q.tolist()[1:], cu_seq_lens_k.tolist()[1:], strict=True):
            weights = (query[:, :, first:last] * scaling @ key[:, :, start:end].transpose(2, 3)).softmax(-1)
            rows.append(weights @ value[:, :, start:end])
            first = last
            start = end
        assert first == query.shape[2]
        assert start == key.shape[2]
        return torch.cat(rows, dim=2).transpose(1, 2), None

    return kernel


@sizes
@families
@pytest.mark.parametrize("supervised", [False, True])
@pytest.mark.parametrize("name", ["flash_attention_2", "someone/kernel"])
def test_flash_attention_between_streams_leaves_out_padded_keys(family, words, regions, supervised, name, monkeypatch):
    """Its own function would apply the mask of the keys to the queries of the other stream."""
    batch = make_batch(words, regions)
    lengths = []
    model = MAKE[family](VGP[family])
    method = get_method("direct")
    method.prepare(model)
    wanted = run(model, batch, **method.forward_kwargs(batch))
    monkeypatch.setitem(ALL_ATTENTION_FUNCTIONS._local_mapping, name, packed_kernel(lengths))
    own_mask = ALL_MASK_ATTENTION_FUNCTIONS["flash_attention_2"]
    monkeypatch.setitem(ALL_MASK_ATTENTION_FUNCTIONS._global_mapping, name, own_mask)
    model.config._attn_implementation_internal = name
    if supervised:
        model.config._attn_implementation_internal = supervised_implementation(model)
        found = run(model, batch, **method.forward_kwargs(batch))
        assert_close(method.losses(found, batch), method.losses(wanted, batch))
    else:
        found = run(model, batch)
    assert_close(found.identification_logits, wanted.identification_logits)
    assert {each[:2] for each in lengths} == {(words, regions), (regions, words)}
    assert len(lengths) > len({place for *_, place in lengths}) == 2  # counted once a pass, not in every layer


def supervised_losses(model, batch):
    """The losses of direct supervision, in float32, and the outputs."""
    method = get_method("direct")
    method.prepare(model)
    outputs = run(model, batch, **method.forward_kwargs(batch))
    return {name: total for name, (total, _) in method.losses(outputs, batch).items()}, outputs


@families
def test_supervision_in_bfloat16_is_close(family):
    batch = make_batch(9, 4)
    model = MAKE[family](VGP[family])
    expected, _ = supervised_losses(model, batch)
    half = {name: value.bfloat16() if value.is_floating_point() else value for name, value in batch.items()}
    found, outputs = supervised_losses(model.bfloat16(), half)
    assert outputs.identification_logits.dtype == torch.bfloat16
    for name, total in found.items():
        assert total.dtype == torch.float32
        assert_close(total, expected[name], rtol=0.02, atol=0.02)
    sum(found.values()).backward()
    assert all(p.grad is None or p.grad.isfinite().all() for p in model.parameters())


@pytest.mark.parametrize("family", MAKE)
def test_features_to_predict_may_differ_from_those_that_are_seen(family):
    """Exchanged regions show another feature than the one to predict."""
    options = {"visual_target": "features"} if family == "vilbert" else {"visual_loss": "masked"}
    model = MAKE[family](FAMILIES[family].heads["pretraining"], **options)
    batch = make_batch(9, 4)
    wanted = torch.zeros(B, 4, dtype=torch.bool)
    wanted[0, 1] = wanted[2, 0] = True
    targets = torch.randn(B, 4, F, generator=torch.Generator().manual_seed(5))
    found = run(model, batch, predicted_regions=wanted, region_feature_targets=targets)
    predicted = found.region_logits if family == "vilbert" else found.predicted_features
    errors = [(predicted[place] - targets[place]).square().mean() for place in ((0, 1), (2, 0))]
    assert_close(found.loss, torch.stack(errors).mean())
    with pytest.raises(ValueError, match="region_feature_targets have the shape"):
        run(model, batch, predicted_regions=wanted, region_feature_targets=targets[..., :3])
