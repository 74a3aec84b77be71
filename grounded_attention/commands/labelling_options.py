# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""The options of `data pseudo-ground` that say what is labelled, and by what."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from grounded_attention.dataset_scripts.builders import BUILDERS
from grounded_attention.labelling import PROMPTS

from .command_line import Positive, Share
from .models import Dtype


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
