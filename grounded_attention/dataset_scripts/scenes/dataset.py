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

import io
import random
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
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
from .drawn import DrawnImage
from .records import (
    HELD_OUT,
    draw_described_scene,
    scene_record,
    split_combinations,
    split_numbers,
    write_once,
)
from .shapes import paint
from .world import HELD_OUT_COLOURS, HELD_OUT_LANDMARKS

# Increase it when the same seed gives other files than before.
VERSION = 6
MAX_IMAGES = 10_000_000
JPEG_QUALITY = 90
# The corpus describes one further scene for this many images.
IMAGES_PER_DOCUMENT = 4
_CHUNK = 16


def write_scenes(
    output: str | Path, images: int, seed: int, num_proc: int = 1, force: bool = False, held_out: bool = False
) -> dict[str, Any]:
    """Draws scenes and writes them to a folder, unless the folder already holds them."""
    check_arguments(images, seed, num_proc)
    identity = {"version": VERSION, "seed": seed, "images": images, HELD_OUT: held_out}
    return write_once(
        Path(output), identity, force, lambda: _write_all(Path(output), images, seed, num_proc, held_out)
    )


def draw(seed: int, images: int, root: Path, held_out: bool, number: int) -> tuple[DrawnImage, Regions, Regions]:
    """Writes the files of one image; returns what the common files need, and the regions of the detector and of the
    true boxes.
    """
    record = scene_record(seed, number, images, held_out)
    scene = record.scene
    combinations = record.combinations
    jpeg = io.BytesIO()
    paint(scene).save(jpeg, "JPEG", quality=JPEG_QUALITY)
    entities = root / "flickr30k_entities"
    (root / "flickr30k-images" / f"{record.image_id}.jpg").write_bytes(jpeg.getvalue())
    (entities / "Sentences" / f"{record.image_id}.txt").write_text(writers.sentences(record), encoding="utf-8")
    (entities / "Annotations" / f"{record.image_id}.xml").write_text(writers.annotation(record), encoding="utf-8")
    rng = random.Random(f"{seed}/expressions/{number}")
    asked = questions.ask(scene, random.Random(f"{seed}/questions/{number}"), combinations)
    composed, entailed = compositional_questions.compose(scene, random.Random(f"{seed}/gqa/{number}"), combinations)
    drawn = DrawnImage(
        record,
        boxes=writers_refcoco.object_boxes(scene),
        detections=features.detect(scene, np.random.default_rng([seed, number])),
        expressions=[writers_refcoco.refer(scene, place, rng, combinations) for place in range(len(scene.objects))],
        questions=asked,
        composed=composed,
        entailed=entailed,
        pairs=writers.phrase_pairs(record),
        parses=writers_conllu.conllu(record),
        sentences=_corpus_sentences(seed, number, held_out),
    )
    # The features come from the stored JPEG, so that they can be recomputed from the file.
    return drawn, *_regions(drawn, Image.open(jpeg, formats=["JPEG"]))


def _corpus_sentences(seed: int, number: int, held_out: bool) -> list[str]:
    """Returns the sentences about the further scene of an image, to train on; there is one for every fourth image."""
    if number % IMAGES_PER_DOCUMENT:
        return []
    _, captions = draw_described_scene(f"{seed}/corpus/{number}", split_combinations("train", held_out))
    return list(map(writers.caption_text, captions))


