# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""Syntactic grounding: how often a word attends to the region of a grammatically related entity.

"What does BERT with vision look at?", section 3.1: a relation w1 -r-> w2 connects two words, and w1 is an entity with
a region; the measure is how often a head attends from w2 to the region of w1. In the paper the entity is at either end
of a relation: it is the head in det, amod, num and nn ("a", "red", "two" look at the ball), and the dependent in
nsubj, dobj and pobj ("walking", "holds", "on" look at the man). So the arrow is not a direction: w1 is the grounded
end, w2 the other end, and the relation is the label of the edge.

w1 is the syntactic head of a phrase. The head of a grounded phrase is never w2, because it has its own region, and the
paper measures words other than entities.
"""

import logging
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace

from grounded_attention.heads.examples import AuditExample
from grounded_attention.processing.phrase import Phrase

from .dependency_parses import ROOT, Parse, align_words, letters

logger = logging.getLogger(__name__)

_SHOWN = 3


def relation_examples(captions: Iterable[AuditExample], parses: Iterable[Parse]) -> list[AuditExample]:
    """Finds the words that are related to a grounded phrase, as queries for the boxes of the phrase."""
    index: dict[tuple[str | None, str], Parse] = {}
    for parse in parses:
        index.setdefault((parse.image_id, letters(parse.text).lower()), parse)
    examples = []
    problems = []
    count = 0
    for example in captions:
        count += 1
        try:
            parse = _parse_of(example, index)
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


def _parse_of(example: AuditExample, index: Mapping[tuple[str | None, str], Parse]) -> Parse:
    text = letters(example.caption).lower()
    parse = index.get((example.image_id, text)) or index.get((None, text))
    if parse is None:
        raise ValueError(f"no parse for the caption {example.caption!r} of image {example.image_id}")
    return parse


def _queries(example: AuditExample, parse: Parse, places: Sequence[tuple[int, int] | None]) -> Iterator[Phrase]:
    grounded = [phrase for phrase in example.phrases if len(phrase.boxes)]
    heads = {head: phrase for phrase in grounded if (head := phrase_head(phrase, parse, places)) is not None}
    for index, word in enumerate(parse.words):
        if word.head == ROOT:
            continue
        for entity, query in ((word.head, index), (index, word.head)):
            place = places[query]
            if entity in heads and query not in heads and place is not None:
                yield Phrase("", *place, boxes=heads[entity].boxes, types=(word.relation,))


def phrase_head(phrase: Phrase, parse: Parse, places: Sequence[tuple[int, int] | None]) -> int | None:
    """The index of a phrase's word whose head is outside and nearest to the root; the last of several; or None."""
    inside = {i for i, place in enumerate(places) if place and phrase.start <= place[0] and place[1] <= phrase.end}
    outer = [index for index in sorted(inside) if parse.words[index].head not in inside]
    return min(outer, key=lambda index: (_depth(parse, index), -index), default=None)


def _depth(parse: Parse, index: int) -> int:
    depth = 0
    while (index := parse.words[index].head) != ROOT:
        depth += 1
    return depth
