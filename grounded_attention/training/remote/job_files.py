# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""The files that a job needs: the recipe with its overrides, and this package as a wheel."""

import base64
import hashlib
import importlib.metadata
import io
import os
import re
import zipfile
from collections.abc import Iterator, Sequence
from pathlib import Path

import yaml
from packaging.requirements import Requirement

from grounded_attention import __version__
from grounded_attention.training.recipes.recipe import apply_override, read_recipe
from grounded_attention.utils.project import PACKAGE

# What a job needs beside the package alone.
TRAINING = ({"extra": "train"}, {"extra": "plots"})
NAME = "grounded-attention"
RECIPE = "recipe.yaml"
# Installed in the job in the version of this machine, where that is a release.
SAME_VERSION = ("torch", "transformers", "datasets", "accelerate", "huggingface-hub", "tokenizers", "numpy")
_RELEASE = re.compile(r"\d+(\.\d+)*")
_DATE = (1980, 1, 1, 0, 0, 0)  # the same files make the same wheel, which is then uploaded only once


def job_recipe(path: Path, overrides: Sequence[str]) -> bytes:
    """The recipe of a job as YAML: what it extends and the overrides are in it, the token is not."""
    content = read_recipe(path)
    for override in overrides:
        apply_override(content, override)
    for section in (content, content.get("start") or {}):
        section.get("training", {}).pop("hub_token", None)
    return yaml.safe_dump(content, sort_keys=False, allow_unicode=True).encode()


def package_wheel() -> tuple[str, bytes]:
    """Packs the package that is running, with local changes, as a wheel."""
    stem = f"{NAME.replace('-', '_')}-{__version__}"
    info = f"{stem}.dist-info"
    files = {**dict(_package_files()), **{f"{info}/{name}": text.encode() for name, text in _metadata().items()}}
    record = [f"{name},sha256={_digest(content)},{len(content)}" for name, content in files.items()]
    files[f"{info}/RECORD"] = "\n".join([*record, f"{info}/RECORD,,", ""]).encode()
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as wheel:
        for name, content in files.items():
            wheel.writestr(zipfile.ZipInfo(name, _DATE), content, zipfile.ZIP_DEFLATED)
    return f"{stem}-py3-none-any.whl", packed.getvalue()


def _package_files() -> Iterator[tuple[str, bytes]]:
    """The files of the package by name; linked folders of a clone are folders like the others."""
    for folder, below, names in os.walk(PACKAGE, followlinks=True):
        below[:] = sorted(name for name in below if name != "__pycache__" and not name.startswith("."))
        for name in sorted(names):
            if not name.endswith(".pyc") and not name.startswith("."):
                path = Path(folder, name)
                yield str(PACKAGE.name / path.relative_to(PACKAGE)), path.read_bytes()


def _metadata() -> dict[str, str]:
    """The files of `.dist-info` except RECORD: those of the installed package, which needs what training needs."""
    try:
        installed = importlib.metadata.distribution(NAME)
    except importlib.metadata.PackageNotFoundError:
        raise ValueError(f"{NAME} is not installed here, so it cannot be packed for a job: pip install -e .") from None
    requirements = map(Requirement, installed.requires or ())
    wanted = [each for each in requirements if each.marker is None or any(map(each.marker.evaluate, TRAINING))]
    required = [f"{each.name}{each.specifier}" for each in wanted if each.name != NAME]
    lines = ["Metadata-Version: 2.1", f"Name: {NAME}", f"Version: {__version__}"]
    lines += [f"Requires-Python: {installed.metadata['Requires-Python']}", *(f"Requires-Dist: {r}" for r in required)]
    entry = f"[console_scripts]\n{NAME} = {PACKAGE.name}.commands.main:main\n"
    wheel = f"Wheel-Version: 1.0\nGenerator: {NAME}\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
    return {"METADATA": "\n".join([*lines, ""]), "WHEEL": wheel, "entry_points.txt": entry}


def _digest(content: bytes) -> str:
    return base64.urlsafe_b64encode(hashlib.sha256(content).digest()).rstrip(b"=").decode()


def requirements(further: Sequence[str]) -> list[str]:
    """What a job installs beside the package: the versions of this machine, and further packages."""
    pinned = []
    for name in dict.fromkeys([*SAME_VERSION, *further]):
        try:
            version = importlib.metadata.version(name).partition("+")[0]  # torch says +cpu
        except importlib.metadata.PackageNotFoundError:
            version = ""
        if _RELEASE.fullmatch(version):
            pinned.append(f"{name}=={version}")
        elif name in further:
            pinned.append(name)
    return pinned
