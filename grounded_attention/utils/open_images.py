# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""Converts users' images to upright RGB pictures; every error names the file.

An image is a path, the bytes of a file, a dictionary with `bytes` or `path` (as `datasets` stores images), a PIL
image, or an array (NumPy or torch) of shape (H, W), (H, W, C) or (C, H, W) with C of 1, 3 or 4 channels, integers from
0 to 255 or floats in [0, 1].
"""

import io
import os
import re
from collections.abc import Iterable, Mapping
from functools import partial
from math import isqrt
from typing import Any, BinaryIO

import numpy as np
from PIL import Image

from .named_types import Size

# The colour behind transparent pixels: white.
BACKGROUND = (255, 255, 255, 255)
STRIP = 64  # rows of a picture that are converted together
SIXTEEN_BIT_MODES = ("I;16", "I;16L", "I;16B", "I;16N")
# The range of these pixels is not defined, so they cannot be converted to grey levels.
RANGELESS_MODES = ("I", "F")
CHANNELS = (1, 3, 4)
# EXIF's tag of the orientation, and what makes pixels of orientation 2 to 8 upright.
_ORIENTATION = 0x0112
_NAMES = "FLIP_LEFT_RIGHT ROTATE_180 FLIP_TOP_BOTTOM TRANSPOSE ROTATE_270 TRANSVERSE ROTATE_90"
_TURNS = {number: Image.Transpose[name] for number, name in enumerate(_NAMES.split(), 2)}
# What is opened, whatever a file is named: PIL runs Ghostscript for EPS, and knows old formats that few have examined.
# HEIF is there after `pillow_heif.register_heif_opener()`.
FORMATS = ("JPEG", "MPO", "PNG", "WEBP", "GIF", "BMP", "DIB", "TIFF", "PPM", "JPEG2000", "AVIF", "HEIF")
# A compressed file of a few kilobytes may claim any number of pixels. The largest photographs of phones have 200
# megapixels. The variable allows another number in any command.
MAX_PIXELS = 200_000_000
VARIABLE = "GROUNDED_ATTENTION_MAX_PIXELS"
_TRUST = f"shrink it, or, if you trust it, set the environment variable: {VARIABLE}=400000000 before the command."
PIL_LIMIT = Image.MAX_IMAGE_PIXELS
# What is left of a larger picture for a model of image tokens: no processor of transformers keeps as much by default.
ENOUGH = 2**24
# A JPEG file may change all of its pixels again and again, usually 10 times; of the largest picture at most:
SCANS = 50
_SCAN = re.compile(rb"\xff\xda\0[\x08-\x0e][\x01-\x04]")


def open_images(images: Any) -> list[Image.Image]:
    """Opens a batch of images as RGB pictures in memory."""
    is_one = isinstance(images, (str, bytes, os.PathLike, Mapping, Image.Image)) or (
        hasattr(images, "shape") and len(images.shape) < 4
    )
    if is_one:
        return [open_image(images)]
    if not isinstance(images, Iterable):
        raise ValueError(f"images: {images!r:.80} is not an image; expected paths, PIL images or arrays.")
    opened = [open_image(image, f"image {index}") for index, image in enumerate(images)]
    if not opened:
        raise ValueError("images: the batch is empty.")
    return opened


def open_image(image: Any, name: str = "image", least: int | None = None) -> Image.Image:
    """Opens one image as an upright RGB picture in memory; with `least`, at the smallest half, third ... of its size
    that has as many pixels.

    Pictures are turned by their EXIF orientation, as viewers and annotation tools show them. Grey and palette images,
    CMYK and the other colour spaces of PIL are converted, 16-bit grey is scaled to 8 bits, and transparent pixels are
    drawn over white. Of an animation the first frame is used. A picture in memory that is all that is returned itself.
    """
    picture: Image.Image = _open_any(image, name, partial(_to_rgb, least=least))
    return picture


def _open_any(image: Any, name: str, convert: Any) -> Any:
    if isinstance(image, (str, os.PathLike)):
        return _open_file(os.fspath(image), name, convert)
    if isinstance(image, Mapping):
        return _open_any(image.get("bytes") or image.get("path"), name, convert)
    if isinstance(image, bytes):
        return _read(io.BytesIO(image), name, convert)
    if hasattr(image, "read"):
        return _read(image, name, convert)
    if isinstance(image, Image.Image):
        path = getattr(image, "filename", "")
        return convert(image, f"{name} ({path})" if path else name)
    if hasattr(image, "shape") and hasattr(image, "dtype"):
        array = np.asarray(image.detach().cpu() if hasattr(image, "detach") else image)
        torch_first = hasattr(image, "detach") or array.shape[-1:] not in [(count,) for count in CHANNELS]
        if array.ndim == 3 and torch_first and array.shape[0] in CHANNELS:
            array = np.moveaxis(array, 0, -1)
        if array.ndim == 3 and array.shape[2] == 1:
            array = array[..., 0]
        if array.size == 0 or not (array.ndim == 2 or (array.ndim == 3 and array.shape[2] in CHANNELS)):
            raise ValueError(f"{name}: an array of shape {array.shape}, expected (H, W), (H, W, C) or (C, H, W).")
        picture_of_array = Image.fromarray(_to_bytes(array, name))
        return convert(picture_of_array, name)
    raise ValueError(f"{name}: {type(image).__name__} is not an image; expected a path, a PIL image or an array.")


def picture_size(image: Any, name: str = "image") -> Size:
    """Width and height of the upright picture, as [`open_image`] would; of a file only the header is read."""
    size: Size = _open_any(image, name, _upright_size)
    return size


def _upright_size(picture: Image.Image, name: str) -> Size:
    # A PNG file has its metadata before the pixels; to look behind them it would be decoded.
    has_metadata = picture.format != "PNG" or "exif" in picture.info
    turned = has_metadata and _orientation(picture) > 4  # 5 to 8 are turned by a quarter
    if turned:
        return picture.size[::-1]
    return picture.size


def _open_file(path: str, name: str, convert: Any) -> Any:
    name = f"{name} ({path if len(path) <= 300 else f'{path[:80]}…{path[-40:]}'})"
    if not os.path.isfile(path):
        hint = "download it first" if "://" in path else "give the path of an image"
        if path.startswith("data:"):
            hint = "decode it first"
        what = "a folder" if os.path.isdir(path) else "no such file"
        raise ValueError(f"{name}: {what}; {hint}.")
    try:
        with open(path, "rb") as file:
            return _read(file, name, convert)
    except OSError as error:
        raise ValueError(_explain(name, error)) from error


def _read(file: BinaryIO, name: str, convert: Any) -> Any:
    return convert(_open(file, name), name)


def _open(file: BinaryIO, name: str) -> Image.Image:
    """Reads the header by PIL's class of the format: the limit of `Image.open` belongs to the user."""
    kind = _format_of(file)
    if kind not in FORMATS:
        raise ValueError(_foreign(name, kind))
    factory, _ = Image.OPEN[kind]
    file.seek(0)
    try:
        return factory(file, "")
    except MemoryError:
        raise
    except Exception as error:
        raise ValueError(_explain(name, error)) from error


