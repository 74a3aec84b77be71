# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""Where a model looks when it reads a caption of one image: phrases with their most-attended regions."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from .attention_grounding import phrase_attention
from .attention_pictures import WordAttention
from .caption_phrases import Phrase


@dataclass(frozen=True, eq=False)
class GroundedPhrase:
    """A phrase and the region it attends to most; R regions.

    Args:
        phrase: the span of the caption.
        box: x1, y1, x2, y2 of that region in pixels of the image.
        label: what the detector calls it; empty where it names nothing.
        share: of the phrase's attention over all regions, in [0, 1].
        region: index of the region.
        weights: (R,) float32, the phrase's attention over the regions; sums to 1.
    """

    phrase: Phrase
    box: tuple[float, float, float, float]
    label: str
    share: float
    region: int
    weights: np.ndarray

    def to_dict(self) -> dict[str, Any]:
        """JSON-able, without the weights."""
        keys = {"phrase": self.phrase.text, "start": self.phrase.start, "end": self.phrase.end}
        return {**keys, "box": list(self.box), "label": self.label, "share": self.share, "region": self.region}


def choose_layers(layers: int, heads: int, layer: int | None, head: int | None) -> list[int]:
    """The layers to look at, counted from 0: the one named, or the upper half.

    First layers cannot tell things of one name apart: their words have seen nothing yet of what stands around them.

    Raises:
        ValueError: a layer or head that the model does not have.
    """
    for name, value, count in (("layer", layer, layers), ("head", head, heads)):
        if value is not None and not 0 <= value < count:
            raise ValueError(f"{name} {value}: the model has the {name}s 0 to {count - 1}")
    return [layer] if layer is not None else list(range(layers // 2, layers))


def ground_phrases(
    model: Any,
    inputs: Mapping[str, Any],
    phrases: Sequence[Phrase],
    image_size: tuple[int, int],
    labels: Sequence[str],
    layers: Sequence[int],
    head: int | None = None,
) -> list[GroundedPhrase]:
    """What each phrase attends to, mean over its tokens, the layers and, without `head`, all heads.

    Args:
        model: see `phrase_attention`.
        inputs: what the processor returns for the caption, its phrases and the regions of one image (B = 1).
        phrases: the phrases, as they were given to the processor.
        image_size: width and height in pixels.
        labels: what the detector calls each region.
        layers: one or more.
        head: which head.

    Raises:
        ValueError: a phrase of which the model reads no token, since the caption is cut or the words are unknown to
            the tokenizer as such.
    """
    for phrase, tokens in zip(phrases, inputs["phrase_mask"][0], strict=True):
        if not tokens.any():
            raise ValueError(f"phrase {phrase.text!r} has no token in what the model reads; shorten the caption")
    candidates = inputs["region_candidate_mask"][0].bool()
    attention = torch.stack([phrase_attention(model, inputs, layer, head) for layer in layers]).mean(0)
    weights = attention[0][:, candidates].float().cpu().numpy()
    boxes = inputs["region_boxes"][0][candidates].cpu().numpy() * np.tile(image_size, 2)
    return [_grounded(*pair, boxes, labels) for pair in zip(phrases, weights, strict=True)]


def _grounded(phrase: Phrase, weights: np.ndarray, boxes: np.ndarray, labels: Sequence[str]) -> GroundedPhrase:
    top = int(weights.argmax())
    x1, y1, x2, y2 = (round(float(value), 1) for value in boxes[top])
    return GroundedPhrase(phrase, (x1, y1, x2, y2), labels[top], float(weights[top]), top, weights)


def to_pictures(grounded: Sequence[GroundedPhrase], boxes: np.ndarray) -> list[WordAttention]:
    """For `attention_figure`: `boxes` (R, 4) are normalised; no region is gold."""
    gold = np.zeros(len(boxes), dtype=bool)
    return [
        WordAttention(one.phrase.text, (one.phrase.start, one.phrase.end), boxes, one.weights, gold)
        for one in grounded
    ]


def table(grounded: Sequence[GroundedPhrase]) -> str:
    """One line a phrase: box in pixels, detector's label, share of the attention."""
    width = max(len(one.phrase.text) for one in grounded)
    return "\n".join(
        f"{one.phrase.text:{width}}  box {', '.join(f'{value:g}' for value in one.box)}"
        f"{f'  {one.label}' if one.label else ''}  {one.share:.0%}"
        for one in grounded
    )
