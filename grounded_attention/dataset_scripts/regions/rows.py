# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""One row of a region table, the regions of an image: checks, digest, and layout in Arrow."""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from grounded_attention.dataset_scripts.files.errors import DataError, refuse_if
from grounded_attention.utils.named_types import Columns, Fields, Row

# Detectors that count pixels from 0 to w (not w - 1) place box edges up to one pixel outside the image.
EDGE_TOLERANCE = 1.0
DIGEST_SIZE = 16
# Arrays of a row: dtype and whether it is a matrix (one vector a region) or a vector (one number a region).
ARRAYS: dict[str, tuple[np.dtype, bool]] = {
    "boxes": (np.dtype(np.float32), True),
    "features": (np.dtype(np.float16), True),
    "classes": (np.dtype(np.int32), False),
    "scores": (np.dtype(np.float32), False),
    "attributes": (np.dtype(np.int32), False),
    "attribute_scores": (np.dtype(np.float32), False),
    "class_probs": (np.dtype(np.float16), True),
}
Widths = dict[str, int | None]  # Name of an array -> values of a region; None for one number
# Columns of a row before the arrays.
HEAD_TYPES = {"image_id": pa.string(), "width": pa.int32(), "height": pa.int32()}
HEAD = {**HEAD_TYPES, "checksum": pa.binary(DIGEST_SIZE)}
# Types of the arrays in rows outside of a table, which may have any widths.
ARRAY_TYPES = {}
for _name, (_dtype, _is_matrix) in ARRAYS.items():
    _vector = pa.list_(pa.from_numpy_dtype(_dtype)) if _is_matrix else pa.from_numpy_dtype(_dtype)
    ARRAY_TYPES[_name] = pa.list_(_vector)


@dataclass(slots=True, eq=False)
class Regions:
    """The regions that a detector found in one image; n regions, D feature values, C classes."""

    image_id: str
    width: int
    height: int
    boxes: npt.NDArray[np.float32]
    features: npt.NDArray[np.float16]
    classes: npt.NDArray[np.int32] | None = None
    scores: npt.NDArray[np.float32] | None = None
    attributes: npt.NDArray[np.int32] | None = None
    attribute_scores: npt.NDArray[np.float32] | None = None
    class_probs: npt.NDArray[np.float16] | None = None
    provenance: Columns | None = field(default=None, init=False)

    def __len__(self) -> int:
        return len(self.boxes)

    def arrays(self) -> dict[str, np.ndarray]:
        """Returns the arrays that are present, by name."""
        return {name: array for name in ARRAYS if (array := getattr(self, name)) is not None}

    def to_row(self) -> Fields:
        """The columns of a row outside of a table: the arrays are lists, of matrices lists of vectors."""
        arrays = {}
        for name, array in self.arrays().items():
            arrays[name] = list(np.asarray(array, ARRAYS[name][0]))
        return {"image_id": self.image_id, "width": self.width, "height": self.height, **arrays}

    @classmethod
    def from_row(cls, row: Row) -> "Regions":
        """The regions of a row of [`ExtractRegions`].

        Raises:
            DataError: if the row has a problem in place of regions.
        """
        refuse_if(row.get("problem") is not None, str(row.get("problem")), where=f"image {row['image_id']}")
        arrays = {}
        for name, (dtype, _) in ARRAYS.items():
            if row.get(name) is not None:
                arrays[name] = np.array(row[name], dtype)
        return cls(row["image_id"], row["width"], row["height"], **arrays)


def normalise_boxes(boxes: npt.ArrayLike, width: int, height: int) -> npt.NDArray[np.float32]:
    """Divides pixel boxes by the size of the image.

    A coordinate up to one pixel outside the image is moved to its edge, since detectors produce such boxes at the
    border.
    """
    pixels = np.asarray(boxes, dtype=np.float32)
    check_size(width, height)
    size = np.array([width, height, width, height], dtype=np.float32)
    check_boxes(pixels, size, EDGE_TOLERANCE)
    if pixels.size and pixels.max() <= 1.001 and min(width, height) > 2:
        found = f"numbers up to {pixels.max():g} in an image of {width} x {height}"
        raise DataError("the boxes look normalised", found=found, expected="x1, y1, x2, y2 in pixels")
    return np.clip(pixels, 0, size) / size


def check_size(width: int, height: int) -> None:
    """Checks the size of an image."""
    refuse_if(
        width < 1 or height < 1,
        "image size is not positive",
        found=(width, height),
        expected="width and height above 0",
    )
    refuse_if(
        max(width, height) > np.iinfo(np.int32).max,
        "image size is too large",
        found=(width, height),
        expected="width and height below 2147483648",
    )


