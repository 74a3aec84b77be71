# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""The vision-language models of transformers in a recipe: configuration, processor, weights, adapters."""

import inspect
import re
from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch import nn
from transformers import AddedToken, AutoConfig, PreTrainedModel

from grounded_attention.families import VLM
from grounded_attention.families.vlm import add_token_rows, load_pointer_head, load_processor
from grounded_attention.modeling.finite_numbers import check_finite
from grounded_attention.processing.patch_grounding import PatchGroundingProcessor
from grounded_attention.supervision.supervise import find_language_model
from grounded_attention.training.loop.side_by_side import say_once
from grounded_attention.training.recipes.adapters import base_of, import_peft
from grounded_attention.training.recipes.model_family import vision_language_type
from grounded_attention.training.recipes.recipe import Model, RecipeError, check_names, recipe_key_errors
from grounded_attention.utils.named_types import Columns, Fields

# With a checkpoint, `model.config` may only say how it is loaded.
LOADING = ("attn_implementation", "dtype")
# `PatchGroundingProcessor` gets these from the recipe's other keys.
PARTS = ("processor", "model_type")
# Special tokens that a configuration names by their ids.
TOKENS = ("image", "video", "vision_start", "vision_end", "boi", "eoi")
TOKEN_FIELDS = ("token_id", "token_index")
# The names that models give to their vision encoder.
VISION = r"\.?(vision_tower|vision_model|visual)\."


# Checks


def check_vision_language(model: Model) -> None:
    """Checks the keys of a vision-language model in a recipe."""
    model_type = vision_language_type(model)
    if model.bert or model.family_config:
        key = "bert" if model.bert else "family_config"
        raise RecipeError(f"model.{key} is not for {VLM.title}s ({model_type}): remove it")
    check_adapter(model)
    if model.source:
        for name in model.config:
            if name not in LOADING:
                raise RecipeError(
                    f"model.config.{name}: a checkpoint keeps its configuration; only {' and '.join(LOADING)} may be "
                    "given with model.source"
                )
    else:
        _check_config({k: v for k, v in model.config.items() if k not in LOADING}, model_type, "model.config.")
        if not model.tokenizer:
            raise RecipeError("model.tokenizer is empty: give the directory or Hub id of the model's processor")
    known = list(inspect.signature(PatchGroundingProcessor).parameters)
    check_names(model.processor, [name for name in known if name not in PARTS], "model.processor.")


def _check_config(fields: Columns, model_type: str, prefix: str) -> None:
    """Checks the names of fields, also of the configurations inside."""
    with recipe_key_errors(f"{prefix}model_type"):
        config = AutoConfig.for_model(model_type)
    known = ["model_type", *config.to_dict(), *config.attribute_map]
    # Models read `hidden_size` of their vision encoder; one whose stages have several needs it for the last.
    check_names(fields, [*known, "hidden_size"] if "hidden_sizes" in known else known, prefix)
    for name, inner in config.sub_configs.items():
        inner_fields = fields.get(name)
        if isinstance(inner_fields, Mapping):
            default = getattr(config, name, None)
            inner_type = inner_fields.get("model_type") or getattr(default, "model_type", None) or inner.model_type
            _check_config(inner_fields, inner_type, f"{prefix}{name}.")


# Making


def make_vlm_processor(model: Model) -> PatchGroundingProcessor:
    """Loads the processor of `model.tokenizer` or `model.source`, and wraps it."""
    key, place = ("tokenizer", model.tokenizer) if model.tokenizer else ("source", model.source)
    with recipe_key_errors(f"model.{key} {place}"):
        processor = load_processor(place)
    known = processor.tokenizer.get_vocab()
    for token in model.tokens:
        if not token.strip() or (token in known and token not in processor.tokenizer.get_added_vocab()):
            raise RecipeError(f"model.tokens: {token!r} is no new token; give a name in brackets, such as <point>")
    processor.tokenizer.add_tokens([AddedToken(token, special=True) for token in model.tokens])
    with recipe_key_errors("model.processor"):
        return PatchGroundingProcessor(processor, vision_language_type(model), **model.processor)


def make_vlm(model: Model, processor: PatchGroundingProcessor) -> Any:
    """Makes the model of a recipe: a checkpoint, with an adapter if the recipe has one, or random weights."""
    if not model.source:
        return _freeze(_new(model, processor), model.freeze)
    network, loading = load_vlm(model)
    if loading["missing_keys"]:
        missing = min(loading["missing_keys"])
        raise RecipeError(f"model.source {model.source}: weights are missing, such as {missing}")
    if model.tokens:
        known = load_processor(model.tokenizer or model.source).tokenizer.get_vocab()
    else:
        known = {}
    ids = processor.tokenizer.convert_tokens_to_ids(model.tokens) if model.tokens else []
    new = [row for token, row in zip(model.tokens, ids, strict=True) if token not in known]
    add_token_rows(network, processor.tokenizer)
    for embeddings in (network.get_input_embeddings(), network.get_output_embeddings()):
        weight = getattr(embeddings, "weight", None)
        if new and weight is not None:  # a new token begins as the mean of the others
            with torch.no_grad():
                weight[new] = weight[: min(new)].float().mean(0).to(weight)
    if model.adapter:
        options = {"trainable_token_indices": ids} if ids else {}
        return add_lora(network, {**options, **model.adapter[LORA]}, language_layers(network))
    return _freeze(network, model.freeze)


