# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""Referring expressions and questions of the scenes, read back by the builders of the real data and judged again."""

import random
from collections import Counter, defaultdict
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
from grounded_attention.metrics.object_hallucination import Described, description_metrics

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
def referring(expressions):
    return [row for rows in expressions.values() for row in rows]


@pytest.fixture(scope="module")
def questions(folder, tmp_path_factory):
    return built(VQAv2, folder, tmp_path_factory)


@pytest.fixture(scope="module")
def answered(questions):
    return questions["train"] + questions["validation"]


@pytest.fixture(scope="module")
def records():
    return {image_id(number): scene_record(0, number, IMAGES) for number in range(IMAGES)}


RELATION_OF = {words: relation for relation, listed in RELATION_WORDS.items() for words in listed}


def only_number(scene, phrase):
    """The number of the only object that a phrase may mean."""
    [[number]] = referents(scene, meaning_of(phrase))
    return number


def only_object(scene, phrase):
    return scene.objects[only_number(scene, phrase)]


def split_relation(text):
    """A phrase, or a phrase, a relation and another phrase."""
    for words in sorted(RELATION_OF, key=len, reverse=True):
        first, found, second = f" {text} ".partition(f" {words} ")
        if found:
            return first.strip(), RELATION_OF[words], second.strip()
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


def test_every_expression_means_its_object_and_no_other(referring, records, folder):
    relations = 0
    objects = {}
    for ref in read_refs(folder / "refcoco+" / "refs(unc).p"):
        for sentence in ref.values["sentences"]:
            objects[str(sentence["sent_id"])] = ref.values["ann_id"]
    for row in referring:
        record = records[row["image_id"]]
        number = objects[row["example_id"]] - 8 * record.number - 1
        assert singled_out(record.scene, row["text"]) == {frozenset((number,))}, row["text"]
        relations += split_relation(row["text"])[1] is not None
    assert 0.2 * len(referring) < relations < 0.8 * len(referring)


def test_gold_boxes_are_the_regions_of_the_ground_truth_table(referring, folder):
    table = RegionTable.open(folder / "regions_gt")
    for row in referring:
        distance = np.abs(table[row["image_id"]].boxes - np.array(row["phrases"][0]["boxes"])).max(axis=1)
        assert distance.min() < 1e-3, "the box of the expression is one of the annotated objects'"


def ids_of(rows):
    return {row["image_id"] for row in rows}


def test_splits_are_those_of_the_images(expressions, questions):
    numbers = split_numbers(0, IMAGES)
    for rows in (expressions, questions):
        assert ids_of(rows["train"]) <= set(map(image_id, numbers["train"]))
        assert ids_of(rows["validation"]) <= set(map(image_id, numbers["val"]))
    test = set(map(image_id, numbers["test"]))
    first = ids_of(expressions.get("testA", []))
    second = ids_of(expressions.get("testB", []))
    assert first.isdisjoint(second)
    assert first | second <= test
    assert ids_of(questions["test"]) <= test
    assert all(row["answers"] == [] for row in questions["test"])


def test_ten_humans_answer_and_mostly_agree(answered):
    agreement = []
    for row in answered:
        words = " ".join([row["text"].replace("?", " ?"), *row["answers"]]).lower().split()
        assert set(words) <= {*WORDS}
        assert len(row["answers"]) == HUMANS
        agreement.append(Counter(row["answers"]).most_common(1)[0][1])
    assert 0.6 < np.mean(agreement) / HUMANS < 0.97
    assert min(agreement) < 7, "nobody ever disagrees"


def test_answers_follow_from_the_scene(answered, records):
    checked = 0
    for row in answered:
        scene = records[row["image_id"]].scene
        question = row["text"].rstrip("?")
        most = Counter(row["answers"]).most_common(1)[0][0]
        if question.startswith("What kind of ground"):
            assert most in (scene.ground, "wooden")
        elif question.startswith("Is there"):
            there = bool(referents(scene, meaning_of(question.removeprefix("Is there "))))
            assert most == ("yes" if there else "no"), question
        elif question.startswith("What color is "):
            item = only_object(scene, question.removeprefix("What color is "))
            assert {most.replace("grey", "gray")} & set(item.colours), question
        else:
            continue
        checked += 1
    assert checked > 20


# Probes


