# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""Scores a saved checkpoint and writes a report that shows its failures.

The folder --output gets metrics.json, the predictions (VQA: the official file, predictions_SPLIT.json; other tasks:
one line a prediction, predictions_SPLIT.jsonl) and report.html, one file that needs neither network nor scripts. With
--track the split is scored once on each table and files end in _SPLIT_TRACK.

The figures are those that training measures on the same rows. --set takes keys of recipes: data.builder,
data.options.NAME (the builder's options), options.NAME (the task's).

examples:
  grounded-attention evaluate runs/scenes_vgp/direct --task vgp --data-dir data/scenes --regions data/scenes/regions \\
      --images data/scenes/flickr30k-images

  grounded-attention evaluate runs/refcoco/none --task referring_expressions --data-dir data/refer --split testA \\
      --track ground_truth=data/regions_gt --track detected=data/regions_detected --images data/train2014

  # an official file of answers, without a model
  grounded-attention evaluate --predictions answers.json --task vqa --data-dir data/vqa --split validation
"""

import argparse
import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from transformers.utils import logging

from grounded_attention.dataset_scripts.builders.vqa_v2 import read_predictions
from grounded_attention.processing.open_images import open_image
from grounded_attention.reports.html_report import Measured, Report, build_report, shown_images
from grounded_attention.reports.report_pictures import Picture, embed
from grounded_attention.tasks import TASKS, Task
from grounded_attention.training.experiments.scoring import Scored, read_config, score_file, score_splits, tables
from grounded_attention.training.experiments.setup import Prepared, prepare_data
from grounded_attention.training.recipes.recipe import Data, Recipe
from grounded_attention.utils.whole_files import write_json, write_text

from .command_line import make_parser, run
from .command_settings import below, settings
from .user_errors import explain

# What is asked


def named_tables(texts: Sequence[str]) -> dict[str, str]:
    """`NAME=TABLE` texts of --track.

    Raises:
        ValueError: no such text, or a name twice.
    """
    found: dict[str, str] = {}
    for text in texts:
        name, equals, table = text.partition("=")
        if not (name and equals and table) or name in found:
            raise ValueError(f"--track {text}: expected NAME=TABLE, each name once")
        found[name] = table
    return found


def to_recipe(asked: argparse.Namespace, config: Any) -> Recipe:
    """The recipe whose data, options and seed the evaluation shares with training."""
    given, tracks = settings(asked.set), named_tables(asked.track)
    options = below("options.", given)
    data = Data(
        data_dir=asked.data_dir,
        builder=given.get("data.builder"),
        regions=asked.regions or next(iter(tracks.values()), None),
        tracks=tracks,
        images=asked.images if getattr(config, "vision_config", None) is not None else None,
        options=below("data.options.", given),
        # What a task wants to know of the rows it was trained on, it is told of those that are scored.
        train_splits=asked.split[:1],
        limit={} if asked.limit is None else dict.fromkeys(asked.split, asked.limit),
    )
    data.options["splits"] = asked.split
    training = {"per_device_eval_batch_size": asked.batch_size, "use_cpu": asked.cpu}
    options = task_options(asked, config, data.regions is not None) | options
    return Recipe(asked.task, options, seed=asked.seed, data=data, training=training)


def task_options(asked: argparse.Namespace, config: Any, grounded: bool) -> dict[str, Any]:
    """The options that follow from the checkpoint, or from the file of answers."""
    if config is None:  # official answers of VQA v2
        return {"answers": _given_answers(Path(asked.predictions))}
    return TASKS[asked.task].trained_options(config, grounded)


def _given_answers(path: Path) -> list[str]:
    answers = sorted(set(read_predictions(path).values()))
    if not answers:
        raise ValueError(f"{path}: no answers: expected a list of objects with question_id and answer")
    return answers


def check_asked(asked: argparse.Namespace) -> None:
    """Refuses what cannot be scored as asked.

    Raises:
        ValueError: names the argument.
    """
    if (asked.checkpoint is None) == (asked.predictions is None):
        raise ValueError("give either a CHECKPOINT or --predictions FILE")
    if asked.task not in TASKS:
        raise ValueError(f"--task {asked.task}: unknown; known: {', '.join(sorted(TASKS))}")
    if asked.predictions is not None and asked.task != "vqa":
        raise ValueError(
            f"--predictions are official answers of VQA v2, not of the task {asked.task}: give --task vqa"
        )
    if asked.checkpoint is not None and not (asked.regions or asked.track or asked.text_only or asked.images):
        raise ValueError("no region table: give --regions TABLE or --track NAME=TABLE, or --text-only for texts alone")
    if asked.text_only and (asked.regions or asked.track or TASKS[asked.task].needs_regions):
        raise ValueError("--text-only goes with neither --regions nor --track, nor with a task that chooses regions")
    for name in ("limit", "batch_size"):
        value = getattr(asked, name)
        if value is not None and value < 1:
            raise ValueError(f"--{name.replace('_', '-')} {value}: expected 1 or more")
    if asked.images is not None and not Path(asked.images).is_dir():
        raise ValueError(f"--images {asked.images}: no such folder")


# What is written


def find_picture(folder: str | None, image_id: str, file_name: str | None) -> Picture | None:
    """The image of a row, by its file name, its id, or as COCO names its files; None where there is none.

    Raises:
        ValueError: the file is no image.
    """
    if folder is None:
        return None
    names = [name for name in (file_name, f"{image_id}.jpg", f"{image_id}.png") if name]
    paths = [Path(folder, name) for name in names if Path(folder, name).is_file()]
    if not paths and image_id.isascii() and image_id.isdigit():
        paths = sorted(Path(folder).glob(f"*_{int(image_id):012}.jpg"))
    return embed(open_image(paths[0])) if paths else None


def image_table(parts: Sequence[Scored], data: Prepared, asked: argparse.Namespace) -> dict[str, Any]:
    """`pictures` and `sizes` of the images that the report shows."""
    wanted = {image_id for part in parts for image_id in shown_images(part.judged, asked.seed)}
    pictures, sizes = {}, {}
    for rows in data.splits.values():
        ids = rows["image_id"]
        for place in {image_id: n for n, image_id in enumerate(ids) if image_id in wanted}.values():
            row = rows[place]
            found = find_picture(asked.images, row["image_id"], row.get("file_name"))
            if found is not None:
                pictures[row["image_id"]] = found
            sizes[row["image_id"]] = _size(row, data)
    return {"pictures": pictures, "sizes": sizes}


def _size(row: Mapping[str, Any], data: Prepared) -> tuple[int, int]:
    if row.get("width") and row.get("height"):
        return row["width"], row["height"]
    table = next(iter(tables(data).values()), None)
    record = table[row["image_id"]] if table is not None and row["image_id"] in table else None
    return (4, 3) if record is None else (record.width, record.height)


def to_report(parts: Sequence[Scored], data: Prepared, asked: argparse.Namespace) -> Report:
    """The page's content."""
    shown = image_table(parts, data, asked)
    found, wanted = len(shown["pictures"]), len(shown["sizes"])
    remarks = [] if asked.images is None or found == wanted else [f"{wanted - found} of {wanted} images not found."]
    measured = [
        Measured(" on ".join(filter(None, (part.split, part.track))), part.figures, part.judged, remarks)
        for part in parts
    ]
    scored = asked.checkpoint or asked.predictions
    regions = "; ".join(asked.track) or asked.regions or "none"
    rows = ", ".join(f"{name} {len(split)}" for name, split in data.splits.items())
    about = [("scored", scored), ("task", asked.task), ("data", asked.data_dir), ("regions", regions), ("rows", rows)]
    about += [("settings", " ".join(asked.set))] if asked.set else []
    return Report(f"{asked.task}: {Path(scored).name}", about, measured, **shown, seed=asked.seed)