def check_boxes(boxes: np.ndarray, limit: np.ndarray | float, tolerance: float = 0.0) -> None:
    """Checks boxes."""
    refuse_if(
        boxes.ndim != 2 or boxes.shape[1] != 4 or not len(boxes),
        "boxes have a wrong shape",
        found=boxes.shape,
        expected="(number of regions, 4), at least one",
    )
    checks = {
        "box is not a number": ~np.isfinite(boxes).all(axis=1),
        "box outside the image": ((boxes < -tolerance) | (boxes > np.asarray(limit) + tolerance)).any(axis=1),
        "box inverted": (boxes[:, :2] > boxes[:, 2:]).any(axis=1),
    }
    for problem, bad in checks.items():
        if bad.any():
            region = int(bad.argmax())
            edge = np.broadcast_to(limit, 4).tolist()[2:]
            expected = f"0 <= x1 <= x2 <= {edge[0]:g}, 0 <= y1 <= y2 <= {edge[1]:g}"
            raise DataError(problem, where=f"region {region}", found=boxes[region].tolist(), expected=expected)


def validate_regions(regions: Regions) -> Regions:
    """Checks regions and converts their arrays to contiguous ones with the dtypes of `Regions`."""
    if not isinstance(regions.image_id, str) or not regions.image_id:
        raise DataError("image id is not a text", found=regions.image_id, expected="a string that is not empty")
    check_size(regions.width, regions.height)
    arrays = regions.arrays()
    converted = {name: _convert(name, array, len(arrays["boxes"])) for name, array in arrays.items()}
    check_boxes(converted["boxes"], 1.0)
    return Regions(regions.image_id, int(regions.width), int(regions.height), **converted)


def _convert(name: str, array: np.ndarray, count: int) -> np.ndarray:
    dtype, is_matrix = ARRAYS[name]
    array = np.asarray(array)
    if array.ndim != 1 + is_matrix or len(array) != count or not array.size:
        shape = f"({count}, width)" if is_matrix else f"({count},)"
        raise DataError(f"{name} have a wrong shape", found=array.shape, expected=f"{shape}, one entry a box")
    if dtype.kind == "i" and (array.min() < 0 or array.max() > np.iinfo(dtype).max):
        raise DataError(f"{name} out of range", found=(array.min().item(), array.max().item()), expected="0 or more")
    with np.errstate(over="ignore"):
        result = np.array(array, dtype=dtype, order="C")  # a copy: the caller may use its array again
    if dtype.kind == "f" and not _is_finite(result):
        region, *_ = np.argwhere(~np.isfinite(result))[0]
        found = np.ravel(array[region])[~np.isfinite(np.ravel(result[region]))][0].item()
        raise DataError(
            f"{name} contain a value that {dtype.name} cannot represent", where=f"region {region}", found=found
        )
    return result


def _is_finite(array: np.ndarray) -> bool:
    if array.dtype != np.float16:
        return bool(np.isfinite(array).all())
    # NumPy converts float16 for each test; testing for all exponent bits is equivalent and ten times faster.
    return not bool(((array.view(np.uint16) & 0x7C00) == 0x7C00).any())


def row_digest(regions: Regions) -> bytes:
    """Computes BLAKE2b (16 bytes) of id, size, and each array with its name and shape: the content, not its layout."""
    digest = hashlib.blake2b(digest_size=DIGEST_SIZE)
    digest.update(f"{regions.image_id}\0{regions.width}x{regions.height}".encode())
    for name, array in regions.arrays().items():
        digest.update(f"\0{name}{array.shape}".encode())
        digest.update(np.ascontiguousarray(array).data)
    return digest.digest()


def row_widths(regions: Regions) -> Widths:
    """Returns the width of each array that is present: D for features, None for a vector."""
    return {name: array.shape[1] if array.ndim == 2 else None for name, array in regions.arrays().items()}


def row_schema(widths: Widths) -> pa.Schema:
    """Returns the Arrow schema of a table whose rows have these arrays with these widths."""
    columns = [pa.field(name, dtype, nullable=False) for name, dtype in HEAD.items()]
    for name, width in widths.items():
        dtype = pa.from_numpy_dtype(ARRAYS[name][0])
        columns.append(pa.field(name, pa.list_(dtype if width is None else pa.list_(dtype, width))))
    return pa.schema(columns)


def schema_widths(schema: pa.Schema) -> Widths:
    """Returns the `row_widths` of the rows with this schema."""
    types = {name: schema.field(name).type.value_type for name in schema.names if name in ARRAYS}
    return {name: dtype.list_size if pa.types.is_fixed_size_list(dtype) else None for name, dtype in types.items()}


def make_batch(rows: Sequence[Regions]) -> pa.RecordBatch:
    """Makes a record batch of rows with the same arrays and widths."""
    schema = row_schema(row_widths(rows[0]))
    head = {
        "image_id": [row.image_id for row in rows],
        "width": [row.width for row in rows],
        "height": [row.height for row in rows],
        "checksum": [row_digest(row) for row in rows],
    }
    columns = [pa.array(head[name], dtype) for name, dtype in HEAD.items()]
    starts = np.cumsum([0, *map(len, rows)], dtype=np.int32)
    for name in row_widths(rows[0]):
        joined = np.concatenate([getattr(row, name) for row in rows])
        values = pa.array(joined.reshape(-1))
        if joined.ndim == 2:
            values = pa.FixedSizeListArray.from_arrays(values, joined.shape[1])
        columns.append(pa.ListArray.from_arrays(pa.array(starts), values))
    return pa.RecordBatch.from_arrays(columns, schema=schema)
