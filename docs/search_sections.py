# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""What the search of the site knows: the sections of its pages, read from the Markdown files.

A page may name words that readers search for and that it writes in another way: `<!-- search: heatmap, saliency -->`.
"""

import json
import re
from pathlib import Path

from api_text import pages

ROOT = Path(__file__).resolve().parents[1]
WORDS = re.compile(r"<!-- search: (.*?) -->", re.DOTALL)
HEADING = re.compile(r"^(#{1,3}) (.+)$", re.MULTILINE)
CODE = re.compile(r"^ *```.*?^ *```$", re.DOTALL | re.MULTILINE)


def sections(name: str, text: str) -> list[tuple[str, str, str, str, str]]:
    """(address, title of the page, heading, text, other words) of each section of a page; `name` is its file."""
    words = " ".join(WORDS.findall(text))
    # A comment in code looks like a heading.
    hidden = CODE.sub(lambda block: re.sub(r"^#", " ", block[0], flags=re.MULTILINE), text)
    headings = list(HEADING.finditer(hidden))
    title = plain(headings[0][2])
    ends = [heading.start() for heading in headings[1:]] + [len(hidden)]
    found = []
    for index, (heading, end) in enumerate(zip(headings, ends, strict=True)):
        shown, address = plain(heading[2]), f"{name.removesuffix('.md')}.html"
        place = f"{address}#{anchor(heading[2])}" if index else address
        body = hidden[heading.end() : end]  # its sentences first: excerpts show them rather than code
        said = plain(CODE.sub(" ", body) + " ".join(CODE.findall(body)))
        found.append((place, title, shown, said, "" if index else words))
    return found


def anchor(heading: str) -> str:
    """The anchor of a heading, as GitHub and MyST make it."""
    return re.sub(r"[^\w\- ]", "", plain(heading).lower()).replace(" ", "-")


def plain(text: str) -> str:
    """The words of Markdown: without its marks, comments and targets of links."""
    text = re.sub(r"^ *```.*$", " ", text, flags=re.MULTILINE)
    text = re.sub(r"<!--.*?-->|!\[[^]]*\]\([^)]*\)|</?[a-z][^>]*>", " ", text, flags=re.DOTALL)
    text = re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", text)
    return " ".join(re.sub(r"[`*|#]|(?<=\|)[-: ]+(?=\|)|-{3,}", " ", text).split())


def script(names: list[str]) -> str:
    """The sections of these pages, and those of the API, as a script, which a page opened as a file may load too."""
    texts = {name: (ROOT / name).read_text(encoding="utf-8") for name in names}
    texts |= {f"docs/api/names/{name}.md": text for name, text in pages().items()}
    listed = [section for name, text in texts.items() for section in sections(name, text)]
    return f"const SECTIONS = {json.dumps(listed, ensure_ascii=False, separators=(',', ':'))};\n"
