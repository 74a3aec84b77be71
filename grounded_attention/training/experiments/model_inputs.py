# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""Checks that a model, its processor and the data fit together."""

from typing import Any

from transformers import PreTrainedModel

from grounded_attention.dataset_scripts.regions.table import RegionTable
from grounded_attention.processing.feature_sources import feature_source
from grounded_attention.training.loop.joined_regions import JoinedRegions
from grounded_attention.training.recipes.recipe import RecipeError


def check_vocabulary(model: PreTrainedModel, processor: Any) -> None:
    """
    Checks that the model knows every token of the processor.
    """
    highest = max(processor.tokenizer.get_vocab().values(), default=0)
    known = getattr(model.config, "vocab_size", None)
    if isinstance(known, int) and highest >= known:
        raise RecipeError(
            f"the tokenizer has the token id {highest}, but the model knows ids from 0 to {known - 1} "
            "(config.json: vocab_size): give the tokenizer that the model was trained with"
        )


def check_width(model: PreTrainedModel, processor: Any, table: str, found: int) -> None:
    """
    Checks that the region features have the width that the model and the processor need.
    """
    appended = processor.model_feature_size - processor.region_feature_size
    sizes = {"config": model.config.region_feature_size - appended, "processor": processor.region_feature_size}
    for key, wanted in sizes.items():
        if found != wanted:
            beside = f" (plus {appended} that the processor appends)" if appended and key == "config" else ""
            raise RecipeError(
                f"{table} has region features of width {found}, but model.{key}.region_feature_size is {wanted}"
                f"{beside}: make them equal, or give the features that the checkpoint was trained on"
            )


def check_pixels(model: PreTrainedModel, images: str | None) -> None:
    """
    Checks that a model that reads pixels has images, and that a model that reads features has none.
    """
    reads_pixels = getattr(model.config, "vision_config", None) is not None
    if reads_pixels and images is None:
        raise RecipeError(
            "the model reads pixels (model.config.vision_config): give the folder of the images as data.images"
        )
    if images is not None and not reads_pixels:
        raise RecipeError(
            "data.images is given, but the model reads region features: remove it, or give model.config.vision_config "
            "or a checkpoint that has one"
        )


def record_features(processor: Any, regions: RegionTable | JoinedRegions | None) -> str | None:
    """
    Records in the processor which model computed the region features, if all tables have the same source.
    """
    tables = [] if regions is None else regions.tables if isinstance(regions, JoinedRegions) else [regions]
    found = [feature_source(table.provenance) for table in tables]
    if not found or found[0] is None or found.count(found[0]) < len(found):
        return None
    other = processor.feature_mismatch(found[0])
    processor.region_feature_source = found[0]
    return other
