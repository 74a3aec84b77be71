# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""Training steps on a GPU: pre-training and VGP of VL-BERT base, with and without direct attention supervision.

A step is forward, backward and AdamW under bfloat16 autocast, with dropout, on random examples of different lengths.
The ways differ in what they do about padding, in the attention kernel and in torch.compile. The share of the peak
counts the matrix products of valid columns, once, without supervision, and divides by the peak of the card's data
sheet, or by the peak measured here if the card is not in the table. Memory is the peak of a way with weights and
optimizer. Then the gradients of every back end in bfloat16 are compared with those of SDPA in float32, no dropout.

Then a decoder of the size of Qwen2.5-VL-3B (`benchmarks/gpu_decoders.py`): LoRA steps, `heads` and `look`.

Without a GPU every way runs once on the CPU at tiny size; the numbers then mean nothing. The exit status is 1 if a way
fails.

examples:
  python -m benchmarks.gpu
  python -m benchmarks.gpu --batch 128 --vgp-batch 64 --rounds 3
  python -m benchmarks.gpu --parts decoder pre-training --no-compile
"""

import argparse
import gc
import json
import statistics
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any, NamedTuple

import torch
import transformers
from torch.utils._pytree import tree_map
from torch.utils.flop_counter import FlopCounterMode
from tqdm.auto import tqdm
from transformers.utils import is_flash_attn_2_available

from benchmarks import gpu_decoders as decoders
from benchmarks.measuring import clock, data_sheet_peak, matrix_peak, quotients, spread, take_turns
from benchmarks.pretraining_step import INPUTS, TINY, TOKENS, make_batches
from grounded_attention.commands.command_line import make_parser, one_line, run
from grounded_attention.modeling import VLBertConfig, VLBertForPreTraining, VLBertForVGP
from grounded_attention.supervision import get_method
from grounded_attention.utils.progress import is_quiet

CLASSES: dict[str, Any] = {"pre-training": VLBertForPreTraining, "VGP": VLBertForVGP}
DECODER = "decoder"  # a part beside them
LENGTHS = {"pre-training": TOKENS, "VGP": (20, 44)}  # VGP has two captions
PHRASE_WORDS = 2
GRADIENT_BATCH = 8  # float32 needs more memory
WARM_UP = 3  # steps; the first of them compile
Batch = dict[str, Any]


class Way(NamedTuple):
    """How a step is computed."""

    name: str
    back_end: str = "sdpa"
    unpad: bool = True
    compiled: bool = False
    method: str = "none"


UNPADDED = Way("SDPA")
WAYS = (
    Way("SDPA, padded", unpad=False),
    UNPADDED,
    Way("SDPA, direct", method="direct"),
    Way("SDPA, padded, compiled", unpad=False, compiled=True),
    Way("SDPA, compiled", compiled=True),
    Way("SDPA, compiled, direct", compiled=True, method="direct"),
    Way("FlashAttention", "flash_attention_2"),
    Way("FlashAttention, direct", "flash_attention_2", method="direct"),
    Way("FlashAttention, compiled", "flash_attention_2", compiled=True),
)
SDPA = Way("SDPA", method="direct")
FLEX = Way("flex", "flex_attention", method="direct")  # has no backward pass on a CPU
GRADIENTS = (SDPA, FLEX, Way("FlashAttention", "flash_attention_2", method="direct"))


class Measured(NamedTuple):
    """Seconds of a step in each round, and the peak memory in bytes."""

    seconds: list[float]
    memory: int


def make_batch(task: str, size: int, config: VLBertConfig) -> tuple[Batch, Batch]:
    """Makes a padded batch: the model's inputs, and the targets of direct supervision as a collator prepares them.

    Every third word from the second on begins a phrase of two words, and phrase p refers to region p.
    """
    (batch,) = make_batches(config, size, size, LENGTHS[task])
    inputs = {name: batch[name] for name in (*INPUTS, "region_labels", "masked_regions")}
    lengths = inputs["attention_mask"].sum(1)
    length = inputs["attention_mask"].shape[1]
    first = torch.arange(1, length - 2, 3)
    offset = torch.arange(length) - first[:, None]
    whole = first + PHRASE_WORDS < lengths[:, None]  # (B, P): within the caption of the example
    phrases: Batch = {"phrase_mask": (offset >= 0) & (offset < PHRASE_WORDS) & whole[..., None]}
    regions = torch.eye(len(first), inputs["region_boxes"].shape[1], dtype=torch.bool)
    phrases["phrase_regions"] = regions & whole[..., None] & inputs["region_attention_mask"].bool()[:, None]
    targets = {**inputs, **phrases, **get_method("direct").prepare_batch({**inputs, **phrases})}
    if task == "VGP":
        for name in ("labels", "region_labels", "masked_regions"):
            del inputs[name]
        pairs = torch.arange(len(first)).unfold(0, 2, 1)
        both = whole[:, 1:]
        inputs["phrase_mask"] = phrases["phrase_mask"]
        inputs["phrase_pairs"] = torch.where(both[..., None], pairs, -1)
        inputs["vgp_labels"] = torch.where(both, pairs[:, 0] % config.num_vgp_labels, -100)
        inputs["identification_labels"] = torch.arange(size) % config.num_identification_labels
    return inputs, targets


class Training:
    """A model, its optimizer and a batch; `step()` is one training step."""

    def __init__(self, task: str, way: Way, options: argparse.Namespace):
        torch.manual_seed(0)
        # Large weights, or attention would be uniform in so small a model.
        tiny: dict[str, Any] = {"num_hidden_layers": 1, "initializer_range": 0.3, **TINY}
        sizes: dict[str, Any] = tiny if options.device == "cpu" else {}
        config = VLBertConfig(**sizes, unpad=way.unpad)
        self.device = options.device
        self.model = CLASSES[task]._from_config(config, attn_implementation=way.back_end).to(self.device)
        self.method = get_method(way.method)
        self.method.prepare(self.model)
        size = options.batch if task == "pre-training" else options.vgp_batch
        self.inputs, self.targets = tree_map(lambda tensor: tensor.to(self.device), make_batch(task, size, config))
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-5, fused=True)
        back_end = "eager" if self.device == "cpu" else "inductor"
        self.forward = torch.compile(self.model, dynamic=True, backend=back_end) if way.compiled else self.model

    def loss(self, half: bool = True) -> torch.Tensor:
        """The loss of the task plus that of attention, under autocast if `half`."""
        with torch.autocast(self.device, torch.bfloat16, enabled=half):
            outputs = self.forward(**self.inputs, **self.method.forward_kwargs(self.targets))
            losses = self.method.losses(outputs, self.targets)
        return outputs.loss + sum(total / count.clamp(min=1) for total, count in losses.values())

    def step(self) -> None:
        """Forward, backward, optimizer."""
        self.loss().backward()
        self.optimizer.step()
        self.optimizer.zero_grad()

    def gradients(self, half: bool) -> torch.Tensor:
        """All gradients in one float32 vector, without dropout."""
        self.model.eval()
        self.loss(half).backward()
        gradients = [p.grad.float().flatten() for p in self.model.parameters() if p.grad is not None]
        self.optimizer.zero_grad()
        return torch.cat(gradients)


def useful_operations(task: str, options: argparse.Namespace) -> tuple[int, int]:
    """Returns the examples of a step, and the operations of its matrix products, forward and backward.

    Padding is left out except in the attention itself, and nothing is supervised.
    """
    training = Training(task, UNPADDED, options)
    with FlopCounterMode(display=False) as counter:
        training.loss().backward()
    return len(training.inputs["input_ids"]), counter.get_total_flops()


def measure(task: str, way: Way, options: argparse.Namespace) -> dict[str, Measured]:
    """Times the steps of one way in rounds, after a warm-up; by the name of the way."""
    training = Training(task, way, options)
    training.model.train()
    for _ in range(WARM_UP if options.device == "cuda" else 0):
        training.step()
    reset_peak(options.device)
    times = []
    for _ in range(options.rounds):
        begin = clock(options.device)
        for _ in range(options.steps):
            training.step()
        times.append((clock(options.device) - begin) / options.steps)
    return {way.name: Measured(times, peak(options.device))}


def measure_decoder(grid: tuple[int, int], model: Any, options: argparse.Namespace) -> dict[str, Measured]:
    """Times the ways of a decoder, which take turns, by name."""
    ways = decoders.make_ways(model, decoders.make_batch(*grid, model))
    memory = {}
    for name, way in ways.items():
        reset_peak(options.device)
        way()
        memory[name] = peak(options.device)
    times = take_turns(ways, options.rounds, options.device)
    return {name: Measured(times[name], memory[name]) for name in ways}


def reset_peak(device: str) -> None:
    """Forgets the peak of allocated memory."""
    if device == "cuda":
        torch.cuda.reset_peak_memory_stats()


def peak(device: str) -> int:
    """The peak of allocated memory since then, in bytes; 0 on a CPU."""
    if device == "cuda":
        return torch.cuda.max_memory_allocated()
    return 0


def measure_gradients(task: str, way: Way, options: argparse.Namespace) -> float:
    """Returns |g - e| / |e| of the gradients g of a way in bfloat16, e of SDPA in float32."""
    small = argparse.Namespace(device=options.device, batch=GRADIENT_BATCH, vgp_batch=GRADIENT_BATCH)
    exact = Training(task, SDPA, small).gradients(half=False)
    half = Training(task, way, small).gradients(half=True)
    return float((half - exact).norm() / exact.norm())


def attempt(work: Callable[..., Any], *arguments: Any) -> Any:
    """Returns the result of the work, or its error as a line, so that a way that fails does not end the others."""
    torch.compiler.reset()
    try:
        return work(*arguments)
    except Exception as error:
        return f"failed: {type(error).__name__}: {one_line(error)[:300]}"
    finally:
        gc.collect()
        with suppress(RuntimeError):  # after an illegal access every call fails, also this one
            torch.cuda.empty_cache()


def available(ways: Sequence[Way]) -> list[Way]:
    """The ways whose kernels are installed."""
    return [way for way in ways if way.back_end != "flash_attention_2" or is_flash_attn_2_available()]


def measure_all(options: argparse.Namespace, results: Batch) -> Iterator[str]:
    """Measures all ways; yields the lines of the report, and adds the numbers to `results`."""
    gpu = options.device == "cuda"
    card = torch.cuda.get_device_name() if gpu else None
    here = matrix_peak(options.device, "bfloat16", 8192 if gpu else 64)
    sheet = data_sheet_peak(card or "CPU")
    results.update(card=card, measured_peak=here, data_sheet_peak=sheet)
    if not gpu:
        yield "no GPU here: every way runs once on the CPU, at tiny size; the numbers below mean nothing"
    yield f"{card or 'CPU'}, PyTorch {torch.__version__}, transformers {transformers.__version__}"
    told = f"{sheet / 1e12:.0f} TFLOP/s (data sheet)" if sheet else "not in the table of cards"
    yield f"peak of matrix products in bfloat16: {told}, {here / 1e12:.0f} measured here"
    if not is_flash_attn_2_available():
        yield "FlashAttention is not installed and not measured: pip install flash-attn --no-build-isolation"
    for task in [each for each in CLASSES if each in options.parts]:
        results[task] = {}
        yield from _measure_task(task, sheet or here, options, results[task])
    model = attempt(decoders.make_model, options.device) if DECODER in options.parts else None
    for grid in decoders.GRIDS[options.device] if model is not None else ():
        title = f"decoder, {grid[0] * grid[1]} image tokens"
        found = model if isinstance(model, str) else attempt(measure_decoder, grid, model, options)
        results[title] = {}
        yield from table(title, {"decoder": found} if isinstance(found, str) else found, results[title])
    if not gpu:
        yield "not checked, because it needs a GPU: seconds, memory, share of the peak; FlashAttention;"
        yield "gradients of flex; kernels of torch.compile (on the CPU it only traces)"


def _measure_task(task: str, peak: float, options: argparse.Namespace, results: Batch) -> Iterator[str]:
    counted = attempt(useful_operations, task, options)
    results["operations"] = counted
    if isinstance(counted, str):
        yield f"\n{task}: {counted}; if memory is short, give a smaller --batch and --vgp-batch"
        return
    size, operations = counted
    measured: dict[str, Any] = {}
    ways = [way for way in available(WAYS) if options.compile or not way.compiled]
    for way in tqdm(ways, desc=task, leave=False, disable=is_quiet()):
        found = attempt(measure, task, way, options)
        measured |= {way.name: found} if isinstance(found, str) else found
    title = f"{task}, batch {size}, {options.rounds} rounds of {options.steps} steps"
    known = (size, operations / peak) if options.device == "cuda" else ()
    yield from table(title, measured, results, *known)
    yield "gradients in bfloat16 with direct supervision, |g - e| / |e|, e: SDPA in float32"
    for way in available(GRADIENTS if options.device == "cuda" else (SDPA,)):
        difference = attempt(measure_gradients, task, way, options)
        results[f"gradients of {way.name}"] = difference
        yield f"{way.name:<27}{difference if isinstance(difference, str) else format(difference, '9.1e')}"


def table(
    title: str, measured: Mapping[str, Measured | str], results: Batch, size: int = 0, ideal: float = 0.0
) -> Iterator[str]:
    """Yields a line for each way, with the ratio of each round to the plain way; a way that failed is its error.

    Of `size` examples a step the samples per second are told, and the share of `ideal`, the seconds at the peak.
    """
    known = f"{'samples/s':>11}{'of peak':>9}" if size else ""
    yield f"\n{title}\n{'way':<27}{'ms/step':>9}{'rounds':>20}{'GiB':>7}{known}  / the plain way"
    for name, way in measured.items():
        if isinstance(way, str):
            results[name] = way
            yield f"{name:<27}{way}"
            continue
        middle = statistics.median(way.seconds)
        rounds = [1000 * each for each in way.seconds]
        results[name] = {**way._asdict(), **({"share_of_peak": ideal / middle} if size else {})}
        line = (
            f"{name:<27}{1000 * middle:>9.1f}{f'{min(rounds):.1f} to {max(rounds):.1f}':>20}{way.memory / 2**30:>7.1f}"
        )
        if size:
            line += f"{size / middle:>11.0f}{ideal / middle:>9.0%}"
        plain = measured.get(decoders.PAIRS.get(name, name.removesuffix(", direct")))
        if isinstance(plain, Measured) and plain is not way:
            line += f"  {spread(quotients(way.seconds, plain.seconds))}"
        yield line


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the benchmark; returns 0, or 1 if a way failed."""
    failed: list[str] = []
    return run(build_parser(), lambda options: _work(options, failed), arguments) or int(bool(failed))


