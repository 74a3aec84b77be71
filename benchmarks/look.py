# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""Time and memory of `look`, compared to the answer alone and to attention maps of eager generation.

A LLaVA in small (Llama, 4 layers of width 512, 8 heads) answers 100 tokens about an image of N tokens. `look` reads
the last row of the prompt in all layers, where it chooses heads, and the rows of 16 words of the prompt and of the
answer in the layers of these heads: here all four. `contribution` reads what all positions add to the logits of the
same words, through all heads. In a round all ways take turns; times are CPU seconds of the process. Memory is the peak
above weights and inputs, each way in a new process.

examples:
  python -m benchmarks.look
"""

import argparse
import sys
from collections.abc import Sequence
from typing import Any

import torch
from transformers import CLIPVisionConfig, LlavaConfig, LlavaForConditionalGeneration

from benchmarks.measuring import Workload, benchmark_parser, compare, report, small_llama
from grounded_attention.commands.command_line import run
from grounded_attention.heads.attention_readers import reading
from grounded_attention.lens.contributions import PathReader, contributions
from grounded_attention.lens.sequences import RowReader

WAYS = ("answer", "look", "contribution", "eager maps")
AIMS = (
    "at 4,000 time, look / answer <= 1.3 and memory, look / eager maps <= 0.2; "
    "contribution / answer: time <= 1.4, memory <= 2"
)
WORDS = 16
ANSWER = 100
IMAGE = 99
PATCH = 4


class Answer(Workload):
    """A model and a prompt; a step answers once in one of the ways."""

    def __init__(self, way: str, tokens: int, options: argparse.Namespace):
        torch.manual_seed(0)
        side = round(tokens**0.5)
        sizes = {"hidden_size": 32, "intermediate_size": 32, "num_attention_heads": 1, "num_hidden_layers": 1}
        vision = CLIPVisionConfig(**sizes, image_size=side * PATCH, patch_size=PATCH)
        parts: dict[str, Any] = {"text_config": small_llama(options.quick), "vision_config": vision}
        config = LlavaConfig(**parts, image_token_index=IMAGE, vision_feature_layer=-1)
        self.way = way
        self.columns = torch.arange(tokens)
        self.model = LlavaForConditionalGeneration._from_config(
            config, attn_implementation="eager" if way == "eager maps" else "sdpa"
        ).eval()
        ids = torch.cat([torch.full((tokens,), IMAGE), torch.randint(5, 90, (WORDS,))])[None]
        pixels = torch.randn(1, 3, side * PATCH, side * PATCH)
        self.inputs = {"input_ids": ids, "attention_mask": torch.ones_like(ids), "pixel_values": pixels}

    @torch.no_grad()
    def step(self) -> Any:
        maps = self.way == "eager maps"
        start = self.inputs["input_ids"].shape[1]
        settings = {"do_sample": False, "bad_words_ids": [[IMAGE]], "pad_token_id": 0}
        settings |= {"return_dict_in_generate": maps, "output_attentions": maps}
        if self.way in ("answer", "eager maps"):
            return self.model.generate(**self.inputs, max_new_tokens=ANSWER, min_new_tokens=ANSWER, **settings)
        rows = range(start - WORDS, start)
        layers = range(self.model.config.text_config.num_hidden_layers)
        make = PathReader if self.way == "contribution" else RowReader
        reader = make(start, rows, self.columns, layers)
        with reading(self.model, reader):
            ids = self.model.generate(**self.inputs, max_new_tokens=ANSWER + 1, min_new_tokens=ANSWER + 1, **settings)
        if isinstance(reader, PathReader):
            before = [row - 1 for row in (*rows[1:], *range(start, start + ANSWER))]
            directions = reader.unembedding(self.model).directions(ids[0, [row + 1 for row in before]])
            return contributions(self.model, reader, before, directions)
        return reader.of([start - 1]), reader.of([*rows, *range(start, start + ANSWER)])


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the command and returns its exit status."""
    return run(benchmark_parser("look", __doc__, rounds=5), _work, arguments)


def _work(options: argparse.Namespace) -> str:
    pairs = (("look", "answer"), ("contribution", "answer"), ("look", "eager maps"))
    sizes = (64,) if options.quick else (576, 3969)
    ratios = {f"{tokens} image tokens": compare(Answer, WAYS, pairs, tokens, options) for tokens in sizes}
    return report(ratios, options.json, AIMS)


if __name__ == "__main__":
    sys.exit(main())
