# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""The explorer in a real browser: a reader clicks and slides, and the page shows what the data say."""

import base64
import re

import numpy as np
import pytest
from numpy.testing import assert_allclose
from PIL import Image

from grounded_attention.heads.example_attention import ExampleAttention
from grounded_attention.pages.explorer import explorer, explorer_page, opening_word, pack
from grounded_attention.pages.page import EXPLORER, html_page
from grounded_attention.processing.phrase import Phrase
from tests.helpers.browser import open_browser

LAYERS = 3
HEADS = 4
REGIONS = 6
HOSTILE = 'a </script><script>document.title="broken"</script> dog & "ball" <img src=x onerror=alert(1)> .'
CAPTIONS = (HOSTILE, "two dogs run")
LABELS = ("dog", "</script><b>", "", "ball", "sky", "grass")


def example(number, seed):
    rng = np.random.default_rng([seed, number])
    fixed = np.random.default_rng(number)
    caption = CAPTIONS[number]
    words = tuple(match.span() for match in re.finditer(r"\w+", caption))
    # Boxes in a row, which do not overlap: the middle of each is its own.
    boxes = np.tile([0.02, 0.2, 0.14, 0.8], (REGIONS, 1))
    boxes[:, ::2] += np.arange(REGIONS)[:, None] / REGIONS
    there = rng.dirichlet(np.full(REGIONS + 1, 0.3), (LAYERS, HEADS, len(words)))[..., :-1]
    back = rng.dirichlet(np.full(len(words) + 1, 0.3), (LAYERS, HEADS, REGIONS))[..., :-1]
    gold = fixed.random((len(words), REGIONS)) < 0.3
    gold[0] = np.arange(REGIONS) == 2
    image = Image.fromarray(fixed.integers(0, 255, (60, 120, 3), dtype=np.uint8))
    layers = ("0", "1", "2")
    return ExampleAttention(image, caption, words, boxes, there, layers, back, LABELS, gold, image_id=str(number))


CHECKPOINTS = {"start": [example(0, 0), example(1, 0)], "<direct>": [example(0, 1), example(1, 1)]}


@pytest.fixture(scope="module")
def page(tmp_path_factory):
    folder = tmp_path_factory.mktemp("explorer")
    (folder / "page.html").write_text(explorer_page(CHECKPOINTS, "Explorer </script>"), encoding="utf-8")
    with open_browser(folder / "profile") as browser:
        browser.open(folder / "page.html")
        yield browser


@pytest.mark.parametrize(
    "texts, word",
    {
        ("What is left of the cube?", "a tiny pyramid ."): "pyramid",
        ("Is there a dog?", "Yes"): "dog",
        ("How many dogs are there?", "3"): "dogs",
        ("Is it?", "no"): "Is",
    }.items(),
)
def test_a_page_opens_on_a_content_word_of_the_answer_or_else_of_the_question(texts, word):
    words = []
    for number, text in enumerate(texts):
        words += [(*match.span(), number) for match in re.finditer(r"\w+|\.", text)]
    start, end, number = words[opening_word(texts, words)]
    assert texts[number][start:end] == word


def slide(page, control, value):
    """Moves a slider with the keyboard, as far as it must go."""
    page.evaluate(f"document.querySelector('[data-control={control}]').focus()")
    page.key("Home")
    page.key("ArrowRight", value)


def choose(page, control, value):
    """Another entry of a list, as its change event tells it."""
    page.evaluate(
        f"(() => {{ const s = document.querySelector('{control}'); s.value = '{value}';"
        " s.dispatchEvent(new Event('change')); })()"
    )


def texts(page, selector, key="textContent"):
    """A property of all elements, or a value that they hold."""
    return page.evaluate(f"[...document.querySelectorAll({selector!r})].map((e) => e.{key})")


def shares(page, pane):
    """What each region says it has of the attention, and which is the top one."""
    regions = f'[data-pane="{pane}"] .region'
    numbers = [int(number) for number in texts(page, regions, "dataset.region")]
    order = np.argsort(numbers)
    found = np.array(texts(page, regions, "dataset.share"), dtype=float)[order]
    [top] = texts(page, f"{regions}.top", "dataset.region")
    return found.tolist(), int(top)


def labelled(page, pane, region):
    """What a reader of screens says of a region."""
    [label] = texts(page, f'[data-pane="{pane}"] [data-region="{region}"]', "ariaLabel")
    return label


def pressed_words(page):
    return texts(page, ".word[aria-pressed=true]", "dataset.word")


def text(page, selector):
    return page.evaluate(f"document.querySelector({selector!r}).textContent")


def ranked(page, pane):
    """The rows below the picture: region, and whether it is marked as gold."""
    names = texts(page, f'[data-pane="{pane}"] .ranks td:first-child')
    return [(int(re.match(r"region (\d+)", name)[1]), name.endswith("gold")) for name in names]


