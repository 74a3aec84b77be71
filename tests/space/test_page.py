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

VIEW = "#grounded-view"
# The view, and the script of both its buttons and the pictures.
READY = f"!!document.querySelector('{VIEW} .ga-word') && document.querySelectorAll('[data-ready]').length >= 3"
# The page of `look`, in its frame.
LENS = "document.querySelector('#look-view iframe')?.contentDocument"


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


def expected_shares(settings, scene, word, layer, head):
    """What the page must show in each pane: the distribution over the regions."""
    captures, start = Captures(settings), read_scenes()[scene]
    with Image.open(start.path) as picture:
        image = picture.convert("RGB")
    found = [captures.grounded(image, start.caption, name).example for name in settings.models]
    return [one.over_regions(word, layer, head)[0].tolist() for one in found]


def shown_shares(page, tab="grounded"):
    panes = page.evaluate(
        f"[...document.querySelectorAll('#{tab}-view .ga-pane')].map((pane) =>"
        " [...pane.querySelectorAll('[data-region]')].sort((a, b) => a.dataset.region - b.dataset.region)"
        ".map((e) => Number(e.dataset.share)))"
    )
    return panes


def text(page, selector):
    return page.evaluate(f"document.querySelector({json.dumps(selector)}).textContent")


def pressed(word, tab="grounded"):
    return f"document.querySelector('#{tab}-view [data-word=\"{word}\"]')?.ariaPressed === 'true'"


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
        f"document.querySelector('#{tab}-caption textarea').value === {caption}",
    )


def error_of(page, tab="grounded"):
    return page.wait(f"document.querySelector('#{tab}-error .ga-error')?.textContent")


def no_error(page, tab="grounded"):
    page.wait(f"!document.querySelector('#{tab}-error .ga-error')")


def test_it_opens_with_a_picture_and_asks_nobody_else(page):
    assert page.evaluate(f"document.querySelectorAll('{VIEW} .ga-pane').length") == 2
    elsewhere = [address for address in page.requests if not address.startswith((page.address, "data:", "about:"))]
    assert not elsewhere and not page.problems


def test_a_clicked_word_lights_its_regions(page, settings):
    open_scene(page, 1)
    for word in (3, 7, 4):
        page.click(f'{VIEW} [data-word="{word}"]')
        page.wait(pressed(word))
    where = text(page, f"{VIEW} .ga-where")
    layer = int(where.partition(",")[0].removeprefix("layer "))
    head = None if "mean" in where else int(where.rpartition(" ")[2])
    for shown, expected in zip(shown_shares(page), expected_shares(settings, 1, 4, layer, head), strict=True):
        assert shown == pytest.approx(expected, abs=1e-4)


def test_a_dragged_slider_chooses_the_layer(page, settings):
    open_scene(page, 2)
    page.click(f'{VIEW} [data-word="5"]')
    page.wait(pressed(5))
    slider = "#grounded-layer input[type=range]"
    page.middle(slider)
    box = page.evaluate(f"document.querySelector('{slider}').getBoundingClientRect().toJSON()")
    height = box["y"] + box["height"] / 2
    page.drag((box["x"] + box["width"] - 8, height), (box["x"] + 4, height))
    page.wait(f"document.querySelector('{VIEW} .ga-where').textContent.startsWith('layer 0,')")
    found = text(page, f"{VIEW} .ga-where").rpartition(" ")[2]
    head = int(found) if found.isdigit() else None
    for shown, expected in zip(shown_shares(page), expected_shares(settings, 2, 5, 0, head), strict=True):
        assert shown == pytest.approx(expected, abs=1e-4)


def test_a_cell_of_the_map_leads_to_its_head_and_the_sliders_follow(page):
    open_scene(page, 0)
    page.click(f'{VIEW} .ga-pane:nth-of-type(2) [data-cell="1 2"]')
    page.wait(f"document.querySelector('{VIEW} .ga-where').textContent === 'layer 1, head 2'")
    page.wait("document.querySelector('#grounded-head input[type=range]').value === '2'")
    assert page.evaluate("document.querySelector('#grounded-layer input[type=range]').value") == "1"


