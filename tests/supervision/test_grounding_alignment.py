# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""Grounding alignment: matrix, draws, head and loss against loops by hand; options; several methods at once."""

import math
from types import SimpleNamespace

import numpy as np
import pytest
import torch

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
            start = int(rng.integers(1, T - 3))
            phrase_mask[example, phrase, start : start + int(rng.integers(1, 4))] = True
            phrase_regions[example, phrase] = (rng.random(R) < 0.3) & (phrase > 0)
    attention = np.arange(T) < np.array([[8], [6], [7]])
    regions = np.arange(R) < np.array([[6], [5], [4]])
    phrase_regions &= regions[:, None] & (np.arange(R) > 0)
    batch = {
        "phrase_mask": phrase_mask,
        "phrase_regions": phrase_regions,
        "phrase_scores": rng.uniform(0.2, 1.0, (B, P, R)).astype(np.float32),
        "attention_mask": attention,
        "region_attention_mask": regions,
        "region_candidate_mask": regions & (np.arange(R) > 0),
        "masked_regions": rng.random((B, R)) < 0.3,
        "input_ids": np.zeros((B, T), np.int64),
        "labels": np.where(rng.random((B, T)) < 0.2, 7, -100),
    }
    return {name: torch.from_numpy(value) for name, value in batch.items()}


def matrix_by_hand(batch, example, level):
    """(row, region) -> (matches, confidence) of the pairs that may be drawn."""
    get = {name: value[example].tolist() for name, value in batch.items()}
    words = [
        [t for t in range(T) if get["phrase_mask"][p][t] and get["attention_mask"][t]]
        for p in range(len(get["phrase_mask"]))
    ]
    columns = [r for r in range(R) if get["region_candidate_mask"][r]]
    entries: dict[tuple[int, int], tuple[bool, float]] = {}
    if level == "phrase":
        for p, tokens in enumerate(words):
            for r in columns if tokens else ():
                entries[p, r] = (get["phrase_regions"][p][r], get["phrase_scores"][p][r])
    else:
        for t in {t for tokens in words for t in tokens}:
            for r in columns:
                own = [p for p, tokens in enumerate(words) if t in tokens]
                matching = [p for p in own if get["phrase_regions"][p][r]]
                entries[t, r] = (bool(matching), max(get["phrase_scores"][p][r] for p in matching or own))
    return entries


@pytest.mark.parametrize("level", LEVELS)
def test_the_matrix_is_that_of_loops(level):
    for seed in range(4):
        batch = make_batch(seed)
        matrix = alignment_matrix(batch, level)
        for example in range(B):
            wanted = matrix_by_hand(batch, example, level)
            assert {tuple(pair) for pair in matrix.allowed[example].nonzero().tolist()} == set(wanted)
            for (row, region), (matches, confidence) in wanted.items():
                assert bool(matrix.matches[example, row, region]) == matches
                assert float(matrix.weights[example, row, region]) == pytest.approx(confidence)


def test_the_words_of_a_phrase_are_in_order_and_those_of_padding_are_left_out():
    batch = make_batch()
    phrases = alignment_matrix(batch, "phrase").phrases
    assert phrases.shape[:2] == (B, P)
    for example in range(B):
        for phrase in range(P):
            valid = batch["phrase_mask"][example, phrase] & batch["attention_mask"][example]
            found = phrases[example, phrase].tolist()
            assert [t for t in found if t >= 0] == valid.nonzero()[:, 0].tolist()
            assert found == sorted(found, key=lambda t: t < 0)  # padding is last


def drawn_pairs(method, batch, generators=None):
    made = method.prepare_batch(batch) if generators is None else method.prepare_batch(batch, generators)
    made = made[PAIRS]
    return [
        {
            tuple(pair): (bool(label), weight)
            for pair, label, weight in zip(
                made["pairs"][e].tolist(), made["labels"][e].tolist(), made["weights"][e].tolist(), strict=True
            )
            if pair[0] >= 0
        }
        for e in range(B)
    ]


@pytest.mark.parametrize("level", LEVELS)
def test_as_many_matching_pairs_as_others_are_drawn_without_repetition(level):
    method = get_method("grounding_alignment", level=level)
    counted = 0
    for seed in range(4):
        batch = make_batch(seed)
        for example, drawn in enumerate(drawn_pairs(method, batch)):
            entries = matrix_by_hand(batch, example, level)
            matching = sum(matches for matches, _ in entries.values())
            expected = min(matching, len(entries) - matching)
            labels = [label for label, _ in drawn.values()]
            assert labels.count(True) == labels.count(False) == expected
            assert all(entries[pair] == (label, pytest.approx(weight)) for pair, (label, weight) in drawn.items())
            counted += 2 * expected
        assert method.counts(batch)["alignment"].item() == sum(map(len, drawn_pairs(method, batch)))
    assert counted > 0


def test_the_draws_of_a_row_are_those_of_its_generator_and_reach_every_pair():
    batch = make_batch()
    method = get_method("grounding_alignment")
    seen: set = set()
    for seed in range(200):
        drawn = drawn_pairs(method, batch, lambda row, seed=seed: np.random.default_rng((seed, row)))
        part = {name: value[1:2] for name, value in batch.items()}
        alone = method.prepare_batch(part, lambda row, seed=seed: np.random.default_rng((seed, 1)))[PAIRS]
        assert {tuple(p) for p in alone["pairs"][0].tolist() if p[0] >= 0} == set(drawn[1])
        seen |= set(drawn[0])
    assert seen == set(matrix_by_hand(batch, 0, "phrase"))


