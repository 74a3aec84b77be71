# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""The embedded data: drawn scenes with captions, paraphrases and simulated region features, in official file formats.

`write_scenes` (on the command line `grounded-attention data scenes`) writes

    DIR/flickr30k-images/<id>.jpg     the images
    DIR/flickr30k_entities/           Sentences, Annotations, train.txt, val.txt, test.txt, UNRELATED_CAPTIONS
    DIR/vgp/{train,val,test}_data.csv phrase pairs of the five classes
    DIR/parses/{train,val,test}.conllu dependency parses of the captions
    DIR/coco/annotations/             captions_train2014.json, captions_val2014.json
    DIR/coco/dataset_coco.json        the same captions and those of the test images, in Karpathy's format
    DIR/corpus.txt                    sentences about further scenes without an image; a blank line after a scene
    DIR/refcoco+/                     instances.json, refs(unc).p, and detections below DIR/detections
    DIR/vqa/                          questions of train2014, val2014 and test2015, annotations of the first two
    DIR/gqa/                          questions of train, val, testdev and test, balanced and all, with choices
    DIR/nlvr2/                        statements about two images: train, dev and test1
    DIR/lxmert/                       captions and questions of train and val as LXMERT's pre-training data
    DIR/llava/                        captions and questions as LLaVA's instruction data, with a processor
    DIR/regions/                      region table of a simulated detector
    DIR/regions_gt/                   region table of the objects' true boxes
    DIR/vocab.txt                     WordPiece vocabulary of all texts
    DIR/scenes.json                   summary with the seed; written last

