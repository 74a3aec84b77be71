# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""The files of a Space on the Hub, and the commit that puts them there.

The package is shipped in the repository, since a Space installs only what a package registry has.
"""

import json
import os
from fnmatch import fnmatch
from importlib.metadata import requires, version
from pathlib import Path
from typing import Any

import yaml

import grounded_attention
from grounded_attention.dataset_scripts.hub.push_commit import SPACE, Files, commit_files, fetch_repository
from grounded_attention.utils.safe_paths import own_files

from .settings import HERE, SMALL_MODELS, SMALL_VLM, SpaceSettings

PACKAGE = Path(grounded_attention.__file__).parent
APP = "app.py"
SETTINGS = "space.json"
CARD = "README.md"
REQUIREMENTS = "requirements.txt"
MODELS = "checkpoints"
# Files of the package; caches of this machine have other names.
SUFFIXES = (".py", ".pyi", ".css", ".js", ".json", ".md", ".yaml", ".jinja", ".typed", ".jpg", ".safetensors")
# Files that load a model; a checkpoint folder may contain more.
MODEL_FILES = (
    *("config.json", "generation_config.json", "*.safetensors", "*.safetensors.index.json", "heads.json"),
    *("*processor_config.json", "tokenizer*", "vocab.*", "merges.txt", "special_tokens_map.json", "chat_template*"),
)
# A Space has two processors and no GPU unless its owner chooses another machine.
CPU_WHEELS = "--extra-index-url https://download.pytorch.org/whl/cpu"
TITLE = "Where does a word look?"


def space_files(settings: SpaceSettings) -> Files:
    """The files of a Space."""
    # Also behind the links of the package.
    paths = [Path(place, name) for place, _, names in os.walk(PACKAGE, followlinks=True) for name in names]
    files: Files = {}
    for p in paths:
        if p.suffix in SUFFIXES:
            files[f"grounded_attention/{p.relative_to(PACKAGE).as_posix()}"] = p
    written: dict[str, Any] = {"detector": settings.detector, "features": settings.features, "folders": False}
    for place in SMALL_VLM.values():
        _check_model(place)
    if settings.models == SMALL_MODELS:  # these are in the package
        for place in SMALL_MODELS.values():
            _check_model(place)
    else:
        written["models"] = {name: _add_model(files, str(place)) for name, place in settings.models.items()}
    written["vlm"] = None if settings.vlm is None else _add_model(files, settings.vlm)
    files[APP] = HERE / APP
    files[SETTINGS] = (json.dumps(written, indent=1) + "\n").encode()
    files[REQUIREMENTS] = requirements().encode()
    places = [*written.get("models", {}).values(), *([written["vlm"]] if written["vlm"] else [])]
    files[CARD] = space_card([place for place in places if not place.startswith(f"{MODELS}/")]).encode()
    return files


def _add_model(files: Files, place: str) -> str:
    """Adds the files of a folder; returns its place in the repository, or the name on the Hub."""
    folder = Path(place)
    if not folder.is_dir():
        return place
    _check_model(folder)
    taken = {name.split("/")[1] for name in files if name.startswith(f"{MODELS}/")}
    if folder.name not in taken:
        target = folder.name
    else:
        target = f"{folder.parent.name}_{folder.name}"
    for path in own_files(folder):
        name = path.relative_to(folder).as_posix()
        if any(fnmatch(name, pattern) for pattern in MODEL_FILES):
            files[f"{MODELS}/{target}/{name}"] = path
    return f"{MODELS}/{target}"


def _check_model(folder: Path) -> None:
    if not (folder / "config.json").is_file() or not any(folder.glob("*.safetensors")):
        raise ValueError(
            f"{folder} contains no model: expected config.json and safetensors, as save_pretrained writes"
        )


def requirements() -> str:
    """The requirements of the package without its extras; gradio comes with the Space."""
    needed = [line for line in requires("grounded-attention") or [] if "extra ==" not in line]
    return "\n".join([CPU_WHEELS, *needed]) + "\n"


def space_card(models: list[str]) -> str:
    """The README of a Space, whose first lines configure it."""
    about = {
        "title": TITLE,
        "emoji": "👁️",
        "colorFrom": "yellow",
        "colorTo": "blue",
        "sdk": "gradio",
        "sdk_version": version("gradio"),
        "app_file": APP,
        "python_version": "3.12",
        "license": "apache-2.0",
        "short_description": "Click a word and see where each attention head looks",
        **({"models": models} if models else {}),
    }
    text = (HERE / "card.md").read_text(encoding="utf-8")
    return f"---\n{yaml.safe_dump(about, sort_keys=False, allow_unicode=True)}---\n\n{text}"


def push_space(name: str, settings: SpaceSettings, private: bool = False) -> str:
    """Pushes a Space in one commit; it is created if it is missing."""
    files = space_files(settings)
    repository = fetch_repository(name, private=private, kind=SPACE)
    there = repository.user_files()
    repository.refuse_others(SETTINGS)
    # Files of an older version of the package, and checkpoints that are no longer shown.
    old = []
    for path in there:
        if path not in files and path.split("/")[0] in ("grounded_attention", MODELS):
            old.append(path)
    return commit_files(repository, files, old, message="Push the Space", private=private)
