# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""What every grounder does, and the choice of the boxes that are stored."""

import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import torch
from PIL import Image
from torch import Tensor
from transformers import AutoConfig, AutoProcessor

from grounded_attention.dataset_scripts.files.errors import DataError, refuse_if
from grounded_attention.dataset_scripts.regions.table import RegionTable
from grounded_attention.labelling import BOXES_PER_PHRASE, NMS, THRESHOLD
from grounded_attention.modeling.pipeline_visual_grounding import VisualGroundingPipeline
from grounded_attention.processing.phrase import Phrase
from grounded_attention.processing.region_detection import model_provenance
from grounded_attention.processing.region_extraction import clip_boxes, suppress
from grounded_attention.processing.sequence_layouts import check_tokenizer
from grounded_attention.utils.boxes import IOU_THRESHOLD, box_iou
from grounded_attention.utils.named_types import Batch, Columns, Fields, Span
from grounded_attention.utils.plain_text import explained

# Scores are stored in the open interval (0, 1); a sigmoid in float32 reaches both ends.
SMALLEST = 1e-6


@dataclass
class Example:
    """A caption to ground."""

    caption_id: str
    image_id: str
    text: str
    phrases: list[Phrase]
    width: int
    height: int
    image: Image.Image | None = None
    objects: list[Any] | None = None


@dataclass
class Candidates:
    """The boxes that a grounder gives a phrase, in any number and order."""

    boxes: npt.NDArray[np.float32]
    scores: npt.NDArray[np.float32]


class Grounder(Protocol):
    """Finds boxes for phrases.

    Attributes:
        provenance (`dict`): Name, kind, revision and options; part of the manifest.
        reads_images (`bool`): Whether `ground` needs the pictures.
    """

    provenance: Fields
    reads_images: bool

    def ground(self, examples: Sequence[Example]) -> list[list[Candidates]]:
        """Grounds the phrases of a batch of captions.

        Args:
            examples (sequence of `Example`): The captions.

        Returns:
            `list[list[Candidates]]`: For each caption the candidates of each phrase.

        Raises:
            ValueError: A caption or image cannot be used.
        """


@dataclass(frozen=True)
class Selection:
    """Which candidates of a phrase are stored."""

    boxes_per_phrase: int = BOXES_PER_PHRASE
    threshold: float = THRESHOLD
    nms: float = NMS

    def select(self, candidates: Candidates, example: Example, phrase: Phrase) -> Fields:
        """Makes the stored form of a phrase: its best boxes, clipped to the image and divided by its size."""
        boxes = torch.as_tensor(candidates.boxes, dtype=torch.float32).reshape(-1, 4)
        scores = torch.as_tensor(candidates.scores, dtype=torch.float32).reshape(-1)
        _check(boxes, scores, example, phrase)
        clipped, usable = clip_boxes(boxes, example.width, example.height)
        usable &= scores >= self.threshold
        boxes = clipped[usable]
        scores = scores[usable]
        kept = suppress(boxes, scores, self.nms)[: self.boxes_per_phrase]
        size = torch.tensor([example.width, example.height] * 2, dtype=torch.float32)
        return {
            "text": phrase.text,
            "start": phrase.start,
            "end": phrase.end,
            "boxes": (boxes[kept] / size).tolist(),
            "scores": scores[kept].clamp(SMALLEST, 1 - SMALLEST).tolist(),
        }


def _check(boxes: Tensor, scores: Tensor, example: Example, phrase: Phrase) -> None:
    where = f"caption {example.caption_id}, phrase {phrase.text!r}"
    refuse_if(
        len(boxes) != len(scores),
        f"{len(boxes)} boxes and {len(scores)} scores",
        where=where,
        expected="one score for each box",
    )
    good = visible(boxes, example.width, example.height) & (boxes[:, :2] <= boxes[:, 2:]).all(-1)
    if not good.all():
        found = boxes[int((~good).int().argmax())].tolist()
        expected = f"x1 <= x2 and y1 <= y2 in pixels of an image of {example.width} x {example.height}"
        raise DataError("the grounder gave a box outside the image", where=where, found=found, expected=expected)
    if not ((scores >= 0) & (scores <= 1)).all():
        raise DataError("the grounder gave a score outside [0, 1]", where=where, found=scores.tolist())


def visible(boxes: Tensor, width: int, height: int) -> Tensor:
    """Returns which boxes (n, 4) in pixels share an area with the image: (n,) bool."""
    size = torch.tensor([width, height], device=boxes.device)
    meets = (boxes[:, 2:] > 0) & (boxes[:, :2] < size)
    return meets.all(-1) & boxes.isfinite().all(-1)


