# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""Scores a checkpoint and writes the files of `grounded-attention evaluate`."""

import dataclasses
import json
import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any

from transformers.utils import logging

from grounded_attention.analysis import MAPS
from grounded_attention.metrics.intervals import interval_text
from grounded_attention.metrics.significance import estimate_ratio
from grounded_attention.pages.html_report import Measured, Report, build_report, shown_images
from grounded_attention.pages.overlay import Picture, embed
from grounded_attention.tasks import TASKS, Task
from grounded_attention.training.experiments.measuring import on_track
from grounded_attention.training.experiments.output import read_run
from grounded_attention.training.experiments.prepared_data import PreparedData, prepare_data
from grounded_attention.training.experiments.scoring import (
    Scored,
    measure_faithfulness,
    read_config,
    score_file,
    score_splits,
    tables,
)
from grounded_attention.training.recipes.recipe import Data, Recipe, check_names
from grounded_attention.utils.named_types import Fields
from grounded_attention.utils.open_images import open_image
from grounded_attention.utils.safe_paths import path_below
from grounded_attention.utils.whole_files import write_json, write_text

from .command_line import Result, refuse_given
from .options import Evaluation
from .rows_options import RowSource, below, read_columns, settings

# Options


def to_recipe(options: Evaluation, config: Any) -> Recipe:
    """The recipe with the data, the task options and the seed of the evaluation."""
    values = settings(options.set)
    RowSource(options.data, columns=options.columns, boxes=options.boxes).refuse_without_data()
    data = Data(
        data_dir=options.data_dir or "",
        source=options.data,
        columns=read_columns(options.columns),
        boxes=options.boxes,
        builder=values.get("data.builder"),
        regions=options.regions,
        images=options.images if options.data or getattr(config, "vision_config", None) is not None else None,
        options=below("data.options.", values),
        # A task that needs facts about its training rows gets them from the scored rows.
        train_splits=options.split[:1],
        limit={} if options.limit is None else dict.fromkeys(options.split, options.limit),
    )
    data.options["splits"] = options.split
    training = {"per_device_eval_batch_size": options.batch_size}
    for_task = task_options(options, config, data.regions is not None) | below("options.", values)
    return Recipe(str(options.task), for_task, seed=options.seed, data=data, training=training)


def run_recipe(checkpoint: str, options: Evaluation) -> Recipe:
    """The recipe of the run that a checkpoint belongs to."""
    recipe = read_run(Path(checkpoint).parent, "give --task, and --data or --data-dir")
    of_rows = ("data_dir", "regions", "text_only", "images", "set")
    refuse_given(options, of_rows, "needs --task: without it all is as in the run")
    if options.limit is None:
        limit = {}
    else:
        limit = dict.fromkeys(options.split, options.limit)
    data = dataclasses.replace(recipe.data, scenes=None, limit={**recipe.data.limit, **limit})
    training = {"per_device_eval_batch_size": options.batch_size}
    return dataclasses.replace(recipe, data=data, training=training)


def task_options(options: Evaluation, config: Any, grounded: bool) -> Fields:
    """The task options that the checkpoint, or the file of answers, determines."""
    task = TASKS[str(options.task)]
    if config is not None:
        return task.trained_options(config, grounded)
    predictions = task.read_predictions(Path(str(options.predictions)))
    if not predictions:
        raise ValueError(f"{options.predictions}: no predictions found, expected {task.predictions}")
    return task.prediction_options(predictions)


def check_options(checkpoint: str | None, options: Evaluation) -> Task:
    """Checks the options before anything is loaded, and finds the task."""
    if (checkpoint is None) == (options.predictions is None):
        raise ValueError("give either a CHECKPOINT or --predictions FILE")
    named = [name for name, task in TASKS.items() if getattr(task, "builder", None) == options.task]
    if options.task not in TASKS and len(named) == 1:
        options.task = named[0]  # by the name of its data
    if options.task not in TASKS:
        raise ValueError(f"--task {options.task}: unknown task, expected one of {', '.join(sorted(TASKS))}")
    task = TASKS[str(options.task)]
    if options.predictions is not None and task.predictions is None:
        known = ", ".join(name for name, task in TASKS.items() if task.predictions)
        raise ValueError(f"--predictions: the task {options.task} has no official file of predictions, only {known}")
    pictures = options.images or (options.data is not None and task.image_tokens)
    if checkpoint is not None and not (options.regions or pictures or options.text_only):
        raise ValueError("no region table: give --regions TABLE, or --text-only to score without regions")
    if options.text_only and (options.regions or task.needs_regions):
        raise ValueError("--text-only cannot be combined with --regions or a task that chooses regions")
    if options.images is not None and not Path(options.images).is_dir():
        raise ValueError(f"--images {options.images}: no such folder")
    return task


# Output


def find_picture(folder: str | None, image_id: str, file_name: str | None) -> Picture | None:
    """Finds the image of a row by its file name, by its id, or by COCO's pattern of file names."""
    if folder is None:
        return None
    names = [name for name in (file_name, f"{image_id}.jpg", f"{image_id}.png") if name]
    paths = [path for path in (path_below(folder, name) for name in names) if path.is_file()]
    if not paths and image_id.isascii() and image_id.isdigit():
        paths = sorted(Path(folder).glob(f"*_{int(image_id):012}.jpg"))
    if paths:
        return embed(open_image(paths[0]))
    return None


