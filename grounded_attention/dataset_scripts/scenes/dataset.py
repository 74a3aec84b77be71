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
import json
import random
from collections.abc import Iterator
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
from grounded_attention.utils.named_types import Fields
from grounded_attention.utils.progress import with_progress
from grounded_attention.utils.whole_files import make_folder

from . import (
    MIN_IMAGES,
    compositional_questions,
    features,
    questions,
    statements,
    writers,
    writers_conllu,
    writers_questions,
    writers_refcoco,
)
from .records import (
    HELD_OUT,
    DrawnImage,
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
JPEG_QUALITY = 90
# The corpus describes one further scene for this many images.
IMAGES_PER_DOCUMENT = 4
_CHUNK = 16


def write_scenes(
    output: str | Path, images: int, seed: int, num_proc: int = 1, force: bool = False, held_out: bool = False
) -> Fields:
    """Draws scenes and writes them to a folder, unless the folder already holds them."""
    check_images(images)
    identity = {"version": VERSION, "seed": seed, "images": images, HELD_OUT: held_out}
    root = Path(output)
    return write_once(root, identity, force, lambda: _write_all(root, images, seed, num_proc, held_out))


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
    places = range(len(scene.objects))
    expressions = [writers_refcoco.refer(scene, place, rng, combinations) for place in places]
    # The sentences about a further scene are to train on; there is one for every fourth image.
    further_sentences: list[str] = []
    if number % IMAGES_PER_DOCUMENT == 0:
        _, captions = draw_described_scene(f"{seed}/corpus/{number}", split_combinations("train", held_out))
        further_sentences = [caption.written()[0] for caption in captions]
    drawn = DrawnImage(
        **vars(record),
        boxes=writers_refcoco.object_boxes(scene),
        detections=features.detect(scene, np.random.default_rng([seed, number])),
        expressions=expressions,
        questions=asked,
        composed=composed,
        entailed=entailed,
        pairs=writers.phrase_pairs(record),
        parses=writers_conllu.conllu(record),
        sentences=further_sentences,
    )
    # The features come from the stored JPEG, so that they can be recomputed from the file.
    return drawn, *_regions(drawn, Image.open(jpeg, formats=["JPEG"]))


def _regions(drawn: DrawnImage, image: Image.Image) -> tuple[Regions, Regions]:
    """Returns the regions of the simulated detector, and those of the true boxes; one call describes both."""
    detections = drawn.detections
    boxes = np.concatenate((detections.boxes, np.array(drawn.boxes, dtype=np.float32)))
    described = features.pixel_features(image, boxes)
    count = len(detections.boxes)
    scene = drawn.scene
    about: Fields = {"image_id": drawn.image_id, "width": scene.width, "height": scene.height}
    boxes = normalise_boxes(boxes, scene.width, scene.height)
    detected = Regions(**vars(detections) | about | {"boxes": boxes[:count], "features": described[:count]})
    classes = [features.CLASSES.index(f"{item.colours[0]} {item.shapes[0]}") for item in scene.objects]
    true = Regions(
        **about,
        boxes=boxes[count:],
        features=described[count:],
        classes=np.array(classes, dtype=np.int32),
        scores=np.ones(len(classes), dtype=np.float32),
    )
    return detected, true


def _write_all(root: Path, images: int, seed: int, num_proc: int, held_out: bool) -> Fields:
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
    splits = {}
    stated = {}
    for split, numbers in split_numbers(seed, images).items():
        listed = [everything[number] for number in numbers]
        scenes = [(image.image_id, image.scene) for image in listed]
        combinations = split_combinations(split, held_out)
        splits[split] = listed
        stated[split] = statements.state_all(f"{seed}/statements/{split}", scenes, combinations)
    files = writers.files(everything, splits) | writers_refcoco.files(everything, splits)
    files |= writers_questions.vqa_files(splits) | writers_questions.gqa_files(splits)
    files |= writers_questions.nlvr2_files(stated)
    files |= writers_questions.lxmert_files(splits["train"], splits["val"]) | writers_questions.llava_files(
        seed, splits
    )
    for path, content in files.items():
        make_folder((root / path).parent)
        if not isinstance(content, str | bytes):
            content = json.dumps(content) + "\n"
        if isinstance(content, str):
            content = content.encode("utf-8")
        (root / path).write_bytes(content)
    summary: Fields = {"splits": {split: len(listed) for split, listed in splits.items()}}
    if held_out:
        pairs = {"colours_of_shapes": HELD_OUT_COLOURS, "landmarks_of_relations": HELD_OUT_LANDMARKS}
        summary["held_out_combinations"] = pairs
    return summary


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


def check_images(images: int) -> None:
    refuse_if(images < MIN_IMAGES, "images is too small", found=images, expected=f"at least {MIN_IMAGES}")