def load_grounding_model(
    model_class: Any,
    kinds: Sequence[str],
    name_or_path: str,
    revision: str | None = None,
    device: str | torch.device = "cpu",
    dtype: torch.dtype = torch.float32,
    processor_options: Columns | None = None,
) -> tuple[Any, Any]:
    """Loads the model, of one of some `kinds`, and the processor of a grounder from the Hub or a folder."""
    where = {"revision": revision or "main"}
    with explained(f"--grounder {name_or_path}: cannot be used", OSError, ValueError, ImportError):
        kind = AutoConfig.from_pretrained(name_or_path, **where).model_type
        if kind not in kinds:
            expected = f"expected one of {', '.join(kinds)}, or Florence-2, or a model of this project"
            raise ValueError(f"a model of type {kind}; {expected}")
        processor = AutoProcessor.from_pretrained(name_or_path, **where, **processor_options or {})
        check_tokenizer(processor.tokenizer)
        model = model_class.from_pretrained(name_or_path, dtype=dtype, **where)
    return model.to(device), processor


class SimulatedGrounder:
    """The annotated boxes, or, for a share of the phrases, the box of another object; drawn by seed and caption."""

    reads_images = False

    def __init__(self, wrong: float = 0.0, seed: int = 0) -> None:
        self.wrong = wrong
        self.seed = seed
        self.provenance: Fields = {"kind": "scenes", "wrong": wrong, "seed": seed}

    def ground(self, examples: Sequence[Example]) -> list[list[Candidates]]:
        return [self._ground(example) for example in examples]

    def _ground(self, example: Example) -> list[Candidates]:
        if example.objects is None or any(phrase.boxes is None for phrase in example.phrases):
            raise ValueError("the simulated grounder needs annotated boxes: give --phrases given")
        rng = np.random.default_rng((self.seed, zlib.crc32(example.caption_id.encode())))
        size = np.array([example.width, example.height] * 2, dtype=np.float32)
        objects = np.asarray(example.objects, dtype=np.float32).reshape(-1, 4)
        candidates = []
        for phrase in example.phrases:
            # Every phrase takes the same number of draws, so that one phrase does not change the draws of the next.
            chance, place, score = rng.random(3)
            boxes = np.asarray(phrase.boxes, dtype=np.float32).reshape(-1, 4)
            # A box that overlaps a gold box this much would match the same regions, so it would not be wrong.
            others = objects[(box_iou(objects, boxes) < IOU_THRESHOLD).all(axis=1)]
            if chance < self.wrong and len(others):
                boxes = others[int(place * len(others))][None]
            scores = np.full(len(boxes), 0.5 + score / 2, dtype=np.float32)
            candidates.append(Candidates(boxes * size, scores))
        return candidates


EDGES = ("xmin", "ymin", "xmax", "ymax")


class AttentionGrounder:
    """The pipeline `visual-grounding` as a grounder; a score is a region's share of the phrase's attention."""

    def __init__(
        self,
        pipe: VisualGroundingPipeline,
        name: str,
        regions: RegionTable,
        layer: int | None = None,
        head: int | None = None,
    ) -> None:
        self.pipe = pipe
        self.regions = regions
        self.reads_images = pipe.reads_pixels
        self._settings: Fields = {"layer": layer, "head": head, "top_k": None}
        self.provenance: Fields = {
            "kind": "attention",
            **model_provenance(pipe.model, name),
            "layer": layer,
            "head": head,
            "regions": regions.info["checksum"],
        }

    def ground(self, examples: Sequence[Example]) -> list[list[Candidates]]:
        inputs = []
        for example in examples:
            spans = [(phrase.start, phrase.end) for phrase in example.phrases]
            known: Fields = {"caption": example.text, "phrases": spans, "regions": self.regions[example.image_id]}
            if example.image is not None:
                known["image"] = example.image
            inputs.append(known)
        answers = self.pipe(inputs, batch_size=len(inputs), **self._settings)
        grounded = []
        for example, given, regions in zip(examples, inputs, answers, strict=True):
            grounded.append(_by_phrase(example, given, regions))
        return grounded


def _by_phrase(example: Example, inputs: Batch, pointed: Sequence[Columns]) -> list[Candidates]:
    """Groups the pipeline's list by phrase; the pipeline sorts phrases by their spans."""
    spans: dict[Span, list[Columns]] = {}
    for region in pointed:
        spans.setdefault((region["start"], region["end"]), []).append(region)
    # The pipeline uses the size of the table's record, which may be that of a smaller copy of the image.
    record = inputs["regions"]
    scale = np.array([example.width / record.width, example.height / record.height] * 2, dtype=np.float32)
    candidates = []
    for phrase in example.phrases:
        # Equal spans are listed twice; each region counts once.
        unique = {region["region"]: region for region in spans[phrase.start, phrase.end]}
        corners = []
        scores = []
        for region in unique.values():
            corners.append([region["box"][edge] for edge in EDGES])
            scores.append(region["score"])
        boxes = np.array(corners, dtype=np.float32).reshape(-1, 4) * scale
        candidates.append(Candidates(boxes, np.array(scores, dtype=np.float32).clip(0, 1)))
    return candidates
