# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""Scores a saved checkpoint and writes a report that shows its failures.

The command writes to the folder --output: metrics.json, the predictions (VQA and GQA: the official format,
predictions_SPLIT.json; other tasks: one line per prediction, predictions_SPLIT.jsonl) and report.html, one file that
needs neither network nor scripts. With --track each split is scored once on each table, and file names end in
_SPLIT_TRACK.

The numbers equal those that training measures on the same rows. --set takes keys of recipes: data.builder,
data.options.NAME (options of the builder), options.NAME (options of the task).

examples:
  grounded-attention evaluate runs/scenes_vgp/direct --task vgp --data-dir data/scenes --regions data/scenes/regions \\
      --images data/scenes/flickr30k-images

  # as its run measured it: task, data, regions and seed of the recipe beside it
  grounded-attention evaluate runs/referring/none --split validation

  # rows as people have them, and the regions of their pictures (grounded-attention regions extract --data)
  grounded-attention evaluate runs/referring/none --task referring_expressions --data others.jsonl --split val \\
      --regions data/others_regions

  grounded-attention evaluate runs/refcoco/none --task referring_expressions --data-dir data/refer --split testA \\
      --track ground_truth=data/regions_gt --track detected=data/regions_detected --images data/train2014

  # Q→A, QA→R and Q→AR of two runs of the task vcr, with data.options.mode=answer and with mode=rationale
  grounded-attention evaluate --join-vcr runs/vcr/none/items_validation.json \\
      runs/vcr_rationale/none/items_validation.json

  # probes: one table with intervals (docs/evaluation.md)
  grounded-attention evaluate runs/vlm_scenes/direct --suite composition --probe data/scenes --probe relations.json

  # the model before and after its training, into its card
  grounded-attention evaluate runs/vlm_scenes/direct --suite evidence --probe data/scenes \\
      --before runs/vlm_scenes/none --card runs/vlm_scenes/direct

  # an official file of answers, without a model
  grounded-attention evaluate --predictions answers.json --task vqa --data-dir data/vqa --split validation
"""

import argparse
import json
from pathlib import Path
from typing import Any

from grounded_attention.dataset_scripts.files.records import Record
from grounded_attention.tasks import TASKS
from grounded_attention.utils.bounded_files import read_json

from .command_line import make_main, make_parser, one_line
from .number_options import positive, seed_number
from .rows_options import add_source_options
from .user_errors import explain_error

SUITES = ("grounding", "composition", "hallucination", "evidence")
MATCHES = ("yes", "caption")


def _work(options: argparse.Namespace) -> str | None:
    if options.join_vcr:
        accuracies = join(*options.join_vcr)
        lines = (f"{name}: {value:.4g}" for name, value in accuracies.items())
        return json.dumps(accuracies) if options.json else "\n".join(lines)
    alone = [name for name in ("probe", "before", "card") if getattr(options, name) is not None]
    if options.suite:
        from .evaluate_suite import work
    elif alone:
        raise ValueError(f"--{alone[0]} has no effect without --suite: give --suite, or remove it")
    elif options.task is None and (options.checkpoint is None or options.predictions or options.data):
        raise ValueError("give --task and --data or --data-dir, a CHECKPOINT of a run, --suite, or --join-vcr")
    elif options.task is not None and (options.data_dir is None) == (options.data is None):
        raise ValueError(f"--task {options.task}: give either --data-dir or --data")
    else:
        from .evaluate_work import work

    return work(options)


def build_parser() -> argparse.ArgumentParser:
    parser = make_parser("grounded-attention evaluate", __doc__)
    add = parser.add_argument
    add("checkpoint", nargs="?", metavar="CHECKPOINT", help="folder of a trained model, or a name on the Hub")
    add("--task", metavar="NAME", help=f"one of {', '.join(TASKS)}")
    add("--suite", choices=SUITES, help="score on probes of this kind instead")
    add("--probe", action="append", metavar="SOURCE", help="of --suite: rows, or scenes; may be repeated")
    add("--match", choices=MATCHES, default="yes", help="how a decoder matches a text: yes or no, or as its caption")
    add("--before", metavar="CHECKPOINT", help="of --suite: compare with this model, such as that before the training")
    add("--card", metavar="FILE_OR_DIR", help="of --suite: put the tables of the output folder into this model card")
    add("--data-dir", metavar="DIR", help="folder of the data set, see docs/data.md")
    add("--regions", metavar="TABLE", help="folder of the region table")
    add(
        "--track",
        action="append",
        default=[],
        metavar="NAME=TABLE",
        help="also score on this table, under this name; may be repeated",
    )
    add("--text-only", action="store_true", help="score without regions")
    add("--split", action="append", metavar="NAME", help="split; may be repeated (default: validation)")
    add("--images", metavar="DIR", help="folder of the images, for the report and for a model that reads pixels")
    add_source_options(parser, "scored in place of --data-dir; pictures need no --images")
    add("--output", metavar="DIR", help="output folder (default: a folder in runs/evaluation)")
    add(
        "--predictions", metavar="FILE", help="score this official file of predictions, not a checkpoint (VQA v2, GQA)"
    )
    add("--join-vcr", nargs=2, type=Path, metavar=("ANSWERS", "RATIONALES"), help="items files of two runs of vcr")
    add("--limit", type=positive, metavar="N", help="at most N rows of a split, after a seeded shuffle")
    add("--batch-size", type=positive, default=32, metavar="N", help="rows per batch (default: 32)")
    add(
        "--seed",
        type=seed_number,
        default=0,
        metavar="N",
        help="seed of --limit, of masking, and of the choice of shown predictions",
    )
    add("--set", action="append", default=[], metavar="KEY=VALUE", help="a key of a recipe, see above")
    add("--cpu", action="store_true", help="run on the CPU even if there is a GPU")
    add("--json", action="store_true", help="print the numbers as JSON")
    return parser


# Two runs of VCR


def join(answers: Path, rationales: Path) -> dict[str, float]:
    """The accuracies of the items files of both runs."""
    items = _items(answers), _items(rationales)
    from grounded_attention.tasks.vcr import join_runs  # it imports torch: wrong files are named before that

    try:
        return join_runs(*items)
    except ValueError as error:
        raise ValueError(f"{answers}, {rationales}: {one_line(error)}") from error


def _items(path: Path) -> dict[str, list[Any]]:
    """Reads the columns of a run's items; the test split has no labels."""
    try:
        content = read_json(path)
    except ValueError as error:
        raise ValueError(f"{path} is not valid JSON ({error}); expected the items_SPLIT.json of a run") from error
    record = Record(content, path, "the items", "give the items_SPLIT.json of a run of the task vcr")
    questions = record.texts("example_id")
    if not questions or len(set(questions)) < len(questions):
        raise record.error("bad example_id", found=questions, expected="the ids of questions, each once")
    columns = {"example_id": questions, "chosen": _numbers(record, "chosen", len(questions), int)}
    if "label" in content:
        columns["label"] = _numbers(record, "label", len(questions), int | None)
    return columns


def _numbers(record: Record, name: str, count: int, kind: Any) -> list[Any]:
    values = record.items(name)
    if len(values) != count or not all(isinstance(each, kind) and not isinstance(each, bool) for each in values):
        raise record.error(f"bad {name}", found=values, expected=f"{count} whole numbers, one for each question")
    return values


main = make_main(build_parser, _work, explain_error=explain_error)
