# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""Questions about a scene, each with the answers of ten simulated humans who do not always agree.

They disagree if a look is between two names, sometimes use another word for the same answer ("grey", "two"), and make
errors; careless ones make more. A question is about one object only if its phrase fits no other object.
"""

import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import islice
from typing import Any

from .annotators import RELATION_WORDS
from .captions import Content, draw_allowed, draw_habit, is_held_out_look, object_phrase
from .language import PLURALS, exists, fits, meaning_of, referents, with_article
from .world import COLOURS, GROUNDS, SHAPES, SIZES, TEXTURES, Combinations, Scene, relation_holds

HUMANS = 10
PER_SCENE = 4
ATTEMPTS = 40
ERROR_RATES = (0.02, 0.02, 0.02, 0.06, 0.2)  # of one human; each human draws one
OTHER_WORDS_RATE = 0.1
OTHER_WORDS = {
    "gray": "grey",
    "ball": "sphere",
    "cube": "box",
    "cylinder": "tube",
    "cross": "plus",
    "ring": "hoop",
    "small": "little",
    "large": "big",
    "dotted": "spots",
    "striped": "stripes",
    "wood": "wooden",
    "1": "one",
    "2": "two",
    "3": "three",
}
NAMES = {"shapes": SHAPES, "colours": COLOURS, "sizes": SIZES, "textures": TEXTURES}
# Attribute -> what a question calls it.
WORDS = {"colours": "color", "shapes": "shape", "sizes": "size", "textures": "pattern"}
YES_NO = "yes/no"
NUMBER = "number"
OTHER = "other"
Phrases = tuple[tuple[str, tuple[int, ...]], ...]


@dataclass(frozen=True)
class Question:
    """A question, its type by its first words, the type of its answers, its true answers (several names if a look has
    two), the answers that a human may give, and the `answers` of ten humans.

    `content` is what the question says with its true answers, and `asked` the words about a thing that answers add to.
    `phrases` are words of the question and the objects they mean; `evidence` are the objects that decide the answer.
    """

    text: str
    question_type: str
    answer_type: str
    true: tuple[str, ...]
    possible: tuple[str, ...]
    content: Content = field(default_factory=Content)
    asked: str | None = None
    phrases: Phrases = ()
    evidence: tuple[int, ...] = ()
    answers: tuple[str, ...] = ()

    @property
    def verdict(self) -> str | None:
        """The answer to a yes/no question."""
        if self.answer_type == YES_NO:
            return self.true[0]
        return None

    def wrong(self, combinations: Combinations) -> list[str]:
        """Returns the wrong answers that a human may give without naming what `combinations` leaves out."""
        wrong = [answer for answer in self.possible if answer not in self.true]
        if combinations is not Combinations.SEEN or self.asked is None:
            return wrong
        return [answer for answer in wrong if not is_held_out_look(f"{self.asked} {answer}")]


def ask(scene: Scene, rng: random.Random, combinations: Combinations = Combinations.ALL) -> list[Question]:
    """Makes different questions about a scene."""
    asked = []
    for draft in islice(drafts(KINDS, scene, rng, combinations), PER_SCENE):
        wrong = draft.wrong(combinations)
        answers = []
        for _ in range(HUMANS):
            # A look between two names gets one of the two.
            is_wrong = wrong and rng.random() < rng.choice(ERROR_RATES)
            answer = rng.choice(wrong if is_wrong else draft.true)
            if rng.random() < OTHER_WORDS_RATE:
                answer = OTHER_WORDS.get(answer, answer)
            answers.append(answer)
        asked.append(replace(draft, answers=tuple(answers)))
    return asked


def drafts(
    kinds: Sequence[Callable[[Scene, random.Random], Any]],
    scene: Scene,
    rng: random.Random,
    combinations: Combinations,
) -> Iterator[Any]:
    """Yields different questions about a scene, of kinds that are drawn."""
    texts = set()
    for _ in range(ATTEMPTS):
        draft = draw_allowed(partial(rng.choice(kinds), scene, rng), combinations)
        if draft is not None and draft.text not in texts:
            texts.add(draft.text)
            yield draft


def single_object(scene: Scene, rng: random.Random, hidden_attribute: str) -> tuple[int, str] | None:
    """Draws an object that a phrase can single out."""
    number = rng.randrange(len(scene.objects))
    habit = {**draw_habit(rng), hidden_attribute: False}
    for attempt in range(6):
        phrase = object_phrase([scene.objects[number]], habit, 0.15 * attempt, rng)
        is_hidden = getattr(meaning_of(phrase), hidden_attribute) == set(NAMES[hidden_attribute])
        if is_hidden and referents(scene, meaning_of(phrase)) == [frozenset((number,))]:
            return number, f"the {phrase.partition(' ')[2]}"
    return None


def _attribute(attribute: str, scene: Scene, rng: random.Random) -> Question | None:
    """Asks for an attribute of an object."""
    single = single_object(scene, rng, attribute)
    if single is None:
        return None
    number, phrase = single
    true = getattr(scene.objects[number], attribute)
    asked = f"what {WORDS[attribute]}"
    content = Content((phrase, *(f"{phrase} {name}" for name in true)))
    meant = ((phrase, (number,)),)
    text = f"{asked.capitalize()} is {phrase}?"
    return Question(text, asked, OTHER, true, NAMES[attribute], content, phrase, meant, (number,))


def _count(scene: Scene, rng: random.Random) -> Question:
    """Asks how many objects share a shape or a colour; borderline ones count for some people."""
    attribute = "shapes" if rng.random() < 0.5 else "colours"
    if rng.random() < 0.8:
        name = getattr(rng.choice(scene.objects), attribute)[0]
    else:
        name = rng.choice(NAMES[attribute])
    words = PLURALS[name] if attribute == "shapes" else f"{name} objects"
    looks = [getattr(item, attribute) for item in scene.objects]
    counted = tuple(number for number, look in enumerate(looks) if name in look)
    most = len(counted)
    certain = looks.count((name,))
    true = (str(most),) if certain == most else (str(most), str(certain))
    near = tuple(map(str, range(max(0, most - 1), most + 2)))
    text = f"How many {words} are there?"
    return Question(text, "how many", NUMBER, true, near, phrases=((words, counted),), evidence=counted)


def draw_look(scene: Scene, rng: random.Random) -> str:
    """Draws a colour and a shape; in about half of the cases, an object has both."""
    item = rng.choice(scene.objects)
    colour = rng.choice(item.colours)
    shape = rng.choice(item.shapes)
    if rng.random() < 0.5:
        if rng.random() < 0.5:
            colour = rng.choice(COLOURS)
        else:
            shape = rng.choice(SHAPES)
    return f"{colour} {shape}"


def _existence(scene: Scene, rng: random.Random) -> Question | None:
    """Asks whether there is an object of some colour and shape."""
    look = draw_look(scene, rng)
    true = "no" if exists(look, scene) is False else "yes"
    fitting = tuple(number for number, item in enumerate(scene.objects) if fits(item, meaning_of(look)))
    phrase = with_article(look)
    content = Content((look,))
    meant = ((phrase, fitting),)
    text = f"Is there {phrase}?"
    return Question(text, "is there", YES_NO, (true,), ("yes", "no"), content, phrases=meant, evidence=fitting)


def _verify_relation(scene: Scene, rng: random.Random) -> Question | None:
    """Asks whether a relation holds between two objects."""
    found = related_pair(scene, rng)
    if found is None:
        return None
    (first, phrase), (second, other), relation, true = found
    text = f"Is {phrase} {rng.choice(RELATION_WORDS[relation])} {other}?"
    content = Content((phrase, other), ((relation, other),))
    meant = ((phrase, (first,)), (other, (second,)))
    decide = (first, second)
    return Question(text, "is the", YES_NO, (true,), ("yes", "no"), content, phrases=meant, evidence=decide)


def _find_related(scene: Scene, rng: random.Random) -> Question | None:
    """Asks for the shape of the only object with some relation to another."""
    related = only_related(scene, rng)
    if related is None:
        return None
    (number, phrase), relation, other = related
    text = f"What is {rng.choice(RELATION_WORDS[relation])} {phrase}?"
    content = Content((phrase,), ((relation, phrase),))
    meant = ((phrase, (number,)),)
    true = scene.objects[other].shapes
    return Question(text, "what is", OTHER, true, SHAPES, content, phrases=meant, evidence=(other,))


def _ground(scene: Scene, rng: random.Random) -> Question:
    return Question("What kind of ground is this?", "what kind of", OTHER, (scene.ground,), GROUNDS)


def only_related(scene: Scene, rng: random.Random) -> tuple[tuple[int, str], str, int] | None:
    """Draws an object with its phrase, and a relation that only one other has to it, and returns this one too."""
    single = single_object(scene, rng, rng.choice(("sizes", "textures")))
    if single is None:
        return None
    number, _ = single
    relation = rng.choice(tuple(RELATION_WORDS))
    others = []
    for k in range(len(scene.objects)):
        if k != number and relation_holds(scene, relation, k, number):
            others.append(k)
    if len(others) == 1:
        return (single, relation, others[0])
    return None


def two_objects(scene: Scene, rng: random.Random) -> tuple[tuple[int, str], tuple[int, str]] | None:
    """Draws two different objects as `single_object` does; None if that fails."""
    first, second = (single_object(scene, rng, rng.choice(("sizes", "textures"))) for _ in range(2))
    if first is None or second is None or first[0] == second[0]:
        return None
    return (first, second)


def related_pair(scene: Scene, rng: random.Random) -> tuple[tuple[int, str], tuple[int, str], str, str] | None:
    """Draws two objects as `two_objects` does, yes or no, and a relation that holds between them, or does not."""
    pair = two_objects(scene, rng)
    if pair is None:
        return None
    true = rng.choice(("yes", "no"))
    (first, _), (second, _) = pair
    fitting = []
    for name in RELATION_WORDS:
        if relation_holds(scene, name, first, second) == (true == "yes"):
            fitting.append(name)
    if fitting:
        return (*pair, rng.choice(fitting), true)
    return None


# The kinds by weight; some fail if no phrase fits only one object.
KINDS: tuple[Callable[[Scene, random.Random], Question | None], ...] = (
    *[partial(_attribute, "colours")] * 3,
    *[partial(_attribute, "shapes")] * 2,
    partial(_attribute, "sizes"),
    partial(_attribute, "textures"),
    *[_count] * 2,
    *[_existence] * 2,
    *[_verify_relation] * 3,
    *[_find_related] * 2,
    _ground,
)
