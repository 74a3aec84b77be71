# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""Makes the data, the processor, the model and the training arguments of a recipe."""

import dataclasses
import inspect
import types
import typing
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

import datasets
import torch
import transformers
from accelerate import PartialState
from transformers import AutoTokenizer, BertTokenizer, PreTrainedModel

from grounded_attention.dataset_scripts.builders import BUILDERS
from grounded_attention.dataset_scripts.hub.pull_rows import RemoteRows, find_rows, pull_rows
from grounded_attention.dataset_scripts.pseudo_labels.table import PseudoLabelTable
from grounded_attention.dataset_scripts.regions.hub import is_on_hub
from grounded_attention.dataset_scripts.regions.table import RegionTable
from grounded_attention.dataset_scripts.scenes.dataset import write_scenes
from grounded_attention.families import FAMILIES
from grounded_attention.modeling.pretraining_handover import check_shapes, describe_loading
from grounded_attention.processing import FastRCNNImageProcessor
from grounded_attention.processing.feature_sources import feature_source
from grounded_attention.tasks import TASKS, Task
from grounded_attention.training.loop.data import check_regions, limit_rows
from grounded_attention.training.loop.finite_steps import SKIP
from grounded_attention.training.loop.joined_labels import check_label_rows
from grounded_attention.training.loop.joined_regions import JoinedRegions
from grounded_attention.training.loop.learning_rates import MAPPING, GroundingTrainingArguments, check_mapping
from grounded_attention.training.loop.length_batches import LENGTH, add_lengths
from grounded_attention.training.recipes.early_checks import check_trackers
from grounded_attention.training.recipes.methods import needs_grounding
from grounded_attention.training.recipes.model_family import (
    family_name,
    head_class,
    is_vision_language,
    processor_class,
)
from grounded_attention.training.recipes.number_checks import check_numbers, check_sizes
from grounded_attention.training.recipes.recipe import (
    Data,
    Model,
    Recipe,
    RecipeError,
    check_names,
    convert,
    recipe_key_errors,
    without_hub,
)
from grounded_attention.utils.bounded_files import read_text
from grounded_attention.utils.finite_weights import check_finite
from grounded_attention.utils.safe_paths import check_weight_index

from .answer_rows import answer_weights, other_answers, take_answers
from .vision_language import check_vision_language, load_vlm, make_vlm, make_vlm_processor

# Processor arguments that a recipe sets with another key: `model.tokenizer`.
PARTS = ("tokenizer",)


@dataclasses.dataclass
class PreparedData:
    """
    The data for training and evaluation.

    Args:
        splits (`dict[str, Dataset]`): split -> rows.
        regions (`RegionTable | JoinedRegions | None`): region table of training; `None` for text alone.
        texts (`Dataset`, *optional*): rows of a text corpus without images.
        images (`str`, *optional*): folder of images.
        tracks (`dict[str, RegionTable | JoinedRegions]`, *optional*): name -> region table that replaces `regions` in
            an evaluation.
        options (`Any`, *optional*): options of the task, completed from the rows.
        pulled (`Pulled`, *optional*): facts about rows from the Hub.
        pseudo_labels (`PseudoLabelTable`, *optional*): phrases of the captions with boxes of a grounder.
    """

    splits: dict[str, datasets.Dataset]
    regions: RegionTable | JoinedRegions | None
    texts: datasets.Dataset | None = None
    images: str | None = None
    tracks: dict[str, RegionTable | JoinedRegions] = dataclasses.field(default_factory=dict)
    options: Any = None
    pulled: RemoteRows | None = None
    pseudo_labels: PseudoLabelTable | None = None

    def text_alone(self) -> "PreparedData":
        """A copy without regions, images and the boxes of pseudo-labels."""
        return dataclasses.replace(self, regions=None, images=None, tracks={}, pseudo_labels=None)


