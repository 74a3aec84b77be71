# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""The one maker of HTML pages: one file that loads nothing, enforced by a Content-Security-Policy.

All pages have the style of page.css. One that has an explorer of attention has its script too, page.js.
"""

import base64
import hashlib
import io
import json
import re
from collections.abc import Mapping, Sequence
from html import escape
from pathlib import Path
from typing import Any

from PIL import Image

from grounded_attention.utils.plain_text import REPLACEMENT

# Of no use in HTML; a terminal that shows the file would obey them.
_CONTROLS = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")
EXPLORER = '<div class="explorers"></div>'  # where page.js builds


class Html(str):
    """A text that is HTML already; every other text is escaped."""


def html_page(
    title: str, parts: str | Mapping[str, str], about: Sequence[tuple[str, str]] = (), lead: str = ""
) -> str:
    """Builds a page.

    Args:
        title (`str`): the title.
        parts (`str` or `Mapping[str, str]`): HTML, or HTML by heading; empty parts are left out, the others linked.
        about (`Sequence[tuple[str, str]]`, *optional*): names and texts below the title.
        lead (`str`, *optional*): what was found, in one sentence.

    Returns:
        `str`: the HTML.
    """
    if isinstance(parts, str):
        body = parts
    else:
        body = _sections({name: part for name, part in parts.items() if part})
    facts = "".join(f"<dt>{escape(name)}</dt><dd>{escape(text)}</dd>" for name, text in about)
    head = f"<h1>{escape(title)}</h1>"
    if facts:
        head += f'<dl class="about">{facts}</dl>'
    if lead:
        head += f'<p class="lead">{escape(lead)}</p>'
    script = _asset("page.js") if EXPLORER in body else ""
    page = (
        '<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8">'
        f'<meta http-equiv="Content-Security-Policy" content="{_policy(script)}">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{escape(title)}</title><style>{_asset('page.css')}</style></head>\n<body>{head}\n{body}\n"
        + (f"<script>{script}</script>" if script else "")
        + "</body></html>\n"
    )
    return _CONTROLS.sub(REPLACEMENT, page)


def _sections(parts: Mapping[str, str]) -> str:
    places = {name: re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-") for name in parts}
    links = "".join(f'<a href="#{place}">{escape(name)}</a>' for name, place in places.items())
    sections = [f'<h2 id="{place}">{escape(name)}</h2>\n{parts[name]}' for name, place in places.items()]
    return "\n".join([f"<nav>{links}</nav>", *sections])


def _asset(name: str) -> str:
    """The style or the script, without comments and spaces at the start of lines."""
    lines = Path(__file__).with_name(name).read_text(encoding="utf-8").split("\n")
    kept = [line.strip() for line in lines]
    return "\n".join(line for line in kept if line and not line.startswith(("//", "/*")))


def _policy(script: str) -> str:
    allowed = "default-src 'none'; img-src data:; style-src 'unsafe-inline'"
    if not script:
        return allowed
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode("ascii")
    return f"{allowed}; script-src 'sha256-{digest}'"


def note(text: str) -> str:
    """A paragraph that explains."""
    return f'<p class="note">{escape(text)}</p>'


def preformatted(text: str) -> str:
    """A text with its line breaks."""
    return f"<pre>{escape(text)}</pre>"


def folded(summary: str, content: str, is_open: bool = False) -> str:
    """HTML that a reader can open."""
    return f"<details{' open' * is_open}><summary>{escape(summary)}</summary>{content}</details>"


def html_table(head: Sequence[str], rows: Sequence[Sequence[str]], text_columns: int = 1) -> str:
    """A table; all columns after the first `text_columns` are numbers. Columns without any content are left out."""
    shown = []
    for n in range(len(head)):
        if not rows or any(row[n] for row in rows):
            shown.append(n)

    def line(cells: Sequence[str], tag: str) -> str:
        kinds = ["" if n < text_columns else ' class="number"' for n in shown]
        texts = []
        for n in shown:
            texts.append(cells[n] if isinstance(cells[n], Html) else escape(cells[n]))
        return "".join(f"<{tag}{kind}>{text}</{tag}>" for kind, text in zip(kinds, texts, strict=True))

    body = "".join(f"<tr>{line(row, 'td')}</tr>" for row in rows)
    return f'<div class="wide"><table><tr>{line(head, "th")}</tr>{body}</table></div>'


def embedded_image(path: Path, alt: str, caption: str = "") -> str:
    """A picture file (.svg, .png) as a part of the page; pixels as WebP, a third of their size as PNG."""
    kind = "svg+xml"
    content = path.read_bytes()
    if path.suffix.lower() != ".svg":
        kind = "webp"
        written = io.BytesIO()
        Image.open(io.BytesIO(content), formats=("PNG", "JPEG", "WEBP")).save(written, "WEBP", quality=85)
        content = written.getvalue()
    data = base64.b64encode(content).decode("ascii")
    below = f"<figcaption>{escape(caption)}</figcaption>" if caption else ""
    return f'<figure class="chart"><img src="data:image/{kind};base64,{data}" alt="{escape(alt)}">{below}</figure>'


def embedded_json(name: str, value: Any) -> str:
    """A JSON data block for a script; text in it cannot end the block."""
    text = json.dumps(value, ensure_ascii=True, separators=(",", ":"), allow_nan=False).replace("<", "\\u003c")
    return f'<script type="application/json" id="{escape(name)}">{text}</script>'
