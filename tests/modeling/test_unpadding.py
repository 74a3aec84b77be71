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
from tests.helpers.padded_inputs import lengths_mask, padded_inputs

B = 4
T = 6
R = 5
F = 8
COLUMNS = T + R + 1
STATES = ("input_ids", "attention_mask", "region_features", "region_boxes", "region_attention_mask")
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
        vocab_size=40,
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


def make_batch(pattern="ragged", left=False):
    generator = torch.Generator().manual_seed(1)
    inputs = padded_inputs([T] * B, [R] * B, F)
    text = lengths_mask(PATTERNS[pattern][0], T)
    text = text.flip(1) if left else text
    regions = lengths_mask(PATTERNS[pattern][1], R)
    inputs |= {"attention_mask": text, "region_attention_mask": regions}
    return {
        **inputs,
        "masked_regions": (torch.rand(B, R, generator=generator) < 0.3) & regions.bool(),
        "labels": inputs["input_ids"].flip(0).masked_fill(text == 0, -100),
        "region_labels": torch.randint(0, 7, (B, R), generator=generator).masked_fill(regions == 0, -100),
        "relationship_labels": torch.tensor([1, 0, 1, -100]),
    }


def valid_columns(batch):
    ends = torch.ones(B, 1, dtype=torch.long)
    return torch.cat([batch["attention_mask"], batch["region_attention_mask"], ends], dim=1).bool()


def run(model, batch, unpad, extra=lambda outputs: 0.0, **kwargs):
    """The loss, the gradients by name and the outputs of one step."""
    model.config.unpad = unpad
    model.zero_grad(set_to_none=False)
    outputs = model(**batch, **kwargs)
    loss = outputs.loss + extra(outputs)
    loss.backward()
    gradients = {}
    for name, parameter in model.named_parameters():
        gradients[name] = torch.zeros_like(parameter) if parameter.grad is None else parameter.grad.clone()
    return loss.detach(), gradients, outputs


def assert_same_step(model, batch, **kwargs):
    loss, gradients, outputs = run(model, batch, True, **kwargs)
    expected, wanted, padded = run(model, batch, False, **kwargs)
    assert_close(loss, expected)
    assert_close(gradients, wanted)
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
    assert widths == [valid] * 3 + [B * COLUMNS] * 3


@pytest.mark.parametrize("reentrant", [False, True])
def test_gradient_checkpointing(reentrant):
    model = make_model()
    model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": reentrant})
    assert_same_step(model, make_batch())


def test_attention_maps_keep_their_shape():
    outputs, padded = assert_same_step(make_model("eager"), make_batch(), output_attentions=True)
    valid = valid_columns(make_batch())
    assert len(outputs.attentions) == 3
    for maps in outputs.attentions:
        assert maps.shape == (B, 4, COLUMNS, COLUMNS)
    rows = [[maps.transpose(1, 2)[valid] for maps in model.attentions] for model in (outputs, padded)]
    assert_close(*rows)


@pytest.mark.parametrize("wanted", [True, [0, 2], [-1]])
@pytest.mark.parametrize("pattern", ["ragged", "every row short", "nothing padded"])
def test_hidden_states_are_recorded_without_padding_too(wanted, pattern, widths):
    batch = make_batch(pattern)
    outputs, padded = assert_same_step(make_model(), batch, output_hidden_states=wanted)
    valid = valid_columns(batch)
    assert widths == [int(valid.sum())] * 3 + [B * COLUMNS] * 3
    assert_same_states(outputs, padded, valid)


def test_hidden_states_of_one_row_and_as_a_tuple():
    batch = {name: value[1:2] for name, value in make_batch().items()}
    outputs, padded = assert_same_step(make_model(), batch, output_hidden_states=True)
    assert_same_states(outputs, padded, valid_columns(make_batch())[1:2])
    model = VLBertModel(make_model(unpad=True).config).eval()
    inputs = {name: batch[name] for name in STATES}
    *_, states = model(**inputs, output_hidden_states=True, return_dict=False)
    assert [state.shape for state in states] == [(1, COLUMNS, 16)] * 4


def assert_same_states(outputs, padded, valid):
    assert len(outputs.hidden_states) == 4
    for found, expected in zip(outputs.hidden_states, padded.hidden_states, strict=True):
        if expected is None:  # transformers 5.20 or newer records only what is wanted
            assert found is None
            continue
        assert found.shape == expected.shape == (len(valid), COLUMNS, 16)
        assert_close(found[valid], expected[valid])


