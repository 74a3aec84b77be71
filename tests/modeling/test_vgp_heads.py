# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""The heads of VGP in every family against plain formulas; ViLBERT's text, regions and pooled state differ in size."""

import pytest
import torch
from torch.nn import functional as F
from torch.testing import assert_close

from grounded_attention.families import FAMILIES
from tests.helpers.tiny_two_streams import make_lxmert, make_vilbert
from tests.helpers.tiny_visualbert import make_model as make_visualbert
from tests.helpers.tiny_vl_bert import make_model as make_vl_bert

MAKE = {"vl_bert": make_vl_bert, "visualbert": make_visualbert, "vilbert": make_vilbert, "lxmert": make_lxmert}
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
    return MAKE[family](FAMILIES[family].heads["vgp"], **fields)


def make_inputs(model):
    """Three rows, padded on both sides."""
    generator = torch.Generator().manual_seed(3)
    masks = [torch.ones(B, size, dtype=torch.long) for size in (T, R)]
    masks[0][1, 3:], masks[1][0, 3:] = 0, 0
    return {
        "input_ids": torch.randint(1, 40, (B, T), generator=generator),
        "region_features": torch.randn(B, R, model.config.region_feature_size, generator=generator),
        "region_boxes": torch.rand(B, R, 2, 2, generator=generator).sort(dim=2).values.flatten(2),
        "attention_mask": masks[0],
        "region_attention_mask": masks[1],
    }


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
        states = (base.text_hidden_state, base.region_hidden_state, base.pooler_output)
        assert [state.shape[-1] for state in states] == [24, 18, 20]
    named = model.identification_head.classifier(base.pooler_output)
    assert_close(found.identification_logits, named)
    states = {key: base.text_hidden_state[key[0], tokens].amax(0) for key, tokens in PHRASES.items()}
    scores = []
    for row, pair in ((0, 0), (0, 1), (1, 0)):
        one, two = (states[row, phrase] for phrase in PAIRS[row, pair].tolist())
        scores.append(model.vgp_head.classifier(torch.cat([one, two, one * two, (one - two).abs()])))
        assert_close(found.vgp_logits[row, pair], scores[-1])
    assert not found.vgp_logits[1, 1].any()
    assert not found.vgp_logits[2].any()
    expected = F.cross_entropy(named[[0, 2]], torch.tensor([1, 0]))
    assert_close(found.loss, expected + F.cross_entropy(torch.stack(scores), torch.tensor([2, 0, 4])))
    head = model.grounding_head
    for (row, phrase), state in states.items():
        for region in range(R):
            both = torch.cat([state, base.region_hidden_state[row, region]])
            assert_close(found.grounding_logits[row, phrase, region], head.classifier(both)[0])
    (found.loss + found.grounding_logits.sum()).backward()
    assert all(p.grad.isfinite().all() for p in model.parameters() if p.grad is not None)
    if family == "vilbert":
        for stream in (model.vilbert.encoder.layer, model.vilbert.encoder.v_layer):
            assert all(parameter.grad.abs().sum() > 0 for parameter in stream[0].parameters() if parameter.dim() > 1)


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
    assert model.vgp_head.classifier.weight.grad.abs().sum() == 0


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
