# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""Reading and supervising phrases in a vision-language model, compared to plain SDPA and to eager attention maps.

The output contains ratios only, because seconds depend on the machine. The sequence has image tokens, then a caption
of 32 words with 4 phrases of 3 words; a phrase means a square of image tokens. The model is the language model of
LLaVA (Llama) in small. Its vision tower does the same work in every mode, so it is left out: with it all ratios are
closer to 1.

`read` is a forward pass: plain SDPA, SDPA with the rows of the phrases, and eager with `output_attentions=True`.
`train` is a forward and a backward pass: SDPA without and with the `direct` loss. Times are medians over rounds; each
round runs all modes in turn. On a CPU they are CPU seconds of the process, which other processes change little. Memory
is the peak above weights, gradients and inputs, each mode in a separate process, after one short sequence.

examples:
  python -m benchmarks.vlm_rows
  python -m benchmarks.vlm_rows --quick
  python -m benchmarks.vlm_rows --device cuda --dtype bfloat16
"""

import argparse
import json
import os
import resource
import statistics
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from grounded_attention.commands.command_line import make_parser, run

import torch
from tqdm.auto import tqdm
from transformers import LlamaConfig, LlamaModel

from grounded_attention.heads.reading import read_phrases
from grounded_attention.supervision import get_method, supervise
from grounded_attention.utils.quiet import is_quiet

MODES = ("plain", "rows", "maps", "train", "supervised")
TEXT, PHRASES, WORDS = 32, 4, 3
# Ratio -> mode, what it is compared with, and the aim (at 4,000 image tokens for memory).
RATIOS = {
    "time rows/plain": ("rows", "plain", "time", 1.05),
    "time rows/maps": ("rows", "maps", "time", None),
    "mem rows/maps": ("rows", "maps", "memory", 0.2),
    "time supervised/train": ("supervised", "train", "time", 1.05),
    "mem supervised/train": ("supervised", "train", "memory", None),
}


class Workload:
    """A model, a batch and a mode; `step()` does the work of the mode once."""

    def __init__(self, mode: str, image_tokens: int, options: argparse.Namespace):
        torch.manual_seed(0)
        self.mode = mode
        self.model = _make_model(options, "eager" if mode == "maps" else "sdpa")
        self.method = get_method("direct", directions=["text_to_region"])
        self.read_batch(image_tokens, options.device)
        if mode == "rows":
            self.stack = ExitStack()  # open as long as the workload
            self.read = self.stack.enter_context(read_phrases(self.model))
        if mode == "supervised":
            supervise(self.model)

    def read_batch(self, image_tokens: int, device: str) -> None:
        """Makes the batch; the method prepares it here, as collators do, before any step."""
        self.unprepared = _make_batch(image_tokens, device)
        self.batch = {**self.unprepared, **self.method.prepare_batch(self.unprepared)}

    def step(self) -> Any:
        return self._train() if self.mode in ("train", "supervised") else self._read()

    @torch.no_grad()
    def _read(self) -> Any:
        if self.mode == "rows":
            return self.read(self.unprepared, "mean")
        outputs = self.model(self.batch["input_ids"], output_attentions=self.mode == "maps")
        return outputs.attentions if self.mode == "maps" else outputs.last_hidden_state

    def _train(self) -> None:
        is_supervised = self.mode == "supervised"
        asked = self.method.forward_kwargs(self.batch) if is_supervised else {}
        outputs = self.model(self.batch["input_ids"], **asked)
        loss = outputs.last_hidden_state.float().square().mean()
        if is_supervised:
            loss = loss + sum(total / count for total, count in self.method.losses(outputs, self.batch).values())
        loss.backward()
        for parameter in self.model.parameters():  # set to 0, not None, because gradients count as weights
            if parameter.grad is not None:
                parameter.grad.zero_()


def _make_model(options: argparse.Namespace, back_end: str) -> LlamaModel:
    width = 64 if options.quick else 512
    config = LlamaConfig(
        hidden_size=width,
        intermediate_size=11 * width // 4,
        num_hidden_layers=2 if options.quick else options.layers,
        num_attention_heads=8,
        num_key_value_heads=8,
        vocab_size=100,
        max_position_embeddings=8192,
        use_cache=False,
    )
    model = LlamaModel._from_config(config, attn_implementation=back_end)
    return model.to(options.device, getattr(torch, options.dtype)).train()


def _make_batch(image_tokens: int, device: str) -> dict[str, torch.Tensor]:
    """One sequence; the image tokens are a part of a square grid, row by row."""
    side = max(2, round(image_tokens**0.5))
    places = torch.arange(image_tokens)
    row, column = places // side, places % side
    owner = torch.arange(TEXT) // (TEXT // PHRASES)  # a phrase has the first words of its quarter of the caption
    phrase = torch.arange(PHRASES)[:, None]
    in_phrase = torch.arange(TEXT) % (TEXT // PHRASES) < WORDS
    third = max(1, side // 3)
    batch = {
        "input_ids": torch.randint(0, 100, (1, image_tokens + TEXT)),
        "text_positions": (image_tokens + torch.arange(TEXT))[None],
        "region_positions": places[None],
        "phrase_mask": ((owner == phrase) & in_phrase)[None],
        "phrase_regions": ((row // third == phrase // 2) & (column // third == phrase % 2))[None],
    }
    return {name: tensor.to(device) for name, tensor in batch.items()}


# Functions of worker processes


def measure_times(image_tokens: int, options: argparse.Namespace) -> dict[str, list[float]]:
    """Returns mode -> seconds of each round; a round runs each mode once, in alternating order."""
    workloads = {mode: Workload(mode, image_tokens, options) for mode in MODES}
    for workload in workloads.values():
        workload.step()
    times: dict[str, list[float]] = {mode: [] for mode in MODES}
    for turn in tqdm(
        range(options.rounds), desc=f"time at {image_tokens} image tokens", leave=False, disable=is_quiet()
    ):
        for mode in MODES if turn % 2 else MODES[::-1]:
            start = _clock(options.device)
            workloads[mode].step()
            times[mode].append(_clock(options.device) - start)
    return times


def measure_memory(mode: str, image_tokens: int, options: argparse.Namespace) -> float:
    """Returns the peak memory of a step in bytes, without weights, gradients, inputs and what libraries keep."""
    workload = Workload(mode, 40, options)
    workload.step()
    workload.read_batch(image_tokens, options.device)
    if options.device == "cuda":
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
    else:
        before = _resident()
    workload.step()
    peak = torch.cuda.max_memory_allocated() if options.device == "cuda" else _peak_resident()
    return max(peak - before, 1)


def difference(image_tokens: int, options: argparse.Namespace) -> float:
    """Returns the largest difference between the attention of phrases that is read, and the same from eager maps."""
    rows, maps = (Workload(mode, image_tokens, options) for mode in ("rows", "maps"))
    batch, apart = rows.unprepared, 0.0
    for found, layer in zip(rows.step(), maps.step(), strict=True):
        for number, words in enumerate(batch["phrase_mask"][0]):
            seen = layer[0][:, batch["text_positions"][0][words]][..., batch["region_positions"][0]]
            apart = max(apart, float((found[0, :, number] - seen.float().mean(1)).abs().max()))
    return apart


def _clock(device: str) -> float:
    if device == "cpu":
        return time.process_time()
    torch.cuda.synchronize()
    return time.perf_counter()


def _resident() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()


def _peak_resident() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


# Functions of the main process


def _run_worker(what: str, mode: str, image_tokens: int, options: argparse.Namespace) -> Any:
    command = [sys.executable, "-m", "benchmarks.vlm_rows", *(["--quick"] if options.quick else [])]
    command += ["--device", options.device, "--dtype", options.dtype, "--rounds", str(options.rounds)]
    command += ["--layers", str(options.layers), "--worker", what, "--mode", mode, "--tokens", str(image_tokens)]
    # Waiting threads must not use CPU seconds, which are counted.
    environment = {**os.environ, "OMP_WAIT_POLICY": "passive"}
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True, env=environment)
    return json.loads(done.stdout.splitlines()[-1])


def ratios(times: Mapping[str, list[float]], memory: Mapping[str, float]) -> dict[str, tuple[float, float, float]]:
    """Returns the name of a ratio -> its median, smallest and largest value over rounds; memory has one value."""
    found = {}
    for name, (mode, other, kind, _) in RATIOS.items():
        each = (
            [memory[mode] / memory[other]]
            if kind == "memory"
            else [a / b for a, b in zip(times[mode], times[other], strict=True)]
        )
        found[name] = (statistics.median(each), min(each), max(each))
    return found


def _lines(image_tokens: int, found: Mapping[str, tuple[float, float, float]]) -> list[str]:
    lines = []
    for name, (median, least, most) in found.items():
        kind, aim = RATIOS[name][2:]
        spread = f"({least:.2f} to {most:.2f})" if kind == "time" else ""
        # A tiny model spends its time on calls and not on products, so it has no aims.
        aimed = aim is not None and image_tokens >= (4000 if kind == "memory" else 576)
        line = f"{image_tokens:>6}  {name:<22}{median:>7.3f}  {spread:<16}" + (f"  aim <= {aim}" if aimed else "")
        lines.append(line.rstrip())
    return lines


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the command and returns its exit status."""
    return run(build_parser(), _work, arguments)


