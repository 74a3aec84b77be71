# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""What every reader of legacy region features shares: a record, and its fields as regions."""

import binascii
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np

from grounded_attention.dataset_scripts.files.errors import DataError

from .rows import Regions, checked, normalise_boxes

FEATURE_SIZE = 2048
# One hundred boxes with features and class probabilities are 2 MB; a record that is longer is none of these formats.
LONGEST_RECORD = 64 << 20
# Of an image size or a number of boxes.
MOST_DIGITS = 9
# Object classes of the Visual Genome detector with background, which then is column 0 of the probabilities.
CLASSES_WITH_BACKGROUND = 1601
# Names that the formats give to the same thing; the first that is there counts.
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
    """One image's record in a feature file.

    Args:
        file: The file.
        row: Its number in the file, from 1; in a tsv the number of its line.
        image_id: Image id as the record states it; not checked yet.
        size: Bytes that it takes in the file.
        decode: Makes the regions; raises `DataError` for a damaged record.
        where: Its place in the file where that is no row number, such as a key.
    """

    file: Path
    row: int
    image_id: str
    size: int
    decode: Callable[[], Regions]
    where: str | None = None

    def read(self) -> Regions:
        """The record's regions.

        Raises:
            DataError: a torn record, an array of the wrong length, NaN, a box outside the image or inverted; the
                message names file and row.
        """
        with self.located():
            try:
                return checked(self.decode())
            except DataError:
                raise
            except (OSError, ValueError, TypeError, KeyError, IndexError, RuntimeError, OverflowError) as error:
                # What the libraries below say of damaged content.
                raise DataError(f"damaged record ({type(error).__name__})", found=str(error)[:200]) from error

    @contextmanager
    def located(self) -> Iterator[None]:
        """Adds file and place to a `DataError` raised inside."""
        try:
            yield
        except DataError as error:
            raise DataError(str(error), file=self.file, where=self.where or f"row {self.row}") from error


def library(name: str) -> ModuleType:
    """h5py or lmdb.

    Raises:
        DataError: it is not installed; the message says how to install it.
    """
    try:
        return __import__(name)
    except ImportError as error:
        hint = 'run: pip install "grounded-attention[legacy]"'
        raise DataError(f"{name} is needed to read this format and is not installed", hint=hint) from error


class Fields:
    """The fields of one image under the formats' various names, base64 text or arrays, decoded when asked for."""

    def __init__(self, values: Any) -> None:
        if not isinstance(values, Mapping):
            raise DataError("the record is no table of fields", found=type(values).__name__, expected="field names")
        self.values = values
        boxes = self._flat("boxes", np.dtype("<f4"))
        self.rows = boxes.size // 4
        self.count = self.number("count") if self._name("count") else max(self.rows, 1)

    def _name(self, field: str) -> str | None:
        return next((name for name in NAMES[field] if self.values.get(name) is not None), None)

    def number(self, field: str) -> int:
        """A size or count: a positive whole number."""
        name = self._name(field)
        if name is None:
            raise DataError(
                f"{NAMES[field][0]} is missing", found=shown_names(self.values), expected=str(NAMES[field])
            )
        return whole_number(self.values[name], name)

    def array(self, field: str, width: int | None = None) -> np.ndarray | None:
        """The field as (count, width), as many columns as there are for 0, or (count,) for None; None if absent."""
        if self._name(field) is None:
            return None
        flat = self._flat(field, np.dtype("<i8" if field in IDS else "<f4"))
        columns = flat.size // self.rows if width == 0 and self.rows else width
        needed = self.rows * (1 if columns is None else columns)
        if flat.size != needed or not needed or self.count > self.rows:
            shape = f"{self.count} boxes" + ("" if columns is None else f" x {columns}")
            raise DataError(f"{self._name(field)} has a wrong length", found=flat.size, expected=f"values for {shape}")
        return flat.reshape((self.rows,) if columns is None else (self.rows, columns))[: self.count]

    def _flat(self, field: str, dtype: np.dtype) -> np.ndarray:
        name = self._name(field)
        if name is None:
            raise DataError(
                f"{NAMES[field][0]} is missing", found=shown_names(self.values), expected=str(NAMES[field])
            )
        value = self.values[name]
        if isinstance(value, (str, bytes)):
            return _base64_array(value, name, dtype)
        array = np.asarray(value)
        if array.dtype.kind not in "fiu":
            raise DataError(
                f"{name} is no array of numbers", found=str(array.dtype), expected="base64 text or an array"
            )
        return array.reshape(-1)


