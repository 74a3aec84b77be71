# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""Leaving padding out changes no loss, no gradient and no reported attention, on any back end."""

import pytest
import torch
from torch import nn

from grounded_attention.families import FAMILIES
from grounded_attention.modeling import VLBertConfig, VLBertForPreTraining, VLBertForVGP, VLBertModel
from grounded_attention.modeling.unpadding import apply_packed, find_packing
from grounded_attention.supervision import get_method, supervised_implementation
from tests.helpers.closeness import assert_close
from tests.helpers.exported import draw_inputs, model_inputs, tiny_model

B = 4
T = 6
R = 5
F = 8
# Text and region lengths of the rows; 0 regions is text alone.
PATTERNS = {
    "ragged": ([6, 3, 1, 5], [2, 5, 1, 4]),
    "text alone beside images": ([6, 3, 4, 5], [0, 5, 0, 2]),
    "text alone in regions' columns": ([6, 3, 4, 5], [0, 0, 0, 0]),
    "regions full": ([2, 3, 1, 6], [5, 5, 5, 5]),
    "text full": ([6, 6, 6, 6], [1, 2, 3, 5]),
    "nothing padded": ([6, 6, 6, 6], [5, 5, 5, 5]),
    "every row short": ([3, 2, 3, 1], [2, 1, 2, 1]),
}


def make_model(back_end="sdpa", **overrides):
    torch.manual_seed(0)
    config = VLBertConfig(
        vocab_size=30,
        hidden_size=16,
        num_hidden_layers=3,
        num_attention_heads=4,
        intermediate_size=20,
        max_position_embeddings=20,
        region_feature_size=F,
        coordinate_dim=2,
        region_classes=7,
        hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0,
        region_dropout=0.0,
        visual_scale_text_init=1.0,
        visual_scale_region_init=1.0,
        initializer_range=0.3,
        relationship_head=True,
        **overrides,
    )
    return VLBertForPreTraining._from_config(config, attn_implementation=back_end).train()


def mask_of(lengths, width, left=False):
    places = torch.arange(width)
    lengths = torch.tensor(lengths)[:, None]
    return (places >= width - lengths if left else places < lengths).long()


def make_batch(pattern="ragged", left=False):
    generator = torch.Generator().manual_seed(1)
    text = mask_of(PATTERNS[pattern][0], T, left)
    regions = mask_of(PATTERNS[pattern][1], R)
    corners = torch.rand(B, R, 2, 2, generator=generator).sort(dim=2).values
    return {
        "input_ids": torch.randint(1, 30, (B, T), generator=generator),
        "attention_mask": text,
        "region_features": torch.randn(B, R, F, generator=generator),
        "region_boxes": corners.flatten(2),
        "region_attention_mask": regions,
        "masked_regions": (torch.rand(B, R, generator=generator) < 0.3) & regions.bool(),
        "labels": torch.randint(1, 30, (B, T), generator=generator).masked_fill(text == 0, -100),
        "region_labels": torch.randint(0, 7, (B, R), generator=generator).masked_fill(regions == 0, -100),
        "relationship_labels": torch.tensor([1, 0, 1, -100]),
    }


def valid_columns(batch):
    ends = torch.ones(B, 1, dtype=torch.long)
    return torch.cat([batch["attention_mask"], batch["region_attention_mask"], ends], dim=1).bool()


def run(model, batch, unpad, extra=lambda outputs: 0.0, **kwargs):
    """The loss, the gradients by name and the outputs of one step."""
    model.config.unpad = unpad
    model.zero_grad()
    outputs = model(**batch, **kwargs)
    loss = outputs.loss + extra(outputs)
    loss.backward()
    gradients = {n: p.grad.clone() for n, p in model.named_parameters() if p.grad is not None}
    return loss.detach(), gradients, outputs


def assert_same_step(model, batch, **kwargs):
    (loss, gradients, outputs), (expected, wanted, padded) = (run(model, batch, on, **kwargs) for on in (True, False))
    assert_close(loss, expected)
    for name, gradient in wanted.items():
        found = gradients.get(name, torch.zeros_like(gradient))
        assert_close(found, gradient, rtol=1e-5, atol=1e-5, msg=name)
    return outputs, padded


@pytest.fixture
def widths(monkeypatch):
    """The columns that each linear layer of width 20 (one a BERT layer) has seen."""
    seen = []
    forward = nn.Linear.forward

    def record(layer, states):
        if layer.out_features == 20:
            seen.append(states.shape[:-1].numel())
        return forward(layer, states)

    monkeypatch.setattr(nn.Linear, "forward", record)
    return seen


@pytest.mark.parametrize("left", [False, True])
@pytest.mark.parametrize("pattern", PATTERNS)
def test_every_padding_gives_the_same_step(pattern, left, widths):
    batch = make_batch(pattern, left)
    assert_same_step(make_model(), batch)
    valid = sum(map(sum, PATTERNS[pattern])) + B  # and an END a row
    assert widths == [valid] * 3 + [B * (T + R + 1)] * 3