def test_arrow_keys_move_along_the_words(page):
    open_scene(page, 3)
    page.click(f'{VIEW} [data-word="2"]')
    page.wait(pressed(2))
    page.wait("document.activeElement.dataset.word === '2'")
    page.key("ArrowRight")
    page.wait(pressed(3))


def test_phrases_have_boxes(page):
    open_scene(page, 3)  # a red cross under a small pink hoop
    page.click("#grounded-mode label:nth-of-type(2) input")
    page.wait(f"!!document.querySelector('{VIEW} table')")
    cells = "[...document.querySelectorAll('#grounded-view .ga-pane:nth-of-type(2) tr td:nth-of-type(2)')]"
    assert page.evaluate(f"{cells}.map((e) => e.textContent)") == ["red cross", "small pink hoop"]
    page.click(f'{VIEW} [data-word="3"]')  # a word again
    page.wait(f"!document.querySelector('{VIEW} table')")


def test_an_own_picture_needs_its_caption_first(page, tmp_path):
    Image.open(SCENES / "11313.jpg").save(tmp_path / "mine.png")
    open_scene(page, 5)
    page.upload("#grounded-file input[type=file]", tmp_path / "mine.png")
    page.wait(f"document.querySelector('{VIEW}').textContent.includes('write a caption')")
    page.click("#grounded-show")
    assert error_of(page).startswith("The caption is empty")
    write(page, "#grounded-caption textarea", "a small pink hoop")
    page.click("#grounded-show")
    page.wait(f"document.querySelectorAll('{VIEW} .ga-word').length === 4")
    no_error(page)


def test_a_wrong_file_and_a_wrong_name_are_one_line_and_the_picture_stays(page, tmp_path):
    open_scene(page, 6)
    (tmp_path / "notes.txt").write_text("no picture")
    page.evaluate("document.querySelector('#grounded-file button[aria-label=\"Clear\"]')?.click()")
    page.wait("!!document.querySelector('#grounded-file input[type=file]')")
    page.upload("#grounded-file input[type=file]", tmp_path / "notes.txt")
    assert error_of(page) == "notes.txt is not a picture that can be read: give a JPEG, PNG or WebP file."
    assert page.evaluate(f"document.querySelectorAll('{VIEW} .ga-pane').length") == 2
    page.evaluate("document.querySelector('#grounded-first input') || document.querySelector('.label-wrap').click()")
    page.wait("!!document.querySelector('#grounded-first input')")
    write(page, "#grounded-first input", "nobody/nothing")
    page.key("Enter")
    page.wait("document.querySelector('#grounded-error .ga-error')?.textContent.includes('nobody/nothing')")
    assert "cannot be used" in error_of(page)
    assert page.evaluate(f"document.querySelectorAll('{VIEW} .ga-pane').length") == 2
    write(page, "#grounded-first input", "without supervision")
    page.key("Enter")
    no_error(page)


def test_the_figure_is_downloaded(page, tmp_path):
    page.call("Page.setDownloadBehavior", behavior="allow", downloadPath=str(tmp_path))
    open_scene(page, 7)
    page.click("#grounded-download")
    end = time.monotonic() + 30
    while not (files := list(tmp_path.glob("*.png"))):
        assert time.monotonic() < end
        page.evaluate("0")
        time.sleep(0.05)
    with Image.open(files[0]) as figure:
        assert figure.format == "PNG" and figure.width > 400


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
    write(page, "#look-question textarea", "?!")
    page.click("#look-ask")
    assert error_of(page, "look").startswith("The question has no word")
    write(page, "#look-question textarea", "Describe the image.")
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
        columns = page.evaluate("new Set([...document.querySelectorAll('.ga-pane')].map((e) => e.offsetLeft)).size")
        assert columns == 1
    finally:
        page.resize(1200, 1000)
