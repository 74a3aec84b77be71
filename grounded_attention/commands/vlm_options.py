"""Shared by commands that run a vision-language model: its options, the model and its processor."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Any

from safetensors import SafetensorError

from grounded_attention.utils.plain_text import first_sentences

from .device_options import add_device_options, find_device

if TYPE_CHECKING:
    from collections.abc import Mapping

    from grounded_attention.processing.patch_grounding import PatchGroundingProcessor

EVERYWHERE = "auto"  # `--device`: over all GPUs, and the memory of the machine (accelerate)
BITS = ("4bit", "8bit")


def add_vlm_options(parser: argparse.ArgumentParser) -> None:
    """Adds the options that [`load_vlm`] reads, and those of the device."""
    add = parser.add_argument
    add("--revision", metavar="NAME", help="branch, tag or commit of the model on the Hub")
    add("--model-type", metavar="TYPE", help="lay out image tokens as this type of model does, for a relative of it")
    add("--adapter", metavar="NAME_OR_DIR", help="PEFT adapter on --model; --model itself may be an adapter too")
    add("--load-in", choices=BITS, help="quantise the model with bitsandbytes while it is loaded")
    add_device_options(parser, "; auto: over all GPUs, and the memory of the machine (accelerate)", "--device-map")


def default_options(**known: Any) -> argparse.Namespace:
    """What the options of `add_vlm_options` are if none is given, and what is known of them."""
    parser = argparse.ArgumentParser()
    add_vlm_options(parser)
    return parser.parse_args([], argparse.Namespace(**known))


def reads_image_tokens(options: argparse.Namespace) -> bool:
    """Whether the model of `--model` reads images as tokens, or else regions; a ValueError if it reads neither."""
    from grounded_attention.families import find_family
    from grounded_attention.processing.image_tokens import READ_REGIONS, get_image_token_family

    kind = options.model_type or _read_model_type(options.model, options.revision)
    if kind in READ_REGIONS or find_family(kind) is not None:
        return False
    try:
        get_image_token_family(None, kind)
    except ValueError as error:
        raise ValueError(f"--model {options.model}: {error}") from None
    return True


def _read_model_type(name: str, revision: str | None) -> str:
    """The model type in `config.json`, of an adapter's base model if it is one; a ValueError if it cannot be read."""
    from transformers import PreTrainedConfig

    from grounded_attention.training.recipes.adapters import base_of

    try:
        base = base_of(name, on_hub=True, revision=revision)
        place = {"revision": (revision if base == name else None) or "main"}
        content, _ = PreTrainedConfig.get_config_dict(base, **place)
    except (OSError, ValueError) as error:
        raise ValueError(f"--model {name}: {first_sentences(error)}") from error
    kind = content.get("model_type") if isinstance(content, dict) else None
    if not isinstance(kind, str):
        raise ValueError(f"--model {name}: config.json is not found or has no model_type, so this is no model")
    return kind


def _read_config(name: str, revision: str | None) -> tuple[dict[str, Any], Any]:
    """Name and revision of the model, which for an adapter are those of its base model; and its configuration."""
    from transformers import AutoConfig

    from grounded_attention.training.recipes.adapters import base_of

    base = base_of(name, on_hub=True, revision=revision)
    place = {"pretrained_model_name_or_path": base, "revision": (revision if base == name else None) or "main"}
    return place, AutoConfig.from_pretrained(**place)


