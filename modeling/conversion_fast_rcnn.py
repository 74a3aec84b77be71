# Copyright 2026 The grounded-attention authors. All rights reserved.
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
"""Keys of VL-BERT's pixel network in original checkpoints, and their places in ours.

Two kinds of file hold it: the pre-trained ResNet (`resnet101-pt-vgbua-0000.model`, keys as in torchvision's ResNet,
with `fc`), and end-to-end VL-BERT checkpoints, where `image_feature_extractor.backbone.` stands before these keys and
`image_feature_extractor.roi_head_feature_extractor.` in the place of `layer4.`, once more as
`image_feature_extractor.head.0.`.
"""

import re
from collections.abc import Iterable, Mapping
from typing import Any

import torch
from huggingface_hub.errors import StrictDataclassError

from .configuration_fast_rcnn import FastRCNNConfig
from .conversion import CheckpointError, Conversion
from .modeling_fast_rcnn import FastRCNNFeatures

_IMAGE = "image_feature_extractor."
_BACKBONE, _ROI_HEAD, _ROI_HEAD_AGAIN = (
    f"{_IMAGE}{name}." for name in ("backbone", "roi_head_feature_extractor", "head.0")
)

_BLOCK_KEY = re.compile(r"layer([1-4])\.(\d+)\.(conv|bn|downsample\.)(\d)\.(.+)")
_STEM = {"conv1.": "embedder.embedder.convolution.", "bn1.": "embedder.embedder.normalization."}
_PARTS = {"conv": "layer.{}.convolution", "bn": "layer.{}.normalization"}
_SHORTCUT = {"0": "shortcut.convolution", "1": "shortcut.normalization"}

# What the public code sets in every configuration, written out: the weights do not tell.
_PUBLIC_SETTINGS = {"stride_in_1x1": True, "dilated_c5": True, "roi_size": 14, "sampling_ratio": 1, "frozen_stages": 2}


def rename_image_key(key: str) -> str | None:
    """
    Our name for an original key, in the state dict of a [`FastRCNNFeatures`].

    Args:
        key (`str`): `image_feature_extractor.backbone.layer1.0.conv1.weight` or, without `image_feature_extractor`,
            as in torchvision's ResNet; nothing such as `module.` in front.

    Returns:
        `str`, or `None` for a key that has no place; [`explain_image_key`] says why.
    """
    if key.endswith(".num_batches_tracked"):
        return None
    if key.startswith(_IMAGE):
        key = key.replace(_ROI_HEAD, f"{_BACKBONE}layer4.", 1)
        if not key.startswith(_BACKBONE):
            return None
        key = key.removeprefix(_BACKBONE)
    for prefix, name in _STEM.items():
        if key.startswith(prefix):
            return name + key.removeprefix(prefix)
    match = _BLOCK_KEY.fullmatch(key)
    if match is None:
        return None
    stage, block, part, number, rest = match.groups()
    where = "head" if stage == "4" else f"stages.{int(stage) - 1}"
    # Numbers start at 1 in conv1 and bn1, at 0 in downsample.0.
    name = _PARTS[part].format(int(number) - 1) if part in _PARTS else _SHORTCUT.get(number, "")
    return f"{where}.{block}.{name}.{rest}"


def explain_image_key(key: str) -> str | None:
    """Why an original key of the pixel network has no place; `None` for a key that is none of its own."""
    if key.endswith(".num_batches_tracked") and rename_image_key(key.removesuffix("num_batches_tracked") + "weight"):
        return "counter of batch norm, which is frozen"
    if key.startswith(_ROI_HEAD_AGAIN):
        return "second name of roi_head_feature_extractor"
    if key.startswith("fc."):
        return "classifier of the ResNet's own pre-training"
    return None


def infer_image_config(weights: Mapping[str, torch.Tensor]) -> dict[str, Any]:
    """
    Fields of [`FastRCNNConfig`], from the shapes where they tell, as the public code sets them elsewhere.

    Args:
        weights (`Mapping[str, torch.Tensor]`): tensors under our names, without a prefix.

    Raises:
        CheckpointError: when a stage is missing.
    """
    stem = _get(weights, "embedder.embedder.convolution.weight")
    depths, sizes = [], []
    for stage in ("stages.0", "stages.1", "stages.2", "head"):
        sizes.append(_get(weights, f"{stage}.0.layer.2.convolution.weight").shape[0])
        blocks = {name.removeprefix(f"{stage}.").partition(".")[0] for name in weights if name.startswith(f"{stage}.")}
        depths.append(len(blocks))
    return {
        "num_channels": stem.shape[1],
        "embedding_size": stem.shape[0],
        "hidden_sizes": sizes,
        "depths": depths,
        **_PUBLIC_SETTINGS,
    }


