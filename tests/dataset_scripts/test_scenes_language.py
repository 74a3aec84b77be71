# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""Meanings, truth and the annotators of scenes."""

import random
import re
from itertools import permutations

import pytest

from grounded_attention.dataset_scripts.scenes.annotators import describe
from grounded_attention.dataset_scripts.scenes.captions import (
    Caption,
    Entity,
    Fact,
    Mention,
    caption_holds,
    needs_context,
    readings,
)
from grounded_attention.dataset_scripts.scenes.language import meaning_of, relation_between
from grounded_attention.dataset_scripts.scenes.world import Scene, SceneObject, draw_scene, relation_holds
from grounded_attention.dataset_scripts.scenes.writers import WORDS


def thing(shape, colour, x, y, size="small", texture="plain", radius=10.0):
    names = [name.split("/") for name in (shape, colour, size, texture)]
    return SceneObject(*map(tuple, names), x=x, y=y, radius=radius, tilt=0.0)


def scene_of(*objects, ground="wood", light="left"):
    return Scene(200, 150, ground, light, objects, noise_seed=0)


def caption_of(*phrases, facts=()):
    mentions = tuple(Mention(phrase, Entity("object", frozenset((number,)))) for number, phrase in enumerate(phrases))
    return Caption(tuple(range(len(phrases))), mentions, tuple(Fact(*fact) for fact in facts))


@pytest.fixture(scope="module")
def described():
    """Scenes with five captions each."""
    pairs = []
    for number in range(60):
        rng = random.Random(f"test/{number}")
        scene = draw_scene(rng)
        if captions := describe(scene, rng):
            pairs.append((scene, captions))
    return pairs


PAIRS = """
equivalence: a red ball | The crimson sphere
equivalence: a striped cube | one box with stripes
equivalence: two cones | both funnels
forward: a red ball | a ball
forward: a red ball | a reddish object
equivalence: a small star | the little pointed figure
equivalence: a ring | a round figure
reverse: a ball | a small blue ball with dots
reverse: several cubes | two cubes
reverse: the solid | a cone
alternation: a red ball | an orange ball
alternation: a small red ball | a large ball
alternation: a cone | the cylinder
alternation: a plain star | a patterned star
independence: a red object | a ball
independence: a large ball | a striped ball
forward: a reddish ball | a colorful object
alternation: a reddish thing | a bluish thing
equivalence: the lawn | the grass
forward: a wooden table | the background
reverse: the floor | the pavement
reverse: the sunlight | light from the left
"""
LABELS = {"alternation": 0, "forward": 1, "reverse": 2, "equivalence": 3, "independence": 4}


@pytest.mark.parametrize("pair", PAIRS.strip().splitlines())
def test_relation_of_two_phrases(pair):
    name, first, second = re.split(r": | \| ", pair)
    label = LABELS[name]
    swapped = {1: 2, 2: 1}.get(label, label)
    assert relation_between(meaning_of(first), meaning_of(second)) == label
    assert relation_between(meaning_of(second), meaning_of(first)) == swapped


def test_a_word_outside_the_language_is_refused():
    with pytest.raises(ValueError, match="'giraffe' in 'a red giraffe'"):
        meaning_of("a red giraffe")
    with pytest.raises(ValueError, match="ground"):
        relation_between(meaning_of("the ground"), meaning_of("a ball"))


def holds(fact):
    """Whether a relation is true of two of four objects, such as "0 above 2"."""
    first, relation, second = fact.split()
    places = ((30, 40), (90, 60), (40, 120), (55, 40))
    scene = scene_of(*(thing("ball", "red", *place) for place in places))
    return relation_holds(scene, relation, int(first), int(second))


@pytest.mark.parametrize(
    "fact", ["0 left_of 1", "1 right_of 0", "0 above 2", "2 below 0", "0 next_to 3", "3 next_to 0"]
)
def test_relations_follow_the_longer_distance(fact):
    assert holds(fact)


