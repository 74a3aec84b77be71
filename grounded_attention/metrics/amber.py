# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""Free descriptions of pictures, scored by their nouns as AMBER's script does (Wang et al., 2023)."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import chain

from .significance import Estimate, estimate_ratio

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
) -> dict[str, Estimate]:
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
