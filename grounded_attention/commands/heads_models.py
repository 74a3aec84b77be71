# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""Loads the models of `grounded-attention heads`: those that read regions, and vision-language models."""

from pathlib import Path
from typing import Any

from accelerate import PartialState
from safetensors import SafetensorError
from transformers import AutoConfig, AutoModel, AutoModelForPreTraining, AutoTokenizer

from grounded_attention.dataset_scripts.builders import BUILDERS
from grounded_attention.dataset_scripts.regions.table import RegionTable
from grounded_attention.families import FAMILIES
from grounded_attention.modeling.finite_numbers import check_finite
from grounded_attention.processing import VisualBERTProcessor
from grounded_attention.processing.sequence_layouts import check_tokenizer
from grounded_attention.training.experiments.pretrained import reads_image_tokens
from grounded_attention.training.loop.checkpoint import refuse_changed
from grounded_attention.training.recipes.adapters import load_base_model
from grounded_attention.training.recipes.config_sizes import check_sizes
from grounded_attention.utils.plain_text import first_sentences

from .choices import REGIONS
from .heads_options import Heads
from .models import ModelOptions

# Config field of transformers' models that gives the width of a region feature.
FEATURE_SIZE = {"visual_bert": "visual_embedding_dim", "lxmert": "visual_feat_dim"}
SPATIAL = 6  # x1, y1, x2, y2, width, height: the last values of VisualBERT's Flickr30K features


def load(path: str, options: Heads, loading: ModelOptions, regions: RegionTable | None) -> tuple[Any, Any]:
    """Loads a model, without its task head if it reads regions, and the processor that makes its inputs."""
    if regions is not None:
        return load_reader(path, options.tokenizer, regions, words=bool(options.ablate))
    model, processor = loading.load(path)
    return model, processor


def find_regions(options: Heads, loading: ModelOptions) -> RegionTable | None:
    """The region table that the models read; `None` for vision-language models, whose regions are image tokens."""
    model = str(options.model)
    tokens = reads_image_tokens(model)
    if tokens:
        wrong = {"tokenizer": options.tokenizer, "regions": options.regions}
    else:
        wrong = {"instruction": options.instruction, "dtype": loading.dtype.replace("float32", "")}
    if unwanted := [f"--{name}" for name, value in wrong.items() if value]:
        kind = "models that read regions" if tokens else "vision-language models"
        raise ValueError(f"{', '.join(unwanted)}: only for {kind}, and --model {model} is not one; remove it")
    if not tokens:
        if options.regions is None and options.data_dir is None:
            raise ValueError(f"--model {model} reads regions: give their table with --regions")
        return RegionTable.open(options.regions or Path(str(options.data_dir), REGIONS))
    if options.images is None and options.data in BUILDERS:
        raise ValueError(f"--model {model}: the model reads images; give their folder with --images")
    return None


def load_reader(path: str, tokenizer: str | None, regions: RegionTable, words: bool = False) -> tuple[Any, Any]:
    """Loads a checkpoint of ours, or transformers' VisualBERT or LXMERT; `words`: with the head of masked words."""
    refuse_changed(path, f"--model {path}")
    try:
        config = AutoConfig.from_pretrained(path)
        check_sizes(config.to_dict(), "config.json: ")
        if config.model_type not in (*FAMILIES, *FEATURE_SIZE):
            known = ", ".join([*FAMILIES, *FEATURE_SIZE])
            raise ValueError(
                f"model type {config.model_type} is not supported, expected one of {known}; to measure another "
                "model on transformers' attention interface, see the Python example in docs/audit.md"
            )
        processor = _processor(path, config, tokenizer, regions)
        if words and not str((config.architectures or [""])[0]).endswith("ForPreTraining"):
            kind = (config.architectures or ["it"])[0]
            raise ValueError(f"{kind} predicts no masked words, so leave --ablate out or give a pre-trained model")
        loaded: Any = load_base_model(path, AutoModelForPreTraining if words else AutoModel)
        check_finite(loaded, "its weights")
    except (OSError, ValueError, SafetensorError) as error:
        raise ValueError(f"--model {path}: {first_sentences(error)}") from error
    return loaded.eval().to(PartialState().device), processor


def _processor(path: str, config: Any, tokenizer: str | None, regions: RegionTable) -> Any:
    """The checkpoint's processor; for transformers' models a processor with the same input layout as theirs."""
    width = regions.feature_size
    if config.model_type in FAMILIES:
        processor = FAMILIES[config.model_type].processor_class.from_pretrained(path)
        if getattr(config, "vision_config", None) is None:
            _check_width(processor.region_feature_size, regions)
        return processor
    wanted = getattr(config, FEATURE_SIZE[config.model_type])
    spatial = config.model_type == "visual_bert" and wanted == width + SPATIAL
    _check_width(wanted - SPATIAL * spatial, regions)
    try:
        words = AutoTokenizer.from_pretrained(tokenizer or path)
        check_tokenizer(words, "the audit")
    except (OSError, ValueError) as error:
        hint = "" if tokenizer else "; give one with --tokenizer"
        raise ValueError(f"no tokenizer in {tokenizer or path}{hint}") from error
    if len(words) > config.vocab_size:
        raise ValueError(
            f"the tokenizer {tokenizer or path} has {len(words)} tokens, but the vocabulary of the model has "
            f"{config.vocab_size}"
        )
    return VisualBERTProcessor(words, region_feature_size=width, spatial_features=spatial)


def _check_width(wanted: int, regions: RegionTable) -> None:
    if wanted != regions.feature_size:
        found = f"--regions {regions.path} has {regions.feature_size}"
        raise ValueError(f"the model reads {wanted} values per region, but {found}")
