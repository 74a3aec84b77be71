# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""Common parts of the readers of legacy region features: a record, and the conversion of its fields to regions."""

import binascii
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np

from grounded_attention.dataset_scripts.files.errors import DataError, damaged, placed, refuse_if

from .rows import Regions, normalise_boxes, validate_regions

FEATURE_SIZE = 2048
# One hundred boxes with features and class probabilities take 2 MB; a record above this limit has another format.
MAX_RECORD_BYTES = 64 << 20
# Limit for image sizes and numbers of boxes.
MAX_DIGITS = 9
# Number of classes of the Visual Genome detector with background, which is column 0 of the probabilities.
CLASSES_WITH_BACKGROUND = 1601
# Names of each field in the formats; the first one that a record has counts.
NAMES = {
    "width": ("image_w", "img_w", "image_width"),
    "height": ("image_h", "img_h", "image_height"),
    "count": ("num_boxes", "num_objects"),
    "boxes": ("boxes", "bbox"),
    "features": ("features",),
    "classes": ("objects_id", "obj_id", "objects"),
    "scores": ("objects_conf", "obj_conf"),
    "attributes": ("attrs_id", "attr_id"),
    "attribute_scores": ("attrs_conf", "attr_conf"),
    "class_probs": ("cls_prob", "classes"),
    "attribute_probs": ("attrs",),
}
IDS = ("classes", "attributes")


@dataclass(frozen=True)
class SourceRecord:
    """One image's record in a feature file."""

    file: Path
    row: int  # Its number in the file, from 1; in a tsv the number of its line
    image_id: str  # The image id in the record; not checked yet
    size: int  # The bytes that it occupies in the file
    decode: Callable[[], Any]  # Reads its fields; raises `DataError` for a damaged record
    where: str | None = None  # Its place in the file if that is not a row number, for example a key
    exact: bool = False  # Whether it has as many boxes as it says

    def read(self, feature_size: int = FEATURE_SIZE) -> Regions:
        """Decodes and checks the regions of the record."""
        # Errors of the libraries about damaged content.
        kinds = (OSError, ValueError, TypeError, KeyError, IndexError, RuntimeError, OverflowError)
        with self.located(), damaged("damaged record", *kinds, hint="get the file again"):
            regions = _make_regions(Fields(self.decode(), self.exact), self.image_id, feature_size)
            checked = validate_regions(regions)
        return checked

    def located(self) -> AbstractContextManager[None]:
        """Adds file and place to a `DataError` raised inside."""
        return placed(file=self.file, where=self.where or f"row {self.row}")


def check_length(content: bytes) -> None:
    """Refuses a record that is too long for one image."""
    expected = f"at most {MAX_RECORD_BYTES} bytes"
    refuse_if(len(content) > MAX_RECORD_BYTES, "the record is too long for one image", expected=expected)


def import_library(name: str) -> ModuleType:
    """Imports h5py or lmdb."""
    try:
        return __import__(name)
    except ImportError as error:
        hint = 'run: pip install "grounded-attention[legacy]"'
        raise DataError(f"{name} is needed to read this format and is not installed", hint=hint) from error


