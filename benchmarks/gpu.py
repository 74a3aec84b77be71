# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""Training steps on a GPU: pre-training and VGP of VL-BERT base, with and without direct attention supervision.

A step is forward, backward and AdamW under bfloat16 autocast, with dropout, on random examples of different lengths.
The ways differ in what they do about padding, in the attention kernel, in torch.compile and in the size of the batch:
"filled" takes as many examples as the card holds. "blocks compiled" compiles what follows attention in each layer,
one small graph for all of them; "model compiled" all layers as one graph, with sizes that are not fixed. varlen is
torch.nn.attention.varlen, which has no dropout of attention. The share of the peak counts the matrix products of valid
columns, once, without supervision, and divides by the peak of the card's data sheet, or by the peak measured here if
the card is not in the table. Memory is the peak of a way with weights and optimizer. Then the gradients of every back
end in bfloat16 are compared with those of SDPA in float32, no dropout.

Then a decoder of the size of Qwen2.5-VL-3B (`benchmarks/gpu_decoders.py`): LoRA steps, `heads` and `look`.

Everything shares `--seconds`. What is compiled runs in a process of its own, which is ended when its share is over;
a line names each way that did not run to its end. Without a GPU every way runs once on the CPU at tiny size; the
numbers then mean nothing. The exit status is 1 if a way fails.

examples:
  python -m benchmarks.gpu
  python -m benchmarks.gpu --batch 128 --vgp-batch 64 --rounds 3
  python -m benchmarks.gpu --parts decoder pre-training --no-compile
  python -m benchmarks.gpu --parts pre-training --filled 1024 --seconds 1200
"""

import argparse
import gc
import json
import statistics
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from importlib.util import find_spec
from typing import Any, Literal, NamedTuple

import torch
import transformers
from torch.utils._pytree import tree_map
from torch.utils.flop_counter import FlopCounterMode
from tqdm.auto import tqdm
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.masking_utils import ALL_MASK_ATTENTION_FUNCTIONS
from transformers.utils import is_flash_attn_2_available

from benchmarks import gpu_decoders as decoders
from benchmarks.measuring import (
    Budget,
    clock,
    data_sheet_peak,
    matrix_peak,
    quotients,
    run_within,
    spread,
    take_turns,
)
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
NAME = 33  # letters of a way's name
DECODER_WEIGHT = 6.0
TIME_OVER = "not measured: the time is over (--seconds)"
Batch = dict[str, Any]


FILLED = 0.85  # of the card's memory
LEAST = 2.0  # seconds; a way that has less does not begin


class Way(NamedTuple):
    """How a step is computed."""

    name: str
    back_end: str = "sdpa"
    unpad: bool = True
    compiled: Literal["", "blocks", "model"] = ""
    method: str = "none"
    fills: bool = False  # the card, with its batch
    tasks: tuple[str, ...] = tuple(CLASSES)

    @property
    def weight(self) -> float:
        """Its part of the time."""
        return 1 + 3 * bool(self.compiled) + self.fills


UNPADDED = Way("SDPA")
VARLEN = "varlen"
LARGE = ("pre-training",)
WAYS = (
    Way("SDPA, padded", unpad=False),
    UNPADDED,
    Way("SDPA, direct", method="direct"),
    Way("FlashAttention", "flash_attention_2"),
    Way("FlashAttention, direct", "flash_attention_2", method="direct"),
    Way("varlen", VARLEN),
    Way("SDPA, filled", fills=True, tasks=LARGE),
    Way("varlen, filled", VARLEN, fills=True, tasks=LARGE),
    Way("SDPA, blocks compiled", compiled="blocks"),
    Way("SDPA, blocks compiled, direct", compiled="blocks", method="direct"),
    Way("SDPA, blocks compiled, filled", compiled="blocks", fills=True, tasks=LARGE),
    Way("varlen, blocks compiled, filled", VARLEN, compiled="blocks", fills=True, tasks=LARGE),
    Way("SDPA, model compiled", compiled="model"),
    Way("SDPA, model compiled, direct", compiled="model", method="direct"),
)
SDPA = Way("SDPA", method="direct")
FLEX = Way("flex", "flex_attention", method="direct")  # has no backward pass on a CPU
GRADIENTS = (SDPA, FLEX, Way("FlashAttention", "flash_attention_2", method="direct"))


class Measured(NamedTuple):
    """Seconds of a step in each round, and the peak memory in bytes."""

    seconds: list[float]
    memory: int
    examples: int = 0  # in a step
    first: float = 0.0  # seconds of the steps before, which compile


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


def varlen_forward(
    module: Any, query: Any, key: Any, value: Any, mask: Any, scaling: float | None = None, **kwargs: Any
) -> tuple[torch.Tensor, None]:
    """PyTorch's attention of packed rows (1, H, M, d), as an attention function of transformers; without dropout."""
    from torch.nn.attention.varlen import varlen_attn  # PyTorch 2.10

    query, key, value = (each.transpose(1, 2).flatten(0, 1) for each in (query, key, value))
    starts = (kwargs["cu_seq_lens_q"], kwargs["cu_seq_lens_k"])
    attended: Any = varlen_attn(
        query, key, value, *starts, max_q=kwargs["max_length_q"], max_k=kwargs["max_length_k"], scale=scaling
    )
    return attended[None], None


