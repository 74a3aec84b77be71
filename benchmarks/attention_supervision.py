# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""Step time and peak memory of attention supervision, compared to no supervision (SDPA) and eager attention maps.

The output contains ratios only, because seconds depend on the machine. One step is a forward and a backward pass of
VL-BERT (6 layers of BERT-base width, batch 4, 8 phrases of 3 words with one region each: 24 supervised words and 8
regions per example), without padding and without dropout (with attention dropout SDPA has no kernel on a CPU and
builds attention maps).

Times are medians over rounds; each round runs all modes in turn. On a CPU they are CPU seconds of the process, which
other processes change little. Memory is the peak above weights, gradients and inputs, each mode in a separate process.

examples:
  python -m benchmarks.attention_supervision
  python -m benchmarks.attention_supervision --quick
  python -m benchmarks.attention_supervision --device cuda --dtype bfloat16
"""

import argparse
import json
import os
import resource
import statistics
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from grounded_attention.commands.command_line import make_parser, run

import torch
from tqdm.auto import tqdm

from benchmarks.device import clock
from grounded_attention.modeling import VLBertConfig, VLBertModel
from grounded_attention.supervision import get_method, supervised_implementation
from grounded_attention.utils.quiet import is_quiet

MODES = ("none", "direct", "semi_direct", "eager maps")
BASELINES = {"none": "none", "eager": "eager maps"}
BATCH, PHRASES, WORDS = 4, 8, 3


class Workload:
    """A model, a batch and a method; `step()` is one training step without the optimizer step."""

    def __init__(self, mode: str, length: int, options: argparse.Namespace):
        torch.manual_seed(0)
        self.maps = mode == "eager maps"
        self.method = get_method("direct" if self.maps else mode)
        self.model = _make_model(options, "eager" if self.maps else "sdpa", length)
        self.batch = _make_batch(length, options)
        if not self.maps:
            self.model.set_attn_implementation(supervised_implementation(self.model))

    def step(self) -> None:
        arguments = {"output_attentions": True} if self.maps else self.method.forward_kwargs(self.batch)
        outputs = self.model(**self.batch, **arguments)
        losses = (
            self.method.maps_losses(outputs.attentions, self.batch)
            if self.maps
            else self.method.losses(outputs, self.batch)
        )
        loss = outputs.last_hidden_state.float().square().mean()
        (loss + sum(total / count for total, count in losses.values())).backward()
        for parameter in self.model.parameters():  # set to 0, not None, because gradients count as weights
            if parameter.grad is not None:
                parameter.grad.zero_()


def _make_model(options: argparse.Namespace, back_end: str, length: int) -> VLBertModel:
    width = 64 if options.quick else 768
    config = VLBertConfig(
        hidden_size=width,
        visual_size=width,
        num_hidden_layers=2 if options.quick else 6,
        num_attention_heads=12 if not options.quick else 4,
        intermediate_size=4 * width,
        vocab_size=100,
        max_position_embeddings=length + 2,
        hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0,
        region_dropout=0.0,
    )
    model = VLBertModel._from_config(config, attn_implementation=back_end)
    return model.to(options.device, getattr(torch, options.dtype)).train()


def _make_batch(length: int, options: argparse.Namespace) -> dict[str, torch.Tensor]:
    text = max(length // 3, PHRASES * WORDS)
    regions = length - text - 1
    owner = torch.arange(text) // WORDS  # the phrase of each word
    corners = torch.rand(BATCH, regions, 2) / 2
    batch = {
        "input_ids": torch.randint(5, 100, (BATCH, text)),
        "region_features": torch.randn(BATCH, regions, 2048),
        "region_boxes": torch.cat([corners, corners + 0.3], -1),
        "attention_mask": torch.ones(BATCH, text, dtype=torch.long),
        "region_attention_mask": torch.ones(BATCH, regions, dtype=torch.long),
        "phrase_mask": (owner == torch.arange(PHRASES)[:, None]).expand(BATCH, -1, -1),
        "phrase_regions": torch.eye(PHRASES, regions).bool().roll(1, -1).expand(BATCH, -1, -1),
    }
    return {name: tensor.to(options.device) for name, tensor in batch.items()}


# Functions of worker processes


def measure_times(length: int, options: argparse.Namespace) -> dict[str, list[float]]:
    """Returns mode -> seconds of each round; a round runs each mode once, in alternating order."""
    workloads = {mode: Workload(mode, length, options) for mode in MODES}
    for workload in workloads.values():
        workload.step()
    times: dict[str, list[float]] = {mode: [] for mode in MODES}
    for turn in tqdm(range(options.rounds), desc=f"time at N = {length}", leave=False, disable=is_quiet()):
        for mode in MODES if turn % 2 else MODES[::-1]:
            start = clock(options.device)
            workloads[mode].step()
            times[mode].append(clock(options.device) - start)
    return times


def measure_memory(mode: str, length: int, options: argparse.Namespace) -> float:
    """Returns the peak memory of two steps in bytes, without weights, gradients and inputs."""
    workload = Workload(mode, length, options)
    for parameter in workload.model.parameters():
        parameter.grad = torch.zeros_like(parameter)
    if options.device == "cuda":
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
    else:
        before = _resident()
    for _ in range(2):
        workload.step()
    peak = torch.cuda.max_memory_allocated() if options.device == "cuda" else _peak_resident()
    return max(peak - before, 1)


def _resident() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()


def _peak_resident() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


# Functions of the main process


def _run_worker(what: str, mode: str, length: int, options: argparse.Namespace) -> Any:
    command = [sys.executable, "-m", "benchmarks.attention_supervision", *(["--quick"] if options.quick else [])]
    command += ["--device", options.device, "--dtype", options.dtype, "--rounds", str(options.rounds)]
    command += ["--worker", what, "--mode", mode, "--lengths", str(length)]
    # Waiting threads must not use CPU seconds, which are counted.
    environment = {**os.environ, "OMP_WAIT_POLICY": "passive"}
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True, env=environment)
    return json.loads(done.stdout.splitlines()[-1])


def ratios(times: Mapping[str, list[float]], memory: Mapping[str, float]) -> dict[str, dict[str, float]]:
    """Returns method -> ratios of time (median over rounds) and memory to no supervision and to eager maps."""
    found = {}
    for mode in ("direct", "semi_direct"):
        found[mode] = {
            f"time/{name}": statistics.median(a / b for a, b in zip(times[mode], times[other], strict=True))
            for name, other in BASELINES.items()
        }
        found[mode] |= {f"mem/{name}": memory[mode] / memory[other] for name, other in BASELINES.items()}
    return found


def _lines(length: int, found: Mapping[str, Mapping[str, float]]) -> list[str]:
    return [
        f"{length:>5}  {mode:<12}" + "".join(f"{figure:>12.2f}" for figure in figures.values())
        for mode, figures in found.items()
    ]


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the command and returns its exit status."""
    return run(_parser(), _work, arguments)