def metrics(parts: Sequence[Scored]) -> dict[str, dict[str, Any]]:
    """Split -> its figures, on tracks `<track>_<figure>`."""
    found: dict[str, dict[str, Any]] = {}
    for part in parts:
        named = {f"{part.track}_{name}" if part.track else name: value for name, value in part.figures.items()}
        found.setdefault(part.split, {}).update(named)
    return found


def write(parts: Sequence[Scored], data: Prepared, asked: argparse.Namespace) -> Path:
    """Writes the files of the folder --output, each of them whole; returns the folder."""
    name = Path(asked.checkpoint or Path(asked.predictions).stem)
    folder = Path(asked.output or Path("runs", "evaluation", f"{asked.task}_{'_'.join(name.parts[-2:])}"))
    page = build_report(to_report(parts, data, asked))
    folder.mkdir(parents=True, exist_ok=True)
    about = {"scored": asked.checkpoint or asked.predictions, "task": asked.task, "data_dir": asked.data_dir}
    about |= {"regions": asked.regions, "tracks": asked.track, "set": asked.set, "seed": asked.seed}
    write_json(folder / "metrics.json", {**about, "limit": asked.limit, "splits": metrics(parts)})
    for part in parts:
        _write_predictions(part, TASKS[asked.task], folder / f"predictions_{part.name}")
    write_text(folder / "report.html", page)
    return folder


