# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""Grounding alignment: matrix, draws, head and loss against loops by hand; options; several methods at once."""

import math
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch.testing import assert_close

from grounded_attention.modeling import VLBertConfig, VLBertForReferringExpression, VLBertForVGP
from grounded_attention.modeling.task_heads import AlignmentHead, PhraseEncoder
from grounded_attention.supervision import CombinedSupervision, get_method
from grounded_attention.supervision.grounding_alignment import PAIRS, alignment_matrix

LEVELS = ("phrase", "token")
B = 3
P = 4
T = 8
R = 6


def make_batch(seed=0):
    """Random phrases and regions with confidences: padded phrases, overlapping phrases, phrases without regions."""
    rng = np.random.default_rng(seed)
    phrase_mask = np.zeros((B, P, T), bool)
    phrase_regions = np.zeros((B, P, R), bool)
    for example in range(B):
        for phrase in range(P - example):
            start = rng.integers(1, T - 3)
            end = start + rng.integers(1, 4)
            phrase_mask[example, phrase, start:end] = True
            if phrase:
                phrase_regions[example, phrase] = rng.random(R) < 0.3
    regions = np.arange(R) < np.array([[6], [5], [4]])
    candidates = regions & (np.arange(R) > 0)
    batch = {
        "phrase_mask": phrase_mask,
        "phrase_regions": phrase_regions & candidates[:, None],
        "phrase_scores": rng.uniform(0.2, 1.0, (B, P, R)).astype(np.float32),
        "attention_mask": np.arange(T) < np.array([[8], [6], [7]]),
        "region_attention_mask": regions,
        "region_candidate_mask": candidates,
    }
    return {name: torch.from_numpy(value) for name, value in batch.items()}


def matrix_by_hand(batch, example, level):
    """(row, region) -> (matches, confidence) of the pairs that may be drawn."""
    get = {name: value[example].tolist() for name, value in batch.items()}
    entries = {}
    for p in range(P):
        for t in range(T):
            if not (get["phrase_mask"][p][t] and get["attention_mask"][t]):
                continue
            row = p if level == "phrase" else t
            for r in range(R):
                if get["region_candidate_mask"][r]:
                    entry = (get["phrase_regions"][p][r], get["phrase_scores"][p][r])
                    # Of several phrases of a token those that match come first, then the most confident.
                    entries[row, r] = max(entry, entries.get((row, r), entry))
    return entries


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("level", LEVELS)
def test_the_matrix_is_that_of_loops(level, seed):
    batch = make_batch(seed)
    matrix = alignment_matrix(batch, level)
    for example in range(B):
        found = {}
        for row, region in matrix.allowed[example].nonzero().tolist():
            place = (example, row, region)
            found[row, region] = (matrix.matches[place].item(), pytest.approx(matrix.weights[place].item()))
        assert found == matrix_by_hand(batch, example, level)


def test_the_words_of_a_phrase_are_in_order_and_those_of_padding_are_left_out():
    batch = make_batch()
    phrases = alignment_matrix(batch, "phrase").phrases
    assert phrases.shape[:2] == (B, P)
    valid = batch["phrase_mask"] & batch["attention_mask"][:, None]
    for example, phrase in np.ndindex(B, P):
        words = valid[example, phrase].nonzero()[:, 0].tolist()
        padding = [-1] * (phrases.shape[2] - len(words))
        assert phrases[example, phrase].tolist() == words + padding


