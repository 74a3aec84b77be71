# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""Writes what a release has beside its wheel and site: `python .github/release_folder.py dist`. Pushes nothing.

- `notes.md`: the section of the version in CHANGELOG.md
- `space/`: the files of the Space, as `grounded-attention space push` would push them
- `cards/NAME.md`: the cards of the published checkpoints; one that names no library is refused
"""

import shutil
import sys
from pathlib import Path

from huggingface_hub import ModelCard
from release_notes import ROOT, package_version, release_notes

from grounded_attention.space.publish import space_files
from grounded_attention.space.settings import SpaceSettings


def write_notes(folder: Path) -> None:
    """The notes of this version."""
    version = package_version()
    changelog = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    (folder / "notes.md").write_text(release_notes(f"v{version}", changelog, version) + "\n", encoding="utf-8")


def write_space(folder: Path) -> None:
    """Every file of the Space at its place in the repository."""
    for name, content in space_files(SpaceSettings()).items():
        target = folder / name
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(content if isinstance(content, bytes) else content.read_bytes())


def write_cards(folder: Path) -> None:
    """The cards of checkpoints, without the templates."""
    folder.mkdir()
    for path in sorted((ROOT / "model_cards").glob("vl-bert-*.md")):
        if not ModelCard.load(path).data.library_name:
            raise ValueError(f"{path}: a card needs `library_name`")
        shutil.copy(path, folder)


def main() -> None:
    folder = Path(sys.argv[1])
    write_notes(folder)
    write_space(folder / "space")
    write_cards(folder / "cards")
    for path in sorted(folder.iterdir()):
        print(path)


if __name__ == "__main__":
    main()
