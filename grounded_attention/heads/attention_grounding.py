# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""Attention grounding: for each layer and head, how often the most-attended region of a grounded word is gold.

Only detected regions are candidates; the whole-image region and END are not. Shape letters: B batch, L layers, H
heads, T text, R regions, P phrases, Q query rows, K key columns, N sequence.
"""

from collections.abc import Mapping
from math import nan
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor

from grounded_attention.metrics.item_scores import StreamingMetric
from grounded_attention.metrics.significance import Estimate
from grounded_attention.modeling.attention_calls import REGIONS, SEQUENCE, TEXT
from grounded_attention.supervision import GroundingTargets, align, grounding_targets, sequence_pairs
from grounded_attention.supervision.alignment import gather_rows
from grounded_attention.supervision.attention_function import layer_numbers
from grounded_attention.supervision.method import RowGenerators, fixed_generator, observed_layers, query_arguments
from grounded_attention.supervision.rollout import rollout_layers
from grounded_attention.utils.named_types import Batch, Columns, Fields

from .choosing import top_heads
from .items import Items
from .measure import is_right, item_sums, pool
from .table import HeadCounts

DIRECTION = "text_to_region"
ROLLOUT = "text_to_region_rollout_by_layer"
LAYERS = "text_to_region_layers"
INTERVALS = "text_to_region_intervals"
IMAGE = "image:"  # and the name of an image: its sums (4, L, H) in a state, those of `COUNTED`
COUNTED = ("items", "chance", "correct", "share")  # of `item_sums`; an item is a token
TARGETS = "judged_targets"  # the entry that `prepare_batch` adds to a batch


class AttentionGrounding(StreamingMetric):
    """Streaming accuracy of attention from words to regions, for every layer and head, and for attention rollout.

    A grounded token belongs to a phrase with at least one gold region among the detected ones. It counts as right if
    the candidate region with the most attention is a gold region of the phrase. Other tokens do not count.

    `compute` reports: accuracy per head (L, H), accuracy of the rollout per layer (L,), chance, the share of attention
    on candidate regions (L, H), and the number of tokens; and where batches have `image_id`, the 95 % intervals of the
    heads' accuracies, from a bootstrap over images.

    Args:
        rollout (`bool`, *optional*, defaults to `True`): whether to measure attention rollout, which needs the
            head-averaged map (B, N, N) of every layer.
        keep (`bool`, *optional*, defaults to `False`): whether to keep the numbers of each example, see `items`.
    """

    def __init__(self, rollout: bool = True, keep: bool = False) -> None:
        super().__init__()
        self.rollout = rollout
        self.keep = keep
        if keep:
            self._items: dict[str, list] = {"heads_on_gold": [], "heads_chance": []}
        else:
            self._items = {}
        self._layers: list[int] = []  # indices in the model of the layers that reported

    def prepare_batch(self, batch: Batch, generators: RowGenerators = fixed_generator) -> Fields:
        """The targets to add to a batch, so that `forward_kwargs` and `update` need not compute them again."""
        judged = {**batch, "region_attention_mask": batch["region_candidate_mask"]}
        return {TARGETS: vars(grounding_targets(align(judged), judged, DIRECTION))}

    def forward_kwargs(self, batch: Batch) -> Fields:
        """Requests the attention of grounded tokens on candidate regions and, for rollout, head-averaged maps."""
        arguments = {"output_attentions": True, **query_arguments({DIRECTION: self._targets(batch)}, batch)}
        if self.rollout:
            return {**arguments, "attention_mean": True}
        return arguments

    def update(self, outputs: Any, batch: Batch) -> None:
        """Counts one batch.

        Raises:
            ValueError: if the outputs contain no supervised attention.
        """
        layers = observed_layers(outputs)
        targets = self._targets(batch)
        answers = []
        for layer in layers:
            if layer.pairs and layer.pairs[0] is not None:
                answers.append(layer)
        self._layers = layer_numbers(answers)
        logs, shares = zip(*(cast(Any, layer.pairs[0]) for layer in answers), strict=True)
        pair = torch.stack(logs), torch.stack(shares)
        items = token_items(targets)
        sums = item_sums(pool(pair, items), items)
        shape = sums["correct"].shape  # (M, L, H)
        parts = [torch.from_numpy(sums[name]).double() for name in COUNTED]
        of_items = torch.stack([part if part.dim() > 1 else part[:, None, None].expand(shape) for part in parts], 1)
        of_examples = of_items.new_zeros(len(targets.rows), *of_items.shape[1:])
        of_examples.index_add_(0, torch.from_numpy(items.example), of_items)
        # Texts without images come last, and have no phrases.
        images = batch.get("image_id") or [""] * len(of_examples)
        for image, counted in zip(images, of_examples, strict=False):
            name = f"{IMAGE}{image}"
            self._state[name] = self._state.get(name, 0) + counted
        if self.keep:
            words, chance, right, _ = of_examples.unbind(1)
            self._items["heads_on_gold"] += (right / words).flatten(1).tolist()
            self._items["heads_chance"] += (chance / words)[:, 0, 0].tolist()
        if self.rollout:
            counted = targets.rows >= 0
            self._add(rollout=(self._rollout_hits(layers, targets, batch) * counted).sum((1, 2)))

    def _rollout_hits(self, layers: Any, targets: GroundingTargets, batch: Batch) -> Tensor:
        in_sequence = sequence_pairs({DIRECTION: targets}, batch)[DIRECTION]
        hits = []
        for after in rollout_layers([layer for layer in layers if layer.mean is not None]):
            one_stream = (SEQUENCE, SEQUENCE) in after
            rows, columns = in_sequence if one_stream else (targets.rows, targets.columns)
            if one_stream:
                block = after[SEQUENCE, SEQUENCE]
            else:
                block = after[TEXT, REGIONS]
            scores = gather_rows(block, rows)
            scores = scores.gather(2, columns.clamp(min=0)[:, None].expand(-1, scores.shape[1], -1))
            hits.append(is_right(scores.masked_fill((columns < 0)[:, None], -1.0), targets.gold).double())
        return torch.stack(hits)

    def _targets(self, batch: Batch) -> GroundingTargets:
        return GroundingTargets(**(batch if TARGETS in batch else self.prepare_batch(batch))[TARGETS])

    def items(self) -> dict[str, list]:
        """Of each example, if they are kept: `heads_on_gold`, the share of its grounded tokens that are right, of each
        head (L * H), and `heads_chance`; NaN for an example without such tokens."""
        return self._items

    @staticmethod
    def counts(state: Mapping[str, Tensor]) -> HeadCounts:
        """The sums of a state as those of a [`HeadTable`]; without a grounded token one image with a wrong answer."""
        images = {name.removeprefix(IMAGE): sums.numpy() for name, sums in state.items() if name.startswith(IMAGE)}
        judged = {name: sums for name, sums in images.items() if sums[0, 0, 0] > 0}
        sums = np.stack([*judged.values()] or [np.zeros_like(next(iter(images.values())))])
        items, chance, correct, share = sums.swapaxes(0, 1)
        counted = np.maximum(items[:, 0, 0], 1)
        return HeadCounts(tuple(judged) or ("",), counted, correct, share, np.zeros(len(sums)), chance[:, 0, 0])

    def compute(self, state: Mapping[str, Tensor]) -> Fields:
        """Computes the numbers of a state.

        Args:
            state (`Mapping[str, Tensor]`): sums from `state`, added over processes.

        Returns:
            `dict[str, Any]`: `text_to_region_by_head` and `..._share_by_head` (lists (L, H)), `..._rollout_by_layer`
            (L,), `..._chance`, `..._tokens`; and three numbers for logs, `..._all_heads`, `..._best_layer` and
            `..._best_head`, with layer and head chosen on the same data. `summarise` chooses them on another split.
            Where not every layer of the model has heads, also `..._layers`, the indices of the L layers. From two
            named images on `..._intervals`: `images`, their number, `low` and `high` (lists (L, H)).
        """
        counts = self.counts(state)
        by_head = torch.from_numpy(counts.accuracy)
        tokens = 0
        for name, sums in state.items():
            if name.startswith(IMAGE):
                tokens += int(sums[0, 0, 0])
        numbers = {
            "text_to_region_tokens": tokens,
            "text_to_region_chance": counts.chance_accuracy,
            "text_to_region_all_heads": by_head.mean().item(),
            "text_to_region_best_layer": by_head.mean(1).max().item(),
            "text_to_region_best_head": by_head.max().item(),
            "text_to_region_by_head": by_head.tolist(),
            "text_to_region_share_by_head": counts.mean_share.tolist(),
        }
        if self._layers != list(range(len(self._layers))):
            numbers[LAYERS] = self._layers
        if len(counts.image_ids) > 1:
            low, high = counts.intervals().tolist()
            numbers[INTERVALS] = {"images": len(counts.image_ids), "low": low, "high": high}
        if "rollout" in state:
            numbers[ROLLOUT] = (state["rollout"] / counts.total).tolist()
        return numbers


def token_items(targets: GroundingTargets) -> Items:
    """Each grounded token as an item: what the heads are asked in training."""
    example, place = (targets.rows >= 0).nonzero(as_tuple=True)
    gold = targets.gold[example, place].bool().cpu().numpy()
    nothing = np.zeros(len(gold), dtype=bool)
    places = place[:, None].cpu().numpy()
    return Items(targets.rows.cpu(), targets.columns.cpu(), example.cpu().numpy(), places, gold, nothing, [], [])


def summarise(chosen_on: Columns, reported_on: Columns) -> Fields:
    """The headline numbers: layer and head are chosen on one split and reported on another.

    `interval` is that of the best head, None if it is not known; `words` is the number of grounded words.
    """
    by_head = torch.tensor(chosen_on["text_to_region_by_head"])
    reported = torch.tensor(reported_on["text_to_region_by_head"])
    layer = int(by_head.mean(1).argmax())
    head = top_heads(by_head, 1)[0]
    numbers = chosen_on.get(LAYERS, range(len(by_head)))
    intervals = reported_on.get(INTERVALS)
    interval = None
    if intervals:
        interval = [intervals[end][head[0]][head[1]] for end in ("low", "high")]
    headline = {
        "words": reported_on.get("text_to_region_tokens", 0),
        "interval": interval,
        "all_heads": reported.mean().item(),
        "best_layer": reported[layer].mean().item(),
        "best_head": reported[head].item(),
        "chance": reported_on["text_to_region_chance"],
        "layer": numbers[layer],
        "head": [numbers[head[0]], head[1]],
    }
    if ROLLOUT not in chosen_on:
        return headline
    rollout = torch.tensor(chosen_on[ROLLOUT])
    rollout_reported = torch.tensor(reported_on[ROLLOUT])
    rollout_layer = int(rollout.argmax())
    return {**headline, "rollout": rollout_reported[rollout_layer].item(), "rollout_layer": numbers[rollout_layer]}


def best_head(headline: Columns) -> Estimate:
    """How often the best head of `summarise` is right, with its interval."""
    low, high = headline.get("interval") or (nan, nan)
    return Estimate(headline["best_head"], low, high, headline.get("words", 0))
