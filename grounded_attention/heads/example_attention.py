# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""The attention of every head in a few captioned images, for pictures and for the explorer.

Shape letters: L layers, H heads, W words, R regions, C cells of the grid of an image, B batch, T text.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

import numpy as np
from PIL import Image
from torch import Tensor

from grounded_attention.processing.patch_grounding import match_coverage
from grounded_attention.processing.phrase import Phrase
from grounded_attention.supervision.supervise import model_device
from grounded_attention.utils.named_types import Columns, Fields, Span
from grounded_attention.utils.open_images import open_image
from grounded_attention.utils.whole_files import whole_file
from grounded_attention.utils.whole_words import find_words

from .examples import AuditExample, Images, PromptSettings, find_picture, make_batch
from .items import RegionInputs, Rules
from .maps import TokenGrid
from .reading import REGION_TO_TEXT, Observer, attention_of, get_observer, read_phrases, reads_pixels

if TYPE_CHECKING:
    from grounded_attention.pages.attention_pictures import WordAttention

# Cells along an edge: the page has all heads of all layers, so that finer grids make it slow.
CELLS = 16
COVERAGE = 0.5


@dataclass(frozen=True, eq=False)
class ExampleAttention:
    """The attention between the words of a caption and the regions of its image, of all layers and heads."""

    image: Image.Image
    caption: str
    words: tuple[Span, ...]
    boxes: np.ndarray
    attention: np.ndarray
    layers: tuple[str, ...]
    back: np.ndarray | None = None
    labels: tuple[str, ...] = ()
    gold: np.ndarray | None = None
    image_id: str = ""

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
        if head is None:
            rows = self.attention[layer, :, word].mean(0)
        else:
            rows = self.attention[layer, head, word]
        share = float(rows.sum())
        return (rows / share if share > 0 else np.full(len(rows), 1 / len(rows))), share

    def words_of(self, phrase: Phrase) -> list[int]:
        """The indices of the words of a phrase, without punctuation."""
        inside = [phrase.start <= start and end <= phrase.end for start, end in self.words]
        return [word for word, is_inside in enumerate(inside) if is_inside and self.text(word)[0].isalnum()]

    def save_arrays(self, path: str | Path) -> None:
        """Writes `attention`, `back`, `boxes`, `words`, `labels` and `layers` to an .npz file."""
        with whole_file(path) as draft, draft.open("wb") as file:
            np.savez(
                file,
                attention=self.attention.astype(np.float32),
                back=np.asarray(self.back, np.float32),
                boxes=np.asarray(self.boxes, np.float32),
                words=np.array([self.text(word) for word in range(len(self.words))]),
                labels=np.array(self.labels or [""] * len(self.boxes)),
                layers=np.array(self.layers),
            )

    def word_attention(self, word: int, layer: int, head: int | None = None) -> WordAttention:
        """The input of `attention_pictures` for one word."""
        from grounded_attention.pages.attention_pictures import WordAttention

        if self.gold is None:
            gold = np.zeros(len(self.boxes), bool)
        else:
            gold = self.gold[word]
        weights, _ = self.over_regions(word, layer, head)
        return WordAttention(self.text(word), np.clip(self.boxes, 0, 1), weights, gold)


def naming_words(example: ExampleAttention, most: int = 3) -> list[int]:
    """Indices of words to show: the last word of each grounded phrase, else the longest words; in caption order."""
    count = len(example.words)
    if example.gold is not None and example.gold.any():
        same = [
            word + 1 < count and np.array_equal(example.gold[word], example.gold[word + 1]) for word in range(count)
        ]
        return [word for word in range(count) if example.gold[word].any() and not same[word]][:most]
    return sorted(sorted(range(count), key=lambda word: -len(example.text(word)))[:most])


# Capturing


