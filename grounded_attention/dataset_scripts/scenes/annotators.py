# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""Five simulated annotators who write captions of a scene."""

import random
from collections.abc import Mapping
from dataclasses import dataclass, field

from .captions import (
    Caption,
    Entity,
    Fact,
    Habit,
    Mention,
    allows,
    draw_habit,
    fact_holds,
    needs_context,
    object_phrase,
    readings,
)
from .language import chance
from .world import COLOURS, RELATIONS, SHAPES, Combinations, Scene

CAPTIONS_PER_SCENE = 5
# A caption that is true of a larger share of random scenes (by `caption_chance`) is rejected.
MAX_CHANCE = 0.004
# Probability that a relation holds between two things of another scene.
RELATION_CHANCE = 0.3
# Share of captions in which, if possible, each phrase has one referent even when read alone. In the others many
# phrases need the rest of their sentence.
SELF_CONTAINED_RATE = 0.65
GROUP_RATE = 0.75
ATTEMPTS = 60

RELATION_WORDS = {
    "left_of": ("to the left of", "left of", "on the left side of"),
    "right_of": ("to the right of", "right of", "on the right side of"),
    "above": ("above", "over", "higher than"),
    "below": ("below", "under", "underneath"),
    "next_to": ("next to", "beside", "near", "close to"),
}
# A, B, C are mentions; R:AB are words for a relation of A to B, V:A is "is" or "are", S:A "sits" or "sit", I:B "it" or
# "them". N is "each other" (a fact about A), P a word for the picture.
TEMPLATES: tuple[str, ...] = (
    "A V:A R:AB B",
    "there V:A A R:AB B",
    "R:AB B V:A A",
    "R:AB B there V:A A",
    "A S:A R:AB B",
    "we see A R:AB B",
    "you can see A that V:A R:AB B",
    "P shows A R:AB B",
    "A R:AB B can be seen in P",
    "A V:A R:AB B and R:AC C",
    "A S:A R:AB B , with C R:CB I:B",
    "A V:A R:AB B while C S:C R:CA I:A",
    "A R:AB B and C",
    "there V:A A R:AB B , and C",
    "C and A R:AB B",
    "A , B and C",
    "there V:A A and B",
    "A and B in P",
)
PAIR_TEMPLATES = ("A S:A next_to N R:AB B", "A close_to N V:A R:AB B", "R:AB B V:A A near N")
VERBS = (("sits", "sit"), ("lies", "lie"), ("rests", "rest"), ("stands", "stand"))
NOT_VISUAL = {"N": ("each other",), "P": ("the picture", "this image", "a photo")}
GROUND_PHRASES = {
    "wood": ("the table", "a wooden table", "the wooden surface", "a wooden floor", "the floor"),
    "stone": ("the pavement", "a stony floor", "the stony ground", "a stony surface", "the floor"),
    "grass": ("the grass", "the lawn", "a grassy field", "the grassy ground", "the field"),
    "sand": ("the sand", "a beach", "a sandy field", "the sandy ground", "the field"),
}
BROAD_GROUND_PHRASES = ("the ground", "a surface", "the background")
LIGHT_PHRASES = ("the light", "the sunlight", "the sunshine", "light from the {}", "sunlight from the {}")


def describe(scene: Scene, rng: random.Random, combinations: Combinations = Combinations.ALL) -> list[Caption] | None:
    """Writes five captions of a scene, by annotators who look at the same few entities."""
    # Three entities: single objects, and sometimes a group of two or three with a common look.
    singles = [Entity("object", frozenset((number,))) for number in range(len(scene.objects))]
    chosen = rng.sample(singles, min(3, len(singles)))
    groups = _groups(scene)
    if groups and rng.random() < GROUP_RATE:
        chosen[0] = rng.choice(groups)
    habits = {entity: draw_habit(rng) for entity in chosen}
    mentions_ground = rng.sample(range(CAPTIONS_PER_SCENE), rng.choice((0, 0, 2, 2, 3)))
    mentions_light = rng.sample(range(CAPTIONS_PER_SCENE), rng.choice((0, 0, 0, 0, 2)))
    captions: list[Caption] = []
    for annotator in range(CAPTIONS_PER_SCENE):
        caption = _write(scene, rng, habits, annotator in mentions_ground, annotator in mentions_light, combinations)
        if caption is None:
            return None
        captions.append(caption)
    return captions


def caption_chance(caption: Caption) -> float:
    """Estimates the probability that a caption is true of a random scene."""
    result = RELATION_CHANCE ** len(caption.facts)
    for mention in caption.mentions:
        result *= chance(mention.meaning) if mention.entity else 1.0
    return result


def _groups(scene: Scene) -> list[Entity]:
    """Returns groups of two or three objects, not all, with a shape or a colour or both that no other object has."""
    groups = set()
    for shape in (None, *SHAPES):
        for colour in (None, *COLOURS):
            members = set()
            for number, item in enumerate(scene.objects):
                if shape in (None, *item.shapes) and colour in (None, *item.colours):
                    members.add(number)
            if len(members) in (2, 3) and len(members) < len(scene.objects):
                groups.add(frozenset(members))
    return [Entity("object", members) for members in sorted(groups, key=sorted)]


