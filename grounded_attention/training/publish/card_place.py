# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""Where a card's snippets say that the model lies: its directory, and once it is pushed its repository."""

import re

# What a card shows beside its text.
FIGURE, EVAL_RESULTS = "head_grounding.png", ".eval_results/results.yaml"
_LINE = re.compile(r'^name, revision = "[^"\n]*", "[^"\n]*"$', re.MULTILINE)


def place_line(name: str, revision: str | None = None) -> str:
    """The first line of a snippet of the templates; no revision is main."""
    return f'name, revision = "{name}", "{revision or "main"}"'


def move_card(text: str, name: str, revision: str | None = None) -> str:
    """The card with snippets that load from `name`; a card of somebody else's has no such line and stays."""
    line = place_line(name, revision)
    return _LINE.sub(lambda _: line, text)
