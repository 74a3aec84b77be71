# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""Phrases of TextBlob and spaCy (both replaced by stubs), found in their captions again."""

import sys
from importlib.machinery import ModuleSpec
from types import ModuleType, SimpleNamespace

import pytest

from grounded_attention.labelling import phrases
from grounded_attention.labelling.phrases import load_phrases, locate


@pytest.mark.parametrize(
    "caption, texts, spans",
    [
        ("A Red ball near the red  ball.", ["red ball", "red ball"], [(2, 10), (20, 29)]),
        ("The man's hat and a man", ["man 's hat", "man"], [(4, 13), (20, 23)]),
        ("A ball and a red ball", ["red ball", "ball"], [(2, 6), (13, 21)]),
        ("balls and a ball", ["ball"], [(12, 16)]),
        ("one ball", ["ball", "ball", ""], [(4, 8)]),
        ("a dog", ["cat"], []),
        ("ein (rotes) Haus", ["(rotes) haus"], [(4, 16)]),
        ("Été à Paris", ["été", "paris"], [(0, 3), (6, 11)]),
    ],
)
def test_phrases_are_found_in_their_caption_again(caption, texts, spans):
    found = locate(caption, texts)
    assert [(phrase.start, phrase.end) for phrase in found] == spans
    assert all(phrase.text == caption[phrase.start : phrase.end] for phrase in found)


def installed(monkeypatch, name, **content):
    """A package that is installed under this name."""
    module = ModuleType(name)
    module.__spec__ = ModuleSpec(name, None)
    for key, value in content.items():
        setattr(module, key, value)
    monkeypatch.setitem(sys.modules, name, module)
    return module


def install_textblob(monkeypatch, noun_phrases):
    class MissingCorpusError(Exception):
        pass

    class TextBlob:
        def __init__(self, text):
            if noun_phrases is None:
                raise MissingCorpusError
            self.noun_phrases = noun_phrases(text)

    installed(monkeypatch, "textblob", TextBlob=TextBlob)
    installed(monkeypatch, "textblob.exceptions", MissingCorpusError=MissingCorpusError)
    monkeypatch.setattr(phrases.importlib.metadata, "version", lambda name: "0.20.1")


def test_noun_phrases_of_textblob(monkeypatch, caplog):
    install_textblob(monkeypatch, lambda text: ["red ball", "blue cube"] if "Red" in text else ["lost"])
    source = load_phrases("textblob")
    assert source.provenance == {"source": "textblob", "version": "0.20.1"}
    found = source.find([{"text": "The Red ball is near a blue cube."}, {"text": "nothing"}, {"text": "none"}])
    assert [[phrase.text for phrase in each] for each in found] == [["Red ball", "blue cube"], [], []]
    (said,) = caplog.messages  # once, for the first of them
    assert "lost" in said
    assert "'nothing'" in said


def test_what_is_not_installed_is_named(monkeypatch):
    monkeypatch.setattr(phrases.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ValueError, match=r"TextBlob is not installed; pip install '\.\[textblob\]' && python -m"):
        load_phrases("textblob")
    with pytest.raises(ValueError, match=r"spacy and de_core not installed.*spacy download de_core; or choose"):
        load_phrases("spacy", "de_core")


def test_missing_corpora_are_found_before_any_work(monkeypatch):
    install_textblob(monkeypatch, None)
    monkeypatch.setattr(phrases.importlib.util, "find_spec", lambda name: ModuleSpec(name, None))
    with pytest.raises(ValueError, match=r"TextBlob has no corpora; .*download_corpora lite; or choose another"):
        load_phrases("textblob")


def test_noun_chunks_of_spacy_without_pronouns(monkeypatch):
    def chunk(text, start, kind="NOUN"):
        root = SimpleNamespace(pos_=kind)
        return SimpleNamespace(text=text, start_char=start, end_char=start + len(text), root=root)

    def pipe(texts):
        for text in texts:
            yield SimpleNamespace(noun_chunks=[chunk("She", 0, "PRON"), chunk("a ball", text.index("a ball"))])

    parser = SimpleNamespace(pipe=pipe, meta={"version": "3.8"})
    installed(monkeypatch, "spacy", load=lambda name: parser, __version__="3.8.1")
    installed(monkeypatch, "en_core_web_sm")
    source = load_phrases("spacy")
    [found] = source.find([{"text": "She has a ball"}])
    assert [(phrase.text, phrase.start, phrase.end) for phrase in found] == [("a ball", 8, 14)]
    versions = {"model": "en_core_web_sm", "model_version": "3.8", "version": "3.8.1"}
    assert source.provenance == {"source": "spacy", **versions}
