# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""Sources of phrases: noun phrases of TextBlob (as in the paper) or spaCy, content words, or annotated spans."""

import importlib.metadata
import importlib.util
import logging
import re
from collections.abc import Sequence
from typing import Protocol

from grounded_attention.dataset_scripts.files.errors import DataError
from grounded_attention.modeling.grounding_items import SPACY_MODEL, content_words
from grounded_attention.processing.phrase import Phrase, read_phrase
from grounded_attention.utils.named_types import Fields, Row
from grounded_attention.utils.whole_words import whole_words

logger = logging.getLogger(__name__)
_INSTALL = {
    "textblob": "pip install '.[textblob]' && python -m textblob.download_corpora lite",
    "spacy": "pip install '.[spacy]' && python -m spacy download {model}",
}
_OTHER = "; or choose another source with --phrases"


class PhraseSource(Protocol):
    """Finds the phrases of captions."""

    provenance: Fields

    def find(self, rows: Sequence[Row]) -> list[list[Phrase]]:
        """Finds the phrases of captions."""


def load_phrases(name: str, model: str = SPACY_MODEL) -> PhraseSource:
    """Loads a source of phrases, one of `SOURCES`; `model` is the pipeline of spaCy."""
    if name == "spacy":
        return SpacyPhrases(model)
    sources: dict[str, type[PhraseSource]] = {
        "textblob": TextBlobPhrases,
        "words": ContentWords,
        "given": GivenPhrases,
    }
    return sources[name]()


class TextBlobPhrases:
    """Noun phrases of TextBlob (the paper's library): lower case, no determiners, spaces between tokens."""

    def __init__(self) -> None:
        if importlib.util.find_spec("textblob") is None:
            raise ValueError(f"TextBlob is not installed; {_INSTALL['textblob']}{_OTHER}")
        self.provenance = {"source": "textblob", "version": importlib.metadata.version("textblob")}
        self._noun_phrases("a red ball")  # a missing corpus is an error before any work
        self._warned = False  # that phrases were left out: once

    def _noun_phrases(self, text: str) -> list[str]:
        from textblob import TextBlob
        from textblob.exceptions import MissingCorpusError

        try:
            return [str(phrase) for phrase in TextBlob(text).noun_phrases]
        except (MissingCorpusError, LookupError) as error:
            raise ValueError(f"TextBlob has no corpora; {_INSTALL['textblob']}{_OTHER}") from error

    def find(self, rows: Sequence[Row]) -> list[list[Phrase]]:
        found = []
        for row in rows:
            texts = self._noun_phrases(row["text"])
            phrases = locate(row["text"], texts)
            found.append(phrases)
            if len(phrases) < len(texts) and not self._warned:
                self._warned = True
                problem = "noun phrases of TextBlob that are not in their caption get no label: %s of %r"
                logger.warning(problem, texts, row["text"])
        return found


class SpacyPhrases:
    """Noun chunks of spaCy without pronouns; they contain their determiners and never overlap."""

    def __init__(self, model: str = SPACY_MODEL) -> None:
        missing = [name for name in ("spacy", model) if importlib.util.find_spec(name) is None]
        if missing:
            hint = _INSTALL["spacy"].format(model=model)
            raise ValueError(f"{' and '.join(missing)} not installed; {hint}{_OTHER}")
        import spacy

        self._parser = spacy.load(model)
        version = self._parser.meta.get("version")
        self.provenance = {"source": "spacy", "model": model, "model_version": version, "version": spacy.__version__}

    def find(self, rows: Sequence[Row]) -> list[list[Phrase]]:
        found = []
        for document in self._parser.pipe([row["text"] for row in rows]):
            chunks = [chunk for chunk in document.noun_chunks if chunk.root.pos_ != "PRON"]
            found.append([Phrase(chunk.text, chunk.start_char, chunk.end_char) for chunk in chunks])
        return found


class ContentWords:
    """Each word that is not an English function word is a phrase; needs no package."""

    provenance = {"source": "words"}

    def find(self, rows: Sequence[Row]) -> list[list[Phrase]]:
        return [content_words(row["text"]) for row in rows]


class GivenPhrases:
    """The annotated phrases of the builder that have boxes; only the simulated grounder reads the boxes."""

    provenance = {"source": "given"}

    def find(self, rows: Sequence[Row]) -> list[list[Phrase]]:
        return [self._find(row, f"caption {row['caption_id']}") for row in rows]

    def _find(self, row: Row, where: str) -> list[Phrase]:
        if row.get("phrases") is None:
            hint = "--phrases given and --grounder scenes need a builder with annotated phrases: flickr30k_entities"
            raise DataError("the caption has no annotated phrases", where=where, hint=hint)
        return [read_phrase(phrase, [row["text"]], where) for phrase in row["phrases"]]


def locate(caption: str, texts: Sequence[str]) -> list[Phrase]:
    """Finds phrases that were lower-cased and joined from tokens, in a caption; those not found are left out."""
    placed: list[Phrase] = []
    after = 0
    for text in texts:
        phrase = _search(caption, text, after, placed) or _search(caption, text, 0, placed)
        if phrase is not None:
            placed.append(phrase)
            after = phrase.end
    return sorted(placed, key=lambda phrase: phrase.start)


def _search(caption: str, text: str, begin: int, taken: Sequence[Phrase]) -> Phrase | None:
    pattern = r"\s*".join(re.escape(token) for token in text.split())
    if not pattern:
        return None
    for start, end in whole_words(pattern, caption, re.IGNORECASE, begin):
        if all(end <= other.start or other.end <= start for other in taken):
            return Phrase(caption[start:end], start, end)
    return None