def _work(options: argparse.Namespace, failed: list[str]) -> str | None:
    options.device = "cuda" if torch.cuda.is_available() else "cpu"
    if options.device == "cpu":
        options.batch = 3
        options.vgp_batch = 3
        options.rounds = 1
        options.steps = 1
    results: Batch = {}
    for line in measure_all(options, results):
        if not options.json:
            print(line, flush=True)
        if "failed: " in line:
            failed.append(line)
    if options.json:
        return json.dumps(results)
    return None


def build_parser() -> argparse.ArgumentParser:
    parser = make_parser("python -m benchmarks.gpu", __doc__)
    add = parser.add_argument
    add("--batch", type=int, default=256, metavar="N", help="examples per step of pre-training (default: %(default)s)")
    add("--vgp-batch", type=int, default=64, metavar="N", help="examples per step of VGP (default: %(default)s)")
    add("--steps", type=int, default=10, metavar="N", help="steps per round (default: %(default)s)")
    add("--rounds", type=int, default=5, metavar="N", help="rounds (default: %(default)s)")
    parts = (*CLASSES, DECODER)
    add("--parts", nargs="+", choices=parts, default=parts, help="what to measure (default: everything)")
    add("--no-compile", dest="compile", action="store_false", help="leave out torch.compile, which takes minutes")
    add("--json", action="store_true", help="print the figures as JSON instead")
    return parser


if __name__ == "__main__":
    sys.exit(main())
