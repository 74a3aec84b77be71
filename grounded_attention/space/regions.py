# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""The page of the tab of regions: a caption, its phrases, and one or two checkpoints that read it."""

from PIL import Image

from grounded_attention.modeling.caption_phrases import BY_WORDS, find_phrases
from grounded_attention.pages.explorer import explorer, explorer_body
from grounded_attention.pages.page import html_page, note
from grounded_attention.processing.phrase import Phrase

from .loading import Captures

TITLE = "Where does a word look?"
NO_SECOND = "none"
MOST_PHRASES = 6
HINT = (
    "Click a word to see which regions it attends to, or a region to see which words it attends to. Numbers are "
    "shares of the attention on all regions."
)


def regions_page(captures: Captures, image: Image.Image, caption: str, first: str, second: str) -> str:
    """The page of the attention of one or two checkpoints; two of other sizes have an explorer each."""
    names = [first or "", *([second] if second and second != NO_SECOND else [])]
    found = {name: captures.grounded(image, caption or "", name) for name in names}
    examples = {capture.name: [capture.example] for capture in found.values()}
    (read, *_) = (capture.example for capture in found.values())
    phrases = [phrase for phrase in caption_phrases(read.caption) if read.words_of(phrase)]
    try:
        explorers = [explorer(examples, phrases=phrases)]
    except ValueError:
        explorers = [explorer({name: one}, phrases=phrases) for name, one in examples.items()]
    notes = dict.fromkeys(line for capture in found.values() for line in capture.notes)
    return html_page(" and ".join(examples), "".join(map(note, notes)) + explorer_body(explorers, HINT))


def caption_phrases(caption: str) -> list[Phrase]:
    """The first phrases of a caption; neighbouring content words, such as “small pink hoop”, are one."""
    try:
        phrases, way = find_phrases(caption)
    except ValueError:  # the caption has only words such as "the" and "of"
        return []
    joined: list[Phrase] = []
    for phrase in phrases:
        if way == BY_WORDS and joined and caption[joined[-1].end : phrase.start] == " ":
            start = joined.pop().start
            phrase = Phrase(caption[start : phrase.end], start, phrase.end)
        joined.append(phrase)
    return joined[:MOST_PHRASES]
