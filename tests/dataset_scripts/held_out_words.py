# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""A reader of the scenes' texts with a lexicon of its own: the combinations that a written text names.

It knows nothing of how texts are made. A run of words about one thing ("the large azure star", also "the large star"
with the answer "blue") names every pair of a colour and a shape in it; the run after a relation is its landmark.
"""

import re
from itertools import product

COLOURS = {
    "red": "red crimson",
    "orange": "orange amber",
    "yellow": "yellow golden",
    "green": "green emerald",
    "blue": "blue azure",
    "purple": "purple violet",
    "pink": "pink rosy",
    "gray": "gray grey",
}
SHAPES = {
    "ball": "ball balls sphere spheres circle circles",
    "cube": "cube cubes box boxes block blocks square squares",
    "cone": "cone cones funnel funnels triangle triangles",
    "cylinder": "cylinder cylinders tube tubes can cans rectangle rectangles",
    "star": "star stars",
    "cross": "cross crosses plus pluses",
    "ring": "ring rings hoop hoops",
    "heart": "heart hearts",
}
RELATIONS = {
    "left_of": "to the left of, on the left side of, left of",
    "right_of": "to the right of, on the right side of, right of",
    "above": "above, over, higher than",
    "below": "below, underneath, under",
    "next_to": "next to, beside, near, close to",
}
# Adjectives that leave one shape of a family.
SHAPE_OF_PAIR = {
    ("round", "solid"): "ball",
    ("round", "figure"): "ring",
    ("pointed", "solid"): "cone",
    ("pointed", "figure"): "star",
}
OTHER = """a an the one two three both several some pair couple group of with small little tiny medium large big huge
plain smooth striped stripes dotted dots spotted spots patterned reddish bluish colorful round pointed solid solids
figure figures object objects thing things item items shape shapes"""
NOUNS = "solid solids figure figures object objects thing things item items shape shapes"

COLOUR_OF = {word: colour for colour, words in COLOURS.items() for word in words.split()}
SHAPE_OF = {word: shape for shape, words in SHAPES.items() for word in words.split()}
ABOUT_THINGS = {*COLOUR_OF, *SHAPE_OF, *OTHER.split()}
HEADS = {*SHAPE_OF, *NOUNS.split()}
RELATION_OF = {words: relation for relation, listed in RELATIONS.items() for words in listed.split(", ")}


def named(text):
    """The pairs (colour, shape) and (relation, shape of the landmark) that a sentence names."""
    return _named(_pieces(text))


def named_with_answer(question, answer):
    """The same for a question whose answer says more of the thing that it asks about."""
    asks = re.match(r"what (color|shape|size|pattern) is ", question.lower())
    if not asks:
        return _named(_pieces(question))
    # "What color is the ball?" or "What color is the ball, red, blue?"
    thing, *options = (piece for piece in _pieces(question[asks.end() :]) if isinstance(piece, list))
    return _named([[*thing, *option] for option in (*options, answer.lower().split())])


def _words(text):
    text = re.sub(r"([,.?])", r" \1 ", text.lower())
    text = text.replace("each other", "eachother").replace("can be seen", "is seen").replace("you can see", "you see")
    for words in sorted(RELATION_OF, key=len, reverse=True):
        text = re.sub(rf"\b{words}\b", RELATION_OF[words], text)
    return text.split()


def _pieces(text):
    """Runs of words about one thing, as lists, and the other words; pronouns are replaced by their things."""
    pieces = []
    for word in _words(text):
        if word not in ABOUT_THINGS:
            pieces.append(word)
        elif pieces and isinstance(pieces[-1], list):
            pieces[-1].append(word)
        else:
            pieces.append([word])
    return _resolved(pieces)


def _resolved(pieces):
    found = []
    things = []
    for piece in pieces:
        if isinstance(piece, list) and HEADS & set(piece):
            things.append(piece)
        if piece in ("it", "them"):  # "A ... while C sits near it", "A sits near B , with C above it"
            piece = things[0] if "while" in pieces else things[1]
        if piece == "eachother":  # "two balls near each other"
            piece = things[-1]
        found.append(piece)
    return found


def _shapes(piece):
    singular = {word.rstrip("s") for word in piece}
    shapes = {SHAPE_OF[word] for word in piece if word in SHAPE_OF}
    return shapes | {shape for words, shape in SHAPE_OF_PAIR.items() if set(words) <= singular}


def _named(pieces):
    pairs = set()
    before = None
    for piece in pieces:
        if isinstance(piece, list):
            colours = {COLOUR_OF[word] for word in piece if word in COLOUR_OF}
            pairs.update(product(colours, _shapes(piece)))
            if isinstance(before, str) and before in RELATIONS:
                pairs.update((before, shape) for shape in _shapes(piece))
        before = piece
    return pairs