With `held_out`, some combinations of colour and shape, and of relation and shape, occur in the test split only. The
same seed, number of images and value of `held_out` give the same bytes, with any number of processes. The builders
`Flickr30kEntities`, `VGP`, `CocoCaptions`, `RefCOCO`, `VQAv2`, `GQA`, `LXMERTPretraining`, `LlavaInstruct` and (with
`image_id_format="url_stem"`) `NLVR2` with `data_dir=DIR`, and `TextCorpus(data_dir="DIR/corpus.txt")`, read these
files like the real ones.
"""

import gc
import io
import random
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image
from threadpoolctl import threadpool_limits

from grounded_attention.dataset_scripts.files.errors import refuse_if
from grounded_attention.dataset_scripts.regions.table import Regions, RegionTableWriter, normalise_boxes
from grounded_attention.utils.bounded_files import MAX_PROCESSES, MAX_SEED
from grounded_attention.utils.locks import folder_lock
from grounded_attention.utils.progress import with_progress
from grounded_attention.utils.whole_files import make_folder

from . import (
    MIN_IMAGES,
    annotators,
    compositional_questions,
    features,
    questions,
    statements,
    writers,
    writers_conllu,
    writers_gqa,
    writers_llava,
    writers_lxmert,
    writers_refcoco,
    writers_vqa,
)
from .records import (
    HELD_OUT,
    MANIFEST,
    begin,
    described,
    draw_described_scene,
    finish,
    finished_manifest,
    image_id,
    scene_record,
    split_combinations,
    split_numbers,
)
from .shapes import paint
from .world import HELD_OUT_COLOURS, HELD_OUT_LANDMARKS, Scene
from .writers import CaptionedImage, SceneRecord, caption_text
from .writers_gqa import ComposedImage
from .writers_refcoco import ReferredImage
from .writers_vqa import QuestionedImage

# Increase it when the same seed gives other files than before.
VERSION = 6
MAX_IMAGES = 10_000_000
JPEG_QUALITY = 90
# The corpus describes one further scene for this many images.
IMAGES_PER_DOCUMENT = 4
# The youngest count in the manifest, of conversations of questions with boxes.
ASKED_COUNT = "llava_conversations"
Files = dict[str, str | bytes]
_CHUNK = 16


@dataclass(frozen=True)
class DrawnImage:
    """The contribution of one image to the files about all images."""

    record: SceneRecord
    regions: Regions
    true_regions: Regions
    texts: "ImageTexts"


@dataclass(frozen=True)
class ImageTexts:
    """The texts about an image in every format, and sentences about a scene without an image."""

    pairs: list[tuple[str, ...]]
    captioned: CaptionedImage
    referred: ReferredImage
    questioned: QuestionedImage
    composed: ComposedImage
    parses: str
    sentences: tuple[str, ...]


def write_scenes(
    output: str | Path, images: int, seed: int, num_proc: int = 1, force: bool = False, held_out: bool = False
) -> dict[str, Any]:
    """Draws scenes and writes them to a folder, unless the folder already holds them."""
    check_arguments(images, seed, num_proc)
    root = Path(output)
    identity = {"version": VERSION, "seed": seed, "images": images, HELD_OUT: held_out}
    manifest = _finished(root, identity, force)
    if manifest is not None:
        return manifest
    make_folder(root)
    with folder_lock(root, doing="draws these scenes", hint="wait for it", wait=True):
        manifest = _finished(root, identity, force)  # another process may have drawn them meanwhile
        return _write_new(root, identity, num_proc) if manifest is None else manifest


def _finished(root: Path, identity: dict[str, Any], force: bool) -> dict[str, Any] | None:
    manifest = finished_manifest(root, identity, force)
    if manifest is None or ASKED_COUNT in manifest:
        return manifest
    lacking, hint = "the output folder holds older scenes, which lack files", "replace them with --force"
    refuse_if(not force, lacking, file=root, found=f"no {ASKED_COUNT} in {MANIFEST}", hint=hint)
    return None


def _write_new(root: Path, identity: dict[str, Any], num_proc: int) -> dict[str, Any]:
    begin(root, identity)
    with _without_garbage_collection():
        written = _write_all(root, identity["images"], identity["seed"], num_proc, identity[HELD_OUT])
    manifest = {**described(identity), **written}
    if identity[HELD_OUT]:
        pairs = {"colours_of_shapes": HELD_OUT_COLOURS, "landmarks_of_relations": HELD_OUT_LANDMARKS}
        manifest |= {"held_out_combinations": pairs}
    finish(root, manifest)
    return manifest


def composed_image(seed: int, record: SceneRecord) -> ComposedImage:
    """Returns the questions about an image in the manner of GQA."""
    rng = random.Random(f"{seed}/gqa/{record.number}")
    scene = record.scene
    drawn, entailed = compositional_questions.compose(scene, rng, record.combinations)
    boxes = tuple(writers_refcoco.object_boxes(scene))
    return ComposedImage(record.image_id, tuple(drawn), tuple(entailed), (scene.width, scene.height), boxes)


def questioned_image(seed: int, record: SceneRecord) -> QuestionedImage:
    """Returns the questions about an image in the manner of VQA, with the boxes of its objects."""
    scene, rng = record.scene, random.Random(f"{seed}/questions/{record.number}")
    sides = (scene.width, scene.height) * 2
    boxes = [
        tuple(round(edge / side, 5) for edge, side in zip(box, sides, strict=True))
        for box in writers_refcoco.object_boxes(scene)
    ]
    return QuestionedImage(record.image_id, tuple(questions.ask(scene, rng, record.combinations)), tuple(boxes))


def referred_image(seed: int, record: SceneRecord, detections: features.Detections) -> ReferredImage:
    """Returns the referring expressions of an image, its objects, and the detector's boxes."""
    rng, scene = random.Random(f"{seed}/expressions/{record.number}"), record.scene
    return ReferredImage(
        record.number,
        record.image_id,
        scene.width,
        scene.height,
        boxes=writers_refcoco.object_boxes(scene),
        shapes=tuple(item.shapes[0] for item in scene.objects),
        expressions=tuple(
            tuple(writers_refcoco.refer(scene, k, rng, record.combinations)) for k in range(len(scene.objects))
        ),
        detections=tuple(
            (tuple(box), round(score, 4))
            for box, score in zip(detections.boxes.tolist(), detections.scores.tolist(), strict=True)
        ),
    )


def draw(seed: int, number: int, images: int, root: Path, held_out: bool = False) -> DrawnImage:
    """Writes the files of one image and returns its contribution to the common files."""
    record = scene_record(seed, number, images, held_out)
    jpeg = io.BytesIO()
    paint(record.scene).save(jpeg, "JPEG", quality=JPEG_QUALITY)
    entities = root / "flickr30k_entities"
    (root / "flickr30k-images" / f"{record.image_id}.jpg").write_bytes(jpeg.getvalue())
    (entities / "Sentences" / f"{record.image_id}.txt").write_text(writers.sentences(record), encoding="utf-8")
    (entities / "Annotations" / f"{record.image_id}.xml").write_text(writers.annotation(record), encoding="utf-8")
    # The features come from the stored JPEG, so that they can be recomputed from the file.
    image = Image.open(jpeg, formats=["JPEG"])
    detections = features.detect(record.scene, np.random.default_rng([seed, number]))
    referred = referred_image(seed, record, detections)
    texts = ImageTexts(
        writers.phrase_pairs(record),
        CaptionedImage.of(record),
        referred,
        questioned_image(seed, record),
        composed_image(seed, record),
        writers_conllu.conllu(record),
        _corpus_sentences(seed, number, held_out),
    )
    return DrawnImage(record, *_regions(record, image, detections, np.array(referred.boxes, dtype=np.float32)), texts)


