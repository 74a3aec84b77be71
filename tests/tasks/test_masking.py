# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""Masking: whole words, the 80/10/10 fates, nothing special, no leak through the whole-image feature."""

import numpy as np
import pytest
from transformers import BertTokenizer

from grounded_attention.tasks.masking import WordMasker, choose_regions

WORDS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *"abcdefgh", "##x", "##y"]
SPECIAL = 5
MASK = 4


@pytest.fixture
def tokenizer():
    return BertTokenizer(vocab={word: i for i, word in enumerate(WORDS)})


def test_pieces_of_a_word_share_their_fate(tokenizer):
    ids = np.array([2, 5, 13, 14, 6, 7, 13, 3, 0, 0])  # [CLS] axy b cx [SEP] [PAD] [PAD]
    masker = WordMasker(tokenizer, 0.5)
    rng = np.random.default_rng(0)
    for _ in range(200):
        masked, labels = masker(ids, rng)
        for word in ([1, 2, 3], [4], [5, 6]):
            assert (labels[word] >= 0).sum() in (0, len(word))
            assert (masked[word] == MASK).sum() in (0, len(word))
        assert (labels[ids < SPECIAL] == -100).all()
        assert (masked[ids < SPECIAL] == ids[ids < SPECIAL]).all()
        assert (labels[labels >= 0] == ids[labels >= 0]).all()


def test_fates_follow_the_paper(tokenizer):
    ids = np.array([2] + [5] * 20000 + [3])
    masked, labels = WordMasker(tokenizer, 0.15)(ids, np.random.default_rng(1))
    chosen = labels >= 0
    assert chosen.mean() == pytest.approx(0.15, abs=0.01)
    assert (masked[chosen] == MASK).mean() == pytest.approx(0.8, abs=0.02)
    # Of the 10% random pieces one in ten is the word itself, which leaves 10% + 1% unchanged.
    assert (masked[chosen] == 5).mean() == pytest.approx(0.11, abs=0.02)
    assert (masked[~chosen] == ids[~chosen]).all()


def test_the_paper_hides_every_predicted_region():
    predicted, hidden, _ = choose_regions(100, np.random.default_rng(2))
    assert predicted.any()
    assert (predicted == hidden).all()


def test_exchanged_regions_are_predicted_and_not_hidden():
    """LXMERT's public code: 80% hidden, 10% exchanged, 10% unchanged; the other draws stay the same."""
    rng = np.random.default_rng(2)
    other = np.random.default_rng(2)
    predicted, hidden, exchanged = choose_regions(20000, rng, kept=0.1, exchanged=0.1)
    assert predicted.mean() == pytest.approx(0.15, abs=0.01)
    assert predicted[exchanged].all()
    assert predicted[hidden].all()
    assert not hidden[exchanged].any()
    assert hidden.sum() / predicted.sum() == pytest.approx(0.8, abs=0.02)
    assert exchanged.sum() / predicted.sum() == pytest.approx(0.1, abs=0.02)
    before = choose_regions(20000, other, kept=0.1)
    assert (before.predicted == predicted).all()
    assert (before.hidden == hidden | exchanged).all()
    assert not before.exchanged.any()
    assert rng.random() == other.random()


def test_a_text_without_a_word_has_nothing_masked(tokenizer):
    masked, labels = WordMasker(tokenizer, 0.9)(np.zeros(0, dtype=np.int64), np.random.default_rng(0))
    assert masked.shape == labels.shape == (0,)
