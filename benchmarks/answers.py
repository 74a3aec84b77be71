# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""Time and memory of `look_many`, compared to plain forward passes of the same batches.

A LLaVA in small (Llama, 4 layers of width 512, 8 heads; vision tower and tokenizer of the model that comes with the
package) with random weights reads 16 rows of an image of N tokens, a question, and an answer of 20 to 100 words, eight
rows in a pass. `look_many` makes the batches, reads them, and gives the attention of three heads for every word;
`table` also finds the box and the point of every word. The plain passes have the batches that `look_many` made, in
memory. In a round all ways take turns; times are CPU seconds of the process. Memory is the peak above weights and
rows, each way in a new process.

examples:
  python -m benchmarks.answers
"""

import argparse
import sys
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from PIL import Image
from transformers import AutoConfig, AutoModelForImageTextToText, AutoProcessor

from benchmarks.measuring import Workload, benchmark_parser, compare, report, small_llama
from grounded_attention.commands.command_line import run
from grounded_attention.lens.answered import ManyLooks, ask_row
from grounded_attention.lens.lens_table import table_rows
from grounded_attention.utils.named_types import Fields
from grounded_attention.utils.project import PACKAGE

WAYS = ("forward", "look_many", "table")
SMALL = PACKAGE / "space" / "models" / "vlm" / "direct"
HEADS = [(1, 2), (2, 5), (3, 0)]
ROWS = 16
BATCH = 8
ANSWERS = (20, 100)  # words


class Rows(Workload):
    """A model and rows; a step reads all of them in one of the ways."""

    def __init__(self, way: str, tokens: int, options: argparse.Namespace):
        torch.manual_seed(0)
        rng = np.random.default_rng(0)
        processor = AutoProcessor.from_pretrained(SMALL)
        config: Any = AutoConfig.from_pretrained(SMALL)
        side = round(tokens**0.5) * processor.patch_size
        processor.image_processor.size = {"height": side, "width": side}
        config.text_config = small_llama(options.quick)
        config.text_config.vocab_size = len(processor.tokenizer)
        self.way = way
        self.model = AutoModelForImageTextToText.from_config(config)
        self.looks = ManyLooks(self.model, processor, HEADS, batch_size=BATCH)
        words = sorted(word for word in processor.tokenizer.get_vocab() if word.isalpha())
        self.asked = []
        for number in range(ROWS // (4 if options.quick else 1)):
            pixels = rng.integers(0, 255, (side, side, 3), dtype=np.uint8)
            answer = " ".join(rng.choice(words, rng.integers(*ANSWERS)))
            row = {"image": Image.fromarray(pixels), "text": "what color is the little heart ?"}
            self.asked.append(ask_row(row, answer, number))
        self.batches: list[Fields] = []
        handle = self.model.base_model.register_forward_pre_hook(self._record, with_kwargs=True)
        for _ in self.looks.look(self.asked, lambda looked: None):
            pass
        handle.remove()

    def _record(self, module: Any, args: Any, kwargs: Fields) -> None:
        self.batches.append(dict(kwargs))

    @torch.no_grad()
    def step(self) -> Any:
        if self.way == "forward":
            for batch in self.batches:
                self.model.base_model(**batch)
            return None
        keep: Any = table_rows if self.way == "table" else lambda looked: looked.lens
        return sum(1 for _ in self.looks.look(self.asked, keep))


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the command and returns its exit status."""
    return run(benchmark_parser("answers", __doc__, rounds=5), _work, arguments)


def _work(options: argparse.Namespace) -> str:
    pairs = (("look_many", "forward"), ("table", "forward"))
    sizes = (64,) if options.quick else (576,)
    ratios = {f"{tokens} image tokens": compare(Rows, WAYS, pairs, tokens, options) for tokens in sizes}
    return report(ratios, options.json, "look_many / forward, time <= 1.25 and memory <= 1.2")


if __name__ == "__main__":
    sys.exit(main())
