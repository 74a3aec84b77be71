# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""Loads models by name, to look at what they attend to: a folder, or `ORG/NAME` or `ORG/NAME@REVISION` on the Hub."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from accelerate import PartialState
from safetensors import SafetensorError
from transformers import (
    MODEL_MAPPING,
    AutoConfig,
    AutoModel,
    AutoModelForImageTextToText,
    AutoProcessor,
    BitsAndBytesConfig,
    PreTrainedConfig,
)
from transformers.utils import CONFIG_NAME, cached_file, extract_commit_hash

from grounded_attention.dataset_scripts.scenes.shape_regions import SOURCE, SceneFeatures, ShapeDetector
from grounded_attention.families import FAMILIES, find_family
from grounded_attention.families.vlm import add_token_rows, load_pointer_head, load_processor
from grounded_attention.modeling.finite_numbers import check_finite
from grounded_attention.modeling.pipeline_visual_grounding import VisualGroundingPipeline
from grounded_attention.processing.image_tokens import READ_REGIONS, get_image_token_family
from grounded_attention.processing.patch_grounding import PatchGroundingProcessor
from grounded_attention.training.recipes.adapters import base_of, import_peft, load_base_model
from grounded_attention.training.recipes.model_family import check_sizes
from grounded_attention.utils.named_types import Columns, Fields
from grounded_attention.utils.plain_text import explained, first_sentences

EVERYWHERE = "auto"  # device: over all GPUs, and the memory of the machine (accelerate)
QUANTISED = {"4bit": "load_in_4bit", "8bit": "load_in_8bit"}
WRONG = (OSError, ValueError, ImportError, SafetensorError)


def split_revision(name: str) -> tuple[str, str | None]:
    """The name of a model, and the branch, tag or commit after `@`, if it has one."""
    base, at, revision = name.rpartition("@")
    if at and not Path(name).exists():
        return (base, revision)
    return (name, None)


def find_device(name: str | None, state: PartialState | None = None) -> torch.device:
    """The device of a name such as `cuda:1`, or of this process if none is given."""
    try:
        if name is None:
            device = (state or PartialState()).device
        else:
            device = torch.device(name)
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError) as error:
        why = f"torch cannot use it on this machine ({first_sentences(error)})"
        raise ValueError(f"--device {name}: {why}; leave it out, or give cpu") from error
    return device


def reads_image_tokens(name: str) -> bool:
    """Whether a model reads images as tokens, or else regions; a ValueError if it reads neither, or cannot be read."""
    with explained(f"--model {name}", OSError, ValueError):
        content, _ = PreTrainedConfig.get_config_dict(**_place(name))
        kind = content.get("model_type") if isinstance(content, dict) else None
        if not isinstance(kind, str):
            raise ValueError("config.json is not found or has no model_type, so this is no model")
        if kind in READ_REGIONS or find_family(kind) is not None:
            return False
        get_image_token_family(None, kind)
    return True


def _place(name: str) -> dict[str, str]:
    """Where the model is; for an adapter that of its base model."""
    name, revision = split_revision(name)
    base = base_of(name, on_hub=True, revision=revision)
    return {"pretrained_model_name_or_path": base, "revision": (revision if base == name else None) or "main"}


