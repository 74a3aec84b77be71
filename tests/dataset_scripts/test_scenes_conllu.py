# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""Parses of the scenes' captions: trees, texts, relations; and what the audit makes of them."""

import re
from collections import defaultdict

import pytest

from grounded_attention.dataset_scripts.builders.flickr30k_entities import Flickr30kEntities
from grounded_attention.dataset_scripts.scenes.annotators import PAIR_TEMPLATES, RELATION_WORDS, TEMPLATES
from grounded_attention.dataset_scripts.scenes.captions import Caption, Entity, Mention
from grounded_attention.dataset_scripts.scenes.dataset import scene_record, write_scenes
from grounded_attention.dataset_scripts.scenes.writers_conllu import CLAUSES, conllu, parse
from grounded_attention.heads.dependency_parses import read_conllu, relation_examples
from grounded_attention.heads.examples import grounded_examples
from tests.helpers.built import built

IMAGES = 30
SEED = 8
# https://universaldependencies.org/u/dep/, with the subtypes of the English treebanks.
UNIVERSAL = set(
    "root nsubj nsubj:pass obj obl expl cop aux aux:pass mark advcl acl:relcl advmod amod nummod det case nmod "
    "cc conj punct".split()
)


@pytest.fixture(scope="module")
def records():
    return [scene_record(SEED, number, IMAGES) for number in range(IMAGES)]


@pytest.fixture(scope="module")
def parses(records, tmp_path_factory):
    path = tmp_path_factory.mktemp("parses") / "all.conllu"
    path.write_text("".join(map(conllu, records)))
    return read_conllu(path)


def caption_of(text):
    """A caption from a text such as "[the ball] is to_the_left_of [two cubes]"; phrases in {} mean no object."""
    tokens = []
    mentions = []
    for thing, nothing, word in re.findall(r"\[(.*?)\]|\{(.*?)\}|(\S+)", text):
        if word:
            tokens.append(word.replace("_", " "))
        else:
            tokens.append(len(mentions))
            kind = "ground" if thing == "the table" else "object"
            mentions.append(Mention(thing or nothing, Entity(kind) if thing else None))
    return Caption(tuple(tokens), tuple(mentions), ())


def tree(text):
    """word -> (head, relation); words of these captions occur once."""
    nodes = parse(caption_of(text))
    return {node.form: (nodes[node.head].form, node.relation) for node in nodes}


def test_templates_and_clauses_match():
    """A template as items, read off its symbols alone: a relation or "in", "near", ... with a mention is a place."""
    found = set()
    for template in (*TEMPLATES, *PAIR_TEMPLATES):
        for words in ("next_to N", "close_to N", "near N"):
            template = template.replace(words, "<P>")
        items = []
        symbols = iter(template.replace("in P", "<I>").split())
        for symbol in symbols:
            if symbol.startswith("R:"):
                next(symbols)
                items.append("P")
            elif symbol in ("A", "B", "C", "P"):
                items.append("N")
            else:
                items.append(symbol.partition(":")[0].strip("<>"))
        found.add(" ".join(items))
    assert found == set(CLAUSES)


def test_a_caption_that_is_not_of_the_grammar():
    with pytest.raises(ValueError, match="'balls and': 'N and' is not a clause"):
        parse(caption_of("[balls] and"))


def test_one_tree_with_one_root_a_caption(parses, records):
    assert len(parses) == sum(len(record.captions) for record in records) > 100
    for parsed in parses:  # the reader refuses circles and heads that are not there
        assert " ".join(form for form, *_ in parsed.written) == parsed.text
        assert {word.relation for word in parsed.words} <= UNIVERSAL
        roots = [word.relation == "root" for word in parsed.words]
        assert sum(roots) == 1
        assert roots == [word.head == -1 for word in parsed.words]


def test_trees_do_not_cross(parses):
    """Of a projective tree every word between a word and its head hangs below that head."""
    for parsed in parses:
        heads = [word.head for word in parsed.words]
        for index, head in enumerate(heads):
            if head == -1:
                continue
            for between in range(min(index, head) + 1, max(index, head)):
                while between not in (-1, head):
                    between = heads[between]
                assert between == head, (parsed.text, parsed.words[index])


TREES = {
    "[the red ball] is to_the_left_of [two cubes] on [the table]": """
        the table det, red ball amod, ball left nsubj, is left cop, to left case, left left root, of cubes case,
        two cubes nummod, cubes left nmod, on table case, table left obl, . left punct""",
    "you can see [a ball] that is near [the cube]": """
        you see nsubj, can see aux, ball see obj, cube ball acl:relcl, that cube nsubj""",
    "[a ball] under [the cube] can be seen in {this image}": """
        ball seen nsubj:pass, image seen obl, cube ball nmod, under cube case""",
    "there are [balls] and [a cube]": "balls are nsubj, cube balls conj",
}


@pytest.mark.parametrize("text", TREES)
def test_words_have_these_heads_and_relations(text):
    expected = [arc.split() for arc in TREES[text].split(",")]
    found = tree(text)
    for word, head, relation in expected:
        assert found[word] == (head, relation)


@pytest.mark.parametrize("words", [text.replace(" ", "_") for texts in RELATION_WORDS.values() for text in texts])
def test_every_word_of_a_relation_belongs_to_its_place(words):
    subject, verb, *others = (node.relation for node in parse(caption_of(f"[balls] are {words} [cubes]")))
    assert (subject, verb) == ("nsubj", "cop")
    assert {"case"} <= set(others) <= {"case", "det", "amod", "nmod", "obl", "root", "punct"}


def boxes_of(examples):
    """Image ids with the boxes of the phrases."""
    return {(example.image_id, str(phrase.boxes)) for example in examples for phrase in example.phrases}


def test_the_audit_queries_the_words_of_the_written_files(tmp_path):
    """Builder and parses of the folder: every caption has its parse, and every query has the boxes of its entity."""
    write_scenes(tmp_path / "scenes", 6, 2)
    builder = built(Flickr30kEntities, tmp_path / "scenes", tmp_path / "cache")
    rows = [row for data in builder.as_dataset().values() for row in data]
    parses = read_conllu(tmp_path / "scenes" / "parses")
    captions = {}
    for row in rows:
        captions |= zip(row["caption_ids"], row["captions"], strict=True)
    assert {parsed.caption_id: parsed.text for parsed in parses} == captions
    examples = list(grounded_examples(rows))
    queries = relation_examples(examples, parses)
    words = defaultdict(set)
    for example in queries:
        for phrase in example.phrases:
            words[phrase.types[0]].add(example.caption[phrase.start : phrase.end].lower())
    assert words.keys() >= {"det", "amod", "nummod", "case", "nsubj"}
    assert words["det"] <= {"a", "an", "the", "both", "some"}
    assert boxes_of(queries) <= boxes_of(examples)
