# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""The heads of VGP in every family against plain formulas; ViLBERT's text, regions and pooled state differ in size."""

import pytest
import torch
from torch.nn import functional as F
from torch.testing import assert_close

from grounded_attention.families import FAMILIES
from tests.helpers.exported import tiny_model
from tests.helpers.padded_inputs import padded_inputs

B = 3
T = 5
R = 4
# Tokens of the phrases of each row; the second row has one, the third none.
PHRASES = {(0, 0): [1, 2], (0, 1): [4], (1, 0): [0]}
PAIRS = torch.tensor([[[0, 1], [1, 0]], [[0, 0], [-1, -1]], [[-1, -1]] * 2])
LABELS = {
    "identification_labels": torch.tensor([1, -100, 0]),
    "vgp_labels": torch.tensor([[2, 0], [4, -100], [-100, -100]]),
}
families = pytest.mark.parametrize("family", FAMILIES)


def make(family, **fields):
    return tiny_model(family, "vgp", **fields)


def make_inputs(model):
    return padded_inputs([5, 3, 5], [3, 4, 4], model.config.region_feature_size)


def make_phrases():
    mask = torch.zeros(B, 2, T, dtype=torch.bool)
    for (row, phrase), tokens in PHRASES.items():
        mask[row, phrase, tokens] = True
    return {"phrase_mask": mask, "phrase_pairs": PAIRS}


@families
def test_scores_and_loss_by_their_formulas(family):
    model = make(family, grounding_head=True)
    inputs = make_inputs(model)
    found = model(**inputs, **make_phrases(), **LABELS)
    base = model.base_model(**inputs)
    if family == "vilbert":
        widths = [base.text_hidden_state.shape[2], base.region_hidden_state.shape[2], base.pooler_output.shape[1]]
        assert widths == [24, 18, 20]
    named = model.identification_head.classifier(base.pooler_output)
    assert_close(found.identification_logits, named)
    states = torch.zeros(B, 2, base.text_hidden_state.shape[2])
    for (row, phrase), tokens in PHRASES.items():
        states[row, phrase] = base.text_hidden_state[row, tokens].amax(0)
        both = torch.cat([states[row, phrase].expand(R, -1), base.region_hidden_state[row]], dim=1)
        assert_close(found.grounding_logits[row, phrase], model.grounding_head.classifier(both)[:, 0])
    first = states[[0, 0, 1], [0, 1, 0]]
    second = states[[0, 0, 1], [1, 0, 0]]
    joined = torch.cat([first, second, first * second, (first - second).abs()], dim=1)
    scores = model.vgp_head.classifier(joined)
    assert_close(found.vgp_logits[[0, 0, 1], [0, 1, 0]], scores)
    assert not found.vgp_logits[1, 1].any()
    assert not found.vgp_logits[2].any()
    identification = F.cross_entropy(named[[0, 2]], torch.tensor([1, 0]))
    assert_close(found.loss, identification + F.cross_entropy(scores, torch.tensor([2, 0, 4])))
    (found.loss + found.grounding_logits.sum()).backward()
    assert all(p.grad.isfinite().all() for p in model.parameters() if p.grad is not None)
    if family == "vilbert":
        encoder = model.vilbert.encoder
        for parameter in [*encoder.layer[0].parameters(), *encoder.v_layer[0].parameters()]:
            assert parameter.dim() == 1 or parameter.grad.any()


@families
def test_captions_can_be_identified_from_the_first_word(family):
    model = make(family, identification_pooling="cls")
    inputs = make_inputs(model)
    expected = model.identification_head(model.base_model(**inputs).text_hidden_state[:, 0])
    assert_close(model(**inputs).identification_logits, expected)
    if family == "vl_bert":
        assert model.vl_bert.pooler is None


@families
@pytest.mark.parametrize("phrases", [0, 2])
def test_nothing_labelled_gives_zero_with_a_graph(family, phrases):
    model = make(family)
    labels = {name: torch.full_like(value, -100) for name, value in LABELS.items()}
    none = {"phrase_mask": torch.zeros(B, phrases, T).bool(), "phrase_pairs": torch.full_like(PAIRS, -1)}
    outputs = model(**make_inputs(model), **none, **labels)
    assert outputs.loss.item() == 0.0
    outputs.loss.backward()
    assert all(p.grad is None or p.grad.isfinite().all() for p in model.parameters())
    assert not model.vgp_head.classifier.weight.grad.any()


@families
def test_bfloat16_forward_and_backward_are_finite(family):
    model = make(family, grounding_head=True).to(torch.bfloat16)
    outputs = model(**make_inputs(model), **make_phrases(), **LABELS)
    assert outputs.vgp_logits.dtype == torch.bfloat16
    outputs.loss.backward()
    assert all(p.grad.isfinite().all() for p in model.parameters() if p.grad is not None)


@families
def test_vgp_labels_need_phrases(family):
    model = make(family)
    with pytest.raises(ValueError, match="vgp_labels are given without phrase_mask and phrase_pairs"):
        model(**make_inputs(model), vgp_labels=LABELS["vgp_labels"])


def test_a_family_of_one_stream_has_one_width():
    for family in ("vl_bert", "visualbert"):
        config = FAMILIES[family].config_class(hidden_size=24)
        assert (config.text_hidden_size, config.region_hidden_size, config.pooled_hidden_size) == (24, 24, 24)