def test_the_box_head_reads_the_same_states(widths):
    config = make_model(box_layer=1).config
    torch.manual_seed(0)
    vgp = VLBertForVGP(config).train()
    batch = make_batch()
    words = batch["attention_mask"].bool()
    found = []
    for unpad in (True, False):
        vgp.config.unpad = unpad
        vgp.zero_grad()
        boxes = vgp(**{name: batch[name] for name in STATES}).pred_boxes[words]
        (boxes * torch.arange(boxes.numel()).view_as(boxes)).sum().backward()
        parameters = vgp.vl_bert.encoder.layer[:2].parameters()
        found.append([boxes, *(parameter.grad for parameter in parameters)])
    assert widths[0] < widths[-1] == B * COLUMNS
    assert_close(*found, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("method_name", ["direct", "semi_direct"])
@pytest.mark.parametrize("back_end", ["eager", "sdpa"])
def test_supervised_attention(back_end, method_name):
    model = make_model(back_end)
    method = get_method(method_name)
    model.set_attn_implementation(supervised_implementation(model))
    batch = make_batch("every row short")
    first_word = torch.eye(1, T).bool().expand(B, 1, T)
    first_region = torch.eye(1, R).bool().expand(B, 1, R)
    grounding = {**batch, "phrase_mask": first_word, "phrase_regions": first_region}
    queries = method.forward_kwargs(grounding)

    def supervision(outputs):
        return sum(total / count for total, count in method.losses(outputs, grounding).values())

    outputs, _ = assert_same_step(model, batch, extra=supervision, **queries)
    assert supervision(outputs) != 0


def test_padded_columns_hold_zeros_and_the_others_the_same():
    batch = make_batch()
    inputs = {name: batch[name] for name in STATES}
    model = VLBertModel(make_model().config).eval()
    model.config.unpad = False
    padded = model(**inputs)
    model.config.unpad = True
    states = model(**inputs)
    for name, mask in (("text_hidden_state", "attention_mask"), ("region_hidden_state", "region_attention_mask")):
        valid = batch[mask].bool()
        assert_close(states[name][valid], padded[name][valid])
        assert not states[name][~valid].any()
        assert padded[name][~valid].any()
    assert_close(states.pooler_output, padded.pooler_output)


def test_a_model_without_padding_reads_no_text_mask():
    words = make_batch()["input_ids"]
    logits = [make_model(unpad=unpad).eval()(words).mlm_logits for unpad in (True, False)]
    assert_close(*logits)


def test_packing_is_undone_by_unpacking():
    mask = lengths_mask([2, 0, 3], 3)
    there = mask[..., None, None]
    packing = find_packing(mask)
    states = torch.randn(3, 3, 2, 5, requires_grad=True)
    packed = packing.pack(states)
    assert packed.shape == (1, 5, 2, 5)
    returned = packing.unpack(packed)
    assert_close(returned, states * there)
    weights = torch.randn_like(returned)
    (gradient,) = torch.autograd.grad((returned * weights).sum(), states)
    assert_close(gradient, weights * there)
    assert_close(apply_packed(torch.exp, packing, states), states.exp() * there)
    for nothing in (find_packing(None), find_packing(mask, wanted=False), find_packing(torch.ones(2, 3))):
        assert nothing is None


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


SIZES = {"batch": 3, "words": 5, "regions": 4, "phrases": 2, "pairs": 2}


@pytest.mark.parametrize("labelled", [("labels", "regions"), ("regions",), ()])
@pytest.mark.parametrize("case", TARGETS)
def test_training_scores_only_what_has_a_label(case, labelled):
    family, names, fields = TARGETS[case]
    model = without_dropout(family, **fields)
    inputs = draw_inputs(model_inputs(model), SIZES)
    words = torch.eye(3, 5).bool() & ("labels" in labelled)
    regions = torch.eye(3, 4).bool() & ("regions" in labelled)
    regions[2] = False  # the last row has no regions
    classes = model.config.region_classes if names else 2
    every = {
        "region_labels": torch.where(regions, 1, -100),
        "region_label_probs": regions[..., None].expand(-1, -1, classes) / classes,
        "predicted_regions": regions,
    }
    inputs |= {name: every[name] for name in names}
    inputs["labels"] = torch.where(words, 7, -100)
    sparse, padded = assert_same_step(model, inputs)
    assert labelled or sparse.loss == 0
    scored = {"mlm_logits": (words, inputs["attention_mask"])}
    if names:
        scored["region_logits"] = (regions, inputs["region_attention_mask"])
    for name, (mask, _) in scored.items():
        assert_close(sparse[name], padded[name] * mask[..., None])
        assert padded[name].any()
    model.eval()
    _, _, unpadded = run(model, inputs, True)
    _, _, padded = run(model, inputs, False)
    for name, (_, there) in scored.items():
        valid = there.bool()
        assert_close(unpadded[name][valid], padded[name][valid])


@pytest.mark.parametrize("family", ["vl_bert", "vilbert", "lxmert"])
def test_words_of_text_only_rows_have_a_mean_of_their_own(family):
    model = without_dropout(family)
    inputs = draw_inputs(model_inputs(model), SIZES)
    rows = [0, 2, 2, 1, 1]
    columns = [1, 1, 2, 0, 2]
    words = [7, 5, 6, 8, 9]
    inputs["labels"] = torch.full((3, 5), -100)
    inputs["labels"][rows, columns] = torch.tensor(words)
    inputs["text_only"] = torch.tensor([False, True, False])
    losses = -model.eval()(**inputs).mlm_logits.log_softmax(-1)[rows, columns, words]
    expected = losses[:3].mean() + losses[3:].mean()
    assert_close(model(**inputs).loss, expected)
    for unpad in (True, False):
        assert_close(run(model.train(), inputs, unpad)[0], expected)