@pytest.mark.parametrize("back_end", ["eager", "sdpa"])
def test_back_ends(back_end):
    assert_same_step(make_model(back_end), make_batch())


@pytest.mark.parametrize("reentrant", [False, True])
def test_gradient_checkpointing(reentrant):
    model = make_model()
    model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": reentrant})
    assert_same_step(model, make_batch())


def test_attention_maps_keep_their_shape():
    outputs, padded = assert_same_step(make_model("eager"), make_batch(), output_attentions=True)
    valid = valid_columns(make_batch())
    assert len(outputs.attentions) == 3
    for found, expected in zip(outputs.attentions, padded.attentions, strict=True):
        assert found.shape == expected.shape == (B, 4, T + R + 1, T + R + 1)
        assert_close(found.transpose(1, 2)[valid], expected.transpose(1, 2)[valid])


@pytest.mark.parametrize("wanted", [True, [0, 2], [-1]])
@pytest.mark.parametrize("pattern", ["ragged", "every row short", "nothing padded"])
def test_hidden_states_are_recorded_without_padding_too(wanted, pattern, widths):
    batch = make_batch(pattern)
    outputs, padded = assert_same_step(make_model(), batch, output_hidden_states=wanted)
    assert widths == [int(valid_columns(batch).sum())] * 3 + [B * (T + R + 1)] * 3
    assert_same_states(outputs, padded, valid_columns(batch))


def test_hidden_states_of_one_row_and_as_a_tuple():
    batch = {name: value[1:2] for name, value in make_batch().items()}
    outputs, padded = assert_same_step(make_model(), batch, output_hidden_states=True)
    valid = valid_columns(make_batch())[1:2]
    assert_same_states(outputs, padded, valid)
    inputs = {n: v for n, v in batch.items() if "label" not in n and n != "masked_regions"}
    model = VLBertModel(make_model(unpad=True).config).eval()
    *_, states = model(**inputs, output_hidden_states=True, return_dict=False)
    assert [state.shape for state in states] == [(1, T + R + 1, 16)] * 4


def assert_same_states(outputs, padded, valid):
    assert len(outputs.hidden_states) == len(padded.hidden_states) == 4
    for found, expected in zip(outputs.hidden_states, padded.hidden_states, strict=True):
        if expected is None:  # transformers 5.20 or newer records only what is wanted
            assert found is None
            continue
        assert found.shape == expected.shape == (len(valid), T + R + 1, 16)
        assert_close(found[valid], expected[valid])


