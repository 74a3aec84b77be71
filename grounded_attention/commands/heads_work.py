# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""Measures, chooses or evaluates heads and writes the files of `grounded-attention heads`."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, cast

import torch
from accelerate import PartialState
from safetensors import SafetensorError
from transformers import AutoConfig, AutoModel, AutoModelForPreTraining, AutoTokenizer
from transformers.utils import logging

from grounded_attention.dataset_scripts.builders import BUILDERS
from grounded_attention.dataset_scripts.files.errors import DataError
from grounded_attention.dataset_scripts.regions.table import RegionTable
from grounded_attention.dataset_scripts.rows.pictures import picture_digest
from grounded_attention.dataset_scripts.rows.sources import image_order, split_name
from grounded_attention.families import FAMILIES
from grounded_attention.heads import SAME_SPLIT
from grounded_attention.heads.card import HEADS, HEADS_FIGURE, boxes_table, put_heads_in_card
from grounded_attention.heads.changes import Changes, compare
from grounded_attention.heads.dependency_parses import Parse, read_conllu, relation_examples, spacy_parses
from grounded_attention.heads.example_attention import ExampleAttention, capture_examples
from grounded_attention.heads.examples import (
    AuditExample,
    PromptSettings,
    grounded_examples,
    picture_name,
)
from grounded_attention.heads.heads_file import FILE, ChosenHeads, fit_doubt
from grounded_attention.heads.items import DEFAULT_WORD, Rules
from grounded_attention.heads.measure import Maps, Measurement
from grounded_attention.heads.page import heads_page, ranking_section
from grounded_attention.heads.ranking import (
    TABLE,
    HeadRanking,
    Relate,
    evaluate_heads,
    rank_heads,
)
from grounded_attention.heads.reading import reads_pixels
from grounded_attention.lens.doubt_fitting import judge_nouns, measure_doubt, names_of_images
from grounded_attention.metrics.intervals import to_json
from grounded_attention.modeling.finite_numbers import check_finite
from grounded_attention.processing import VisualBERTProcessor
from grounded_attention.processing.sequence_layouts import check_tokenizer
from grounded_attention.training.experiments.pretrained import EVERYWHERE, find_device, reads_image_tokens
from grounded_attention.training.loop.checkpoint import refuse_changed
from grounded_attention.training.loop.data import check_regions
from grounded_attention.training.publish.adapter_card import complete_adapter_card
from grounded_attention.training.recipes.adapters import load_base_model
from grounded_attention.training.recipes.model_family import check_sizes
from grounded_attention.utils.bounded_files import read_json
from grounded_attention.utils.named_types import Columns, Fields
from grounded_attention.utils.open_images import open_image
from grounded_attention.utils.plain_text import first_sentences, short_names
from grounded_attention.utils.project import require
from grounded_attention.utils.safe_paths import path_below
from grounded_attention.utils.whole_files import write_json, write_text

from .heads_options import VALIDATION, Heads
from .models import ModelOptions
from .rows_options import open_rows, parse_options

TEST = "test"
# The splits that heads are chosen and reported on.
USUAL_SPLITS = ("train", "validation")
REGIONS = "regions"  # default folder of the region table inside --data-dir
HEADS_LIMIT = 1000  # Localization Heads chooses on this many examples.
# Config field of transformers' models that gives the width of a region feature.
FEATURE_SIZE = {"visual_bert": "visual_embedding_dim", "lxmert": "visual_feat_dim"}
SPATIAL = 6  # x1, y1, x2, y2, width, height: the last values of VisualBERT's Flickr30K features
SUFFIXES = (".jpg", ".jpeg", ".png")
SPACY = "spacy"
PAGE = "heads.html"
SEED = 0  # of the halves of rows without splits
QUESTION = "Describe the image."
# A model is named by the run and the method, or by ORG/NAME.
NAME_PARTS = 2


# Input


@dataclass
class Examples:
    """The texts with phrases of each split, their pictures, and what the reported ones are."""

    of_splits: list[list[AuditExample]]
    pictures: Any
    split: str


