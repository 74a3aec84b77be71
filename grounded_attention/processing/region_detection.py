# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""Boxes for any image: from an object detector or zero-shot detector of transformers, or given in advance."""

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import torch
from PIL import Image
from torch import Tensor
from transformers import AutoConfig, AutoModelForObjectDetection, AutoModelForZeroShotObjectDetection, AutoProcessor
from transformers.models.auto.image_processing_auto import AutoImageProcessor
from transformers.models.auto.modeling_auto import (
    MODEL_FOR_OBJECT_DETECTION_MAPPING_NAMES,
    MODEL_FOR_ZERO_SHOT_OBJECT_DETECTION_MAPPING_NAMES,
)

from ..utils.named_types import Columns, Fields
from ..utils.plain_text import explained
from .region_boxes import check_pixel_boxes
from .sequence_layouts import check_tokenizer

# A threshold that keeps all boxes: post-processing keeps scores above it, and probabilities may underflow to 0.
KEEP_ALL = -1.0
GRID = "grid"  # the name of `GridBoxes`
# Keys of a configuration about files and versions, not about the model.
IGNORED_CONFIG_KEYS = {"_name_or_path", "name_or_path", "_commit_hash", "transformers_version", "dtype", "torch_dtype"}


@dataclass(eq=False)
class Detections:
    """The boxes that a detector found in one image; n boxes, C columns."""

    boxes: Tensor  # (n, 4) float32, x1 y1 x2 y2 in pixels of the image, as the detector returns them
    scores: Tensor  # (n,) float32
    classes: Tensor  # (n,) int64, indices into the detector's label names
    # (n, C) float32, if the detector returns one distribution over its classes and "no object"; "no object" is column
    # 0, class c is column c + 1
    class_probs: Tensor | None = None

    def __len__(self) -> int:
        return len(self.boxes)

    def __getitem__(self, chosen: Tensor) -> "Detections":
        """Returns the boxes at these indices, or those for which this mask is true."""
        probs = None if self.class_probs is None else self.class_probs[chosen]
        return Detections(self.boxes[chosen], self.scores[chosen], self.classes[chosen], probs)


class BoxSource(Protocol):
    """A source of boxes: `RegionDetector`, `GivenBoxes`, or any object with these attributes and `detect`."""

    label_names: list[str]
    selected: bool  # the boxes are the final regions: none is suppressed, or dropped by its score
    provenance: Fields

    def detect(self, images: Sequence[Image.Image], image_ids: Sequence[str] | None = None) -> list[Detections]:
        """Finds the boxes of RGB images; `image_ids` are for sources that store boxes by id."""


