# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""CPU seconds of a first `look` in a new process, compared to a script that loads the model and answers.

The script imports transformers and Pillow alone; both answer 64 tokens at most. In a round all ways take turns, each
in a process of its own, which counts whole. Above the imports: without what the import of transformers takes. A model
of 2 MB comes with the package; the larger a model, the less the imports of this package count.

examples:
  python -m benchmarks.cold_start
  python -m benchmarks.cold_start --model Qwen/Qwen2.5-VL-3B-Instruct --image dog.jpg --rounds 3
"""

import argparse
import resource
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from PIL import Image

from benchmarks.measuring import benchmark_parser, quotients, report
from grounded_attention.commands.command_line import run
from grounded_attention.utils.project import PACKAGE

MODEL = PACKAGE / "space" / "models" / "vlm" / "direct"
QUESTION = "Where is the red circle?"
IMPORTS = """
import sys
from PIL import Image
from transformers import AutoModelForImageTextToText, AutoProcessor
"""
ANSWER = f"""{IMPORTS}
name, picture, question = sys.argv[1:]
model = AutoModelForImageTextToText.from_pretrained(name)
processor = AutoProcessor.from_pretrained(name)
content = [{{"type": "image"}}, {{"type": "text", "text": question}}]
text = processor.apply_chat_template([{{"role": "user", "content": content}}], add_generation_prompt=True)
inputs = processor(images=[Image.open(picture).convert("RGB")], text=[text], return_tensors="pt")
print(processor.batch_decode(model.generate(**inputs, do_sample=False, max_new_tokens=64)))
"""


def seconds_of(command: Sequence[str]) -> float:
    """The CPU seconds of a program and of what it started; an error if it fails."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run(command, check=True, capture_output=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def commands(model: str, picture: str, output: str) -> dict[str, list[str]]:
    """Way -> its command."""
    python = sys.executable
    look = ["-m", "grounded_attention", "look", picture, QUESTION, "--model", model, "--output", output]
    return {
        "imports": [python, "-c", IMPORTS],
        "answer": [python, "-c", ANSWER, model, picture, QUESTION],
        "look": [python, *look],
    }


def ratios(times: dict[str, list[float]]) -> dict[str, list[float]]:
    """What is compared -> the ratio of each round; above the imports, whose seconds differ, the one of the medians."""
    middle = {way: statistics.median(seconds) for way, seconds in times.items()}
    above = (middle["look"] - middle["imports"]) / (middle["answer"] - middle["imports"])
    return {"whole, look / answer": quotients(times["look"], times["answer"]), "above the imports": [above]}


def _work(options: argparse.Namespace) -> str:
    with tempfile.TemporaryDirectory() as folder:
        picture = options.image or str(Path(folder, "picture.png"))
        if options.image is None:
            Image.new("RGB", (224, 224), "red").save(picture)
        ways = commands(options.model, picture, str(Path(folder, "lens.html")))
        times: dict[str, list[float]] = {way: [] for way in ways}
        for _ in range(options.rounds):
            for way, command in ways.items():
                times[way].append(seconds_of(command))
    return report({"first look": ratios(times)}, options.json, "whole <= 1.3")


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the command and returns its exit status."""
    parser = benchmark_parser("cold_start", __doc__, rounds=5, quick=False)
    parser.add_argument("--model", default=str(MODEL), help="a vision-language model (default: that of the package)")
    parser.add_argument("--image", help="a picture (default: a red one)")
    return run(parser, _work, arguments)


if __name__ == "__main__":
    sys.exit(main())