def load_vlm(options: argparse.Namespace, with_language_head: bool = True) -> tuple[Any, PatchGroundingProcessor]:
    """Loads the model of `--model` in evaluation mode, and its processor; an adapter of PEFT with its base model."""
    import torch
    from accelerate import PartialState
    from transformers import MODEL_MAPPING, AutoModel, AutoModelForImageTextToText

    from grounded_attention.families.vlm import add_token_rows, load_pointer_head, load_processor
    from grounded_attention.heads.atlas import find_revision
    from grounded_attention.modeling.finite_numbers import check_finite
    from grounded_attention.processing.image_tokens import get_image_token_family
    from grounded_attention.processing.patch_grounding import PatchGroundingProcessor
    from grounded_attention.training.recipes.config_sizes import check_sizes

    # What commands without these options leave out.
    options = argparse.Namespace(**{**dict.fromkeys(("load_in", "adapter", "model_type")), **vars(options)})
    name = options.model
    device = find_device(None if options.device == EVERYWHERE else options.device, PartialState())
    try:
        base, config = _read_config(name, options.revision)
        adapted = base["pretrained_model_name_or_path"] != name
        check_sizes(config.to_dict(), "config.json: ")
        kind = options.model_type or config.model_type
        get_image_token_family(None, kind)
        processor = load_processor(name, revision=options.revision or "main")
        # The weights of an adapter have the names of the model with its head.
        whole = with_language_head or adapted or options.adapter is not None
        settings = {"dtype": getattr(torch, options.dtype)}
        placed = _places(options)

        def load(auto_class: Any) -> tuple[Any, dict[str, Any]]:
            return auto_class.from_pretrained(**base, **settings, **placed, output_loading_info=True)

        bare = not whole and type(config) in MODEL_MAPPING
        model, loading = load(AutoModel if bare else AutoModelForImageTextToText)
        if bare and _lacks_most(model, loading):  # transformers reads LightOnOCR with its head alone
            bare, (model, loading) = False, load(AutoModelForImageTextToText)
        if not (whole or bare):
            model = model.base_model
        _refuse_missing(model, loading)
        load_pointer_head(model, loading["unexpected_keys"], *base.values())
        # Not every version of transformers keeps it; heads are those of the same commit.
        model.config._commit_hash = find_revision(base["pretrained_model_name_or_path"], base["revision"])
        add_token_rows(model, processor.tokenizer)  # an adapter may have added tokens
        for adapter, revision in ((name if adapted else None, options.revision), (options.adapter, None)):
            model = model if adapter is None else _add_adapter(model, adapter, revision)
        if not placed:  # quantised weights are no numbers, and those on disk would be read
            check_finite(model, "its weights")
            model = model.to(device)
        return model.eval(), PatchGroundingProcessor(processor, kind)
    except (OSError, ValueError, ImportError, SafetensorError) as error:
        raise ValueError(f"--model {name}: {first_sentences(error)}") from error


def _lacks_most(model: Any, loading: Mapping[str, Any]) -> bool:
    return 2 * len(loading["missing_keys"]) > len(model.state_dict())


def _refuse_missing(model: Any, loading: Mapping[str, Any]) -> None:
    """Raises ValueError if a checkpoint has few of the model's weights; transformers reports single ones."""
    if _lacks_most(model, loading):
        missing, count = loading["missing_keys"], len(model.state_dict())
        raise ValueError(
            f"{len(missing)} of {count} weights of {type(model).__name__} are not in the checkpoint, such as "
            f"{min(missing)}: it is of another model, or damaged"
        )


def heads_beside(options: argparse.Namespace) -> Any:
    """The chosen heads beside `--adapter` if it has any, else those beside `--model`, which may be an adapter."""
    from grounded_attention.heads.heads_file import ChosenHeads, find_file

    if options.adapter is not None and find_file(options.adapter) is not None:
        return ChosenHeads.of_model(options.adapter)
    return ChosenHeads.of_model(options.model, options.revision)


def _places(options: argparse.Namespace) -> dict[str, Any]:
    """Arguments of `from_pretrained` for `--load-in` and `--device auto`."""
    from transformers import BitsAndBytesConfig

    arguments: dict[str, Any] = {}
    if options.load_in is not None:
        arguments["quantization_config"] = BitsAndBytesConfig(**{f"load_in_{options.load_in}": True})
    if options.device == EVERYWHERE or arguments:
        arguments["device_map"] = options.device or EVERYWHERE
    return arguments


def _add_adapter(model: Any, name: str, revision: str | None) -> Any:
    """The model with the weights of an adapter in its layers, without the wrapper of PEFT."""
    try:
        from peft import PeftModel
    except ImportError as error:
        raise ValueError("an adapter needs PEFT: pip install 'grounded-attention[vlm]'") from error
    return PeftModel.from_pretrained(model, name, revision=revision or "main").get_base_model()


def read_heads(text: str) -> Any:
    """The value of --heads: auto, all, a layer, pairs such as 14-3,20-0, or a file."""
    if text.isdecimal():
        return int(text)
    pairs = [part.strip().split("-") for part in text.split(",")]
    if all(len(pair) == 2 and all(each.isdecimal() for each in pair) for pair in pairs):
        return [(int(layer), int(head)) for layer, head in pairs]
    return text
