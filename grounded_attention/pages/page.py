# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""The frame of every HTML page: one file that loads nothing, enforced by a Content-Security-Policy."""

import base64
import hashlib
import io
import json
import re
from collections.abc import Sequence
from html import escape
from pathlib import Path
from typing import Any

from PIL import Image

from grounded_attention.utils.plain_text import REPLACEMENT

from .colours import BLUE, ORANGE, SKY, VERMILLION

# Of no use in HTML; a terminal that shows the file would obey them.
_CONTROLS = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")

STYLE = f"""
:root {{ color-scheme: light dark; --ink: #1b1f24; --soft: #5a6470; --line: #d9dee3; --paper: #fff; --panel: #f3f5f7;
  --link: #00517f; --shade: rgba(0, 0, 0, .28); --gold: {BLUE}; --predicted: {VERMILLION}; }}
@media (prefers-color-scheme: dark) {{
  :root {{ --ink: #e8eaed; --soft: #a8b1bb; --line: #3c444d; --paper: #14171a; --panel: #20252a; --link: {SKY};
    --shade: rgba(255, 255, 255, .34); --gold: {SKY}; --predicted: {ORANGE}; }}
  figure img {{ filter: brightness(.88); }}
}}
* {{ box-sizing: border-box; }}
body {{ margin: 0 auto; max-width: 1180px; padding: 24px 20px 60px; color: var(--ink); background: var(--paper);
  font: 15px/1.45 system-ui, "Segoe UI", Roboto, Helvetica, Arial, sans-serif; }}
h1 {{ font-size: 26px; line-height: 1.2; margin: 0 0 8px; overflow-wrap: anywhere; }}
h2 {{ font-size: 21px; margin: 40px 0 8px; padding-top: 16px; border-top: 2px solid var(--ink); }}
h3 {{ font-size: 17px; margin: 26px 0 6px; }}
h4 {{ font-size: 15px; margin: 18px 0 2px; }}
dl.about {{ display: grid; grid-template-columns: max-content 1fr; gap: 2px 16px; margin: 0; }}
dt {{ color: var(--soft); }}
/* Texts from data: direction marks turn no text beside them, and a word without end does not widen the page. */
h1, h2, h3, h4, p, dt, dd, th, td, li, a, summary, figcaption, option, button {{
  unicode-bidi: isolate; overflow-wrap: anywhere; }}
dd {{ margin: 0; }}
p.lead {{ font-size: 19px; line-height: 1.4; max-width: 70ch; margin: 14px 0; }}
/* What can be scrolled sideways has a shadow on the side where more is. */
.wide {{ overflow-x: auto; background:
  linear-gradient(to right, var(--paper) 40%, transparent) left / 40px 100% local no-repeat,
  linear-gradient(to left, var(--paper) 40%, transparent) right / 40px 100% local no-repeat,
  radial-gradient(farthest-side at 0 50%, var(--shade), transparent) left / 14px 100% scroll no-repeat,
  radial-gradient(farthest-side at 100% 50%, var(--shade), transparent) right / 14px 100% scroll no-repeat; }}
/* On a phone a table is scrolled; its short words stay whole. */
.wide th, .wide td {{ overflow-wrap: break-word; max-width: 50ch; }}
table {{ border-collapse: collapse; margin: 8px 0; }}
th, td {{ text-align: left; padding: 5px 14px 5px 0; border-bottom: 1px solid var(--line); vertical-align: top; }}
th {{ font-size: 13px; color: var(--soft); font-weight: 600; vertical-align: bottom; }}
td.number, th.number {{ text-align: right; font-variant-numeric: tabular-nums; }}
td.number {{ white-space: nowrap; }}
.bar {{ display: inline-block; width: 120px; height: 11px; background: var(--line); vertical-align: -1px; }}
.bar i {{ display: block; height: 100%; background: {SKY}; }}
figure {{ margin: 14px 0; }}
figure img {{ max-width: 100%; height: auto; display: block; }}
figcaption, p.note {{ color: var(--soft); font-size: 14px; max-width: 80ch; }}
nav {{ margin-top: 10px; }}
nav a {{ margin-right: 14px; color: var(--link); display: inline-block; }}
details {{ margin: 10px 0; }}
summary {{ cursor: pointer; font-weight: 600; }}
@media (max-width: 640px) {{
  body {{ padding: 16px 12px 40px; }}
  dl.about {{ grid-template-columns: 1fr; }}
  dl.about dd {{ margin-bottom: 6px; }}
  /* Charts keep a size that can be read. */
  .chart {{ overflow-x: auto; }}
  .chart img {{ max-width: none; width: 620px; }}
  .chart::before {{ content: "swipe sideways ↔"; position: sticky; left: 0; color: var(--soft); font-size: 13px; }}
  .chart figcaption {{ position: sticky; left: 0; max-width: calc(100vw - 24px); }}
}}
"""


def html_page(title: str, body: str, style: str = "", script: str = "", about: Sequence[tuple[str, str]] = ()) -> str:
    """Builds a page."""
    rows = "".join(f"<dt>{escape(name)}</dt><dd>{escape(text)}</dd>" for name, text in about)
    page = (
        '<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8">'
        f'<meta http-equiv="Content-Security-Policy" content="{_policy(script)}">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{escape(title)}</title><style>{STYLE}{style}</style></head>\n<body><h1>{escape(title)}</h1>"
        + (f'<dl class="about">{rows}</dl>' if rows else "")
        + f"\n{body}\n"
        + (f"<script>{script}</script>" if script else "")
        + "</body></html>\n"
    )
    return _CONTROLS.sub(REPLACEMENT, page)


def _policy(script: str) -> str:
    allowed = "default-src 'none'; img-src data:; style-src 'unsafe-inline'"
    if not script:
        return allowed
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode("ascii")
    return f"{allowed}; script-src 'sha256-{digest}'"


def html_table(head: Sequence[str], rows: Sequence[Sequence[str]], text_columns: int = 1) -> str:
    """An HTML table of plain text; all columns after the first `text_columns` are numbers."""
    kinds = ["" if n < text_columns else ' class="number"' for n in range(len(head))]
    top = "".join(f'<th scope="col"{kind}>{escape(cell)}</th>' for kind, cell in zip(kinds, head, strict=True))
    body = "".join(
        "<tr>" + "".join(f"<td{kind}>{escape(cell)}</td>" for kind, cell in zip(kinds, row, strict=True)) + "</tr>"
        for row in rows
    )
    return f'<div class="wide"><table><tr>{top}</tr>{body}</table></div>'


def embedded_image(path: Path, alt: str, caption: str = "") -> str:
    """A picture file (.svg, .png) as a part of the page; pixels as WebP, a third of their size as PNG."""
    kind, content = "svg+xml", path.read_bytes()
    if path.suffix.lower() != ".svg":
        kind, written = "webp", io.BytesIO()
        Image.open(io.BytesIO(content), formats=("PNG", "JPEG", "WEBP")).save(written, "WEBP", quality=85)
        content = written.getvalue()
    data = base64.b64encode(content).decode("ascii")
    below = f"<figcaption>{escape(caption)}</figcaption>" if caption else ""
    return f'<figure class="chart"><img src="data:image/{kind};base64,{data}" alt="{escape(alt)}">{below}</figure>'


def embedded_json(name: str, value: Any) -> str:
    """A JSON data block for a script; text in it cannot end the block."""
    text = json.dumps(value, ensure_ascii=True, separators=(",", ":"), allow_nan=False).replace("<", "\\u003c")
    return f'<script type="application/json" id="{escape(name)}">{text}</script>'