def prepare_data(recipe: Recipe) -> PreparedData:
    """
    Generates scenes if the recipe has them, builds the rows of the task, and opens the region tables.

    One process does the work; the others wait and read its files.

    Raises:
        RecipeError: if `data_dir` is empty, or the rows do not fit the task. Errors of the builder and of the region
            table are passed on.
    """
    task, data = TASKS[recipe.task], recipe.data
    if not data.data_dir:
        raise RecipeError("data.data_dir is empty: give the folder of the data set")
    with PartialState().main_process_first():
        if data.scenes is not None:
            if is_on_hub(data.data_dir):
                raise RecipeError(
                    f"data.scenes needs a folder, but data.data_dir is {data.data_dir}: remove one of them"
                )
            write_scenes(Path(data.data_dir), num_proc=recipe.workers, **dataclasses.asdict(data.scenes))
        pulled = _find(task, data)
        splits = _build(task, data, recipe.workers) if pulled is None else pull_rows(pulled)
        texts = (
            _build_texts(data.text_corpus, recipe.options.get("max_sequence_length") or 0)
            if data.text_corpus
            else None
        )
        labels = None if data.pseudo_labels is None else PseudoLabelTable.open(data.pseudo_labels)
    to_rows = task.to_rows
    if task.to_grounded_rows is not None and needs_grounding(recipe):
        to_rows = task.to_grounded_rows
    regions = open_regions(data.regions, task.empty_images)
    tracks = {name: open_regions(places, task.empty_images) for name, places in data.tracks.items()}
    for name, rows in splits.items():
        with recipe_key_errors(f"data.builder {data.builder or task.builder}"):
            rows = to_rows(rows)
        _check_columns(task, data, rows)
        seed = recipe.seed if data.limit_seed is None else data.limit_seed
        splits[name] = limit_rows(rows, data.limit.get(name), seed)
    _check_tables(splits, regions, tracks, task.empty_images)
    if labels is not None:
        with recipe_key_errors("data.pseudo_labels"):
            check_label_rows(splits, data.train_splits, labels)
    splits["train"] = _train_rows(splits, data.train_splits)
    if recipe.training.get("train_sampling_strategy") == "group_by_length":
        splits["train"] = add_lengths(splits["train"], regions)
    given = check_options(task, recipe.options, "options")
    with recipe_key_errors("options"):
        options = task.fit_options(given, splits)
    opened = {name: table for name, table in tracks.items() if table is not None}
    return PreparedData(splits, regions, texts, data.images, opened, options, pulled, labels)


def _check_tables(splits: Mapping[str, Any], regions: Any, tracks: Mapping[str, Any], empty_images: bool) -> None:
    """Checks that every table contains the images of its splits."""
    trained = [rows for name, rows in splits.items() if name in ("train", "validation") or not tracks]
    measured = [rows for name, rows in splits.items() if name != "train"]
    for table, rows in ((regions, trained), *((track, measured) for track in tracks.values())):
        if table is not None:
            check_regions(rows, table, empty_images)


def _train_rows(splits: Mapping[str, datasets.Dataset], names: Sequence[str]) -> datasets.Dataset:
    """The training rows, of one split or several."""
    check_names(names, list(splits), "data.train_splits: ")
    if not names:
        raise RecipeError("data.train_splits is empty: give the splits to train on")
    return splits[names[0]] if len(names) == 1 else datasets.concatenate_datasets([splits[name] for name in names])


def open_regions(places: str | Sequence[str] | None, empty_images: bool = False) -> RegionTable | JoinedRegions | None:
    """Opens a region table, or several as one.

    Args:
        places (`str | Sequence[str] | None`): folders, or `hub://ORG/NAME`; `None` for no table.
        empty_images (`bool`, *optional*, defaults to `False`): whether an image in no table has 0 regions instead of
            raising an error.
    """
    if not places:
        return None
    tables = [RegionTable.open(place) for place in ([places] if isinstance(places, str) else places)]
    return tables[0] if len(tables) == 1 and not empty_images else JoinedRegions(tables, empty_images)


def _find(task: Task, data: Data) -> RemoteRows | None:
    """Finds the rows on the Hub; `None` if the data are local."""
    name = data.builder or task.builder
    return find_rows(data.data_dir, name, BUILDERS[name], data.options) if is_on_hub(data.data_dir) else None


def _build(task: Task, data: Data, num_proc: int) -> dict[str, datasets.Dataset]:
    name, options = data.builder or task.builder, dict(data.options)
    if data.regions and options.get("negatives", "nearest") == "nearest" and name == "vgp":
        options.setdefault("regions", data.regions if isinstance(data.regions, str) else data.regions[0])
    return _built(name, options, num_proc, data_dir=data.data_dir)