def _explain(name: str, error: Exception) -> str:
    if isinstance(error, Image.DecompressionBombError):  # of WebP, where PIL itself looks at the header
        return f"{name}: {error} Save it as PNG, or in Python set PIL.Image.MAX_IMAGE_PIXELS."
    return f"{name}: cannot be read ({error}); the file is damaged or truncated; get it again."


def _foreign(name: str, kind: str) -> str:
    return f"{name}: not an image file that is read: found {kind}, expected {', '.join(FORMATS)}; save it as PNG."


def _format_of(file: BinaryIO) -> str:
    """The format that the first bytes of a file promise; nothing of it is decoded."""
    Image.init()  # or PIL knows no format in a process that has opened none
    file.seek(0)
    start = file.read(16).ljust(16, b"\0")
    for kind in (*FORMATS, *Image.OPEN):
        _, accept = Image.OPEN.get(kind, (None, None))
        if accept and accept(start):
            return kind
    return "another one"


def _limit() -> int | None:
    """The largest number of pixels; PIL's, if the user has changed it."""
    if PIL_LIMIT != Image.MAX_IMAGE_PIXELS:
        return Image.MAX_IMAGE_PIXELS
    limit = os.environ.get(VARIABLE, "").strip() or str(MAX_PIXELS)
    if not (limit.isdecimal() and int(limit)):
        raise ValueError(f"{VARIABLE}={limit}: expected the largest number of pixels, such as {MAX_PIXELS}.")
    return int(limit)


