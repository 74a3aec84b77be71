# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""The Python snippets of README.md and docs/ run as they stand; links between the pages lead somewhere."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
NOT_RUN = re.compile(r"<!-- not run: \S.*-->")


def snippets(page: Path) -> list[tuple[str, str, bool]]:
    """(name, code, whether it is to run) of each Python block."""
    text = page.read_text(encoding="utf-8")
    found = []
    for block in re.finditer(r"^```python\n(.*?)^```$", text, re.DOTALL | re.MULTILINE):
        before = text[: block.start()].rstrip().rsplit("\n", 1)[-1]
        line = text.count("\n", 0, block.start()) + 1
        found.append((f"{page.name}:{line}", block[1], NOT_RUN.fullmatch(before) is None))
    return found


SNIPPETS = [snippet for page in PAGES for snippet in snippets(page)]


def test_there_are_snippets_to_run():
    assert sum(run for _, _, run in SNIPPETS) >= 3


def test_a_mark_needs_its_reason(tmp_path):
    page = tmp_path / "page.md"
    page.write_text("<!-- not run: slow -->\n```python\na\n```\n<!-- not run: -->\n\n```python\nb\n```\n")
    assert [(code, run) for _, code, run in snippets(page)] == [("a\n", False), ("b\n", True)]


@pytest.mark.parametrize(("name", "code", "run"), SNIPPETS, ids=[name for name, _, _ in SNIPPETS])
def test_snippet(tmp_path, name, code, run):
    compile(code, name, "exec")
    if not run:
        return
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "HF_HUB_OFFLINE": "1", "HF_MODULES_CACHE": str(tmp_path)}
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, f"{name}: {done.stderr[-2000:]}"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_between_files_lead_somewhere(page):
    for target in re.findall(r"\]\((?!https?:|#)([^)#]+)", page.read_text(encoding="utf-8")):
        assert (page.parent / target).exists(), f"{page.name} links to {target}"