def builder_options(builder_class: type[datasets.DatasetBuilder]) -> list[str]:
    """The names that `data.options` of a recipe may give to a builder: `config_name`, and those that are its own."""
    general = {field.name for field in dataclasses.fields(datasets.BuilderConfig)}
    return [*(name for name in _fields(builder_class.BUILDER_CONFIG_CLASS) if name not in general), "config_name"]


def _built(name: str, options: Mapping[str, Any], num_proc: int = 1, **places: Any) -> dict[str, datasets.Dataset]:
    builder_class = BUILDERS[name]
    check_names(options, builder_options(builder_class), "data.options.")
    with recipe_key_errors("data.options"):
        builder = builder_class(**places, **options)
    builder.download_and_prepare(num_proc=num_proc)
    return dict(builder.as_dataset())


def _check_columns(task: Task, data: Data, rows: datasets.Dataset) -> None:
    missing = [name for name in task.columns if name not in rows.column_names]
    if missing:
        raise RecipeError(
            f"data.builder {data.builder or task.builder}: its rows have no column {', '.join(missing)}, which the "
            f"task {task.name!r} needs; found {', '.join(rows.column_names)}"
        )


def _build_texts(path: str, length: int) -> datasets.Dataset:
    """The rows of a text corpus, read from disk one by one; lines are joined until they have `length` words."""
    return _built("text_corpus", {"join_until": length}, data_dir=path)["train"]


def make_processor(model: Model) -> Any:
    """Loads the processor of `model.source`, or makes a new one with the tokenizer of the recipe."""
    if is_vision_language(model):
        return make_vlm_processor(model)
    if model.tokenizer is None and model.source:
        with recipe_key_errors(f"model.source {model.source}"):
            return processor_class(model).from_pretrained(model.source, **model.processor)
    name = model.tokenizer or model.bert
    if not name:
        raise RecipeError("model.tokenizer is empty: give a directory, a Hub id or a vocab.txt")
    with recipe_key_errors(f"model.tokenizer {name}"):
        tokenizer = _tokenizer(name)
    with recipe_key_errors("model.processor"):
        pixels = {"image_processor": FastRCNNImageProcessor()} if model.config.get("vision_config") else {}
        return processor_class(model)(tokenizer, **{**pixels, **model.processor})


def _tokenizer(name: str) -> Any:
    if Path(name).is_file():
        words = read_text(name).splitlines()
        return BertTokenizer(vocab={word: index for index, word in enumerate(words)})
    return AutoTokenizer.from_pretrained(name)


def make_model(head: str, model: Model, processor: Any, **config: Any) -> PreTrainedModel:
    """
    Makes the model of a recipe: from a checkpoint, from a BERT, or with random weights.

    Args:
        head (`str`): head of the task.
        model (`Model`): the `model` section.
        processor (`Any`): its tokenizer gives the vocabulary size of a new model.
        **config: further config fields.
    """
    model_class = head_class(head, model)
    if is_vision_language(model):
        return make_vlm(model, processor)
    if model.source:
        made, found = _load(model_class, model, config)
        _say_once(describe_loading(made, model.source, found))
        return made
    fields = {**model.config, **_own_fields(model_class, config)}
    with recipe_key_errors("model"):
        if model.bert:
            return model_class.from_bert(model.bert, **fields)  # type: ignore[attr-defined]
        config_class: Any = FAMILIES[family_name(model)].config_class
        return model_class(config_class(**{"vocab_size": len(processor.tokenizer), **fields}))


def load_model(model_class: type[PreTrainedModel], model: Model, **config: Any) -> tuple[PreTrainedModel, set[str]]:
    """
    Loads the checkpoint `model.source` as a model of a class.

    Returns:
        `tuple[PreTrainedModel, set[str]]`: the model, and the names of its randomly initialised weights. Weights that
        a head takes from a pre-training head (`pretraining_handover.py`) or from `model.bert` are not among them.
    """
    if is_vision_language(model):
        return load_vlm(model)
    loaded, found = _load(model_class, model, config)
    return loaded, set(found["missing_keys"])


