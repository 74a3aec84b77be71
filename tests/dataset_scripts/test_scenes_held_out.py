# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""Scenes with combinations held out: every written text is read again with another lexicon."""

import hashlib
import json
import pickle
import re
from collections import defaultdict
from itertools import product

import pytest

from grounded_attention.commands.draw_scenes import main
from grounded_attention.dataset_scripts.licences import read_scenes, scenes_command
from grounded_attention.dataset_scripts.regions.table import RegionTable
from grounded_attention.dataset_scripts.scenes.captions import Content, names_held_out
from grounded_attention.dataset_scripts.scenes.dataset import scene_record, split_numbers, write_scenes
from grounded_attention.dataset_scripts.scenes.world import COLOURS, RELATIONS, SHAPES
from tests.dataset_scripts.held_out_words import named, named_with_answer

IMAGES = 60
SEED = 4
LOOKS = {
    ("red", "ball"),
    ("orange", "cube"),
    ("yellow", "cone"),
    ("green", "cylinder"),
    ("blue", "star"),
    ("purple", "cross"),
    ("pink", "ring"),
    ("gray", "heart"),
}
PLACES = {("left_of", "ring"), ("right_of", "cube"), ("above", "star"), ("below", "cylinder"), ("next_to", "heart")}
HELD_OUT = LOOKS | PLACES
TRAIN = ("train", "val")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    root = tmp_path_factory.mktemp("held_out")
    write_scenes(root, IMAGES, SEED, held_out=True)
    return root


@pytest.fixture(scope="module")
def plain(tmp_path_factory):
    root = tmp_path_factory.mktemp("plain")
    write_scenes(root, IMAGES, SEED)
    return root


def content_of(path):
    return json.loads(path.read_text())


def captions(root, split):
    """From Flickr30K Entities, and the corpus, which is trained on. Parses, COCO and pairs of phrases repeat them."""
    entities = root / "flickr30k_entities"
    for name in (entities / f"{split}.txt").read_text().split():
        yield from re.sub(r"\[/EN#\S+ |\]", "", (entities / f"Sentences/{name}.txt").read_text()).splitlines()
    if split == "train":
        yield from filter(None, (root / "corpus.txt").read_text().splitlines())


def expressions(root, split):
    for reference in pickle.loads((root / "refcoco+/refs(unc).p").read_bytes()):
        if reference["split"].rstrip("AB") == split:
            yield from (sentence["sent"] for sentence in reference["sentences"])


def statements(root, split):
    name = {"train": "train", "val": "dev", "test": "test1"}[split]
    for line in (root / f"nlvr2/{name}.json").read_text().splitlines():
        yield json.loads(line)["sentence"]


def vqa(root, split):
    """What the questions name with the answer of each human; those of test have none."""
    if split == "test":
        return
    questions = content_of(root / f"vqa/v2_OpenEnded_mscoco_{split}2014_questions.json")["questions"]
    text_of = {question["question_id"]: question["question"] for question in questions}
    for annotation in content_of(root / f"vqa/v2_mscoco_{split}2014_annotations.json")["annotations"]:
        for answer in annotation["answers"]:
            yield named_with_answer(text_of[annotation["question_id"]], answer["answer"])


def gqa(root, split):
    """The questions, and what they name with their answers."""
    name = "testdev" if split == "test" else split
    for path in sorted((root / "gqa").rglob(f"{name}_*questions*.json")):
        for record in content_of(path).values():
            yield record, named_with_answer(record["question"], record["answer"])


TEXTS = (captions, expressions, statements)


def named_by_kind(root, splits):
    """Kind of text -> what each text of some splits names, a set for each text."""
    found = defaultdict(list)
    for split in splits:
        for texts in TEXTS:
            found[texts.__name__] += map(named, texts(root, split))
        found["gqa"] += [pairs for _, pairs in gqa(root, split)]
        found["vqa"] += vqa(root, split)
    return found


def test_no_text_of_train_and_val_names_a_combination(folder, plain):
    for kind, listed in named_by_kind(folder, TRAIN).items():
        assert len(listed) > 50
        assert not set.union(*listed) & HELD_OUT, kind
    for kind, listed in named_by_kind(plain, TRAIN).items():
        share = sum(bool(pairs & HELD_OUT) for pairs in listed) / len(listed)
        assert 0.03 < share < 0.4, f"the reader finds {share} in {kind}, which hold nothing out"


