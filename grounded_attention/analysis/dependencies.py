# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""Syntactic grounding: does a word look at the region of the entity that its grammar ties it to?

"What does BERT with vision look at?", section 3.1: two words are connected by a relation, w1 -r-> w2, and w1 is an
entity with a region; how often do heads attend from w2 to w1's region. The paper's relations have the entity at
either end: it is the head in det, amod, num and nn ("a", "red", "two" look at the ball), the dependent in nsubj, dobj
and pobj ("walking", "holds", "on" look at the man). So the arrow is not read as a direction: w1 is the grounded end,
w2 the other one, and the relation has the name of the edge between them. `asked` narrows this to one end.

Of a phrase one token is w1: its syntactic head. A word that is itself the head of a grounded phrase is no w2: it has
a region of its own to look at, and the paper asks about words other than entities.
"""

import logging
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from grounded_attention.analysis.audit.examples import AuditExample, AuditPhrase
from grounded_attention.analysis.audit.statistics import DRAWS, LEVEL, ratio_intervals
from grounded_attention.metrics.intervals import interval_text

from .dependency_parses import ESCAPES, ROOT, Parse, align_words
from .head_counts import ACTIVE_SHARE, HeadCounts

logger = logging.getLogger(__name__)

EITHER, DEPENDENT, HEAD = "either", "dependent", "head"
TOP = 10
_SHOWN = 3


def relation_examples(
    captions: Iterable[AuditExample], parses: Iterable[Parse], asked: str = EITHER, entity_words: bool = False
) -> list[AuditExample]:
    """
    The words that are tied to a grounded phrase, as queries for its boxes.

    A caption and its parse are brought together by the text (its letters and digits), and by the image where the file
    names it. Captions without a parse, and parses whose words are not those of the caption, are left out: a
    warning says how many, and names file and line of the first.

    Args:
        captions (`Iterable[AuditExample]`): captions with their phrases; those without boxes count for nothing.
        parses (`Iterable[Parse]`): from `read_conllu` or `spacy_parses`.
        asked (`str`, *optional*, defaults to `EITHER`): which end of a relation may be w2: "either", "dependent" or
            "head".
        entity_words (`bool`, *optional*, defaults to `False`): whether w2 may itself be the head of a grounded phrase.

    Returns:
        `list[AuditExample]`: For each caption with a query: phrases whose characters are w2's, whose boxes are those
        of w1's phrase and whose one group is the relation.

    Raises:
        ValueError: `asked` is none of these, or no caption has a parse that fits.
    """
    if asked not in (EITHER, DEPENDENT, HEAD):
        raise ValueError(f"asked is {asked!r}; expected {EITHER!r}, {DEPENDENT!r} or {HEAD!r}")
    index = _by_text(parses)
    examples, problems, count = [], [], 0
    for example in captions:
        count += 1
        try:
            parse = _parse_of(example, index)
            queries = tuple(_queries(example, parse, align_words(example.caption, parse), asked, entity_words))
        except ValueError as error:
            problems.append(str(error))
            continue
        if queries:
            examples.append(AuditExample(example.image_id, example.caption, queries))
    if problems:
        told = f"{len(problems)} of {count} captions have no parse that fits: {'; '.join(problems[:_SHOWN])}"
        if len(problems) == count:
            raise ValueError(f"{told}; parse the captions of this data set and split")
        logger.warning("%s; they are left out", told)
    return examples


def _letters(text: str) -> str:
    """What a parser leaves as it was: no space, punctuation or case."""
    text = text.lower()
    for escape in ESCAPES:
        text = text.replace(escape, "")
    return "".join(filter(str.isalnum, text))


def _by_text(parses: Iterable[Parse]) -> dict[tuple[str | None, str], Parse]:
    index: dict[tuple[str | None, str], Parse] = {}
    for parse in parses:
        index.setdefault((parse.image_id, _letters(parse.text)), parse)
    return index


def _parse_of(example: AuditExample, index: Mapping[tuple[str | None, str], Parse]) -> Parse:
    text = _letters(example.caption)
    found = index.get((example.image_id, text)) or index.get((None, text))
    if found is None:
        raise ValueError(f"no parse of the caption {example.caption!r} of image {example.image_id}")
    return found


def _queries(
    example: AuditExample, parse: Parse, places: Sequence[tuple[int, int] | None], asked: str, entity_words: bool
) -> Iterator[AuditPhrase]:
    grounded = [phrase for phrase in example.phrases if len(phrase.boxes)]
    heads = {head: phrase for phrase in grounded if (head := phrase_head(phrase, parse, places)) is not None}
    for index, word in enumerate(parse.words):
        if word.head == ROOT:
            continue
        for entity, query, end in ((word.head, index, DEPENDENT), (index, word.head, HEAD)):
            place = places[query]
            if entity not in heads or place is None or asked not in (EITHER, end):
                continue
            if entity_words or query not in heads:
                yield AuditPhrase(*place, heads[entity].boxes, (word.relation,))


def phrase_head(phrase: AuditPhrase, parse: Parse, places: Sequence[tuple[int, int] | None]) -> int | None:
    """
    Which word of a parse is the head of a phrase: of the words inside it whose head is outside, the one nearest to the
    root, and of several the last. None where no word lies inside.
    """
    inside = {i for i, place in enumerate(places) if place and phrase.start <= place[0] and place[1] <= phrase.end}
    outer = [index for index in sorted(inside) if parse.words[index].head not in inside]
    return min(outer, key=lambda index: (_depth(parse, index), -index), default=None)


def _depth(parse: Parse, index: int) -> int:
    depth = 0
    while (index := parse.words[index].head) != ROOT:
        depth += 1
    return depth


@dataclass(frozen=True)
class RelationRow:
    """How well the best head follows a relation.

    Args:
        relation (`str`): its name.
        items (`int`): how many words were asked.
        images (`int`): of how many images.
        layer (`int | None`): the best active head's layer, counted from 0; None where no head is active.
        head (`int | None`): its number in the layer, counted from 0. The paper's "10-1" does not say from where it
            counts.
        accuracy (`float`): of that head, in [0, 1].
        low (`float`): lower end of its interval.
        high (`float`): upper end.
        share (`float`): the attention it gives to regions.
        baseline (`float`): accuracy of the most confident region.
        chance (`float`): accuracy of any region.
    """

    relation: str
    items: int
    images: int
    layer: int | None
    head: int | None
    accuracy: float
    low: float
    high: float
    share: float
    baseline: float
    chance: float


def relation_table(
    relations: Mapping[str, HeadCounts],
    top: int = TOP,
    chosen_on: Mapping[str, HeadCounts] | None = None,
    active: float = ACTIVE_SHARE,
    level: float = LEVEL,
    draws: int = DRAWS,
    seed: int = 0,
) -> list[RelationRow]:
    """
    The paper's Table 2: of the most common relations the best head among those that attend to regions at all.

    Args:
        relations (`Mapping[str, HeadCounts]`): counts of the words asked, for each relation.
        top (`int`, *optional*, defaults to `TOP`): how many relations, most common first.
        chosen_on (`Mapping[str, HeadCounts]`, *optional*): counts of another split on which the heads are chosen;
            without it they are chosen on the counts reported, as the paper does, which flatters them. A relation that
            it lacks has no head.
        active (`float`, *optional*, defaults to `ACTIVE_SHARE`): a head counts if its mean share of attention on
            regions is above this.
        level (`float`, *optional*, defaults to `LEVEL`): of the intervals, which resample images and say nothing about
            the choice of the head.
        draws (`int`, *optional*, defaults to `DRAWS`): of the intervals.
        seed (`int`, *optional*, defaults to `0`): of the draws.
    """
    common = sorted(relations, key=lambda name: (-relations[name].total, name))[:top]
    choices = relations if chosen_on is None else chosen_on
    return [_row(name, relations[name], _best_head(choices.get(name), active), level, draws, seed) for name in common]


def _best_head(counts: HeadCounts | None, active: float) -> tuple[int, int] | None:
    if counts is None or not (counts.mean_share > active).any():
        return None
    ranked = np.where(counts.mean_share > active, counts.accuracy, -1.0)
    layer, head = divmod(int(ranked.argmax()), ranked.shape[1])
    return layer, head


def _row(
    name: str, counts: HeadCounts, best: tuple[int, int] | None, level: float, draws: int, seed: int
) -> RelationRow:
    layer, head = best or (None, None)
    accuracy = low = high = share = float("nan")
    if best is not None:
        accuracy, share = counts.accuracy[best], counts.mean_share[best]
        low, high = ratio_intervals(counts.correct[:, *best][:, None], counts.items, level, draws, seed)[:, 0]
    return RelationRow(
        relation=name,
        items=counts.total,
        images=len(counts.image_ids),
        layer=layer,
        head=head,
        accuracy=float(accuracy),
        low=float(low),
        high=float(high),
        share=float(share),
        baseline=counts.baseline_accuracy,
        chance=counts.chance_accuracy,
    )


def relation_markdown(rows: Sequence[RelationRow]) -> str:
    """The table as Markdown, accuracies in percent."""
    lines = [
        "| relation | words | baseline | best active head | interval | layer-head, from 0 |",
        "|---|---|---|---|---|---|",
    ]
    for row in rows:
        best = ("no active head", "", "")
        if row.layer is not None:
            interval = interval_text((100 * row.low, 100 * row.high), ".1f")
            best = (f"{100 * row.accuracy:.1f}", interval, f"{row.layer}-{row.head}")
        lines.append(f"| {row.relation} | {row.items} | {100 * row.baseline:.1f} | {' | '.join(best)} |")
    return "\n".join(lines)
