# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""How well doubt tells nouns that name nothing, on drawn scenes, whose truth is complete, of the model of the package.

Doubt is fitted on the first scenes of one folder and measured on those of another one, drawn with another seed;
answers are sampled with other seeds too. Sampled and changed answers are reported apart.

examples:
  grounded-attention data scenes --output data/scenes_31 --images 1200 --seed 31
  grounded-attention data scenes --output data/scenes_78 --images 500 --seed 78
  python -m benchmarks.doubt data/scenes_31 data/scenes_78 --images 300
"""

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from transformers import AutoModelForImageTextToText, AutoProcessor

from grounded_attention import space
from grounded_attention.commands.command_line import make_parser, positive, run
from grounded_attention.dataset_scripts.scenes.language import NOUNS, PLURALS
from grounded_attention.dataset_scripts.scenes.records import scene_record, split_numbers
from grounded_attention.dataset_scripts.scenes.world import SHAPES
from grounded_attention.heads.heads_file import ChosenHeads, fit_doubt
from grounded_attention.lens.doubt_fitting import JudgedNoun, judge_nouns, measure_doubt
from grounded_attention.metrics.significance import estimate_ratio
from grounded_attention.utils.bounded_files import read_json

IMAGES = 450
MODEL = Path(space.__file__).parent / "models" / "vlm" / "direct"


def judge(root: Path, seed: int, images: int) -> list[JudgedNoun]:
    """Nouns of answers about the first training scenes of a folder."""
    manifest = read_json(Path(root, "scenes.json"))
    names = {}
    for number in split_numbers(manifest["seed"], manifest["images"])["train"][:images]:
        record = scene_record(manifest["seed"], number, manifest["images"], manifest["held_out"])
        names[record.image_id] = {shape for item in record.scene.objects for shape in item.shapes}
    nouns = {}
    for noun, means in NOUNS.items():
        if len(means) < len(SHAPES):  # "object" is never wrong
            nouns[noun] = nouns[PLURALS[noun]] = means
    loaded = AutoModelForImageTextToText.from_pretrained(MODEL), AutoProcessor.from_pretrained(MODEL)
    heads = ChosenHeads.from_file(MODEL).heads
    pictures = f"{root}/flickr30k-images/{{}}.jpg".format
    return list(judge_nouns(*loaded, names, pictures, "Describe the image.", heads, nouns, seed=seed))


def compare(options: argparse.Namespace) -> str:
    """Fits doubt on scenes of one folder and measures it on those of the other."""
    fitted = judge(options.fitted, 1, options.images)
    reported = judge(options.reported, 2, options.images)
    doubt = fit_doubt([noun.evidence for noun in fitted], [noun.absent for noun in fitted], ())
    measured: dict[str, dict[str, Any]] = {}
    for title, built in (("sampled", False), ("changed", True)):
        judged = [noun for noun in reported if noun.built == built]
        absent = np.array([noun.absent for noun in judged])
        kept = doubt.probabilities([noun.evidence for noun in judged]) < 0.5
        images = [noun.image_id for noun in judged]
        numbers = measure_doubt(doubt, judged)
        numbers["CHAIR"] = estimate_ratio(absent, None, images)
        numbers["CHAIR without doubted nouns"] = estimate_ratio(absent & kept, kept, images)
        numbers["right nouns that are kept"] = estimate_ratio(kept & ~absent, ~absent, images)
        measured[f"{title}, {len(judged)} nouns"] = numbers
    if options.json:
        values = {title: {name: each.value for name, each in of.items()} for title, of in measured.items()}
        return json.dumps({"fitted": len(fitted), **values})
    lines = [f"fitted on {len(fitted)} nouns: {doubt}"]
    for title, of_kind in measured.items():
        lines.append(title)
        lines += [f"  {name}: {each.percent}" for name, each in of_kind.items()]
    return "\n".join(lines)


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the command and returns its exit status."""
    parser = make_parser("python -m benchmarks.doubt", __doc__)
    parser.add_argument("fitted", type=Path, help="a folder of `grounded-attention data scenes`, to fit on")
    parser.add_argument("reported", type=Path, help="another one, drawn with another seed, to measure on")
    parser.add_argument("--images", type=positive, default=IMAGES, help="of each folder (default: %(default)s)")
    parser.add_argument("--json", action="store_true", help="print the numbers as JSON")
    return run(parser, compare, arguments)


if __name__ == "__main__":
    sys.exit(main())