@pytest.fixture(scope="module")
def probed():
    """The scenes of 300 images, which are not drawn."""
    return [scene_record(0, number, 300) for number in range(300)]


@pytest.fixture(scope="module")
def scenes(probed):
    """File name of a picture -> its scene."""
    return {f"{record.image_id}.jpg": record.scene for record in probed}


def stands(scene, text, least=0.8):
    """Whether "a ball above a star" is true of the boxes of the only two such objects; `least` is the distance along
    the axis, in parts of that across it, since a cone's box is not around its middle."""
    first, relation, second = split_relation(text.lower().rstrip("."))
    centres = np.reshape(object_boxes(scene), (-1, 2, 2)).mean(axis=1)
    across, down = centres[only_number(scene, second)] - centres[only_number(scene, first)]
    sides = {"left_of": (across, down), "right_of": (-across, down), "above": (down, across), "below": (-down, across)}
    along, beside = sides[relation]
    return along > 0 and along >= least * abs(beside)


def test_places_of_two_objects(probed, scenes):
    rows = list(probes.options(probed))
    assert {row["group"] for row in rows} == {"left", "right", "above", "below"}
    for row in rows:
        scene = scenes[row["image"]]
        right, *wrong = row["caption_options"]
        assert stands(scene, right)
        for caption in wrong:
            assert not stands(scene, caption, 1.25)
        assert len({right, *wrong}) == 4
    assert len({(row["pair"], row["group"]) for row in rows}) == len(rows)
    assert max(Counter(row["pair"] for row in rows).values()) == 4


def test_each_of_two_captions_is_true_of_one_image(probed, scenes):
    rows = list(probes.pairs(probed))
    assert len(rows) > 20
    assert len({row["id"] for row in rows}) == len(rows)
    for row in rows:
        assert sorted(row["caption_0"].split()) == sorted(row["caption_1"].split())
        for image, caption in product((0, 1), repeat=2):
            assert stands(scenes[row[f"image_{image}"]], row[f"caption_{caption}"]) == (image == caption)


def judged(scene, text, kind):
    """Whether a question or a statement is true, read from its words."""
    words = text.lower().rstrip("?.").split()
    if kind == "attribute-number":
        [_, _, number, noun] = words
        shape = noun.removesuffix("es") if noun == "crosses" else noun.removesuffix("s")
        return sum(shape in item.shapes for item in scene.objects) == ("no", "one", "two", "three").index(number)
    if kind == "attribute-state":
        return words[-1] in only_object(scene, " ".join(words[1:-1])).colours
    words.remove("is")
    first, relation, second = split_relation(" ".join(words))
    return relation_holds(scene, relation, only_number(scene, first), only_number(scene, second))


def test_statements_and_verdicts_are_as_true_as_they_say(probed):
    truths = defaultdict(list)
    for record in probed:
        for row in probes.statements(record, random.Random(record.number)):
            assert judged(record.scene, row["caption"], "relation") == bool(row["label"])
            truths["statement"].append(row["label"])
        for row in probes.verdicts(record, random.Random(record.number)):
            assert judged(record.scene, row["query"], row["type"]) == (row["truth"] == "yes")
            truths[row["type"]].append(row["truth"] == "yes")
    assert len(truths) == 4
    for values in truths.values():
        assert 0.35 < np.mean(values) < 0.65


def test_references_of_quality_0_mean_another_object(probed):
    qualities = []
    for record in probed[:60]:
        boxes = np.array(object_boxes(record.scene))
        boxes[:, 2:] -= boxes[:, :2]  # x, y, width, height
        for row in probes.reviewed(record, random.Random(record.number)):
            [number] = np.flatnonzero(np.isclose(boxes, row["bbox"]).all(axis=1))
            right = singled_out(record.scene, row["caption"]) == {frozenset((number,))}
            assert right == bool(row["caption_quality"])
            qualities.append(right)
    assert 0.7 < np.mean(qualities) < 0.9


def test_nouns_of_descriptions_of_scenes():
    nouns, similar, related, safe = probes.shape_words()
    found = nouns("You can see two cubes, a round thing and a hoop; the can can be seen.")
    description = Described("a", found, ["cube", "ring"], ["ball", "cylinder"])
    scores = description_metrics([description], related, safe, similar)
    assert {name: score.value for name, score in scores.items()} == {"chair": 1 / 3, "cover": 1, "hal": 1, "cog": 0.5}
