# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""Which way of pointing hits: coordinates as text, attention with two targets, or a head of its own, on drawn screens.

One small model is trained from random weights to answer with boxes as text. From it each way goes on for equally many
steps, with each seed. Then all point at the same texts of the test split, without and with one zoom. The table has the
part of the points in the right box, mean over seeds, with the 95 % interval over texts (bootstrap), by type and size
of the target and by what the text asks by. Chance: the middle of the target of another text. What is trained already
is not trained again.

examples:
  python -m benchmarks.pointers
  python -m benchmarks.pointers --start-steps 20 --steps 4 --seeds 1 --texts 6 --output runs/pointer_small
"""

import argparse
import io
import json
import re
import sys
from collections.abc import Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from contextlib import redirect_stderr, redirect_stdout
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from grounded_attention import grounded_rows
from grounded_attention.commands.command_line import make_parser, positive, run
from grounded_attention.commands.main import main as program
from grounded_attention.dataset_scripts.scenes.screen_files import PATCH, PICTURE
from grounded_attention.heads.points import is_hit, zoom_box
from grounded_attention.heads.statistics import ratio_intervals
from grounded_attention.lens.pointing import point
from grounded_attention.tasks.generated_answers import prompt_inputs
from grounded_attention.training.experiments.pretrained import load_vlm
from grounded_attention.utils.project import find_recipe

# Name -> what it is, its method, and what it changes in the recipe.
WAYS: dict[str, tuple[str, str, list[str]]] = {
    "text": ("boxes as text", "none", ["options.expressions=locate"]),
    "indicator": (
        "attention, indicator targets, mean of the heads",
        "pointer",
        ["supervision.options.pointer={target: indicator, reduction: mean}"],
    ),
    "gaussian": ("attention, Gaussian targets, weighted heads (GUI-AIMA)", "pointer", []),
    "actor": ("a head of its own (GUI-Actor)", "actor", []),
}
SCREENS = Path("data/screens")
BATCH = 20
LONGEST = 24


def train(options: argparse.Namespace) -> dict[tuple[str, int], Path]:
    """Trains what is not trained yet; the folders of the models."""
    start = options.output / "start"
    folders = {}
    jobs = []
    for seed in range(1, options.seeds + 1):
        for name, (_, method, changes) in WAYS.items():
            folder = options.output / f"{name}_{seed}"
            folders[name, seed] = folder / method
            settings = [f"seed={seed}", f"methods=[{method}]", f"training.max_steps={options.steps}", *changes]
            jobs.append((folder, [*settings, f"model.source={start / 'none'}"]))
    with ProcessPoolExecutor(options.workers, get_context("spawn")) as pool:
        pool.submit(_train, "screens", start, [f"training.max_steps={options.start_steps}"]).result()
        for done in as_completed([pool.submit(_train, "screens_pointer", *job) for job in jobs]):
            if done.exception():
                pool.shutdown(wait=False, cancel_futures=True)
            done.result()
    return folders


def _train(recipe: str, folder: Path, settings: Sequence[str]) -> None:
    told = io.StringIO()
    with redirect_stdout(told), redirect_stderr(told):
        failed = program(["train", str(find_recipe(f"{recipe}.yaml")), f"output_dir={folder}", *settings])
    if failed:
        raise ValueError(f"training {folder} failed: {told.getvalue()[-2000:]}")
    print(f"trained: {folder}", file=sys.stderr, flush=True)


def read_targets(count: int) -> list[dict[str, Any]]:
    """Texts of the test split, spread over its screens."""
    rows = list(grounded_rows(str(SCREENS / "test")))
    chosen = [rows[n] for n in np.linspace(0, len(rows) - 1, min(count, len(rows))).round().astype(int)]
    targets = []
    for row in chosen:
        [phrase] = row["phrases"]
        x1, y1, x2, y2 = box = phrase["boxes"][0]
        tokens = (x2 - x1) * (y2 - y1) * (PICTURE / PATCH) ** 2
        groups = ["all", row["data_type"], "below a token" if tokens < 1 else "a token and more"]
        groups.append(f"by {row['asked_by']}")
        targets.append({"image": row["image"], "text": phrase["text"], "box": box, "groups": groups})
    return targets


def find_points(folder: Path, name: str, targets: Sequence[Mapping[str, Any]]) -> dict[int, list[Any]]:
    """Number of zooms (0, 1) -> the point of each target, None where the answer has none."""
    model, processor = load_vlm(str(folder))
    if name != "text":
        return {
            zoom: [point(model, processor, each["image"], each["text"], zoom=zoom).point for each in targets]
            for zoom in (0, 1)
        }
    texts = [each["text"] for each in targets]
    first = _written_points(model, processor, texts, [each["image"] for each in targets])
    second = list(first)
    seen = [n for n, found in enumerate(first) if found]
    crops = {n: zoom_box(targets[n]["image"].size, first[n]) for n in seen}
    closer = _written_points(model, processor, [texts[n] for n in seen], [_crop(targets[n], crops[n]) for n in seen])
    for n, found in zip(seen, closer, strict=True):
        if found:
            left, top, right, bottom = crops[n]
            width, height = targets[n]["image"].size
            second[n] = ((left + found[0] * (right - left)) / width, (top + found[1] * (bottom - top)) / height)
    return {0: first, 1: second}


def _crop(target: Mapping[str, Any], crop: tuple[int, int, int, int]) -> Image.Image:
    side = 2 * (crop[2] - crop[0])
    return target["image"].crop(crop).resize((side, side), Image.Resampling.BICUBIC)


def _written_points(model: Any, processor: Any, texts: Sequence[str], images: Sequence[Any]) -> list[Any]:
    """The points that answers name."""
    found: list[Any] = []
    tokenizer = processor.tokenizer
    for start in range(0, len(texts), BATCH):
        inputs = prompt_inputs(processor, texts[start : start + BATCH], images[start : start + BATCH])
        made = model.generate(**inputs, max_new_tokens=LONGEST, do_sample=False, pad_token_id=tokenizer.pad_token_id)
        for answer in tokenizer.batch_decode(made[:, inputs["input_ids"].shape[1] :], skip_special_tokens=True):
            try:
                joined = re.sub(r"(?<=\d) (?=\d)", "", answer)  # each digit is a word of this tokenizer
                found.append(processor.box_dialect(None, "plain").read_point(joined))
            except ValueError:
                found.append(None)
    return found


def make_table(points: Mapping[str, list[list[Any]]], targets: Sequence[Mapping[str, Any]]) -> str:
    """Markdown: a line for each way and zoom, a column for each group; `points` has a list for each seed."""
    names = dict.fromkeys(name for each in targets for name in each["groups"])
    members = np.array([[name in each["groups"] for name in names] for each in targets], dtype=float)
    boxes = np.array([each["box"] for each in targets])
    middles = [tuple((box[:2] + box[2:]) / 2) for box in boxes]
    chance = np.array([[is_hit(middle, box) for middle in middles] for box in boxes], dtype=float)
    np.fill_diagonal(chance, 0)
    hits = {
        way: np.array(
            [
                [bool(found) and is_hit(found, box) for found, box in zip(of_seed, boxes, strict=True)]
                for of_seed in each
            ],
            dtype=float,
        )
        for way, each in points.items()
    }
    hits["chance"] = chance.sum(1)[None] / (len(boxes) - 1)
    head = [f"{name} ({int(number)})" for name, number in zip(names, members.sum(0), strict=True)]
    lines = ["| | " + " | ".join(["interval of all", "seeds", *head]) + " |", "|---" * 3 + "|--:" * len(head) + "|"]
    for way, each in hits.items():
        means = 100 * (each.mean(0) @ members) / members.sum(0)
        low, high = 100 * ratio_intervals(each.mean(0)[:, None], np.ones(len(boxes)))[:, 0]
        seeds = ", ".join(f"{100 * one.mean():.1f}" for one in each) if way != "chance" else ""
        cells = [f"{low:.1f} to {high:.1f}", seeds, *(f"{mean:.1f}" for mean in means)]
        lines.append(f"| {way} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def compare(options: argparse.Namespace) -> str:
    """Trains, measures, and returns the table, which is written too."""
    folders = train(options)
    targets = read_targets(options.texts)
    points: dict[str, list[list[Any]]] = {}
    for (name, seed), folder in folders.items():
        for zoom, found in find_points(folder, name, targets).items():
            points.setdefault(WAYS[name][0] + ", zoom" * zoom, []).append(found)
        print(f"measured: {name}, seed {seed}", file=sys.stderr, flush=True)
    points = {name: points[name] for name in sorted(points, key=lambda each: each.endswith(", zoom"))}
    table = make_table(points, targets)
    (options.output / "table.md").write_text(table + "\n", encoding="utf-8")
    about = [{key: each[key] for key in ("text", "box", "groups")} for each in targets]
    found = json.dumps({"targets": about, "points": points})
    (options.output / "points.json").write_text(found, encoding="utf-8")
    if options.json:
        return found
    return f"{table}\n\nwritten: {options.output}/ (table.md, points.json)"


def build_parser() -> argparse.ArgumentParser:
    parser = make_parser("python -m benchmarks.pointers", __doc__)
    add = parser.add_argument
    add("--output", type=Path, default=Path("runs/pointer"), metavar="DIR", help="folder of the models and the table")
    add("--start-steps", type=positive, default=1500, metavar="N", help="steps of the common start (default: 1500)")
    add("--steps", type=positive, default=600, metavar="N", help="steps of each way (default: 600)")
    add("--seeds", type=positive, default=3, metavar="N", help="number of seeds (default: 3)")
    add("--texts", type=positive, default=120, metavar="N", help="texts to point at (default: 120)")
    add("--workers", type=positive, default=2, metavar="N", help="trainings at a time (default: 2)")
    add("--json", action="store_true", help="print targets and points as JSON")
    return parser


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the program; returns 0, or 2 after a user error, which is one line on standard error."""
    return run(build_parser(), compare, arguments)


if __name__ == "__main__":
    sys.exit(main())