@pytest.mark.parametrize("fact", ["0 above 1", "0 next_to 1"])
def test_relations_that_do_not_hold(fact):
    assert not holds(fact)


def test_every_attribute_and_fact_decides_whether_a_caption_holds():
    scene = scene_of(thing("ball", "red", 30, 40, "small", "striped"), thing("cube", "blue", 120, 50, "large"))
    assert caption_holds(scene, caption_of("a small striped red ball", "a big blue box", facts=[("left_of", 0, 1)]))
    assert not caption_holds(scene, caption_of("a small red ball", "a big blue box", facts=[("right_of", 0, 1)]))
    for wrong in ("small red cube", "small green ball", "large red ball", "red ball with dots"):
        assert not caption_holds(scene, caption_of(f"a {wrong}", "a big blue box")), wrong
    assert not caption_holds(scene, caption_of("two red balls", "a big blue box"))


def test_a_borderline_look_has_two_true_names():
    scene = scene_of(thing("ball", "red/orange", 30, 40))
    assert caption_holds(scene, caption_of("a red ball"))
    assert caption_holds(scene, caption_of("an orange ball"))
    assert not caption_holds(scene, caption_of("a yellow ball"))


def test_a_phrase_for_several_means_all_that_fit():
    two = scene_of(*(thing("ball", "red", x, 40) for x in (30, 90)), thing("cube", "red", 150, 100))
    three = scene_of(*(thing("ball", "red", x, 40) for x in (30, 90, 150)))
    assert readings(two, caption_of("two balls")) == [(frozenset((0, 1)),)]
    assert caption_holds(two, caption_of("some balls"))
    assert not caption_holds(two, caption_of("three balls"))
    assert caption_holds(three, caption_of("several balls"))
    assert not caption_holds(three, caption_of("two balls"))


def test_the_rest_of_the_sentence_resolves_a_phrase():
    balls = [thing("ball", "red", x, 60) for x in (30, 170)]
    scene = scene_of(*balls, thing("cube", "blue", 100, 60))
    caption = caption_of("the red ball", "the cube", facts=[("right_of", 0, 1)])
    assert needs_context(scene, caption.mentions[0])
    assert not needs_context(scene, caption.mentions[1])
    assert readings(scene, caption) == [(frozenset((1,)), frozenset((2,)))]


def fits(scene, number, mention):
    """Whether a phrase is true of an object, attribute by attribute."""
    item = scene.objects[number]
    attributes = ("shapes", "colours", "sizes", "textures")
    return all(set(getattr(item, name)) & getattr(mention.meaning, name) for name in attributes)


def ways_to_read(scene, caption, spoken):
    """All ways to give single objects to these phrases, by trying all."""
    for numbers in permutations(range(len(scene.objects)), len(spoken)):
        way = dict(zip(spoken, numbers, strict=True))
        fit = all(fits(scene, number, caption.mentions[phrase]) for phrase, number in way.items())
        facts = [relation_holds(scene, fact.relation, way[fact.subject], way[fact.target]) for fact in caption.facts]
        if fit and all(facts):
            yield [{number} for number in numbers]


def test_annotators_write_captions_with_one_reading(described):
    checked = 0
    for scene, captions in described:
        for caption in captions:
            members = {phrase: mention.members for phrase, mention in enumerate(caption.mentions) if mention.members}
            if max(map(len, members.values())) == 1:
                assert list(ways_to_read(scene, caption, members)) == [list(members.values())], caption.text
                checked += 1
    assert checked > 100


def test_annotators_agree_on_what_they_look_at_and_use_known_words(described):
    texts = set()
    for scene, captions in described:
        assert len(captions) == 5
        for caption in captions:
            texts.add(caption.text)
            assert set(f"{caption.text} .".split()) <= {*WORDS}
            assert 2 <= sum(bool(mention.members) for mention in caption.mentions) <= 3
            assert caption_holds(scene, caption)
            for mention in caption.mentions:
                if mention.entity and len(mention.members) != 1:
                    assert mention.meaning.kind == mention.entity.kind
    assert len(texts) > 200