def _write_predictions(part: Scored, task: Task, path: Path) -> None:
    if task.export is not None:
        task.export(part.items, path)
        return
    lines = "".join(json.dumps(one.to_dict(), ensure_ascii=False) + "\n" for one in part.judged)
    write_text(path.with_name(path.name + ".jsonl"), lines)


# The command


def evaluate(asked: argparse.Namespace) -> str:
    """Does what the command is asked and returns what it prints.

    Raises:
        ValueError: any mistake of the user, in one sentence.
    """
    check_asked(asked)
    config = None if asked.checkpoint is None else read_config(asked.checkpoint, TASKS[asked.task])
    recipe = to_recipe(asked, config)
    data = prepare_data(recipe)
    data.splits = {name: data.splits[name] for name in asked.split}
    if asked.predictions is not None:
        parts = [score_file(Path(asked.predictions), split, rows) for split, rows in data.splits.items()]
    else:
        parts = list(score_splits(asked.checkpoint, recipe, data))
    folder = write(parts, data, asked)
    if asked.json:
        return json.dumps(metrics(parts))
    lines = [f"{part.name}: {name} {_said(value)}" for part in parts for name, value in part.figures.items()]
    return "\n".join([*(line for line in lines if not line.endswith(" ")), f"written: {folder}/report.html"])


def _said(value: Any) -> str:
    return f"{value:.4f}" if isinstance(value, float) else str(value) if isinstance(value, int) else ""


def main(arguments: Sequence[str] | None = None) -> int:
    """The command; returns its exit status: 0, or 2 after an error in one line on standard error."""
    return run(build_parser(), _work, arguments, explain=explain)


def _work(asked: argparse.Namespace) -> str:
    asked.split = list(dict.fromkeys("validation" if s == "val" else s for s in asked.split or ["validation"]))
    logging.set_verbosity_error()
    return evaluate(asked)


def build_parser() -> argparse.ArgumentParser:
    parser = make_parser("grounded-attention evaluate", __doc__)
    add = parser.add_argument
    add("checkpoint", nargs="?", metavar="CHECKPOINT", help="folder of a trained model, or a name on the Hub")
    add("--task", required=True, metavar="NAME", help=f"one of {', '.join(TASKS)}")
    add("--data-dir", required=True, metavar="DIR", help="folder of the data set, see docs/data.md")
    add("--regions", metavar="TABLE", help="region table")
    add("--track", action="append", default=[], metavar="NAME=TABLE", help="score on this table too, under this name")
    add("--text-only", action="store_true", help="score without regions")
    add("--split", action="append", metavar="NAME", help="split, may be repeated (default: validation)")
    add("--images", metavar="DIR", help="images to show, and to read where the model reads pixels")
    add("--output", metavar="DIR", help="folder of what is written (default: below runs/evaluation)")
    add("--predictions", metavar="FILE", help="score this official file of VQA v2 answers instead of a checkpoint")
    add("--limit", type=int, metavar="N", help="at most so many rows of a split, after a seeded shuffle")
    add("--batch-size", type=int, default=32, metavar="N", help="rows at a time (default: 32)")
    add("--seed", type=int, default=0, metavar="N", help="of --limit, of masking, of the predictions that are shown")
    add("--set", action="append", default=[], metavar="KEY=VALUE", help="a key of a recipe, see above")
    add("--cpu", action="store_true", help="leave a GPU unused")
    add("--json", action="store_true", help="print the figures as JSON")
    return parser


if __name__ == "__main__":
    sys.exit(main())
