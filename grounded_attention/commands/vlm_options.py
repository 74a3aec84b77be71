"""Shared by commands that run a vision-language model: its options, the model and its processor."""

import argparse
from typing import Any

from accelerate import PartialState
from safetensors import SafetensorError
from transformers import AutoConfig, AutoModelForImageTextToText, AutoProcessor

from grounded_attention.processing.image_tokens import IMAGE_TOKEN_FAMILIES
from grounded_attention.processing.patch_grounding import PatchGroundingProcessor
from grounded_attention.processing.region_detection import first_line
from grounded_attention.training.recipes.number_checks import check_sizes
from grounded_attention.utils.finite_weights import check_finite

from .device_options import DTYPES, add_device_options, find_device

BACK_ENDS = ("sdpa", "eager", "flash_attention_2")


def add_vlm_options(parser: argparse.ArgumentParser) -> None:
    """Adds `--revision`, `--attention`, `--device` and `--dtype`."""
    add = parser.add_argument
    add("--revision", metavar="NAME", help="branch, tag or commit of the model on the Hub")
    add("--attention", choices=BACK_ENDS, default="sdpa", help="attention back end (default: %(default)s)")
    add_device_options(parser)


def is_vision_language_model(name: str, revision: str | None) -> bool:
    """Whether a model reads images as tokens; False if it cannot be read, for its own loader finds the error."""
    try:
        return AutoConfig.from_pretrained(name, revision=revision or "main").model_type in IMAGE_TOKEN_FAMILIES
    except (OSError, ValueError):
        return False


def load_vlm(
    options: argparse.Namespace, auto_class: Any = AutoModelForImageTextToText
) -> tuple[Any, PatchGroundingProcessor]:
    """
    Loads the model of `--model` in evaluation mode, and its processor.

    Args:
        options (`argparse.Namespace`): the options of `add_vlm_options`.
        auto_class (`Any`, *optional*): `AutoModel` for a model without its language head.

    Raises:
        ValueError: if there is no such model, its image tokens are not known, or its weights are damaged.
    """
    name, given = options.model, {"revision": options.revision or "main"}
    device = find_device(options.device, PartialState())
    try:
        config = AutoConfig.from_pretrained(name, **given)
        check_sizes(config.to_dict(), "config.json: ")
        if config.model_type not in IMAGE_TOKEN_FAMILIES:
            known = ", ".join(IMAGE_TOKEN_FAMILIES)
            raise ValueError(f"model type {config.model_type} is not known to read images as tokens; known: {known}")
        processor = AutoProcessor.from_pretrained(name, **given)
        if not hasattr(processor, "image_processor"):  # without a usable processor, transformers gives a tokenizer
            raise ValueError("it has no processor for images and text; save the processor beside the model")
        model = auto_class.from_pretrained(
            name, dtype=DTYPES[options.dtype], attn_implementation=options.attention, **given
        )
        check_finite(model, "its weights")
        return model.eval().to(device), PatchGroundingProcessor(processor, config.model_type)
    except (OSError, ValueError, ImportError, SafetensorError) as error:
        raise ValueError(f"--model {name}: {first_line(error)}") from error
