# Copyright 2026 The grounded-attention authors.
#
# Licensed under the Apache License, Version 2.0 (the "License");
# you may not use this file except in compliance with the License.
# You may obtain a copy of the License at
#
#     http://www.apache.org/licenses/LICENSE-2.0
#
# Unless required by applicable law or agreed to in writing, software
# distributed under the License is distributed on an "AS IS" BASIS,
# WITHOUT WARRANTIES OR CONDITIONS OF ANY KIND, either express or implied.
# See the License for the specific language governing permissions and
# limitations under the License.
"""Images as users have them -> RGB pictures, each fault named with its file.

What counts as an image: a path, a PIL image, or an array (NumPy or torch) of shape (H, W), (H, W, C) or (C, H, W) with
C of 1, 3 or 4 channels, integers from 0 to 255 or floats in [0, 1].
"""

import os
import warnings
from collections.abc import Iterable
from typing import Any

import numpy as np
from PIL import Image, ImageOps, UnidentifiedImageError

# Transparent pixels show this colour, as on a page.
BACKGROUND = (255, 255, 255, 255)
SIXTEEN_BIT_MODES = ("I;16", "I;16L", "I;16B", "I;16N")
# Their pixels have no agreed range, so no grey level can be told from them.
RANGELESS_MODES = ("I", "F")
CHANNELS = (1, 3, 4)


def open_images(images: Any, upright: bool = False) -> list[Image.Image]:
    """A batch of images as RGB pictures in memory, see [`open_image`]; one image is a batch of one.

    Raises:
        ValueError: Nothing at all, something that is no image, or a file that cannot be read whole.
    """
    if _is_one(images):
        return [open_image(images, upright=upright)]
    if not isinstance(images, Iterable):
        raise ValueError(f"images: {images!r:.80} is no image; expected paths, PIL images or arrays.")
    opened = [open_image(image, f"image {index}", upright) for index, image in enumerate(images)]
    if not opened:
        raise ValueError("images: the batch is empty.")
    return opened


def _is_one(images: Any) -> bool:
    return isinstance(images, (str, os.PathLike, Image.Image)) or (hasattr(images, "shape") and len(images.shape) < 4)


def open_image(image: Any, name: str = "image", upright: bool = False) -> Image.Image:
    """One image as an RGB picture in memory.

    Grey and palette images, CMYK and the other colour spaces of PIL are converted, 16-bit grey is scaled to 8 bits,
    and transparent pixels are laid over white. Of an animation the first frame counts.

    Args:
        image: A path, a PIL image or an array, see the head of this file.
        name: What an error calls it; a file's path is added.
        upright: Turn the picture as its EXIF orientation says. By default the pixels stay as they are stored, because
            annotated boxes belong to those.

    Raises:
        ValueError: A file that is missing, truncated, no image or larger than `PIL.Image.MAX_IMAGE_PIXELS`; 32-bit
            pixels, whose range is unknown; an array of another shape, type or range.
    """
    if isinstance(image, (str, os.PathLike)):
        return _open_file(os.fspath(image), name, upright)
    if isinstance(image, Image.Image):
        path = getattr(image, "filename", "")
        return _to_rgb(image, f"{name} ({path})" if path else name, upright)
    if hasattr(image, "shape") and hasattr(image, "dtype"):
        return _to_rgb(_from_array(image, name), name, upright=False)
    raise ValueError(f"{name}: {type(image).__name__} is no image; expected a path, a PIL image or an array.")


def _open_file(path: str, name: str, upright: bool) -> Image.Image:
    name = f"{name} ({path})"
    if not os.path.isfile(path):
        hint = "download it first" if "://" in path else "give the path of an image"
        found = "a folder" if os.path.isdir(path) else "no such file"
        raise ValueError(f"{name}: {found}; {hint}.")
    try:
        with warnings.catch_warnings():
            # Too many pixels are an error here, not a warning beside one.
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
        return f"{name}: not an image file, or of a kind that PIL does not read."
    return f"{name}: cannot be read ({error}); the file is damaged or cut off, fetch it again."


def _too_large(name: str, size: str) -> str:
    return (
        f"{name}: {size}more than {Image.MAX_IMAGE_PIXELS} pixels, which may be a decompression bomb; shrink it, or "
        "raise PIL.Image.MAX_IMAGE_PIXELS if you trust it."
    )


def _to_rgb(picture: Image.Image, name: str, upright: bool) -> Image.Image:
    # The header tells the size, so this comes before a single pixel is decoded.
    width, height = picture.size
    if not width or not height:
        raise ValueError(f"{name}: {width} x {height} pixels; an image needs at least one.")
    if Image.MAX_IMAGE_PIXELS is not None and width * height > Image.MAX_IMAGE_PIXELS:
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
