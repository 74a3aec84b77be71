# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""Does a second look help (`look --again`)? Questions about scenes that fill a sixteenth of a picture.

Each scene is put somewhere on an empty ground four times as wide and as high, so that an object is smaller than an
image token. The questions ask what one object looks like. The model answers them about the scene itself, about the
large picture, after its second look (picture and crop), and about the crop alone. Printed are exact answers, and how
many the second look adds, with 95 % intervals over images.

examples:
  python -m benchmarks.second_look runs/vlm_scenes/direct --scenes data/scenes_8000
"""

import argparse
import json
import random
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image
from tqdm.auto import tqdm

from grounded_attention.commands.command_line import make_parser, run
from grounded_attention.commands.number_options import positive
from grounded_attention.dataset_scripts.builders.vqa_v2 import VQAv2
from grounded_attention.heads.statistics import ratio_intervals
from grounded_attention.lens.look import look
from grounded_attention.training.experiments.pretrained import load_vlm
from grounded_attention.utils.open_images import open_image

KINDS = ("what color", "what shape", "what pattern", "what size")
TIMES = 4  # as wide and as high
WAYS = ("scene", "large picture", "second look", "crop alone", "added by the second look")


def enlarge(scene: Image.Image, rng: random.Random) -> Image.Image:
    """Puts a scene on a ground of the colour of its corner."""
    width, height = scene.size
    large = Image.new("RGB", (width * TIMES, height * TIMES), scene.getpixel((0, 0)))
    large.paste(scene, (rng.randint(0, width * (TIMES - 1)), rng.randint(0, height * (TIMES - 1))))
    return large


def ask(model: Any, processor: Any, scene: Image.Image, question: str, rng: random.Random) -> tuple[str, ...]:
    """The answers of all ways but the last."""
    large = enlarge(scene, rng)
    lens = look(model, processor, large, question, again=True, max_new_tokens=8)
    assert lens.second is not None and lens.crop is not None, "asked again"
    plain = [
        look(model, processor, each, question, max_new_tokens=8).answer for each in (scene, large.crop(lens.crop))
    ]
    return plain[0], lens.answer, lens.second.answer, plain[1]


def measure(options: argparse.Namespace) -> str:
    """Runs the command and returns the text to print."""
    model, processor = load_vlm(options.model)
    builder = VQAv2(data_dir=str(options.scenes), splits=["validation"])
    builder.download_and_prepare()
    rows = [row for row in builder.as_dataset("validation") if row["question_type"] in KINDS]
    rng = random.Random(0)
    right: dict[str, list[list[bool]]] = {}
    for row in tqdm(rng.sample(rows, min(options.questions, len(rows))), disable=None, leave=False):
        scene = open_image(options.scenes / f"flickr30k-images/{row['image_id']}.jpg")
        said = ask(model, processor, scene, row["question"], rng)
        right.setdefault(row["image_id"], []).append([answer.strip() == row["answers"][0] for answer in said])
    sums = np.array([np.sum(each, axis=0) for each in right.values()])
    sums, counts = np.c_[sums, sums[:, 2] - sums[:, 1]], np.array([len(each) for each in right.values()])
    low, high = ratio_intervals(sums, counts)
    parts = dict(zip(WAYS, zip(sums.sum(0) / counts.sum(), low, high, strict=True), strict=True))
    if options.json:
        return json.dumps(
            {"questions": int(counts.sum()), **{way: list(map(float, each)) for way, each in parts.items()}}
        )
    lines = [f"| {way} | {part:.1%} | {low:.1%} to {high:.1%} |" for way, (part, low, high) in parts.items()]
    return "\n".join([f"| {counts.sum()} questions | exact | 95 % |", "|---|--:|--:|", *lines])


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the command and returns its exit status."""
    parser = make_parser("python -m benchmarks.second_look", __doc__)
    parser.add_argument("model", help="a model of `make vlm`, such as runs/vlm_scenes/direct")
    parser.add_argument("--scenes", type=Path, default=Path("data/scenes"), help="default: %(default)s")
    parser.add_argument("--questions", type=positive, default=400, metavar="N", help="default: %(default)s")
    parser.add_argument("--json", action="store_true", help="print the numbers as JSON")
    return run(parser, measure, arguments)


if __name__ == "__main__":
    sys.exit(main())