def _load(
    model_class: type[PreTrainedModel], model: Model, config: Mapping[str, Any]
) -> tuple[PreTrainedModel, dict[str, Any]]:
    """Loads `model.source`; returns the model and transformers' loading info."""
    fields = {**model.config, **_own_fields(model_class, config), **({"bert": model.bert} if model.bert else {})}
    with recipe_key_errors(f"model.source {model.source}"), _quiet_loading():
        check_weight_index(str(model.source))
        loaded: Any = model_class.from_pretrained(
            model.source, **fields, ignore_mismatched_sizes=True, output_loading_info=True
        )
        answers = other_answers(loaded[0], str(model.source)) if "answers" in fields else None
        of_answers = answer_weights(loaded[0]) if answers else set()
        check_shapes(model.source, (found for found in loaded[1]["mismatched_keys"] if found[0] not in of_answers))
        if answers:
            _say_once(take_answers(loaded[0], str(model.source), answers))
        check_finite(loaded[0], str(model.source))
    return loaded


@cache
def _say_once(line: str | None) -> None:
    """Prints a line once, from the main process only; several methods and stages load the same checkpoint."""
    if line and PartialState().is_main_process:
        print(f"  {line}", flush=True)


def _own_fields(model_class: type[PreTrainedModel], fields: Mapping[str, Any]) -> dict[str, Any]:
    """The config fields of a task or method that the family has. A family without the field always behaves that way,
    or does not need it."""
    return {name: value for name, value in fields.items() if hasattr(model_class.config_class, name)}


@contextmanager
def _quiet_loading() -> Iterator[None]:
    """Silences transformers' loading reports; a recipe prints its own line."""
    verbosity = transformers.logging.get_verbosity()
    transformers.logging.set_verbosity_error()
    try:
        yield
    finally:
        transformers.logging.set_verbosity(verbosity)


def check_vocabulary(model: PreTrainedModel, processor: Any) -> None:
    """
    Checks that the model knows every token of the processor.

    Raises:
        RecipeError: if the tokenizer has an id that the model has no embedding for.
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

    Args:
        model (`PreTrainedModel`): the model.
        processor (`Any`): its processor.
        table (`str`): name of the region table, for the message.
        found (`int`): width of its features.

    Raises:
        RecipeError: if the widths differ.
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


def record_features(processor: Any, regions: RegionTable | JoinedRegions | None) -> str | None:
    """
    Records in the processor which model computed the region features, if all tables have the same source.

    Returns:
        `str | None`: a warning if the checkpoint was trained on other features, otherwise `None`.
    """
    tables = [] if regions is None else regions.tables if isinstance(regions, JoinedRegions) else [regions]
    found = [feature_source(table.provenance) for table in tables]
    if not found or found[0] is None or found.count(found[0]) < len(found):
        return None
    other = processor.feature_mismatch(found[0])
    processor.region_feature_source = found[0]
    return other


def check_pixels(model: PreTrainedModel, images: str | None) -> None:
    """
    Checks that a model that reads pixels has images, and that a model that reads features has none.

    Raises:
        RecipeError: if images are missing or not used.
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


def training_arguments(recipe: Recipe, output_dir: Path) -> GroundingTrainingArguments:
    """Makes the training arguments of a `training` section that `check_training` has accepted.

    Keys of the Hub are removed: `training/publish/hub.py` pushes, because the Trainer's own push omits the code.
    """
    # The collator reads more columns than the model, and the task defines its labels.
    fixed = {
        "output_dir": str(output_dir),
        "remove_unused_columns": False,
        "label_names": [],
        "length_column_name": LENGTH,
    }
    # Names in a tracker: the run is the project, the method the run.
    names = {"project": output_dir.parent.name or "grounded-attention", "run_name": output_dir.name}
    defaults: dict[str, Any] = {"seed": recipe.seed, "report_to": "none", "disable_tqdm": False, **names}
    if recipe.training.get("gradient_checkpointing"):
        defaults["gradient_checkpointing_kwargs"] = {"use_reentrant": False}  # not the default of transformers 5.4
    with recipe_key_errors("training"):
        return GroundingTrainingArguments(**{**defaults, **without_hub(recipe.training), **fixed})


def check_options(task: Task, options: Mapping[str, Any], key: str) -> Any:
    """
    Makes the options of a task.

    Args:
        task (`Task`): the task.
        options (`Mapping[str, Any]`): options of a recipe.
        key (`str`): key of these options in the recipe, for messages.

    Raises:
        RecipeError: if an option is unknown or has another type.
    """
    with recipe_key_errors(key):
        return convert(task.options, options, "", key)