def _corpus_sentences(seed: int, number: int, held_out: bool) -> tuple[str, ...]:
    """Returns the sentences about the further scene of an image, to train on; there is one for every fourth image."""
    if number % IMAGES_PER_DOCUMENT:
        return ()
    _, captions = draw_described_scene(f"{seed}/corpus/{number}", split_combinations("train", held_out))
    return tuple(caption_text(caption) for caption in captions)


def _regions(
    record: SceneRecord, image: Image.Image, detections: features.Detections, true_boxes: np.ndarray
) -> tuple[Regions, Regions]:
    """Returns the regions of the simulated detector, and those of the true boxes; one call describes both."""
    scene, names = record.scene, [f"{item.colours[0]} {item.shapes[0]}" for item in record.scene.objects]
    described = features.pixel_features(image, np.concatenate((detections.boxes, true_boxes)))
    detected = Regions(
        image_id=record.image_id,
        width=scene.width,
        height=scene.height,
        boxes=normalise_boxes(detections.boxes, scene.width, scene.height),
        features=described[: len(detections.boxes)],
        classes=detections.classes,
        scores=detections.scores,
        class_probs=detections.class_probs,
    )
    true = Regions(
        image_id=record.image_id,
        width=scene.width,
        height=scene.height,
        boxes=normalise_boxes(true_boxes, scene.width, scene.height),
        features=described[len(detections.boxes) :],
        classes=np.array([features.CLASSES.index(name) for name in names], dtype=np.int32),
        scores=np.ones(len(true_boxes), dtype=np.float32),
    )
    return detected, true


def _write_all(root: Path, images: int, seed: int, num_proc: int, held_out: bool) -> dict[str, Any]:
    entities = root / "flickr30k_entities"
    for folder in (entities / "Sentences", entities / "Annotations", root / "flickr30k-images"):
        folder.mkdir(parents=True)
    texts: dict[int, ImageTexts] = {}
    scenes: dict[int, Scene] = {}
    unrelated: list[tuple[str, int]] = []
    provenance = {"source": "scenes", "version": VERSION, "seed": seed, "classes": list(features.CLASSES)}
    with (
        RegionTableWriter(root / "regions", {**provenance, "boxes": "detected"}) as detected,
        RegionTableWriter(root / "regions_gt", {**provenance, "boxes": "ground truth"}) as true,
        mapper(num_proc) as mapped,
    ):
        drawn = mapped(partial(_draw_number, seed, images, root, held_out), range(images))
        for each in with_progress(drawn, "scenes", images):
            detected.write(each.regions)
            true.write(each.true_regions)
            texts[each.record.number] = each.texts
            scenes[each.record.number] = each.record.scene
            if each.record.unrelated is not None:
                unrelated.append((each.record.image_id, each.record.unrelated))
    splits = {split: [texts[n] for n in numbers] for split, numbers in split_numbers(seed, images).items()}
    (entities / "UNRELATED_CAPTIONS").write_text(writers.unrelated_file(unrelated), encoding="utf-8")
    statements_of = {
        split: statements.state_all(
            f"{seed}/statements/{split}",
            [(image_id(n), scenes[n]) for n in numbers],
            split_combinations(split, held_out),
        )
        for split, numbers in split_numbers(seed, images).items()
    }
    composed = {split: [each.composed for each in listed] for split, listed in splits.items()}
    _write_files(root, {**_common_files(splits), **writers_vqa.files(statements_of), **writers_gqa.files(composed)})
    aggregated, instructed = writers_lxmert.files(root), writers_llava.files(root, seed)
    questioned = {split: [each.questioned for each in listed] for split, listed in splits.items()}
    _write_files(root, {**aggregated, **instructed, **writers_llava.question_files(root, seed, questioned)})
    return {
        "splits": {split: len(listed) for split, listed in splits.items()},
        "phrase_pairs": {split: sum(len(each.pairs) for each in listed) for split, listed in splits.items()},
        "unrelated_captions": len(unrelated),
        "words": len(_words()),
        "coco_captions": _counts(splits, lambda each: len(each.captioned.captions)),
        "corpus_sentences": sum(_counts(splits, lambda each: len(each.sentences)).values()),
        "expressions": _counts(splits, lambda each: sum(map(len, each.referred.expressions))),
        "questions": _counts(splits, lambda each: len(each.questioned.questions)),
        "statements": {split: len(made) for split, made in statements_of.items()},
        "gqa_questions": {split: sum(len(each.drawn) for each in listed) for split, listed in composed.items()},
        "lxmert_sentences": writers_lxmert.count_sentences(aggregated),
        "llava_turns": writers_llava.count_turns(instructed),
        ASKED_COUNT: {split: len(listed) for split, listed in questioned.items()},
    }


