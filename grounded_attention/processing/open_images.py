# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""Converts users' images to RGB pictures; every error names the file.

An image is a path, a PIL image, or an array (NumPy or torch) of shape (H, W), (H, W, C) or (C, H, W) with C of 1, 3 or
4 channels, integers from 0 to 255 or floats in [0, 1].
"""

import os
import warnings
from collections.abc import Iterable
from typing import Any

import numpy as np
from PIL import Image, ImageOps, UnidentifiedImageError

# The colour behind transparent pixels: white.
BACKGROUND = (255, 255, 255, 255)
SIXTEEN_BIT_MODES = ("I;16", "I;16L", "I;16B", "I;16N")
# The range of these pixels is not defined, so they cannot be converted to grey levels.
RANGELESS_MODES = ("I", "F")
CHANNELS = (1, 3, 4)
# A compressed file of a few kilobytes may claim as many pixels as PIL allows, which need a gigabyte here.
MAX_PIXELS = 2**25
PIL_LIMIT = Image.MAX_IMAGE_PIXELS


def open_images(images: Any, upright: bool = False) -> list[Image.Image]:
    """Opens a batch of images as RGB pictures in memory.

    Args:
        images: Images as for [`open_image`]; one image is a batch of one.
        upright (`bool`, *optional*, defaults to `False`): Rotate pictures by their EXIF orientation.

    Returns:
        `list[Image.Image]`: RGB pictures.

    Raises:
        ValueError: The batch is empty, an entry is not an image, or a file cannot be read completely.
    """
    if _is_one(images):
        return [open_image(images, upright=upright)]
    if not isinstance(images, Iterable):
        raise ValueError(f"images: {images!r:.80} is not an image; expected paths, PIL images or arrays.")
    opened = [open_image(image, f"image {index}", upright) for index, image in enumerate(images)]
    if not opened:
        raise ValueError("images: the batch is empty.")
    return opened


def _is_one(images: Any) -> bool:
    return isinstance(images, (str, os.PathLike, Image.Image)) or (hasattr(images, "shape") and len(images.shape) < 4)


def open_image(image: Any, name: str = "image", upright: bool = False) -> Image.Image:
    """Opens one image as an RGB picture in memory.

    Grey and palette images, CMYK and the other colour spaces of PIL are converted, 16-bit grey is scaled to 8 bits,
    and transparent pixels are drawn over white. Of an animation the first frame is used.

    Args:
        image: A path, a PIL image or an array, see the module's docstring.
        name (`str`, *optional*, defaults to `"image"`): The name of the image in errors; a file's path is added.
        upright (`bool`, *optional*, defaults to `False`): Rotate the picture by its EXIF orientation. By default the
            pixels stay as stored, which annotated boxes refer to.

    Returns:
        `Image.Image`: The RGB picture.

    Raises:
        ValueError: A file is missing, truncated, not an image or larger than `MAX_PIXELS` (or than
            `PIL.Image.MAX_IMAGE_PIXELS`, if that was changed); pixels have 32 bits, whose range is unknown; an array
            has another shape, type or range.
    """
    if isinstance(image, (str, os.PathLike)):
        return _open_file(os.fspath(image), name, upright)
    if isinstance(image, Image.Image):
        path = getattr(image, "filename", "")
        return _to_rgb(image, f"{name} ({path})" if path else name, upright)
    if hasattr(image, "shape") and hasattr(image, "dtype"):
        return _to_rgb(_from_array(image, name), name, upright=False)
    raise ValueError(f"{name}: {type(image).__name__} is not an image; expected a path, a PIL image or an array.")


def _open_file(path: str, name: str, upright: bool) -> Image.Image:
    name = f"{name} ({path})"
    if not os.path.isfile(path):
        hint = "download it first" if "://" in path else "give the path of an image"
        found = "a folder" if os.path.isdir(path) else "no such file"
        raise ValueError(f"{name}: {found}; {hint}.")
    try:
        with warnings.catch_warnings():
            # Too many pixels are an error here, so the warning is not needed.
            warnings.simplefilter("ignore", Image.DecompressionBombWarning)
            picture = Image.open(path)
    except Exception as error:
        raise ValueError(_explain(name, error)) from error
    with picture:
        return _to_rgb(picture, name, upright)


def _explain(name: str, error: Exception) -> str:
    if isinstance(error, Image.DecompressionBombError):
        return _too_large(name, "")
    if isinstance(error, UnidentifiedImageError):
        return f"{name}: not an image file, or a format that PIL cannot read."
    return f"{name}: cannot be read ({error}); the file is damaged or truncated; get it again."


def _too_large(name: str, size: str) -> str:
    return (
        f"{name}: {size}more than {_limit()} pixels, which may be a decompression bomb; shrink it, or "
        "raise PIL.Image.MAX_IMAGE_PIXELS if you trust it."
    )


def _limit() -> int | None:
    """The largest number of pixels; PIL's, if the user has changed it."""
    return MAX_PIXELS if Image.MAX_IMAGE_PIXELS == PIL_LIMIT else Image.MAX_IMAGE_PIXELS


