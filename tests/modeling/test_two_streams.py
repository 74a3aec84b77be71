# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""The heads of VGP over ViLBERT, whose states of text, regions and both together differ in width."""

import pytest
import torch
from torch.nn import functional as F

from grounded_attention.modeling import ViLBertForVGP, VisualBERTConfig, VLBertConfig
from tests.helpers.tiny_two_streams import make_vilbert

B, T, R = 2, 5, 4
# Tokens of the phrases of each row; the second row has one.
PHRASES = {(0, 0): [1, 2], (0, 1): [4], (1, 0): [0]}
PAIRS = torch.tensor([[[0, 1], [1, 0]], [[0, 0], [-1, -1]]])


def make_inputs() -> dict[str, torch.Tensor]:
    """Two rows, padded on both sides."""
    generator = torch.Generator().manual_seed(3)
    masks = [torch.ones(B, size, dtype=torch.long) for size in (T, R)]
    masks[0][1, 3:], masks[1][0, 3:] = 0, 0
    return {
        "input_ids": torch.randint(1, 40, (B, T), generator=generator),
        "region_features": torch.randn(B, R, 16, generator=generator),
        "region_boxes": torch.rand(B, R, 2, 2, generator=generator).sort(dim=2).values.flatten(2),
        "attention_mask": masks[0],
        "region_attention_mask": masks[1],
    }


def make_phrases() -> torch.Tensor:
    mask = torch.zeros(B, 2, T, dtype=torch.bool)
    for (row, phrase), tokens in PHRASES.items():
        mask[row, phrase, tokens] = True
    return mask


def test_paraphrases_are_scored_from_the_states_of_their_streams():
    model, inputs = make_vilbert(ViLBertForVGP, grounding_head=True, grounding_hidden_size=6), make_inputs()
    found = model(**inputs, phrase_mask=make_phrases(), phrase_pairs=PAIRS)
    base, heads = model.vilbert(**inputs), (model.vgp_head, model.grounding_head)
    widths = [state.shape[-1] for state in (base.text_hidden_state, base.region_hidden_state, base.pooler_output)]
    assert widths == [24, 18, 20]
    torch.testing.assert_close(found.identification_logits, model.identification_head(base.pooler_output))
    states = {key: base.text_hidden_state[key[0], tokens].amax(0) for key, tokens in PHRASES.items()}
    for row, pair in ((0, 0), (0, 1), (1, 0)):
        one, two = (states[row, phrase] for phrase in PAIRS[row, pair].tolist())
        expected = heads[0](torch.cat([one, two, one * two, (one - two).abs()]))
        torch.testing.assert_close(found.vgp_logits[row, pair], expected)
    assert not found.vgp_logits[1, 1].any()
    for (row, phrase), state in states.items():
        for region in range(R):
            both = torch.cat([state, base.region_hidden_state[row, region]])
            expected = heads[1].classifier(heads[1].dense(both).relu())[0]
            torch.testing.assert_close(found.grounding_logits[row, phrase, region], expected)


def test_captions_can_be_identified_from_the_first_word():
    model, inputs = make_vilbert(ViLBertForVGP, identification_pooling="cls"), make_inputs()
    expected = model.identification_head(model.vilbert(**inputs).text_hidden_state[:, 0])
    torch.testing.assert_close(model(**inputs).identification_logits, expected)


def test_the_loss_of_paraphrases_reaches_both_streams():
    model = make_vilbert(ViLBertForVGP)
    labels = {"identification_labels": torch.tensor([1, -100]), "vgp_labels": torch.tensor([[2, 0], [-100, -100]])}
    found = model(**make_inputs(), phrase_mask=make_phrases(), phrase_pairs=PAIRS, **labels)
    named = F.cross_entropy(found.identification_logits[:1], torch.tensor([1]))
    torch.testing.assert_close(found.loss, named + F.cross_entropy(found.vgp_logits[0], torch.tensor([2, 0])))
    found.loss.backward()
    for stream in (model.vilbert.encoder.layer, model.vilbert.encoder.v_layer):
        assert all(parameter.grad.abs().sum() > 0 for parameter in stream[0].parameters() if parameter.dim() > 1)


@pytest.mark.parametrize("layer", [0, 1])
def test_boxes_are_read_off_the_words_of_a_layer(layer):
    model, inputs = make_vilbert(ViLBertForVGP, box_layer=layer), make_inputs()
    states = model.vilbert(**inputs, output_hidden_states=True).hidden_states[layer + 1]
    found = model(**inputs)
    torch.testing.assert_close(found.pred_boxes, (states @ model.box_head.weight.T + model.box_head.bias).sigmoid())
    assert found.hidden_states is None


def test_a_family_of_one_stream_has_one_width():
    for config in (VLBertConfig(hidden_size=24), VisualBERTConfig(hidden_size=24)):
        assert (config.text_hidden_size, config.region_hidden_size, config.pooled_hidden_size) == (24, 24, 24)
