# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""Step time and peak memory of attention supervision, compared to no supervision (SDPA) and eager attention maps.

The output contains ratios only, because seconds depend on the machine. One step is a forward and a backward pass of
VL-BERT (6 layers of BERT-base width, batch 4, 8 phrases of 3 words with one region each), without padding and without
dropout (with attention dropout SDPA has no kernel on a CPU and builds attention maps). With `--decoder` it is one of
LLaVA's language model in small (Llama, 4 layers of width 512), one sequence of N image tokens and 32 words.

Times are medians over rounds; each round runs all modes in turn. On a CPU they are CPU seconds of the process. Memory
is the peak above weights, gradients and inputs, each mode in a new process.

examples:
  python -m benchmarks.attention_supervision
  python -m benchmarks.attention_supervision --decoder
  python -m benchmarks.attention_supervision --device cuda --dtype bfloat16
"""

import argparse
import statistics
import sys
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
from transformers import LlamaConfig, LlamaModel

from benchmarks.measuring import benchmark_parser, peak_memory, printed, quotients, run_apart, take_turns
from grounded_attention.commands.command_line import run
from grounded_attention.modeling import VLBertConfig, VLBertModel
from grounded_attention.supervision import get_method, supervised_implementation

MODES = ("none", "direct", "semi_direct", "eager maps")
BASELINES = {"none": "none", "eager": "eager maps"}
BATCH, PHRASES, WORDS = 4, 8, 3


class Workload:
    """A model, a batch and a method; `step()` is one training step without the optimizer step."""

    def __init__(self, mode: str, length: int, options: argparse.Namespace):
        torch.manual_seed(0)
        self.maps = mode == "eager maps"
        one_way: dict[str, Any] = {"directions": ["text_to_region"]} if options.decoder and mode != "none" else {}
        self.method = get_method("direct" if self.maps else mode, **one_way)
        make = _make_decoder if options.decoder else _make_region_model
        model = make(options, "eager" if self.maps else "sdpa", length)
        self.model = model.to(options.device, getattr(torch, options.dtype)).train()
        batch = (_make_sequence if options.decoder else _make_batch)(length)
        batch = {name: tensor.to(options.device) for name, tensor in batch.items()}
        self.inputs = {"input_ids": batch["input_ids"]} if options.decoder else batch
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


def _make_region_model(options: argparse.Namespace, back_end: str, length: int) -> Any:
    width = 64 if options.quick else 768
    config = VLBertConfig(
        hidden_size=width,
        visual_size=width,
        num_hidden_layers=2 if options.quick else 6,
        num_attention_heads=4 if options.quick else 12,
        intermediate_size=4 * width,
        vocab_size=100,
        max_position_embeddings=length + 2,
        hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0,
        region_dropout=0.0,
    )
    return VLBertModel._from_config(config, attn_implementation=back_end)


def _make_decoder(options: argparse.Namespace, back_end: str, length: int) -> Any:
    width = 64 if options.quick else 512
    config = LlamaConfig(
        hidden_size=width,
        intermediate_size=11 * width // 4,
        num_hidden_layers=2 if options.quick else 4,
        num_attention_heads=8,
        num_key_value_heads=8,
        vocab_size=100,
        max_position_embeddings=8192,
        use_cache=False,
    )
    return LlamaModel._from_config(config, attn_implementation=back_end)


def _make_batch(length: int) -> dict[str, torch.Tensor]:
    text = max(length // 3, PHRASES * WORDS)
    regions = length - text - 1
    owner = torch.arange(text) // WORDS  # the phrase of each word
    corners = torch.rand(BATCH, regions, 2) / 2
    return {
        "input_ids": torch.randint(5, 100, (BATCH, text)),
        "region_features": torch.randn(BATCH, regions, 2048),
        "region_boxes": torch.cat([corners, corners + 0.3], -1),
        "attention_mask": torch.ones(BATCH, text, dtype=torch.long),
        "region_attention_mask": torch.ones(BATCH, regions, dtype=torch.long),
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


def measure_memory(mode: str, length: int, options: argparse.Namespace) -> float:
    """The peak memory of two steps in bytes, without weights, gradients and inputs."""
    return peak_memory(Workload(mode, length, options).step, options.device)


def measure_times(length: int, options: argparse.Namespace) -> dict[str, list[float]]:
    """Returns mode -> seconds of each round."""
    steps = {mode: Workload(mode, length, options).step for mode in MODES}
    for step in steps.values():
        step()
    return take_turns(steps, options.rounds, options.device, f"time at N = {length}")


def ratios(times: Mapping[str, list[float]], memory: Mapping[str, float]) -> dict[str, dict[str, float]]:
    """Returns method -> ratios of time (median over rounds) and memory to no supervision and to eager maps."""
    of_mode = {}
    for mode in ("direct", "semi_direct"):
        time = {f"time/{n}": statistics.median(quotients(times[mode], times[other])) for n, other in BASELINES.items()}
        of_mode[mode] = time | {f"mem/{name}": memory[mode] / memory[other] for name, other in BASELINES.items()}
    return of_mode


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the command and returns its exit status."""
    parser = benchmark_parser("attention_supervision", __doc__, rounds=7, device=True)
    parser.add_argument("--decoder", action="store_true", help="a decoder with image tokens in place of VL-BERT")
    parser.add_argument("--lengths", type=int, nargs="+", help="N (100 300 1000; with --decoder 576 1500 4000)")
    return run(parser, _work, arguments)


def _work(options: argparse.Namespace) -> str:
    full = [576, 1500, 4000] if options.decoder else [100, 300, 1000]
    by_length = {}
    for length in options.lengths or ([40] if options.quick else full):
        memory = {mode: run_apart(measure_memory, mode, length, options) for mode in MODES}
        by_length[length] = ratios(run_apart(measure_times, length, options), memory)
    return printed(by_length, options.json, _lines)


def _lines(by_length: Mapping[int, Mapping[str, Mapping[str, float]]]) -> Iterator[str]:
    yield f"{'N':>5}  {'method':<12}{'time/none':>12}{'time/eager':>12}{'mem/none':>12}{'mem/eager':>12}"
    for length, modes in by_length.items():
        for mode, numbers in modes.items():
            yield f"{length:>5}  {mode:<12}" + "".join(f"{number:>12.2f}" for number in numbers.values())
    yield "aims: direct, time/none <= 1.10; at N = 1000 mem/eager <= 0.60"


if __name__ == "__main__":
    sys.exit(main())
