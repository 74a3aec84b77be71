# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""Texts from data in a terminal and in Markdown: no control characters, no markup, not endless."""

import json
import re
import unicodedata
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from itertools import accumulate
from pathlib import Path

# Categories of characters that a terminal obeys or that change the direction of the text around them.
HIDDEN = ("Cc", "Cf", "Cs", "Zl", "Zp")
REPLACEMENT = "\ufffd"
_TOKEN = re.compile(r"\bhf_[A-Za-z0-9]{16,}")  # of the Hub, which somebody may give in a wrong place
_SURROGATE = re.compile("[\ud800-\udfff]")
# A word without spaces, such as a path or a data URI; a text in quotes; a list or mapping with its brackets.
_VALUES = re.compile(r"""(?<!\w)'[^']{160,}'(?!\w)|"[^"]{160,}"|[\[{][^][}{]{1000,}[\]}]|\S{160,}""")
# Also what only begins a list, a line or an address: GitHub makes a link of a bare address and a message of @name.
_MARKUP = re.compile(r"([\\`*_\[\]<>|#$&~@]|:(?=//)|(?<=\bwww)\.|^[-+=](?![\w.]))", re.I)
_NUMBERED = re.compile(r"^(\d+)([.)])(?=\s|$)")


def printable(text: str, length: int = 4000) -> str:
    """Replaces control and direction characters, and shortens the text in its middle."""
    if len(text) > length:
        text = f"{text[: length // 2 - 1]}…{text[-(length // 2) :]}"
    return "".join(REPLACEMENT if unicodedata.category(character) in HIDDEN else character for character in text)


def shorten_values(text: str) -> str:
    """Shortens long values in a message in their middle, and hides tokens; the sentence around them stays whole."""
    return _VALUES.sub(lambda value: f"{value[0][:80]}…{value[0][-40:]}", _TOKEN.sub("hf_…", text))


def check_one_of(value: object, known: Iterable[str], what: str) -> None:
    """Checks what a user chose among names."""
    names = list(known)
    if value not in names:
        raise ValueError(f"{what}{value!r} is unknown; expected one of {', '.join(names)}")


def first_sentences(error: object, length: int = 300) -> str:
    """The whole sentences at the beginning of an error's message, in one line: the first, and more up to a length."""
    sentences = re.split(r"(?<=[.!?:]) (?=[A-Z])", shorten_values(" ".join(str(error).split())))
    lengths = accumulate(len(sentence) + 1 for sentence in sentences)
    fitting = sum(reached <= length for reached in lengths)
    return " ".join(sentences[: max(1, fitting)]) or type(error).__name__


@contextmanager
def explained(place: str, *kinds: type[Exception]) -> Iterator[None]:
    """Turns errors of these kinds into a `ValueError` of the place and their first sentences."""
    try:
        yield
    except kinds as error:
        raise ValueError(f"{place}: {first_sentences(error)}") from error


def has_surrogates(text: str) -> bool:
    """Whether a text contains half of a surrogate pair, which cannot be written as UTF-8."""
    return not text.isascii() and _SURROGATE.search(text) is not None


def visible(text: str) -> str:
    """Writes control and direction characters as JSON does, such as `\\u202e`; line feeds and tabs stay."""
    return "".join(
        json.dumps(character)[1:-1]
        if character not in "\n\t" and unicodedata.category(character) in HIDDEN
        else character
        for character in text
    )


def markdown_text(text: str, length: int = 200) -> str:
    """Makes a text that Markdown shows as it is, in one line; also inside a table."""
    return _NUMBERED.sub(r"\1\\\2", _MARKUP.sub(r"\\\1", printable(" ".join(text.split()), length)))


def markdown_table(
    head: Sequence[str], rows: Iterable[Sequence[str]], texts: int = 1, *, aligned: bool = False
) -> str:
    """A Markdown table, if asked aligned for a terminal too; columns after the first `texts` are numbers."""
    lines = [head, ["---" if place < texts else "--:" for place in range(len(head))], *rows]
    if aligned:
        widths = [max(map(len, cells)) for cells in zip(*lines, strict=True)]
        lines = [
            [f"{cell:{'<' if place < texts else '>'}{widths[place]}}" for place, cell in enumerate(line)]
            for line in lines
        ]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def markdown_code(text: str, length: int = 200) -> str:
    """A text that Markdown shows as code, in one line; a `|` in a table is escaped by the table."""
    shown = printable(" ".join(text.split()), length)
    ticks = "`" * (max(map(len, re.findall("`+", shown)), default=0) + 1)
    if "`" in shown:
        return f"{ticks} {shown} {ticks}"
    return f"`{shown}`"


def short_names(paths: Sequence[str], parts: int = 1) -> list[str]:
    """Names checkpoints by the last parts of their paths: as few as make different paths different.

    Example:

    ```python
    >>> short_names(["runs/a/direct", "runs/b/direct", "runs/b/none"])
    ['a/direct', 'b/direct', 'b/none']
    ```
    """
    split = [Path(path).parts for path in paths]
    names = [str(Path(*own[-parts:])) for own in split]
    if len({*names}) < len({*split}):
        return short_names(paths, parts + 1)
    return names


def causes(error: BaseException | None) -> Iterator[BaseException]:
    """Yields an error, its cause, the cause of that, and so on; each once, since libraries make circles of them."""
    seen: set[int] = set()
    while error is not None and id(error) not in seen:
        seen.add(id(error))
        yield error
        error = error.__cause__ or error.__context__