class RegionDetector:
    """An object detector or zero-shot detector of transformers with the post-processing functions of transformers.

    `load_detector` loads one by name.

    Args:
        model (`PreTrainedModel`): A detector (DETR, RT-DETR, Conditional DETR, YOLOS ...), or a zero-shot detector
            (Grounding DINO, OWL-ViT, OWLv2 ...).
        processor: Its image processor, or the processor of a zero-shot detector.
        queries (sequence of `str`, *optional*): The objects that a zero-shot detector finds; they become its label
            names.
        name (`str`, *optional*): The name in the provenance.

    Attributes:
        label_names (`list[str]`): The label of each class index.
        provenance (`dict`): Name, model type, commit on the Hub if known, dtype, and hashes of configuration, weights
            and processor.

    Raises:
        ValueError: A detector with fixed classes has queries; or a zero-shot detector has none, an empty one, one that
            occurs twice, or one with a period (which ends a query of Grounding DINO).
    """

    selected = False

    def __init__(self, model: Any, processor: Any, queries: Sequence[str] | None = None, name: str = "") -> None:
        self.zero_shot = model.config.model_type in MODEL_FOR_ZERO_SHOT_OBJECT_DETECTION_MAPPING_NAMES
        _check_queries(queries, self.zero_shot, model.config.model_type)
        self.model = model.eval()
        self.processor = processor
        if self.zero_shot:
            processor.tokenizer.split_special_tokens = True  # one that is written in a query is words
        self.label_names: list[str] = list(queries or ()) or _label_names(model.config)
        self.provenance: Fields = {
            **model_provenance(model, name),
            "processor": dictionary_digest(getattr(processor, "image_processor", processor).to_dict()),
            "label_names": self.label_names,
        }

    @torch.no_grad()
    def detect(self, images: Sequence[Image.Image], image_ids: Sequence[str] | None = None) -> list[Detections]:
        """Finds all boxes of RGB images, in the detector's order, neither clipped nor selected."""
        inputs = self._inputs(list(images))
        outputs = self.model(**inputs.to(self.model.device, self.model.dtype))
        # Always single precision; on the CPU, because some post-processing functions mix devices elsewhere.
        for name, value in outputs.items():
            if isinstance(value, Tensor):
                outputs[name] = value.float().cpu() if value.is_floating_point() else value.cpu()
        options = {"threshold": KEEP_ALL, "target_sizes": [(image.height, image.width) for image in images]}
        if self.zero_shot:
            labels = [self.label_names for _ in images]
            results = self.processor.post_process_grounded_object_detection(outputs, **options, text_labels=labels)
        else:
            results = self.processor.post_process_object_detection(outputs, **options)
        classes = self._classes(outputs, inputs, results)
        probs = None if self.zero_shot else _distributions(outputs.logits, results)
        found = []
        for i, result in enumerate(results):
            found.append(
                Detections(result["boxes"], result["scores"], classes[i], None if probs is None else probs[i])
            )
        return found

    def _inputs(self, images: list[Image.Image]) -> Any:
        if not self.zero_shot:
            return self.processor(images=images, return_tensors="pt")
        text = [self.label_names for _ in images]
        return self.processor(images=images, text=text, padding=True, return_tensors="pt")

    def _classes(self, outputs: Any, inputs: Any, results: list[Any]) -> list[Tensor]:
        # `dict.get`: the dictionaries of Grounding DINO warn about this key.
        labels = [dict.get(result, "labels") for result in results]
        indices = [label.long() for label in labels if isinstance(label, Tensor)]
        if len(indices) == len(results):
            return indices
        # Grounding DINO decodes the words above a threshold: there may be none, or words of several queries.
        # The query, closed by a period in the text, with the best token of each box: (B, n) of (B, n, tokens).
        input_ids = inputs["input_ids"].cpu()
        tokenizer = self.processor.tokenizer
        stop = tokenizer.convert_tokens_to_ids(".")
        queries = (input_ids == stop).long().cumsum(-1)
        ends = torch.tensor([stop, tokenizer.cls_token_id, tokenizer.sep_token_id, tokenizer.pad_token_id])
        is_word = ~torch.isin(input_ids, ends)
        logits = outputs.logits[..., : input_ids.shape[1]]
        best = logits.masked_fill(~is_word[:, None], -torch.inf).argmax(-1)
        return list(queries.gather(1, best))


def load_detector(
    name_or_path: str,
    queries: Sequence[str] | None = None,
    device: str | torch.device = "cpu",
    dtype: torch.dtype = torch.float32,
) -> RegionDetector:
    """Loads a detector and its processor from the Hub or a folder."""
    with explained(f"Detector {name_or_path!r} cannot be used", OSError, ValueError, ImportError):
        model_type = AutoConfig.from_pretrained(name_or_path).model_type
        zero_shot = model_type in MODEL_FOR_ZERO_SHOT_OBJECT_DETECTION_MAPPING_NAMES
        if not zero_shot and model_type not in MODEL_FOR_OBJECT_DETECTION_MAPPING_NAMES:
            raise ValueError(f"a model of type {model_type}, which is not an object detector of transformers")
        _check_queries(queries, zero_shot, model_type)
        factory = AutoModelForZeroShotObjectDetection if zero_shot else AutoModelForObjectDetection
        processor = (AutoProcessor if zero_shot else AutoImageProcessor).from_pretrained(name_or_path)
        if zero_shot:
            check_tokenizer(processor.tokenizer)
        model = factory.from_pretrained(name_or_path, dtype=dtype)
    return RegionDetector(model.to(device), processor, queries, name_or_path)


class GivenBoxes:
    """Known boxes in place of a detector, unchanged and in their order.

    The label names are the labels of all records, sorted; without labels, every box has class 0.

    Args:
        records (`Mapping`): Image id -> {"boxes": (n, 4) x1 y1 x2 y2 in pixels, and optionally "scores": (n,) numbers
            (1 by default), "labels": n strings}.
        name (`str`, *optional*): The name in the provenance.
    """

    selected = True

    def __init__(self, records: Mapping[str, Columns], name: str = "") -> None:
        self._records = records
        labels: set[str] = set()
        for record in records.values():
            labels.update(record.get("labels") or ())
        self.label_names: list[str] = sorted(labels)
        self._classes = {label: index for index, label in enumerate(self.label_names)}
        self.provenance: Fields = {"name": name, "label_names": self.label_names}

    def detect(self, images: Sequence[Image.Image], image_ids: Sequence[str] | None = None) -> list[Detections]:
        """Returns the boxes of images."""
        if image_ids is None:
            raise ValueError("Given boxes are stored by image id; give image_ids.")
        return [self._lookup(image, image_id) for image, image_id in zip(images, image_ids, strict=True)]

    def _lookup(self, image: Image.Image, image_id: str) -> Detections:
        if image_id not in self._records:
            known = ", ".join(repr(name) for name in list(self._records)[:3])
            raise ValueError(f"No boxes are given for image {image_id!r}; there are boxes for {known} ...")
        record = self._records[image_id]
        boxes = torch.as_tensor(record["boxes"], dtype=torch.float32).reshape(-1, 4)
        check_pixel_boxes(boxes.numpy(), image.size, f"Image {image_id!r}: ")
        scores = torch.as_tensor(_or_default(record.get("scores"), [1.0] * len(boxes)), dtype=torch.float32)
        labels = _or_default(record.get("labels"), [None] * len(boxes))
        if not len(boxes) == len(scores) == len(labels):
            raise ValueError(
                f"Image {image_id!r} has {len(boxes)} boxes, {len(scores)} scores and {len(labels)} labels; "
                "expected the same number of each."
            )
        classes = torch.tensor([self._classes.get(label, 0) for label in labels], dtype=torch.long)
        return Detections(boxes, scores, classes)