AttentionInterface.register(VARLEN, varlen_forward)
AttentionMaskInterface.register(VARLEN, ALL_MASK_ATTENTION_FUNCTIONS["flash_attention_2"])


class Training:
    """A model, its optimizer and a batch; `step()` is one training step."""

    def __init__(self, task: str, way: Way, options: argparse.Namespace, size: int | None = None):
        torch.manual_seed(0)
        # Large weights, or attention would be uniform in so small a model.
        tiny: dict[str, Any] = {"num_hidden_layers": 1, "initializer_range": 0.3, **TINY}
        sizes: dict[str, Any] = tiny if options.device == "cpu" else {}
        config = VLBertConfig(**sizes, unpad=way.unpad)
        self.device = options.device
        self.model = CLASSES[task]._from_config(config, attn_implementation=way.back_end).to(self.device)
        self.method = get_method(way.method)
        self.method.prepare(self.model)
        if size is None:
            size = usual_batch(task, options)
        self.inputs, self.targets = tree_map(lambda tensor: tensor.to(self.device), make_batch(task, size, config))
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-5, fused=True)
        if way.compiled:
            self.compile(way.compiled)

    def compile(self, what: str) -> None:
        """Compiles the model as one graph, or the blocks of its layers that follow attention."""
        with torch.no_grad():
            self.loss()  # the first pass adds transformers' hooks to the layers, which no graph can contain
        parts: list[Any] = [self.model]
        if what == "blocks":
            layers = self.model.base_model.encoder.layer
            parts = [part for layer in layers for part in (layer.attention.output, layer.intermediate, layer.output)]
        for part in parts:
            part.compile(fullgraph=True, dynamic=True, backend="eager" if self.device == "cpu" else "inductor")

    def loss(self, half: bool = True) -> torch.Tensor:
        """The loss of the task plus that of attention, under autocast if `half`."""
        with torch.autocast(self.device, torch.bfloat16, enabled=half):
            outputs = self.model(**self.inputs, **self.method.forward_kwargs(self.targets))
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


def usual_batch(task: str, options: argparse.Namespace) -> int:
    """The examples of a step."""
    if task == "pre-training":
        return options.batch
    return options.vgp_batch