def _work(options: argparse.Namespace) -> str:
    options.lengths = options.lengths or ([40] if options.quick else [100, 300, 1000])
    options.rounds = options.rounds or (2 if options.quick else 7)
    if options.worker == "time":
        return json.dumps(measure_times(options.lengths[0], options))
    if options.worker == "memory":
        return json.dumps(measure_memory(options.mode, options.lengths[0], options))
    if not options.json:
        print(f"{'N':>5}  {'method':<12}{'time/none':>12}{'time/eager':>12}{'mem/none':>12}{'mem/eager':>12}")
    measured = {}
    for length in options.lengths:
        memory = {mode: _run_worker("memory", mode, length, options) for mode in MODES}
        measured[length] = ratios(_run_worker("time", "none", length, options), memory)
        if not options.json:
            print("\n".join(_lines(length, measured[length])), flush=True)
    return json.dumps(measured) if options.json else "aims: direct, time/none <= 1.10; at N = 1000 mem/eager <= 0.60"


def _parser() -> argparse.ArgumentParser:
    parser = make_parser("python -m benchmarks.attention_supervision", __doc__)
    parser.add_argument("--quick", action="store_true", help="only a tiny model and one length, as a test")
    parser.add_argument("--device", default="cpu", help="cpu or cuda")
    parser.add_argument("--dtype", default="float32", choices=("float32", "bfloat16"))
    parser.add_argument("--lengths", type=int, nargs="+", help="sequence lengths N (100 300 1000)")
    parser.add_argument("--rounds", type=int, help="timed steps of each mode (7)")
    parser.add_argument("--worker", choices=("time", "memory"), help=argparse.SUPPRESS)
    parser.add_argument("--mode", default="none", help=argparse.SUPPRESS)
    parser.add_argument("--json", action="store_true", help="print the ratios as JSON instead")
    return parser


if __name__ == "__main__":
    sys.exit(main())
