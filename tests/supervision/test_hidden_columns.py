# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""Gold columns that a causal order or a sliding window hides: no targets, in any layer that can't see them."""

import pytest
import torch
from torch.testing import assert_close
from transformers import Gemma3TextConfig, Gemma3TextModel, MistralConfig, MistralModel

from grounded_attention.supervision import get_method
from tests.helpers.row_pairs import attend_rows
from tests.helpers.supervision_models import bert, gradients

LENGTH = 14
WINDOW = 5
WIDTH = 32
SIZES = {
    "hidden_size": WIDTH,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "intermediate_size": 48,
    "vocab_size": 50,
    "initializer_range": 0.3,
    "sliding_window": WINDOW,
}
KINDS = ["sliding_attention", "full_attention", "sliding_attention"]


def gemma(back_end):
    """Its first and last layers see a window, the one between sees everything before."""
    torch.manual_seed(0)
    config = Gemma3TextConfig(**SIZES, num_hidden_layers=3, layer_types=KINDS)
    return Gemma3TextModel._from_config(config, attn_implementation=back_end)


def mistral(back_end):
    """Every layer sees a window."""
    torch.manual_seed(0)
    return MistralModel._from_config(MistralConfig(**SIZES, num_hidden_layers=3), attn_implementation=back_end)


# Example, phrase, its words and its regions.
PHRASES = [(0, 0, [0], [5]), (0, 1, [2, 3], [0, 5]), (0, 2, [5], [0, 1]), (1, 0, [1], [4]), (1, 1, [3], [2, 5])]


def make_batch():
    """Six regions at 1 to 6 and six words at 8 to 13; the second row's last word is padded."""
    batch = {
        "phrase_mask": torch.zeros(2, 3, 6, dtype=torch.bool),
        "phrase_regions": torch.zeros(2, 3, 6, dtype=torch.bool),
        "attention_mask": torch.ones(2, LENGTH, dtype=torch.long),
        "text_positions": torch.arange(8, 14).repeat(2, 1),
        "region_positions": torch.arange(1, 7).repeat(2, 1),
    }
    batch["attention_mask"][1, -1] = 0
    for example, phrase, words, regions in PHRASES:
        batch["phrase_mask"][example, phrase, words] = True
        batch["phrase_regions"][example, phrase, regions] = True
    return batch


def read_losses(model, method, inputs, batch):
    given = {"inputs_embeds": inputs, "attention_mask": batch["attention_mask"]}
    outputs = model(**given, **method.forward_kwargs(batch))
    (losses,) = method.losses(outputs, batch).values()
    return losses


def plain_loss(maps, kinds, batch, target):
    """Equations 6 to 8 from words to regions, by loops over what each layer sees."""
    columns = batch["region_positions"][0]
    totals = []
    for example, phrase, word in batch["phrase_mask"].nonzero().tolist():
        row = batch["text_positions"][0, word]
        gold = batch["phrase_regions"][example, phrase]
        losses = []
        for layer, kind in zip(maps, kinds, strict=True):
            visible = columns <= row
            if kind == "sliding_attention":
                visible &= row - columns < WINDOW
            if not (gold & visible).any():
                continue
            for head in layer[example, :, row]:
                shares = head[columns[gold & visible]] / head[columns[visible]].sum()
                if target == "any":
                    losses.append(-shares.sum().log())
                elif target == "sum":
                    losses.append(-shares.log().sum())
                else:
                    losses.append(-shares.log().mean())
        if losses:
            totals.append(torch.stack(losses).mean())
    return torch.stack(totals).sum(), len(totals)


