# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""Texts that try to be obeyed: by a browser, a terminal, Markdown or a drawing library."""

HOSTILE = {
    "script": "</script><script>alert(1)</script><img src=http://x onerror=y>",
    "attribute": "\" onmouseover='x' & <b>",
    "right to left": "\u202egnp.exe\u2066",
    "terminal": "\x1b[2J\x1b]0;gone\x07\x9b31m",
    "markdown": "a | b\n\n# c `d` [e](http://x) ![](http://y) <i>",
    "list": "- [x] ~~@someone~~ 1. https://x.y www.x.y + `",
    "formula": r"$\frac{1}{$ costs $5 or $\foo$",
    "long": "x" * 100_000,
}