def _new(model: Model, processor: PatchGroundingProcessor) -> PreTrainedModel:
    model_type = vision_language_type(model)
    fields = {key: value for key, value in model.config.items() if key not in (*LOADING, "model_type")}
    with recipe_key_errors("model.config"):
        # The vocabulary size and the special tokens of a new model, where the recipe does not give them.
        tokenizer = processor.tokenizer
        known = VLM.config_class(model_type)().to_dict()
        ids = {name: getattr(tokenizer, f"{name}_token_id", None) for name in TOKENS}
        ids["image"] = tokenizer.convert_tokens_to_ids(processor.family.image_token(processor.processor))
        token_fields: Fields = {}
        for name in TOKENS:
            for end in TOKEN_FIELDS:
                if f"{name}_{end}" in known and f"{name}_{end}" not in fields and ids[name] is not None:
                    token_fields[f"{name}_{end}"] = ids[name]
        text = dict(fields.get("text_config") or {})
        words = {f"{name}_token_id": getattr(tokenizer, f"{name}_token_id") for name in ("pad", "bos", "eos")}
        token_fields["text_config"] = {"vocab_size": len(tokenizer), **words, **text}
        config = AutoConfig.for_model(model_type, **{**fields, **token_fields})
        loading = {key: value for key, value in model.config.items() if key in LOADING}
        return VLM.model_class(model_type)._from_config(config, **loading)


def load_vlm(model: Model) -> tuple[Any, Fields]:
    """Loads the checkpoint `model.source`, a folder with an adapter with its base model; returns transformers' loading
    info too."""
    # Small steps vanish in 16 bits. Frozen weights keep the type of their file.
    loading = {"dtype": "auto" if model.adapter else "float32", **model.config}
    model_class = VLM.model_class(vision_language_type(model))
    source = str(model.source)
    with recipe_key_errors(f"model.source {source}"):
        loaded: Any = model_class.from_pretrained(base_of(source), output_loading_info=True, **loading)
        network = loaded[0]
        load_pointer_head(network, loaded[1]["unexpected_keys"], base_of(source))
        if base_of(source) != source:
            add_token_rows(network, load_processor(model.tokenizer or source).tokenizer)
            network = import_peft().PeftModel.from_pretrained(network, source)
        check_finite(network, source)
    return network, loaded[1]


def language_layers(model: PreTrainedModel) -> str:
    """The name of the module below which the layers of the language model are."""
    language_model = find_language_model(model)
    return next(f"{name}.layers" for name, module in model.named_modules() if module is language_model)


def _freeze(model: PreTrainedModel, patterns: list) -> PreTrainedModel:
    """Turns off the gradients of the weights that a pattern matches."""
    for pattern in patterns:
        with recipe_key_errors(f"model.freeze: {pattern!r} is not a regular expression"):
            compiled = re.compile(VISION if pattern == "vision" else pattern)
        weights = [weight for name, weight in model.named_parameters() if compiled.search(name)]
        if not weights:
            raise RecipeError(f"model.freeze: {pattern!r} matches no weight of {type(model).__name__}")
        for weight in weights:
            weight.requires_grad_(False)
    return model


LORA = "lora"


def check_adapter(model: Model) -> None:
    """Checks `model.adapter`, and that `model.source` is no adapter itself."""
    if model.source and base_of(model.source) != model.source:
        raise RecipeError(
            f"model.source {model.source} contains an adapter of {base_of(model.source)}: give that model, or the "
            "result of merge_and_unload"
        )
    if not model.adapter:
        return
    if not model.source:
        raise RecipeError("model.adapter changes the weights of a checkpoint: give model.source, or remove it")
    if model.freeze:
        raise RecipeError("model.freeze has no effect with model.adapter, which trains the adapter alone: remove it")


def add_lora(model: PreTrainedModel, options: Columns, prefix: str, whole: Iterable[str] = ()) -> Any:
    """Adds a LoRA to a model and prints how many parameters are trained."""
    settings = {"target_modules": linear_layers(model, prefix), **options}
    if whole:
        settings["modules_to_save"] = sorted({*whole, *(options.get("modules_to_save") or ())})
    with recipe_key_errors(f"model.adapter.{LORA}"):
        adapted = import_peft().get_peft_model(model, import_peft().LoraConfig(**settings))
    trained, total = adapted.get_nb_trainable_parameters()
    say_once(f"LoRA: {trained:,} of {total:,} parameters are trained ({trained / total:.1%})")
    return adapted


def linear_layers(model: nn.Module, prefix: str) -> str:
    """The linear layers below a module, as a regular expression for `LoraConfig(target_modules=...)`."""
    names = [name for name, module in model.named_modules() if type(module).__name__ == "Linear"]
    ends = {name.rpartition(".")[2] for name in names if name.startswith(f"{prefix}.")}
    return rf"{re.escape(prefix)}\..*\.({'|'.join(sorted(ends))})"


def adapt_family(model: Any, missing: Iterable[str], options: Columns) -> Any:
    """Adds a LoRA to a model of one of the project's families: by default to all linear layers of its encoder."""
    if model.get_output_embeddings() is not None:
        raise RecipeError(
            f"model.adapter: {type(model).__name__} predicts words with the weights of its word embeddings, which a "
            "LoRA leaves unchanged: train it without an adapter"
        )
    base = model.base_model_prefix
    encoder = f"{model.base_model_prefix}.encoder"
    absent = [name for name in missing if name.startswith(f"{encoder}.")]
    if absent:
        raise RecipeError(f"model.adapter: the checkpoint has no weight {min(absent)}, which a LoRA cannot replace")
    heads = set()
    for name, child in model.named_children():
        if name != base and any(True for _ in child.parameters()):
            heads.add(name)
    new = {name.rpartition(".")[0] for name in missing if name.startswith(f"{base}.")}
    # The configuration of the trained model is saved beside the adapter: that of the checkpoint has other heads.
    model.config.architectures = [type(model).__name__]
    return add_lora(model, options, encoder, whole=heads | new)
