"""Lets torchvision and torchaudio be imported beside a torch that they were not built for: no operator runs."""

import importlib.machinery
import sys
import types

import torch

NAMES = ("nms", "qnms", "roi_align", "roi_pool", "ps_roi_align", "ps_roi_pool", "deform_conv2d")
operators = torch.library.Library("torchvision", "FRAGMENT")
try:
    import torchvision
except RuntimeError:
    for name in [name for name in sys.modules if name.split(".")[0] == "torchvision"]:
        del sys.modules[name]
    for name in NAMES:
        operators.define(f"{name}(Tensor boxes, Tensor scores, float threshold) -> Tensor")
    import torchvision  # noqa: F401
try:
    import torchaudio  # noqa: F401
except (ImportError, OSError):
    for name in [name for name in sys.modules if name.split(".")[0] == "torchaudio"]:
        del sys.modules[name]
    module = types.ModuleType("torchaudio")
    module.__spec__ = importlib.machinery.ModuleSpec("torchaudio", None)
    sys.modules["torchaudio"] = module
