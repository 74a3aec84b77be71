# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""Options of `data pseudo-ground` that choose the grounder, and the grounder that they describe."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Any

from grounded_attention.dataset_scripts.regions.table import RegionTable
from grounded_attention.families import find_family
from grounded_attention.labelling import FLORENCE, PROMPTS
from grounded_attention.utils.bounded_files import parse_yaml
from grounded_attention.utils.plain_text import first_sentences

from .number_options import not_negative, seed_number, share

if TYPE_CHECKING:
    import torch

    from grounded_attention.labelling.attention import AttentionGrounder
    from grounded_attention.labelling.grounder import Grounder

SCENES = "scenes"
ZERO_SHOT, OWN = "zero-shot detector", "model of this project"
# Option -> the kinds of grounders that read it.
READ_BY = {
    "wrong": (SCENES,),
    "seed": (SCENES,),
    "prompt": (ZERO_SHOT,),
    "processor": (ZERO_SHOT, FLORENCE),
    "grounder_revision": (ZERO_SHOT, FLORENCE),
    "dtype": (ZERO_SHOT, FLORENCE),
    "layer": (OWN,),
    "head": (OWN,),
    "detector": (OWN,),
    "features": (OWN,),
    "queries": (OWN,),
}


def add_grounder_options(parser: argparse.ArgumentParser) -> None:
    """Adds the options of grounders."""
    add = parser.add_argument
    add(
        "--grounder",
        required=True,
        metavar="NAME_OR_PATH",
        help='zero-shot detector or Florence-2 of transformers, checkpoint of this project, or "scenes"',
    )
    add("--grounder-revision", metavar="REVISION", help="branch, tag or commit of the grounder on the Hub")
    add(
        "--prompt",
        choices=PROMPTS,
        help="what a zero-shot detector reads: each phrase alone (default, as in the paper), or the caption",
    )
    add(
        "--processor",
        action="append",
        metavar="KEY=VALUE",
        help="option of the grounder's processor, as YAML: 'size={height: 768, width: 768}'; may be repeated",
    )
    own = parser.add_argument_group("for a checkpoint of this project")
    own.add_argument("--detector", metavar="NAME_OR_PATH", help='detector of the regions, or "scenes"; or --regions')
    own.add_argument("--features", metavar="NAME_OR_PATH", help='region-feature network, backbone, or "scenes"')
    own.add_argument("--queries", nargs="+", metavar="TEXT", help="what a zero-shot --detector looks for")
    own.add_argument("--layer", type=not_negative, metavar="N", help="layer, from 0; default: mean of the upper half")
    own.add_argument("--head", type=not_negative, metavar="N", help="head, from 0; default: mean of all")
    scenes = parser.add_argument_group("for --grounder scenes")
    scenes.add_argument("--wrong", type=share, metavar="SHARE", help="share of phrases with a wrong box; default: 0")
    scenes.add_argument("--seed", type=seed_number, metavar="N", help="seed of the wrong boxes; default: 0")


def make_grounder(options: argparse.Namespace, device: torch.device) -> Grounder:
    """Makes the grounder of the options."""
    import torch

    from grounded_attention.labelling.florence import load_florence
    from grounded_attention.labelling.simulated import SimulatedGrounder
    from grounded_attention.labelling.zero_shot import load_zero_shot

    kind = _kind(options)
    for name, kinds in READ_BY.items():
        if getattr(options, name) is not None and kind not in kinds:
            wanted = " or ".join(kinds)
            raise ValueError(f"--{name.replace('_', '-')} is for another grounder: {wanted}; found {kind}")
    if kind == SCENES:
        return SimulatedGrounder(options.wrong or 0.0, options.seed or 0)
    if kind == OWN:
        return _own(options, device)
    loading: dict[str, Any] = {
        "revision": options.grounder_revision,
        "device": device,
        "dtype": getattr(torch, options.dtype or "float32"),
        "processor_options": _processor_options(options.processor or ()),
    }
    if kind == FLORENCE:
        return load_florence(options.grounder, batch_size=options.batch_size, **loading)
    return load_zero_shot(options.grounder, prompt=options.prompt or PROMPTS[0], **loading)


def _kind(options: argparse.Namespace) -> str:
    from transformers import AutoConfig

    if options.grounder == SCENES:
        return SCENES
    try:
        model_type = AutoConfig.from_pretrained(options.grounder, revision=options.grounder_revision).model_type
    except (OSError, ValueError) as error:
        raise ValueError(f"--grounder {options.grounder}: cannot be used: {first_sentences(error)}") from error
    if model_type == FLORENCE:
        return FLORENCE
    return ZERO_SHOT if find_family(model_type) is None else OWN


def _own(options: argparse.Namespace, device: torch.device) -> AttentionGrounder:
    from grounded_attention.labelling.attention import AttentionGrounder

    from .image_options import load_pipeline

    if (options.regions is None) == (options.detector is None):
        raise ValueError(f"--grounder {options.grounder}: a checkpoint of this project needs --regions or --detector")
    pipe = load_pipeline(argparse.Namespace(**{**vars(options), "model": options.grounder}), device)
    table = None if options.regions is None else RegionTable.open(options.regions)
    about = {"detector": options.detector, "features": options.features, "queries": options.queries}
    if table is not None:
        about = {"regions": table.info["checksum"]}
    return AttentionGrounder(pipe, options.grounder, table, options.layer, options.head, about)


def _processor_options(texts: list[str] | tuple[str, ...]) -> dict[str, Any]:
    values = {}
    for text in texts:
        key, equals, value = text.partition("=")
        values[key] = parse_yaml(value, f"--processor {key}")
        if not equals or not key:
            raise ValueError(f"--processor {text}: expected KEY=VALUE")
    return values