def _work(options: argparse.Namespace) -> str:
    options.tokens = options.tokens or ([40] if options.quick else [576, 1500, 4000])
    options.rounds = options.rounds or (2 if options.quick else 7)
    if options.worker == "time":
        return json.dumps(measure_times(options.tokens[0], options))
    if options.worker == "memory":
        return json.dumps(measure_memory(options.mode, options.tokens[0], options))
    measured = {}
    for tokens in options.tokens:
        memory = {mode: _run_worker("memory", mode, tokens, options) for mode in MODES}
        measured[tokens] = ratios(_run_worker("time", "plain", tokens, options), memory)
        if not options.json:
            print("\n".join(_lines(tokens, measured[tokens])), flush=True)
    apart = difference(options.tokens[0], options)
    return (
        json.dumps(measured)
        if options.json
        else f"attention read from rows and from maps differs by at most {apart:.1e}"
    )


def build_parser() -> argparse.ArgumentParser:
    """Makes the parser of the command line."""
    parser = make_parser("python -m benchmarks.vlm_rows", __doc__)
    parser.add_argument("--quick", action="store_true", help="only a tiny model and 40 image tokens, as a test")
    parser.add_argument("--device", default="cpu", help="cpu or cuda")
    parser.add_argument("--dtype", default="float32", choices=("float32", "bfloat16"))
    parser.add_argument("--tokens", type=int, nargs="+", help="image tokens (576 1500 4000)")
    parser.add_argument("--layers", type=int, default=4, help="layers of the language model (4)")
    parser.add_argument("--rounds", type=int, help="timed steps of each mode (7)")
    parser.add_argument("--worker", choices=("time", "memory"), help=argparse.SUPPRESS)
    parser.add_argument("--mode", default="plain", help=argparse.SUPPRESS)
    parser.add_argument("--json", action="store_true", help="print the ratios as JSON instead")
    return parser


if __name__ == "__main__":
    sys.exit(main())