def image_table(parts: Sequence[Scored], recipe: Recipe, data: PreparedData, folder: str | None) -> Fields:
    """`pictures` and `sizes` (width, height in pixels) of the images in the report."""
    wanted = set()
    for part in parts:
        wanted.update(shown_images(part.judged, recipe.seed))
    table = next(iter(tables(data).values()), None)
    pictures = {}
    sizes = {}
    for rows in data.splits.values():
        last_rows = {image_id: number for number, image_id in enumerate(rows["image_id"]) if image_id in wanted}
        for number in last_rows.values():
            row = rows[number]
            name = row["image_id"]
            picture = find_picture(folder, name, row.get("file_name"))
            if picture is not None:
                pictures[name] = picture
            sizes[name] = (row.get("width"), row.get("height"))
            if None in sizes[name]:
                if table is not None and name in table:
                    record = table[name]
                    sizes[name] = (record.width, record.height)
                else:
                    sizes[name] = (4, 3)
    return {"pictures": pictures, "sizes": sizes}


def to_report(parts: Sequence[Scored], recipe: Recipe, data: PreparedData, scored: str, options: Evaluation) -> Report:
    """The content of the report page."""
    given = recipe.data
    folder = os.sep if given.source else options.images or given.images
    shown = image_table(parts, recipe, data, folder)
    drawn = len(shown["pictures"])
    wanted = len(shown["sizes"])
    if folder and drawn < wanted:
        remarks = [f"{wanted - drawn} of {wanted} images not found."]
    else:
        remarks = []
    measured = []
    for part in parts:
        title = f"{part.split} on {part.track}" if part.track else part.split
        measured.append(Measured(title, part.numbers, part.judged, remarks))
    about = [
        ("scored", scored),
        ("task", recipe.task),
        ("data", given.source or given.data_dir),
        ("regions", str(given.regions or "none")),
        ("rows", ", ".join(f"{name} {len(split)}" for name, split in data.splits.items())),
    ]
    about += [("settings", " ".join(options.set))] if options.set else []
    return Report(f"{recipe.task}: {Path(scored).name}", about, measured, **shown, seed=recipe.seed)


def metrics(parts: Sequence[Scored]) -> dict[str, Fields]:
    """Split -> its numbers; with tracks the names are `<track>_<metric>`."""
    by_split: dict[str, Fields] = {}
    for part in parts:
        named = {on_track(part.track, name): value for name, value in part.numbers.items()}
        by_split.setdefault(part.split, {}).update(named)
    return by_split


def write(parts: Sequence[Scored], recipe: Recipe, data: PreparedData, scored: str, options: Evaluation) -> Path:
    """Writes all files to the folder --output and returns the folder."""
    if options.predictions is None:
        name = Path(scored)
    else:
        name = Path(Path(scored).stem)
    folder = Path(options.output or Path("runs", "evaluation", f"{recipe.task}_{'_'.join(name.parts[-2:])}"))
    page = build_report(to_report(parts, recipe, data, scored, options))
    about: Fields = {
        "scored": scored,
        "task": recipe.task,
        "data_dir": recipe.data.source or recipe.data.data_dir,
    }
    about["regions"] = None if recipe.data.regions is None else str(recipe.data.regions)
    given = {"set": options.set, "seed": recipe.seed, "limit": options.limit}
    write_json(folder / "metrics.json", {**about, **given, "splits": metrics(parts)})
    for part in parts:
        path = folder / f"predictions_{part.name}"
        if not TASKS[recipe.task].export(part.items, path):
            lines = "".join(json.dumps(one.to_dict(), ensure_ascii=False) + "\n" for one in part.judged)
            write_text(path.with_name(path.name + ".jsonl"), lines)
    write_text(folder / "report.html", page)
    return folder


# The command


def work(checkpoint: str | None, options: Evaluation) -> Result:
    """Scores the splits, and writes the files of the output folder."""
    options.split = list(dict.fromkeys("validation" if s == "val" else s for s in options.split or ["validation"]))
    logging.set_verbosity_error()
    scored = str(checkpoint or options.predictions)
    if options.task is None:
        recipe = run_recipe(scored, options)
        read_config(scored, TASKS[recipe.task])
    else:
        task = check_options(checkpoint, options)
        recipe = to_recipe(options, None if checkpoint is None else read_config(checkpoint, task))
    with redirect_stdout(sys.stderr):  # how rows were read; the result alone goes to standard output
        data = prepare_data(recipe)
    check_names(options.split, list(data.splits), "--split ")
    data.splits = {name: data.splits[name] for name in options.split}
    if options.faithful:
        if options.predictions or len(options.split) > 1 or not tables(data):
            raise ValueError("--faithful measures a CHECKPOINT with --regions on one --split: give these alone")
        maps = MAPS if "all" in options.faithful else tuple(dict.fromkeys(options.faithful))
        curves = measure_faithfulness(recipe, scored, data, options.split[0], maps)
        return curves.to_dict(), curves.save(options.output or Path("runs", "faithful", *Path(scored).parts[-2:]))
    if options.predictions is not None:
        task = TASKS[recipe.task]
        parts = [score_file(Path(scored), task, split, rows) for split, rows in data.splits.items()]
    else:
        parts = list(score_splits(scored, recipe, data))
    folder = write(parts, recipe, data, scored, options)
    lines = [line for part in parts for line in _lines(part)]
    return metrics(parts), "\n".join([*lines, f"written: {folder}/report.html"])


def _lines(part: Scored) -> Iterator[str]:
    """The numbers of a part; shares of items have their interval over images."""
    for name, value in part.numbers.items():
        text = f"{part.name}: {name} "
        if name in part.items:
            pairs = zip(part.items[name], part.items["image_id"], strict=True)
            scores, images = zip(*((score, image) for score, image in pairs if score is not None), strict=True)
            each = estimate_ratio(scores, None, images)
            yield f"{text}{value:.4f} ({interval_text((each.low, each.high), '.4f')}; {each.count} items)"
        elif isinstance(value, int | float):
            yield text + (f"{value:.4f}" if isinstance(value, float) else str(value))
