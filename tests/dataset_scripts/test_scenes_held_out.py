# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""Scenes with combinations held out: every written text is read again with another lexicon."""

import csv
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
from grounded_attention.dataset_scripts.scenes.dataset import scene_record, split_numbers, write_scenes
from grounded_attention.dataset_scripts.scenes.phrases import Content, names_held_out
from grounded_attention.dataset_scripts.scenes.world import COLOURS, RELATIONS, SHAPES
from tests.dataset_scripts.held_out_words import named, named_with_answer

IMAGES = 60
SEED = 4
HELD_OUT = {
    *(("red", "ball"), ("orange", "cube"), ("yellow", "cone"), ("green", "cylinder")),
    *(("blue", "star"), ("purple", "cross"), ("pink", "ring"), ("gray", "heart")),
    *(("left_of", "ring"), ("right_of", "cube"), ("above", "star"), ("below", "cylinder"), ("next_to", "heart")),
}
TRAIN = ("train", "val")
TEST = ("test",)


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


def captions(root, splits):
    """Image id -> its captions, from the files of Flickr30K Entities."""
    entities = root / "flickr30k_entities"
    ids = [name for split in splits for name in (entities / f"{split}.txt").read_text().split()]
    texts = {name: (entities / "Sentences" / f"{name}.txt").read_text() for name in ids}
    return {name: re.sub(r"\[/EN#\S+ |\]", "", text).splitlines() for name, text in texts.items()}


def captions_elsewhere(root, splits):
    """Captions in the other files: parses, COCO, Karpathy's COCO, and the corpus, which is trained on."""
    for split in splits:
        yield from re.findall(r"^# text = (.*)$", (root / f"parses/{split}.conllu").read_text(), re.MULTILINE)
        if split != "test":
            found = json.loads((root / f"coco/annotations/captions_{split}2014.json").read_text())
            yield from (each["caption"] for each in found["annotations"])
    for image in json.loads((root / "coco/dataset_coco.json").read_text())["images"]:
        if image["split"] in splits:
            yield from (sentence["raw"] for sentence in image["sentences"])
    if "train" in splits:
        yield from (line for line in (root / "corpus.txt").read_text().splitlines() if line)


def phrases(root, splits):
    for split in splits:
        for row in csv.DictReader((root / f"vgp/{split}_data.csv").open()):
            yield from (row["original_phrase1"], row["original_phrase2"], row["phrase1"], row["phrase2"])


def expressions(root, splits):
    for reference in pickle.loads((root / "refcoco+/refs(unc).p").read_bytes()):
        if reference["split"].rstrip("AB") in splits:
            yield from (sentence["sent"] for sentence in reference["sentences"])


def statements(root, splits):
    for split in splits:
        name = {"train": "train", "val": "dev", "test": "test1"}[split]
        yield from (json.loads(line)["sentence"] for line in (root / f"nlvr2/{name}.json").read_text().splitlines())


def vqa(root, splits):
    """(question, answer) of each human."""
    for split in splits:
        questions = json.loads((root / f"vqa/v2_OpenEnded_mscoco_{split}2014_questions.json").read_text())
        text_of = {each["question_id"]: each["question"] for each in questions["questions"]}
        found = json.loads((root / f"vqa/v2_mscoco_{split}2014_annotations.json").read_text())
        for each in found["annotations"]:
            yield from ((text_of[each["question_id"]], given["answer"]) for given in each["answers"])


def gqa(root, names):
    """What is named by the questions of these files with their answers."""
    for path in sorted((root / "gqa").rglob("*_questions*.json")):
        if path.name.split("_")[0] in names:
            for record in json.loads(path.read_text()).values():
                yield record, named_with_answer(record["question"], record["answer"])


def named_by_kind(root, splits):
    """Kind of text -> what each text of some splits names, a set for each text."""
    found = {
        "captions": [named(text) for texts in captions(root, splits).values() for text in texts],
        "captions elsewhere": list(map(named, captions_elsewhere(root, splits))),
        "phrases": list(map(named, phrases(root, splits))),
        "expressions": list(map(named, expressions(root, splits))),
        "statements": list(map(named, statements(root, splits))),
        "gqa": [pairs for record, pairs in gqa(root, ("train", "val") if "train" in splits else ("testdev",))],
    }
    if "test" not in splits:
        found["vqa"] = [named_with_answer(*pair) for pair in vqa(root, splits)]
    return found