def test_the_box_head_reads_the_same_states(widths):
    model = make_model().config.to_dict() | {"box_layer": 1}
    torch.manual_seed(0)
    vgp = VLBertForVGP(VLBertConfig.from_dict(model)).train()
    batch = {n: v for n, v in make_batch().items() if "label" not in n and n != "masked_regions"}
    found = []
    for unpad in (True, False):
        vgp.config.unpad = unpad
        vgp.zero_grad()
        boxes = vgp(**batch).pred_boxes[batch["attention_mask"].bool()]
        (boxes * torch.arange(boxes.numel()).reshape(boxes.shape)).sum().backward()
        found.append([boxes, *(p.grad for p in vgp.vl_bert.encoder.layer[:2].parameters())])
    assert widths[0] < widths[-1] == B * (T + R + 1)
    for ours, expected in zip(*found, strict=True):
        assert_close(ours, expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("method_name", ["direct", "semi_direct"])
@pytest.mark.parametrize("back_end", ["eager", "sdpa"])
def test_supervised_attention(back_end, method_name):
    model = make_model(back_end)
    method = get_method(method_name)
    model.set_attn_implementation(supervised_implementation(model))
    batch = make_batch("every row short")
    phrases = torch.zeros(B, 1, T, dtype=torch.bool), torch.zeros(B, 1, R, dtype=torch.bool)
    phrases[0][:, 0, 0], phrases[1][:, 0, 0] = True, True
    grounding = {**batch, "phrase_mask": phrases[0], "phrase_regions": phrases[1]}

    def supervision(outputs):
        return sum(total / count for total, count in method.losses(outputs, grounding).values())

    assert supervision(run(model, batch, True, **method.forward_kwargs(grounding))[2]) != 0
    assert_same_step(model, batch, extra=supervision, **method.forward_kwargs(grounding))


def test_padded_columns_hold_zeros_and_the_others_the_same():
    batch = make_batch()
    inputs = {n: v for n, v in batch.items() if "label" not in n and n != "masked_regions"}
    model = VLBertModel(make_model().config).eval()
    model.config.unpad = False
    padded = model(**inputs)
    model.config.unpad = True
    states = model(**inputs)
    for name, mask in (("text", "attention_mask"), ("region", "region_attention_mask")):
        valid = batch[mask].bool()
        found = states[f"{name}_hidden_state"]
        expected = padded[f"{name}_hidden_state"]
        assert_close(found[valid], expected[valid])
        assert not found[~valid].any()
        assert expected[~valid].any()
    assert_close(states.pooler_output, padded.pooler_output)


def test_a_model_without_padding_reads_no_text_mask():
    model = make_model(unpad=True).eval()
    words = make_batch()["input_ids"]
    assert_close(model(words).mlm_logits, make_model().eval()(words).mlm_logits)


def test_packing_is_undone_by_unpacking():
    mask = mask_of([2, 0, 3], 3)
    packing = find_packing(mask)
    states = torch.randn(3, 3, 2, 5, requires_grad=True)
    packed = packing.pack(states)
    assert packed.shape == (1, 5, 2, 5)
    returned = packing.unpack(packed)
    assert_close(returned, states * mask[..., None, None])
    weights = torch.randn_like(returned)
    (gradient,) = torch.autograd.grad((returned * weights).sum(), states)
    assert_close(gradient, weights * mask[..., None, None])
    assert_close(apply_packed(torch.exp, packing, states), states.exp() * mask[..., None, None])
    assert find_packing(None) is find_packing(mask, wanted=False) is find_packing(torch.ones(2, 3)) is None


TARGETS = {  # family, targets of its regions, fields of its configuration
    "VL-BERT, hard": ("vl_bert", ("region_labels",), {}),
    "VL-BERT, soft": ("vl_bert", ("region_label_probs",), {}),
    "ViLBERT, hard": ("vilbert", ("region_labels",), {}),
    "ViLBERT, soft": ("vilbert", ("region_label_probs",), {}),
    "ViLBERT, features": ("vilbert", ("predicted_regions",), {"visual_target": "features"}),
    "LXMERT": ("lxmert", (), {}),
    "VisualBERT": ("visualbert", (), {}),
}


def without_dropout(family, **fields):
    fields |= {name: 0.0 for name in vars(FAMILIES[family].base_model.config_class()) if "dropout" in name}
    model = tiny_model(family, "pretraining", **fields).train()
    for module in model.modules():  # of the heads
        if isinstance(module, nn.Dropout):
            module.p = 0.0
    return model


@pytest.mark.parametrize("without", [None, "labels", "all"])
@pytest.mark.parametrize("case", TARGETS)
def test_training_scores_only_what_has_a_label(case, without):
    family, names, fields = TARGETS[case]
    model = without_dropout(family, **fields)
    inputs = draw_inputs(model_inputs(model), {"batch": 3, "words": 5, "regions": 4, "phrases": 2, "pairs": 2})
    chosen = {"labels": torch.eye(3, 5).bool(), "regions": torch.eye(3, 4).bool()}
    chosen["regions"][2] = False  # the last row has no regions
    if without is not None:
        chosen = {name: mask & (name != without and without != "all") for name, mask in chosen.items()}
    classes = model.config.region_classes if names else 2
    every = {
        "labels": torch.full((3, 5), -100).masked_fill(chosen["labels"], 7),
        "region_labels": torch.full((3, 4), -100).masked_fill(chosen["regions"], 1),
        "region_label_probs": chosen["regions"][..., None].expand(-1, -1, classes) / classes,
        "predicted_regions": chosen["regions"],
    }
    targets = {name: every[name] for name in ("labels", *names)}
    sparse, padded = assert_same_step(model, {**inputs, **targets})
    kept = [("mlm_logits", chosen["labels"]), *([("region_logits", chosen["regions"])] if names else ())]
    for name, mask in kept:
        assert_close(sparse[name], padded[name] * mask[..., None])
        assert padded[name].any()
    model.eval()
    seen = inputs["attention_mask"].bool()
    outputs = [run(model, {**inputs, **targets}, unpad)[2] for unpad in (True, False)]
    assert_close(*(each.mlm_logits[seen] for each in outputs))
    if names:
        seen = inputs["region_attention_mask"].bool()
        assert_close(*(each.region_logits[seen] for each in outputs))


@pytest.mark.parametrize("family", ["vl_bert", "vilbert", "lxmert"])
def test_words_of_text_only_rows_have_a_mean_of_their_own(family):
    model = without_dropout(family)
    inputs = draw_inputs(model_inputs(model), {"batch": 3, "words": 5, "regions": 4, "phrases": 2, "pairs": 2})
    labels = torch.tensor([[-100, 7, -100, -100, -100], [8, -100, 9, -100, -100], [-100, 5, 6, -100, -100]])
    inputs |= {"labels": labels, "text_only": torch.tensor([False, True, False])}
    logs = -model.eval()(**inputs).mlm_logits.log_softmax(-1)
    expected = (logs[0, 1, 7] + logs[2, 1, 5] + logs[2, 2, 6]) / 3 + (logs[1, 0, 8] + logs[1, 2, 9]) / 2
    assert_close(model(**inputs).loss, expected)
    for unpad in (True, False):
        assert_close(run(model.train(), inputs, unpad)[0], expected)
