# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""Finds the phrases of a caption: the given ones, noun phrases by spaCy, or each content word."""

import importlib
import importlib.util
import re
from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any

from ..processing.phrase import Phrase, read_phrase
from ..utils.whole_words import find_words, whole_words

SPACY_MODEL = "en_core_web_sm"
GIVEN = "given"
BY_SPACY = f"noun phrases by spaCy ({SPACY_MODEL})"
BY_WORDS = "each content word"

# English words that do not describe anything visible.
FUNCTION_WORDS = frozenset(
    "a about above across after against all along also am among an and another any are around as at be because been "
    "before behind being below beneath beside between both but by can could did do does doing down during each either "
    "every few for from had has have having he her hers him his how i if in inside into is it its itself just like "
    "many may me might mine more most much my near neither next no nor not of off on onto or other our out outside "
    "over own shall she should so some such than that the their them then there these they this those through to "
    "together too toward towards under until up upon us very was we were what when where which while who whom whose "
    "why will with within without would you your".split()
)


def find_phrases(caption: str, wanted: Sequence[str | Sequence[int]] | None = None) -> tuple[list[Phrase], str]:
    """Finds the phrases of an English caption."""
    if wanted is not None:
        phrases = _locate(caption, [wanted] if isinstance(wanted, str) else wanted)
        way = GIVEN
    elif _has_spacy():
        phrases = _noun_phrases(caption)
        way = BY_SPACY
    else:
        phrases = content_words(caption)
        way = BY_WORDS
    if not phrases:
        raise ValueError(f"caption {caption!r} has no phrases ({way}); expected a caption that describes the image")
    return phrases, way


def _locate(caption: str, wanted: Sequence[str | Sequence[int]]) -> list[Phrase]:
    phrases: list[Phrase] = []
    for one in wanted:
        if isinstance(one, Mapping | Phrase):
            phrases.append(read_phrase(one, [caption], f"phrase {len(phrases)}"))
        elif not isinstance(one, str):
            try:
                start, end = map(int, one)
            except (TypeError, ValueError):
                start = end = 0
            if not 0 <= start < end <= len(caption):
                raise ValueError(
                    f"phrase {one!r:.80}: expected a text, or start and end of a span with "
                    f"0 <= start < end <= {len(caption)}"
                )
            span = Phrase(caption[start:end], start, end)
            phrases.append(span)
        elif one.strip():
            phrases.append(_occurrence(caption, one.strip(), phrases))
    return sorted(phrases, key=lambda phrase: (phrase.start, phrase.end))


def _occurrence(caption: str, text: str, known: Sequence[Phrase]) -> Phrase:
    """The first occurrence of the text, at word boundaries, that is not in `known`."""
    taken = {other.start for other in known if other.text.lower() == text.lower()}
    for start, end in whole_words(re.escape(text), caption, re.IGNORECASE):
        if start not in taken:
            return Phrase(caption[start:end], start, end)
    often = f" {len(taken) + 1} times" if taken else ""
    raise ValueError(f"phrase {text!r} does not occur{often} in the caption {caption!r}, as whole words")


def content_words(caption: str) -> list[Phrase]:
    """Every word of the caption except English function words."""
    words = [Phrase(caption[start:end], start, end) for start, end in find_words(caption)]
    return [word for word in words if word.text[0].isalnum() and word.text.lower() not in FUNCTION_WORDS]


def unknown_words(tokenizer: Any, caption: str) -> list[str]:
    """The words of a caption that the tokenizer replaces by [UNK], each once, in order, without punctuation."""
    encoded = tokenizer(caption, return_offsets_mapping=True, add_special_tokens=False, split_special_tokens=True)
    pairs = zip(encoded["input_ids"], encoded["offset_mapping"], strict=True)
    parts = [caption[start:end] for token, (start, end) in pairs if token == tokenizer.unk_token_id]
    return list(dict.fromkeys(word for word in parts if re.search(r"\w", word)))


def _has_spacy() -> bool:
    return all(importlib.util.find_spec(name) is not None for name in ("spacy", SPACY_MODEL))


@cache
def _parser() -> Any:
    # Not an import statement: transformers requires every package that the files of a checkpoint import.
    return importlib.import_module("spacy").load(SPACY_MODEL)


def _noun_phrases(caption: str) -> list[Phrase]:
    chunks = _parser()(caption).noun_chunks
    return [Phrase(chunk.text, chunk.start_char, chunk.end_char) for chunk in chunks if chunk.root.pos_ != "PRON"]
