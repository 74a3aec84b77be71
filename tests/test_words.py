# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""One word for one thing (docs/glossary.md) on the pages and cards, and pictures that can be read without seeing them.

Code, links and quoted names are left out: a file may have another spelling.
"""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
FOLDERS = ("docs", "model_cards", "grounded_attention/space", "benchmarks")
# The history keeps the words of its time.
PAGES = [
    *(page for page in ROOT.glob("*.md") if page.name != "CHANGELOG.md"),
    *(page for folder in FOLDERS for page in sorted((ROOT / folder).rglob("*.md"))),
]
MANUAL = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
# Rejected -> word of the glossary.
REJECTED = {
    r"words? (→|->) regions?": "text → region",
    r"regions? (→|->) words?": "region → text",
    r"semi[- ]?direct\b": "`semi_direct`",
    r"text[- ]only\b": "`text_only`, without regions",
    r"(?<!from_)pre ?train": "pre-training, pre-trained",
    r"fine ?tun": "fine-tuning",
    r"data-?sets?\b": "data set",
    r"pseudo ?label": "pseudo-label",
    r"roll-out": "rollout",
    r"(single|dual|two|one)-stream\b": "one stream, two streams",
    r"bounding box": "box",
    r"ground[- ]truth(?! track)": "gold",
    r"(right|correct|true|target) regions?\b": "gold region",
    r"(visual|vision) tokens?\b|image patch": "image token",
    r"heat-?maps?\b": "heat map",
    r"(check|key)[- ]points?\b": "checkpoint",
    r"hyper-?parameter": "option",
    # A picture of a paper keeps its name, and a word of the scenes its own.
    r"\bfigures?\b(?! \d|\")": "number, metric or picture",
}
# Texts that stand in written pages, cards and tables.
TEMPLATES = [
    *(ROOT / "grounded_attention" / "pages").glob("*.py"),
    *(ROOT / "grounded_attention" / "heads").glob("*.py"),
    *(ROOT / "grounded_attention" / "commands").glob("*.py"),
    *(ROOT / "grounded_attention" / "training" / "publish").glob("*.py"),
    *(ROOT / "grounded_attention" / "space").glob("*.py"),
]
PICTURE = re.compile(r"!\[[^]]*\]\([^)]*\)|<img\b[^>]*>")


def prose(text):
    """The text of a Markdown page without its head, code, links' targets and comments, each replaced by spaces."""
    text = re.sub(r"\A---\n.*?\n---\n", "", text, flags=re.DOTALL)
    text = re.sub(r"^ *```.*?^ *```", "", text, flags=re.DOTALL | re.MULTILINE)
    text = re.sub(r"<!--.*?-->|`[^`]*`|\{[{%].*?[%}]\}", " ", text, flags=re.DOTALL)
    text = re.sub(r"\]\([^)]*\)|https?://\S+|<[^>]*>", " ", text)
    return re.sub(r"\S+\.(?:md|py|yaml|json)\b", " ", text)


def sentences(text):
    """The sentences of a page; headings, elements of a list and rows of a table end one, a piece of code is a word."""
    text = re.sub(r"\A---\n.*?\n---\n", "", text, flags=re.DOTALL)
    text = re.sub(r"^ *```.*?^ *```|<!--.*?-->", "\n\n", text, flags=re.DOTALL | re.MULTILINE)
    text = re.sub(r"^ *(?:[-*] |\d+\. |#.*$|\|.*$)", "\n\n", text, flags=re.MULTILINE)
    text = re.sub(r"`[^`]*`", "code", re.sub(r"!?\[([^]]*)\]\([^)]*\)", r"\1", text))
    blocks = (" ".join(block.split()) for block in re.split(r"\n\s*\n", text))
    return [part for block in blocks for part in re.split(r"(?<=[.!?])[*_)\"”]*\s+", block)]


def hits(text, rejected):
    return [text[max(0, found.start() - 30) : found.end() + 20] for found in re.finditer(rejected, text, re.I)]


def test_code_and_addresses_are_no_prose():
    page = "---\ntag: semi-direct\n---\nA `text-only` [word](text-only.md) of text_only.\n```\npretrain\n```\n"
    assert not any(hits(prose(page), rejected) for rejected in REJECTED)
    assert hits(prose("A text-only model"), r"text[- ]only\b")


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_pages_use_the_words_of_the_glossary(page):
    text = prose(page.read_text(encoding="utf-8"))
    found = [f"{hit!r}: write {word}" for rejected, word in REJECTED.items() for hit in hits(text, rejected)]
    assert not found, "\n".join(found)


@pytest.mark.parametrize("page", MANUAL, ids=lambda page: str(page.relative_to(ROOT)))
def test_sentences_have_under_forty_words(page):
    """Names of a list of links, which dots part, are no sentence."""
    long = [each for each in sentences(page.read_text(encoding="utf-8")) if len(each.split()) >= 40]
    assert not [each for each in long if " · " not in each]


@pytest.mark.parametrize("page", TEMPLATES, ids=lambda page: str(page.relative_to(ROOT)))
def test_titles_of_written_pages_use_the_words_of_the_glossary(page):
    arrows = [rejected for rejected in REJECTED if "→" in rejected]
    found = [hit for rejected in arrows for hit in hits(page.read_text(encoding="utf-8"), rejected)]
    assert not found, found


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_picture_has_a_text_that_replaces_it(page):
    """At least three words, and no name of a file."""
    for found in PICTURE.finditer(page.read_text(encoding="utf-8")):
        shown = re.search(r'^!\[([^]]*)|\balt="([^"]*)"', found[0])
        alt = (shown[1] or shown[2] or "") if shown else ""
        assert len(alt.split()) >= 3 and not re.search(r"\.(png|jpe?g|svg)\b", alt), found[0]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_picture_has_a_caption_that_says_what_to_see(page):
    """The paragraph below a picture of a page is in italics."""
    for found in re.finditer(r"^!\[.*?\)\n\n(.+)", page.read_text(encoding="utf-8"), re.MULTILINE):
        assert found[1].startswith("*") and not found[1].startswith("**"), found[0]


def test_pictures_that_programs_write_have_a_text_too():
    """Each picture in a template has `alt`, or the role of a picture with a label."""
    for page in TEMPLATES:
        text = page.read_text(encoding="utf-8")
        for found in re.finditer(r"<(img|svg)\b.{0,400}?>", text, re.DOTALL):
            shown = r'\balt="[^"]+"' if found[1] == "img" else r'aria-label="[^"]+"|aria-hidden="true"'
            assert re.search(shown, found[0]), f"{page.name}: {found[0]}"
