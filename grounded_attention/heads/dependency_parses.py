# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""Dependency parses of captions, from CoNLL-U files or spaCy, and the alignment of their words with a caption.

A CoNLL-U file has ten columns per word; ID, FORM, HEAD and DEPREL are used. These comments are used: `# text = ...`,
`# image_id = ...`, `# caption_id = ...`. Consecutive sentences with the same `caption_id` are one caption. A multiword
token (`3-4`) is the written form; the tree relates its words. Empty nodes (`8.1`) and the enhanced graph in column
    DEPS are ignored. Relations keep the labels of the parser: Universal Dependencies has `obl`, `nummod`, `compound`
    where the paper's parser has `prep` and `pobj`, `num`, `nn`.
"""

import importlib.util
import logging
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import reduce
from itertools import groupby
from pathlib import Path
from typing import Any

from grounded_attention.processing.phrase import Phrase
from grounded_attention.utils.bounded_files import read_text
from grounded_attention.utils.named_types import AnyPath, Span

from .examples import AuditExample

SPACY_MODEL = "en_core_web_sm"
COLUMNS = 10
ROOT = -1
# Numbers have a bound, since Python reads none of thousands of digits.
_NUMBER = "[1-9][0-9]{0,8}"
_WORD = re.compile(_NUMBER)
_RANGE = re.compile(f"({_NUMBER})-({_NUMBER})")
_EMPTY = re.compile(rf"(?:0|{_NUMBER})\.{_NUMBER}")
_HEAD = re.compile(f"0|{_NUMBER}")
_COMMENT = re.compile(r"#\s*(text|image_id|caption_id)\s*=\s*(.*)")
# Penn Treebank's brackets.
ESCAPES = ("-lrb-", "-rrb-", "-lsb-", "-rsb-", "-lcb-", "-rcb-")


@dataclass(frozen=True)
class ParsedWord:
    """A word of a tree."""

    form: str
    head: int
    relation: str
    line: int


@dataclass(frozen=True)
class Parse:
    """The dependency tree of a caption, or several trees one after another."""

    text: str
    words: tuple[ParsedWord, ...]
    written: tuple[tuple[str, int, int], ...]
    source: str
    image_id: str | None = None
    caption_id: str | None = None


# CoNLL-U


def read_conllu(path: AnyPath) -> list[Parse]:
    """Reads the parses of a CoNLL-U file, or of all files `*.conllu` in a folder, sorted by name."""
    path = Path(path)
    if not path.is_dir():
        return list(_joined(_read_sentences(path)))
    files = sorted(path.glob("*.conllu"))
    if not files:
        raise ValueError(f"{path}: no file in this folder ends with .conllu; give a file, or a folder with such files")
    return [parse for file in files for parse in read_conllu(file)]


def _joined(sentences: Iterable[Parse]) -> Iterator[Parse]:
    """Joins consecutive sentences of one caption into one parse."""
    numbered = enumerate(sentences)
    for _, group in groupby(numbered, key=lambda each: each[0] if each[1].caption_id is None else each[1].caption_id):
        yield reduce(_append, (parse for _, parse in group))


def _append(first: Parse, second: Parse) -> Parse:
    shift = len(first.words)
    words = []
    for word in second.words:
        words.append(replace(word, head=word.head if word.head == ROOT else word.head + shift))
    written = [(form, start + shift, end + shift) for form, start, end in second.written]
    text = f"{first.text} {second.text}"
    return replace(first, text=text, words=(*first.words, *words), written=(*first.written, *written))


def _read_sentences(path: Path) -> Iterator[Parse]:
    lines: list[tuple[int, str]] = []
    for number, line in enumerate(read_text(path).split("\n"), 1):
        if line.strip():
            lines.append((number, line.rstrip("\r")))
        elif lines:
            yield _parse_sentence(path, lines)
            lines = []
    if lines:
        raise _error(path, lines[-1][0], "the end of the file", "a line break; add one if the file is complete")


def _parse_sentence(path: Path, lines: Sequence[tuple[int, str]]) -> Parse:
    comments = {match[1]: match[2] for _, line in lines if (match := _COMMENT.match(line))}
    rows = [(number, line.split("\t")) for number, line in lines if not line.startswith("#")]
    for number, row in rows:
        if len(row) != COLUMNS:
            raise _error(path, number, f"{len(row)} columns", f"{COLUMNS}, separated by tabs")
    count = sum(_WORD.fullmatch(row[0]) is not None for _, row in rows)
    if not count:
        raise _error(path, lines[0][0], "a sentence without words", "a line for each word")
    words: list[ParsedWord] = []
    written: list[tuple[str, int, int]] = []  # multiword tokens in place of their words
    # the words that multiword tokens cover so far
    text = ""
    covered = 0
    for number, (name, form, _, _, _, _, head, relation, _, misc) in rows:
        if _EMPTY.fullmatch(name):
            continue
        place = len(words)
        span = _RANGE.fullmatch(name)
        if span:
            first, last = map(int, span.groups())
            if first != place + 1 or not first < last <= count or first <= covered:
                raise _error(path, number, f"the multiword token {name}", f"one that starts at word {place + 1}")
            covered = last
            end = last
        elif name != str(place + 1):
            raise _error(path, number, f"the ID {name!r:.80}", f"{place + 1}: words are counted from 1")
        else:
            if not _HEAD.fullmatch(head) or int(head) > count:
                expected = f"0 to {count}; parse the sentence first"
                raise _error(path, number, f"the HEAD {head!r:.80} of {form!r:.80}", expected)
            if not form or relation in ("", "_"):
                raise _error(path, number, f"the form {form!r} with DEPREL {relation!r}", "a word and its relation")
            words.append(ParsedWord(form, int(head) - 1, relation, number))
            if place < covered:
                continue
            end = place + 1
        written.append((form, place, end))
        text += form + ("" if "SpaceAfter=No" in misc.split("|") else " ")
    _check_tree(path, words)
    text = comments.get("text", "").strip() or text.strip()
    ids = comments.get("image_id"), comments.get("caption_id")
    return Parse(text, tuple(words), tuple(written), str(path), *ids)


def _check_tree(path: Path, words: Sequence[ParsedWord]) -> None:
    rooted = {ROOT}
    for start, word in enumerate(words):
        place = start
        chain = list[int]()
        while place not in rooted:
            chain.append(place)
            place = words[place].head
            if len(chain) > len(words):
                raise _error(path, word.line, f"{word.form!r} in a cycle of heads", "heads that lead to a root")
        rooted.update(chain)


def _error(path: Path, number: int, found: str, expected: str) -> ValueError:
    return ValueError(f"{path}, line {number}: not CoNLL-U: found {found}, expected {expected}")


# spaCy


def spacy_parses(captions: Iterable[str]) -> list[Parse]:
    """Parses captions with spaCy, each caption once."""
    if any(importlib.util.find_spec(name) is None for name in ("spacy", SPACY_MODEL)):
        raise ValueError(
            f"spaCy with its model {SPACY_MODEL} is not installed; pip install '.[spacy]' && python -m spacy download "
            f"{SPACY_MODEL}, or give parses in CoNLL-U files"
        )
    import spacy

    texts = list(dict.fromkeys(captions))
    return [_of_document(document) for document in spacy.load(SPACY_MODEL).pipe(texts)]


def _of_document(document: Any) -> Parse:
    if len(document) and not document.has_annotation("DEP"):
        raise ValueError(f"the spaCy model {SPACY_MODEL} has no dependency parser; install it again")
    kept = [token for token in document if not token.is_space]  # the head of a word is never white space
    index = {token.i: place for place, token in enumerate(kept)}
    words = tuple(
        ParsedWord(token.text, ROOT if token.head.i == token.i else index[token.head.i], token.dep_, place + 1)
        for place, token in enumerate(kept)
    )
    written = tuple((word.form, place, place + 1) for place, word in enumerate(words))
    return Parse(document.text, words, written, f"spaCy {SPACY_MODEL}")


# Words and characters


def letters(text: str) -> str:
    """The letters and digits of a text, which a parser does not change; those of an escaped bracket are none."""
    for escape in ESCAPES:
        text = re.sub(re.escape(escape), "", text, flags=re.IGNORECASE)
    return "".join(filter(str.isalnum, text))


def align_words(caption: str, parse: Parse) -> list[Span | None]:
    """The characters of each word of a parse in a caption, from its first letter to its last; `None` without letters.

    Words of a multiword token share its place.
    """
    forms = [letters(form) for form, _, _ in parse.written]
    spelled = [place for place, character in enumerate(caption) if character.isalnum()]
    found = "".join(caption[place] for place in spelled)
    if "".join(forms).lower() != found.lower():
        where = f"{parse.source}, line {parse.words[0].line}"
        raise ValueError(f"{where}: the parse has the words {' '.join(forms)!r}, the caption is {caption!r}")
    places: list[Span | None] = [None] * len(parse.words)
    position = 0
    for form, (_, first, last) in zip(forms, parse.written, strict=True):
        if form:
            end = position + len(form)
            places[first:last] = [(spelled[position], spelled[end - 1] + 1)] * (last - first)
            position = end
    return places


logger = logging.getLogger(__name__)

_SHOWN = 3


def relation_examples(captions: Iterable[AuditExample], parses: Iterable[Parse]) -> list[AuditExample]:
    """Finds the words that are related to a grounded phrase, as queries for the boxes of the phrase."""
    index: dict[tuple[str | None, str], Parse] = {}
    for one in parses:
        index.setdefault((one.image_id, letters(one.text).lower()), one)
    examples = []
    problems = []
    count = 0
    for example in captions:
        count += 1
        try:
            text = letters(example.caption).lower()
            parse = index.get((example.image_id, text)) or index.get((None, text))
            if parse is None:
                raise ValueError(f"no parse for the caption {example.caption!r} of image {example.image_id}")
            queries = tuple(_queries(example, parse, align_words(example.caption, parse)))
        except ValueError as error:
            problems.append(str(error))
            continue
        if queries:
            examples.append(replace(example, phrases=queries))
    if problems:
        message = f"{len(problems)} of {count} captions have no fitting parse: {'; '.join(problems[:_SHOWN])}"
        if len(problems) == count:
            raise ValueError(f"{message}; give parses of the captions of this data set and split")
        logger.warning("%s; they are skipped", message)
    return examples


def _queries(example: AuditExample, parse: Parse, places: Sequence[Span | None]) -> Iterator[Phrase]:
    grounded = [phrase for phrase in example.phrases if len(phrase.boxes)]
    heads = {}
    for phrase in grounded:
        head = phrase_head(phrase, parse, places)
        if head is not None:
            heads[head] = phrase
    for index, word in enumerate(parse.words):
        if word.head == ROOT:
            continue
        for entity, query in ((word.head, index), (index, word.head)):
            place = places[query]
            if entity in heads and query not in heads and place is not None:
                yield Phrase("", *place, boxes=heads[entity].boxes, types=(word.relation,))


def phrase_head(phrase: Phrase, parse: Parse, places: Sequence[Span | None]) -> int | None:
    """The index of a phrase's word whose head is outside and nearest to the root; the last of several; or None."""
    inside = set()
    for i, place in enumerate(places):
        if place and phrase.start <= place[0] and place[1] <= phrase.end:
            inside.add(i)
    outer = [index for index in sorted(inside) if parse.words[index].head not in inside]
    return min(outer, key=lambda index: (_depth(parse, index), -index), default=None)


def _depth(parse: Parse, index: int) -> int:
    depth = 0
    while (index := parse.words[index].head) != ROOT:
        depth += 1
    return depth
