# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""Step time and peak memory of attention supervision, compared to no supervision (SDPA) and eager attention maps.

One step is a forward and a backward pass of VL-BERT (6 layers of BERT-base width, batch 4, 8 phrases of 3 words with
one region each), without padding and without dropout (with attention dropout SDPA has no kernel on a CPU and builds
attention maps). With `--decoder` it is one of LLaVA's language model in small (Llama, 4 layers of width 512), one
sequence of N image tokens and 32 words.

In a round all modes take turns; times are CPU seconds of the process. Memory is the peak above weights, gradients and
inputs, each mode in a new process.

examples:
  python -m benchmarks.attention_supervision
  python -m benchmarks.attention_supervision --decoder
"""

import argparse
import sys
from collections.abc import Sequence
from typing import Any

import torch
from transformers import LlamaModel

from benchmarks.measuring import Workload, benchmark_parser, compare, report, small_llama
from benchmarks.pretraining_step import make_batches
from grounded_attention.commands.command_line import run
from grounded_attention.modeling import VLBertConfig, VLBertModel
from grounded_attention.supervision import get_method, supervised_implementation

MODES = ("none", "direct", "semi_direct", "eager maps")
PAIRS = tuple((method, other) for method in ("direct", "semi_direct") for other in ("none", "eager maps"))
BATCH, PHRASES, WORDS = 4, 8, 3


class Step(Workload):
    """A model, a batch and a method; a step is one of training without the optimizer."""

    def __init__(self, mode: str, length: int, options: argparse.Namespace):
        torch.manual_seed(0)
        self.maps = mode == "eager maps"
        one_way: dict[str, Any] = {"directions": ["text_to_region"]} if options.decoder and mode != "none" else {}
        self.method = get_method("direct" if self.maps else mode, **one_way)
        back_end = "eager" if self.maps else "sdpa"
        if options.decoder:
            config = small_llama(options.quick)
            config.use_cache = False
            self.model: Any = LlamaModel._from_config(config, attn_implementation=back_end).train()
            batch = _make_sequence(length)
            self.inputs = {"input_ids": batch["input_ids"]}
        else:
            region_config = _region_config(options.quick, length)
            self.model = VLBertModel._from_config(region_config, attn_implementation=back_end).train()
            self.inputs = batch = _make_batch(region_config, length)
        self.batch = {**batch, **self.method.prepare_batch(batch)}  # before any step, as collators do
        if not self.maps:
            self.model.set_attn_implementation(supervised_implementation(self.model))
        for parameter in self.model.parameters():  # gradients count as weights
            parameter.grad = torch.zeros_like(parameter)

    def step(self) -> None:
        arguments = {"output_attentions": True} if self.maps else self.method.forward_kwargs(self.batch)
        outputs = self.model(**self.inputs, **arguments)
        of = self.method.maps_losses if self.maps else self.method.losses
        losses = of(outputs.attentions if self.maps else outputs, self.batch)
        loss = outputs.last_hidden_state.float().square().mean()
        (loss + sum(total / count for total, count in losses.values())).backward()
        for parameter in self.model.parameters():
            if parameter.grad is not None:
                parameter.grad.zero_()


def _region_config(quick: bool, length: int) -> VLBertConfig:
    sizes: dict[str, Any] = {"hidden_size": 48, "intermediate_size": 96, "num_hidden_layers": 2} if quick else {}
    drop_nothing = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0, "region_dropout": 0.0}
    more = {"vocab_size": 100, "max_position_embeddings": length + 2}
    return VLBertConfig(**{"num_hidden_layers": 6, **sizes}, **more, **drop_nothing)


def _make_batch(config: VLBertConfig, length: int) -> dict[str, torch.Tensor]:
    text = max(length // 3, PHRASES * WORDS)
    regions = length - text - 1
    (batch,) = make_batches(config, BATCH, BATCH, (text, text), (regions, regions))
    owner = torch.arange(text) // WORDS  # the phrase of each word
    names = ("input_ids", "attention_mask", "region_features", "region_boxes", "region_attention_mask")
    return {
        **{name: batch[name] for name in names},
        "phrase_mask": (owner == torch.arange(PHRASES)[:, None]).expand(BATCH, -1, -1),
        "phrase_regions": torch.eye(PHRASES, regions).bool().roll(1, -1).expand(BATCH, -1, -1),
    }


def _make_sequence(image_tokens: int) -> dict[str, torch.Tensor]:
    """One sequence: image tokens, then 32 words; phrase p means the p-th strip of the image."""
    text, places = 32, torch.arange(image_tokens)
    owner = torch.arange(text) // (text // PHRASES)
    phrase = torch.arange(PHRASES)[:, None]
    return {
        "input_ids": torch.randint(0, 100, (1, image_tokens + text)),
        "text_positions": (image_tokens + torch.arange(text))[None],
        "region_positions": places[None],
        "phrase_mask": ((owner == phrase) & (torch.arange(text) % (text // PHRASES) < WORDS))[None],
        "phrase_regions": (places * PHRASES // image_tokens == phrase)[None],
    }


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the command and returns its exit status."""
    parser = benchmark_parser("attention_supervision", __doc__, rounds=7)
    parser.add_argument("--decoder", action="store_true", help="a decoder with image tokens in place of VL-BERT")
    parser.add_argument("--lengths", type=int, nargs="+", help="N (100 300 1000; with --decoder 576 1500 4000)")
    return run(parser, _work, arguments)


def _work(options: argparse.Namespace) -> str:
    full = [576, 1500, 4000] if options.decoder else [100, 300, 1000]
    lengths = options.lengths or ([40] if options.quick else full)
    ratios = {f"N = {length}": compare(Step, MODES, PAIRS, length, options) for length in lengths}
    return report(ratios, options.json, "time, direct / none <= 1.10; at N = 1000 memory, direct / eager maps <= 0.60")


if __name__ == "__main__":
    sys.exit(main())
