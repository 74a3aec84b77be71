# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""Numbers of the words of an answer that tell whether a word names something in the image.

Shape letters: W words, E numbers of a word, K heads, Q rows, R image tokens.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from grounded_attention.heads.heads_file import ChosenHeads
from grounded_attention.processing.patch_grounding import PatchGroundingProcessor
from grounded_attention.utils.named_types import Head

from .contributions import read_path, word_contributions, word_weights
from .forms import FLOOR
from .sequences import Sequenced, Word, words_before


def word_evidence(
    model: Any, patches: PatchGroundingProcessor, whole: Sequenced, heads: Sequence[Head]
) -> tuple[tuple[Word, ...], Tensor]:
    """The words of an answer, and what is known of each, read in one pass.

    The numbers, each the mean of a word's tokens: `share`, the part of the heads' attention that is on the image;
    `contribution`, the part of all that is added to the word's logit that image tokens add, through all heads;
    `log_probability`, in nats.

    Args:
        model (`PreTrainedModel`): the decoder, in evaluation mode.
        patches (`PatchGroundingProcessor`): its processor.
        whole ([`Sequenced`]): the prompt with its answer; the rows of words are their own.
        heads (sequence of (layer, head)): K heads, at least one.

    Returns:
        `tuple`: the W words of the answer, and (W, E) float32 in this order.

    Raises:
        ValueError: if contributions of the model cannot be read.
    """
    words = tuple(word for word in whole.words if word.answer)
    if not words:
        return words, torch.zeros(0, 3)
    before = words_before(replace(whole, words=words))
    columns = whole.batch["region_positions"][0]
    shown = whole.token_images >= 0
    ids = whole.inputs["input_ids"][0]
    rows = range(whole.prompt_length - 1, len(ids))
    reader = read_path(model, whole.inputs, whole.prompt_length, rows, columns)

    read = reader.of(rows, {layer for layer, _ in heads})
    attention = torch.stack([read[layer][head] for layer, head in heads]).mean(0)  # type: ignore[index]  # (Q, R)
    share = word_weights(words, rows) @ (attention * shown).sum(-1)

    added = word_contributions(model, patches, before, 1, reader=reader).clamp(min=0)
    contribution = added[:, columns[shown]].sum(-1) / added.sum(-1).clamp(min=FLOOR)

    logits = reader.unembedding(model).logits(reader.states(rows[:-1]))
    said = logits.cpu().log_softmax(-1).gather(1, ids[whole.prompt_length :, None])[:, 0]
    log_probability = word_weights(before.words, rows[:-1]) @ said
    return words, torch.stack([share, contribution, log_probability], -1)


def find_doubts(
    model: Any, patches: PatchGroundingProcessor, whole: Sequenced, chosen: ChosenHeads
) -> dict[int, float]:
    """Place of a word of the answer, from its end (-1 is the last) -> the probability that it names nothing.

    Of the nouns for which `chosen` has a model of doubt; `whole` is as for [`word_evidence`].
    """
    if chosen.doubt is None:
        return {}
    words, evidence = word_evidence(model, patches, whole, chosen.heads)
    probabilities = chosen.doubt.probabilities(evidence.numpy()).tolist()
    doubts = {}
    for place, word in enumerate(words):
        if word.text.casefold() in chosen.doubt.nouns:
            doubts[place - len(words)] = probabilities[place]
    return doubts
