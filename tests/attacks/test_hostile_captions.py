# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""Captions with script tags, direction marks and terminal codes: the pages of the commands show them and obey none."""

import unicodedata

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
    for first, path in enumerate((scenes / "flickr30k_entities" / "Sentences").iterdir()):
        lines = path.read_text(encoding="utf-8").splitlines()
        changed = [f"{line[:-1]}{TEXTS[(first + number) % len(TEXTS)]} ." for number, line in enumerate(lines)]
        path.write_text("\n".join(changed) + "\n", encoding="utf-8")
    model = save_checkpoint(scenes, folder / "model")
    data = ["--data-dir", str(scenes), "--split", "test"]
    source = [str(model), "--task", "vgp", "--regions", str(scenes / "regions"), "--limit", "6"]
    assert evaluate.main([*source, *data, "--output", str(folder / "measured")]) == 0
    source = ["--model", str(model), "--data", "flickr30k_entities", "--explore", "3"]
    source += ["--images", str(scenes / "flickr30k-images")]
    assert heads.main([*source, *data, "--limit", "12", "--output", str(folder / "audited")]) == 0
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
    assert [address for address in browser.requests if not address.startswith(("file:", "data:"))] == []
    width = browser.evaluate("document.documentElement.scrollWidth - document.documentElement.clientWidth")
    assert width <= 1


@pytest.mark.parametrize("page", PAGES)
def test_the_policy_forbids_all_that_the_page_does_not_need(folder, page):
    text = (folder / page).read_text(encoding="utf-8")
    assert "default-src 'none'" in text.partition("<body")[0]
    assert "\x1b" not in text
    assert "\x07" not in text


def test_what_a_command_prints_cannot_steer_a_terminal(folder, capsys):
    """The report of a build has examples from the data."""
    sentences = folder / "scenes" / "flickr30k_entities" / "Sentences"
    names = [f"{path.stem}\u202e\x9b31m" for path in sentences.iterdir()]
    captions = sentences.parent / "UNRELATED_CAPTIONS"
    captions.write_text(captions.read_text() + "".join(f"{name} 0\n" for name in names), encoding="utf-8")
    arguments = ["--data-dir", str(folder / "scenes"), "--output", str(folder / "built")]
    build_data.main(["flickr30k_entities", *arguments])
    printed = capsys.readouterr()
    hidden = {unicodedata.category(c) for c in printed.out + printed.err if c not in "\n\r\t"} & set(HIDDEN)
    assert "\\u202e" in printed.out + printed.err
    assert not hidden, (printed.out + printed.err)[:2000]
