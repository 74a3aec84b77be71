# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""Captions with script tags, direction marks and terminal codes: the pages of the commands show them and obey none."""

import unicodedata
from itertools import cycle

import datasets
import pytest

from grounded_attention.commands import build_data, evaluate, heads
from grounded_attention.utils.plain_text import HIDDEN
from tests.helpers.browser import open_browser
from tests.helpers.hostile_texts import HOSTILE
from tests.helpers.tiny_checkpoint import save_checkpoint
from tests.helpers.tiny_scenes import tiny_scenes

TEXTS = [HOSTILE[name] for name in ("script", "attribute", "right to left", "terminal")]
PAGES = ("audited/heads.html", "measured/report.html")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Scenes whose captions all end in hostile texts, and the pages that two commands write about them."""
    folder = tmp_path_factory.mktemp("hostile")
    cache, datasets.config.HF_DATASETS_CACHE = datasets.config.HF_DATASETS_CACHE, folder / "cache"
    scenes = tiny_scenes(folder / "scenes")
    texts = cycle(TEXTS)
    for path in (scenes / "flickr30k_entities" / "Sentences").iterdir():
        lines = path.read_text(encoding="utf-8").splitlines()
        path.write_text("".join(f"{line[:-1]}{next(texts)} .\n" for line in lines), encoding="utf-8")
    model = str(save_checkpoint(scenes, folder / "model"))
    data = ["--data-dir", str(scenes), "--split", "test", "--limit", "6"]
    options = ["--task", "vgp", "--regions", str(scenes / "regions"), "--output", str(folder / "measured")]
    assert evaluate.main([model, *data, *options]) == 0
    options = ["--data", "flickr30k_entities", "--explore", "3", "--images", str(scenes / "flickr30k-images")]
    assert heads.main(["--model", model, *data, *options, "--output", str(folder / "audited")]) == 0
    yield folder
    datasets.config.HF_DATASETS_CACHE = cache


@pytest.fixture(scope="module")
def browser(tmp_path_factory):
    with open_browser(tmp_path_factory.mktemp("profile")) as page:
        yield page


@pytest.mark.parametrize("page", PAGES)
def test_a_browser_shows_them_and_obeys_none(folder, browser, page):
    browser.requests.clear()
    browser.problems.clear()
    browser.open(folder / page)
    assert "alert(1)" in browser.evaluate("document.body.innerText"), "the hostile captions are not on the page"
    assert browser.evaluate("document.querySelectorAll('img[onerror], [onmouseover], body b, iframe').length") == 0
    assert browser.problems == []
    assert all(address.startswith(("file:", "data:")) for address in browser.requests)
    width = browser.evaluate("document.documentElement.scrollWidth - document.documentElement.clientWidth")
    assert width <= 1


def test_what_a_command_prints_cannot_steer_a_terminal(folder, capsys):
    """The report of a build has examples from the data."""
    entities = folder / "scenes" / "flickr30k_entities"
    with (entities / "UNRELATED_CAPTIONS").open("a", encoding="utf-8") as file:
        for path in (entities / "Sentences").iterdir():
            file.write(f"{path.stem}\u202e\x9b31m 0\n")
    build_data.main(["flickr30k_entities", "--data-dir", str(folder / "scenes"), "--output", str(folder / "built")])
    captured = capsys.readouterr()
    printed = captured.out + captured.err
    assert "\\u202e" in printed
    assert not set(map(unicodedata.category, set(printed) - {*"\n\r\t"})) & set(HIDDEN), printed[:2000]