def _get(weights: Mapping[str, torch.Tensor], name: str) -> torch.Tensor:
    if name not in weights:
        raise CheckpointError(
            f"the checkpoint has no tensor for {name}. Expected a ResNet of bottleneck blocks with layer1 to layer4, "
            "such as resnet101-pt-vgbua-0000.model, or an end-to-end VL-BERT checkpoint."
        )
    return weights[name]


def build_model(
    state_dict: Mapping[str, torch.Tensor], overrides: Mapping[str, Any] | None = None
) -> tuple[FastRCNNFeatures, Conversion]:
    """
    The pixel network of an original checkpoint, and the account of every tensor.

    Args:
        state_dict (`Mapping[str, torch.Tensor]`): a ResNet's weights, or those of an end-to-end VL-BERT, of which
            everything but the pixel network is left out.
        overrides (`Mapping[str, Any]`, *optional*): fields of [`FastRCNNConfig`] that win over
            [`infer_image_config`].

    Raises:
        CheckpointError: when tensors are missing or of other sizes than the configuration's.
    """
    conversion = _convert_state_dict(state_dict)
    try:
        config = FastRCNNConfig(**{**infer_image_config(conversion.weights), **(overrides or {})})
    except StrictDataclassError as error:
        raise CheckpointError(f"the configuration does not fit together: {' '.join(str(error).split())}") from error
    with torch.random.fork_rng(devices=[]):
        model = FastRCNNFeatures(config)
    _check_places(conversion.weights, model.state_dict())
    model.load_state_dict(conversion.weights)
    return model, conversion


def _convert_state_dict(state_dict: Mapping[str, torch.Tensor]) -> Conversion:
    conversion = Conversion(FastRCNNFeatures.__name__)
    end_to_end = any(key.startswith(_BACKBONE) for key in map(_strip, state_dict))
    for original, tensor in state_dict.items():
        key = _strip(original)
        name = None if end_to_end and not key.startswith(_IMAGE) else rename_image_key(key)
        if name is None:
            conversion.left_out[original] = explain_image_key(key) or "not part of the pixel network"
        elif name in conversion.weights:
            raise CheckpointError(f"{original} is there under two names; expected every tensor under one.")
        else:
            conversion.converted[original] = name
            conversion.weights[name] = tensor.float()
    check_second_head(state_dict)
    return conversion


def _strip(key: str) -> str:
    return key.removeprefix("module.")


def check_second_head(state_dict: Mapping[str, torch.Tensor]) -> None:
    """Raises `CheckpointError` when the two names of the last stage in an end-to-end checkpoint hold two things."""
    tensors = {_strip(key): tensor for key, tensor in state_dict.items()}
    for key, tensor in tensors.items():
        first = tensors.get(key.replace(_ROI_HEAD_AGAIN, _ROI_HEAD, 1))
        if key.startswith(_ROI_HEAD_AGAIN) and first is not None and not torch.equal(tensor, first):
            raise CheckpointError(
                f"{key} differs from {key.replace(_ROI_HEAD_AGAIN, _ROI_HEAD, 1)}; expected one tensor under both."
            )


def _check_places(weights: Mapping[str, torch.Tensor], places: Mapping[str, torch.Tensor]) -> None:
    for name in places:
        _get(weights, name)
    _check_known(weights, places)
    for name, tensor in weights.items():
        if tensor.shape != places[name].shape:
            raise CheckpointError(
                f"{name} has the shape {tuple(tensor.shape)} in the checkpoint, the configuration makes it "
                f"{tuple(places[name].shape)}; the file is damaged, or --config contradicts it."
            )


def _check_known(weights: Iterable[str], places: Iterable[str]) -> None:
    unknown = sorted(set(weights) - set(places))
    if unknown:
        raise CheckpointError(f"the checkpoint has {unknown[0]}, which the configuration has no place for.")


__all__ = [
    "build_model",
    "check_second_head",
    "explain_image_key",
    "infer_image_config",
    "rename_image_key",
]
