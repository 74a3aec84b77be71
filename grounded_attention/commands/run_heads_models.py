# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""Measures one model of a run for `grounded-attention run-heads`: it reads regions, or images as tokens."""

import argparse
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from grounded_attention.analysis.perturbation_curves import PerturbationCurves
from grounded_attention.dataset_scripts.licences import read_scenes
from grounded_attention.heads.changes import Changes
from grounded_attention.heads.example_attention import ExampleAttention
from grounded_attention.heads.examples import AuditExample, make_batch
from grounded_attention.heads.heads_file import ChosenHeads
from grounded_attention.heads.items import DEFAULT_WORD
from grounded_attention.heads.pipeline import ground_batch
from grounded_attention.heads.ranking import HeadRanking, Relate, rank_heads
from grounded_attention.heads.table import HeadTable
from grounded_attention.pages.patch_pictures import PatchAttention
from grounded_attention.training.experiments.prepared_data import PreparedData
from grounded_attention.training.recipes.recipe import Data, Recipe
from grounded_attention.utils.open_images import open_image
from grounded_attention.utils.safe_paths import path_below

from .heads_models import Loaded, load
from .heads_work import capture
from .vlm_options import default_options

BUILDER = "flickr30k_entities"
UNSUPERVISED = "none"  # the method that the others are compared with
TRAIN, CHOSEN_ON, REPORTED = "train", "validation", "test"
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
class OwnRows:
    """What a run of `data.source` reads: its recipe and data, the rows of each split, the picture of each image."""

    recipe: Recipe
    data: PreparedData
    rows: Mapping[str, Any]
    files: Mapping[str, Path]


@dataclass(frozen=True)
class Run:
    """A finished run: its folder, its methods and its data.

    `instruction` is what the user says before a caption, for vision-language models; None for other models.
    `text_only` is the name of the baseline that was trained without pictures, if there is one. `own` is there if the
    rows are those of `data.source`.
    """

    folder: Path
    task: str
    methods: list[str]
    data: Data
    seed: int
    instruction: str | None = None
    text_only: str | None = None
    own: OwnRows | None = None

    @property
    def splits(self) -> tuple[str, str]:
        """The split on which heads are chosen, and the one on which they are reported."""
        return (CHOSEN_ON, REPORTED) if self.own is None or REPORTED in self.own.rows else (TRAIN, CHOSEN_ON)

    @property
    def place(self) -> str:
        """Where the rows come from."""
        return self.data.source or self.data.data_dir

    @property
    def scenes(self) -> Any:
        """What scenes the data are, if they are scenes."""
        return None if self.own else read_scenes(Path(self.data.data_dir))

    @property
    def reads_tokens(self) -> bool:
        """Whether the models are vision-language models, whose regions are image tokens."""
        return self.instruction is not None

    @property
    def region_name(self) -> str:
        """What the regions of the models are, for tables and errors."""
        regions = self.data.regions
        return "image tokens" if self.reads_tokens else str(getattr(regions, "detector", regions))

    def picture_path(self, image_id: str) -> Path:
        """The file of an image."""
        if self.own is not None:
            return self.own.files[image_id]
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
    source, (chosen_on, reported) = str(run.folder / name), run.splits
    data = BUILDER if run.own is None else run.place
    device = "cpu" if options.cpu else None
    settings = default_options(model=source, tokenizer=None, device=device, ablate=options.ablate)
    loaded = load(source, name, settings, regions)
    ranking = rank_heads(
        loaded.model,
        loaded.processor,
        examples[chosen_on],
        run.picture,
        report=examples[reported],
        regions=regions,
        count=options.top_k,
        words=options.words or ("mean" if run.reads_tokens else DEFAULT_WORD),
        instruction=run.instruction,
        ablate=options.ablate,
        seed=run.seed,
        relate=relate,
        progress=True,
        about={"model": name, "data": data, "split": reported, "choose_on": chosen_on, "regions": run.region_name},
    )
    shown = capture(loaded, explored, regions, run.picture, run.instruction)
    if regions is not None:
        return Measured(ranking, shown)
    gold = [[phrase.boxes for phrase in example.phrases] for example in explored]
    return Measured(ranking, shown, look(run, loaded, ranking.chosen, explored), gold)


def look(
    run: Run, loaded: Loaded, chosen: ChosenHeads, examples: Sequence[AuditExample]
) -> list[list[PatchAttention]]:
    """Where the chosen heads look: for each example the attention of its phrases."""
    shown = []
    for example in examples:
        batch = make_batch(loaded.processor, [example], run.picture, chosen.settings)
        (boxes,) = ground_batch(loaded.model, batch, [example], chosen)
        texts = (example.caption[phrase.start : phrase.end] for phrase in example.phrases)
        shown.append(
            [PatchAttention(text, b.map, b.frame, b.box, b.share) for text, b in zip(texts, boxes, strict=True)]
        )
    return shown
