# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""Prepares the rows and region tables of a recipe."""

import dataclasses
import hashlib
import os
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

import datasets
import pyarrow as pa
from accelerate import PartialState

from grounded_attention.dataset_scripts.builders import BUILDERS
from grounded_attention.dataset_scripts.builders.local_builder import LocalBuilder
from grounded_attention.dataset_scripts.builders.rows import Rows
from grounded_attention.dataset_scripts.hub.tables import RemoteRows, find_rows, is_on_hub, pull_rows
from grounded_attention.dataset_scripts.regions.table import RegionTable
from grounded_attention.dataset_scripts.rows.sources import HELD_OUT, image_order
from grounded_attention.dataset_scripts.scenes.dataset import write_scenes
from grounded_attention.labelling.labels import PseudoLabels
from grounded_attention.tasks import TASKS, Task
from grounded_attention.training.loop.data import Collator, add_lengths, check_regions, limit_rows
from grounded_attention.training.loop.joins import JoinedRegions, join_labels
from grounded_attention.training.loop.side_by_side import say_once
from grounded_attention.training.recipes.recipe import (
    Data,
    MadeRegions,
    Recipe,
    RecipeError,
    check_names,
    is_quiet,
    needs_grounding,
    recipe_key_errors,
)
from grounded_attention.utils.named_types import Columns, Fields

from .arguments import check_options, field_names
from .made_regions import make_regions


@dataclasses.dataclass
class PreparedData:
    """The data for training and evaluation."""

    splits: dict[str, datasets.Dataset]
    regions: RegionTable | JoinedRegions | None
    texts: datasets.Dataset | None = None
    images: str | None = None
    tracks: dict[str, RegionTable | JoinedRegions] = dataclasses.field(default_factory=dict)
    options: Any = None
    pulled: RemoteRows | None = None
    split: Columns | None = None  # of `data.source`: what its rows are, and which images are held out

    def text_alone(self) -> "PreparedData":
        """A copy without regions and images."""
        return dataclasses.replace(self, regions=None, images=None, tracks={})

    def collator(self, task: Task, processor: Any, seed: int, **settings: Any) -> Collator:
        """Makes batches of these rows; `settings` are further arguments of [`Collator`]."""
        known: Fields = {"texts": self.texts, "images": self.images}
        return Collator(task, processor, self.regions, seed, **known, **settings)


def prepare_data(recipe: Recipe) -> PreparedData:
    """Generates scenes if the recipe has them, builds the rows of the task, and opens the region tables."""
    task = TASKS[recipe.task]
    data = recipe.data
    if not data.data_dir and data.source is None:
        raise RecipeError("data.data_dir is empty: give the folder of the data set, or data.source")
    with PartialState().main_process_first():
        if data.scenes is not None and data.source is None:
            if is_on_hub(data.data_dir):
                raise RecipeError(
                    f"data.scenes needs a folder, but data.data_dir is {data.data_dir}: remove one of them"
                )
            write_scenes(Path(data.data_dir), num_proc=recipe.workers, **dataclasses.asdict(data.scenes))
        pulled = None
        if data.source is None and is_on_hub(data.data_dir):
            builder = data.builder or task.builder
            pulled = find_rows(data.data_dir, builder, BUILDERS[builder], data.options)
        splits = _build(task, data) if pulled is None else pull_rows(pulled)
        own_data = None
        if data.source is not None:
            own_data = {"rows": {name: _digest(rows) for name, rows in splits.items()}}
            own_data |= hold_out(splits, recipe.seed) or {}
            _tell_shared(splits)
        texts = None
        if data.text_corpus:  # read from disk one by one; lines are joined until they have as many words
            length = recipe.options.get("max_sequence_length") or 0
            texts = _built(BUILDERS["text_corpus"], {"join_until": length}, data_dir=data.text_corpus)["train"]
        labels = None if data.pseudo_labels is None else PseudoLabels.open(data.pseudo_labels)
    grounded = task.phrases_on_demand and needs_grounding(recipe)
    images = data.images if data.source is None else os.sep
    if isinstance(data.regions, MadeRegions):
        cpu = bool(recipe.training.get("use_cpu"))
        data = dataclasses.replace(data, regions=make_regions(data.regions, splits, images, is_quiet(recipe), cpu))
    if data.source is not None and not (task.image_tokens or recipe.model.config.get("vision_config")):
        images = None  # the model reads features
    regions = open_regions(data.regions, task.empty_images)
    tracks = {name: open_regions(places, task.empty_images) for name, places in data.tracks.items()}
    for name, rows in splits.items():
        with recipe_key_errors(f"data.builder {data.builder or task.builder}"):
            rows = task.to_rows(rows, grounded)
        _check_columns(task, data, rows)
        seed = recipe.seed if data.limit_seed is None else data.limit_seed
        splits[name] = limit_rows(rows, data.limit.get(name), seed)
    _check_tables(splits, regions, tracks, task.empty_images)
    if labels is not None:
        with recipe_key_errors("data.pseudo_labels"):
            splits = join_labels(splits, data.train_splits, labels)
    splits["train"] = _train_rows(splits, data.train_splits)
    if recipe.training.get("train_sampling_strategy") == "group_by_length":
        splits["train"] = add_lengths(splits["train"], regions)
    task_options = check_options(task, recipe.options, "options")
    with recipe_key_errors("options"):
        configured = task.configure(task_options)
        if data.source is not None:
            splits = {name: configured.fit_own_rows(rows) for name, rows in splits.items()}
        options = configured.fit_options(splits)
    opened = {name: table for name, table in tracks.items() if table is not None}
    return PreparedData(splits, regions, texts, images, opened, options, pulled, own_data)


