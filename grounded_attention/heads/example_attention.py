# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""The attention of every head in a few captioned images, for pictures and for the explorer.

An observer (`observers.py`) captures it, so models without the attention interface work too. Shape
letters: L layers, H heads, W words, R regions, B batch, T text.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from matplotlib.figure import Figure
from PIL import Image
from torch import Tensor

from grounded_attention.heads.observers import reads_pixels
from grounded_attention.reports.attention_pictures import WordAttention, method_comparison_figure
from grounded_attention.utils.boxes import IOU_THRESHOLD, box_iou

WORD = re.compile(r"\w+(?:['’-]\w+)*|[^\w\s]")
TO_REGION, TO_TEXT = "text_to_region", "region_to_text"


@dataclass(frozen=True, eq=False)
class ExampleAttention:
    """The attention between the words of a caption and the regions of its image, of all layers and heads."""

    image: Image.Image
    caption: str
    words: tuple[tuple[int, int], ...]
    boxes: np.ndarray
    attention: np.ndarray
    layers: tuple[str, ...]
    back: np.ndarray | None = None
    labels: tuple[str, ...] = ()
    gold: np.ndarray | None = None
    image_id: str = ""

    def __post_init__(self):
        words, regions = len(self.words), len(self.boxes)
        self._check("boxes", self.boxes, (regions, 4))
        layers, heads = self.attention.shape[:2] if self.attention.ndim == 4 else (len(self.layers), 0)
        self._check("attention", self.attention, (len(self.layers), heads, words, regions))
        if self.back is not None:
            self._check("back", self.back, (layers, heads, regions, words))
        if self.gold is not None and self.gold.shape != (words, regions):
            self._refuse(f"gold has the shape {self.gold.shape}, expected {(words, regions)}")
        if self.labels and len(self.labels) != regions:
            self._refuse(f"{len(self.labels)} labels for {regions} regions")
        if not words or not regions:
            self._refuse(f"{words} words and {regions} regions; at least one of each is needed")
        if any(not 0 <= start < end <= len(self.caption) for start, end in self.words):
            self._refuse(f"a word is outside the caption of {len(self.caption)} characters")

    def _check(self, name: str, array: np.ndarray, shape: tuple[int, ...]) -> None:
        if array.shape != shape:
            self._refuse(f"{name} has the shape {array.shape}, expected {shape}")
        if array.size and not (array.min() >= -1e-3 and array.max() <= 1 + 1e-3):
            self._refuse(f"{name} has values in [{array.min():.3g}, {array.max():.3g}], expected [0, 1]")

    def _refuse(self, problem: str) -> None:
        raise ValueError(f"example of image {self.image_id or '(no id)'}: {problem}")

    @property
    def heads(self) -> int:
        """H, the number of heads per layer."""
        return self.attention.shape[1]

    def text(self, word: int) -> str:
        """The characters of the word in the caption."""
        start, end = self.words[word]
        return self.caption[start:end]

    def over_regions(self, word: int, layer: int, head: int | None = None) -> tuple[np.ndarray, float]:
        """The distribution of a word's attention over the regions, (R,) with sum 1, and its share on all regions."""
        rows = self.attention[layer, :, word].mean(0) if head is None else self.attention[layer, head, word]
        share = float(rows.sum())
        return (rows / share if share > 0 else np.full(len(rows), 1 / len(rows))), share

    def word_attention(self, word: int, layer: int, head: int | None = None) -> WordAttention:
        """The input of `attention_pictures` for one word."""
        gold = np.zeros(len(self.boxes), bool) if self.gold is None else self.gold[word]
        weights, _ = self.over_regions(word, layer, head)
        return WordAttention(self.text(word), self.words[word], np.clip(self.boxes, 0, 1), weights, gold)


def best_heads(accuracy: np.ndarray, count: int = 6, active: np.ndarray | None = None) -> list[tuple[int, int]]:
    """The best head of each of the `count` most accurate layers, as (layer, head), lowest layer first.

    This is the choice of Figures 1 and 5 of the paper.
    """
    values = np.asarray(accuracy, dtype=float)
    if active is not None:
        values = np.where(active | ~active.any(1, keepdims=True), values, -1.0)
    layers = np.argsort(-values.max(1), kind="stable")[:count]
    return [(int(layer), int(values[layer].argmax())) for layer in sorted(layers)]


def naming_words(example: ExampleAttention, most: int = 3) -> list[int]:
    """Indices of words to show: the last word of each grounded phrase, else the longest words; in caption order."""
    count = len(example.words)
    if example.gold is not None and example.gold.any():
        same = [
            word + 1 < count and np.array_equal(example.gold[word], example.gold[word + 1]) for word in range(count)
        ]
        return [word for word in range(count) if example.gold[word].any() and not same[word]][:most]
    return sorted(sorted(range(count), key=lambda word: -len(example.text(word)))[:most])


def words_across_layers_figure(
    example: ExampleAttention,
    words: Sequence[int],
    heads: Sequence[tuple[int, int]],
    path: str | Path,
    title: str | None = None,
) -> Figure:
    """Draws words across layers (Figures 1 and 5 of the paper): one row per head, one column per word.

    The label of a row contains the head and the share of the words' attention that goes to regions.
    """
    _check_choice(example, words, heads)
    rows = {}
    for layer, head in heads:
        share = np.mean([example.over_regions(word, layer, head)[1] for word in words])
        label = f"{example.layers[layer]}-{head}: {share:.0%} on regions"
        rows[label] = [example.word_attention(word, layer, head) for word in words]
    return method_comparison_figure(example.image, example.caption, rows, path, title)


