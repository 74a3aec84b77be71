# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""A loss for vision-language models that are trained from random weights: regions are near the words of their phrases.

A published model has learned before what its image tokens mean, from millions of captions. Without that, words must
first become one query before attention supervision can teach the vision encoder anything about them. This loss reads
the inputs of the language model, so it does not wait for attention.

Shape letters: B batch, N sequence, T text tokens, R image tokens, P phrases, H hidden, K phrases with image tokens, V
different words.
"""

from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import log_softmax, normalize

from grounded_attention.utils.named_types import Batch

from .before_answers import BEFORE_ANSWER

SCALE = 20.0  # of cosines, before the softmax


def count_region_words(batch: Batch) -> Tensor:
    """The number of words, () int64, of the phrases that have an image token."""
    return (batch["phrase_mask"] & _grounded(batch)[..., None]).sum()


def region_word_loss(outputs: Any, batch: Batch) -> Tensor:
    """Sums the cross-entropies of the words of each phrase, given the image tokens that its boxes cover.

    The mean of these image tokens is compared with each different word of the phrases of the batch: cosine of the two
    inputs of the language model, times 20, and the softmax over the words. Each word of the phrase is a target. The
    other words are those of the same batch of one process, so with accumulation or more processes the loss is another.
    """
    states = outputs.hidden_states[0].float()
    if states.shape[:2] != batch["input_ids"].shape:  # Gemma 3n: streams made from the first one
        states = states[0]
    elif states.dim() == 4:  # hyper-connections: equal copies in several streams
        states = states.mean(2)
    used = _grounded(batch)
    gold = _gold(batch).to(states)
    regions = (gold @ _at(states, batch["region_positions"]))[used] / gold.sum(-1, keepdim=True)[used]
    phrase, token = batch["phrase_mask"][used].nonzero(as_tuple=True)  # of each word of all phrases
    example = used.nonzero()[phrase, 0]
    place = batch["text_positions"][example, token]
    ids, word = batch["input_ids"][example, place].unique(return_inverse=True)
    counts = word.new_zeros(len(ids)).index_add(0, word, torch.ones_like(word))
    words = states.new_zeros(len(ids), states.shape[-1]).index_add(0, word, states[example, place]) / counts[:, None]
    cosines = normalize(regions, dim=-1) @ normalize(words, dim=-1).T  # (K, V)
    return -log_softmax(SCALE * cosines, dim=-1)[phrase, word].sum()


def _grounded(batch: Batch) -> Tensor:
    """Whether each phrase has a word and an image token, (B, P) bool; the token before an answer is no word."""
    used = batch["phrase_mask"].any(-1) & _gold(batch).any(-1)
    if BEFORE_ANSWER in batch:
        return used & ~batch[BEFORE_ANSWER]
    return used


def _gold(batch: Batch) -> Tensor:
    """(B, P, R): the image tokens of each phrase, also where attention learns those of a control."""
    return batch.get("gold_regions", batch["phrase_regions"])


def _at(states: Tensor, positions: Tensor) -> Tensor:
    """The states at positions (B, L), of which -1 is padding."""
    return states.gather(1, positions.clamp(min=0)[..., None].expand(-1, -1, states.shape[-1]))