def _write_files(root: Path, files: Mapping[str, str | bytes]) -> None:
    for path, content in files.items():
        make_folder((root / path).parent)
        (root / path).write_bytes(content if isinstance(content, bytes) else content.encode("utf-8"))


def _common_files(splits: Mapping[str, list[ImageTexts]]) -> dict[str, str | bytes]:
    """Returns the files about all images, or all images of a split, by path."""
    everything = sorted(
        (each for listed in splits.values() for each in listed), key=lambda each: each.captioned.number
    )
    files: dict[str, str | bytes] = {}
    for split, listed in splits.items():
        ids = (f"{each.captioned.image_id}\n" for each in listed)
        files[f"flickr30k_entities/{split}.txt"] = "".join(ids)
        files[f"vgp/{split}_data.csv"] = writers.pairs_file(row for each in listed for row in each.pairs)
        files[f"parses/{split}.conllu"] = "".join(each.parses for each in listed)
        questioned = [each.questioned for each in listed]
        questions_name, annotations_name = writers_vqa.file_names(split)
        files[f"vqa/{questions_name}"] = writers_vqa.questions_file(questioned)
        if split != "test":
            captions = writers.captions_file(each.captioned for each in listed)
            files[f"coco/annotations/captions_{split}2014.json"] = captions
            files[f"vqa/{annotations_name}"] = writers_vqa.annotations_file(questioned)
    captioned = ((split, each.captioned) for split, listed in splits.items() for each in listed)
    referred = {split: [each.referred for each in listed] for split, listed in splits.items()}
    folder, all_referred = writers_refcoco.NAME, [each.referred for each in everything]
    return files | {
        "coco/dataset_coco.json": writers.karpathy_file(captioned),
        "corpus.txt": writers.corpus_file(each.sentences for each in everything if each.sentences),
        f"{folder}/instances.json": writers_refcoco.instances_file(all_referred),
        f"{folder}/{writers_refcoco.REFS_FILE}": writers_refcoco.references_file(referred),
        writers_refcoco.DETECTIONS_FILE: writers_refcoco.detections_file(all_referred),
        "vocab.txt": writers.vocabulary_file(_words()),
    }


def _words() -> list[str]:
    return sorted({*annotators.vocabulary(), *questions.vocabulary(), *statements.vocabulary()})


def _counts(splits: Mapping[str, list[ImageTexts]], count_of: Callable[[ImageTexts], int]) -> dict[str, int]:
    return {split: sum(map(count_of, listed)) for split, listed in splits.items()}


def _draw_number(seed: int, images: int, root: Path, held_out: bool, number: int) -> DrawnImage:
    return draw(seed, number, images, root, held_out)


@contextmanager
def _without_garbage_collection() -> Iterator[None]:
    """Stops the search for cycles: it goes over the texts of all images again and again, and they have none."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


def _one_thread() -> None:
    """Limits NumPy's matrix products to one thread: they are small, and waiting threads cost eight times the work."""
    threadpool_limits(1)


@contextmanager
def mapper(num_proc: int) -> Iterator[Any]:
    """Gives an ordered lazy `map`, with a pool of processes if `num_proc` is above 1."""
    if num_proc == 1:
        with threadpool_limits(1):
            yield map
        return
    # New processes: forking is not safe after other libraries started threads.
    with get_context("spawn").Pool(num_proc, _one_thread) as pool:
        yield partial(pool.imap, chunksize=_CHUNK)


def check_arguments(images: int, seed: int, num_proc: int) -> None:
    bounds = (("images", images, MIN_IMAGES, MAX_IMAGES), ("seed", seed, 0, MAX_SEED))
    for name, value, minimum, maximum in (*bounds, ("num_proc", num_proc, 1, MAX_PROCESSES)):
        refuse_if(value < minimum, f"{name} is too small", found=value, expected=f"at least {minimum}")
        refuse_if(value > maximum, f"{name} is too large", expected=f"at most {maximum}")