def drawn_pairs(method, batch, *generators):
    """For each example (row, region) -> (label, weight)."""
    drawn = method.prepare_batch(batch, *generators)[PAIRS]
    found = []
    for pairs, labels, weights in zip(drawn["pairs"], drawn["labels"], drawn["weights"], strict=True):
        known = pairs[:, 0] >= 0
        values = zip(labels[known].bool().tolist(), weights[known].tolist(), strict=True)
        found.append(dict(zip(map(tuple, pairs[known].tolist()), values, strict=True)))
    return found


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("level", LEVELS)
def test_as_many_matching_pairs_as_others_are_drawn_without_repetition(level, seed):
    method = get_method("grounding_alignment", level=level)
    batch = make_batch(seed)
    total = 0
    for example, drawn in enumerate(drawn_pairs(method, batch)):
        entries = matrix_by_hand(batch, example, level)
        matching = sum(matches for matches, _ in entries.values())
        expected = min(matching, len(entries) - matching)
        labels = [label for label, _ in drawn.values()]
        assert labels.count(True) == labels.count(False) == expected
        for pair, entry in drawn.items():
            assert entry == pytest.approx(entries[pair])
        total += len(drawn)
    assert method.counts(batch)["alignment"] == total > 0


def test_the_draws_of_a_row_are_those_of_its_generator_and_reach_every_pair():
    batch = make_batch()
    second = {name: value[1:2] for name, value in batch.items()}
    method = get_method("grounding_alignment")
    reached = set()
    for seed in range(200):
        drawn = drawn_pairs(method, batch, lambda row, seed=seed: np.random.default_rng((seed, row)))
        (alone,) = drawn_pairs(method, second, lambda row, seed=seed: np.random.default_rng((seed, 1)))
        assert alone == drawn[1]
        reached |= set(drawn[0])
    assert reached == set(matrix_by_hand(batch, 0, "phrase"))


def lstm_by_hand(lstm, states):
    """The state after the last input, with the equations of an LSTM."""
    hidden = torch.zeros(lstm.hidden_size)
    cell = torch.zeros(lstm.hidden_size)
    for state in states:
        gates = lstm.weight_ih_l0 @ state + lstm.bias_ih_l0 + lstm.weight_hh_l0 @ hidden + lstm.bias_hh_l0
        into, forget, new, out = gates.chunk(4)
        cell = forget.sigmoid() * cell + into.sigmoid() * new.tanh()
        hidden = out.sigmoid() * cell.tanh()
    return hidden


@torch.no_grad()
@pytest.mark.parametrize("level", LEVELS)
def test_scores_and_loss_are_those_of_loops(level):
    torch.manual_seed(1)
    sizes = {"text_hidden_size": 5, "region_hidden_size": 7, "pooled_hidden_size": 6, "alignment_size": None}
    head = AlignmentHead(SimpleNamespace(**sizes, alignment_level=level))
    for parameter in head.parameters():
        torch.nn.init.normal_(parameter)
    batch = make_batch(3)
    method = get_method("grounding_alignment", level=level, weight=2.5)
    text = torch.randn(B, T, 5)
    regions = torch.randn(B, R, 7)
    logits = head(text, regions, **method.forward_kwargs(batch))
    total, count = method.losses(SimpleNamespace(alignment_logits=logits), batch)["alignment"]
    losses = []
    for example, drawn in enumerate(drawn_pairs(method, batch)):
        for (row, region), (label, confidence) in drawn.items():
            if level == "token":
                phrase = text[example, row]
            else:
                words = batch["phrase_mask"][example, row] & batch["attention_mask"][example]
                phrase = lstm_by_hand(head.phrase_encoder.lstm, text[example, words])
            product = head.text_dense(phrase).relu() * head.region_dense(regions[example, region]).relu()
            score = head.classifier(product).item()
            losses.append(confidence * math.log1p(math.exp(-score if label else score)))
    assert count == len(losses) > 8
    assert total.item() == pytest.approx(2.5 * sum(losses), rel=1e-4)


def test_the_lstm_keeps_the_type_of_their_weights_under_autocast():
    """On a GPU they would compute in float16, also under autocast to bfloat16."""
    torch.manual_seed(0)
    encoder = PhraseEncoder(SimpleNamespace(text_hidden_size=6), 4)
    states = torch.randn(3, 5, 6)
    mask = torch.arange(5) < torch.tensor([[5], [2], [0]])
    expected = encoder(states, mask)
    with torch.autocast("cpu", torch.bfloat16):
        found = encoder(states.bfloat16(), mask)
    assert found.dtype == torch.float32
    assert_close(found, encoder(states.bfloat16().float(), mask), atol=0, rtol=0)
    assert_close(found, expected, atol=1e-2, rtol=0)