def named_total(sentence, others):
    """The share that the sentence below the picture names."""
    return int(re.search(rf"(\d+)% of the attention goes to the {others}", sentence)[1]) / 100


def assert_regions_show(page, pane, attention):
    """Parts sum to 1; the sentence has the sum."""
    found, top = shares(page, pane)
    assert_allclose(found, attention / attention.sum(), atol=0.003)
    assert top == attention.argmax()
    assert labelled(page, pane, top).endswith(f", {round(100 * found[top])}%")
    sentence = text(page, f'[data-pane="{pane}"] .said')
    assert f"to region {top}" in sentence
    assert named_total(sentence, "regions") == pytest.approx(attention.sum(), abs=0.01)


def test_it_opens_on_a_named_word_and_the_head_with_most_attention_on_gold(page):
    # The first test of the page: nothing was clicked yet.
    gold = CHECKPOINTS["start"][0].gold
    word = 0
    while gold[word + 1].tolist() == gold[word].tolist():
        word += 1
    on_gold = []
    for examples in CHECKPOINTS.values():
        attention = examples[0].attention[:, :, word]
        on_gold.append(attention[..., gold[word]].sum(-1) / attention.sum(-1))
    layer, head = divmod(int(np.max(on_gold, 0).argmax()), HEADS)
    assert text(page, "[data-output=layer]") == str(layer)
    assert text(page, "[data-output=head]") == str(head)
    assert pressed_words(page) == [str(word)] * 2
    assert texts(page, ".map", "lastElementChild.dataset.cell")[0] == f"{layer} {head}"


@pytest.mark.parametrize("word, layer, head", [(3, 0, 1), (0, 2, 3), (4, 1, 0)])
def test_a_clicked_word_lights_the_regions_of_the_chosen_head(page, word, layer, head):
    choose(page, "[data-control=example]", 0)
    page.click(f'[data-pane="0"] [data-word="{word}"]')
    slide(page, "layer", layer)
    slide(page, "head", head + 1)
    for pane, examples in enumerate(CHECKPOINTS.values()):
        attention = examples[0].attention[layer, head, word]
        assert_regions_show(page, pane, attention)
        rows = ranked(page, pane)
        assert len(rows) == 5
        assert rows[0][0] == attention.argmax()
        for region, is_gold in rows:
            assert is_gold == examples[0].gold[word][region]
    assert pressed_words(page) == [str(word)] * 2


def test_the_mean_over_heads_is_the_mean_of_their_attention(page):
    choose(page, "[data-control=example]", 1)
    page.click('[data-pane="1"] [data-word="2"]')
    slide(page, "layer", 1)
    slide(page, "head", 0)
    assert text(page, "[data-output=head]") == "mean over heads"
    for pane, examples in enumerate(CHECKPOINTS.values()):
        assert_regions_show(page, pane, examples[1].attention[1, :, 2].mean(0))


def test_a_clicked_region_lights_the_words(page):
    choose(page, "[data-control=example]", 1)
    slide(page, "layer", 2)
    slide(page, "head", 2)
    page.click('[data-pane="0"] [data-region="3"]')
    for pane, examples in enumerate(CHECKPOINTS.values()):
        attention = examples[1].back[2, 1, 3]
        top = attention.argmax()
        share = attention[top] / attention.sum()
        assert text(page, f'[data-pane="{pane}"] [data-word="{top}"] .share') == f"{share:.0%}"
        assert texts(page, f'[data-pane="{pane}"] .word.top', "dataset.word") == [str(top)]
        sentence = text(page, f'[data-pane="{pane}"] .said')
        assert sentence.startswith("region 3 (ball)")
        assert named_total(sentence, "words") == pytest.approx(attention.sum(), abs=0.01)


def test_everything_is_reached_with_the_keyboard(page):
    choose(page, "[data-control=example]", 1)
    page.evaluate('document.querySelector(\'[data-pane="0"] [data-word="0"]\').focus()')
    page.key("ArrowRight")
    assert texts(page, '[data-pane="0"] [data-word="1"]', "ariaPressed") == ["true"]
    page.evaluate("document.querySelector('[data-pane=\"0\"] [data-control=checkpoint]').focus()")
    page.key("Tab")  # to the first region
    reached = page.evaluate("document.activeElement.dataset.region")
    page.key("Enter")
    assert texts(page, f'[data-pane="0"] [data-region="{reached}"]', "ariaPressed") == ["true"]


def test_the_map_leads_to_a_head(page):
    choose(page, "[data-control=example]", 0)
    page.click('[data-pane="0"] [data-cell="1 2"]')
    assert text(page, "[data-output=layer]") == "1"
    assert text(page, "[data-output=head]") == "2"
    first = CHECKPOINTS["start"][0]
    attention = first.attention[1, 2, 0]
    assert_regions_show(page, 0, attention)
    on_gold = attention[first.gold[0]].sum() / attention.sum()
    assert text(page, '[data-pane="0"] [data-cell="1 2"] title') == f"layer 1, head 2: {on_gold:.0%}"


