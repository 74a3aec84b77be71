# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""What a page offers: checkpoints, where regions come from, pictures to begin with."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from grounded_attention.dataset_scripts.scenes.shape_regions import SOURCE
from grounded_attention.utils.bounded_files import read_json

HERE = Path(__file__).resolve().parent
MODELS, SCENES, CAPTIONS = HERE / "models", HERE / "scenes", "captions.json"
# The checkpoints that come with the package, and what they are called on the page.
SMALL_MODELS = {"without supervision": MODELS / "none", "supervised (direct)": MODELS / "direct"}
SMALL_VLM = {"small LLaVA of scenes": MODELS / "vlm" / "direct"}


class Scene(NamedTuple):
    """A picture to begin with: its file and its caption."""

    path: Path
    caption: str


@dataclass(frozen=True)
class SpaceSettings:
    """What a page offers; `vlm` besides the small vision-language model of the package."""

    models: Mapping[str, str | Path] = field(default_factory=lambda: dict(SMALL_MODELS))
    vlm: str | None = None
    detector: str = SOURCE
    features: str = SOURCE
    folders: bool = True


def read_scenes(folder: Path = SCENES) -> list[Scene]:
    """The pictures to begin with, and their captions."""
    scenes = [Scene(folder / name, caption) for name, caption in read_json(folder / CAPTIONS).items()]
    for scene in scenes:
        if not scene.path.is_file():
            raise ValueError(f"{scene.path}: no such picture, but {folder / CAPTIONS} names it")
    return scenes
