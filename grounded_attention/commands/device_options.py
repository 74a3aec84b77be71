# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""The options `--device` and `--dtype` of commands that run models over many images."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from grounded_attention.utils.plain_text import first_sentences

if TYPE_CHECKING:
    import torch
    from accelerate import PartialState


DTYPES = ("bfloat16", "float16", "float32")  # names of torch's types


def add_device_options(parser: argparse.ArgumentParser, more: str = "", *names: str) -> None:
    """Adds `--device`, with other `names`, its short form `--cpu`, and `--dtype`."""
    add = parser.add_argument
    add(
        "--cpu",
        dest="device",
        action="store_const",
        const="cpu",
        help="--device cpu: run on the CPU even if there is a GPU",
    )
    told = f"cpu, cuda, cuda:1 ...; default: one GPU per process if there is one{more}"
    add("--device", *names, metavar="NAME", help=told)
    add("--dtype", choices=DTYPES, default="float32", help="floating type of the models: %(default)s")


def find_device(name: str | None, state: PartialState) -> torch.device:
    """The device of `--device`, or of this process if none is given."""
    import torch

    try:
        device = state.device if name is None else torch.device(name)
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError) as error:
        why = f"torch cannot use it on this machine ({first_sentences(error)})"
        raise ValueError(f"--device {name}: {why}; leave it out, or give cpu") from error
    return device
