# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""Heads look where the heads of another model look, however that model cuts the image into tokens.

Shape letters: B batch, P phrases, H matched heads, Q rows, R image tokens (T those of the teacher).
"""

from collections.abc import Sequence
from typing import Annotated, Any

import torch
from annotated_types import Len
from torch import Tensor

from grounded_attention.modeling.task_losses import Counts, Loss
from grounded_attention.utils.named_types import Batch, Fields
from grounded_attention.utils.schema import Pair

from .divergences import kl
from .score_masks import LOWEST_SCORE
from .soft_attention import ROWS, SoftAttention

TEACHER = "teacher_attention"


class AttentionDistillation(SoftAttention):
    """KL divergence of where a phrase, or a whole response, looks from where it looks in a larger model.

    Heads are matched by their rank: the best head of the student learns from the best of the teacher. Where a phrase
    looks is the mean over its tokens, so that tokenizers may differ. The attention of a teacher's image token is
    divided among the student's by the areas that they share. Make one method for each model, both with as many heads;
    the batch of the student gets `teacher_attention` (B, P, H, R) from [`hand_over`] of the teacher's.

    Args:
        heads (`Sequence[Sequence[int]]`): (layer, head) pairs, the best first: `ChosenHeads.of_model(model).heads`.

    References:
        The matching is ours. RAL (arXiv 2602.04884) distils a teacher's attention on the student's own samples; the
        summaries that were read say no more.
    """

    name = "distillation"
    effect = "heads were taught to look where those of a larger model look"
    response_columns = "image"
    defaults = {"rows": "words", "target": "indicator", "reduction": "each"}

    def __init__(self, heads: Annotated[Sequence[Pair], Len(1)]):
        super().__init__(heads=heads)
        ranked = list(dict.fromkeys((layer, head) for layer, head in heads))
        self._order = [(self.pairs or ()).index(pair) for pair in ranked]

    def get_config_dict(self) -> Fields:
        pairs = self.pairs or ()
        return {"name": self.name, "heads": [list(pairs[place]) for place in self._order]}

    def hand_over(self, outputs: Any, batch: Batch, student: Batch) -> Tensor:
        """Where each phrase looks in this model, over the image tokens of a student's batch of the same rows.

        Args:
            outputs (`ModelOutput`): outputs of the teacher, run with [`forward_kwargs`].
            batch (`Mapping[str, Any]`): the batch of the teacher.
            student (`Mapping[str, Any]`): the batch of the student.

        Returns:
            `Tensor`: (B, P, H, R), 1 in sum, or 0 where the teacher does not see the image; without a graph.
        """
        prepared = {**batch, **self._prepared(batch)}
        attention = self._looks(self._pairs(outputs)[0], prepared).detach()
        shares = shared_areas(batch, student)
        looked = (attention.flatten(1, 2) @ shares).unflatten(1, attention.shape[1:3])
        total = looked.sum(-1, keepdim=True)
        return looked / torch.where(total > 0, total, 1.0)

    def counts(self, batch: Batch) -> Counts:
        prepared = {**batch, **self._prepared(batch)}
        return {ROWS: self._tokens_of_phrases(prepared).any(-1).sum()}

    def distribution_loss(self, pairs: Sequence[Any], queries: Any, hidden_states: Any, batch: Batch) -> Loss:
        target = batch.get(TEACHER)
        heads = len(self._order)
        if target is None or target.shape[2] != heads:
            target_text = "no teacher_attention" if target is None else f"the attention of {target.shape[2]} heads"
            raise ValueError(
                f"the batch has {target_text} of a teacher, expected that of {heads} heads: give both methods as many "
                "heads, and the batch the teacher's hand_over"
            )
        logs = self._looks(pairs, batch).clamp(min=1e-30).log()
        known = self._tokens_of_phrases(batch).any(-1) & (target.sum((2, 3)) > 0)
        losses = kl(target, logs.clamp(min=LOWEST_SCORE)).mean(-1)
        return torch.where(known, losses, 0.0).sum(), known.sum()

    def _tokens_of_phrases(self, batch: Batch) -> Tensor:
        """(B, P, Q) bool, the rows of each phrase."""
        rows = self.targets(batch)[ROWS].rows
        tokens = self._tokens(batch)
        in_phrase = tokens.gather(2, rows.clamp(min=0)[:, None].expand(-1, tokens.shape[1], -1))
        return in_phrase & (rows >= 0)[:, None] & (batch["phrase_regions"] > 0).any(-1, keepdim=True)

    def _looks(self, pairs: Sequence[Any], batch: Batch) -> Tensor:
        """(B, P, H, R): where each phrase looks in each head, the best first: the mean over its tokens."""
        weights = self._tokens_of_phrases(batch).float()
        weights = weights / weights.sum(-1, keepdim=True).clamp(min=1)
        attention = torch.cat([alpha for alpha, _ in pairs], 1)[:, self._order].exp()
        return torch.einsum("bpq,bhqr->bphr", weights, attention)


def shared_areas(teacher: Batch, student: Batch) -> Tensor:
    """(B, T, R): how the attention of each image token of a teacher is divided among those of a student."""
    parts = []
    for batch in (teacher, student):
        boxes = batch["region_boxes"].double()
        parts.append((boxes, batch["region_candidate_mask"].bool(), batch["region_image"]))
    (ours, known, images), (theirs, visible, others) = parts
    low = torch.maximum(ours[:, :, None, :2], theirs[:, None, :, :2])
    high = torch.minimum(ours[:, :, None, 2:], theirs[:, None, :, 2:])
    same_image = images[..., None] == others[:, None]
    areas = (high - low).clamp(min=0).prod(-1) * (known[..., None] & visible[:, None] & same_image)
    total = areas.sum(-1, keepdim=True)
    return (areas / torch.where(total > 0, total, 1.0)).float()