def tiny(cls, **fields):
    sizes = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 16}
    return cls(VLBertConfig(vocab_size=20, max_position_embeddings=32, region_feature_size=4, **sizes, **fields))


@pytest.mark.parametrize(
    "cls, fields, words",
    [
        (VLBertForVGP, {}, r"config\.alignment_level=None.*alignment_level='phrase'"),
        (VLBertForVGP, {"alignment_level": "token"}, "alignment_level='token'"),
        (VLBertForReferringExpression, {"alignment_level": "phrase"}, "no head"),
    ],
)
def test_a_model_without_the_head_or_with_another_is_refused(cls, fields, words):
    with pytest.raises(ValueError, match=words):
        get_method("grounding_alignment").prepare(tiny(cls, **fields))


def test_a_model_with_the_head_is_taken():
    method = get_method("grounding_alignment")
    method.prepare(tiny(VLBertForVGP, alignment_level="phrase", alignment_size=8))
    method.prepare(tiny(VLBertForVGP, **method.model_config))
    with pytest.raises(ValueError, match="no alignment_logits"):
        method.losses(SimpleNamespace(), make_batch())


def test_a_model_names_pairs_that_it_cannot_score():
    model = tiny(VLBertForVGP)
    batch = {"input_ids": torch.ones(1, 4, dtype=torch.long)}
    pairs = {"alignment_phrases": torch.ones(1, 1, 1, dtype=torch.long)}
    with pytest.raises(ValueError, match="belong together"):
        model(**batch, **pairs)
    with pytest.raises(ValueError, match=r"config\.alignment_level is None"):
        model(**batch, **pairs, alignment_pairs=torch.zeros(1, 1, 2, dtype=torch.long))


# Several methods


def test_several_methods_are_one():
    options = {
        "direct": {"layers": [0], "weights": {"text_to_region": 0.5}},
        "grounding_alignment": {"level": "token"},
    }
    both = get_method("direct+grounding_alignment", **options)
    direct, alignment = (get_method(name, **options[name]) for name in options)
    assert isinstance(both, CombinedSupervision)
    assert both.name == "direct+grounding_alignment"
    config = both.get_config_dict()
    assert get_method(**config).get_config_dict() == config
    assert both.model_config == {**direct.model_config, **alignment.model_config}
    assert both.needs_grounding
    assert both.choosable == ("layers", "heads")
    for own, part in zip(both.parts, (direct, alignment), strict=True):
        assert own.get_config_dict() == part.get_config_dict()
        assert part.citation in both.citation
        assert part.effect in both.effect
    batch = make_batch()
    assert both.counts(batch) == {**direct.counts(batch), **alignment.counts(batch)}
    arguments = {**direct.forward_kwargs(batch), **alignment.forward_kwargs(batch)}
    assert both.forward_kwargs(batch).keys() == arguments.keys()


def test_the_fields_of_one_method_are_not_switched_off_by_another():
    both = get_method("grounding_alignment+direct", direct={"box_weight": 1.0})
    assert both.model_config["alignment_level"] == "phrase"
    assert both.model_config["box_layer"] == 0
    assert get_method("direct").model_config["alignment_level"] is None  # a method without the head removes it


@pytest.mark.parametrize(
    "name, options, words",
    [
        ("direct+direct", {}, "different methods"),
        ("none+direct", {}, "without 'none'"),
        ("direct+semi_direct", {}, "both supervise attention"),
        ("direct+nothing", {}, "method=nothing"),
        ("direct+", {}, "method="),
        ("direct+grounding_alignment", {"semi_direct": {}}, "unknown key 'semi_direct'"),
    ],
)
def test_methods_that_do_not_go_together(name, options, words):
    with pytest.raises(ValueError, match=words):
        get_method(name, **options)
