# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""Grounding alignment: the final states of a phrase and a region predict whether they belong together.

Shape letters: B batch, T text, R regions, P phrases, M rows of the matrix (phrases, or tokens), N pairs, L tokens of
the longest phrase.
"""

from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from grounded_attention.modeling.task_losses import Counts, Losses
from grounded_attention.utils.named_types import Batch, Fields
from grounded_attention.utils.schema import Weight

from .alignment import grounded_phrases, region_mask, token_mask
from .method import RowGenerators, SupervisionMethod, fixed_generator

# Pairs are padded to a multiple of this, so batches have few different shapes.
_PAIR_MULTIPLE = 8


@dataclass(frozen=True)
class AlignmentMatrix:
    """The alignment matrix of each example."""

    matches: Tensor  # (B, M, R) bool, the pairs that belong together
    allowed: Tensor  # (B, M, R) bool, the pairs that may be drawn
    weights: Tensor  # (B, M, R) float32, the confidence of each entry
    phrases: Tensor  # (B, M, L) int64, the text columns of the tokens of each row in order, -1 for padding


def alignment_matrix(batch: Batch, level: str) -> AlignmentMatrix:
    """Computes the matrix of each example. Its rows are the phrases, or for the level `"token"` their tokens."""
    phrase_mask, phrase_regions = grounded_phrases(batch)
    tokens = phrase_mask.bool()
    matches = phrase_regions.bool()
    valid = token_mask(batch)
    regions = region_mask(batch)
    if valid is not None:
        tokens = tokens & valid[:, None]
    if batch.get("region_candidate_mask") is not None:
        regions = batch["region_candidate_mask"].bool()
    scores = batch.get("phrase_scores")
    if scores is None:
        weights = torch.ones_like(matches, dtype=torch.float32)
    else:
        weights = scores.float()
    if level == "token":
        phrases = torch.arange(tokens.shape[2], device=tokens.device).expand(len(tokens), -1)[..., None]
        matches, weights = _token_entries(tokens, matches, weights)
        rows = tokens.any(1)
    else:
        phrases = _token_columns(tokens)
        rows = tokens.any(2)
    allowed = rows[..., None].expand_as(matches)
    return AlignmentMatrix(matches, allowed if regions is None else allowed & regions[:, None], weights, phrases)


def _token_entries(tokens: Tensor, matches: Tensor, weights: Tensor) -> tuple[Tensor, Tensor]:
    """Converts entries of phrases (B, P, R) to entries of their tokens (B, T, R)."""
    # amax fails without phrases
    matches = F.pad(matches, (0, 0, 0, 1))
    weights = F.pad(weights, (0, 0, 0, 1))
    tokens = F.pad(tokens, (0, 0, 0, 1))[..., None]  # (B, P + 1, T, 1)
    both = tokens & matches[:, :, None]  # (B, P + 1, T, R)
    shared = weights[:, :, None] * tokens
    matched = both.any(1)
    return matched, torch.where(matched, (shared * both).amax(1), shared.amax(1))


def _token_columns(tokens: Tensor) -> Tensor:
    """The columns of the tokens of each phrase (B, P, T) in order: (B, P, L), at least one phrase and one column."""
    longest = max(int(tokens.sum(-1).max()) if tokens.numel() else 0, 1)
    columns = torch.arange(tokens.shape[2], device=tokens.device).expand_as(tokens)
    ordered = torch.where(tokens, columns, tokens.shape[2]).sort(-1).values[..., :longest]
    ordered = ordered.masked_fill(ordered == tokens.shape[2], -1)
    if ordered.shape[1]:
        return ordered
    return F.pad(ordered, (0, 0, 0, 1), value=-1)


def draw_pairs(matrix: AlignmentMatrix, generators: RowGenerators) -> dict[str, Tensor]:
    """Draws as many matching pairs as other pairs of each example, without repetition."""
    matches = matrix.matches.cpu().numpy()
    allowed = matrix.allowed.cpu().numpy()
    matching_pairs = matches & allowed
    other_pairs = allowed & ~matches
    drawn = []
    for row in range(len(matches)):
        drawn.append(_draw_example(matching_pairs[row], other_pairs[row], generators, row))
    longest = max(1, *(len(pairs) for pairs, _ in drawn))
    width = -(-longest // _PAIR_MULTIPLE) * _PAIR_MULTIPLE
    pairs = torch.full((len(drawn), width, 2), -1)
    labels = torch.zeros(len(drawn), width)
    weights = torch.zeros(len(drawn), width)
    for row, (drawn_pairs, matching) in enumerate(drawn):
        pairs[row, : len(drawn_pairs)] = torch.from_numpy(drawn_pairs)
        labels[row, :matching] = 1.0
        of_row = matrix.weights[row].cpu()
        weights[row, : len(drawn_pairs)] = of_row[drawn_pairs[:, 0], drawn_pairs[:, 1]]
    device = matrix.matches.device
    return {"pairs": pairs.to(device), "labels": labels.to(device), "weights": weights.to(device)}


def _draw_example(
    matching: np.ndarray, others: np.ndarray, generators: RowGenerators, row: int
) -> tuple[np.ndarray, int]:
    """The pairs of an example (n, 2), the matching ones first, and their number."""
    sides = [np.argwhere(matching), np.argwhere(others)]
    count = min(len(sides[0]), len(sides[1]))
    if not count:
        return np.zeros((0, 2), dtype=np.int64), 0
    rng = generators(row)
    return np.concatenate([side[np.sort(rng.permutation(len(side))[:count])] for side in sides]), count


COMPONENT = "alignment"  # the loss component
PAIRS = "alignment_pairs"  # the entry that `prepare_batch` adds to a batch
LEVEL = "alignment_level"  # the field of a model that has the head


class GroundingAlignment(SupervisionMethod):
    """Binary cross-entropy of balanced pairs of a phrase (or a word) and a region (equations 2 and 3).

    The alignment matrix of an example has an entry for each phrase and region: 1 if the region overlaps a box of the
    phrase. As many entries with 1 as with 0 are drawn from it, new ones in each epoch. A head of the model scores
    them; it is saved with the model. The paper leaves much open; the options have its settings where it gives them.

    Args:
        level (`str`, *optional*, defaults to `"phrase"`): `"phrase"`: an LSTM reads the words of a phrase. `"token"`:
            each word of a phrase has entries of its own.
        weight (`float`, *optional*, defaults to `20.0`): factor of the loss, the paper's lambda_gnd.

    Entries with 0 are those of all phrases and of the same image. Words and regions that pre-training predicts have
    entries, the whole image has none. The confidence of a box (`phrase_scores`), if the phrases have any, multiplies
    the loss of an entry and not the count. The width of the head is a field of the model (`config.alignment_size`).

    References:
        Chou et al. (2022), section III.

    Requirements:
        A model with `config.alignment_level`, whose outputs have `alignment_logits` (B, N): the models for
        pre-training, paraphrases (VGP) and phrase grounding.

    Inputs:
        | batch entry             | shape     | meaning                                                      |
        |-------------------------|-----------|--------------------------------------------------------------|
        | `phrase_mask`           | (B, P, T) | the tokens of each phrase                                    |
        | `phrase_regions`        | (B, P, R) | its regions                                                  |
        | `phrase_scores`         | (B, P, R) | optional: the confidence of each entry of `phrase_regions`   |
        | `attention_mask`        | (B, T)    | 0 for padded tokens                                          |
        | `region_candidate_mask` | (B, R)    | the regions without whole image and padding                  |
        | `region_attention_mask` | (B, R)    | used if there is no `region_candidate_mask`                  |

    Example:
        >>> import torch
        >>> from types import SimpleNamespace
        >>> from grounded_attention import get_method
        >>> method = get_method("grounding_alignment", weight=1.0)
        >>> batch = {  # four tokens, three regions; the phrase of tokens 1 and 2 names region 1
        ...     "phrase_mask": torch.tensor([[[0, 1, 1, 0]]]), "phrase_regions": torch.tensor([[[0, 1, 0]]])}
        >>> asked = method.forward_kwargs(batch)
        >>> asked["alignment_phrases"].tolist(), asked["alignment_pairs"][0, 0].tolist()
        ([[[1, 2]]], [0, 1])
        >>> outputs = SimpleNamespace(alignment_logits=torch.zeros(1, asked["alignment_pairs"].shape[1]))
        >>> total, count = method.losses(outputs, batch)["alignment"]
        >>> int(count), round(float(total / count), 3)
        (2, 0.693)
    """

    name = "grounding_alignment"
    effect = "it was trained to tell which phrases and regions belong together"
    citation = """@inproceedings{chou-etal-2022-semi,
    title = "Semi-supervised Grounding Alignment for Multi-modal Feature Learning",
    author = "Chou, Shih-Han and Fan, Zicong and Little, James J. and Sigal, Leonid",
    booktitle = "19th Conference on Robots and Vision (CRV)",
    year = "2022",
}"""

    def __init__(self, level: Literal["phrase", "token"] = "phrase", weight: Weight = 20.0):
        self.level = level
        self.weight = float(weight)

    @property
    def model_config(self) -> Fields:
        return {**super().model_config, LEVEL: self.level}

    def prepare(self, model: Any) -> None:
        """Checks that the model has the head. A model whose configuration has no field for it is checked in
        [`losses`], by its outputs.

        Raises:
            ValueError: if the model has no head, or that of another level.
        """
        if not hasattr(model.config, LEVEL):
            return
        level = getattr(model.config, LEVEL)
        head = getattr(model, "alignment_head", None)
        if head is None or level != self.level:
            raise ValueError(
                f"grounding_alignment needs a model with its head, but this {type(model).__name__} has "
                f"{'no' if head is None else 'another'} head, and config.{LEVEL}={level!r}: make a model for "
                f"pre-training, vgp or phrase_grounding with config.{LEVEL}={self.level!r}"
            )

    def prepare_batch(self, batch: Batch, generators: RowGenerators = fixed_generator) -> Fields:
        matrix = alignment_matrix(batch, self.level)
        return {PAIRS: {**draw_pairs(matrix, generators), "phrases": matrix.phrases}}

    def _prepared(self, batch: Batch) -> dict[str, Tensor]:
        return (batch if PAIRS in batch else self.prepare_batch(batch))[PAIRS]

    def drawn(self, batch: Batch) -> tuple[Tensor, Tensor]:
        """Returns which pairs are no padding, (B, N) bool, and their labels, (B, N) float32, 1 for matching pairs."""
        prepared = self._prepared(batch)
        return prepared["pairs"][..., 0] >= 0, prepared["labels"]

    def forward_kwargs(self, batch: Batch) -> Fields:
        prepared = self._prepared(batch)
        return {"alignment_phrases": prepared["phrases"], "alignment_pairs": prepared["pairs"]}

    def counts(self, batch: Batch) -> Counts:
        return {COMPONENT: self.drawn(batch)[0].sum()}

    def losses(self, outputs: Any, batch: Batch) -> Losses:
        logits = getattr(outputs, "alignment_logits", None)
        if logits is None:
            raise ValueError(
                "the outputs have no alignment_logits: grounding_alignment needs a model with config.alignment_level, "
                "run with **method.forward_kwargs(batch)"
            )
        drawn, labels = self.drawn(batch)
        losses = F.binary_cross_entropy_with_logits(logits.float(), labels, reduction="none").masked_fill(~drawn, 0.0)
        total = (losses * self._prepared(batch)["weights"]).sum()
        components = {COMPONENT: (self.weight * total, drawn.sum())}
        self.visible_rows.check(components, dict)
        return components

    def get_config_dict(self) -> Fields:
        return {"name": self.name, "level": self.level, "weight": self.weight}