class GridBoxes:
    """Cells of a fixed grid in place of a detector: 6 x 6 of the whole image, and 3 x 3 larger ones over them."""

    selected = True
    label_names = ["cell"]
    provenance: Fields = {"name": GRID, "sides": [6, 3], "label_names": label_names}

    def detect(self, images: Sequence[Image.Image], image_ids: Sequence[str] | None = None) -> list[Detections]:
        """Returns the cells of images, row by row."""
        corners = []
        for side in self.provenance["sides"]:
            for place in range(side * side):
                row, column = divmod(place, side)
                corners.append((column / side, row / side, (column + 1) / side, (row + 1) / side))
        cells = torch.tensor(corners)
        ones = torch.ones(len(cells))
        zeros = torch.zeros(len(cells), dtype=torch.long)
        return [Detections(cells * torch.tensor(image.size * 2), ones, zeros) for image in images]


def _or_default(value: Any, default: list[Any]) -> Any:
    if value is None:
        return default
    return value


def model_provenance(model: Any, name: str) -> Fields:
    """Returns the identity of a model: name, type, commit on the Hub if known, dtype, hashes of config and weights."""
    return {
        "name": Path(name).name if Path(name).is_dir() else name,
        "model_type": model.config.model_type,
        "revision": getattr(model.config, "_commit_hash", None),
        "dtype": str(model.dtype).removeprefix("torch."),
        "config": dictionary_digest(model.config.to_dict()),
        "weights": weights_digest(model),
    }


def dictionary_digest(content: Columns) -> str:
    """Computes a hash of a configuration, without its keys about files and versions."""
    text = json.dumps(_without_ignored_keys(content), sort_keys=True, default=str)
    return hashlib.blake2b(text.encode(), digest_size=16).hexdigest()


def _without_ignored_keys(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {str(key): _without_ignored_keys(item) for key, item in value.items() if key not in IGNORED_CONFIG_KEYS}
    if isinstance(value, (list, tuple)):
        return [_without_ignored_keys(item) for item in value]
    return value


def weights_digest(model: torch.nn.Module) -> str:
    """Computes a hash of all saved tensors of a model, with their names and shapes."""
    digest = hashlib.blake2b(digest_size=16)
    for name, tensor in sorted(model.state_dict().items()):
        digest.update(f"{name}{tuple(tensor.shape)}".encode())
        digest.update(tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()


def _label_names(config: Any) -> list[str]:
    """Returns labels by index; a configuration may have gaps in the numbers of its classes."""
    names = {int(index): str(label) for index, label in (config.id2label or {}).items()}
    return [names.get(index, str(index)) for index in range(max(names, default=-1) + 1)]


def _check_queries(queries: Sequence[str] | None, zero_shot: bool, model_type: str) -> None:
    if isinstance(queries, str):
        raise ValueError(f"queries must be a list of texts, found {queries!r}")
    if not zero_shot:
        if queries:
            raise ValueError(f"queries are given, but a detector of type {model_type} has fixed classes")
        return
    if not queries:
        raise ValueError(f"a zero-shot detector ({model_type}) needs queries: the objects to find")
    words = [query.strip().lower() for query in queries]
    for query in words:
        if not query or "." in query or words.count(query) > 1:
            raise ValueError(f"query {query!r} is empty, contains a period or occurs twice")


def _distributions(logits: Tensor, results: list[Any]) -> Tensor | None:
    """Class distributions (B, n, C) with "no object" first; None unless of a softmax with "no object" last."""
    if logits.shape[-1] < 2:
        return None
    probs = logits.softmax(-1)
    best = probs[..., :-1].max(-1).values
    for row, result in zip(best, results, strict=True):
        if result["scores"].shape != row.shape or not torch.allclose(result["scores"], row, atol=1e-6):
            return None
    return probs.roll(1, dims=-1)