def largest_batch(task: str, way: Way, options: argparse.Namespace) -> int:
    """The examples that fill the card, by the memory that a step of the usual batch takes."""
    size = usual_batch(task, options)
    if options.filled or options.device == "cpu":
        return options.filled or 2 * size
    training = Training(task, way._replace(compiled=""), options)
    training.model.train()
    training.step()
    kept = torch.cuda.memory_allocated()
    reset_peak(options.device)
    training.step()
    tensors = [each for each in training.inputs.values() if isinstance(each, torch.Tensor)]
    of_batch = sum(each.numel() * each.element_size() for each in tensors)
    _, whole = torch.cuda.mem_get_info()
    fitting = size * (FILLED * whole - kept + of_batch) / (peak(options.device) - kept + of_batch)
    return max(size, int(fitting) // 64 * 64)


def measure(task: str, way: Way, options: argparse.Namespace, seconds: float) -> dict[str, Measured]:
    """Times the steps of one way in rounds, after a warm-up; by the name of the way."""
    begin = clock(options.device)
    size = largest_batch(task, way, options) if way.fills else usual_batch(task, options)
    torch._dynamo.reset()
    # The number of valid columns is a value of a tensor, and a size in the graph.
    with torch._dynamo.config.patch(capture_dynamic_output_shape_ops=True):
        training = Training(task, way, options, size)
        training.model.train()
        compiling = clock(options.device)
        for _ in range(WARM_UP if options.device == "cuda" else 0):
            training.step()
        ready = clock(options.device)
        reset_peak(options.device)

        def round_of_steps() -> None:
            for _ in range(options.steps):
                training.step()

        left = seconds - (ready - begin)
        times = take_turns({way.name: round_of_steps}, options.rounds, options.device, seconds=left)[way.name]
    first = ready - compiling if way.compiled else 0.0
    return {way.name: Measured([each / options.steps for each in times], peak(options.device), size, first)}


def measure_decoder(
    grid: tuple[int, int], model: Any, back_end: str, options: argparse.Namespace, seconds: float
) -> dict[str, Measured]:
    """Times the ways of a decoder with a back end, which take turns, by name."""
    begin = clock(options.device)
    memory = {}
    with decoders.attending(model, decoders.BACK_ENDS[back_end]):
        ways = decoders.make_ways(model, decoders.make_batch(*grid, model), back_end)
        for name, way in ways.items():
            reset_peak(options.device)
            way()
            memory[name] = peak(options.device)
        left = seconds - (clock(options.device) - begin)
        times = take_turns(ways, options.rounds, options.device, seconds=left)
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
    except TimeoutError as error:
        return f"not measured: {error}"
    except Exception as error:
        return f"failed: {type(error).__name__}: {one_line(error)[:300]}"
    finally:
        gc.collect()
        with suppress(RuntimeError):  # after an illegal access every call fails, also this one
            torch.cuda.empty_cache()


def missing(back_end: str) -> str | None:
    """Why a back end cannot be measured here; `None` if it can."""
    if back_end == "flash_attention_2" and not is_flash_attn_2_available():
        return "FlashAttention is not installed and not measured: pip install flash-attn --no-build-isolation"
    if "/" in back_end and find_spec("kernels") is None:
        return f"{back_end} of the Hub is not measured: pip install kernels"
    if back_end == VARLEN and find_spec("torch.nn.attention.varlen") is None:
        return "varlen is not measured: it needs PyTorch 2.10"
    if back_end == VARLEN and not torch.cuda.is_available():
        return "varlen is not measured: it needs a GPU"
    return None


def available(ways: Sequence[Way]) -> list[Way]:
    """The ways whose kernels are installed."""
    return [way for way in ways if missing(way.back_end) is None]


def ways_of(task: str, options: argparse.Namespace) -> list[Way]:
    """The ways of a task that are measured."""
    return [way for way in available(WAYS) if task in way.tasks and (options.compile or not way.compiled)]


def decoder_back_ends() -> list[str]:
    """The names of the back ends of the decoder that are measured."""
    return [name for name, back_end in decoders.BACK_ENDS.items() if missing(back_end) is None]


def make_budget(options: argparse.Namespace) -> Budget:
    """The time of all parts: a way of VL-BERT weighs 1 or more, the ways of a decoder with a back end together."""
    weight = 0.0
    for task in CLASSES:
        if task in options.parts:
            weight += 1 + sum(way.weight for way in ways_of(task, options)) + len(gradients_of(options))
    if DECODER in options.parts:
        weight += 1 + DECODER_WEIGHT * len(decoders.GRIDS[options.device]) * len(decoder_back_ends())
    return Budget(options.seconds, weight)


def gradients_of(options: argparse.Namespace) -> list[Way]:
    """The ways whose gradients are compared."""
    return available(GRADIENTS if options.device == "cuda" else (SDPA,))


def measure_all(options: argparse.Namespace, results: Batch) -> Iterator[str]:
    """Measures all ways; yields the lines of the report, and adds the numbers to `results`."""
    budget = make_budget(options)
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
    wanted = [*(way.back_end for way in WAYS), *decoders.BACK_ENDS.values()]
    yield from filter(None, map(missing, dict.fromkeys(wanted)))
    for task in [each for each in CLASSES if each in options.parts]:
        results[task] = {}
        yield from _measure_task(task, sheet or here, options, results[task], budget)
    if DECODER in options.parts:
        yield from _measure_decoders(options, results, budget)
    if not gpu:
        yield "not checked, because it needs a GPU: seconds, memory, share of the peak; FlashAttention, varlen;"
        yield "gradients of flex; kernels of torch.compile (on the CPU it only traces)"


def _measure_task(
    task: str, peak: float, options: argparse.Namespace, results: Batch, budget: Budget
) -> Iterator[str]:
    budget.take(1)
    counted = attempt(useful_operations, task, options)
    results["operations"] = counted
    if isinstance(counted, str):
        yield f"\n{task}: {counted}; if memory is short, give a smaller --batch and --vgp-batch"
        return
    size, operations = counted
    measured: dict[str, Any] = {}
    for way in tqdm(ways_of(task, options), desc=task, leave=False, disable=is_quiet()):
        found = within(budget.take(way.weight), way, task, options)
        measured |= {way.name: found} if isinstance(found, str) else found
    title = f"{task}, batch {size}, up to {options.rounds} rounds of {options.steps} steps"
    known = (size, operations / peak) if options.device == "cuda" else ()
    yield from table(title, measured, results, *known)
    yield "gradients in bfloat16 with direct supervision, |g - e| / |e|, e: SDPA in float32"
    for way in gradients_of(options):
        difference = TIME_OVER if budget.take(1) < LEAST else attempt(measure_gradients, task, way, options)
        results[f"gradients of {way.name}"] = difference
        yield f"{way.name:<{NAME}}{difference if isinstance(difference, str) else format(difference, '9.1e')}"


def within(seconds: float, way: Way, task: str, options: argparse.Namespace) -> Any:
    """Measures a way in its share of the time; what compiles on a GPU can only be ended with its process."""
    if seconds < LEAST:
        return TIME_OVER
    if way.compiled and options.device == "cuda":
        return attempt(run_within, seconds, measure, task, way, options, seconds)
    return attempt(measure, task, way, options, seconds)


def _measure_decoders(options: argparse.Namespace, results: Batch, budget: Budget) -> Iterator[str]:
    model = TIME_OVER if budget.take(1) < LEAST else attempt(decoders.make_model, options.device)
    for rows, columns in decoders.GRIDS[options.device]:
        title = f"decoder, {rows * columns} image tokens"
        measured: dict[str, Any] = {}
        for name in decoder_back_ends():
            seconds = budget.take(DECODER_WEIGHT)
            found = model
            if not isinstance(model, str) and seconds < LEAST:
                found = TIME_OVER
            elif not isinstance(model, str):
                found = attempt(measure_decoder, (rows, columns), model, name, options, seconds)
            if isinstance(found, str) and "/" in decoders.BACK_ENDS[name]:  # the Hub may be out of reach
                found = found.replace("failed: ", "not measured: ", 1)
            measured |= {f"decoder{name}": found} if isinstance(found, str) else found
        results[title] = {}
        yield from table(title, measured, results[title])


def table(
    title: str, measured: Mapping[str, Measured | str], results: Batch, size: int = 0, ideal: float = 0.0
) -> Iterator[str]:
    """Yields a line for each way, with the ratios to the plain way, of time in each round and of memory.

    A way that failed is its error. Of `size` examples a step the samples per second are told, and the share of
    `ideal`, the seconds at the peak; a way with another number of examples has as many times as much to do.
    """
    known = f"{'samples/s':>11}{'of peak':>9}" if size else ""
    yield f"\n{title}\n{'way':<{NAME}}{'ms/step':>9}{'rounds':>20}{'GiB':>7}{known}  / the plain way"
    for name, way in measured.items():
        if isinstance(way, str):
            results[name] = way
            yield f"{name:<{NAME}}{way}"
            continue
        middle = statistics.median(way.seconds)
        rounds = [1000 * each for each in way.seconds]
        examples = way.examples or size
        share = ideal * examples / size / middle if size else 0.0
        results[name] = {**way._asdict(), **({"share_of_peak": share} if size else {})}
        times = f"{min(rounds):.1f} to {max(rounds):.1f}"
        line = f"{name:<{NAME}}{1000 * middle:>9.1f}{times:>20}{way.memory / 2**30:>7.1f}"
        if size:
            line += f"{examples / middle:>11.0f}{share:>9.0%}"
        plain = measured.get(decoders.plain_way(name) or name.removesuffix(", direct"))
        if isinstance(plain, Measured) and plain is not way:
            both = min(len(way.seconds), len(plain.seconds))
            line += f"  {spread(quotients(way.seconds[:both], plain.seconds[:both]))}"
            line += f", memory {way.memory / plain.memory:.2f}" if plain.memory else ""
        if examples != size and size:
            line += f"  batch {examples}"
        if way.first:
            line += f"  first {WARM_UP} steps {way.first:.0f} s"
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
    add("--rounds", type=int, default=3, metavar="N", help="rounds (default: %(default)s)")
    add("--seconds", type=float, default=440, metavar="S", help="time of everything (default: %(default)g)")
    add("--filled", type=int, default=0, metavar="N", help="examples that fill the card (default: found by memory)")
    parts = (*CLASSES, DECODER)
    add("--parts", nargs="+", choices=parts, default=parts, help="what to measure (default: everything)")
    add("--no-compile", dest="compile", action="store_false", help="leave out torch.compile, which takes minutes")
    add("--json", action="store_true", help="print the figures as JSON instead")
    return parser


if __name__ == "__main__":
    sys.exit(main())
