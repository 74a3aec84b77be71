# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""Where an answer is decided: the token before it, which predicts its first word, asks where its boxes are.

Shapes: B batch, N sequence, T text tokens, P phrases.
"""

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from grounded_attention.utils.named_types import Batch, Columns

BEFORE_ANSWER = "phrase_before_answer"  # (B, P) bool: phrases that ask at the token before an answer


def whole_answers(phrases: Sequence[Columns], texts: Sequence[str]) -> dict[int, int]:
    """Phrase number -> turn, of the phrases of a conversation that are a whole answer with boxes."""
    return {
        number: each["sentence"] // 2
        for number, each in enumerate(phrases)
        if each["sentence"] % 2
        and each.get("boxes")
        and not (texts[each["sentence"]][: each["start"]] + texts[each["sentence"]][each["end"] :]).strip()
    }


def ask_before_answers(batch: Batch, asked: Sequence[Mapping[int, int]]) -> dict[str, Tensor]:
    """Moves the phrases that are whole answers, `asked` of each example, to the token before their answer.

    Returns `text_positions` with the columns of these tokens, `phrase_mask` to match, and [`BEFORE_ANSWER`].
    """
    positions = batch["text_positions"]
    mask = batch["phrase_mask"].clone()
    labels = batch["labels"]
    most = max(map(len, asked), default=0)
    columns = most + (positions.shape[1] + most == labels.shape[1])  # T must not be N
    places = positions.new_full((len(positions), columns), -1)
    mask = torch.cat([mask, mask.new_zeros(*mask.shape[:2], columns)], -1)
    before = mask.new_zeros(mask.shape[:2])
    for example, of_example in enumerate(asked):
        learned = labels[example] >= 0
        first = (learned & ~learned.roll(1)).nonzero().flatten()  # no sequence begins with an answer
        for column, (phrase, turn) in enumerate(of_example.items()):
            places[example, column] = first[turn] - 1
            mask[example, phrase] = False
            mask[example, phrase, positions.shape[1] + column] = True
            before[example, phrase] = True
    return {"text_positions": torch.cat([positions, places], 1), "phrase_mask": mask, BEFORE_ANSWER: before}
