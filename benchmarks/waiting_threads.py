# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""Speed of training steps when waiting threads sleep, and when they spin.

Waiting threads of OpenMP spin, unless OMP_WAIT_POLICY=passive makes them sleep, as all commands of this project do. On
a busy machine a spinning thread uses time that other threads need. Two processes train the same small model (that of
recipes/scenes/scenes_vgp.yaml) on CPU threads, one with spinning and one with sleeping threads, in turn while the
other process is stopped; first alone, then next to one endless loop per thread. Times are seconds on the clock. The
output is the median, smallest and largest ratio of the rounds:

  spinning / passive   time with spinning threads relative to sleeping threads
  beside / alone       time next to the loops relative to time without them

examples:
  python -m benchmarks.waiting_threads
  python -m benchmarks.waiting_threads --threads 4 --rounds 9
"""

import argparse
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

import torch

from benchmarks.measuring import benchmark_parser, printed, quotients, spread
from grounded_attention.commands.command_line import run
from grounded_attention.modeling import VLBertConfig, VLBertModel

# The default of libraries, and the setting of commands.
ENVIRONMENTS: dict[str, dict[str, str]] = {"spinning": {}, "passive": {"OMP_WAIT_POLICY": "passive"}}
PLACES = ("alone", "beside")
NAMES = ("OMP_WAIT_POLICY", "GOMP_SPINCOUNT", "KMP_BLOCKTIME", "OMP_NUM_THREADS")
BATCH, TEXT, REGIONS, FEATURES = 32, 24, 12, 2048

# Name of an environment -> function that runs a number of steps and returns the seconds.
Trainers = Mapping[str, Callable[[int], float]]


def make_step() -> Callable[[], None]:
    """Makes a function that runs one training step of a small model, as in the scenes recipe, on random input."""
    torch.manual_seed(0)
    sizes = {"hidden_size": 128, "visual_size": 128, "num_hidden_layers": 3, "num_attention_heads": 4}
    model = VLBertModel(VLBertConfig(vocab_size=200, intermediate_size=256, max_position_embeddings=128, **sizes))
    optimizer = torch.optim.AdamW(model.train().parameters())
    corners = torch.rand(BATCH, REGIONS, 2) / 2
    batch = {
        "input_ids": torch.randint(5, 200, (BATCH, TEXT)),
        "region_features": torch.randn(BATCH, REGIONS, FEATURES),
        "region_boxes": torch.cat([corners, corners + 0.3], -1),
    }

    def step() -> None:
        optimizer.zero_grad()
        model(**batch).last_hidden_state.square().mean().backward()
        optimizer.step()

    return step


def train_on_demand(threads: int) -> None:
    """Reads numbers of steps, one per line, runs the steps and prints the seconds."""
    torch.set_num_threads(threads)
    step = make_step()
    for line in sys.stdin:
        begun = time.perf_counter()
        for _ in range(int(line)):
            step()
        print(time.perf_counter() - begun, flush=True)


@contextmanager
def start_trainer(environment: Mapping[str, str], threads: int) -> Iterator[Callable[[int], float]]:
    """Starts a process that trains on demand; the environment decides how its threads wait."""
    others = {name: value for name, value in os.environ.items() if name not in NAMES}
    # torch is imported first, because commands set the variables that are compared here.
    code = f"import torch; from benchmarks.waiting_threads import train_on_demand; train_on_demand({threads})"
    command = [sys.executable, "-c", code]
    pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    with subprocess.Popen(command, env={**others, **environment}, **pipes) as process:

        def train(steps: int) -> float:
            process.stdin.write(f"{steps}\n")
            process.stdin.flush()
            return float(process.stdout.readline())

        yield train
        process.stdin.close()


@contextmanager
def busy_neighbours(count: int) -> Iterator[None]:
    """Runs `count` processes, each of which keeps one core busy."""
    loops = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(count)]
    try:
        yield
    finally:
        for loop in loops:
            loop.kill()
            loop.wait()


def measure(trainers: Trainers, threads: int, steps: int, rounds: int) -> dict[str, dict[str, list[float]]]:
    """Returns place -> environment -> seconds of each round; a round runs all of them in turn."""
    for train in trainers.values():
        train(2)
    times: dict[str, dict[str, list[float]]] = {place: {name: [] for name in trainers} for place in PLACES}
    for turn in range(rounds):
        names = list(trainers) if turn % 2 else list(trainers)[::-1]
        for place in PLACES:
            with busy_neighbours(threads if place == "beside" else 0):
                for name in names:
                    times[place][name].append(trainers[name](steps))
    return times


def ratios(times: Mapping[str, Mapping[str, Sequence[float]]]) -> dict[str, list[float]]:
    """Returns comparison -> ratio of seconds in each round."""
    passive = {f"spinning / passive, {place}": quotients(*times[place].values()) for place in PLACES}
    return passive | {
        f"beside / alone, {name}": quotients(*(times[p][name] for p in PLACES[::-1])) for name in ENVIRONMENTS
    }


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the command and returns its exit status."""
    parser = benchmark_parser("waiting_threads", __doc__, rounds=5, quick=False)
    parser.add_argument("--threads", type=int, default=2, help="threads of each training, and endless loops (2)")
    parser.add_argument("--steps", type=int, default=5, help="steps per measurement (5)")
    return run(parser, _work, arguments)


def _work(options: argparse.Namespace) -> str:
    with ExitStack() as stack:
        trainers = {
            name: stack.enter_context(start_trainer(environment, options.threads))
            for name, environment in ENVIRONMENTS.items()
        }
        ratios_of = ratios(measure(trainers, options.threads, options.steps, options.rounds))
    return printed(ratios_of, options.json, lambda each: (f"{name:<30}{spread(r):>24}" for name, r in each.items()))


if __name__ == "__main__":
    sys.exit(main())
