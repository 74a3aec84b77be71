# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""Referring expressions and questions of the scenes, read back by the builders of the real data and judged again."""

import random
from collections import Counter
from itertools import product

import numpy as np
import pytest

from grounded_attention.dataset_scripts.builders.refcoco import RefCOCO, read_refs
from grounded_attention.dataset_scripts.builders.vqa_v2 import VQAv2
from grounded_attention.dataset_scripts.regions.table import RegionTable
from grounded_attention.dataset_scripts.scenes import probes
from grounded_attention.dataset_scripts.scenes.annotators import RELATION_WORDS
from grounded_attention.dataset_scripts.scenes.captions import Caption, Entity, Fact, Mention, readings
from grounded_attention.dataset_scripts.scenes.dataset import write_scenes
from grounded_attention.dataset_scripts.scenes.language import meaning_of, referents
from grounded_attention.dataset_scripts.scenes.questions import HUMANS
from grounded_attention.dataset_scripts.scenes.records import image_id, scene_record, split_numbers
from grounded_attention.dataset_scripts.scenes.world import relation_holds
from grounded_attention.dataset_scripts.scenes.writers import WORDS
from grounded_attention.dataset_scripts.scenes.writers_refcoco import object_boxes
from grounded_attention.metrics.amber import Described, description_metrics

IMAGES = 24


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    root = tmp_path_factory.mktemp("scenes")
    write_scenes(root, IMAGES, 0)
    return root


def built(kind, folder, tmp_path_factory, **options):
    builder = kind(data_dir=str(folder), cache_dir=str(tmp_path_factory.mktemp("cache")), **options)
    builder.download_and_prepare()
    return {name: list(rows) for name, rows in builder.as_dataset().items()}


@pytest.fixture(scope="module")
def expressions(folder, tmp_path_factory):
    return built(RefCOCO, folder, tmp_path_factory)


@pytest.fixture(scope="module")
def questions(folder, tmp_path_factory):
    return built(VQAv2, folder, tmp_path_factory)


def records():
    return {image_id(number): scene_record(0, number, IMAGES) for number in range(IMAGES)}


def split_relation(text):
    """A phrase, or a phrase, a relation and another phrase."""
    words = sorted(((w, r) for r, listed in RELATION_WORDS.items() for w in listed), key=lambda pair: -len(pair[0]))
    for spoken, relation in words:
        first, found, second = f" {text} ".partition(f" {spoken} ")
        if found:
            return first.strip(), relation, second.strip()
    return text, None, None


def singled_out(scene, text):
    """The numbers of the objects that a sentence may mean."""
    phrase, relation, other = split_relation(text)
    if relation is None:
        return {frozenset(way) for way in referents(scene, meaning_of(phrase))}
    thing = Entity("object", frozenset((0,)))
    mentions = (Mention(phrase, thing), Mention(other, thing))
    ways = readings(scene, Caption((0, relation, 1), mentions, (Fact(relation, 0, 1),)))
    return {way[0] for way in ways}


def test_every_expression_means_its_object_and_no_other(expressions, folder):
    scenes = records()
    relations = 0
    rows = [row for split in expressions.values() for row in split]
    refs = [ref.values for ref in read_refs(folder / "refcoco+" / "refs(unc).p")]
    objects = {str(sentence["sent_id"]): ref["ann_id"] for ref in refs for sentence in ref["sentences"]}
    for row in rows:
        record = scenes[row["image_id"]]
        [number] = {k for k in range(6) if objects[row["example_id"]] == 8 * record.number + k + 1}
        assert singled_out(record.scene, row["text"]) == {frozenset((number,))}, row["text"]
        relations += split_relation(row["text"])[1] is not None
    assert 0.2 * len(rows) < relations < 0.8 * len(rows)


def test_gold_boxes_are_the_regions_of_the_ground_truth_table(expressions, folder):
    table = RegionTable.open(folder / "regions_gt")
    for row in (row for split in expressions.values() for row in split):
        distance = np.abs(table[row["image_id"]].boxes - np.array(row["phrases"][0]["boxes"])).max(axis=1)
        assert distance.min() < 1e-3, "the box of the expression is one of the annotated objects'"


def test_splits_are_those_of_the_images(expressions, questions):
    names = {split: {image_id(n) for n in numbers} for split, numbers in split_numbers(0, IMAGES).items()}
    for rows in (expressions, questions):
        assert {row["image_id"] for row in rows["train"]} <= names["train"]
        assert {row["image_id"] for row in rows["validation"]} <= names["val"]
    tests = [{row["image_id"] for row in expressions.get(split, [])} for split in ("testA", "testB")]
    assert tests[0].isdisjoint(tests[1])
    assert tests[0] | tests[1] <= names["test"]
    assert {row["image_id"] for row in questions["test"]} <= names["test"]
    assert all(row["answers"] == [] for row in questions["test"])


def test_ten_humans_answer_and_mostly_agree(questions):
    rows = questions["train"] + questions["validation"]
    texts = {text for row in rows for text in (row["text"].replace("?", " ?"), *row["answers"])}
    assert {word.lower() for text in texts for word in text.split()} <= {*WORDS}
    assert {len(row["answers"]) for row in rows} == {HUMANS}
    agreement = [Counter(row["answers"]).most_common(1)[0][1] for row in rows]
    assert 0.6 < np.mean(agreement) / HUMANS < 0.97
    assert min(agreement) < 7, "nobody ever disagrees"


