# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""The options of `evaluate`."""

from dataclasses import dataclass, field
from typing import Annotated

from grounded_attention.analysis import MAPS
from grounded_attention.commands.command_line import Positive, Seed

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
