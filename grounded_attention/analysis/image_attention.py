# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""The attention of a model in one captioned image: of this package's families, and of vision-language models."""

from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from PIL import Image

from grounded_attention.modeling.caption_phrases import Phrase

from .audit.examples import AuditExample, AuditPhrase
from .example_attention import ExampleAttention, capture_examples, find_words
from .heads.examples import PromptSettings, make_batch
from .heads.maps import TokenGrid
from .heads.reading import read_phrases
from .observers import get_observer

_NO_BOX = np.zeros((0, 4), dtype=np.float32)


def capture_image(pipe: Any, image: Image.Image, caption: str, image_id: str = "", **known: Any) -> ExampleAttention:
    """Captures the attention of every word in one image, in both directions.

    Args:
        pipe (`VisualGroundingPipeline`): the model, with its detector and feature model.
        image (`Image.Image`): the image.
        caption (`str`): its caption.
        image_id (`str`, *optional*, defaults to `""`): id for messages.
        known: regions of the image, as in a call of the pipeline.

    Returns:
        `ExampleAttention`: the attention of all layers and heads.

    Raises:
        ValueError: if the image or the caption cannot be used, or the image has no region.
    """
    # The caption as one phrase: every word is captured, so none has to be found.
    item = pipe.find_regions(image, caption, phrases=[caption], **known)
    labels = [label or "" for label in item.labels]
    names = sorted(set(labels))
    classes = np.array([names.index(label) for label in labels])
    record = SimpleNamespace(boxes=item.boxes, features=item.features, classes=classes)
    example = AuditExample(image_id, caption, ())
    observer = get_observer(pipe.model)
    return capture_examples(observer, pipe.processor, [example], {image_id: record}, lambda _: image, names)[0]


@torch.no_grad()
def capture_image_tokens(
    model: Any, processor: Any, image: Image.Image, caption: str
) -> tuple[ExampleAttention, TokenGrid]:
    """Captures the attention of every word of a prompt on the image tokens of a vision-language model.

    Args:
        model (`PreTrainedModel`): the model.
        processor (`PatchGroundingProcessor`): its processor.
        image (`Image.Image`): the image.
        caption (`str`): the words of the user.

    Returns:
        `tuple[ExampleAttention, TokenGrid]`: the attention, whose regions are the cells of the grid, row by row; and
        the grid of the image tokens. Words without a token of their own are left out.

    Raises:
        ValueError: if the image or the caption cannot be used.
    """
    spans = find_words(caption)
    phrases = tuple(AuditPhrase(start, end, _NO_BOX) for start, end in spans)
    batch = make_batch(processor, [AuditExample("", caption, phrases)], lambda _: image, PromptSettings())
    kept = [word for word in range(len(spans)) if bool(batch["phrase_mask"][0, word].any())]
    grid = TokenGrid.of_tokens(batch["region_boxes"][0], batch["region_candidate_mask"][0])
    with read_phrases(model) as read:
        layers = read(batch, "mean")
    # (L, H, W, Y * X); a cell may get rounding errors above 1.
    cells = torch.stack([grid.maps(layer[0].cpu()[:, kept]).flatten(2) for layer in layers]).clamp(0, 1)
    example = ExampleAttention(
        image=image,
        caption=caption,
        words=tuple(spans[word] for word in kept),
        boxes=cell_boxes(grid),
        attention=cells.float().numpy(),
        layers=tuple(str(layer) for layer in range(len(layers))),
    )
    return example, grid


def cell_boxes(grid: TokenGrid) -> np.ndarray:
    """The boxes of the cells of a grid, row by row.

    Args:
        grid (`TokenGrid`): the grid of Y rows and X columns.

    Returns:
        `np.ndarray`: (Y * X, 4) float32, x1, y1, x2, y2 divided by the width and height of the image.
    """
    left, top, right, bottom = grid.frame
    across, down = (
        np.linspace(start, end, count + 1)
        for start, end, count in ((left, right, grid.columns), (top, bottom, grid.rows))
    )
    boxes = np.empty((grid.rows, grid.columns, 4), dtype=np.float32)
    boxes[..., 0], boxes[..., 2] = across[:-1], across[1:]
    boxes[..., 1], boxes[..., 3] = down[:-1, None], down[1:, None]
    return np.clip(boxes.reshape(-1, 4), 0, 1)


def phrase_attention(
    example: ExampleAttention, phrase: Phrase, layer: int, head: int | None = None
) -> np.ndarray | None:
    """The distribution of a phrase's attention over the regions: the mean of its words, each with the sum 1.

    Args:
        example (`ExampleAttention`): the captioned image.
        phrase (`Phrase`): a span of its caption.
        layer (`int`): index of the layer.
        head (`int`, *optional*): index of the head; None is the mean over heads.

    Returns:
        `np.ndarray | None`: (R,) float with the sum 1; None if the model has read no word of the phrase.
    """
    words = [
        word
        for word, (start, end) in enumerate(example.words)
        if phrase.start <= start and end <= phrase.end and example.text(word)[0].isalnum()
    ]
    if not words:
        return None
    return np.mean([example.over_regions(word, layer, head)[0] for word in words], axis=0)