class Fields:
    """The fields of one image's record, under the names of any format; `exact`: it has as many boxes as it says."""

    def __init__(self, values: Any, exact: bool) -> None:
        if not isinstance(values, Mapping):
            raise DataError(
                "the record is not a mapping of fields", found=type(values).__name__, expected="field names"
            )
        self.values = values
        self.rows = self._flat("boxes").size // 4
        if self._name("count"):
            self.count = self.number("count")
        else:
            self.count = max(self.rows, 1)
        refuse_if(
            exact and self.count != self.rows,
            "boxes has a wrong length",
            found=self.rows,
            expected=f"{self.count} boxes",
        )

    def _name(self, field: str) -> str | None:
        return next((name for name in NAMES[field] if self.values.get(name) is not None), None)

    def _value(self, field: str) -> tuple[str, Any]:
        name = self._name(field)
        if name is None:
            found = ", ".join(sorted(str(name)[:30] for name in list(self.values)[:20]))
            raise DataError(f"{NAMES[field][0]} is missing", found=found, expected=str(NAMES[field]))
        return name, self.values[name]

    def number(self, field: str) -> int:
        """Returns a size or count: a positive whole number."""
        name, value = self._value(field)
        if isinstance(value, bytes):
            value = value.decode("latin1")
        text = str(np.asarray(value).reshape(-1)[0] if np.size(value) == 1 else type(value).__name__).strip()
        text = text.removesuffix(".0")
        # A torn record may join digits to a number that is too large for a length.
        if not (text.isascii() and text.isdigit()) or len(text) > MAX_DIGITS or not int(text):
            expected = f"1 to {MAX_DIGITS} digits"
            raise DataError(f"{name} is not a positive whole number", found=text[:80], expected=expected)
        return int(text)

    def array(self, field: str, width: int | None = None) -> np.ndarray:
        """Returns an array; a width of 0 is any number of columns."""
        flat = self._flat(field)
        columns = flat.size // self.rows if width == 0 and self.rows else width
        needed = self.rows * (1 if columns is None else columns)
        if flat.size != needed or not needed or self.count > self.rows:
            shape = f"{self.count} boxes" + ("" if columns is None else f" x {columns}")
            raise DataError(f"{self._name(field)} has a wrong length", found=flat.size, expected=f"values for {shape}")
        return flat.reshape((self.rows,) if columns is None else (self.rows, columns))[: self.count]

    def optional(self, field: str, width: int | None = None) -> np.ndarray | None:
        """Returns an array, None if the record has none."""
        if self._name(field) is None:
            return None
        return self.array(field, width)

    def _flat(self, field: str) -> np.ndarray:
        name, value = self._value(field)
        dtype = np.dtype("<i8" if field in IDS else "<f4")
        if isinstance(value, (str, bytes)):
            with damaged(f"{name} is not base64", ValueError, hint="the record is torn or damaged"):
                data = binascii.a2b_base64(value.strip(), strict_mode=True)
            refuse_if(
                len(data) % dtype.itemsize,
                f"{name} has a wrong length in bytes",
                found=len(data),
                expected=f"values of {dtype.name}",
            )
            return np.frombuffer(data, dtype)
        array = np.asarray(value)
        refuse_if(
            array.dtype.kind not in "fiu",
            f"{name} is not an array of numbers",
            found=str(array.dtype),
            expected="base64 text or an array",
        )
        return array.reshape(-1)


def _make_regions(fields: Fields, image_id: str, feature_size: int) -> Regions:
    """Makes regions of the fields of a record.

    If it states fewer boxes than it holds (MMF appends those that non-maximum suppression rejected), the first ones
    count, unless it is exact. Class ids have no background class. Class probabilities with 1,601
    columns have background as column 0. Without ids and confidences, the most likely class other than background and
    its probability are used.
    """
    width = fields.number("width")
    height = fields.number("height")
    boxes = fields.array("boxes", 4)
    features = fields.array("features", feature_size)
    class_probs = fields.optional("class_probs", 0)
    classes = fields.optional("classes")
    scores = fields.optional("scores")
    if class_probs is not None and (scores is None or classes is None):
        background = class_probs.shape[1] == CLASSES_WITH_BACKGROUND or classes is None
        classes, scores = most_likely(class_probs, background)
    attributes = fields.optional("attributes")
    attribute_scores = fields.optional("attribute_scores")
    attribute_probs = fields.optional("attribute_probs", 0)
    if attributes is None and attribute_probs is not None:
        attributes, attribute_scores = most_likely(attribute_probs, True)
    return Regions(
        image_id,
        width,
        height,
        boxes=normalise_boxes(boxes, width, height),
        features=features,
        classes=classes,
        scores=scores,
        attributes=attributes,
        attribute_scores=attribute_scores,
        class_probs=class_probs,
    )


def most_likely(probabilities: np.ndarray, background: bool) -> tuple[np.ndarray, np.ndarray]:
    """Returns the most likely class of each region and its probability."""
    objects = probabilities[:, 1:] if background else probabilities
    refuse_if(not objects.shape[1], "class probabilities have one column", expected="background and classes")
    return objects.argmax(axis=1), objects.max(axis=1)