def _check_choice(example: ExampleAttention, words: Sequence[int], heads: Sequence[tuple[int, int]]) -> None:
    if not words or not heads:
        raise ValueError(f"{len(words)} words and {len(heads)} heads to draw; at least one of each is needed")
    if any(not 0 <= word < len(example.words) for word in words):
        raise ValueError(f"found words {list(words)}; expected indices from 0 to {len(example.words) - 1}")
    layers = len(example.layers)
    if any(not (0 <= layer < layers and 0 <= head < example.heads) for layer, head in heads):
        raise ValueError(
            f"found heads {list(heads)}; the model has {layers} layers and {example.heads} heads, counted from 0"
        )


# Capturing


def find_words(caption: str) -> list[tuple[int, int]]:
    """(start, end) of every word and punctuation mark of a caption."""
    return [match.span() for match in WORD.finditer(caption)]


@torch.no_grad()
def capture_examples(
    observer: Any,
    processor: Any,
    examples: Sequence[Any],
    regions: Mapping[str, Any],
    open_picture: Callable[[str], Image.Image],
    label_names: Sequence[str] = (),
) -> list[ExampleAttention]:
    """Runs a model on captioned images, one at a time, and captures its attention in both directions."""
    return [
        _capture(observer, processor, example, regions[example.image_id], open_picture, label_names)
        for example in examples
    ]


def _capture(
    observer: Any, processor: Any, example: Any, record: Any, open_picture: Callable[[str], Any], names: Sequence[str]
) -> ExampleAttention:
    words = find_words(example.caption)
    spans = [{"text": 0, "start": start, "end": end} for start, end in words]
    picture = open_picture(example.image_id)
    if reads_pixels(observer.model):
        seen = {"images": [picture]}
    else:
        seen = {"region_features": [np.asarray(record.features, dtype=np.float32)]}
    # As in an audit and in training, an image with too many regions for the processor keeps the first ones.
    batch = processor([example.caption], region_boxes=[record.boxes], phrases=[spans], **seen)
    batch = batch.to(observer.model.device)
    mask = batch["phrase_mask"][0].bool().cpu()
    kept = [word for word in range(len(words)) if mask[word].any()]
    candidates = batch["region_candidate_mask"][0].bool().cpu()
    boxes = batch["region_boxes"][0].cpu()[candidates].numpy()
    attention, back = _observe(observer, batch, mask[kept], candidates)
    return ExampleAttention(
        image=picture,
        caption=example.caption,
        words=tuple(words[word] for word in kept),
        boxes=boxes,
        attention=attention,
        layers=tuple(observer.layers),
        back=back,
        labels=_labels(record, len(boxes), names),
        gold=_gold(example, [words[word] for word in kept], boxes),
        image_id=example.image_id,
    )


def _observe(observer: Any, batch: Any, words: Tensor, candidates: Tensor) -> tuple[np.ndarray, np.ndarray]:
    """(L, H, W, R) and (L, H, R, W) of one example; `words` (W, T) bool, `candidates` (all regions,) bool."""
    tokens, regions = words.any(0).nonzero()[:, 0], candidates.nonzero()[:, 0]
    queries = [index[None].to(observer.model.device) for index in (tokens, regions)]
    found = observer.observe(batch, {TO_REGION: tuple(queries), TO_TEXT: tuple(reversed(queries))})
    there, back = (_full(*found[direction])[:, 0] for direction in (TO_REGION, TO_TEXT))  # (L, H, rows, columns)
    member = words[:, tokens].double()  # (W, tokens)
    pooled = (member / member.sum(1, keepdim=True)) @ there
    return pooled.float().numpy(), (back @ member.T).float().numpy()


def _full(log_alpha: Tensor, log_share: Tensor) -> Tensor:
    """Attention over the whole row, from log-probabilities within the key columns and their log share."""
    return (log_alpha.double() + log_share.double()[..., None]).exp().cpu()


def _gold(example: Any, words: Sequence[tuple[int, int]], boxes: np.ndarray) -> np.ndarray:
    """Mask (W, R) bool of regions with IoU of at least 0.5 with a gold box of a phrase that contains the word."""
    gold = np.zeros((len(words), len(boxes)), dtype=bool)
    for phrase in example.phrases:
        targets = np.asarray(phrase.boxes, dtype=np.float32).reshape(-1, 4)
        if len(targets):
            hit = (box_iou(boxes, targets) >= IOU_THRESHOLD).any(1)
            inside = [phrase.start <= start and end <= phrase.end for start, end in words]
            gold[np.array(inside)] |= hit
    return gold


def _labels(record: Any, count: int, names: Sequence[str]) -> tuple[str, ...]:
    """The labels of the first `count` regions, the ones that the processor keeps."""
    classes = getattr(record, "classes", None)
    if classes is None or not len(names):
        return ()
    return tuple(str(names[int(number)]) if int(number) < len(names) else "" for number in classes[:count])
