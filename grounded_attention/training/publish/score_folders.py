# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""Folders of the scores that `evaluate.load` opens, here or as a Space of the Hub."""

from collections.abc import Sequence
from html import escape
from pathlib import Path

import yaml
from jinja2 import Template

from grounded_attention.dataset_scripts.hub.push_commit import (
    CARD,
    SPACE,
    Files,
    commit_files,
    fetch_repository,
)
from grounded_attention.pages.page import html_page
from grounded_attention.tasks.score_modules import SCORES
from grounded_attention.utils.bounded_files import read_text
from grounded_attention.utils.project import MODEL_CARDS
from grounded_attention.utils.whole_files import write_text

PAGE = "index.html"
BASE = "score_modules.ScoreModule"
MODULE = '''# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""{title}, for `evaluate`; needs `pip install "grounded-attention[train]"`."""

from grounded_attention.tasks import score_modules


class {class_name}({base}):
    """{title}."""

    score = "{name}"
'''


def write_scores(directory: str | Path, names: Sequence[str] = ()) -> list[Path]:
    """Writes a folder for each score: the module that `evaluate.load` opens, a card and a page.

    Args:
        directory (`str | Path`): the folder of the folders; made if missing. Files of an earlier call are replaced.
        names (`Sequence[str]`, *optional*): keys of `SCORES`; all by default.

    Returns:
        `list[Path]`: the folders, in this order.

    Raises:
        ValueError: if there is no such score.
    """
    unknown = [name for name in names if name not in SCORES]
    if unknown:
        raise ValueError(f"no score {', '.join(unknown)}; there are {', '.join(SCORES)}")
    folders = []
    for name in names or SCORES:
        folder = Path(directory, name)
        folder.mkdir(parents=True, exist_ok=True)
        for file, text in score_files(name).items():
            write_text(folder / file, text)
        folders.append(folder)
    return folders


def score_files(name: str) -> dict[str, str]:
    """The files of a score: name -> text. The module has the name of the folder, as `evaluate` expects."""
    score = SCORES[name]
    about = {
        "title": score.title,
        "emoji": "👁️",
        "colorFrom": "yellow",
        "colorTo": "blue",
        "sdk": "static",
        "pinned": False,
        "tags": ["evaluate", "metric", "grounded-attention"],
        "description": score.says,
        "license": "apache-2.0",
    }
    prediction, reference = score.example
    card = Template(read_text(MODEL_CARDS / "score.md")).render(
        about=yaml.safe_dump(about, sort_keys=False, allow_unicode=True).strip(),
        name=name,
        score=score,
        prediction=repr(prediction),
        reference=repr(reference),
    )
    module = MODULE.format(title=score.title, base=BASE, name=name, class_name=name.title().replace("_", ""))
    return {
        f"{name}.py": module,
        CARD: f"{card}\n",
        PAGE: html_page(score.title, f"<p>{escape(score.says)} See {CARD}.</p>"),
    }


def is_score(directory: Path) -> bool:
    """Whether this is a folder of `write_scores`."""
    module = module_of(directory)
    return module.is_file() and BASE in read_text(module)


def module_of(directory: Path) -> Path:
    """The module that `evaluate.load` opens in a folder."""
    return directory / f"{directory.resolve().name}.py"


def push_score(directory: Path, to: str, private: bool = False) -> str:
    """Pushes a folder of `write_scores` to a Space, which `evaluate.load(to)` opens; returns the commit's address."""
    repository = fetch_repository(to, private=private, kind=SPACE)
    module = f"{repository.name.split('/')[-1]}.py"
    repository.refuse_others(module)
    files: Files = {module: module_of(directory)}
    for name in (CARD, PAGE):
        text = read_text(directory / name)
        files[name] = text.replace(f'"{directory.resolve().name}"', f'"{repository.name}"').encode()
    return commit_files(repository, files, message="Push the score", private=private)
