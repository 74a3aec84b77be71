# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""A reward for TRL's GRPOTrainer: how much of the map of a completion is inside the boxes of its row."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from transformers.utils import logging

from grounded_attention.lens.answered import look_many
from grounded_attention.lens.answers import GivenAnswer
from grounded_attention.lens.exchanges import GivenHeads
from grounded_attention.lens.word_maps import Lens
from grounded_attention.modeling.finite_numbers import finite_scores
from grounded_attention.utils.boxes import Boxes, covered_shares

from .responses import row_boxes

logger = logging.get_logger(__name__)


def mass_in_boxes(attention: np.ndarray, token_boxes: Boxes, boxes: Boxes) -> float:
    """The part of a map that is inside boxes; a token that a box covers in part counts in part.

    Args:
        attention (`np.ndarray`): (R,), the value of each token; only what is above 0 counts.
        token_boxes (array): (R, 4), the part of the image that each token shows: x1, y1, x2, y2 divided by width and
            height.
        boxes (array): (n, 4), the boxes, in the same units; where they overlap counts once.

    Returns:
        `float`: in [0, 1]; 0 also for a map without a value above 0.

    Raises:
        NotFiniteError: if a value is NaN or infinite.
    """
    finite_scores(torch.as_tensor(attention), "the map")
    positive = np.maximum(attention, 0).astype(np.float64)
    total = positive.sum()
    if total == 0:
        return 0.0
    inside = covered_shares(token_boxes, _without_overlap(boxes)).sum(1)
    return float(positive @ inside / total)


def _without_overlap(boxes: Boxes) -> np.ndarray:
    """Boxes (m, 4) that do not overlap and cover what some boxes cover."""
    array = np.asarray(boxes, dtype=np.float64).reshape(-1, 4)
    across = list(pairwise(np.unique(array[:, 0::2])))
    down = list(pairwise(np.unique(array[:, 1::2])))
    pieces = np.array([(x1, y1, x2, y2) for x1, x2 in across for y1, y2 in down])
    return pieces[covered_shares(pieces, array).any(1)]


@dataclass
class MapReward:
    """A reward function for TRL's trainers: the part of a completion's map that is inside the boxes of its row.

    The map is the mean over the words of the completion, with the weights that the model has when it is called; no
    gradient goes through it. Boxes are those of the row's `phrases`, whose words are not read; x is divided by the
    width of the picture, and y by its height.

    Args:
        model (`PreTrainedModel`): the model that is trained.
        processor (`ProcessorMixin` or `PatchGroundingProcessor`): its processor.
        heads (*optional*, defaults to `"auto"`): whose maps, as for [`look`]; `"auto"` without `heads.json` chooses
            for each completion anew.
        form (`str`, *optional*, defaults to `"plain"`): the form of the maps, as for [`look_many`]; an answer without
            reasoning is an error of `"two-hop"`.
    """

    model: Any
    processor: Any
    heads: GivenHeads = "auto"
    form: str = "plain"

    def __call__(
        self,
        prompts: Sequence[Any],
        completions: Sequence[Any],
        completion_ids: Sequence[Sequence[int]],
        phrases: Sequence[Any] | None = None,
        **columns: Any,
    ) -> list[float | None]:
        """Gives each completion its reward.

        Args:
            prompts (`Sequence`): messages, with the pictures as parts; TRL puts them there.
            completions (`Sequence`): what was answered, messages or texts.
            completion_ids (`Sequence[Sequence[int]]`): its tokens.
            phrases (`Sequence`): of each row a list of phrases with `boxes`.

        Returns:
            `list[float | None]`: in [0, 1]; 0 for a completion without words, with tokens that the tokenizer does not
            know, or whose map is 0 on the images or in the boxes, and a warning counts these; `None` where the row has
            no boxes.

        Raises:
            ValueError: if the rows have no phrases, or an option is not valid.
            NotFiniteError: if a map is NaN or infinite.
        """
        if phrases is None:
            raise ValueError("rows have no column phrases, with boxes to reward: add it; remove_unused_columns=False")
        gold = [row_boxes({"phrases": each}, f"row {number} of the batch") for number, each in enumerate(phrases)]
        rewards = [0.0 if boxes else None for boxes in gold]
        known = len(self.processor.tokenizer)
        numbers = [n for n, ids in enumerate(completion_ids) if gold[n] and max(ids, default=0) < known]
        rows = [{"prompt": prompts[number], "completion": completions[number]} for number in numbers]
        answers = [GivenAnswer(tokens=tuple(completion_ids[number])) for number in numbers]
        was_training = self.model.training
        looks = look_many(self.model, self.processor, rows, answers, heads=self.heads, form=self.form)
        for number, lens in zip(numbers, looks, strict=True):
            rewards[number] = _answer_mass(lens, gold[number])
        self.model.train(was_training)
        empty = rewards.count(0.0)
        if empty:
            logger.warning(
                f"{empty} of {len(rewards)} rewards are 0: no word, no map, none of it in a box, odd tokens"
            )
        return rewards


def _answer_mass(lens: Lens, gold: Sequence[tuple[np.ndarray, int]]) -> float:
    """The part of the map of all words of an answer that is inside boxes, each of which is of an image."""
    words = [place for place, word in enumerate(lens.words) if word.answer]
    attention = lens.attention[:, words].sum((0, 1)) * (lens.token_images >= 0)
    # Each image is beside the one before.
    beside = np.array([1, 0, 1, 0])
    tokens = lens.token_boxes + lens.token_images[:, None] * beside
    boxes = [box + image * beside for box, image in gold]
    return mass_in_boxes(attention, tokens, np.stack(boxes))
