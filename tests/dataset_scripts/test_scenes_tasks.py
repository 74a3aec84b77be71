# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""Referring expressions and questions of the scenes, read back by the builders of the real data and judged again."""

from collections import Counter

import numpy as np
import pytest

from grounded_attention.dataset_scripts.builders.refcoco import RefCOCO
from grounded_attention.dataset_scripts.builders.vqa_v2 import VQAv2
from grounded_attention.dataset_scripts.regions.table import RegionTable
from grounded_attention.dataset_scripts.scenes.annotators import RELATION_WORDS
from grounded_attention.dataset_scripts.scenes.captions import Caption, Entity, Fact, Mention, readings
from grounded_attention.dataset_scripts.scenes.dataset import image_id, scene_record, split_numbers, write_scenes
from grounded_attention.dataset_scripts.scenes.language import meaning_of, referents
from grounded_attention.dataset_scripts.scenes.questions import HUMANS

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


def test_every_expression_means_its_object_and_no_other(expressions):
    scenes, relations = records(), 0
    rows = [row for split in expressions.values() for row in split]
    for row in rows:
        record = scenes[row["image_id"]]
        [number] = {k for k in range(6) if int(row["ann_id"]) == 8 * record.number + k + 1}
        assert singled_out(record.scene, row["text"]) == {frozenset((number,))}, row["text"]
        relations += split_relation(row["text"])[1] is not None
    assert 0.2 * len(rows) < relations < 0.8 * len(rows)


def test_gold_boxes_are_the_regions_of_the_ground_truth_table(expressions, folder):
    table = RegionTable.open(folder / "regions_gt")
    for row in (row for split in expressions.values() for row in split):
        distance = np.abs(table[row["image_id"]].boxes - np.array(row["box"])).max(axis=1)
        assert distance.min() < 1e-3, "the box of the expression is one of the annotated objects'"


def test_splits_are_those_of_the_images(expressions, questions):
    names = {split: {image_id(n) for n in numbers} for split, numbers in split_numbers(0, IMAGES).items()}
    for rows in (expressions, questions):
        assert {row["image_id"] for row in rows["train"]} <= names["train"]
        assert {row["image_id"] for row in rows["validation"]} <= names["val"]
    tests = [{row["image_id"] for row in expressions.get(split, [])} for split in ("testA", "testB")]
    assert tests[0].isdisjoint(tests[1]) and tests[0] | tests[1] <= names["test"]
    assert {row["image_id"] for row in questions["test"]} <= names["test"]
    assert all(row["answers"] == [] for row in questions["test"])


def test_ten_humans_answer_and_mostly_agree(questions):
    rows = questions["train"] + questions["validation"]
    assert {len(row["answers"]) for row in rows} == {HUMANS}
    agreement = [Counter(row["answers"]).most_common(1)[0][1] for row in rows]
    assert 0.6 < np.mean(agreement) / HUMANS < 0.97
    assert min(agreement) < 7, "nobody ever disagrees"


def test_answers_follow_from_the_scene(questions):
    scenes = records()
    checked = 0
    for row in questions["train"] + questions["validation"]:
        scene, question = scenes[row["image_id"]].scene, row["question"].rstrip("?")
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
