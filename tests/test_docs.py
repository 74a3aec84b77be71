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
WITH_HUB = "<!-- run with: loopback hub -->"
OFFLINE, ON_HUB = "offline", "on the loopback Hub"


def snippets(page: Path) -> list[tuple[str, str, str | None]]:
    """(name, code, where it is to run or None) of each Python block."""
    text = page.read_text(encoding="utf-8")
    found = []
    for block in re.finditer(r"^```python\n(.*?)^```$", text, re.DOTALL | re.MULTILINE):
        before = text[: block.start()].rstrip().rsplit("\n", 1)[-1]
        line = text.count("\n", 0, block.start()) + 1
        where = None if NOT_RUN.fullmatch(before) else ON_HUB if before == WITH_HUB else OFFLINE
        found.append((f"{page.name}:{line}", block[1], where))
    return found


SNIPPETS = [snippet for page in PAGES for snippet in snippets(page)]


def test_there_are_snippets_to_run():
    assert {where for _, _, where in SNIPPETS} >= {OFFLINE, ON_HUB}


def test_a_mark_needs_its_reason(tmp_path):
    page = tmp_path / "page.md"
    marks = ["<!-- not run: slow -->", "<!-- not run: -->\n", WITH_HUB]
    page.write_text("".join(f"{mark}\n```python\n{code}\n```\n" for mark, code in zip(marks, "abc", strict=True)))
    assert [(code, where) for _, code, where in snippets(page)] == [("a\n", None), ("b\n", OFFLINE), ("c\n", ON_HUB)]


@pytest.mark.parametrize(("name", "code", "where"), SNIPPETS, ids=[name for name, _, _ in SNIPPETS])
def test_snippet(tmp_path, loopback_hub, name, code, where):
    compile(code, name, "exec")
    if where is None:
        return
    environment = loopback_hub.environment(tmp_path / "home") if where == ON_HUB else {**os.environ}
    environment |= {"PYTHONPATH": str(ROOT), "HF_MODULES_CACHE": str(tmp_path / "modules")}
    if where == OFFLINE:
        environment["HF_HUB_OFFLINE"] = "1"
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, f"{name}: {done.stderr[-2000:]}"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_between_files_lead_somewhere(page):
    for target in re.findall(r"\]\((?!https?:|#)([^)#]+)", page.read_text(encoding="utf-8")):
        assert (page.parent / target).exists(), f"{page.name} links to {target}"
