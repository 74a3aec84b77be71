# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""Makes or loads the model and the processor of a recipe."""

import inspect
from collections.abc import Iterable
from copy import deepcopy
from pathlib import Path
from typing import Any

import torch
from transformers import AutoTokenizer, BertTokenizer, PreTrainedModel

from grounded_attention.dataset_scripts.regions.table import RegionTable
from grounded_attention.families import FAMILIES
from grounded_attention.modeling.finite_numbers import check_finite
from grounded_attention.modeling.pretraining_handover import check_shapes, describe_loading
from grounded_attention.modeling.task_config import plain_answer
from grounded_attention.processing import FastRCNNImageProcessor
from grounded_attention.processing.grounded_batch import fit_text_length
from grounded_attention.processing.processing_grounded import GroundedProcessor, feature_source
from grounded_attention.tasks.answering import read_answers
from grounded_attention.training.loop.joins import JoinedRegions
from grounded_attention.training.loop.side_by_side import say_once
from grounded_attention.training.recipes.adapters import is_adapter, load_merged, quiet_loading
from grounded_attention.training.recipes.model_family import (
    family_name,
    head_class,
    is_vision_language,
    processor_class,
)
from grounded_attention.training.recipes.recipe import Model, RecipeError, check_names, recipe_key_errors
from grounded_attention.utils.bounded_files import read_text
from grounded_attention.utils.named_types import Columns, Fields

from .arguments import field_names
from .vision_language import (
    LORA,
    adapt_family,
    check_adapter,
    check_vision_language,
    load_vlm,
    make_vlm,
    make_vlm_processor,
)

# Processor arguments that a recipe sets with another key: `model.tokenizer`.
PARTS = ("tokenizer",)
WIDTH = "region_feature_size"  # of every family, whatever its own name of it


def check_model(model: Model, head: str) -> None:
    """Checks that the family has the head, and that config fields and processor arguments are known."""
    head_class(head, model)
    if is_vision_language(model):
        check_vision_language(model)
        return
    for key in ("freeze", "tokens"):
        if getattr(model, key):
            raise RecipeError(f"model.{key} is only for vision-language models (model.family=vlm): remove it")
    check_adapter(model)
    config_class: Any = FAMILIES[family_name(model)].config_class
    fields = [*field_names(config_class), *config_class.attribute_map, "attn_implementation"]
    check_names(model.config, fields, "model.config.")
    known = list(inspect.signature(processor_class(model)).parameters)
    check_names(model.processor, [name for name in known if name not in PARTS], "model.processor.")


def make_processor(model: Model, rows: Any = None) -> Any:
    """Loads the processor of `model.source`, or makes a new one with the tokenizer of the recipe, or of the words of
    the training rows.
    """
    if is_vision_language(model):
        return make_vlm_processor(model)
    if model.tokenizer is None and model.source:
        with recipe_key_errors(f"model.source {model.source}"):
            return processor_class(model).from_pretrained(model.source, **model.processor)
    name = model.tokenizer or model.bert
    if not name and (rows is None or "text" not in rows.column_names):
        raise RecipeError("model.tokenizer is empty: give a directory, a Hub id or a vocab.txt")
    with recipe_key_errors(f"model.tokenizer {name}"):
        tokenizer = load_tokenizer(name) if name else tokenizer_of(rows["text"])
    with recipe_key_errors("model.processor"):
        pixels = {"image_processor": FastRCNNImageProcessor()} if model.config.get("vision_config") else {}
        return processor_class(model)(tokenizer, **{**pixels, **model.processor})


def load_tokenizer(name: str) -> Any:
    """Loads a tokenizer from a `vocab.txt`, a directory or the Hub."""
    if Path(name).is_file():
        words = read_text(name).splitlines()
        return BertTokenizer(vocab={word: index for index, word in enumerate(words)})
    return AutoTokenizer.from_pretrained(name)


def tokenizer_of(texts: Iterable[str]) -> BertTokenizer:
    """A WordPiece tokenizer that has every word of texts whole, and spells others by the characters of these."""
    special = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
    backend = BertTokenizer(vocab={token: index for index, token in enumerate(special)}).backend_tokenizer
    words: set[str] = set()
    for text in texts:
        split = backend.pre_tokenizer.pre_tokenize_str(backend.normalizer.normalize_str(text))
        words.update(word for word, _ in split)
    letters = {letter for word in words for letter in word}
    known = sorted(words | letters | {f"##{letter}" for letter in letters})
    return BertTokenizer(vocab={token: index for index, token in enumerate([*special, *known])})


def make_model(head: str, model: Model, processor: Any, **config: Any) -> PreTrainedModel:
    """Makes the model of a recipe: from a checkpoint, from a BERT, or with random weights."""
    model_class = head_class(head, model)
    if is_vision_language(model):
        return make_vlm(model, processor)
    if model.source:
        network, loading = load_model(model_class, model, **config)
        say_once(describe_loading(network, model.source, loading))
        if model.adapter:
            return adapt_family(network, loading["missing_keys"], model.adapter[LORA])
        return network
    width = {} if _has_width(model) else {WIDTH: processor.model_feature_size}
    fields = {**width, **model.config, **_own_fields(model_class, config)}
    with recipe_key_errors("model"):
        if model.bert:
            return model_class.from_bert(model.bert, **fields)  # type: ignore[attr-defined]
        config_class: Any = FAMILIES[family_name(model)].config_class
        return model_class(config_class(**{"vocab_size": len(processor.tokenizer), **fields}))