@pytest.mark.parametrize("target", ["uniform", "sum", "any"])
@pytest.mark.parametrize(
    "make, kinds", [(gemma, KINDS), (mistral, ["sliding_attention"] * 3)], ids=["gemma3", "mistral"]
)
@pytest.mark.parametrize("back_end", ["sdpa", "eager"])
def test_hidden_gold_columns_are_dropped_and_the_count_follows(back_end, make, kinds, target):
    batch = make_batch()
    inputs = torch.randn(2, LENGTH, WIDTH, generator=torch.Generator().manual_seed(1)).requires_grad_()
    eager = make("eager")
    maps = eager(inputs_embeds=inputs, attention_mask=batch["attention_mask"], output_attentions=True).attentions
    expected, number = plain_loss(maps, kinds, batch, target)
    model = make(back_end)
    method = get_method("direct", directions=["text_to_region"], target=target)
    method.prepare(model)
    total, count = read_losses(model, method, inputs, batch)
    assert 0 < count == number <= 6
    assert_close(total, expected, rtol=1e-4, atol=0)
    for gradient in gradients(total, model, inputs):
        assert gradient.isfinite().all()
    from_maps = method.maps_losses(maps, batch)["text_to_region"]
    assert_close(from_maps, (total, count), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("name", ["direct", "semi_direct"])
def test_a_direction_that_sees_nothing_has_no_loss(name):
    """In a causal model regions before the words see no word."""
    inputs = torch.randn(2, LENGTH, WIDTH, requires_grad=True)
    model = mistral("sdpa")
    method = get_method(name, directions=["region_to_text"])
    method.prepare(model)
    total, count = read_losses(model, method, inputs, make_batch())
    assert total == 0
    assert count == 0
    for gradient in gradients(total, model, inputs):
        assert gradient.isfinite().all()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_every_form_of_mask_hides(dtype):
    """An additive mask hides with its type's lowest number, in float16 a small one; a bias stays a bias."""
    torch.manual_seed(3)
    query, key = torch.randn(2, 1, 2, 5, 8)
    bias = torch.randn(1, 1, 1, 5).to(dtype)
    bias[..., [2, 4]] = torch.finfo(dtype).min
    rows = torch.tensor([[0, 3]])
    columns = torch.tensor([[0, 2, 3, -1]])
    ((log_alpha, _),) = attend_rows(query, key, [(rows, columns)], 0.3, bias, share=True)
    scores = 0.3 * query @ key.transpose(2, 3) + bias.float()
    visible = scores[:, :, [0, 3]][..., [0, 3]]
    assert_close(log_alpha[..., [0, 2]], visible.log_softmax(-1))
    assert log_alpha[..., [1, 3]].eq(-1e9).all()


def test_a_mask_of_other_columns_than_the_phrases_is_refused():
    batch = make_batch()
    del batch["text_positions"], batch["region_positions"]
    with pytest.raises(ValueError, match="attention_mask has 14 columns"):
        get_method("direct").counts(batch)


@pytest.mark.parametrize("by_position", [False, True], ids=["mask", "position"])
def test_the_models_own_mask_and_positions_of_minus_one_mark_padding(by_position):
    batch = make_batch()
    if by_position:
        batch["text_positions"][1, -1] = -1
        del batch["attention_mask"]
    batch["phrase_mask"][1, 0, 5] = True  # a phrase that reaches into the padding
    rows = get_method("direct").targets(batch)["text_to_region"].rows
    assert rows[1].tolist()[:3] == [1, 3, -1]


# Gradients that would be lost


@pytest.mark.parametrize("name", ["direct", "semi_direct"])
def test_reentrant_checkpointing_is_refused(name):
    batch = make_batch()
    batch["attention_mask"] = torch.ones(2, LENGTH, dtype=torch.long)
    model = bert().train()
    method = get_method(name)
    method.prepare(model)
    model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": True})
    inputs = torch.randn(2, LENGTH, WIDTH, requires_grad=True)
    outputs = model(inputs_embeds=inputs, **method.forward_kwargs(batch))
    with pytest.raises(ValueError, match=r'gradient checkpointing is re-entrant: .*"use_reentrant": False'):
        method.losses(outputs, batch)
    with torch.no_grad():  # nothing is lost where nothing is trained
        method.losses(outputs, batch)
