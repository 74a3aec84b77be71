# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""Keys of VL-BERT's pixel network in original checkpoints, and our names for them.

Two kinds of file contain it: the pre-trained ResNet (`resnet101-pt-vgbua-0000.model`, with the keys of torchvision's
ResNet and `fc`), and end-to-end VL-BERT checkpoints. These have the prefix `image_feature_extractor.backbone.`, and
`image_feature_extractor.roi_head_feature_extractor.` instead of `layer4.`, with a second copy under
`image_feature_extractor.head.0.`.
"""

import re
from functools import partial

import torch

from grounded_attention.modeling.configuration_fast_rcnn import FastRCNNConfig
from grounded_attention.modeling.modeling_fast_rcnn import FastRCNNFeatures
from grounded_attention.utils.named_types import Columns

from .fields import CheckpointError, ConfigFields, settle_fields
from .keys import Conversion, Keys, Rename, Weights, rename_prefix
from .original_family import UNKNOWN, OriginalFamily

IMAGE = "image_feature_extractor."
_BACKBONE, _ROI_HEAD, _ROI_HEAD_AGAIN = (
    f"{IMAGE}{name}." for name in ("backbone", "roi_head_feature_extractor", "head.0")
)

_COUNTER = ".num_batches_tracked"

_BLOCK_KEY = re.compile(r"layer([1-4])\.(\d+)\.(conv|bn|downsample\.)(\d)\.(.+)")
_STEM = (("conv1.", "embedder.embedder.convolution."), ("bn1.", "embedder.embedder.normalization."))
_PARTS = {"conv": "layer.{}.convolution", "bn": "layer.{}.normalization"}
_SHORTCUT = {"0": "shortcut.convolution", "1": "shortcut.normalization"}

# Pattern of keys of the pixel network that are not converted -> reason.
IGNORED = {
    rf"^{re.escape(_ROI_HEAD_AGAIN)}": "second copy of roi_head_feature_extractor",
    rf"{re.escape(_COUNTER)}$": "counter of batch norm, which is frozen",
}
# Values of every public configuration; the weights do not determine them.
_PUBLIC_SETTINGS = {"stride_in_1x1": True, "dilated_c5": True, "roi_size": 14, "sampling_ratio": 1, "frozen_stages": 2}
# ResNet-101, ResNet-50 and ResNet-152.
_PUBLIC = tuple(
    {"hidden_sizes": [256, 512, 1024, 2048], "depths": depths}
    for depths in ([3, 4, 23, 3], [3, 4, 6, 3], [3, 8, 36, 3])
)


def rename_image_key(key: str, end_to_end: bool, prefix: str = "") -> str | None:
    """Our name for a key; `None` for a key of another part and for keys that `explain_image_key` explains."""
    if explain_image_key(key) is not None:
        return None
    if end_to_end:
        key = key.replace(_ROI_HEAD, f"{_BACKBONE}layer4.", 1)
        if not key.startswith(_BACKBONE):
            return None
        key = key.removeprefix(_BACKBONE)
    name = rename_prefix(_STEM, key) or _rename_block(key)
    if name is None:
        return None
    return prefix + name


def _rename_block(key: str) -> str | None:
    match = _BLOCK_KEY.fullmatch(key)
    if match is None:
        return None
    stage, block, part, number, rest = match.groups()
    where = "head" if stage == "4" else f"stages.{int(stage) - 1}"
    # Numbers start at 1 in conv1 and bn1, and at 0 in downsample.0.
    if part in _PARTS:
        name = _PARTS[part].format(int(number) - 1)
    else:
        name = _SHORTCUT.get(number, "")
    return f"{where}.{block}.{name}.{rest}"


def explain_image_key(key: str) -> str | None:
    """The reason why a key of the pixel network is not converted; `None` for other keys."""
    return next((reason for pattern, reason in IGNORED.items() if re.search(pattern, key)), None)


def check_second_head(weights: Weights, conversion: Conversion) -> None:
    """Checks that the two copies of the last stage in an end-to-end checkpoint are equal."""
    for key, tensor in weights.items():
        if not key.startswith(_ROI_HEAD_AGAIN) or key.endswith(_COUNTER):
            continue
        first = key.replace(_ROI_HEAD_AGAIN, _ROI_HEAD, 1)
        if first not in weights or not torch.equal(tensor, weights[first]):
            raise CheckpointError(
                f"{conversion.keys[key]} differs from {conversion.keys.get(first, first)}; expected the same "
                "tensor under both keys."
            )


def read_image_fields(conversion: Conversion, prefix: str, overrides: Columns) -> ConfigFields:
    """Reads the fields of [`FastRCNNConfig`] from the tensor shapes; others have the values of the public code."""
    if not any(name.startswith(prefix) for name in conversion.weights):  # only requested with --config
        return settle_fields({}, _PUBLIC_SETTINGS, overrides, FastRCNNConfig, _PUBLIC)
    stages = [f"{prefix}{stage}." for stage in ("stages.0", "stages.1", "stages.2", "head")]
    stem = conversion.shape(f"{prefix}embedder.embedder.convolution.weight", 4)
    read = {
        "num_channels": stem[1],
        "embedding_size": stem[0],
        "hidden_sizes": [conversion.shape(f"{stage}0.layer.2.convolution.weight", 4)[0] for stage in stages],
        "depths": [conversion.count_layers(stage) for stage in stages],
    }
    return settle_fields(read, _PUBLIC_SETTINGS, overrides, FastRCNNConfig, _PUBLIC)


class FastRCNNFamily(OriginalFamily):
    """The pixel network alone, from its own file or from an end-to-end VL-BERT, whose other parts are skipped."""

    title = "ResNet"
    accepted = ("VL-BERT",)
    expected = "a ResNet of bottleneck blocks with layer1 to layer4, such as resnet101-pt-vgbua-0000.model, or an "
    expected += "end-to-end VL-BERT checkpoint"
    config_class = FastRCNNConfig
    model_classes = (FastRCNNFeatures,)
    ignored = {r"^fc\.": "classifier of the ResNet pre-training", **IGNORED}
    public = _PUBLIC

    def detect_class(self, weights: Weights, originals: Keys) -> str:
        """The only class; raises a `CheckpointError` for a VL-BERT on precomputed features."""
        if any(key.startswith("vlbert.") for key in weights) and not _is_end_to_end(weights):
            raise CheckpointError(
                "this VL-BERT checkpoint has no pixel network (no image_feature_extractor.backbone.*); it uses "
                f"precomputed features. Expected {self.expected}."
            )
        return FastRCNNFeatures.__name__

    def make_rename(self, class_name: str, keys: Keys) -> Rename:
        return partial(rename_image_key, end_to_end=_is_end_to_end(keys))

    def finish(self, conversion: Conversion, weights: Weights) -> None:
        if _is_end_to_end(weights):
            check_second_head(weights, conversion)
            own = (key for key in conversion.left_out if conversion.left_out[key] == UNKNOWN)
            conversion.left_out |= dict.fromkeys(own, "not part of the pixel network")

    def read_fields(self, conversion: Conversion, overrides: Columns) -> ConfigFields:
        return read_image_fields(conversion, "", overrides)


def _is_end_to_end(keys: Keys) -> bool:
    return any(key.startswith((_BACKBONE, _ROI_HEAD)) for key in keys)


FAST_RCNN = FastRCNNFamily()
