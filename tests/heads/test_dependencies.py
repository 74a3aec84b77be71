# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""CoNLL-U files, alignment of parses with captions, and queries for the boxes of a grounded phrase."""

import importlib.util
import logging
import sys
import time
from types import SimpleNamespace

import numpy as np
import pytest
from numpy.testing import assert_array_equal

from grounded_attention.heads.dependency_parses import (
    align_words,
    phrase_head,
    read_conllu,
    relation_examples,
    spacy_parses,
)
from grounded_attention.heads.examples import AuditExample
from grounded_attention.processing.phrase import Phrase

BALL = [[0.1, 0.1, 0.3, 0.3]]
CUBE = [[0.5, 0.5, 0.9, 0.9], [0.6, 0.1, 0.7, 0.2]]
HOLDS = "A 2 det, girl 3 nsubj, holds 0 root, two 6 nummod, red 6 amod, balls 3 obj, . 3 punct"


def conllu(words, **comments):
    """A sentence, of "form head relation" for each word; heads count from 1."""
    lines = [f"# {name} = {value}" for name, value in comments.items()]
    for number, word in enumerate(words.split(", "), start=1):
        form, head, relation = word.split()
        lines.append(f"{number}\t{form}\t_\tX\t_\t_\t{head}\t{relation}\t_\t_")
    return "\n".join(lines) + "\n\n"


def parses_of(tmp_path, text):
    path = tmp_path / "parses.conllu"
    path.write_text(text, encoding="utf-8")
    return read_conllu(path)


def phrase_of(caption, text, boxes):
    start = caption.index(text)
    boxes = np.array(boxes, dtype=np.float32).reshape(-1, 4)
    return Phrase(text, start, start + len(text), boxes=boxes, types=("other",))


def example_of(caption, *phrases, image_id="7"):
    return AuditExample(image_id, caption, tuple(phrase_of(caption, *phrase) for phrase in phrases))


def found_queries(examples):
    """(word, relation, number of boxes) of every query."""
    queries = []
    for example in examples:
        for phrase in example.phrases:
            word = example.caption[phrase.start : phrase.end]
            queries.append((word, phrase.types[0], len(phrase.boxes)))
    return queries


def aligned(caption, parse):
    """The characters of each word of a parse."""
    return [place and caption[slice(*place)] for place in align_words(caption, parse)]


# Reading


def test_sentences_comments_and_places(tmp_path):
    text = "# newdoc\n" + conllu(HOLDS, sent_id="s1", image_id="7", text="A girl holds two red balls.") + conllu(HOLDS)
    first, second = parses_of(tmp_path, text)
    assert first.text == "A girl holds two red balls."
    assert first.image_id == "7"
    assert first.caption_id is None
    assert second.text == "A girl holds two red balls ."
    assert second.image_id is None
    words = [f"{word.form} {word.head + 1} {word.relation}" for word in first.words]
    assert ", ".join(words) == HOLDS
    assert [word.line for word in first.words] == list(range(5, 12))


DIDNT = """\
1\tHe\t_\tX\t_\t_\t4\tnsubj\t4:nsubj|8.1:x\t_
2-3\tdidn't\t_\t_\t_\t_\t_\t_\t_\t_
2\tdid\t_\tX\t_\t_\t4\taux\t_\t_
3\tn't\t_\tX\t_\t_\t4\tadvmod\t_\t_
4\tsit\t_\tX\t_\t_\t0\troot\t_\tSpaceAfter=No
4.1\tghost\t_\t_\t_\t_\t_\t_\t0:root\t_
5\t.\t_\tX\t_\t_\t4\tpunct\t_\t_
"""


def test_multiword_tokens_empty_nodes_and_space_after(tmp_path):
    (parse,) = parses_of(tmp_path, DIDNT)
    assert parse.text == "He didn't sit."
    assert [word.form for word in parse.words] == ["He", "did", "n't", "sit", "."]
    assert parse.written == (("He", 0, 1), ("didn't", 1, 3), ("sit", 3, 4), (".", 4, 5))
    assert align_words("He  didn't sit.", parse) == [(0, 2), (4, 10), (4, 10), (11, 14), None]


def test_sentences_of_one_caption_are_one_parse(tmp_path):
    text = "".join(conllu(HOLDS, caption_id=name) for name in ("7#0", "7#0", "7#1"))
    both, single = parses_of(tmp_path, text)
    assert [word.head for word in both.words[7:10]] == [8, 9, -1]
    caption = "A girl holds two red balls. A girl holds two red balls."
    assert aligned(caption, both) == 2 * ["A", "girl", "holds", "two", "red", "balls", None]
    assert len(single.words) == 7
    assert single.caption_id == "7#1"


