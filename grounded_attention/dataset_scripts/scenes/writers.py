# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""Writers of scenes and their captions in official file formats: Flickr30K Entities, VGP's typology, COCO captions.

A writer turns what is drawn about images into the contents of files, by path; `dataset` writes them.
"""

import csv
import io
from collections.abc import Iterable, Sequence
from itertools import combinations
from typing import Any

from grounded_attention.utils.named_types import Fields

from . import shapes
from .captions import Entity
from .language import (
    ALTERNATION,
    EQUIVALENCE,
    FORWARD_ENTAILMENT,
    FUNCTION_WORDS,
    INDEPENDENCE,
    REVERSE_ENTAILMENT,
    meaning_of,
    relation_between,
)
from .records import DrawnImage, Files, SceneRecord, Splits
from .world import Scene, SceneObject

SPECIAL_TOKENS = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
# All words of captions, expressions, questions, answers and statements.
WORDS = """, . 0 1 2 3 4 5 6 ? a above amber an and are azure background ball balls be beach below beside big block
blocks blue bluish both box boxes can cans circle circles close color colorful cone cones couple crimson cross crosses
cube cubes cylinder cylinders dots dotted each emerald field figure figures floor from funnel funnels golden grass
grassy gray green grey ground group heart hearts higher hoop hoops how huge image in is it item items kind large lawn
left lie lies light little many medium near next no object objects of on one orange other over pair pattern patterned
pavement photo picture pink plain plus pluses pointed purple rectangle rectangles red reddish rest rests right ring
rings rosy round sand sandy see seen several shape shapes shows side sit sits size small smooth solid solids some
sphere spheres spots spotted square squares stand stands star stars stone stony striped stripes sunlight sunshine
surface table than that the them there thing things this three tiny to triangle triangles tube tubes two under
underneath violet we what while with wood wooden yellow yes you""".split()
PAIR_HEADER = ("image", "phrase1", "phrase2", "original_phrase1", "original_phrase2", "original_label", "type_label")
LABEL_NAMES = {
    ALTERNATION: "Alternation",
    FORWARD_ENTAILMENT: "Entailment1",
    REVERSE_ENTAILMENT: "Entailment2",
    EQUIVALENCE: "Equivalence",
    INDEPENDENCE: "Independence",
}
TYPES = {"object": "other", "ground": "scene", "light": "other/scene"}
CAPTION_IDS_PER_IMAGE = 8


def files(everything: Sequence[DrawnImage], splits: Splits) -> Files:
    """The files of captions, phrase pairs, parses and sentences, and the vocabulary."""
    unrelated = ["# format: <imageID> <sentence number>"]
    documents = []
    for image in everything:
        if image.unrelated is not None:
            unrelated.append(f"{image.image_id} {image.unrelated + 1}")
        if image.sentences:
            documents.append("".join(f"{sentence}\n" for sentence in image.sentences))
    written: Files = {
        "flickr30k_entities/UNRELATED_CAPTIONS": "\n".join(unrelated),
        "corpus.txt": "\n".join(documents),
        "coco/dataset_coco.json": {"images": _karpathy_images(splits), "dataset": "coco"},
        "vocab.txt": "".join(f"{word}\n" for word in (*SPECIAL_TOKENS, *WORDS)),
    }
    for split, images in splits.items():
        written[f"flickr30k_entities/{split}.txt"] = "".join(f"{image.image_id}\n" for image in images)
        written[f"vgp/{split}_data.csv"] = _pairs_file(images)
        written[f"parses/{split}.conllu"] = "".join(image.parses for image in images)
        if split != "test":
            written[f"coco/annotations/captions_{split}2014.json"] = _captions_file(images)
    return written


# Flickr30K Entities


def sentences(record: SceneRecord) -> str:
    """Returns the text of Sentences/<id>.txt: one tagged caption a line."""
    lines = []
    for index, caption in enumerate(record.captions):
        chains = record.chains(foreign=index == record.unrelated)
        text, spans = caption.written()
        for mention, start, end in reversed(spans):
            tag = "0/notvisual"
            if mention.entity:
                tag = f"{chains[mention.entity]}/{TYPES[mention.entity.kind]}"
            text = f"{text[:start]}[/EN#{tag} {text[start:end]}]{text[end:]}"
        lines.append(f"{text}\n")
    return "".join(lines)


def annotation(record: SceneRecord) -> str:
    """Returns the text of Annotations/<id>.xml: boxes (from 1, last pixel included) of all mentioned objects."""
    scene = record.scene
    chains = record.chains()
    size = [("width", scene.width), ("height", scene.height), ("depth", 3)]
    content: list[tuple[str, Any]] = [("filename", f"{record.image_id}.jpg"), ("size", size)]
    for number, item in enumerate(scene.objects):
        names: list[tuple[str, Any]] = [
            ("name", chain) for entity, chain in chains.items() if number in entity.members
        ]
        if names:
            x1, y1, x2, y2 = pixels_of(item, scene)
            corners = [("xmin", x1 + 1), ("ymin", y1 + 1), ("xmax", x2 + 1), ("ymax", y2 + 1)]
            content.append(("object", [*names, ("bndbox", corners)]))
    for entity, chain in chains.items():
        if not entity.members:
            flags = [("name", chain), ("scene", int(entity.kind == "ground")), ("nobndbox", 1)]
            content.append(("object", flags))
    return _element("annotation", content)


def _element(name: str, content: Any, indent: str = "") -> str:
    """The text of an XML element: of its children, or of its number."""
    if isinstance(content, list):
        inner = "".join(_element(child, value, f"{indent}\t") for child, value in content)
        return f"{indent}<{name}>\n{inner}{indent}</{name}>\n"
    return f"{indent}<{name}>{content}</{name}>\n"


def pixels_of(item: SceneObject, scene: Scene) -> tuple[int, int, int, int]:
    """Returns the first and last pixels of an object, counted from 0; a tilted one may reach out of the image."""
    x1, y1, x2, y2 = map(int, shapes.box(item))
    return max(x1, 0), max(y1, 0), min(x2, scene.width - 1), min(y2, scene.height - 1)


# VGP


def phrase_pairs(record: SceneRecord) -> list[tuple[str, ...]]:
    """The rows of <split>_data.csv for an image: pairs of different phrases in two captions about one entity."""
    texts_by_entity: dict[Entity, list[tuple[int, str]]] = {}
    for index, caption in enumerate(record.related_captions):
        text, spans = caption.written()
        for mention, start, end in spans:
            if mention.entity:
                texts_by_entity.setdefault(mention.entity, []).append((index, text[start:end]))
    rows: dict[frozenset[str], tuple[str, ...]] = {}
    for mentions in texts_by_entity.values():
        for (first_caption, first), (second_caption, second) in combinations(mentions, 2):
            key = frozenset((first, second))
            if first_caption == second_caption or _content_words(first) == _content_words(second) or key in rows:
                continue
            pair = (first, second) if len(rows) % 2 == 0 else (second, first)
            label = relation_between(*map(meaning_of, pair))
            rows[key] = (record.image_id, *map(_content_words, pair), *pair, LABEL_NAMES[label], str(label))
    return list(rows.values())


def _content_words(phrase: str) -> str:
    """Returns a phrase in lower case without articles and prepositions, as in the columns phrase1 and phrase2."""
    return " ".join(word for word in phrase.lower().split() if word not in FUNCTION_WORDS)


def _pairs_file(images: Iterable[DrawnImage]) -> str:
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(PAIR_HEADER)
    for image in images:
        writer.writerows(image.pairs)
    return text.getvalue()


# COCO captions


def _numbered_captions(record: SceneRecord) -> Iterable[tuple[int, str]]:
    """The captions with ids that are unique in the data set."""
    return enumerate(related_texts(record), CAPTION_IDS_PER_IMAGE * record.number + 1)


def related_texts(record: SceneRecord) -> list[str]:
    """The captions of an image, without one of another image."""
    return [caption.written()[0] for caption in record.related_captions]


def listed_images(images: Iterable[DrawnImage]) -> list[Fields]:
    """Images as COCO's files of annotations list them."""
    listed = []
    for image in images:
        listed.append(
            {
                "id": int(image.image_id),
                "file_name": f"{image.image_id}.jpg",
                "width": image.scene.width,
                "height": image.scene.height,
            }
        )
    return listed


def _captions_file(images: Sequence[DrawnImage]) -> Fields:
    """The content of annotations/captions_<split>2014.json."""
    annotations = []
    for image in images:
        for caption_id, text in _numbered_captions(image):
            annotations.append({"image_id": int(image.image_id), "id": caption_id, "caption": text})
    return {
        "info": {"description": "Drawn scenes", "year": 2014},
        "images": listed_images(images),
        "licenses": [],
        "annotations": annotations,
    }


def _karpathy_images(splits: Splits) -> list[Fields]:
    listed = []
    for split, images in splits.items():
        for image in images:
            sentences = []
            for caption_id, text in _numbered_captions(image):
                sentences.append(
                    {"tokens": text.lower().split()[:-1], "raw": text, "imgid": image.number, "sentid": caption_id}
                )
            listed.append(
                {
                    "filepath": "flickr30k-images",
                    "sentids": [sentence["sentid"] for sentence in sentences],
                    "filename": f"{image.image_id}.jpg",
                    "imgid": image.number,
                    "split": split,
                    "sentences": sentences,
                    "cocoid": int(image.image_id),
                }
            )
    return listed
