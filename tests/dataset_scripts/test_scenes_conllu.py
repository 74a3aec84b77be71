# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""Parses of the scenes' captions: trees, texts, relations; and what the audit makes of them."""

from collections import Counter

import pytest

from grounded_attention.analysis.dependency_parses import read_conllu, relation_examples
from grounded_attention.dataset_scripts.builders.flickr30k_entities import Flickr30kEntities
from grounded_attention.dataset_scripts.scenes.annotators import PAIR_TEMPLATES, RELATION_WORDS, TEMPLATES
from grounded_attention.dataset_scripts.scenes.captions import Caption, Entity, Mention
from grounded_attention.dataset_scripts.scenes.dataset import scene_record, write_scenes
from grounded_attention.dataset_scripts.scenes.writers_conllu import CLAUSES, conllu, parse
from grounded_attention.heads.examples import grounded_examples

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
def read(records, tmp_path_factory):
    path = tmp_path_factory.mktemp("parses") / "all.conllu"
    path.write_text("".join(map(conllu, records)))
    return read_conllu(path)


def caption_of(*tokens):
    """A caption of words, or words for a relation, and ("phrase", kind) pairs."""
    mentions = [Mention(t[0], Entity(t[1]) if t[1] else None) for t in tokens if not isinstance(t, str)]
    numbers = iter(range(len(mentions)))
    spread = tuple(token if isinstance(token, str) else next(numbers) for token in tokens)
    return Caption(spread, tuple(mentions), ())


def tree(*tokens):
    """word -> (head, relation); words of these captions occur once."""
    nodes = parse(caption_of(*tokens))
    return {node.form: (nodes[node.head].form, node.relation) for node in nodes}


def test_templates_and_clauses_match():
    """A template as items, read off its symbols alone: a relation or "in", "near", ... with a mention is a place."""
    found = set()
    for template in (*TEMPLATES, *PAIR_TEMPLATES):
        for words in ("next_to N", "close_to N", "near N"):
            template = template.replace(words, "<P>")
        symbols = template.replace("in P", "<I>").split()
        items = []
        while symbols:
            symbol = symbols.pop(0)
            if symbol.startswith("R:"):
                symbols.pop(0)
                items.append("P")
            else:
                plain = {"A": "N", "B": "N", "C": "N", "P": "N"}.get(symbol, symbol.partition(":")[0])
                items.append(plain.strip("<>"))
        found.add(" ".join(items))
    assert found == set(CLAUSES)


def test_a_caption_that_is_not_of_the_grammar():
    with pytest.raises(ValueError, match="'balls and': 'N and' is not a clause"):
        parse(caption_of(("balls", "object"), "and"))


def test_one_tree_with_one_root_a_caption(read, records):
    assert len(read) == sum(len(record.captions) for record in records) > 100
    for each in read:  # the reader refuses circles and heads that are not there
        assert [word.head for word in each.words].count(-1) == 1
        assert {word.relation for word in each.words} <= UNIVERSAL
        assert all((word.relation == "root") == (word.head == -1) for word in each.words)


def test_trees_do_not_cross(read):
    """Of a projective tree every word between a word and its head hangs below that head."""
    for each in read:
        heads = [word.head for word in each.words]
        for index, head in enumerate(heads):
            for between in range(min(index, head) + 1, max(index, head)) if head >= 0 else ():
                while between not in (-1, head):
                    between = heads[between]
                assert between == head, (each.text, each.words[index])


def test_sentences_have_their_caption_id_and_text(read, records):
    expected = [
        (record.image_id, f"{record.image_id}#{number}", caption.written()[0])
        for record in records
        for number, caption in enumerate(record.captions)
    ]
    assert [(each.image_id, each.caption_id, each.text) for each in read] == expected
    for each in read:
        assert " ".join(form for form, *_ in each.written) == each.text


def test_copula_and_its_places():
    phrases = [(text, "object") for text in ("the red ball", "two cubes")]
    found = tree(phrases[0], "is", "to the left of", phrases[1], "on", ("the table", "ground"))
    relations = "det amod nsubj cop case root case nummod nmod case obl punct".split()
    heads = "table ball left left left left cubes cubes left table left left".split()
    words = "the red ball is to left of two cubes on table .".split()
    assert found == dict(zip(words, zip(heads, relations, strict=True), strict=True))


def test_verbs_relative_clauses_and_the_picture():
    found = tree(*"you can see".split(), ("a ball", "object"), "that", "is", "near", ("the cube", "object"))
    assert found["you"] == ("see", "nsubj")
    assert found["can"] == ("see", "aux")
    assert found["ball"] == ("see", "obj")
    assert found["cube"] == ("ball", "acl:relcl")
    assert found["that"] == ("cube", "nsubj")
    found = tree(
        ("a ball", "object"), "under", ("the cube", "object"), *"can be seen in".split(), ("this image", None)
    )
    assert found["ball"] == ("seen", "nsubj:pass")
    assert found["image"] == ("seen", "obl")
    assert found["cube"] == ("ball", "nmod")
    assert found["under"] == ("cube", "case")
    found = tree("there", "are", ("balls", "object"), "and", ("a cube", "object"))
    assert found["balls"] == ("are", "nsubj")
    assert found["cube"] == ("balls", "conj")


def test_every_word_of_a_relation_belongs_to_its_place():
    for words in (text for texts in RELATION_WORDS.values() for text in texts):
        nodes = parse(caption_of(("balls", "object"), "are", words, ("cubes", "object")))
        assert [node.relation for node in nodes][:2] == ["nsubj", "cop"]
        others = {node.relation for node in nodes[2:]}
        assert {"case"} <= others <= {"case", "det", "amod", "nmod", "obl", "root", "punct"}


def test_the_audit_queries_the_words_of_the_written_files(tmp_path):
    """Builder and parses of the folder: every caption has its parse, and every query has the boxes of its entity."""
    write_scenes(tmp_path / "scenes", 6, 2)
    builder = Flickr30kEntities(data_dir=str(tmp_path / "scenes"), cache_dir=str(tmp_path / "cache"))
    builder.download_and_prepare()
    rows = [row for data in builder.as_dataset().values() for row in data]
    parses = read_conllu(tmp_path / "scenes" / "parses")
    assert {each.caption_id: each.text for each in parses} == {
        key: text for row in rows for key, text in zip(row["caption_ids"], row["captions"], strict=True)
    }
    examples = list(grounded_examples(rows))
    queries = relation_examples(examples, parses)
    words = Counter(
        (phrase.types[0], example.caption[phrase.start : phrase.end].lower())
        for example in queries
        for phrase in example.phrases
    )
    assert {relation for relation, _ in words} >= {"det", "amod", "nummod", "case", "nsubj"}
    assert {word for relation, word in words if relation == "det"} <= {"a", "an", "the", "both", "some"}
    known = {(e.image_id, tuple(map(tuple, p.boxes.tolist()))) for e in examples for p in e.phrases}
    queried = {(e.image_id, tuple(map(tuple, p.boxes.tolist()))) for e in queries for p in e.phrases}
    assert queried <= known
