# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""What a page offers: checkpoints, where regions come from, pictures to begin with."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from grounded_attention.dataset_scripts.scenes.shape_regions import SOURCE
from grounded_attention.utils.bounded_files import read_json
from grounded_attention.utils.plain_text import short_names

HERE = Path(__file__).resolve().parent
MODELS = HERE / "models"
SCENES = HERE / "scenes"
CAPTIONS = "captions.json"
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


def settings_of(
    names: Sequence[str], vlm: str | None = None, detector: str = SOURCE, features: str = SOURCE
) -> SpaceSettings:
    """The settings of a page of checkpoints, folders or names on the Hub; without any of the small ones."""
    if len(set(names)) < len(names):
        raise ValueError(f"--model: {next(name for name in names if names.count(name) > 1)} is given twice")
    for name in filter(None, (*names, vlm)):
        if not Path(name).is_dir() and (name.count("/") != 1 or name.startswith(("/", "."))):
            raise ValueError(f"{name}: no such folder, and not a name on the Hub (ORG/NAME)")
    # A folder is called by its last part, unless others have it too; ORG/NAME in full.
    titles = [short if Path(name).is_dir() else name for name, short in zip(names, short_names(names), strict=True)]
    return SpaceSettings(dict(zip(titles, names, strict=True)) or dict(SMALL_MODELS), vlm, detector, features)


def read_scenes(folder: Path = SCENES) -> list[Scene]:
    """The pictures to begin with, and their captions."""
    scenes = [Scene(folder / name, caption) for name, caption in read_json(folder / CAPTIONS).items()]
    for scene in scenes:
        if not scene.path.is_file():
            raise ValueError(f"{scene.path}: no such picture, but {folder / CAPTIONS} names it")
    return scenes