def _regions(drawn: DrawnImage, image: Image.Image) -> tuple[Regions, Regions]:
    """Returns the regions of the simulated detector, and those of the true boxes; one call describes both."""
    record = drawn.record
    scene = drawn.record.scene
    detections = drawn.detections
    names = [f"{item.colours[0]} {item.shapes[0]}" for item in scene.objects]
    true_boxes = np.array(drawn.boxes, dtype=np.float32)
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
    provenance = {"source": "scenes", "version": VERSION, "seed": seed, "classes": list(features.CLASSES)}
    everything: list[DrawnImage] = []
    with (
        RegionTableWriter(root / "regions", {**provenance, "boxes": "detected"}) as detected,
        RegionTableWriter(root / "regions_gt", {**provenance, "boxes": "ground truth"}) as true,
        mapper(num_proc) as mapped,
    ):
        drawn = mapped(partial(draw, seed, images, root, held_out), range(images))
        for image, regions, true_regions in with_progress(drawn, "scenes", images):
            detected.write(regions)
            true.write(true_regions)
            everything.append(image)
    splits = {split: [everything[n] for n in numbers] for split, numbers in split_numbers(seed, images).items()}
    stated = {
        split: statements.state_all(
            f"{seed}/statements/{split}",
            [(image.image_id, image.record.scene) for image in listed],
            split_combinations(split, held_out),
        )
        for split, listed in splits.items()
    }
    _write_files(root, {**_common_files(everything, splits), **writers_vqa.files(stated), **writers_gqa.files(splits)})
    _write_files(root, writers_lxmert.files(splits["train"], splits["val"]))
    _write_files(root, writers_llava.files(root, seed, splits))

    def counted(count_of: Callable[[DrawnImage], int]) -> dict[str, int]:
        return {split: sum(map(count_of, listed)) for split, listed in splits.items()}

    pairs = {"colours_of_shapes": HELD_OUT_COLOURS, "landmarks_of_relations": HELD_OUT_LANDMARKS}
    captions = counted(lambda image: len(image.record.related_captions))
    asked = counted(lambda image: len(image.questions))
    return {
        "splits": {split: len(listed) for split, listed in splits.items()},
        "phrase_pairs": counted(lambda image: len(image.pairs)),
        "unrelated_captions": sum(image.record.unrelated is not None for image in everything),
        "words": len(_words()),
        "coco_captions": captions,
        "corpus_sentences": sum(len(image.sentences) for image in everything),
        "expressions": counted(lambda image: sum(map(len, image.expressions))),
        "questions": asked,
        "statements": {split: len(made) for split, made in stated.items()},
        "gqa_questions": counted(lambda image: len(image.composed)),
        "lxmert_sentences": writers_lxmert.count_sentences([*splits["train"], *splits["val"]]),
        "llava_turns": {split: count + (asked[split] if split != "test" else 0) for split, count in captions.items()},
        "llava_conversations": {split: len(listed) for split, listed in splits.items()},
        **({"held_out_combinations": pairs} if held_out else {}),
    }


def _write_files(root: Path, files: Mapping[str, str | bytes]) -> None:
    for path, content in files.items():
        make_folder((root / path).parent)
        (root / path).write_bytes(content if isinstance(content, bytes) else content.encode("utf-8"))


def _common_files(everything: list[DrawnImage], splits: Mapping[str, list[DrawnImage]]) -> dict[str, str | bytes]:
    """Returns the files about all images, or all images of a split, by path."""
    files: dict[str, str | bytes] = {
        "flickr30k_entities/UNRELATED_CAPTIONS": writers.unrelated_file(image.record for image in everything),
        "coco/dataset_coco.json": writers.karpathy_file(splits),
        "corpus.txt": writers.corpus_file(image.sentences for image in everything if image.sentences),
        f"{writers_refcoco.NAME}/instances.json": writers_refcoco.instances_file(everything),
        f"{writers_refcoco.NAME}/{writers_refcoco.REFS_FILE}": writers_refcoco.references_file(splits),
        writers_refcoco.DETECTIONS_FILE: writers_refcoco.detections_file(everything),
        "vocab.txt": writers.vocabulary_file(_words()),
    }
    for split, images in splits.items():
        files[f"flickr30k_entities/{split}.txt"] = "".join(f"{image.image_id}\n" for image in images)
        files[f"vgp/{split}_data.csv"] = writers.pairs_file(row for image in images for row in image.pairs)
        files[f"parses/{split}.conllu"] = "".join(image.parses for image in images)
        questions_name, annotations_name = writers_vqa.file_names(split)
        files[f"vqa/{questions_name}"] = writers_vqa.questions_file(images)
        if split != "test":
            captions = writers.captions_file([image.record for image in images])
            files[f"coco/annotations/captions_{split}2014.json"] = captions
            files[f"vqa/{annotations_name}"] = writers_vqa.annotations_file(images)
    return files


def _words() -> list[str]:
    return sorted({*annotators.vocabulary(), *questions.vocabulary(), *statements.vocabulary()})


@contextmanager
def mapper(num_proc: int) -> Iterator[Any]:
    """Gives an ordered lazy `map`, with a pool of processes if `num_proc` is above 1."""
    if num_proc == 1:
        with threadpool_limits(1):
            yield map
        return
    # New processes: forking is not safe after other libraries started threads.
    # One thread each: NumPy's matrix products are small, and waiting threads cost eight times the work.
    with get_context("spawn").Pool(num_proc, threadpool_limits, (1,)) as pool:
        yield partial(pool.imap, chunksize=_CHUNK)


def check_arguments(images: int, seed: int, num_proc: int) -> None:
    bounds = (("images", images, MIN_IMAGES, MAX_IMAGES), ("seed", seed, 0, MAX_SEED))
    for name, value, minimum, maximum in (*bounds, ("num_proc", num_proc, 1, MAX_PROCESSES)):
        refuse_if(value < minimum, f"{name} is too small", found=value, expected=f"at least {minimum}")
        refuse_if(value > maximum, f"{name} is too large", expected=f"at most {maximum}")