def load_examples(
    options: Heads, splits: Sequence[str], builder_options: Sequence[str], regions: RegionTable | None
) -> Examples:
    """Loads the texts and phrases of each split, and checks that every image has regions, or a picture."""
    name = str(options.data)
    if name not in BUILDERS:
        return _examples_of_rows(options, splits)
    builder_class = BUILDERS[name]
    settings = parse_options(builder_class, builder_options)
    if options.config is not None:
        if options.config not in builder_class.builder_configs:
            known = ", ".join(builder_class.builder_configs)
            raise DataError(f"{name} has no such --config", found=options.config, expected=known)
        settings["config_name"] = options.config
    parts = rows_of_builder(name, str(options.data_dir), splits, options.limit, settings)
    examples = [list(grounded_examples(part)) for part in parts]
    if regions is not None:
        check_regions(parts, regions)
    else:
        for each in examples:
            check_pictures(str(options.images), (example.image_id for example in each))
    return Examples(examples, None if options.images is None else folder_pictures(options.images), options.split)


def rows_of_builder(
    name: str, data_dir: str, splits: Sequence[str], limit: int | None, builder_options: Columns
) -> list[Any]:
    """The first rows of each split of a data set of `data build`, all without a limit."""
    builder_class = BUILDERS[name]
    builder_options = {**getattr(builder_class, "AUDIT_OPTIONS", {}), **builder_options}
    with PartialState().main_process_first():
        builder = builder_class(data_dir=data_dir, splits=list(dict.fromkeys(splits)), **builder_options)
        builder.download_and_prepare()
    rows = builder.as_dataset()
    parts = [rows[str(builder.config.SPLIT_NAMES.get(split, split))] for split in splits]
    return [part.select(range(min(limit or len(part), len(part)))) for part in parts]


def one_of_each_image(
    examples: Iterable[AuditExample], count: int | None = None, least: int = 1
) -> list[AuditExample]:
    """The first example with enough phrases, of each of the first images."""
    of_image: dict[str, AuditExample] = {}
    for example in examples:
        if len(example.phrases) >= least and (count is None or len(of_image) < count):
            of_image.setdefault(example.image_id, example)
    return list(of_image.values())


