# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""Questions about a scene in the manner of GQA: one right answer each, types, and what an answer entails.

The description of the scene alone decides an answer. A look between two names leaves some questions undecided (is an
orange-red ball red?); those are not used. Questions that are entailed are mostly answered with yes, so only the
questions that do not come from others are balanced.
"""

import random
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial

from .annotators import RELATION_WORDS
from .captions import Content, names_held_out
from .language import exists, with_article
from .questions import NAMES, PER_SCENE, WORDS, drafts, draw_look, only_related, single_object, two_objects
from .world import GROUNDS, SHAPES, Combinations, Scene, relation_holds

YES_NO = ("yes", "no")
QUERY = "query"
VERIFY = "verify"
CHOOSE = "choose"
LOGICAL = "logical"
COMPARE = "compare"
INVERSE = {"left_of": "right_of", "right_of": "left_of", "above": "below", "below": "above", "next_to": "next_to"}


@dataclass(frozen=True)
class Question:
    """A question and its answer."""

    text: str
    answer: str
    types: tuple[str, str, str]
    valid: tuple[str, ...] = YES_NO
    plausible: tuple[str, ...] = YES_NO
    group: str | None = None
    entailed: tuple["Question", ...] = ()
    equivalent: tuple["Question", ...] = ()
    content: Content = field(default_factory=Content)
    meant: tuple[tuple[str, int], ...] = ()  # words of the text, and the number of the object that they mean

    @property
    def verdict(self) -> str | None:
        """The answer to a yes/no question."""
        if self.answer in YES_NO:
            return self.answer
        return None


def compose(
    scene: Scene, rng: random.Random, combinations: Combinations = Combinations.ALL
) -> tuple[list[Question], list[Question]]:
    """Makes different questions about a scene."""
    drawn: list[Question] = []
    for question in drafts(KINDS, scene, rng, combinations):
        # A question may not entail one that names what `SEEN` leaves out.
        if combinations is Combinations.SEEN and any(names_held_out(other.content) for other in question.entailed):
            continue
        drawn.append(question)
        if len(drawn) == PER_SCENE:
            break
    texts = [question.text for question in drawn]
    entailed = {}
    for question in drawn:
        for other in question.entailed:
            if other.text not in texts:
                entailed[other.text] = other
    return drawn, list(entailed.values())


def _yes_no(answer: bool) -> str:
    if answer:
        return "yes"
    return "no"


def _existence(phrase: str, answer: bool, entailed: tuple[Question, ...] = ()) -> Question:
    """Returns the question whether there is an object."""
    return Question(
        f"Is there {with_article(phrase)}?",
        _yes_no(answer),
        (VERIFY, "obj", "exist"),
        entailed=entailed if answer else (),
        content=Content((phrase,)),
    )


def _verification(phrase: str, attribute: str, value: str, true: str) -> Question:
    """Returns the question whether the only object that a phrase fits has a value of an attribute."""
    name = with_article(value) if attribute == "shapes" else value
    answer = value == true
    entailed: tuple[Question, ...] = ()
    if answer and attribute in ("colours", "sizes"):
        entailed = (_existence(f"{value} {phrase.removeprefix('the ')}", True),)
    content = Content((f"{phrase} {value}", f"{phrase} {true}"))
    types = (VERIFY, "attr", "verifyAttr")
    return Question(f"Is {phrase} {name}?", _yes_no(answer), types, entailed=entailed, content=content)


def _decided(scene: Scene, rng: random.Random) -> tuple[str, str, str, int] | None:
    """Returns an attribute, a phrase that fits one object only and does not contain it, its only name there, and the
    number of the object."""
    attribute = rng.choice(ATTRIBUTES)
    single = single_object(scene, rng, attribute)
    if single is None:
        return None
    number, phrase = single
    names = getattr(scene.objects[number], attribute)
    if len(names) > 1:
        return None
    return attribute, phrase, names[0], number


def _names_there(scene: Scene, attribute: str) -> tuple[str, ...]:
    """Returns the names of an attribute that fit any object of the scene."""
    there = set()
    for item in scene.objects:
        there.update(getattr(item, attribute))
    return tuple(name for name in NAMES[attribute] if name in there)


def _verify_attribute(scene: Scene, rng: random.Random) -> Question | None:
    """Asks whether an object has a value of an attribute; in half of the questions it has."""
    decided = _decided(scene, rng)
    if decided is None:
        return None
    attribute, phrase, true, number = decided
    wrong = [name for name in NAMES[attribute] if name != true]
    value = rng.choice((true, rng.choice(wrong)))
    asked = _verification(phrase, attribute, value, true)
    return replace(asked, meant=((phrase, number),))


def _ask_attribute(chooses: bool, scene: Scene, rng: random.Random) -> Question | None:
    """Asks for an attribute of an object, or which of two values it has; the answer entails the questions that verify
    it.
    """
    decided = _decided(scene, rng)
    if decided is None:
        return None
    attribute, phrase, true, number = decided
    word = WORDS[attribute]
    names = NAMES[attribute]
    verified = _verification(phrase, attribute, true, true)
    question = Question(
        f"What {word} is {phrase}?",
        true,
        (QUERY, "attr", "directOf"),
        names,
        _names_there(scene, attribute),
        word,
        (verified, *verified.entailed),
        content=verified.content,
        meant=((phrase, number),),
    )
    if not chooses:
        return question
    wrong = rng.choice([name for name in names if name != true])
    options = [true, wrong]
    rng.shuffle(options)
    return replace(
        question,
        text=f"What {word} is {phrase}, {', '.join(options)}?",
        types=(CHOOSE, "attr", "chooseAttr"),
        valid=tuple(options),
        plausible=tuple(options),
        content=Content(tuple(f"{phrase} {option}" for option in options)),
    )


def _compare_colours(scene: Scene, rng: random.Random) -> Question | None:
    """Asks whether two objects have the same color."""
    pair = two_objects(scene, rng)
    if pair is None:
        return None
    (first, phrase), (second, other) = pair
    colours = scene.objects[first].colours
    other_colours = scene.objects[second].colours
    if len(colours) > 1 or len(other_colours) > 1:
        return None
    [colour] = colours
    answer = colours == other_colours
    described = f"{other} {colour}" if answer else other
    return Question(
        f"Are {phrase} and {other} of one color?",
        _yes_no(answer),
        (COMPARE, "attr", "twoSame"),
        content=Content((f"{phrase} {colour}", described)),
        meant=((phrase, first), (other, second)),
    )


def _verify_existence(scene: Scene, rng: random.Random) -> Question | None:
    """Asks whether there is an object of some color and shape; one entails an object of the shape."""
    look = draw_look(scene, rng)
    answer = exists(look, scene)
    if answer is None:
        return None
    return _existence(look, answer, (_existence(look.split()[1], True),))


def _both_exist(scene: Scene, rng: random.Random) -> Question | None:
    """Asks whether there are two objects, each of some color and shape; two entail each of them."""
    first = draw_look(scene, rng)
    second = draw_look(scene, rng)
    answers = (exists(first, scene), exists(second, scene))
    if None in answers or first == second:
        return None
    entailed: tuple[Question, ...] = ()
    if all(answers):
        entailed = (_existence(first, True), _existence(second, True))
    return Question(
        f"Are there {with_article(first)} and {with_article(second)}?",
        _yes_no(all(answers)),
        (LOGICAL, "obj", "existAnd"),
        entailed=entailed,
        content=Content((first, second)),
    )


def _verify_relation(scene: Scene, rng: random.Random) -> Question | None:
    """Asks whether a relation holds between two objects; the answer is that to the question the other way round."""
    pair = two_objects(scene, rng)
    if pair is None:
        return None
    (first, phrase), (second, other) = pair
    answer = rng.random() < 0.5
    fitting = [name for name in RELATION_WORDS if relation_holds(scene, name, first, second) == answer]
    if not fitting:
        return None
    relation = rng.choice(fitting)
    inverse = _relation(other, INVERSE[relation], phrase, answer, rng)
    asked = _relation(phrase, relation, other, answer, rng, (inverse,))
    return replace(asked, meant=((phrase, first), (other, second)))


def _relation(
    subject: str, relation: str, target: str, answer: bool, rng: random.Random, equivalent: tuple[Question, ...] = ()
) -> Question:
    """Returns the question whether a relation holds between the only objects that two phrases fit."""
    words = rng.choice(RELATION_WORDS[relation])
    return Question(
        f"Is {subject} {words} {target}?",
        _yes_no(answer),
        (VERIFY, "rel", "relVerify"),
        entailed=equivalent,
        equivalent=equivalent,
        content=Content((subject, target), ((relation, target),)),
    )


def _query_related(scene: Scene, rng: random.Random) -> Question | None:
    """Asks for the shape of the only object with some relation to another."""
    related = only_related(scene, rng)
    if related is None:
        return None
    (number, phrase), relation, other = related
    shape, *others = scene.objects[other].shapes
    if others:
        return None
    words = rng.choice(RELATION_WORDS[relation])
    return Question(
        f"What is {words} {phrase}?",
        shape,
        (QUERY, "rel", "relO"),
        SHAPES,
        _names_there(scene, "shapes"),
        "object",
        (_existence(shape, True),),
        content=Content((phrase,), ((relation, phrase),)),
        meant=((phrase, number),),
    )


def _ground(scene: Scene, rng: random.Random) -> Question:
    text = "What kind of ground is this?"
    return Question(text, scene.ground, (QUERY, "global", "place"), GROUNDS, GROUNDS, "ground")


ATTRIBUTES = ("colours", "colours", "colours", "shapes", "shapes", "sizes", "textures")
# The kinds by weight; some fail if no phrase fits only one object, or the scene does not decide the answer.
KINDS: tuple[Callable[[Scene, random.Random], Question | None], ...] = (
    *[partial(_ask_attribute, False)] * 5,
    *[_verify_attribute] * 2,
    *[partial(_ask_attribute, True)] * 2,
    *[_verify_existence] * 2,
    *[_verify_relation] * 3,
    *[_query_related] * 2,
    _both_exist,
    _compare_colours,
    _ground,
)