def regions_of(values: Any, image_id: str, feature_size: int) -> Regions:
    """The regions in a record of fields; boxes are pixels of the original image, in the record's order.

    Where the record says less boxes than it holds (MMF keeps those that non-maximum suppression rejected, behind the
    others), the first ones count. Ids have no background class; class probabilities of 1,601 columns have it first,
    and where no ids and confidences are given, classes and scores are the likeliest object beside it.
    """
    fields = Fields(values)
    width, height = fields.number("width"), fields.number("height")
    boxes, features = fields.array("boxes", 4), fields.array("features", feature_size)
    if boxes is None or features is None:
        raise DataError("features is missing", found=shown_names(values))
    class_probs = fields.array("class_probs", 0)
    classes, scores = fields.array("classes"), fields.array("scores")
    if class_probs is not None and (scores is None or classes is None):
        background = class_probs.shape[1] == CLASSES_WITH_BACKGROUND or classes is None
        classes, scores = likeliest(class_probs, background)
    attributes, attribute_scores = fields.array("attributes"), fields.array("attribute_scores")
    attribute_probs = fields.array("attribute_probs", 0)
    if attributes is None and attribute_probs is not None:
        attributes, attribute_scores = likeliest(attribute_probs, True)
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


def likeliest(probabilities: np.ndarray, background: bool) -> tuple[np.ndarray, np.ndarray]:
    """Per region of (n, C) the likeliest class and its probability; with background in column 0, not counting it."""
    objects = probabilities[:, 1:] if background else probabilities
    if not objects.shape[1]:
        raise DataError("class probabilities have one column", expected="background and classes")
    return objects.argmax(axis=1), objects.max(axis=1)


def whole_number(value: Any, name: str) -> int:
    """A size or count as the formats write it: a number, its digits as text, or an array of one number."""
    if isinstance(value, bytes):
        value = value.decode("latin1")
    text = str(np.asarray(value).reshape(-1)[0] if np.size(value) == 1 else type(value).__name__).strip()
    text = text.removesuffix(".0")
    # A torn record may join digits to a number that no array can have as its length.
    if not (text.isascii() and text.isdigit()) or len(text) > MOST_DIGITS or not int(text):
        expected = f"1 to {MOST_DIGITS} digits"
        raise DataError(f"{name} is not a positive whole number", found=text[:80], expected=expected)
    return int(text)


def shown_names(values: Mapping[Any, Any]) -> str:
    """The names of the fields, for an error."""
    return ", ".join(sorted(str(name)[:30] for name in list(values)[:20]))


def decoded_base64(value: str | bytes, name: str) -> bytes:
    """The bytes of a base64 field."""
    try:
        return binascii.a2b_base64(value.strip(), strict_mode=True)
    except (binascii.Error, ValueError) as error:
        raise DataError(f"{name} is not base64", found=str(error), hint="the record is torn or damaged") from error


def _base64_array(value: str | bytes, name: str, dtype: np.dtype) -> np.ndarray:
    data = decoded_base64(value, name)
    if len(data) % dtype.itemsize:
        raise DataError(f"{name} has a wrong length in bytes", found=len(data), expected=f"values of {dtype.name}")
    return np.frombuffer(data, dtype)