def test_train_names_every_word_in_many_other_combinations(folder):
    partners = defaultdict(set)
    for listed in named_by_kind(folder, TRAIN).values():
        for first, second in set.union(*listed):
            partners[first].add(second)
            partners[second].add(first)
    for name in (*COLOURS, *RELATIONS):
        assert len(partners[name] & set(SHAPES)) == 7
    for shape in SHAPES:
        assert len(partners[shape] & set(COLOURS)) == 7
        assert len(partners[shape] & set(RELATIONS)) >= 4


@pytest.fixture(scope="module")
def looks():
    """Split -> image id -> the colours and shapes that each object of its scene may be called."""
    found = {}
    for split, numbers in split_numbers(SEED, IMAGES).items():
        records = [scene_record(SEED, number, IMAGES, held_out=True) for number in numbers]
        found[split] = {record.image_id: list(map(pairs_of, record.scene.objects)) for record in records}
    return found


def pairs_of(item):
    return set(product(item.colours, item.shapes))


def test_every_scored_text_of_test_names_a_combination(folder, looks):
    found = named_by_kind(folder, ["test"])
    for kind in ("captions", "expressions", "statements"):
        assert found[kind]
        assert all(pairs & HELD_OUT for pairs in found[kind]), kind
    balanced = [(record, pairs) for record, pairs in gqa(folder, "test") if record["isBalanced"]]
    assert balanced
    for record, pairs in balanced:
        if not pairs & HELD_OUT:  # "Is the star red?": no, it is blue
            objects = looks["test"][record["imageId"]]
            meant = [objects[int(number)] for number in record["annotations"]["question"].values()]
            assert set.union(*meant) & HELD_OUT, record["question"]


def test_objects_of_train_and_val_have_no_pair_and_each_test_image_has_one(folder, looks):
    table = RegionTable.open(folder / "regions_gt")
    for split, images in looks.items():
        for image_id, objects in images.items():
            assert bool(set.union(*objects) & HELD_OUT) == (split == "test")
            assert len(table[image_id]) == len(objects), "the scene is that of the files"


def test_broad_words_name_nothing_and_words_in_any_order_count():
    assert names_held_out(Content(("the large star azure",)))
    assert names_held_out(Content(("crimson round solids",)))
    assert names_held_out(Content(landmarks=(("next_to", "a heart"),)))
    assert not names_held_out(Content(("the bluish star", "a blue figure"), (("left_of", "the figure"),)))


def test_a_folder_with_the_other_value_is_refused_in_one_line(folder, capsys):
    options = ["--output", str(folder), "--images", str(IMAGES), "--seed", str(SEED)]
    assert main(options) == 2
    error = capsys.readouterr().err
    assert "'held_out': True" in error
    assert "'held_out': False" in error
    assert error.count("\n") == 1
    assert main([*options, "--held-out"]) == 0
    assert scenes_command(read_scenes(folder), "DIR").endswith(f"--images {IMAGES} --seed {SEED} --held-out")


def test_the_manifest_lists_what_is_held_out(folder):
    combinations = content_of(folder / "scenes.json")["held_out_combinations"]
    assert {(colour, shape) for shape, colour in combinations["colours_of_shapes"].items()} == LOOKS
    assert set(combinations["landmarks_of_relations"].items()) == PLACES


def test_texts_are_those_of_version_6(plain):
    """The bytes of pictures depend on the version of Pillow, those of texts on nothing."""
    paths = (
        "corpus.txt",
        "vgp/train_data.csv",
        "nlvr2/train.json",
        "gqa/val_all_questions.json",
        "vqa/v2_mscoco_train2014_annotations.json",
        "refcoco+/refs(unc).p",
    )
    digest = hashlib.sha256(b"".join((plain / path).read_bytes() for path in paths)).hexdigest()
    wanted = "aa35b85fc99dfe0fd657b023b517a4365b674208e8fc66e1291072a6ddfad9db"
    assert digest == wanted, "other texts for the same seed: increase VERSION"