def lstm_by_hand(lstm, states):
    """The states after each input, with the equations of an LSTM."""
    weight = {name: value.detach().double().numpy() for name, value in lstm.named_parameters()}
    size = weight["weight_hh_l0"].shape[1]
    hidden = np.zeros(size)
    cell = np.zeros(size)
    found = []
    for state in states:
        gates = weight["weight_ih_l0"] @ state + weight["bias_ih_l0"] + weight["weight_hh_l0"] @ hidden
        into, forget, new, out = np.split(gates + weight["bias_hh_l0"], 4)
        into, forget, out = (1 / (1 + np.exp(-gate)) for gate in (into, forget, out))
        cell = forget * cell + into * np.tanh(new)
        hidden = out * np.tanh(cell)
        found.append(hidden)
    return found


def linear(layer, state):
    return layer.weight.detach().double().numpy() @ state + layer.bias.detach().double().numpy()


@pytest.mark.parametrize("level", ["token", "phrase"])
def test_scores_and_loss_are_those_of_loops(level):
    torch.manual_seed(1)
    head = AlignmentHead(
        SimpleNamespace(
            text_hidden_size=5,
            region_hidden_size=7,
            pooled_hidden_size=6,
            alignment_size=None,
            alignment_level=level,
        )
    )
    for parameter in head.parameters():
        torch.nn.init.normal_(parameter)
    batch = make_batch(3)
    method = get_method("grounding_alignment", level=level, weight=2.5)
    text = torch.randn(B, T, 5)
    regions = torch.randn(B, R, 7)
    logits = head(text, regions, **method.forward_kwargs(batch))
    total, count = method.losses(SimpleNamespace(alignment_logits=logits), batch)["alignment"]
    expected = 0.0
    counted = 0
    for example, drawn in enumerate(drawn_pairs(method, batch)):
        states = text[example].double().numpy()
        for (row, region), (label, confidence) in drawn.items():
            words = [row]
            if level == "phrase":
                mask = batch["phrase_mask"][example, row] & batch["attention_mask"][example]
                words = mask.nonzero()[:, 0].tolist()
            phrase = states[row] if level == "token" else None
            if level == "phrase":
                phrase = lstm_by_hand(head.phrase_encoder.lstm, [states[word] for word in words])[-1]
            one = np.maximum(linear(head.text_dense, phrase), 0)
            other = np.maximum(linear(head.region_dense, regions[example, region].double().numpy()), 0)
            score = float(linear(head.classifier, one * other)[0])
            expected += confidence * math.log1p(math.exp(-score if label else score))
            counted += 1
    assert counted == count.item() > 8
    assert total.item() == pytest.approx(2.5 * expected, rel=1e-4)


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
    torch.testing.assert_close(found, encoder(states.bfloat16().float(), mask), atol=0, rtol=0)
    torch.testing.assert_close(found, expected, atol=1e-2, rtol=0)


def tiny(cls, **fields):
    sizes = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 16}
    return cls(VLBertConfig(vocab_size=20, max_position_embeddings=32, region_feature_size=4, **sizes, **fields))


def test_a_model_without_the_head_or_with_another_is_refused():
    method = get_method("grounding_alignment")
    with pytest.raises(ValueError, match=r"config\.alignment_level=None.*alignment_level='phrase'"):
        method.prepare(tiny(VLBertForVGP))
    with pytest.raises(ValueError, match=r"alignment_level='token'"):
        method.prepare(tiny(VLBertForVGP, alignment_level="token"))
    method.prepare(tiny(VLBertForVGP, alignment_level="phrase", alignment_size=8))
    with pytest.raises(ValueError, match="no head"):
        method.prepare(tiny(VLBertForReferringExpression, alignment_level="phrase"))
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
    parts = [get_method(name, **options[name]) for name in options]
    assert isinstance(both, CombinedSupervision)
    assert both.name == "direct+grounding_alignment"
    assert [part.get_config_dict() for part in both.parts] == [part.get_config_dict() for part in parts]
    config = both.get_config_dict()
    assert get_method(**config).get_config_dict() == config
    assert both.model_config == {**parts[0].model_config, **parts[1].model_config}
    assert both.needs_grounding
    assert both.choosable == ("layers", "heads")
    assert all(part.citation in both.citation and part.effect in both.effect for part in parts)
    batch = make_batch()
    assert both.counts(batch) == {**parts[0].counts(batch), **parts[1].counts(batch)}
    assert (
        both.forward_kwargs(batch).keys()
        == {**parts[0].forward_kwargs(batch), **parts[1].forward_kwargs(batch)}.keys()
    )


def test_the_fields_of_one_method_are_not_switched_off_by_another():
    both = get_method("grounding_alignment+direct", direct={"box_weight": 1.0})
    assert both.model_config["alignment_level"] == "phrase"
    assert both.model_config["box_layer"] == 0
    assert get_method("direct").model_config["alignment_level"] is None  # a method without the head removes it


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("direct+direct", "different methods"),
        ("none+direct", "without 'none'"),
        ("direct+semi_direct", "both supervise attention"),
        ("direct+nothing", "method=nothing"),
        ("direct+", "method="),
    ],
)
def test_methods_that_do_not_go_together(name, words):
    with pytest.raises(ValueError, match=words):
        get_method(name)


def test_options_of_a_method_that_is_no_part():
    with pytest.raises(ValueError, match="unknown key 'semi_direct'"):
        get_method("direct+grounding_alignment", semi_direct={})