def test_a_folder_of_files(tmp_path):
    for name in ("b.conllu", "a.conllu", "other.txt"):
        (tmp_path / name).write_text(conllu(HOLDS, image_id=name))
    assert [parse.image_id for parse in read_conllu(tmp_path)] == ["a.conllu", "b.conllu"]
    (tmp_path / "empty").mkdir()
    with pytest.raises(ValueError, match=r"empty: no file in this folder ends with \.conllu"):
        read_conllu(tmp_path / "empty")


ROW = "1\tA\t_\tX\t_\t_\t0\troot\t_\t_\n"


@pytest.mark.parametrize(
    "text, line, problem",
    [
        (ROW + "2\tgirl\t_\n", 2, "found 3 columns, expected 10"),
        (ROW + ROW, 2, "found the ID '1', expected 2"),
        (ROW.replace("1", "x"), 1, "without words"),
        ("# text = nothing\n\n", 1, "without words"),
        (ROW.replace("\t0\t", "\t2\t"), 1, "found the HEAD '2' of 'A'"),
        (ROW.replace("\t0\t", "\t_\t"), 1, "found the HEAD '_'"),
        (ROW.replace("\t0\t", "\t1\t"), 1, "'A' in a cycle of heads"),
        (ROW.replace("root", "_"), 1, "DEPREL '_'"),
        (ROW.replace("\t0\t", "\t" + "9" * 5000 + "\t"), 1, "found the HEAD '9{79} of 'A', expected 0 to 1"),
        (ROW + ROW.replace("1", "9" * 5000), 2, "found the ID '9{79}, expected 2"),
        ("1-3" + ROW[1:] + ROW, 1, "multiword token 1-3"),
        ("1-" + "9" * 5000 + ROW[1:] + ROW, 1, "found the ID '1-9{77}, expected 1"),
        (conllu("a 2 x, b 1 x, c 0 root"), 1, "'a' in a cycle of heads"),
        (conllu("a 0 root") + ROW[:-1], 3, "found the end of the file, expected a line break"),
    ],
)
def test_invalid_conllu_is_reported_with_its_line(tmp_path, text, line, problem):
    with pytest.raises(ValueError, match=rf"parses\.conllu, line {line}: .*{problem}"):
        parses_of(tmp_path, text)


def test_a_long_chain_of_heads_is_checked_in_one_pass(tmp_path):
    count = 30_000
    text = conllu("".join(f"a {head} dep, " for head in range(2, count + 1)) + "a 0 root")
    begin = time.process_time()
    (parse,) = parses_of(tmp_path, text)
    # with a walk from each word: a minute
    assert parse.words[0].head == 1
    assert time.process_time() - begin < 8


def test_a_file_of_other_bytes(tmp_path):
    (tmp_path / "x.conllu").write_bytes(ROW.encode() + b"\xff\xfe")
    with pytest.raises(ValueError, match=r"x\.conllu, line 2: not valid UTF-8"):
        read_conllu(tmp_path / "x.conllu")


# Words and characters


@pytest.mark.parametrize(
    "caption, forms, found",
    [
        ("A girl's ball", ["a", "girl", "'s", "ball"], ["A", "girl", "s", "ball"]),
        ("girl ’s ball", ["girl", "'s", "ball"], ["girl", "s", "ball"]),
        ("a (red) ball", ["a", "-LRB-", "red", "-RRB-", "ball"], ["a", None, "red", None, "ball"]),
        ('a "red" ball', ["a", "``", "red", "''", "ball"], ["a", None, "red", None, "ball"]),
        ("t - shirt on", ["t-shirt", "on"], ["t - shirt", "on"]),
        ("a ball", ["a", "ball", "."], ["a", "ball", None]),
        ("ball, cube!", ["ball", "cube"], ["ball", "cube"]),
    ],
)
def test_alignment_passes_over_spacing_and_punctuation(tmp_path, caption, forms, found):
    words = [f"{form} 1 dep" for form in forms[1:]]
    (parse,) = parses_of(tmp_path, conllu(", ".join([f"{forms[0]} 0 root", *words])))
    assert aligned(caption, parse) == found


@pytest.mark.parametrize(
    "caption, problem",
    [("a red cube", "'a red ball', the caption is 'a red cube'"), ("a red ball here", "'a red ball here'")],
)
def test_a_parse_of_another_caption_is_reported_with_its_line(tmp_path, caption, problem):
    (parse,) = parses_of(tmp_path, conllu("a 0 root, red 1 dep, ball 1 dep"))
    with pytest.raises(ValueError, match=rf"parses\.conllu, line 1: .*{problem}"):
        align_words(caption, parse)


# Queries