def check_model(model: Model, head: str) -> None:
    """Checks that the family has the head, and that config fields and processor arguments are known."""
    head_class(head, model)
    if is_vision_language(model):
        check_vision_language(model)
        return
    for key in ("adapter", "freeze"):
        if getattr(model, key):
            raise RecipeError(f"model.{key} is only for vision-language models (model.family=vlm): remove it")
    config_class: Any = FAMILIES[family_name(model)].config_class
    fields = [*_fields(config_class), *config_class.attribute_map, "attn_implementation"]
    check_names(model.config, fields, "model.config.")
    check_sizes(model.config, "model.config.")
    known = list(inspect.signature(processor_class(model)).parameters)
    check_names(model.processor, [name for name in known if name not in PARTS], "model.processor.")


def check_training(training: Mapping[str, Any], prefix: str) -> None:
    """Checks that training arguments are known, and that numbers are numbers."""
    check_names(training, _fields(GroundingTrainingArguments), prefix)
    hints = typing.get_type_hints(GroundingTrainingArguments)
    for name, value in training.items():
        kinds = {hints[name]} if not isinstance(hints[name], types.UnionType) else {*typing.get_args(hints[name])}
        if kinds - {type(None)} in ({int}, {float}, {bool}, {str}):
            convert(hints[name], value, "", prefix + name)
    check_numbers(training, prefix)
    check_device(training, prefix)
    check_trackers(training.get("report_to"), f"{prefix}report_to")
    check_mapping(training.get(MAPPING), prefix + MAPPING)
    check_sharding_keys(training, prefix)
    if "logging_nan_inf_filter" in training:
        raise RecipeError(
            f"{prefix}logging_nan_inf_filter has no effect, because training stops at a loss that is not finite "
            f"(or leaves the step out: {prefix}{SKIP}): remove it"
        )


def check_sharding_keys(training: Mapping[str, Any], prefix: str) -> None:
    """
    Checks the keys of sharded training.

    Raises:
        RecipeError: for DeepSpeed, which is not supported, and for a sharded state, which is read through pickle.
    """
    if training.get("deepspeed"):
        raise RecipeError(f"{prefix}deepspeed is not supported: give {prefix}fsdp=true, which shards the weights too")
    config = training.get("fsdp_config")
    kind = str(config.get("state_dict_type", "FULL_STATE_DICT")) if isinstance(config, Mapping) else "FULL_STATE_DICT"
    if kind != "FULL_STATE_DICT":
        raise RecipeError(
            f"{prefix}fsdp_config.state_dict_type must be FULL_STATE_DICT, found {kind}: other checkpoints have no "
            "model.safetensors, and are read through pickle, which can run code"
        )


def check_device(training: Mapping[str, Any], prefix: str) -> None:
    """
    Checks that the machine supports the training arguments, and that they have an effect.

    Raises:
        RecipeError: for `use_cpu: false` without an accelerator, float16 on a CPU, or a cast for evaluation only.
    """
    found = torch.accelerator.is_available()
    none = f"PyTorch {torch.__version__} finds no GPU or other accelerator"
    if training.get("use_cpu") is False and not found:
        raise RecipeError(
            f"{prefix}use_cpu is false, but {none}: give {prefix}use_cpu=true, or install the missing drivers"
        )
    on_cpu = bool(training.get("use_cpu")) or not found
    for name, other in (("fp16", "give bf16=true, which a CPU supports, or "), ("tf32", "")):
        if training.get(name) and on_cpu:
            why = f"{prefix}use_cpu is true" if training.get("use_cpu") else none
            raise RecipeError(f"{prefix}{name} has no effect on a CPU, and {why}: {other}remove it")
    if training.get("bf16") and not found and not training.get("use_cpu"):
        raise RecipeError(f"{prefix}bf16: {none}: to compute in bfloat16 on the CPU, also give {prefix}use_cpu=true")
    for name in ("fp16_full_eval", "bf16_full_eval"):
        if training.get(name):
            raise RecipeError(
                f"{prefix}{name} has no effect, because models are evaluated in their own dtype: remove it"
            )


def _fields(kind: Any) -> list[str]:
    return [field.name for field in dataclasses.fields(kind) if field.init]
