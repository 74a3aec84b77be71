# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""The page in a real browser: a visitor clicks, drags, uploads and makes mistakes."""

import json
import time

import pytest
from PIL import Image

from grounded_attention.space.loading import Captures
from grounded_attention.space.settings import SCENES, SMALL_VLM, SpaceSettings, read_scenes
from tests.helpers.browser import open_browser
from tests.space.space_pages import serve

# The pages of the tabs, in their frames.
LENS, REGIONS = (f"document.querySelector('#{tab}-view iframe')?.contentDocument" for tab in ("look", "grounded"))
READY = f"{REGIONS}?.querySelector('.explorers')?.dataset.ready === 'true'"


@pytest.fixture(scope="module")
def settings():
    return SpaceSettings()


@pytest.fixture(scope="module")
def page(settings, tmp_path_factory):
    with serve(settings) as address, open_browser(tmp_path_factory.mktemp("browser") / "profile") as browser:
        browser.open(f"{address}/?__theme=light", height=1000)
        browser.address = address
        browser.wait("!!document.querySelector('#look-view iframe')")
        open_regions(browser)
        yield browser


def open_regions(page):
    page.click_until("button[role=tab]:nth-of-type(2)", READY)


def shown_shares(page):
    """What each region of each pane says that it has of the attention."""
    return page.evaluate(
        f"[...{REGIONS}.querySelectorAll('.pane')].map((pane) => [...pane.querySelectorAll('.region')]"
        ".sort((a, b) => a.dataset.region - b.dataset.region).map((e) => Number(e.dataset.share)))"
    )


def chosen(page, name):
    return page.evaluate(f"{REGIONS}.querySelector('[data-output={name}]').textContent")


def write(page, selector, words):
    """Replaces the text of a field, as typing does."""
    page.evaluate(f"document.querySelector({json.dumps(selector)}).select()")
    page.click(selector)
    page.evaluate(f"document.querySelector({json.dumps(selector)}).select()")
    page.call("Input.insertText", text=words)


def open_scene(page, number, tab="grounded"):
    caption = json.dumps(read_scenes()[number].caption)
    # A page that is still being set up may miss a click.
    page.click_until(
        f'#{tab}-scenes [data-scene="{number}"]',
        f"document.querySelector('#{tab}-text textarea').value === {caption}"
        f" && {REGIONS}?.querySelector('.text')?.textContent === {caption} && {READY}",
    )


def error_of(page, tab="grounded"):
    return page.wait(f"document.querySelector('#{tab}-error .ga-error')?.textContent")


def no_error(page, tab="grounded"):
    page.wait(f"!document.querySelector('#{tab}-error .ga-error')")


def test_it_opens_with_a_picture_and_asks_nobody_else(page):
    assert page.evaluate(f"{REGIONS}.querySelectorAll('.pane').length") == 2
    elsewhere = [address for address in page.requests if not address.startswith((page.address, "data:", "about:"))]
    assert not elsewhere
    assert not page.problems


@pytest.mark.parametrize("scene, word", [(1, 4), (2, 5)])
def test_a_clicked_word_shows_the_attention_of_both_checkpoints(page, settings, scene, word):
    open_scene(page, scene)
    page.evaluate(f"{REGIONS}.querySelector('[data-word=\"{word}\"]').click()")
    page.evaluate(f"{REGIONS}.querySelector('[data-cell=\"1 2\"]').dispatchEvent(new Event('click'))")
    assert (chosen(page, "layer"), chosen(page, "head")) == ("1", "2")
    captures = Captures(settings)
    start = read_scenes()[scene]
    with Image.open(start.path) as picture:
        image = picture.convert("RGB")
    for name, shown in zip(settings.models, shown_shares(page), strict=True):
        expected = captures.grounded(image, start.caption, name).example.over_regions(word, 1, 2)[0]
        assert shown == pytest.approx(expected.tolist(), abs=0.004)


def test_phrases_are_below_the_caption(page):
    open_scene(page, 3)  # a red cross under a small pink hoop
    words = page.evaluate(
        f"[...{REGIONS}.querySelectorAll('.pane:first-child .phrases .word')].map((e) => e.textContent)"
    )
    assert words == ["red cross", "small pink hoop"]
    page.evaluate(f"{REGIONS}.querySelector('.phrases .word').click()")
    assert page.evaluate(f"{REGIONS}.querySelector('.pane:nth-of-type(2) .said').textContent").startswith(
        "“red cross”"
    )


def test_an_own_picture_needs_its_caption_first(page, tmp_path):
    Image.open(SCENES / "11313.jpg").save(tmp_path / "mine.png")
    open_scene(page, 5)
    page.upload("#grounded-file input[type=file]", tmp_path / "mine.png")
    page.wait("document.querySelector('#grounded-view').textContent.includes('write a caption')")
    write(page, "#grounded-text textarea", " ")
    page.click("#grounded-ask")
    assert error_of(page).startswith("The caption is empty")
    write(page, "#grounded-text textarea", "a small pink hoop")
    page.click("#grounded-ask")
    page.wait(f"{REGIONS}?.querySelectorAll('.pane:first-child .text:not(.phrases) .word').length === 4")
    no_error(page)