def test_entity_at_either_end(tmp_path):
    parses = parses_of(tmp_path, conllu(HOLDS))
    caption = "A girl holds two red balls."
    (found,) = relation_examples([example_of(caption, ("A girl", BALL), ("two red balls", CUBE))], parses)
    of_girl = [("A", "det", 1), ("holds", "nsubj", 1)]
    of_balls = [("two", "nummod", 2), ("red", "amod", 2), ("holds", "obj", 2)]
    assert found_queries([found]) == of_girl + of_balls
    assert_array_equal(found.phrases[1].boxes, np.float32(BALL))
    assert found.image_id == "7"
    assert found.caption == caption


def test_phrases_without_boxes_and_ungrounded_heads_make_no_queries(tmp_path):
    parses = parses_of(tmp_path, conllu(HOLDS))
    caption = "A girl holds two red balls ."
    example = example_of(caption, ("A girl", []), ("two red balls", CUBE))
    expected = [("two", "nummod", 2), ("red", "amod", 2), ("holds", "obj", 2)]
    assert found_queries(relation_examples([example], parses)) == expected
    assert relation_examples([example_of(caption)], parses) == []


def test_an_entity_is_no_query(tmp_path):
    parses = parses_of(tmp_path, conllu("a 2 det, ball 0 root, near 4 case, cubes 2 nmod"))
    caption = "a ball near cubes"
    example = example_of(caption, ("a ball", BALL), ("cubes", CUBE))
    expected = [("a", "det", 1), ("near", "case", 2)]
    assert found_queries(relation_examples([example], parses)) == expected


@pytest.mark.parametrize(
    "text, head", [("a group of balls", 1), ("of balls", 3), ("a", 0), ("of balls lies", 4), ("grou", None)]
)
def test_the_head_of_a_phrase(tmp_path, text, head):
    """Of "group of balls" the group; of words that are no constituent the one nearest to the root."""
    (parse,) = parses_of(tmp_path, conllu("a 2 det, group 5 nsubj, of 4 case, balls 2 nmod, lies 0 root"))
    caption = "a group of balls lies"
    assert phrase_head(phrase_of(caption, text, BALL), parse, align_words(caption, parse)) == head


def test_image_and_text_bring_captions_and_parses_together(tmp_path):
    other = HOLDS.replace("det", "other")
    parses = parses_of(tmp_path, conllu(HOLDS, image_id="7") + conllu(other, image_id="8") + conllu(other))
    for image_id, relation in (("7", "det"), ("8", "other"), ("9", "other")):
        example = example_of("A girl  holds two red balls", ("A girl", BALL), image_id=image_id)
        assert found_queries(relation_examples([example], parses))[0] == ("A", relation, 1)


def test_captions_without_a_parse_are_counted_and_named(tmp_path, caplog):
    parses = parses_of(tmp_path, conllu(HOLDS) + conllu("Ahat 0 root"))
    good = example_of("A girl holds two red balls .", ("A girl", BALL))
    lost = example_of("A dog .", ("A dog", BALL))
    cut = example_of("A hat", ("A hat", BALL))
    with caplog.at_level(logging.WARNING):
        assert len(relation_examples([lost, good, cut], parses)) == 1
    assert "1 of 3 captions" in caplog.text
    assert "no parse for the caption 'A dog .' of image 7" in caplog.text
    with pytest.raises(ValueError, match=r"1 of 1 captions have no fitting parse.*parses of the captions"):
        relation_examples([lost], parses)


# spaCy


def token(index, text, head, relation):
    return SimpleNamespace(i=index, text=text, dep_=relation, head=SimpleNamespace(i=head), is_space=text.isspace())


class Document(list):
    text = "a  red ball"

    def has_annotation(self, name):
        return all(each.dep_ for each in self)


def installed(monkeypatch, document):
    pipeline = SimpleNamespace(pipe=lambda texts: [document for _ in texts])
    monkeypatch.setitem(sys.modules, "spacy", SimpleNamespace(load=lambda name: pipeline))
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: object())


def test_spacy_tokens_without_white_space(monkeypatch):
    rows = [(0, "a", 3, "det"), (1, " ", 0, ""), (2, "red", 3, "amod"), (3, "ball", 3, "ROOT")]
    document = Document(token(*row) for row in rows)
    monkeypatch.setattr(Document, "has_annotation", lambda self, name: True)
    installed(monkeypatch, document)
    (parse,) = spacy_parses(["a  red ball", "a  red ball"])
    words = [(word.form, word.head, word.relation) for word in parse.words]
    assert words == [("a", 2, "det"), ("red", 2, "amod"), ("ball", -1, "ROOT")]
    assert aligned("a  red ball", parse) == ["a", "red", "ball"]


def test_spacy_that_is_missing_or_does_not_parse(monkeypatch):
    installed(monkeypatch, Document([token(0, "ball", 0, "")]))
    with pytest.raises(ValueError, match="en_core_web_sm has no dependency parser"):
        spacy_parses(["ball"])
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ValueError, match="python -m spacy download en_core_web_sm, or give parses in CoNLL-U"):
        spacy_parses(["ball"])
