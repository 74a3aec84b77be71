# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""The options of `evaluate` and of `data pseudo-ground`, which their help and their work read."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated

from grounded_attention.analysis import MAPS
from grounded_attention.dataset_scripts.builders import BUILDERS
from grounded_attention.labelling import PROMPTS

from .command_line import Positive, Seed, Share
from .models import Dtype

SUITES = ("grounding", "composition", "hallucination", "evidence")
MATCHES = ("yes", "caption")


@dataclass
class Evaluation:
    """What is scored, on which rows.

    Args:
        task (NAME): such as vgp or vqa; an error lists all
        suite: score on probes of this kind instead
        probe (SOURCE): of --suite: rows, or scenes
        match: how a decoder matches a text: yes or no, or as its caption
        before (CHECKPOINT): of --suite: compare with this model, such as that before the training
        card (FILE_OR_DIR): of --suite: put the tables of the output folder into this model card
        faithful (MAP): measure how faithful these maps are instead; all, or of raw_last, raw_mean, rollout, relevancy,
            contribution
        data_dir (DIR): folder of the data set, see docs/data.md
        regions (TABLE): folder of the region table
        text_only: score without regions
        split (NAME): splits (default: validation)
        images (DIR): folder of the images, for the report and for a model that reads pixels
        data (SOURCE): rows as for `data show`: scored in place of --data-dir; pictures need no --images
        columns (WHAT=COLUMN): what columns are: text=answer boxes=bbox
        boxes (HOW): how boxes are written, such as "xywh pixels", if the data do not tell
        output (DIR): output folder (default: a folder in runs/evaluation)
        predictions (FILE): score this official file of predictions, not a checkpoint (VQA v2, GQA, NLVR2)
        limit (N): at most N rows of a split, after a seeded shuffle
        batch_size (N): rows per batch
        seed (N): seed of --limit, of masking, and of the choice of shown predictions
        set (KEY=VALUE): keys of a recipe, see above
    """

    task: str | None = None
    suite: Annotated[str | None, SUITES] = None
    probe: list[str] | None = None
    match: Annotated[str, MATCHES] = "yes"
    before: str | None = None
    card: str | None = None
    faithful: tuple[Annotated[str, (*MAPS, "all")], ...] | None = None
    data_dir: str | None = None
    regions: str | None = None
    text_only: bool = False
    split: list[str] = field(default_factory=list)
    images: str | None = None
    data: str | None = None
    columns: tuple[str, ...] | None = None
    boxes: str | None = None
    output: str | None = None
    predictions: str | None = None
    limit: Positive | None = None
    batch_size: Positive = 32
    seed: Seed = 0
    set: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class Captions:
    """What is labelled.

    Args:
        captions (BUILDER): the data set with the captions
        data_dir (DIR): folder of the data set
        split (NAME): splits to label (default: all)
        limit (N): label only the first captions; of --data so many rows are read
        images (DIR_OR_LIST): folder of images, or a list file: a path, or id TAB path, per line
        data (SOURCE): rows as for `data show`: pictures and texts, in place of --captions, --data-dir and --images
        columns (WHAT=COLUMN): what columns are: text=answer boxes=bbox
        boxes (HOW): how boxes are written, such as "xywh pixels", if the data do not tell
    """

    captions: Annotated[str | None, BUILDERS] = None
    data_dir: Path | None = None
    split: list[str] | None = None
    limit: Positive | None = None
    images: Path | None = None
    data: str | None = None
    columns: tuple[str, ...] | None = None
    boxes: str | None = None


@dataclass(frozen=True)
class Grounding:
    """What labels it.

    Args:
        grounder (NAME_OR_PATH): zero-shot detector or Florence-2 of transformers (also ORG/NAME@REVISION), checkpoint
            of this project, or "scenes"
        prompt: what a zero-shot detector reads: each phrase alone (default, as in the paper), or the caption
        processor (KEY=VALUE): options of the grounder's processor, as YAML: 'size={height: 768, width: 768}'
        wrong (SHARE): of --grounder scenes: share of phrases with a wrong box (default: 0)
        regions (DIR): region table: counts the phrases that regions match; input of own models
        device (NAME): cpu, cuda, cuda:1 ...; default: one GPU per process if there is one
        dtype: floating type of the grounder
    """

    grounder: str
    prompt: Annotated[str | None, PROMPTS] = None
    processor: list[str] | None = None
    wrong: Share | None = None
    regions: str | None = None
    device: str | None = None
    dtype: Dtype | None = None
