# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""Object hallucination: yes-or-no answers (POPE, Li et al., 2023) and free descriptions (AMBER, Wang et al., 2023).

Answers have accuracy, precision, recall and F1; descriptions are scored by their nouns as AMBER's script does.
"""

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import chain
from typing import Any

from torch import Tensor

from grounded_attention.utils.named_types import Batch, Fields

from .item_scores import StreamingMetric
from .significance import Estimates, estimate_ratio

YES = "yes"
NO = "no"
OUTCOMES = ("hit", "false_alarm", "miss", "correct_rejection")


def read_yes_or_no(answer: str) -> str:
    """Reads a free answer as POPE does: "no" if its first sentence has the word no or not, otherwise "yes"."""
    words = re.findall(r"[a-z']+", answer.split(".")[0].lower())
    if {"no", "not"} & set(words):
        return NO
    return YES


def count_outcomes(predicted: Sequence[str], gold: Sequence[str]) -> dict[str, int]:
    """Counts the outcomes of answers."""
    names = {(YES, YES): "hit", (YES, NO): "false_alarm", (NO, YES): "miss", (NO, NO): "correct_rejection"}
    counts = dict.fromkeys(OUTCOMES, 0)
    for pair in zip(predicted, gold, strict=True):
        counts[names[pair]] += 1
    return counts


def hallucination_metrics(counts: Mapping[str, float]) -> dict[str, float]:
    """The metrics of [`count_outcomes`]: `accuracy`; `precision`, `recall` and `f1` of the answer yes; `yes_share`,
    the share of yes among the answers. A ratio without cases is 0."""
    hit, false_alarm, miss, rejection = (float(counts[name]) for name in OUTCOMES)
    return {
        "accuracy": _ratio(hit + rejection, hit + false_alarm + miss + rejection),
        "precision": _ratio(hit, hit + false_alarm),
        "recall": _ratio(hit, hit + miss),
        "f1": _ratio(2 * hit, 2 * hit + false_alarm + miss),
        "yes_share": _ratio(hit + false_alarm, hit + false_alarm + miss + rejection),
    }


def _ratio(part: float, whole: float) -> float:
    if whole:
        return part / whole
    return 0.0


class ObjectHallucination(StreamingMetric):
    """Streaming metric of generated answers to questions of the builder `pope`, for each sampling of their objects.

    The batch has the lists `sampling` (None for other rows), `answer` ("yes" or "no") and `generated`. Metrics:
    `hallucination_<sampling>_<metric>`, see [`hallucination_metrics`].
    """

    def update(self, outputs: Any, batch: Batch) -> None:
        """Counts one batch: `<sampling>:<outcome>` -> () float64."""
        for sampling, gold, answer in zip(batch["sampling"], batch["answer"], batch["generated"], strict=True):
            if sampling:
                counts = count_outcomes([read_yes_or_no(answer)], [gold])
                self._add(**{f"{sampling}:{name}": number for name, number in counts.items()})

    def compute(self, state: Mapping[str, Tensor]) -> Fields:
        """The metrics of a state."""
        metrics = {}
        for sampling in dict.fromkeys(key.partition(":")[0] for key in state):
            counts = {outcome: state[f"{sampling}:{outcome}"].item() for outcome in OUTCOMES}
            for name, value in hallucination_metrics(counts).items():
                metrics[f"hallucination_{sampling}_{name}"] = value
        return metrics


Similar = Callable[[str, str], bool]
SIMILARITY = 0.8  # of two words, above which they count as one
VECTORS = "en_core_web_lg"


@dataclass(frozen=True)
class Described:
    """The nouns of a description, the objects in the picture, and those that models invent in it."""

    image_id: str
    nouns: Sequence[str]
    truth: Sequence[str]
    hallu: Sequence[str]


def description_metrics(
    rows: Iterable[Described], related: Mapping[str, Sequence[str]], safe: Iterable[str], similar: Similar
) -> Estimates:
    """`chair`: the share of nouns that are not in the picture; `cover`: of its objects, those that are named; `hal`:
    of the descriptions, those with such a noun; `cog`: of the objects that models invent there, those that are named.

    Only words of `related` (`relation.json`) count. A noun of `safe` is always right. Otherwise it names the first
    object, in the order of their related words and then of themselves, that is the same word. Without any in the
    picture, it is compared with all by `similar`; it can then name an invented object and one of the picture at once.
    """
    known = {*related, *chain.from_iterable(related.values())}
    always = {*safe}
    judged: list[tuple[str, int, int, int, int, int, int]] = []
    for row in rows:
        shown = _names(row.truth, related)
        feared = _names(row.hallu, related)
        nouns = [noun for noun in row.nouns if noun in known]
        named = set[int]()
        invented = set[int]()
        wrong = 0
        for noun in nouns:
            if noun in always:
                continue
            same = _first(shown, noun, str.__eq__)
            if same is not None:
                named.add(same)
                continue
            invented |= {_first(feared, noun, str.__eq__), _first(feared, noun, similar)} - {None}  # type: ignore[arg-type]
            near = _first(shown, noun, similar)
            named |= set() if near is None else {near}
            wrong += near is None
        judged.append((row.image_id, wrong, len(nouns), len(named), len(row.truth), len(invented), len(row.hallu)))
    images, wrongs, nouns_of, named_of, truths, invented_of, hallus = zip(*judged, strict=True)
    return {
        "chair": estimate_ratio(wrongs, nouns_of, images),
        "cover": estimate_ratio(named_of, truths, images),
        "hal": estimate_ratio([float(each > 0) for each in wrongs], None, images),
        "cog": estimate_ratio(invented_of, hallus, images),
    }


def _names(objects: Sequence[str], related: Mapping[str, Sequence[str]]) -> list[tuple[str, int]]:
    """Words that name objects, each with the place of its object."""
    unknown = [each for each in objects if each not in related]
    if unknown:
        raise ValueError(f"relation.json has no word {unknown[0]!r}, which annotations.json has as an object")
    others = []
    for place, each in enumerate(objects):
        for word in related[each]:
            others.append((word, place))
    return others + [(each, place) for place, each in enumerate(objects)]


def _first(names: Sequence[tuple[str, int]], noun: str, alike: Similar) -> int | None:
    return next((place for word, place in names if alike(noun, word)), None)


def load_word_tools() -> tuple[Callable[[str], list[str]], Similar]:
    """The authors' tools: the nouns of a text by NLTK, and whether two words are alike by the vectors of spaCy."""
    try:
        import nltk
        import spacy

        vectors = spacy.load(VECTORS)
        lemmatizer = nltk.stem.WordNetLemmatizer()

        def nouns(text: str) -> list[str]:
            tagged = nltk.pos_tag(nltk.word_tokenize(text))
            return [lemmatizer.lemmatize(word) for word, tag in tagged if tag.startswith("NN")]

        nouns("a red ball")  # a missing corpus is known before any work
    except (ImportError, OSError, LookupError) as error:
        raise ValueError(
            f"NLTK or spaCy, or their data, are not installed ({type(error).__name__}); pip install nltk spacy && "
            f"python -m spacy download {VECTORS} && "
            "python -m nltk.downloader punkt_tab averaged_perceptron_tagger_eng wordnet"
        ) from error
    parsed = cache(vectors)
    return nouns, lambda word, other: parsed(word).similarity(parsed(other)) > SIMILARITY
