# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""Measures one model of a run for `grounded-attention run-heads`: it reads regions, or images as tokens."""

import argparse
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from accelerate import PartialState

from grounded_attention.analysis.perturbation_curves import PerturbationCurves
from grounded_attention.heads.boxes import ground_box
from grounded_attention.heads.changes import Changes
from grounded_attention.heads.example_attention import ExampleAttention, capture_examples, capture_patches
from grounded_attention.heads.examples import AuditExample, PromptSettings, make_batch
from grounded_attention.heads.items import DEFAULT_WORD
from grounded_attention.heads.maps import TokenGrid
from grounded_attention.heads.ranking import HeadRanking, Relate, rank_heads
from grounded_attention.heads.reading import get_observer, read_phrases, reads_pixels
from grounded_attention.heads.table import HeadTable
from grounded_attention.reports.patch_pictures import PatchAttention
from grounded_attention.training.experiments.models import check_width, make_processor
from grounded_attention.training.recipes.adapters import load_base_model
from grounded_attention.training.recipes.recipe import Data, Model
from grounded_attention.utils.finite_weights import check_finite
from grounded_attention.utils.open_images import open_image
from grounded_attention.utils.safe_paths import path_below

from .vlm_options import add_vlm_options, load_vlm

BUILDER = "flickr30k_entities"
CHOSEN_ON, REPORTED = "validation", "test"
IMAGES = "flickr30k-images"


@dataclass
class Measured:
    """All results for the model of one method."""

    ranking: HeadRanking
    shown: list[ExampleAttention] = field(default_factory=list)
    looks: list[list[PatchAttention]] = field(default_factory=list)
    gold: list[list[Any]] = field(default_factory=list)
    changes: Changes | None = None
    curves: PerturbationCurves | None = None

    @property
    def table(self) -> HeadTable:
        """What was counted on the reported split."""
        return self.ranking.reported_on


@dataclass(frozen=True)
class Run:
    """A finished run: its folder, its methods and its data.

    `instruction` is what the user says before a caption, for vision-language models; None for other models.
    `text_only` is the name of the baseline that was trained without pictures, if there is one.
    """

    folder: Path
    task: str
    methods: list[str]
    data: Data
    seed: int
    instruction: str | None = None
    text_only: str | None = None

    @property
    def reads_tokens(self) -> bool:
        """Whether the models are vision-language models, whose regions are image tokens."""
        return self.instruction is not None

    @property
    def region_name(self) -> str:
        """What the regions of the models are, for tables and errors."""
        return "image tokens" if self.reads_tokens else str(self.data.regions)

    def picture_path(self, image_id: str) -> Path:
        """The file of an image."""
        return path_below(self.data.images or Path(str(self.data.data_dir), IMAGES), f"{image_id}.jpg")

    def picture(self, image_id: str) -> Any:
        """An image."""
        return open_image(self.picture_path(image_id))


def measure_method(
    run: Run,
    name: str,
    examples: Mapping[str, Sequence[AuditExample]],
    relate: Relate | None,
    regions: Any,
    explored: Sequence[AuditExample],
    options: argparse.Namespace,
) -> Measured:
    """Chooses the heads of one model on one split, reports them on the other, and captures attention in examples."""
    model, processor = _load(run, name, regions, options.cpu)
    ranking = rank_heads(
        model,
        processor,
        examples[CHOSEN_ON],
        run.picture,
        report=examples[REPORTED],
        regions=regions,
        count=options.top_k,
        words=options.words or ("mean" if run.reads_tokens else DEFAULT_WORD),
        instruction=run.instruction,
        ablate=options.ablate,
        seed=run.seed,
        relate=relate,
        about={"model": name, "data": BUILDER, "split": REPORTED, "choose_on": CHOSEN_ON, "regions": run.region_name},
    )
    if regions is None:
        shown = capture_patches(model, processor, explored, run.picture, run.instruction)
        gold = [[phrase.boxes for phrase in example.phrases] for example in explored]
        return Measured(ranking, shown, look(run, model, processor, ranking, explored), gold)
    return Measured(ranking, capture_examples(model, processor, explored, regions, run.picture, regions.class_names))


def look(
    run: Run, model: Any, processor: Any, ranking: HeadRanking, examples: Sequence[AuditExample]
) -> list[list[PatchAttention]]:
    """Where the chosen heads look: for each example the attention of its phrases."""
    settings = PromptSettings(ranking.about["options"]["words"], run.instruction)
    layers, heads = torch.tensor(ranking.heads).T
    shown = []
    observer = get_observer(model)
    for example in examples:
        batch = make_batch(processor, [example], run.picture, settings)
        attention = read_phrases(observer, batch, settings.words)[:, 0].cpu()  # (L, H, P, R)
        candidates = batch["region_candidate_mask"][0]
        grid = TokenGrid.of_tokens(batch["region_boxes"][0], candidates)
        found = [ground_box(attention[layers, heads, n], candidates, grid) for n in range(len(example.phrases))]
        texts = [example.caption[phrase.start : phrase.end] for phrase in example.phrases]
        shown.append(
            [
                PatchAttention(text, each.map, grid.frame, each.box, each.share)
                for text, each in zip(texts, found, strict=True)
            ]
        )
    return shown


def _load(run: Run, name: str, regions: Any, cpu: bool) -> tuple[Any, Any]:
    """The model in evaluation mode on this process's device, and its processor."""
    source = str(run.folder / name)
    if regions is None:
        parser = argparse.ArgumentParser()
        add_vlm_options(parser)
        parser.set_defaults(model=source)
        return load_vlm(parser.parse_args(["--device", "cpu"] if cpu else []))
    processor = make_processor(Model(source=source))
    model: Any = load_base_model(source).eval().to(PartialState().device)
    check_finite(model, source)
    if not reads_pixels(model):
        check_width(model, processor, str(run.data.regions), regions.feature_size)
    return model, processor
