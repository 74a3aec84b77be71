# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""Region-feature models by name."""

from transformers import AutoConfig

from .modeling_backbone_regions import BackboneRegionFeatures
from .modeling_fast_rcnn import FastRCNNFeatures

# Model type -> class of this package. Any other model type is loaded as a backbone.
_CLASSES: dict[str, type[FastRCNNFeatures] | type[BackboneRegionFeatures]] = {
    "fast_rcnn": FastRCNNFeatures,
    "backbone_regions": BackboneRegionFeatures,
}


def load_region_features(pretrained_model_name_or_path: str, **kwargs) -> FastRCNNFeatures | BackboneRegionFeatures:
    """
    Loads the model that computes region features from pixels and boxes, in evaluation mode.

    Args:
        pretrained_model_name_or_path (`str`): directory or Hub id of a [`FastRCNNFeatures`], of a
            [`BackboneRegionFeatures`] or of any vision model of transformers.
        kwargs: arguments of `from_pretrained`, such as `dtype` or `revision`.

    Returns:
        [`FastRCNNFeatures`] or [`BackboneRegionFeatures`]: the model.

    Raises:
        OSError: if there is no such model.
        ValueError: if it is not a vision model.
    """
    where = {name: kwargs[name] for name in ("revision", "token", "cache_dir", "subfolder") if name in kwargs}
    config = AutoConfig.from_pretrained(pretrained_model_name_or_path, **where)
    if config.model_type in _CLASSES:
        return _CLASSES[config.model_type].from_pretrained(pretrained_model_name_or_path, **kwargs)
    return BackboneRegionFeatures.from_backbone(pretrained_model_name_or_path, **kwargs)
