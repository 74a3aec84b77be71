# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""Which window of a second look helps (`look(again=True)`)? Questions about scenes that fill a part of a picture.

Each scene is put somewhere on an empty ground some times as wide and as high, so that its objects are small. The
questions ask what one object looks like. The model answers them about the large picture, about it with the crop of
each window, about it with its scene (the best crop), and about the scene alone. Printed are exact answers, and how
many each window adds to the first one, with 95 % intervals over images.

examples:
  grounded-attention data scenes --output data/scenes_2400 --images 2400 --seed 11
  python -m benchmarks.windows data/scenes_2400 --times 3
"""

import argparse
import json
import random
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image
from tqdm.auto import tqdm
from transformers import AutoModelForImageTextToText, AutoProcessor

from benchmarks.doubt import MODEL
from grounded_attention.commands.command_line import make_parser, positive, run
from grounded_attention.dataset_scripts.builders.vqa_v2 import VQAv2
from grounded_attention.heads.heads_file import ChosenHeads
from grounded_attention.heads.maps import TokenGrid
from grounded_attention.lens.answered import ManyLooks, ask_each
from grounded_attention.lens.exchanges import neutral_rows, read_heads
from grounded_attention.lens.forms import crop_box, relative
from grounded_attention.lens.sequences import read_prompt
from grounded_attention.metrics.significance import estimate_ratio
from grounded_attention.utils.open_images import open_image

KINDS = ("what color", "what shape", "what pattern", "what size")
# Window -> the side of the smallest one in pixels, by the tower's input and the shorter side of the picture
WINDOWS: dict[str, Callable[[float, float], float]] = {
    "what the tower sees, 96": lambda tower, short: tower,
    "224": lambda tower, short: 224,
    "336": lambda tower, short: 336,
    "1/4 of the picture": lambda tower, short: short / 4,
    "1/3": lambda tower, short: short / 3,
    "1/2": lambda tower, short: short / 2,
}
WAYS = ("no second look", *WINDOWS, "its scene", "the scene alone")
BATCH = 64


def enlarge(scene: Image.Image, times: float, rng: random.Random) -> Image.Image:
    """Puts a scene on a ground of the colour of its corner."""
    width, height = (round(edge * times) for edge in scene.size)
    large = Image.new("RGB", (width, height), scene.getpixel((0, 0)))
    large.paste(scene, (rng.randint(0, width - scene.width), rng.randint(0, height - scene.height)))
    return large


def looked_at(looks: ManyLooks, large: Image.Image, question: str) -> np.ndarray:
    """(Y, X): where the end of the question looks, relative to the neutral one, as `look` has it."""
    prompt = read_prompt(looks.patches, question, [question], [large])
    end = [prompt.prompt_length - 1]
    chosen, asked = read_heads(looks.model, looks.chosen, prompt, prompt.inputs, end)
    neutral = neutral_rows(looks.model, looks.patches, [large], chosen.heads)
    shown = prompt.token_images == 0
    grid = TokenGrid.of_tokens(prompt.batch["region_boxes"][0], shown)
    return grid.maps(relative(asked[:, 0].mean(0), neutral.mean(0)) * shown).numpy()


def pictures_of(looks: ManyLooks, scene: Image.Image, question: str, times: float, rng: random.Random) -> list[Any]:
    """The pictures of each of `WAYS`."""
    large = enlarge(scene, times, rng)
    values = looked_at(looks, large, question)
    tower = looks.patches.processor.image_processor.size["height"]
    crops = []
    for side in WINDOWS.values():
        crops.append(large.crop(crop_box(values, large.size, side(tower, min(large.size)))))
    return [large, *[[large, crop] for crop in (*crops, scene)], scene]


def measure(options: argparse.Namespace) -> str:
    """Runs the command and returns the text to print."""
    model = AutoModelForImageTextToText.from_pretrained(options.model)
    processor = AutoProcessor.from_pretrained(options.model)
    heads = ChosenHeads.from_file(options.model)
    looks = ManyLooks(model, processor, heads, batch_size=BATCH)
    builder = VQAv2(data_dir=str(options.scenes), splits=["train"])
    builder.download_and_prepare()
    rows = [row for row in builder.as_dataset("train") if row["question_type"] in KINDS]
    rng = random.Random(options.seed)
    rows = rng.sample(rows, min(options.questions, len(rows)))
    right = []
    for row in tqdm(rows, disable=None, leave=False):
        scene = open_image(options.scenes / f"flickr30k-images/{row['image_id']}.jpg")
        pictures = pictures_of(looks, scene, row["text"], options.times, rng)
        asked = looks.answer(ask_each([row["text"]] * len(WAYS), pictures, None, 1.0, None), {"max_new_tokens": 8})
        answers = [processor.tokenizer.decode(each.answer.tokens, skip_special_tokens=True) for each in asked]
        right.append([answer.strip() == row["answers"][0] for answer in answers])
    ids = [row["image_id"] for row in rows]
    columns = np.array(right)
    parts = {}
    for place, way in enumerate(WAYS):
        added = columns[:, place].astype(float) - columns[:, 0]
        parts[way] = estimate_ratio(columns[:, place], None, ids), estimate_ratio(added, None, ids)
    if options.json:
        values = {way: [[each.value, each.low, each.high] for each in both] for way, both in parts.items()}
        return json.dumps({"questions": len(right), "times": options.times, **values})
    lines = [f"{len(right)} questions, {options.times} times as wide and high"]
    lines += [f"  {way}: {exact.percent}; added {added.percent}" for way, (exact, added) in parts.items()]
    return "\n".join(lines)


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the command and returns its exit status."""
    parser = make_parser("python -m benchmarks.windows", __doc__)
    parser.add_argument("scenes", type=Path, help="a folder of `grounded-attention data scenes`")
    parser.add_argument("--model", type=Path, default=MODEL, help="a model of `make vlm` (default: %(default)s)")
    parser.add_argument("--questions", type=positive, default=1000, metavar="N", help="default: %(default)s")
    parser.add_argument("--times", type=float, default=3.0, help="as wide and high (default: %(default)s)")
    parser.add_argument("--seed", type=int, default=0, help="of the questions and places (default: %(default)s)")
    parser.add_argument("--json", action="store_true", help="print the numbers as JSON")
    return run(parser, measure, arguments)


if __name__ == "__main__":
    sys.exit(main())
