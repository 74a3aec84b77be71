# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""A module `torchvision` with what image processors of transformers call, where the real one cannot be imported.

Wheels of torchvision have compiled operators for one build of torch. The processors use none of them, only resizing,
cropping and padding of tensors, which torch itself has.
"""

import importlib.machinery
import importlib.util
import sys
import types
from enum import Enum

import numpy as np
import torch
from torch.nn import functional as F


class InterpolationMode(Enum):
    NEAREST = "nearest"
    NEAREST_EXACT = "nearest-exact"
    BILINEAR = "bilinear"
    BICUBIC = "bicubic"
    BOX = "box"
    HAMMING = "hamming"
    LANCZOS = "lanczos"


def resize(image, size, interpolation=InterpolationMode.BILINEAR, antialias=True):
    flat = image.reshape(-1, *image.shape[-3:])
    if isinstance(interpolation, int):  # as PIL counts them
        interpolation = {0: InterpolationMode.NEAREST_EXACT, 3: InterpolationMode.BICUBIC}[interpolation]
    smooth = interpolation in (InterpolationMode.BILINEAR, InterpolationMode.BICUBIC)
    made = F.interpolate(flat.float(), tuple(size), mode=interpolation.value, antialias=antialias and smooth)
    if not image.is_floating_point():
        made = made.round().clamp(0, 255).to(image.dtype)
    return made.reshape(*image.shape[:-2], *made.shape[-2:])


def normalize(image, mean, std, inplace=False):
    mean, std = (torch.as_tensor(value, dtype=image.dtype).view(-1, 1, 1) for value in (mean, std))
    return (image - mean) / std


def pad(image, padding, fill=0, padding_mode="constant"):
    left, top, right, bottom = padding if len(padding) == 4 else (*padding, *padding)
    height, width = image.shape[-2:]
    fills = torch.as_tensor(0 if fill is None else fill, dtype=image.dtype).reshape(-1, 1, 1)
    made = fills.expand(image.shape[-3], top + height + bottom, left + width + right)
    made = made.expand(*image.shape[:-3], *made.shape).clone()
    made[..., top : top + height, left : left + width] = image
    return made


def crop(image, top, left, height, width):
    return image[..., top : top + height, left : left + width]


def to_dtype(image, dtype=torch.float32, scale=False):
    if not scale or image.dtype == dtype:
        return image.to(dtype)
    if dtype.is_floating_point:
        return image.to(dtype) / 255
    return (image * 255.999).to(dtype)


def grayscale_to_rgb(image):
    if image.shape[-3] == 3:
        return image
    return image.expand(*image.shape[:-3], 3, *image.shape[-2:])


def pil_to_tensor(picture):
    array = np.array(picture)
    return torch.from_numpy(array if array.ndim == 3 else array[..., None]).permute(2, 0, 1).contiguous()


def import_with_torchvision(name):
    """Imports a file of transformers that needs torchvision where transformers was imported without it."""
    if install() == "real":
        return importlib.import_module(name)
    from transformers import (
        image_processing_backends,
        image_processing_utils,
        image_utils,
        utils,
        video_processing_utils,
    )

    known = utils.is_torchvision_v2_available
    lent = {key: module for key, module in sys.modules.items() if key.split(".")[0] == "torchvision"}
    try:
        for module in (image_processing_backends, image_processing_utils, video_processing_utils):
            module.tvF = lent["torchvision.transforms.v2.functional"]
        vars(image_utils).update(InterpolationMode=InterpolationMode, pil_to_tensor=pil_to_tensor)
        modes = {image_utils.PILImageResampling[each.name]: each for each in InterpolationMode if "_" not in each.name}
        modes[image_utils.PILImageResampling.NEAREST] = InterpolationMode.NEAREST_EXACT
        image_utils.pil_torch_interpolation_mapping.update(modes)
        image_utils.torch_pil_interpolation_mapping.update({mode: pil for pil, mode in modes.items()})
        image_processing_backends.pil_torch_interpolation_mapping = image_utils.pil_torch_interpolation_mapping
        utils.is_torchvision_v2_available = lambda: True
        return importlib.import_module(name)
    finally:
        utils.is_torchvision_v2_available = known
        for key in lent:
            del sys.modules[key]


def install():
    """Makes `torchvision` importable, before transformers is; returns "real" or "fake"."""
    try:
        import torchvision.transforms.v2.functional  # noqa: F401

        return "real"
    except (ImportError, RuntimeError):  # a wheel for another torch ends in a RuntimeError
        for name in [name for name in sys.modules if name.split(".")[0] == "torchvision"]:
            del sys.modules[name]
    functions = [resize, normalize, pad, crop, to_dtype, grayscale_to_rgb, pil_to_tensor, InterpolationMode]
    for name in ("", ".io", ".transforms", ".transforms.functional", ".transforms.v2", ".transforms.v2.functional"):
        module = types.ModuleType(f"torchvision{name}")
        module.__spec__ = importlib.machinery.ModuleSpec(module.__name__, None, is_package=True)
        module.__version__ = "0.21.0"
        module.__path__ = []
        module.__file__ = __file__
        vars(module).update({each.__name__: each for each in functions})
        sys.modules[module.__name__] = module
        if name:
            parent, child = module.__name__.rsplit(".", 1)
            setattr(sys.modules[parent], child, module)
    if importlib.util.find_spec("num2words") is None:  # SmolVLM writes the number of frames of a video with it
        words = types.ModuleType("num2words")
        words.__spec__ = importlib.machinery.ModuleSpec("num2words", None)
        words.__version__ = "0.5.14"
        words.num2words = str
        sys.modules["num2words"] = words
    return "fake"