def load_model(model_class: type[PreTrainedModel], model: Model, **config: Any) -> tuple[PreTrainedModel, Fields]:
    """Loads the checkpoint `model.source` as a model of a class; returns transformers' loading info too."""
    if is_vision_language(model):
        return load_vlm(model)
    fields = {**model.config, **_own_fields(model_class, config), **({"bert": model.bert} if model.bert else {})}
    with recipe_key_errors(f"model.source {model.source}"), quiet_loading():
        if isinstance(fields.get("qa_answers"), str):
            fields["qa_answers"] = read_answers(fields["qa_answers"], ())
        if is_adapter(str(model.source)):
            merged = load_merged(str(model.source))
            check_finite(merged, str(model.source))
            return merged, {"missing_keys": set()}
        loaded: Any = model_class.from_pretrained(
            model.source, **fields, ignore_mismatched_sizes=True, output_loading_info=True
        )
        if "answers" in fields:
            answers = other_answers(loaded[0], str(model.source))
        else:
            answers = None
        of_answers = answer_weights(loaded[0]) if answers else set()
        check_shapes(model.source, (each for each in loaded[1]["mismatched_keys"] if each[0] not in of_answers))
        if answers:
            say_once(take_answers(loaded[0], str(model.source), answers))
        check_finite(loaded[0], str(model.source))
    return loaded


def _own_fields(model_class: type[PreTrainedModel], fields: Columns) -> Fields:
    """The config fields of a task or method that the family has; others it always behaves by, or does not need."""
    return {name: value for name, value in fields.items() if hasattr(model_class.config_class, name)}


def answer_weights(model: PreTrainedModel) -> set[str]:
    """The names of the weights with one row for each answer."""
    config = deepcopy(model.config)
    config.answers = [*config.answers, "\0"]
    with torch.device("meta"):
        longer = type(model)(config).state_dict()
    return {name for name, weight in model.state_dict().items() if longer[name].shape != weight.shape}


def other_answers(model: PreTrainedModel, checkpoint: str) -> list[str] | None:
    """The answers of a checkpoint of the same class, if they are not those of the model; `None` if they are."""
    config: Any = type(model).config_class
    theirs = config.from_pretrained(checkpoint)
    same_class = type(model).__name__ in (theirs.architectures or ())
    if same_class and list(theirs.answers) != list(model.config.answers):
        return list(theirs.answers)
    return None


@torch.no_grad()
def take_answers(model: PreTrainedModel, checkpoint: str, answers: list[str]) -> str:
    """Copies the rows of the answers that a checkpoint has too, and initialises the rows of other answers."""
    rows = {plain_answer(answer): row for row, answer in reversed(list(enumerate(answers)))}
    wanted = [plain_answer(answer) for answer in model.config.answers]
    pairs = [(row, rows[answer]) for row, answer in enumerate(wanted) if answer in rows]
    names = answer_weights(model)
    for module in sorted({name.rpartition(".")[0] for name in names}):
        for parameter in model.get_submodule(module).parameters(recurse=False):
            parameter._is_hf_initialized = False  # type: ignore[attr-defined]
        model._init_weights(model.get_submodule(module))
    source: Any = type(model).from_pretrained(checkpoint)
    theirs = source.state_dict()
    mine = model.state_dict()
    to = [pair[0] for pair in pairs]
    of = [pair[1] for pair in pairs]
    for name in names:
        mine[name][to] = theirs[name][of].to(mine[name])
    return f"{checkpoint} has other answers: took the weights of {len(pairs)} of {len(wanted)}, the others are new"


def fit_tokenizer(model: PreTrainedModel, processor: Any) -> None:
    """Checks that the model knows every token of the processor, which then cuts texts where the model ends."""
    if isinstance(processor, GroundedProcessor):
        fit_text_length(processor, model.config)
    highest = max(processor.tokenizer.get_vocab().values(), default=0)
    known = getattr(model.config, "vocab_size", None)
    if isinstance(known, int) and highest >= known:
        raise RecipeError(
            f"the tokenizer has the token id {highest}, but the model knows ids from 0 to {known - 1} "
            "(config.json: vocab_size): give the tokenizer that the model was trained with"
        )


def check_width(model: PreTrainedModel, processor: Any, table: str, width: int) -> None:
    """Checks that the region features have the width that the model and the processor need."""
    appended = processor.model_feature_size - processor.region_feature_size
    sizes = {"config": model.config.region_feature_size - appended, "processor": processor.region_feature_size}
    for key, wanted in sizes.items():
        if width != wanted:
            beside = f" (plus {appended} that the processor appends)" if appended and key == "config" else ""
            raise RecipeError(
                f"{table} has region features of width {width}, but model.{key}.region_feature_size is {wanted}"
                f"{beside}: make them equal, or give the features that the checkpoint was trained on"
            )


def fit_width(model: Model, processor: Any, regions: Any) -> None:
    """Gives a new processor the width of the region features if the recipe says none; a new model takes it."""
    if regions is not None and not (model.source or is_vision_language(model) or WIDTH in model.processor):
        if not _has_width(model):
            processor.region_feature_size = regions.feature_size


def _has_width(model: Model) -> bool:
    config_class: Any = FAMILIES[family_name(model)].config_class
    return bool({WIDTH, config_class.attribute_map.get(WIDTH)} & model.config.keys())


def check_pixels(model: PreTrainedModel, images: str | None) -> None:
    """Checks that a model that reads pixels has images, and that a model that reads features has none."""
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
    """Records in the processor which model computed the region features, if all tables have the same source."""
    if regions is None:
        tables = []
    else:
        tables = regions.tables if isinstance(regions, JoinedRegions) else [regions]
    sources = [feature_source(table.provenance) for table in tables]
    if not sources or sources[0] is None or sources.count(sources[0]) < len(sources):
        return None
    other = processor.feature_mismatch(sources[0])
    processor.region_feature_source = sources[0]
    return other
