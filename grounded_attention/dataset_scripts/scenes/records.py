# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""Which image has which scene and captions, and what is drawn about it: all follows from the seed and its number.

With combinations held out, the images of train and val and the sentences without an image have none of them, and the
images of test have many (`Combinations`).
"""

import json
import random
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import count
from pathlib import Path

from grounded_attention.dataset_scripts.files.errors import DataError, refuse_if
from grounded_attention.dataset_scripts.scenes import annotators, compositional_questions, questions
from grounded_attention.utils.bounded_files import read_json
from grounded_attention.utils.named_types import Fields
from grounded_attention.utils.processes import LOCK, folder_lock
from grounded_attention.utils.safe_paths import refuse_links
from grounded_attention.utils.whole_files import DRAFT, make_folder, write_text

from .captions import Caption, Entity, caption_holds
from .features import Detections
from .world import Combinations, Scene, draw_scene, holds_out

CHAINS_PER_IMAGE = 16


@dataclass(frozen=True)
class SceneRecord:
    """One image of the data set: its number and id, its scene, its captions.

    `unrelated` is the index of a caption that was written for another image, if there is one. `combinations` are those
    that the scene and all texts about it may have.
    """

    number: int
    image_id: str
    scene: Scene
    captions: tuple[Caption, ...]
    unrelated: int | None = None
    combinations: Combinations = Combinations.ALL

    @property
    def related_captions(self) -> list[Caption]:
        """The captions that were written for this image."""
        return [caption for index, caption in enumerate(self.captions) if index != self.unrelated]

    def chains(self, foreign: bool = False) -> dict[Entity, int]:
        """Returns the chain id, unique in the data set, of every entity in the related captions, or in the `foreign`
        one, whose entities refer to nothing in this image.
        """
        entities = dict[Entity, None]()
        for index, caption in enumerate(self.captions):
            if (index == self.unrelated) == foreign:
                entities |= dict.fromkeys(mention.entity for mention in caption.mentions if mention.entity)
        first = 1 + CHAINS_PER_IMAGE * self.number
        numbers = range(first, first + CHAINS_PER_IMAGE)
        if foreign:
            numbers = numbers[::-1]
        return dict(zip(entities, numbers, strict=False))


@dataclass(frozen=True, kw_only=True)
class DrawnImage(SceneRecord):
    """One image with all texts about it, the boxes of its objects in pixels, and what a detector finds.

    `expressions` are those of each object; `composed` are questions in the manner of GQA, which entail `entailed`;
    `pairs` are rows of phrase pairs, `parses` the text of a file, and `sentences` are about a scene without an image.
    """

    boxes: tuple[tuple[float, ...], ...]
    detections: Detections
    expressions: list[list[str]]
    questions: list[questions.Question]
    composed: list[compositional_questions.Question]
    entailed: list[compositional_questions.Question]
    pairs: list[tuple[str, ...]]
    parses: str
    sentences: list[str]


Splits = Mapping[str, Sequence[DrawnImage]]  # the images of train, val and test
Files = Fields  # path -> text, bytes, or what JSON holds


SPLITS = ("train", "val", "test")


def split_combinations(split: str, held_out: bool) -> Combinations:
    """Returns the combinations that the images and texts of a split may have."""
    if not held_out:
        return Combinations.ALL
    if split == "test":
        return Combinations.HELD_OUT
    return Combinations.SEEN


def scene_record(seed: int, number: int, images: int, held_out: bool = False) -> SceneRecord:
    """Makes the record of an image without drawing it; it depends on the arguments only."""
    combinations = _combinations(seed, number, images, held_out)
    record = _related_record(seed, number, combinations)
    if number not in _unrelated_numbers(seed, images):
        return record
    rng = random.Random(f"{seed}/unrelated/{number}")
    index = rng.randrange(len(record.captions))
    for step in range(1, images):
        other = (number + step) % images
        if _combinations(seed, other, images, held_out) is not combinations:
            continue
        foreign = rng.choice(_related_record(seed, other, combinations).captions)
        if not caption_holds(record.scene, foreign):
            captions = (*record.captions[:index], foreign, *record.captions[index + 1 :])
            return replace(record, captions=captions, unrelated=index)
    return record


def split_numbers(seed: int, images: int) -> dict[str, list[int]]:
    """Returns the image numbers of each split: about a tenth each for validation and test, the rest for training."""
    numbers = random.Random(f"{seed}/splits").sample(range(images), images)
    tenth = max(1, round(images / 10))
    parts = {"val": numbers[:tenth], "test": numbers[tenth : 2 * tenth], "train": numbers[2 * tenth :]}
    return {split: sorted(parts[split]) for split in SPLITS}


def image_id(number: int) -> str:
    """Returns the id of an image: like the real ones a number as text; some images have more digits than others."""
    return str(9990 + 7 * number)


def draw_described_scene(name: str, combinations: Combinations) -> tuple[Scene, tuple[Caption, ...]]:
    """Returns the first scene drawn under this name that the annotators can describe, with their captions."""
    for attempt in count():
        rng = random.Random(f"{name}/{attempt}")
        scene = draw_scene(rng, combinations)
        if combinations is Combinations.HELD_OUT and not any(map(holds_out, scene.objects)):
            continue
        captions = annotators.describe(scene, rng, combinations)
        if captions is not None:
            return scene, tuple(captions)
    raise AssertionError("unreachable: the loop has no end")


@lru_cache(maxsize=64)
def _related_record(seed: int, number: int, combinations: Combinations) -> SceneRecord:
    drawn = draw_described_scene(f"{seed}/scene/{number}", combinations)
    return SceneRecord(number, image_id(number), *drawn, combinations=combinations)


def _combinations(seed: int, number: int, images: int, held_out: bool) -> Combinations:
    is_test = held_out and number in _test_numbers(seed, images)
    return split_combinations("test" if is_test else "train", held_out)


@lru_cache(maxsize=4)
def _test_numbers(seed: int, images: int) -> frozenset[int]:
    return frozenset(split_numbers(seed, images)["test"])


@lru_cache(maxsize=4)
def _unrelated_numbers(seed: int, images: int) -> frozenset[int]:
    return frozenset(random.Random(f"{seed}/unrelated").sample(range(images), max(1, images // 100)))


MANIFEST = "scenes.json"
PARTIAL = "scenes.partial.json"
# Whether combinations are held out.
HELD_OUT = "held_out"
DRAWN = (
    "flickr30k_entities",
    "flickr30k-images",
    "vgp",
    "parses",
    "coco",
    "refcoco+",
    "detections",
    "vqa",
    "gqa",
    "lxmert",
    "llava",
    "nlvr2",
    "regions",
    "regions_gt",
    "probes",
    "vocab.txt",
    "corpus.txt",
    *("train", "validation", "test", "processor", "train.json", "validation.json", "test.json"),  # of screens
)


def write_once(root: Path, identity: Fields, force: bool, write: Callable[[], Fields]) -> Fields:
    """Writes files of this identity to a folder, one process at a time, unless it holds them already; returns the
    manifest: the identity and what `write` tells.
    """
    manifest = _finished_manifest(root, identity, force)
    if manifest:
        return manifest
    make_folder(root)
    with folder_lock(root, doing="draws into this folder", hint="wait for it", wait=True):
        # Another process may have drawn them meanwhile.
        return _finished_manifest(root, identity, force) or _replace(root, identity, write)


def _finished_manifest(root: Path, identity: Fields, force: bool) -> Fields | None:
    """Returns the manifest of the requested scenes, or None if the folder does not hold them completely."""
    markers = [root / name for name in (MANIFEST, PARTIAL) if (root / name).is_file()]
    if not markers:
        # A process that was killed at its start left a lock, or the draft of a marker.
        strange = root.exists() and [path for path in root.iterdir() if path.name != LOCK and path.suffix != DRAFT]
        hint = "choose a new or empty folder"
        refuse_if(strange, "the output folder holds other files, which are never replaced", file=root, hint=hint)
        return None
    content = read_json(markers[0])
    recorded = {name: content.get(name) for name in identity}
    if recorded != identity and not force:
        hint = "choose another folder, or replace them with --force"
        raise DataError(
            "the output folder holds other scenes", file=root, found=recorded, expected=f"{identity}", hint=hint
        )
    if recorded == identity and markers[0].name == MANIFEST:
        return content
    return None


def _replace(root: Path, identity: Fields, write: Callable[[], Fields]) -> Fields:
    """Removes the files of an earlier run and writes new ones; the folder is marked as incomplete until the end."""
    refuse_links(root)
    write_text(root / PARTIAL, json.dumps(identity) + "\n")
    (root / MANIFEST).unlink(missing_ok=True)
    for name in DRAWN:
        if (root / name).is_dir():
            shutil.rmtree(root / name)
        else:
            (root / name).unlink(missing_ok=True)
    manifest = {**identity, **write()}
    write_text(root / MANIFEST, json.dumps(manifest, indent=2) + "\n")
    (root / PARTIAL).unlink(missing_ok=True)
    return manifest
