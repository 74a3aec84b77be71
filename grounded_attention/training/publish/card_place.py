# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""The line of a card's snippets that names the model: its directory, or its repository after a push."""

import re

# Files of a card besides its text.
FIGURE, EVAL_RESULTS = "head_grounding.png", ".eval_results/results.yaml"
_LINE = re.compile(r'^name, revision = "[^"\n]*", "[^"\n]*"$', re.MULTILINE)


def place_line(name: str, revision: str | None = None) -> str:
    """The first line of a snippet of the templates; the revision defaults to main."""
    return f'name, revision = "{name}", "{revision or "main"}"'


def move_card(text: str, name: str, revision: str | None = None) -> str:
    """
    Changes the snippets of a card to load from `name`; a card without our line is not changed.
    """
    line = place_line(name, revision)
    return _LINE.sub(lambda _: line, text)
