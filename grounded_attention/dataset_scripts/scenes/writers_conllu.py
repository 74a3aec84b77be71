# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""Dependency parses of the captions of scenes, in CoNLL-U with the relations of Universal Dependencies.

This module needs no parser: a caption consists of nominals, places ("to the left of" with its nominal) and a few
words, and `CLAUSES` has the tree of every clause that the annotators write. As in Universal Dependencies the predicate
of "the ball is near the cube" is "cube", with "is" as copula and "near" as case.

The comments of a sentence identify its caption: `image_id`, and `caption_id` in the form of the builder of Flickr30K
Entities, `<image id>#<caption, from 0>`. `text` is the caption in that builder's form.
"""

from dataclasses import dataclass
from itertools import chain

from .annotators import RELATION_WORDS, VERBS
from .captions import Caption
from .records import SceneRecord

# The tree of each clause, an item "head:relation" (heads count from 1, 0 is the root). N is a nominal, P a place, I a
# place in the picture itself, V "is" or "are", S "sits", "lies", ...; a place under a noun becomes `nmod`, else `obl`.
CLAUSES = {
    "N V P": "3:nsubj 3:cop 0:root",
    "there V N P": "2:expl 0:root 2:nsubj 3:nmod",
    "P V N": "0:root 1:cop 1:nsubj",
    "P there V N": "3:obl 3:expl 0:root 3:nsubj",
    "N S P": "2:nsubj 0:root 2:obl",
    "we see N P": "2:nsubj 0:root 2:obj 3:nmod",
    "you can see N that V P": "3:nsubj 3:aux 0:root 3:obj 7:nsubj 7:cop 4:acl:relcl",
    "N shows N P": "2:nsubj 0:root 2:obj 3:nmod",
    "N P can be seen I": "5:nsubj:pass 1:nmod 5:aux 5:aux:pass 0:root 5:obl",
    "N V P and P": "3:nsubj 3:cop 0:root 5:cc 3:conj",
    "N S P , with N P": "2:nsubj 0:root 2:obl 6:punct 6:case 2:obl 6:nmod",
    "N V P while N S P": "3:nsubj 3:cop 0:root 6:mark 6:nsubj 3:advcl 6:obl",
    "N P and N": "0:root 1:nmod 4:cc 1:conj",
    "there V N P , and N": "2:expl 0:root 2:nsubj 3:nmod 7:punct 7:cc 3:conj",
    "N and N P": "0:root 3:cc 1:conj 3:nmod",
    "N , N and N": "0:root 3:punct 1:conj 5:cc 1:conj",
    "there V N and N": "2:expl 0:root 2:nsubj 5:cc 3:conj",
    "N and N I": "0:root 3:cc 1:conj 1:nmod",
    "N S P P": "2:nsubj 0:root 2:obl 2:obl",
    "N P V P": "4:nsubj 1:nmod 4:cop 0:root",
    "P V N P": "0:root 1:cop 1:nsubj 3:nmod",
}
DETERMINERS = frozenset(("a", "an", "the", "this", "each", "both", "some"))
NUMERALS = frozenset(("one", "two", "three"))
PREPOSITIONS = frozenset(("of", "with", "from", "to", "on"))
PARTS_OF_SPEECH = {
    **dict.fromkeys(("there", "we", "you", "that"), "PRON"),
    **dict.fromkeys(("see", "shows", "seen"), "VERB"),
    **dict.fromkeys(("can", "be", "is", "are"), "AUX"),
    **dict.fromkeys((",", "."), "PUNCT"),
    "and": "CCONJ",
    "while": "SCONJ",
    "with": "ADP",
}
# What a word is in a clause; other words stand for themselves.
KINDS = {"is": "V", "are": "V", **dict.fromkeys((form for forms in VERBS for form in forms), "S")}
PLACES = frozenset(("on", "in", *chain.from_iterable(RELATION_WORDS.values())))


@dataclass
class Node:
    """A word of a tree: form, part of speech, index of its head (the root is its own head), relation to the head."""

    form: str
    upos: str
    head: int = 0
    relation: str = "root"


@dataclass(frozen=True)
class Item:
    """A piece of a caption with a known tree: its kind in `CLAUSES`, the index of its root, whether it is scenery."""

    kind: str
    top: int
    scenery: bool = False


def parse(caption: Caption) -> list[Node]:
    """Parses a caption."""
    nodes: list[Node] = []
    items: list[Item] = []
    tokens = iter(caption.tokens)
    for token in tokens:
        if isinstance(token, int):
            items.append(Item("N", _add_nominal(nodes, caption.mentions[token].text)))
        elif token in PLACES:
            items.append(_add_place(nodes, token, caption, next(tokens)))
        else:
            items.append(Item(KINDS.get(token, token), len(nodes)))
            nodes.append(Node(token, PARTS_OF_SPEECH.get(token, "VERB")))
    # Scenery is outside of the clause: before it, with a comma, or after it.
    before = 2 if items[0].scenery else 0
    after = len(items)
    while items[after - 1].scenery:
        after -= 1
    clause = " ".join(item.kind for item in items[before:after])
    if clause not in CLAUSES:
        raise ValueError(f"{caption.text!r}: {clause!r} is not a clause of the captions' grammar; add it to CLAUSES")
    edges = [edge.split(":", 1) for edge in CLAUSES[clause].split()]
    root = before + [head for head, _ in edges].index("0")
    outside = (root, "nmod" if items[root].kind == "N" else "obl")
    links = [outside, (root, "punct")][:before]
    links += [(before + int(head) - 1, relation) for head, relation in edges]
    links += [outside] * (len(items) - after)
    links[root] = (root, "root")
    for item, (above, relation) in zip(items, links, strict=True):
        node = nodes[item.top]
        if node.upos == "ADJ":
            relation = {"obl": "advmod", "nmod": "amod"}.get(relation, relation)
        if item.kind == "V" and relation == "root":  # "there is"
            node.upos = "VERB"
        node.head = items[above].top
        node.relation = relation
    return [*nodes, Node(".", "PUNCT", items[root].top, "punct")]


def conllu(record: SceneRecord) -> str:
    """Returns the sentences of an image: all its captions, in order, each with a blank line after it."""
    image_id = record.image_id
    lines = []
    for number, caption in enumerate(record.captions):
        text, _ = caption.written()
        lines.append(f"# sent_id = {image_id}-{number}\n# image_id = {image_id}\n")
        lines.append(f"# caption_id = {image_id}#{number}\n# text = {text}\n")
        for index, (node, form) in enumerate(zip(parse(caption), text.split(), strict=True)):
            head = 0 if node.head == index else node.head + 1
            lines.append(f"{index + 1}\t{form}\t_\t{node.upos}\t_\t_\t{head}\t{node.relation}\t_\t_\n")
        lines.append("\n")
    return "".join(lines)


def _add_nominal(nodes: list[Node], text: str) -> int:
    """Adds the tree of a phrase, nouns with determiners, numerals and adjectives, joined by prepositions; its root."""
    words = text.split()
    start = len(nodes)
    stops = [index for index, word in enumerate(words) if word in PREPOSITIONS] + [len(words)]
    root = above = start + stops[0] - 1
    for stop in stops:
        head = start + stop - 1
        nodes += [_modifier(word, head) for word in words[len(nodes) - start : stop - 1]]
        nodes.append(Node(words[stop - 1], "NOUN", above, "root" if head == root else "nmod"))
        above = head
    return root


def _modifier(word: str, head: int) -> Node:
    if word in PREPOSITIONS:
        return Node(word, "ADP", head, "case")
    if word in DETERMINERS:
        return Node(word, "DET", head, "det")
    if word in NUMERALS:
        return Node(word, "NUM", head, "nummod")
    return Node(word, "ADJ", head, "amod")


def _add_place(nodes: list[Node], place: str, caption: Caption, token: str | int) -> Item:
    """Adds a place: its object with a preposition, or "left", "side", "next", ... with the object below it."""
    *first, last = place.split()
    head = len(nodes) + len(first) - 1
    nodes += [_modifier(word, head) for word in first[:-1]]
    if first:
        nodes.append(Node(first[-1], "NOUN" if len(first) > 1 else "ADJ"))
    case = Node(last, "ADP", 0, "case")
    nodes.append(case)
    kind = "P"
    scenery = False
    if isinstance(token, int):
        mention = caption.mentions[token]
        kind = "P" if mention.entity or place != "in" else "I"
        scenery = mention.entity is not None and mention.entity.kind != "object"
        case.head = _add_nominal(nodes, mention.text)
    else:
        case.head = len(nodes)
        nodes.append(Node(token, "PRON"))
    if not first:
        return Item(kind, case.head, scenery)
    nodes[case.head].head = head
    nodes[case.head].relation = "obl"
    if len(first) > 1:
        nodes[case.head].relation = "nmod"
    return Item(kind, head)