def test_a_wrong_file_and_a_wrong_name_are_one_line_and_the_picture_stays(page, tmp_path):
    open_scene(page, 6)
    (tmp_path / "notes.txt").write_text("no picture")
    page.evaluate("document.querySelector('#grounded-file button[aria-label=\"Clear\"]')?.click()")
    page.wait("!!document.querySelector('#grounded-file input[type=file]')")
    page.upload("#grounded-file input[type=file]", tmp_path / "notes.txt")
    assert error_of(page) == "notes.txt is not a picture that can be read: give a JPEG, PNG or WebP file."
    assert page.evaluate(f"{REGIONS}.querySelectorAll('.pane').length") == 2
    write(page, "#grounded-first input", "nobody/nothing")
    page.key("Enter")
    page.wait("document.querySelector('#grounded-error .ga-error')?.textContent.includes('nobody/nothing')")
    assert "cannot be used" in error_of(page)
    assert page.evaluate(f"{REGIONS}.querySelectorAll('.pane').length") == 2
    write(page, "#grounded-first input", "without supervision")
    page.key("Enter")
    no_error(page)


def test_the_picture_is_downloaded(page, tmp_path):
    page.call("Page.setDownloadBehavior", behavior="allow", downloadPath=str(tmp_path))
    open_scene(page, 7)
    page.evaluate(f"[...{REGIONS}.querySelectorAll('button')].find((e) => e.textContent === 'save picture').click()")
    end = time.monotonic() + 30
    while not (files := list(tmp_path.glob("*.png"))):
        assert time.monotonic() < end
        page.evaluate("0")
        time.sleep(0.05)
    with Image.open(files[0]) as figure:
        assert figure.format == "PNG"
        assert figure.width > 400


def test_a_question_is_answered_and_its_words_are_clicked(page, settings):
    page.click("button[role=tab]:nth-of-type(1)")
    for number in (1, 2, 4):
        before = page.evaluate("document.querySelector('#look-view iframe').srcdoc.length")
        page.click(f'#look-scenes [data-scene="{number}"]')
        page.wait(f"document.querySelector('#look-view iframe').srcdoc.length !== {before}")
        page.wait(f"!!{LENS}?.querySelector('.answer .word')")
        opened = page.evaluate(
            f"[...{LENS}.querySelectorAll('.word')].find((e) => e.ariaPressed === 'true').textContent"
        )
        page.evaluate(f"{LENS}.querySelector('.answer .word').click()")
        page.wait(f"{LENS}.querySelector('.answer .word').ariaPressed === 'true'")
    with Image.open(read_scenes()[4].path) as picture:
        lens = Captures(settings).look(picture.convert("RGB"), "Describe the image.", next(iter(SMALL_VLM)))
    said = page.evaluate(f"[...{LENS}.querySelectorAll('.answer .word')].map((e) => e.textContent)")
    assert opened == max(said, key=len)
    assert said == [word.text for word in lens.words if word.answer]
    page.click("button[role=tab]:nth-of-type(2)")


def test_a_question_without_words_and_a_wrong_model_are_one_line_and_the_answer_stays(page):
    page.click("button[role=tab]:nth-of-type(1)")
    write(page, "#look-text textarea", "?!")
    page.click("#look-ask")
    assert error_of(page, "look").startswith("The question has no word")
    write(page, "#look-text textarea", "Describe the image.")
    write(page, "#look-model input", "nobody/nothing")
    page.key("Enter")
    page.wait("document.querySelector('#look-error .ga-error')?.textContent.includes('nobody/nothing')")
    assert page.evaluate(f"!!{LENS}.querySelector('.answer .word')")
    page.click("button[role=tab]:nth-of-type(2)")


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_a_phone_needs_no_sideways_scrolling(page, theme):
    page.resize(390, 844)
    try:
        page.call("Page.navigate", url=f"{page.address}/?__theme={theme}")
        page.wait(f"!!{LENS}?.querySelector('.answer .word')")
        assert page.evaluate("document.documentElement.scrollWidth") <= 390
        assert page.evaluate(f"{LENS}.documentElement.scrollWidth") <= 390
        open_regions(page)
        assert page.evaluate("document.documentElement.scrollWidth") <= 390
        assert page.evaluate(f"{REGIONS}.documentElement.scrollWidth") <= 390
        columns = page.evaluate(f"new Set([...{REGIONS}.querySelectorAll('.pane')].map((e) => e.offsetLeft)).size")
        assert columns == 1
    finally:
        page.resize(1200, 1000)