def _examples_of_rows(options: Heads, splits: Sequence[str]) -> Examples:
    """Those of rows as people have them; where one of two usual splits is missing, the images of the other are divided
    at random."""
    if options.config is not None:
        raise ValueError(f"--config is for builders; of rows on the Hub give --data {options.data}:{options.config}")
    rows = open_rows(str(options.data), options).decode(False)
    known = {split_name(name) for name in rows.splits}
    there = [name for name in splits if split_name(name) in known]
    for name in splits:
        if name not in (*there, *USUAL_SPLITS):
            rows.of_split(name)  # an error that names those that are there
    pictures: Fields = {}
    limit = options.limit or None
    if there == list(splits) or len(splits) == 1:
        parts = [rows.of_split(name) for name in there] or [rows]
        return Examples([_collect(part.first(limit), pictures) for part in parts], pictures, options.split)
    part = rows.of_split(there[0]) if there else rows
    first: dict[str, str] = {}
    examples = _collect(part.first(limit and 2 * limit), pictures, first)
    groups = {_first_of(each.image_id, first) for each in examples}
    images = sorted(groups, key=lambda id: image_order(id, SEED))
    reported = {*images[: len(images) // 2]}
    sides: list[list[AuditExample]] = [[], []]
    for example in examples:
        sides[_first_of(example.image_id, first) in reported].append(example)
    divided = f"half of the images of {there[0] if there else 'all rows'}"
    return Examples([side[:limit] for side in sides], pictures, divided)


def _collect(rows: Any, pictures: Fields, first: dict[str, str] | None = None) -> list[AuditExample]:
    """The examples of rows; their pictures are kept as they are stored, once for each image. In `first`, the name of
    each leads to that of another one in a row with it, up to one that all pictures that share rows have."""
    kept: list[AuditExample] = []
    same: dict[str, str] = {}  # what a picture is -> its first name
    for number, row in enumerate(rows):
        if "images" in row:
            images = row["images"]
        else:
            images = [row["image"]] if "image" in row else []
        names = [picture_name(row["image_id"], place) for place in range(len(images))]
        if any(pictures.get(*each) != each[1] for each in zip(names, images, strict=True)):  # one id, another picture
            row["image_id"] = f"{row['image_id']} of row {number}"
            names = [picture_name(row["image_id"], place) for place in range(len(images))]
        for name, image in zip(names, images, strict=True):
            pictures.setdefault(name, image)
            if first is not None:
                known = same.setdefault(picture_digest(image) or str(image), name)
                first[_first_of(name, first)] = first[_first_of(known, first)] = _first_of(names[0], first)
        kept += grounded_examples([{**row, "image": None, "images": None}])
    return kept


def _first_of(name: str, first: Mapping[str, str]) -> str:
    while first.get(name, name) != name:
        name = first[name]
    return name


def complete_options(options: Heads, tokens: bool) -> None:
    """Fills in the defaults that depend on the kind of model."""
    if options.choose_on is None and options.evaluate is None:
        if tokens:
            options.choose_on = "train"
        else:
            options.choose_on = VALIDATION if options.split != VALIDATION else TEST
    options.words = options.words or ("mean" if tokens else DEFAULT_WORD)
    if options.limit is not None:
        options.limit = options.limit
    else:
        options.limit = HEADS_LIMIT if tokens else 0
    if tokens:
        PromptSettings(options.words, options.instruction)  # refuses a wrong combination before anything is loaded


def work(options: Heads, loading: ModelOptions, builder_options: Sequence[str]) -> tuple[Any, str] | None:
    """Runs the command; `None` in every process but the main one."""
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    state = PartialState(cpu=loading.device == "cpu" or not torch.cuda.is_available())
    find_device(None if loading.device == EVERYWHERE else loading.device, state)
    regions = find_regions(options, loading)
    complete_options(options, regions is None)
    measured = (options, loading, builder_options, regions)
    if options.evaluate is None:
        return rank(*measured)
    return evaluate(*measured)


# The choice


def relate(relations: str | None) -> Relate | None:
    """What finds words that --relations relates to phrases."""
    if not relations:
        return None

    def parses(examples: Sequence[AuditExample]) -> Iterable[Parse]:
        if relations == SPACY:
            return spacy_parses(example.caption for example in examples)
        return read_conllu(str(relations))

    return lambda examples: relation_examples(examples, parses(examples))


def rank(
    options: Heads, loading: ModelOptions, builder_options: Sequence[str], regions: RegionTable | None
) -> tuple[Any, str] | None:
    """Chooses heads on one split, reports them on another, and writes the folder."""
    if options.card is not None:
        if PartialState().is_main_process:
            complete_adapter_card(Path(options.card))
        HEADS.find(options.card)
    model = str(options.model)
    if options.against is None:
        paths = [model]
    else:
        paths = [model, options.against]
    names = short_names(paths, NAME_PARTS)
    same = options.choose_on == SAME_SPLIT
    if same:
        splits = [options.split]
    else:
        splits = [options.split, str(options.choose_on)]
    found = load_examples(options, splits, builder_options, regions)
    reported_on, *others = found.of_splits
    models = {name: load(path, options, loading, regions) for path, name in zip(paths, names, strict=True)}
    _check_pixels(options, models)
    table = cast("Mapping[str, Any] | None", regions)
    relating = relate(options.relations)
    words = str(options.words)
    network, processor = models[names[0]]
    ranking = rank_heads(
        network,
        processor,
        others[0] if others else reported_on,
        found.pictures,
        report=None if same else reported_on,
        count=options.top_k,
        rank=options.rank,
        words=words,
        ablate=options.ablate,
        batch_size=options.batch_size,
        progress=True,
        about={**about(options, names[0], network, found, regions), "choose_on": options.choose_on},
        regions=table,
        instruction=options.instruction,
        relate=relating,
    )
    changes = None
    for name in names[1:]:
        rules, (other, processor) = Rules(words), models[name]
        read = (table, rules, options.instruction, options.batch_size)
        measurement = Measurement(other, processor, found.pictures, *read, for_choice=True)
        related = () if relating is None else relating(reported_on)
        maps = Maps(measurement.tokens)
        before = measurement.score(reported_on, "before", relations=related, progress=True, maps=maps)
        before.about.update(about(options, name, other, found, regions))
        changes = compare(before, ranking.reported_on, (name, names[0]))
    if not PartialState().is_main_process:
        return None
    shown = {}
    if options.explore:
        # The first text with phrases of each of the first images.
        explored: Any = (one_of_each_image(reported_on, options.explore), regions, found.pictures, options.instruction)
        shown = {name: capture_examples(*pair, *explored) for name, pair in models.items()}
    folder = write(ranking, changes, shown, output_folder(options))
    if options.card is not None:
        put_in_card(ranking, changes, options.card, folder)
    return _result(ranking, changes, folder)


def _check_pixels(options: Heads, models: Mapping[str, tuple[Any, Any]]) -> None:
    for name, (model, _) in models.items():
        if reads_pixels(model) and options.images is None and options.data in BUILDERS:
            raise ValueError(f"--model {name}: the model reads pixels; give the folder of the images with --images")


def about(options: Heads, name: str, model: Any, found: Examples, regions: RegionTable | None) -> Fields:
    """What the files say about model and data."""
    return {
        "model": name,
        "revision": getattr(model.config, "_commit_hash", None),
        "model_type": model.config.model_type,
        "data": " ".join(filter(None, (options.data, options.config))),
        "split": found.split,
        "limit": options.limit,
        "regions": "image tokens" if regions is None else str(regions.path),
    }


# Output


def write(
    ranking: HeadRanking,
    changes: Changes | None,
    shown: Mapping[str, Sequence[ExampleAttention]],
    folder: Path,
) -> Path:
    """Writes all files to a folder and returns it."""
    write_files(ranking, changes, folder)
    if shown:
        if changes is None:
            tables = [ranking.reported_on]
        else:
            tables = [ranking.reported_on, changes.before]
        models = dict(reversed(list(zip(shown, tables, strict=False))))  # the model before comes first
        extra = {"Heads that ground": ranking_section(ranking)}
        page = heads_page(models, "Heads that ground", examples=shown, extra=extra)
        write_text(folder / PAGE, page)
    return folder


def write_files(ranking: HeadRanking, changes: Changes | None, folder: Path) -> Path:
    """Writes the tables and figures of one model, and of its changes, and returns the folder."""
    folder = ranking.save(folder)
    table = ranking.reported_on
    write_text(folder / "heads.csv", table.to_pandas().to_csv(index=False))
    table.plot(folder)
    if changes is not None:
        changes.before.save(folder / "against")
        write_json(folder / "changes.json", changes.to_dict())
        changes.plot(folder)
        write_text(folder / TABLE, f"{ranking.to_markdown()}\n{changes.to_markdown()}")
    return folder


def output_folder(options: Heads) -> Path:
    """The folder of `--output`, or one in runs/heads with the name of the model."""
    return Path(options.output or Path("runs", "heads", Path(str(options.model)).name))


def put_in_card(ranking: HeadRanking, changes: Changes | None, card: str, pictures: Path) -> None:
    """Writes what was measured into the place that a card has for it, with a picture of `pictures`."""
    name = HEADS_FIGURE if changes is None else "changes_text_to_region.png"
    changed = "" if changes is None else changes.to_markdown("###")
    put_heads_in_card(ranking.to_dict(), card, pictures / name, changed)


def _result(ranking: HeadRanking, changes: Changes | None, folder: Path) -> tuple[Any, str]:
    content = ranking.to_dict()
    result = {
        "folder": str(folder),
        **{name: content[name] for name in ("about", "layers", "heads", "chosen", "boxes")},
    }
    result["best"] = [{**one, "heads_chosen_on": ranking.reported_on.choice.split} for one in content["best"]]
    parts = [ranking.to_markdown()]
    if changes is not None:
        result["changes"] = changes.to_dict()
        parts.append(changes.to_markdown())
    return result, "\n".join([*parts, f"{folder / TABLE} has the tables; ground with {folder / FILE}"])


# Heads that were chosen before


def evaluate(
    options: Heads, loading: ModelOptions, builder_options: Sequence[str], regions: RegionTable | None
) -> tuple[Any, str] | None:
    """Measures the boxes of chosen heads on a split, and writes the folder."""
    heads = ChosenHeads.named(str(options.evaluate))
    name = str(options.model)
    found = load_examples(options, [options.split], builder_options, regions)
    model, processor = load(name, options, loading, regions)
    _check_pixels(options, {name: (model, processor)})
    scores = evaluate_heads(
        model,
        processor,
        found.of_splits[0],
        found.pictures,
        heads,
        regions=regions,  # type: ignore[arg-type]
        batch_size=options.batch_size,
        progress=True,
    )
    if not PartialState().is_main_process:
        return None
    folder = output_folder(options)
    boxes = [asdict(score) for score in scores]
    measured = {"about": {**about(options, name, model, found, regions), "heads": heads.source}, "boxes": boxes}
    write_text(folder / "boxes.md", boxes_table(boxes) + "\n")
    write_text(folder / "boxes.json", to_json(measured, indent=1) + "\n")
    return {"folder": str(folder), **measured}, boxes_table(boxes)


# Doubt


def fit_doubt_of(options: Heads, loading: ModelOptions, builder_options: Sequence[str]) -> tuple[Any, str]:
    """Fits doubt on one split, measures it on another, and adds it to heads.json."""
    require("matplotlib")
    from grounded_attention.pages.figures import reliability_figure

    file = str(options.doubt)
    heads = ChosenHeads.from_file(file)
    complete_options(options, True)
    found = load_examples(options, [options.split, str(options.choose_on)], builder_options, None)
    names = [names_of_images(part) for part in found.of_splits]
    model, processor = loading.load(str(options.model))
    heads.check(model)
    nouns = {name: (name,) for part in names for name in sorted(set().union(*part.values()))}
    read = (found.pictures, options.instruction or QUESTION, heads.heads, nouns)
    reported, fitted = [[*judge_nouns(model, processor, part, *read)] for part in names]
    doubt = fit_doubt([noun.evidence for noun in fitted], [noun.absent for noun in fitted], nouns)
    measured = measure_doubt(doubt, reported)
    write_json(file, {**read_json(file), "doubt": asdict(doubt)})
    picture = Path(file).with_name("doubt.png")
    probabilities = doubt.probabilities([noun.evidence for noun in reported])
    reliability_figure(probabilities, [noun.absent for noun in reported], picture)
    lines = [f"fitted on {len(fitted)} nouns of answers, reported on {len(reported)} of {found.split}; in {file}"]
    lines.append(f"probabilities beside what was found: {picture}")
    numbers = {}
    for name, estimate in measured.items():
        lines.append(f"{name}: {estimate.percent}")
        numbers[name] = [estimate.value, estimate.low, estimate.high]
    return {"fitted_on": len(fitted), "reported_on": len(reported), "measured": numbers}, "\n".join(lines)


# Models and pictures


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
    unwanted = [f"--{name}" for name, value in wrong.items() if value]
    if unwanted:
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
                "model on transformers' attention interface, see the Python example in docs/heads.md"
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


def folder_pictures(folder: str | Path) -> Callable[[str], Any]:
    """Returns a function from an image id to its picture in a folder, a .jpg, .jpeg or .png file."""

    def open_picture(image_id: str) -> Any:
        paths = [path_below(folder, f"{image_id}{suffix}") for suffix in SUFFIXES]
        return open_image(next((path for path in paths if path.is_file()), paths[0]))

    return open_picture


def check_pictures(folder: str | Path, image_ids: Iterable[str]) -> None:
    """Checks that a folder has the picture of each image, before any work is done."""
    wanted = dict.fromkeys(image_ids)
    missing = []
    for image_id in wanted:
        if not any(path_below(folder, f"{image_id}{suffix}").is_file() for suffix in SUFFIXES):
            missing.append(image_id)
    if missing:
        raise ValueError(
            f"--images {folder}: {len(missing)} of {len(wanted)} images are missing, the first is {missing[0]}; "
            f"expected {missing[0]}{', '.join(SUFFIXES)}"
        )