def _check_tables(splits: Columns, regions: Any, tracks: Columns, empty_images: bool) -> None:
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
    if len(names) == 1:
        return splits[names[0]]
    return datasets.concatenate_datasets([splits[name] for name in names])


def hold_out(splits: dict[str, datasets.Dataset], seed: int) -> Fields | None:
    """Makes a validation split of training rows if there is none: a tenth of the images, whose rows are no longer
    trained on. Returns what was done, with the ids of these images.
    """
    if "validation" in splits or "train" not in splits:
        return None
    rows = splits["train"]
    ids = sorted(rows.unique("image_id"), key=lambda image_id: image_order(image_id, seed))
    if len(ids) < 2:
        raise RecipeError(
            "data.source has no validation split, and one image alone: give data.splits={validation: NAME}"
        )
    chosen = set(ids[: max(1, round(HELD_OUT * len(ids)))])
    sides: list[list[int]] = [[], []]
    for number, image_id in enumerate(rows["image_id"]):
        sides[image_id in chosen].append(number)
    splits["train"], splits["validation"] = (rows.select(side) for side in sides)
    say_once(f"no validation split: {len(chosen)} of {len(ids)} images are held out, drawn with seed {seed}")
    return {"seed": seed, "images": len(ids), "validation": sorted(chosen)}


def built_rows(recipe: Recipe, data: PreparedData) -> dict[str, datasets.Dataset]:
    """The rows of the images of each split as `data.source` has them, before they are those of the task."""
    built = _build(TASKS[recipe.task], recipe.data)
    # Images that are held out for validation have their rows in train.
    chosen_rows = {}
    for name, rows in data.splits.items():
        chosen_rows[name] = rows_of_images(built.get(name, built["train"]), rows.unique("image_id"))
    return chosen_rows


def rows_of_images(rows: datasets.Dataset, images: Collection[str]) -> datasets.Dataset:
    """The rows of some images."""
    chosen = {*images}
    return rows.select([number for number, image_id in enumerate(rows["image_id"]) if image_id in chosen])


def _tell_shared(splits: Mapping[str, datasets.Dataset]) -> None:
    """Says how many pictures of a split are trained on too."""
    if "train" in splits:
        trained = {*splits["train"].unique("file_name")}
    else:
        trained = set()
    for name, rows in splits.items():
        if name != "train" and (shared := len(trained.intersection(rows.unique("file_name")))):
            say_once(f"{name}: {shared} of its pictures are in train too; their numbers are not those of unseen ones")


def _digest(rows: datasets.Dataset) -> str:
    """A digest of rows, wherever their pictures are."""
    digest = hashlib.sha256()
    for batch in rows.data.table.drop_columns(["file_name"]).to_batches():
        sink = pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, batch.schema) as writer:
            writer.write_batch(batch)
        digest.update(sink.getvalue())
    return digest.hexdigest()[:16]


def open_regions(
    places: str | Sequence[str] | MadeRegions | None, empty_images: bool = False
) -> RegionTable | JoinedRegions | None:
    """Opens a region table, or several as one."""
    if not places:
        return None
    if isinstance(places, MadeRegions):
        raise RecipeError("data.regions has a detector: give the folder of the table that was made")
    tables = []
    for place in [places] if isinstance(places, str) else places:
        tables.append(RegionTable.open(place))
    if len(tables) == 1 and not empty_images:
        return tables[0]
    return JoinedRegions(tables, empty_images)


def _build(task: Task, data: Data) -> dict[str, datasets.Dataset]:
    name = data.builder or task.builder
    options = dict(data.options)
    if data.source is not None:
        rows_options: Fields = {
            "columns": data.columns,
            "boxes": data.boxes,
            "images": data.images,
            "max_rows": data.max_rows,
        }
        rows_options |= {"named_splits": data.splits, "splits": options.get("splits")}
        return _built(Rows, {"form": name, **rows_options}, data_dir=data.source)
    if data.regions and options.get("negatives", "nearest") == "nearest" and name == "vgp":
        if isinstance(data.regions, MadeRegions):
            raise RecipeError("data.options.negatives=nearest reads a region table: give its folder as data.regions")
        options.setdefault("regions", data.regions if isinstance(data.regions, str) else data.regions[0])
    return _built(BUILDERS[name], options, data_dir=data.data_dir)


def builder_options(builder_class: type[datasets.DatasetBuilder]) -> list[str]:
    """The names that `data.options` of a recipe may give to a builder: `config_name`, and those that are its own."""
    general = {*field_names(datasets.BuilderConfig)}
    return [*(name for name in field_names(builder_class.BUILDER_CONFIG_CLASS) if name not in general), "config_name"]


def _built(builder_class: type[LocalBuilder], options: Columns, **places: Any) -> dict[str, datasets.Dataset]:
    check_names(options, builder_options(builder_class), "data.options.")
    with recipe_key_errors("data"):
        builder = builder_class(**places, **options)
    builder.download_and_prepare()
    for split, info in builder.info.splits.items():
        if not info.num_examples:
            raise RecipeError(
                f"data.builder {builder.name}: the split {split} has no rows in {places.get('data_dir')}"
            )
    if builder_class is Rows:
        for line in builder.told():
            say_once(line)
    return dict(builder.as_dataset())


def _check_columns(task: Task, data: Data, rows: datasets.Dataset) -> None:
    missing = [name for name in task.columns if name not in rows.column_names]
    if missing:
        raise RecipeError(
            f"data.builder {data.builder or task.builder}: its rows have no column {', '.join(missing)}, which the "
            f"task {task.name!r} needs; found {', '.join(rows.column_names)}"
        )