def _to_rgb(picture: Image.Image, name: str, upright: bool) -> Image.Image:
    # The header contains the size, so this check needs no decoded pixels.
    width, height = picture.size
    if not width or not height:
        raise ValueError(f"{name}: {width} x {height} pixels; an image needs at least one.")
    limit = _limit()
    if limit is not None and width * height > limit:
        raise ValueError(_too_large(name, f"{width} x {height} are "))
    if picture.mode in RANGELESS_MODES:
        raise ValueError(
            f"{name}: 32-bit pixels (mode {picture.mode}) have no known range; save it with 8 or 16 bits a channel."
        )
    try:
        picture.load()
        return _convert(ImageOps.exif_transpose(picture) if upright else picture)
    except Exception as error:
        raise ValueError(_explain(name, error)) from error


def _convert(picture: Image.Image) -> Image.Image:
    if picture.mode in SIXTEEN_BIT_MODES:
        picture = Image.fromarray((np.asarray(picture).astype(np.uint16) >> 8).astype(np.uint8))
    if picture.has_transparency_data:
        picture = picture.convert("RGBA")
        picture = Image.alpha_composite(Image.new("RGBA", picture.size, BACKGROUND), picture)
    return picture.copy() if picture.mode == "RGB" else picture.convert("RGB")


def _from_array(image: Any, name: str) -> Image.Image:
    array = np.asarray(image.detach().cpu() if hasattr(image, "detach") else image)
    torch_first = hasattr(image, "detach") or array.shape[-1:] not in [(count,) for count in CHANNELS]
    if array.ndim == 3 and torch_first and array.shape[0] in CHANNELS:
        array = np.moveaxis(array, 0, -1)
    if array.ndim == 3 and array.shape[2] == 1:
        array = array[..., 0]
    if array.size == 0 or not (array.ndim == 2 or (array.ndim == 3 and array.shape[2] in CHANNELS)):
        raise ValueError(f"{name}: an array of shape {array.shape}, expected (H, W), (H, W, C) or (C, H, W).")
    return Image.fromarray(_to_bytes(array, name))


def _to_bytes(array: np.ndarray, name: str) -> np.ndarray:
    floating = array.dtype.kind == "f"
    if array.dtype.kind not in "iuf":
        raise ValueError(f"{name}: an array of {array.dtype}, expected integers 0 to 255 or floats in [0, 1].")
    low, high = array.min(), array.max()
    if not (low >= 0 and high <= (1 if floating else 255)):
        raise ValueError(
            f"{name}: an array of {array.dtype} from {low} to {high}, expected integers 0 to 255 or floats in [0, 1]."
        )
    return np.round(array * 255).astype(np.uint8) if floating else array.astype(np.uint8)
