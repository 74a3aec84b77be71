# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""Time and memory of `look`, compared to the answer alone and to attention maps of eager generation.

A LLaVA in small (Llama, 4 layers of width 512, 8 heads) answers 32 tokens about an image of N tokens. `look` reads the
rows of 16 words of the prompt and of the answer in the same passes, of all heads, among which it chooses. Times are
medians over rounds in which all ways take turns, in CPU seconds of the process. Memory is the peak above weights and
inputs, each way in a new process.

examples:
  python -m benchmarks.look
"""

import argparse
import statistics
import sys
from collections.abc import Iterator, Mapping, Sequence

import torch
from transformers import CLIPVisionConfig, LlamaConfig, LlavaConfig, LlavaForConditionalGeneration

from benchmarks.measuring import benchmark_parser, peak_memory, printed, quotients, run_apart, spread, take_turns
from grounded_attention.commands.command_line import run
from grounded_attention.lens.sequences import reading

WAYS = ("answer", "look", "eager maps")
WORDS, ANSWER, IMAGE, PATCH = 16, 32, 99, 4


class Workload:
    """A model and a prompt; `step()` answers once in one of the ways."""

    def __init__(self, way: str, side: int, options: argparse.Namespace):
        torch.manual_seed(0)
        width = 64 if options.quick else 512
        text = LlamaConfig(
            hidden_size=width,
            intermediate_size=11 * width // 4,
            num_hidden_layers=4,
            num_attention_heads=8,
            num_key_value_heads=8,
            vocab_size=100,
            max_position_embeddings=8192,
        )
        sizes = {"hidden_size": 32, "intermediate_size": 32, "num_attention_heads": 1, "num_hidden_layers": 1}
        vision = CLIPVisionConfig(**sizes, image_size=side * PATCH, patch_size=PATCH)
        config = LlavaConfig(text_config=text, vision_config=vision, image_token_index=IMAGE, vision_feature_layer=-1)
        self.way, self.columns = way, torch.arange(side * side)
        self.model = LlavaForConditionalGeneration._from_config(
            config, attn_implementation="eager" if way == "eager maps" else "sdpa"
        ).eval()
        ids = torch.cat([torch.full((side * side,), IMAGE), torch.randint(5, 90, (WORDS,))])[None]
        pixels = torch.randn(1, 3, side * PATCH, side * PATCH)
        self.inputs = {"input_ids": ids, "attention_mask": torch.ones_like(ids), "pixel_values": pixels}

    @torch.no_grad()
    def step(self) -> object:
        maps, start = self.way == "eager maps", self.inputs["input_ids"].shape[1]
        settings = {"do_sample": False, "bad_words_ids": [[IMAGE]], "pad_token_id": 0}
        settings |= {"return_dict_in_generate": maps, "output_attentions": maps}
        if self.way != "look":
            return self.model.generate(**self.inputs, max_new_tokens=ANSWER, min_new_tokens=ANSWER, **settings)
        rows, layers = range(start - WORDS, start), range(self.model.config.text_config.num_hidden_layers)
        with reading(self.model, start, rows, self.columns, layers) as reader:
            self.model.generate(**self.inputs, max_new_tokens=ANSWER + 1, min_new_tokens=ANSWER + 1, **settings)
        read = reader.result()
        assert read is not None
        return read.layers


def measure_memory(way: str, side: int, options: argparse.Namespace) -> float:
    """The peak memory of a way in bytes, without weights and inputs."""
    return peak_memory(Workload(way, side, options).step, "cpu")


def measure_times(side: int, options: argparse.Namespace) -> dict[str, list[float]]:
    """Returns way -> seconds of each round."""
    steps = {way: Workload(way, side, options).step for way in WAYS}
    for step in steps.values():
        step()
    return take_turns(steps, options.rounds, label=f"{side * side} image tokens")


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the command and returns its exit status."""
    return run(benchmark_parser("look", __doc__, rounds=5), _work, arguments)


def _work(options: argparse.Namespace) -> str:
    by_tokens = {}
    for side in (8,) if options.quick else (24, 63):
        memory = {way: run_apart(measure_memory, way, side, options) for way in WAYS}
        times = run_apart(measure_times, side, options)
        by_tokens[side * side] = {
            "time/answer": quotients(times["look"], times["answer"]),
            "time/eager": quotients(times["look"], times["eager maps"]),
            "mem/answer": [memory["look"] / memory["answer"]],
            "mem/eager": [memory["look"] / memory["eager maps"]],
        }
    return printed(by_tokens, options.json, _lines)


def _lines(by_tokens: Mapping[int, Mapping[str, Sequence[float]]]) -> Iterator[str]:
    for tokens, numbers in by_tokens.items():
        shown = (f"{name} {spread(each) if len(each) > 1 else round(each[0], 2)}" for name, each in numbers.items())
        yield f"{tokens} image tokens: {', '.join(shown)}"
        last = {name: statistics.median(each) for name, each in numbers.items()}
    yield f"aims at 4,000: time/answer <= 1.3 ({last['time/answer']:.2f}), mem/eager <= 0.2 ({last['mem/eager']:.2f})"


if __name__ == "__main__":
    sys.exit(main())