def capture_examples(
    model: Any,
    processor: Any,
    examples: Sequence[AuditExample],
    regions: Columns | None,
    pictures: Images,
    instruction: str | None = None,
) -> list[ExampleAttention]:
    """Captures the attention between the words of captions and the regions of their images, in every head and in both
    directions; without regions that of the words on the patches of a vision-language model.
    """
    observer = model if isinstance(model, Observer) else get_observer(model)
    seen = pictures if reads_pixels(observer.model) else None
    inputs = None
    if regions is not None:
        inputs = RegionInputs(observer.model, processor, regions, Rules(), seen)
    numbers = [layer for layer in range(len(observer.layers)) if layer not in observer.headless]
    captured = []
    for example in examples:
        spans = find_words(example.caption)
        words = tuple(Phrase("", *span, boxes=np.zeros((0, 4), dtype=np.float32)) for span in spans)
        prompt = replace(example, phrases=words)
        batch: Any
        if inputs is None:
            batch = make_batch(processor, [prompt], pictures, PromptSettings(instruction=instruction))
        else:
            batch = inputs.make([prompt]).inputs
        mask = batch["phrase_mask"][0].bool().cpu()  # (all words, T)
        kept = mask.any(1).nonzero()[:, 0].tolist()
        attention = read_phrases(observer, batch)[numbers, 0].cpu()[:, :, kept]  # (L, H, W, all regions)
        candidates = batch["region_candidate_mask"][0].bool().cpu()
        boxes = batch["region_boxes"][0].cpu()
        if inputs is None:
            grid = TokenGrid.of_tokens(boxes, candidates, CELLS)
            places = grid.cell_boxes()
            there = grid.maps(attention * candidates).flatten(3).clamp(max=1)
            known: Fields = {"gold": _gold(example, spans, places, _covered)[kept]}
        else:
            places = boxes[candidates].numpy()
            there = attention[..., candidates]
            known = {
                "gold": _gold(example, spans, places, Rules().hits)[kept],
                "back": _back(observer, batch, mask[kept], candidates),
                "labels": _labels(cast(Mapping[str, Any], regions), example.image_id, len(places)),
            }
        captured.append(
            ExampleAttention(
                image=open_image(find_picture(pictures, example.image_id)),
                caption=example.caption,
                words=tuple(spans[number] for number in kept),
                boxes=places,
                attention=there.numpy(),
                layers=tuple(observer.layers[number] for number in numbers),
                image_id=example.image_id,
                **known,
            )
        )
    return captured


def capture_image(pipe: Any, image: Image.Image, caption: str, image_id: str = "", **known: Any) -> ExampleAttention:
    """Captures the attention of every word in one image, with the regions that a pipeline finds."""
    # The caption as one phrase: every word is captured, so none has to be found.
    item = pipe.find_regions(image, caption, phrases=[caption], **known)
    record = SimpleNamespace(boxes=item.boxes, features=item.features)
    example = AuditExample(image_id, caption, ())
    (captured,) = capture_examples(pipe.model, pipe.processor, [example], {image_id: record}, lambda _: image)
    labels = tuple(label or "" for label in item.labels[: len(captured.boxes)])
    return replace(captured, labels=labels if any(labels) else ())


def _back(observer: Observer, batch: Any, words: Tensor, candidates: Tensor) -> np.ndarray:
    """(L, H, R, W): the attention of the regions of one example on its words; `words` (W, T) bool."""
    device = model_device(observer.model)
    tokens = words.any(0).nonzero()[:, 0]
    queries = candidates.nonzero()[:, 0][None].to(device), tokens[None].to(device)
    pair = observer.observe(batch.to(device), {REGION_TO_TEXT: queries})[REGION_TO_TEXT]
    return (attention_of(pair)[:, 0].cpu() @ words[:, tokens].float().T).numpy()


def _gold(
    example: AuditExample,
    words: Sequence[Span],
    places: np.ndarray,
    hits: Callable[[np.ndarray, np.ndarray], np.ndarray],
) -> np.ndarray:
    """Mask (W, R) bool of the places that `hits` finds for the gold boxes of a phrase that contains the word."""
    gold = np.zeros((len(words), len(places)), dtype=bool)
    for phrase in example.phrases:
        if len(phrase.boxes):
            inside = [phrase.start <= start and end <= phrase.end for start, end in words]
            gold[np.array(inside)] |= hits(places, phrase.boxes)
    return gold


def _covered(cells: np.ndarray, boxes: np.ndarray) -> np.ndarray:
    """Mask (C,) of the cells (C, 4) that boxes (n, 4) cover by half."""
    return np.any(match_coverage(boxes, np.broadcast_to(cells, (len(boxes), *cells.shape)), COVERAGE), axis=0)


def _labels(regions: Columns, image_id: str, count: int) -> tuple[str, ...]:
    """The labels of the first `count` regions, the ones that the processor keeps."""
    names = getattr(regions, "class_names", ())
    classes = getattr(regions[image_id], "classes", None)
    if classes is None or not len(names):
        return ()
    return tuple(str(names[int(number)]) if int(number) < len(names) else "" for number in classes[:count])