def test_answers_follow_from_the_scene(questions):
    scenes = records()
    checked = 0
    for row in questions["train"] + questions["validation"]:
        scene = scenes[row["image_id"]].scene
        question = row["text"].rstrip("?")
        most = Counter(row["answers"]).most_common(1)[0][0]
        if question.startswith("What kind of ground"):
            assert most in (scene.ground, "wooden")
        elif question.startswith("Is there"):
            there = bool(referents(scene, meaning_of(question.removeprefix("Is there "))))
            assert most == ("yes" if there else "no"), question
        elif question.startswith("What color is "):
            [members] = referents(scene, meaning_of(question.removeprefix("What color is ")))
            [number] = members
            assert {most.replace("grey", "gray")} & set(scene.objects[number].colours), question
        else:
            continue
        checked += 1
    assert checked > 20


# Probes


@pytest.fixture(scope="module")
def probed():
    """The scenes of 300 images, which are not drawn."""
    return {image_id(number): scene_record(0, number, 300) for number in range(300)}


def stands(scene, text, least=0.8):
    """Whether "a ball above a star" is true of the boxes of the only two such objects; `least` is the distance along
    the axis, in parts of that across it, since a cone's box is not around its middle."""
    first, relation, second = split_relation(text.lower().rstrip("."))
    a, b = (
        np.array(object_boxes(scene)[next(iter(way))]).reshape(2, 2).mean(0)
        for [way] in (referents(scene, meaning_of(phrase)) for phrase in (first, second))
    )
    across, down = b - a
    sides = {"left_of": (across, down), "right_of": (-across, down), "above": (down, across), "below": (-down, across)}
    along, beside = sides[relation]
    return along > 0 and along >= least * abs(beside)


def test_places_of_two_objects(probed):
    rows = [*probes.options([*probed.values()])]
    assert Counter(row["group"] for row in rows).keys() == {"left", "right", "above", "below"}
    for row in rows:
        scene, (right, *wrong) = probed[row["image"].removesuffix(".jpg")].scene, row["caption_options"]
        assert stands(scene, right)
        assert not any(stands(scene, each, 1.25) for each in wrong)
        assert len({right, *wrong}) == 4
    sets = Counter(row["pair"] for row in rows)
    assert len({(row["pair"], row["group"]) for row in rows}) == len(rows)
    assert max(sets.values()) == 4


def test_each_of_two_captions_is_true_of_one_image(probed):
    rows = [*probes.pairs([*probed.values()])]
    assert len(rows) > 20
    assert len({row["id"] for row in rows}) == len(rows)
    for row in rows:
        assert sorted(row["caption_0"].split()) == sorted(row["caption_1"].split())
        for image, caption in product((0, 1), repeat=2):
            scene = probed[row[f"image_{image}"].removesuffix(".jpg")].scene
            assert stands(scene, row[f"caption_{caption}"]) == (image == caption)


def judged(scene, text, kind):
    """Whether a question or a statement is true, read from its words."""
    words = text.lower().rstrip("?.").split()
    if kind == "attribute-number":
        [_, _, number, noun] = words
        shape = noun.removesuffix("es") if noun == "crosses" else noun.removesuffix("s")
        return sum(shape in item.shapes for item in scene.objects) == ("no", "one", "two", "three").index(number)
    if kind == "attribute-state":
        [[number]] = referents(scene, meaning_of(" ".join(words[1:-1])))
        return words[-1] in scene.objects[number].colours
    phrase, relation, other = split_relation(" ".join(each for each in words if each != "is"))
    [[first]], [[second]] = (referents(scene, meaning_of(each)) for each in (phrase, other))
    return relation_holds(scene, relation, first, second)


def test_statements_and_verdicts_are_as_true_as_they_say(probed):
    found = Counter()
    for record in probed.values():
        for row in probes.statements(record, random.Random(record.number)):
            assert judged(record.scene, row["caption"], "relation") == bool(row["label"])
            found["statement", row["label"]] += 1
        for row in probes.verdicts(record, random.Random(record.number)):
            assert judged(record.scene, row["query"], row["type"]) == (row["truth"] == "yes")
            found[row["type"], row["truth"]] += 1
    pairs = [(kind, yes, no) for kind, yes in found for no in {1: [0], "yes": ["no"]}.get(yes, [])]
    assert len(pairs) == 4
    assert all(0.35 < found[kind, yes] / (found[kind, yes] + found[kind, no]) < 0.65 for kind, yes, no in pairs)


def test_references_of_quality_0_mean_another_object(probed):
    found = Counter()
    for record in [*probed.values()][:60]:
        boxes = [np.array([*box[:2], box[2] - box[0], box[3] - box[1]]) for box in object_boxes(record.scene)]
        for row in probes.reviewed(record, random.Random(record.number)):
            [number] = [k for k, box in enumerate(boxes) if np.allclose(box, row["bbox"])]
            right = singled_out(record.scene, row["caption"]) == {frozenset((number,))}
            assert right == bool(row["caption_quality"])
            found[right] += 1
    assert 0.1 < found[False] / found.total() < 0.3


def test_nouns_of_descriptions_of_scenes():
    nouns, similar, related, safe = probes.shape_words()
    said = nouns("You can see two cubes, a round thing and a hoop; the can can be seen.")
    scored = description_metrics(
        [Described("a", said, ["cube", "ring"], ["ball", "cylinder"])], related, safe, similar
    )
    assert {name: each.value for name, each in scored.items()} == {"chair": 1 / 3, "cover": 1, "hal": 1, "cog": 0.5}