def load_vlm(
    name: str,
    *,
    dtype: str = "float32",
    device: str | None = None,
    model_type: str | None = None,
    with_language_head: bool = True,
) -> tuple[Any, PatchGroundingProcessor]:
    """Loads a vision-language model to look at, and its processor, as `look`, `point` and `rank_heads` take them.

    Args:
        name (`str`): a folder, or `ORG/NAME` or `ORG/NAME@REVISION` on the Hub; also of an adapter of PEFT, which is
            loaded with its base model.
        dtype (`str`): `bfloat16`, `float16`, `float32`; `4bit` or `8bit` quantises the weights (bitsandbytes).
        device (`str`, *optional*): such as `cpu` or `cuda:1`, by default one GPU if there is one; `auto`: over all
            GPUs, and the memory of the machine (accelerate).
        model_type (`str`, *optional*): lay out image tokens as this type of model does, for a relative of it.
        with_language_head (`bool`): without it the model answers nothing, which saves memory.

    Raises:
        ValueError: the model cannot be loaded, is of another kind, lacks weights or has weights that are no numbers.
    """
    target = find_device(None if device == EVERYWHERE else device)
    if model_type is None:
        reads_image_tokens(name)
    with explained(f"--model {name}", *WRONG):
        place = _place(name)
        source, revision = split_revision(name)
        adapted = place["pretrained_model_name_or_path"] != source
        config = AutoConfig.from_pretrained(**place, trust_remote_code=False)
        config = getattr(config, "thinker_config", config)  # of a model that also speaks
        check_sizes(config.to_dict(), "config.json: ")
        kind = model_type or config.model_type
        get_image_token_family(None, kind)
        processor = load_processor(source, revision=revision or "main")
        settings = _settings(dtype, device)

        def load(auto_class: Any) -> tuple[Any, Fields]:
            return auto_class.from_pretrained(**place, **settings, config=config, output_loading_info=True)

        # The weights of an adapter have the names of the model with its head.
        model, loading = _load(load, config, whole=with_language_head or adapted)
        load_pointer_head(model, loading["unexpected_keys"], *place.values())
        # Not every version of transformers keeps it; heads are those of the same commit.
        file = cached_file(place["pretrained_model_name_or_path"], CONFIG_NAME, revision=place["revision"])
        model.config._commit_hash = extract_commit_hash(file, None)
        add_token_rows(model, processor.tokenizer)  # an adapter may have added tokens
        if adapted:
            wrapped = import_peft().PeftModel.from_pretrained(model, source, revision=revision or "main")
            model = wrapped.get_base_model()
        if "device_map" not in settings:  # quantised weights are no numbers, and those on disk would be read
            check_finite(model, "its weights")
            model = model.to(target)
        reader = PatchGroundingProcessor(processor, kind)
    return model.eval(), reader


def _settings(dtype: str, device: str | None) -> Fields:
    """Arguments of `from_pretrained` for the floating type, quantised weights, and several devices."""
    if dtype in QUANTISED:
        return {
            "quantization_config": BitsAndBytesConfig(**{QUANTISED[dtype]: True}),
            "device_map": device or EVERYWHERE,
        }
    settings = {"dtype": getattr(torch, dtype)}
    if device == EVERYWHERE:
        return settings | {"device_map": EVERYWHERE}
    return settings


def _load(load: Callable[[Any], tuple[Any, Fields]], config: Any, whole: bool) -> tuple[Any, Fields]:
    """The model, without its language head unless it is `whole`, and what transformers reports about its weights."""
    bare = not whole and type(config) in MODEL_MAPPING
    model, loading = load(AutoModel if bare else AutoModelForImageTextToText)
    if bare and _lacks_most(model, loading):  # transformers reads LightOnOCR with its head alone
        bare, (model, loading) = False, load(AutoModelForImageTextToText)
    if not (whole or bare):
        model = model.base_model
    if _lacks_most(model, loading):
        missing = loading["missing_keys"]
        count = len(model.state_dict())
        raise ValueError(
            f"{len(missing)} of {count} weights of {type(model).__name__} are not in the checkpoint, such as "
            f"{min(missing)}: it is of another model, or damaged"
        )
    return model, loading


def _lacks_most(model: Any, loading: Columns) -> bool:
    return 2 * len(loading["missing_keys"]) > len(model.state_dict())


def load_pipeline(
    name: str,
    *,
    detector: str | None = None,
    features: str | None = None,
    queries: list[str] | None = None,
    device: str | torch.device = "cpu",
) -> VisualGroundingPipeline:
    """Loads the pipeline `visual-grounding` of a checkpoint of this project, whose weights are checked.

    Args:
        name (`str`): a folder, or a name on the Hub.
        detector (`str`, *optional*): a detector of transformers, or `scenes`, that of drawn scenes.
        features (`str`, *optional*): a region-feature network, a vision backbone, or `scenes`.
        queries (`list[str]`, *optional*): what a zero-shot detector looks for.
        device: where the model runs.

    Raises:
        ValueError: the checkpoint cannot be loaded, is of another kind, or has weights that are no numbers.
    """
    with explained(f"--model {name}", *WRONG):
        config = AutoConfig.from_pretrained(name)
        check_sizes(config.to_dict(), "config.json: ")
        if find_family(config.model_type) is None:
            known = " or ".join(FAMILIES)
            raise ValueError(f"model type {config.model_type} is not supported, expected {known}")
        model = load_base_model(name)
        processor = AutoProcessor.from_pretrained(name)
        check_finite(model, "its weights")
    parts: Fields = {
        "detector": ShapeDetector() if detector == SOURCE else detector,
        "feature_model": SceneFeatures() if features == SOURCE else features,
        "queries": queries,
    }
    given = {part: value for part, value in parts.items() if value is not None}
    return VisualGroundingPipeline(model.eval(), processor=processor, device=device, task="visual-grounding", **given)
