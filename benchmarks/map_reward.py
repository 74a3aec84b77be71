# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""What a map as reward changes: GRPO on questions about scenes, by exact match alone and with `MapReward` beside it.

The start is the small LLaVA that is trained for the page of the Space, with pictures of half their size (16 image
tokens). The control has the boxes of the rows, each with its size, at random places. Printed are means over seeds, and
differences from exact match alone with a 95 % interval over pairs of seeds (Student's t): VQA accuracy on all held-out
questions and on "Is there a ...?", the part of the map of an answer that is in the boxes of its question, and how
often the best head points right on captions.

examples:
  grounded-attention data scenes --output data/scenes_900 --images 900 --seed 5
  python -m benchmarks.map_reward data/scenes_900 --seeds 5 --steps 60
"""

import argparse
import json
import random
import re
import statistics
import sys
import tempfile
from collections import Counter, defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from datasets import Dataset
from PIL import Image
from scipy.stats import t as student
from transformers import AutoModelForImageTextToText, AutoProcessor, set_seed
from trl import GRPOConfig, GRPOTrainer

import grounded_attention as ga
from grounded_attention.commands.command_line import make_parser, positive, run
from grounded_attention.dataset_scripts.scenes.language import NOUNS
from grounded_attention.metrics.vqa_accuracy import vqa_accuracy

START = Path(__file__).parents[1] / "grounded_attention" / "space" / "models" / "vlm" / "direct"
TERMS = ("exact match", "map", "random boxes")
MEASURES = ("VQA", "is there", "mass", "pointing")
Rows = list[dict[str, Any]]


def read_questions(scenes: Path, split: str) -> Rows:
    """Questions with answers and boxes: of all objects whose shape the question names, or none."""
    builder = ga.BUILDERS["vqa_v2"](data_dir=scenes, splits=[split])
    builder.download_and_prepare()
    drawn = json.loads((scenes / "refcoco+" / "instances.json").read_text())
    names = {each["id"]: each["name"] for each in drawn["categories"]}
    objects = defaultdict(list)
    for each in drawn["annotations"]:
        objects[str(each["image_id"])].append(each)
    rows = []
    found = list(builder.as_dataset(split))
    for asked in random.Random(0).sample(found, len(found)):
        image = Image.open(scenes / "flickr30k-images" / f"{asked['image_id']}.jpg").convert("RGB")
        shapes = {NOUNS.get(word.removesuffix("s")) for word in re.findall(r"\w+", asked["text"].lower())}
        boxes = []
        for each in objects[str(asked["image_id"])]:
            if (names[each["category_id"]],) in shapes:
                x, y, width, height = each["bbox"]
                corners = np.array([x, y, x + width, y + height]) / [*image.size, *image.size]
                boxes.append(corners.clip(0, 1).tolist())
        row = {"images": [image], "answers": asked["answers"], "phrases": [{"boxes": boxes}] if boxes else []}
        row["answer"] = Counter(asked["answers"]).most_common(1)[0][0]
        rows.append({**row, "prompt": [{"role": "user", "content": asked["text"]}]})
    return rows


def at_random(rows: Rows) -> Rows:
    """The same rows, with each box at a random place."""
    draw = np.random.default_rng(7)
    moved = []
    for row in rows:
        boxes = []
        for x1, y1, x2, y2 in [box for phrase in row["phrases"] for box in phrase["boxes"]]:
            x = draw.uniform(0, 1 - (x2 - x1))
            y = draw.uniform(0, 1 - (y2 - y1))
            boxes.append([x, y, x + x2 - x1, y + y2 - y1])
        moved.append({**row, "phrases": [{"boxes": boxes}] if boxes else []})
    return moved


def half_size() -> Any:
    """The processor of the shipped model, for pictures of half their size."""
    processor = AutoProcessor.from_pretrained(START)
    processor.image_processor.size = {side: processor.image_processor.size[side] // 2 for side in ("height", "width")}
    return processor


def map_reward(model: Any, processor: Any) -> ga.MapReward:
    return ga.MapReward(model, processor, ga.ChosenHeads.of_model(str(START)).heads)


def exact_match(completions: Any, answer: Any, **_: Any) -> list[float]:
    return [float(said[0]["content"].strip() == right) for said, right in zip(completions, answer, strict=True)]


def train(term: str, seed: int, steps: int, rows: Dataset, folder: str) -> Any:
    set_seed(seed)
    model = AutoModelForImageTextToText.from_pretrained(START)
    processor = half_size()
    rewards: list[Any] = [exact_match]
    if term != TERMS[0]:
        rewards.append(map_reward(model, processor))
    options: dict[str, Any] = {"max_steps": steps, "learning_rate": 5e-5, "per_device_train_batch_size": 32}
    options |= {"num_generations": 8, "max_completion_length": 4, "num_iterations": 2, "seed": seed}
    options |= {"report_to": "none", "use_cpu": True, "disable_tqdm": True, "logging_steps": steps, "bf16": False}
    options |= {"save_strategy": "no", "remove_unused_columns": False, "gradient_checkpointing": False}
    arguments = GRPOConfig(folder, **options)
    GRPOTrainer(model, rewards, args=arguments, train_dataset=rows, processing_class=processor).train()
    return model


@torch.no_grad()
def measure(model: Any, rows: Rows, captions: Rows) -> dict[str, float]:
    """The numbers of `MEASURES`, of greedy answers."""
    patches = ga.PatchGroundingProcessor(half_size())
    patches.tokenizer.padding_side = "left"
    reward = map_reward(model.eval(), patches)
    right: dict[str, list[float]] = {"VQA": [], "is there": [], "mass": []}
    for start in range(0, len(rows), 64):
        part = rows[start : start + 64]
        texts = [row["prompt"][0]["content"] for row in part]
        inputs = patches.model_inputs(patches(texts, images=[row["images"] for row in part]))
        ids = model.generate(**inputs, max_new_tokens=4, do_sample=False)[:, inputs["input_ids"].shape[1] :]
        said = patches.tokenizer.batch_decode(ids, True)
        prompts = []
        for row, text, answer in zip(part, texts, said, strict=True):
            right["VQA"].append(vqa_accuracy(answer.strip(), row["answers"]))
            if text.startswith("Is there"):
                right["is there"].append(right["VQA"][-1])
            content = [{"type": "image", "image": row["images"][0]}, {"type": "text", "text": text}]
            prompts.append([{"role": "user", "content": content}])
        masses = reward(prompts, said, ids.tolist(), phrases=[row["phrases"] for row in part])
        right["mass"] += [mass for mass in masses if mass is not None]
    ga.supervise(model)
    metric = ga.AttentionGrounding(rollout=False)
    collate = ga.GroundingCollator(patches)
    for start in range(0, len(captions), 30):
        batch = collate(captions[start : start + 30])
        metric.update(model(**patches.model_inputs(batch), **metric.forward_kwargs(batch)), batch)
    pointing = metric.compute(metric.state())["text_to_region_best_head"]
    return {name: statistics.fmean(values) for name, values in right.items()} | {"pointing": pointing}


def read_captions(scenes: Path) -> Rows:
    """Held-out captions as conversations, with their phrases."""
    rows = json.loads((scenes / "llava" / "val.json").read_text())
    for row in rows:
        row["image"] = str(scenes / "flickr30k-images" / row["image"])
    return rows


def compare(options: argparse.Namespace) -> str:
    """Trains and measures every term with every seed; returns the table."""
    held = read_questions(options.scenes, "validation")
    captions = read_captions(options.scenes)
    rows = read_questions(options.scenes, "train")[: 16 * options.steps]
    data = dict(zip(TERMS, (rows, rows, at_random(rows)), strict=True))
    found: dict[str, list[dict[str, float]]] = {term: [] for term in TERMS}
    for seed in range(1, options.seeds + 1):
        for term in TERMS:
            with tempfile.TemporaryDirectory() as folder:
                model = train(term, seed, options.steps, Dataset.from_list(data[term]), folder)
            found[term].append(measure(model, held, captions))
            print(term, seed, found[term][-1], file=sys.stderr, flush=True)
    if options.json:
        return json.dumps(found)
    lines = []
    half = student.ppf(0.975, options.seeds - 1) / options.seeds**0.5
    for name in MEASURES:
        alone = [100 * each[name] for each in found[TERMS[0]]]
        cells = [f"{statistics.fmean(alone):.1f}"]
        for term in TERMS[1:]:
            gains = [100 * each[name] - value for each, value in zip(found[term], alone, strict=True)]
            cells.append(f"{statistics.fmean(gains):+.1f} ± {half * statistics.stdev(gains):.1f}")
        lines.append(" | ".join(["", name, *cells, ""]).strip())
    return "\n".join(["| measure | " + " | ".join(TERMS) + " |", *lines])


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the command and returns its exit status."""
    parser = make_parser("python -m benchmarks.map_reward", __doc__)
    parser.add_argument("scenes", type=Path, help="a folder of `grounded-attention data scenes`")
    parser.add_argument("--seeds", type=positive, default=5, help="at least 2 (default: %(default)s)")
    parser.add_argument("--steps", type=positive, default=180, help="of each run (default: %(default)s)")
    parser.add_argument("--json", action="store_true", help="print the numbers of each seed as JSON")
    return run(parser, compare, arguments)


if __name__ == "__main__":
    sys.exit(main())
