# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""Measures one model of a run for `grounded-attention audit-run`: it reads regions, or images as tokens."""

import argparse
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from accelerate import PartialState

from grounded_attention.analysis.perturbation_curves import PerturbationCurves
from grounded_attention.heads.changes import Changes
from grounded_attention.heads.example_attention import ExampleAttention, capture_examples, capture_patches
from grounded_attention.heads.examples import entity_examples
from grounded_attention.heads.measure import audit
from grounded_attention.heads.reading import get_observer, reads_pixels
from grounded_attention.heads.table import AuditResult
from grounded_attention.processing.open_images import open_image
from grounded_attention.training.experiments.model_inputs import check_width
from grounded_attention.training.experiments.models import make_processor
from grounded_attention.training.recipes.adapters import load_base_model
from grounded_attention.training.recipes.recipe import Data, Model
from grounded_attention.utils.finite_weights import check_finite
from grounded_attention.utils.safe_paths import path_below

from .vlm_options import load_vlm

BUILDER = "flickr30k_entities"
CHOSEN_ON, REPORTED = "validation", "test"
IMAGES = "flickr30k-images"
# As in training; the audit of a vision-language model uses little memory on any back end.
LOADING = {"revision": None, "dtype": "float32", "attention": "sdpa"}


@dataclass
class Audited:
    """All results for the model of one method."""

    result: AuditResult
    shown: list[ExampleAttention] = field(default_factory=list)
    changes: Changes | None = None
    curves: PerturbationCurves | None = None


@dataclass(frozen=True)
class Run:
    """A finished run: its folder, its methods and its data.

    `instruction` is what the user says before a caption, for vision-language models; None for other models.
    """

    folder: Path
    task: str
    methods: list[str]
    data: Data
    seed: int
    instruction: str | None = None

    @property
    def reads_tokens(self) -> bool:
        """Whether the models are vision-language models, whose regions are image tokens."""
        return self.instruction is not None


def picture_path(data: Data, image_id: str) -> Path:
    """The file of an image."""
    return path_below(data.images or Path(str(data.data_dir), IMAGES), f"{image_id}.jpg")


def audit_method(
    run: Run, name: str, rows: Mapping[str, tuple[Any, Any]], regions: Any, explored: Sequence[Any], cpu: bool
) -> Audited:
    """Audits one model on both splits, chooses heads on one of them, and captures its attention in examples."""
    model, processor = _load(run, name, regions, cpu)

    def pictures(image_id: str) -> Any:
        return open_image(picture_path(run.data, image_id))

    found = {
        split: audit(
            model,
            processor,
            entity_examples(examples),
            regions,
            relations=words,
            images=pictures if regions is None or reads_pixels(model) else None,
            instruction=run.instruction,
            about={"model": name, "data": BUILDER, "split": split, "regions": region_name(run)},
        )
        for split, (examples, words) in rows.items()
    }
    if regions is None:
        shown = capture_patches(model, processor, explored, pictures, run.instruction)
    else:
        shown = capture_examples(get_observer(model), processor, explored, regions, pictures, regions.class_names)
    return Audited(found[REPORTED].choose_on(found[CHOSEN_ON]), shown)


def region_name(run: Run) -> str:
    """What the regions of the models are, for tables and errors."""
    return "image tokens" if run.reads_tokens else str(run.data.regions)


def _load(run: Run, name: str, regions: Any, cpu: bool) -> tuple[Any, Any]:
    """The model in evaluation mode on this process's device, and its processor."""
    source = str(run.folder / name)
    if regions is None:
        return load_vlm(argparse.Namespace(model=source, device="cpu" if cpu else None, **LOADING))
    processor = make_processor(Model(source=source))
    model: Any = load_base_model(source).eval().to(PartialState().device)
    check_finite(model, source)
    if not reads_pixels(model):
        check_width(model, processor, str(run.data.regions), regions.feature_size)
    return model, processor
