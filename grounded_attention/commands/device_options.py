# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""The options `--device` and `--dtype` of commands that run models over many images."""

import argparse

import torch
from accelerate import PartialState

from grounded_attention.processing.region_detection import first_line

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}


def add_device_options(parser: argparse.ArgumentParser) -> None:
    """Adds `--device` and `--dtype`."""
    add = parser.add_argument
    add("--device", metavar="NAME", help="cpu, cuda, cuda:1 ...; default: one GPU per process if there is one")
    add("--dtype", choices=sorted(DTYPES), default="float32", help="floating type of the models: %(default)s")


def find_device(name: str | None, state: PartialState) -> torch.device:
    """
    The device of `--device`, or of this process if none is given.

    Raises:
        ValueError: if there is no such device.
    """
    try:
        device = state.device if name is None else torch.device(name)
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError) as error:
        raise ValueError(f"--device {name}: {first_line(error)}") from error
    return device