def _write(
    scene: Scene,
    rng: random.Random,
    habits: Mapping[Entity, Habit],
    mentions_ground: bool,
    mentions_light: bool,
    combinations: Combinations,
) -> Caption | None:
    """Returns the first acceptable draft; later drafts have more detail."""
    self_contained = rng.random() < SELF_CONTAINED_RATE
    for attempt in range(ATTEMPTS):
        draft = _CaptionDraft(scene, rng, habits, detail=attempt / ATTEMPTS)
        if not draft.write():
            continue
        draft.add_scenery(mentions_ground, mentions_light)
        caption = Caption(tuple(draft.tokens), tuple(draft.mentions), tuple(draft.facts))
        if not allows(combinations, caption.content):
            continue
        self_contained &= attempt < ATTEMPTS // 2
        if self_contained and any(needs_context(scene, mention) for mention in caption.mentions):
            continue
        intended = tuple(mention.members for mention in caption.mentions)
        if caption_chance(caption) <= MAX_CHANCE and readings(scene, caption) == [intended]:
            return caption
    return None


@dataclass
class _CaptionDraft:
    """A caption in the making. `detail` from 0 to 1 adds attributes to its phrases."""

    scene: Scene
    rng: random.Random
    habits: Mapping[Entity, Habit]
    detail: float
    tokens: list[str | int] = field(default_factory=list)
    mentions: list[Mention] = field(default_factory=list)
    facts: list[Fact] = field(default_factory=list)
    letters: dict[str, Entity] = field(default_factory=dict)
    numbers: dict[str, int] = field(default_factory=dict)

    def write(self) -> bool:
        """Fills a random template; returns False if the entities do not fit it or have no relation."""
        entities = self.rng.sample(list(self.habits), len(self.habits))
        members = [number for entity in entities for number in entity.members]
        if len(set(members)) < len(members):
            entities = entities[:2]  # a group and one of its members
        if not entities[0].members.isdisjoint(entities[1].members):
            return False
        pair = entities[0].members
        close = len(pair) == 2 and fact_holds(self.scene, "next_to", pair, pair)
        templates = TEMPLATES
        if close and self.rng.random() < 0.6:
            templates = PAIR_TEMPLATES
        template = self.rng.choice(templates).split()
        if "C" in template and len(entities) < 3:
            return False
        self.letters = dict(zip("ABC", entities, strict=False))
        if not all(self._add(symbol) for symbol in template):
            return False
        if "N" in template:
            self.facts.append(Fact("next_to", self.numbers["A"], self.numbers["A"]))
        return True

    def add_scenery(self, mentions_ground: bool, mentions_light: bool) -> None:
        """Adds the scenery."""
        if mentions_ground:
            broad = self.rng.random() < 0.25
            phrases = BROAD_GROUND_PHRASES if broad else GROUND_PHRASES[self.scene.ground]
            ground = self._mention(self.rng.choice(phrases), Entity("ground"))
            if self.rng.random() < 0.4:
                self.tokens[:0] = ["on", ground, ","]
            else:
                self.tokens += ["on", ground]
        if mentions_light:
            text = self.rng.choice(LIGHT_PHRASES).format(self.scene.light)
            self.tokens += ["in", self._mention(text, Entity("light"))]

    def _add(self, symbol: str) -> bool:
        kind, _, letters = symbol.partition(":")
        if symbol in self.letters:
            self.tokens.append(self._number(symbol))
        elif symbol in NOT_VISUAL:
            self.tokens.append(self._mention(self.rng.choice(NOT_VISUAL[symbol]), None))
        elif kind == "R":
            return self._add_relation(*letters)
        elif letters:
            forms = {"V": ("is", "are"), "I": ("it", "them")}.get(kind) or self.rng.choice(VERBS)
            self.tokens.append(forms[len(self.letters[letters].members) > 1])
        else:
            self.tokens.append(symbol.replace("_", " "))
        return True

    def _add_relation(self, subject: str, target: str) -> bool:
        sides = self.letters[subject].members, self.letters[target].members
        fitting = [relation for relation in RELATIONS if fact_holds(self.scene, relation, *sides)]
        if not fitting:
            return False
        relation = self.rng.choice(fitting)
        self.tokens.append(self.rng.choice(RELATION_WORDS[relation]))
        self.facts.append(Fact(relation, self._number(subject), self._number(target)))
        return True

    def _number(self, letter: str) -> int:
        """Returns the number of a letter's mention; its phrase is written on first use."""
        if letter not in self.numbers:
            entity = self.letters[letter]
            items = [self.scene.objects[number] for number in sorted(entity.members)]
            text = object_phrase(items, self.habits[entity], self.detail, self.rng)
            self.numbers[letter] = self._mention(text, entity)
        return self.numbers[letter]

    def _mention(self, text: str, entity: Entity | None) -> int:
        self.mentions.append(Mention(text, entity))
        return len(self.mentions) - 1