def test_another_checkpoint_takes_a_pane(page):
    choose(page, "[data-control=example]", 1)
    page.click('[data-pane="0"] [data-word="1"]')
    slide(page, "layer", 0)
    slide(page, "head", 1)
    choose(page, '[data-pane="1"] [data-control=checkpoint]', 0)
    assert shares(page, 0) == shares(page, 1)
    choose(page, '[data-pane="1"] [data-control=checkpoint]', 1)
    assert_regions_show(page, 1, CHECKPOINTS["<direct>"][1].attention[0, 0, 1])


def test_text_of_the_data_stays_text(page):
    choose(page, "[data-control=example]", 0)
    assert page.evaluate("document.title") == "Explorer </script>"
    assert texts(page, '[data-pane="0"] .word', "firstChild.data") == re.findall(r"\w+", HOSTILE)
    assert text(page, "option[value='0']") == f"1. {HOSTILE}"
    assert page.evaluate("document.querySelectorAll('img, b').length") == 0
    assert labelled(page, 0, 1).startswith("region 1 (</script><b>)")


def test_a_narrow_screen_needs_no_sideways_scrolling(page):
    page.resize(360, 740)
    try:
        wide = page.evaluate("document.documentElement.scrollWidth")
        columns = texts(page, ".pane", "offsetLeft")
    finally:
        page.resize(1200, 900)
    assert wide <= 360
    assert len(set(columns)) == 1


def test_the_page_asks_the_network_for_nothing_and_has_no_error(page):
    assert [url for url in page.requests if not url.startswith(("file:", "data:"))] == []
    assert page.problems == []
    page.evaluate("void fetch('https://example.invalid/').catch(() => 0)")
    assert any("Content Security Policy" in problem for problem in _later(page)), "even a script could not ask"


def _later(page):
    page.call("Runtime.evaluate", expression="new Promise((d) => setTimeout(d, 200))", awaitPromise=True)
    problems = page.problems
    page.problems = []
    return problems


def test_no_address_of_the_network_is_written_in_the_page():
    assert not re.search(r"https?://|url\(|@import", explorer_page({"one": CHECKPOINTS["start"]}))


def test_stored_values_are_close_and_keep_the_largest():
    rng = np.random.default_rng(0)
    values = rng.dirichlet(np.full(36, 0.05), (12, 12, 9)).astype(np.float32)
    values[0, 0, 0] = 0
    stored = unpacked(pack(values), values.shape)
    largest = values.max(-1, keepdims=True)
    assert np.allclose(stored.max(-1), values.max(-1), rtol=1e-6)
    assert (np.abs(stored - values) <= largest / 255 + 1e-9).all()
    named = values.max(-1) > 0
    assert np.array_equal(stored[named].argmax(-1), values[named].argmax(-1))


@pytest.mark.parametrize(
    "checkpoints, message",
    [
        ({}, "checkpoints is empty"),
        ({"a": []}, "checkpoints is empty"),
        ({"a": CHECKPOINTS["start"], "b": CHECKPOINTS["start"][:1]}, "capture the same"),
    ],
)
def test_what_cannot_be_explored_is_refused(checkpoints, message):
    with pytest.raises(ValueError, match=message):
        explorer_page(checkpoints)


def test_a_page_is_small_without_its_pictures_and_data():
    assert len(html_page("title", EXPLORER).encode()) <= 25_000
    assert "<script" not in html_page("title", "")


def test_phrases_are_the_mean_of_their_words():
    example = CHECKPOINTS["start"][1]  # two dogs run
    phrases = [Phrase("two dogs", 0, 8), Phrase("run", 9, 12)]
    [data] = explorer({"start": [example]}, phrases=phrases)["examples"]
    assert data["texts"] == [example.caption, "two dogs · run"]
    words = [data["texts"][text][start:end] for start, end, text in data["words"]]
    assert words == ["two", "dogs", "run", "two dogs", "run"]
    rows = unpacked(data["to"][0][0], (LAYERS, HEADS, len(words), REGIONS))
    assert np.allclose(rows[:, :, 3], example.attention[:, :, :2].mean(2), atol=0.004)
    assert np.allclose(rows[:, :, 4], example.attention[:, :, 2], atol=0.004)


def unpacked(text, shape):
    data = base64.b64decode(text)
    count = int(np.prod(shape[:-1]))
    scales = np.frombuffer(data[: 4 * count], "<f4").reshape(*shape[:-1], 1)
    return scales * np.frombuffer(data[4 * count :], np.uint8).reshape(shape) / 255.0