def test_no_text_of_train_and_val_names_a_combination(folder, plain):
    for kind, listed in named_by_kind(folder, TRAIN).items():
        assert len(listed) > 50
        assert not set.union(*listed) & HELD_OUT, kind
    for kind, listed in named_by_kind(plain, TRAIN).items():
        share = sum(bool(pairs & HELD_OUT) for pairs in listed) / len(listed)
        assert 0.03 < share < 0.4, f"the reader finds {share} in {kind}, which hold nothing out"


def test_train_names_every_word_in_many_other_combinations(folder):
    seen = set().union(*(pairs for listed in named_by_kind(folder, TRAIN).values() for pairs in listed))
    partners = defaultdict(set)
    for first, second in seen:
        partners[first].add(second)
        partners[second].add(first)
    assert all(len(partners[name] & set(SHAPES)) == 7 for name in (*COLOURS, *RELATIONS))
    assert all(len(partners[shape] & set(COLOURS)) == 7 for shape in SHAPES)
    assert all(len(partners[shape] & set(RELATIONS)) >= 4 for shape in SHAPES)


def test_every_scored_text_of_test_names_a_combination(folder):
    found = named_by_kind(folder, TEST)
    for kind in ("captions", "captions elsewhere", "expressions", "statements"):
        assert found[kind] and all(pairs & HELD_OUT for pairs in found[kind]), kind
    records = [scene_record(SEED, number, IMAGES, held_out=True) for number in split_numbers(SEED, IMAGES)["test"]]
    objects = {record.image_id: record.scene.objects for record in records}
    balanced = [(record, pairs) for record, pairs in gqa(folder, ("testdev",)) if record["isBalanced"]]
    assert balanced
    for record, pairs in balanced:
        if not pairs & HELD_OUT:  # "Is the star red?": no, it is blue
            meant = [objects[record["imageId"]][int(number)] for number in record["annotations"]["question"].values()]
            assert any(set(product(item.colours, item.shapes)) & HELD_OUT for item in meant), record["question"]


def test_objects_of_train_and_val_have_no_pair_and_each_test_image_has_one(folder):
    numbers = split_numbers(SEED, IMAGES)
    table = RegionTable.open(folder / "regions_gt")
    for split, listed in numbers.items():
        for number in listed:
            record = scene_record(SEED, number, IMAGES, held_out=True)
            looks = [set(product(item.colours, item.shapes)) for item in record.scene.objects]
            assert any(pairs & HELD_OUT for pairs in looks) == (split == "test")
            assert len(table[record.image_id]) == len(looks), "the scene is that of the files"


def test_broad_words_name_nothing_and_words_in_any_order_count():
    assert names_held_out(Content(("the large star azure",)))
    assert names_held_out(Content(("crimson round solids",)))
    assert names_held_out(Content(landmarks=(("next_to", "a heart"),)))
    assert not names_held_out(Content(("the bluish star", "a blue figure"), (("left_of", "the figure"),)))


def test_a_folder_with_the_other_value_is_refused_in_one_line(folder, capsys):
    before = (folder / "scenes.json").read_bytes()
    assert main(["--output", str(folder), "--images", str(IMAGES), "--seed", str(SEED)]) == 2
    error = capsys.readouterr().err
    assert "'held_out': True" in error
    assert "'held_out': False" in error
    assert error.count("\n") == 1
    assert (folder / "scenes.json").read_bytes() == before
    command = ["--images", str(IMAGES), "--seed", str(SEED), "--held-out"]
    assert main(["--output", str(folder), *command]) == 0
    assert scenes_command(read_scenes(folder), "DIR").endswith(" ".join(command))
    pairs = json.loads(before)["held_out_combinations"]
    looks = {(colour, shape) for shape, colour in pairs["colours_of_shapes"].items()}
    assert looks | set(pairs["landmarks_of_relations"].items()) == HELD_OUT


def test_texts_are_those_of_version_6(plain):
    """The bytes of pictures depend on the version of Pillow, those of texts on nothing."""
    paths = ["corpus.txt", "vgp/train_data.csv", "nlvr2/train.json", "gqa/val_all_questions.json"]
    paths += ["vqa/v2_mscoco_train2014_annotations.json", "refcoco+/refs(unc).p"]
    digest = hashlib.sha256(b"".join((plain / path).read_bytes() for path in paths)).hexdigest()
    wanted = "aa35b85fc99dfe0fd657b023b517a4365b674208e8fc66e1291072a6ddfad9db"
    assert digest == wanted, "other texts for the same seed: increase VERSION"