def _to_rgb(picture: Image.Image, name: str, least: int | None = None) -> Image.Image:
    if picture.format not in (None, *FORMATS):
        raise ValueError(_foreign(name, picture.format))
    # The header contains the size, so this check needs no decoded pixels.
    width, height = picture.size
    if not width or not height:
        raise ValueError(f"{name}: {width} x {height} pixels; an image needs at least one.")
    limit = _limit()
    pixels = width * height
    if limit is not None and pixels > limit:
        raise ValueError(
            f"{name}: {width} x {height} are more than {limit} pixels, which may be a decompression bomb; {_TRUST}"
        )
    if picture.mode in RANGELESS_MODES:
        raise ValueError(
            f"{name}: 32-bit pixels (mode {picture.mode}) have no known range; save it with 8 or 16 bits a channel."
        )
    try:
        _check_work(picture, limit)
        # For a large TIFF file that is allowed here PIL would warn, or refuse it, when it makes room for the pixels.
        if picture.format == "TIFF" and picture.tile and picture.width * picture.height > (PIL_LIMIT or 0):  # type: ignore[attr-defined]
            tags = picture.tag_v2  # type: ignore[attr-defined]
            picture.im = Image.new(picture.mode, (tags[256], tags[257])).im
        picture.load()
        converted = _upright(picture, max(1, isqrt(pixels // least)) if least else 1)
    except MemoryError:
        raise
    except Exception as error:
        raise ValueError(_explain(name, error)) from error
    converted.info.clear()  # with the orientation, which is that of the file
    return converted


def _check_work(picture: Image.Image, limit: int | None) -> None:
    """A JPEG file has scans. A TIFF file has parts, which may be larger than the picture, or the same bytes."""
    file = getattr(picture, "fp", None)
    if file is None or limit is None or picture.format not in ("JPEG", "MPO", "TIFF"):
        return
    place = file.tell()
    file.seek(0)
    at = np.array([scan.start() for scan in _SCAN.finditer(file.read())], np.int64)
    file.seek(place)
    parts = 1
    scans = len(at)
    area = picture.width * picture.height
    if picture.format == "TIFF":
        tags = picture.tag_v2  # type: ignore[attr-defined]
        starts, sizes = (np.atleast_1d(tags.get(tag, ())) for tag in ((324, 325) if 324 in tags else (273, 279)))
        parts = len(starts)
        if 324 in tags:
            area = tags[322] * tags[323]
        else:
            area = area // max(1, len(starts))
        is_jpeg = tags.get(259) in (6, 7)
        scans = 0
        if is_jpeg:
            scans = int(np.diff(np.searchsorted(at, [starts, starts + sizes]), axis=0).sum())
    if (scans + 5 * parts) * area > SCANS * limit:
        size = f"{picture.width} x {picture.height}"
        raise ValueError(f"{scans} scans of {size} in {parts} parts of {area} pixels, usual are 1 to 20 scans")


def _upright(picture: Image.Image, times: int) -> Image.Image:
    """A new picture: RGB, so many times smaller, and turned."""
    turn = _TURNS.get(_orientation(picture))
    converted = picture
    if picture.mode != "RGB" or picture.has_transparency_data or times > 1:
        converted = _convert(picture, times)
    elif picture.info or type(picture) is not Image.Image:
        converted = Image.Image()._new(picture.im)
    if turn is None:
        return converted
    return converted.transpose(turn)


def _orientation(picture: Image.Image) -> int:
    try:
        orientation = picture.getexif().get(_ORIENTATION, 1)
        if orientation in _TURNS:
            return orientation
        return 1
    except Exception:  # of many types: damaged metadata say nothing about pixels that could be read
        return 1


def _convert(picture: Image.Image, times: int) -> Image.Image:
    """By strips: at once, a large picture would be in memory up to four times."""
    drawn = Image.new("RGB", (-(-picture.width // times), -(-picture.height // times)))
    for top in range(0, drawn.height, STRIP):
        bottom = min((top + STRIP) * times, picture.height)
        part = picture.crop((0, top * times, picture.width, bottom))
        if part.mode in SIXTEEN_BIT_MODES:
            part = Image.fromarray((np.asarray(part).astype(np.uint16) >> 8).astype(np.uint8))
        if part.has_transparency_data:
            part = Image.alpha_composite(Image.new("RGBA", part.size, BACKGROUND), part.convert("RGBA"))
        drawn.paste(part.convert("RGB").reduce(times), (0, top))
    return drawn


def _to_bytes(array: np.ndarray, name: str) -> np.ndarray:
    floating = array.dtype.kind == "f"
    if array.dtype.kind not in "iuf":
        raise ValueError(f"{name}: an array of {array.dtype}, expected integers 0 to 255 or floats in [0, 1].")
    low = array.min()
    high = array.max()
    if not (low >= 0 and high <= (1 if floating else 255)):
        raise ValueError(
            f"{name}: an array of {array.dtype} from {low} to {high}, expected integers 0 to 255 or floats in [0, 1]."
        )
    if floating:
        return np.round(array * 255).astype(np.uint8)
    return array.astype(np.uint8)
