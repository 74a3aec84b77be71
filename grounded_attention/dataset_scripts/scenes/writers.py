# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""Writers of scenes and their captions in official file formats: Flickr30K Entities, VGP's typology, COCO captions.

A writer turns a `SceneRecord` into the text of files; `dataset` decides their paths. Formats of other data sets use
the same records.
"""

import csv
import io
import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import combinations

from . import shapes
from .captions import Caption, Entity, Mention
from .language import ALTERNATION, EQUIVALENCE, FORWARD_ENTAILMENT, INDEPENDENCE, REVERSE_ENTAILMENT, relation_between
from .world import Combinations, Scene

SPECIAL_TOKENS = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
UNRELATED_HEADER = "# format: <imageID> <sentence number>"
PAIR_HEADER = ("image", "phrase1", "phrase2", "original_phrase1", "original_phrase2", "original_label", "type_label")
LABEL_NAMES = {
    ALTERNATION: "Alternation",
    FORWARD_ENTAILMENT: "Entailment1",
    REVERSE_ENTAILMENT: "Entailment2",
    EQUIVALENCE: "Equivalence",
    INDEPENDENCE: "Independence",
}
STOP_WORDS = frozenset(("a", "an", "the", "of", "with", "from"))
NOT_VISUAL_TAG = "0/notvisual"
CHAINS_PER_IMAGE = 16
TYPES = {"object": "other", "ground": "scene", "light": "other/scene"}


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

    def chains(self) -> dict[Entity, int]:
        """Returns the chain id, unique in the data set, of every entity in the related captions."""
        mentioned = (mention.entity for caption in self.related_captions for mention in caption.mentions)
        entities = dict.fromkeys(entity for entity in mentioned if entity)
        return {entity: self._chain(place) for place, entity in enumerate(entities)}

    def foreign_chains(self) -> dict[Entity, int]:
        """Returns chain ids for the entities of the unrelated caption; they refer to nothing in this image."""
        if self.unrelated is None:
            return {}
        entities = dict.fromkeys(
            mention.entity for mention in self.captions[self.unrelated].mentions if mention.entity
        )
        return {entity: self._chain(CHAINS_PER_IMAGE - 1 - place) for place, entity in enumerate(entities)}

    def _chain(self, place: int) -> int:
        return 1 + CHAINS_PER_IMAGE * self.number + place


def sentences(record: SceneRecord) -> str:
    """Returns the text of Sentences/<id>.txt: one tagged caption a line."""
    chains, foreign = record.chains(), record.foreign_chains()
    return "".join(
        f"{_tagged(caption, foreign if index == record.unrelated else chains)}\n"
        for index, caption in enumerate(record.captions)
    )


def annotation(record: SceneRecord) -> str:
    """Returns the text of Annotations/<id>.xml: boxes (from 1, last pixel included) of all mentioned objects."""
    scene = record.scene
    chains = record.chains()
    lines = ["<annotation>", f"\t<filename>{record.image_id}.jpg</filename>"]
    lines += _element("size", 1, [("width", scene.width), ("height", scene.height), ("depth", 3)])
    for number, item in enumerate(scene.objects):
        names = [("name", chain) for entity, chain in chains.items() if number in entity.members]
        if names:
            corners = _inclusive(shapes.box(item), scene)
            box = _element("bndbox", 2, zip(("xmin", "ymin", "xmax", "ymax"), corners, strict=True))
            lines += [*_element("object", 1, names)[:-1], *box, "\t</object>"]
    for entity, chain in chains.items():
        if not entity.members:
            flags = [("name", chain), ("scene", int(entity.kind == "ground")), ("nobndbox", 1)]
            lines += _element("object", 1, flags)
    return "\n".join((*lines, "</annotation>", ""))


def phrase_pairs(record: SceneRecord) -> list[tuple[str, ...]]:
    """The rows of <split>_data.csv for an image: pairs of different phrases in two captions about one entity."""
    texts_by_entity: dict[Entity, list[tuple[int, str]]] = {}
    for index, caption in enumerate(record.related_captions):
        for mention, text in _written_mentions(caption):
            if mention.entity:
                texts_by_entity.setdefault(mention.entity, []).append((index, text))
    rows: dict[frozenset[str], tuple[str, ...]] = {}
    for mentions in texts_by_entity.values():
        for (first_caption, first), (second_caption, second) in combinations(mentions, 2):
            key = frozenset((first, second))
            if first_caption == second_caption or content_words(first) == content_words(second) or key in rows:
                continue
            pair = (first, second) if len(rows) % 2 == 0 else (second, first)
            rows[key] = _pair_row(record.image_id, *pair)
    return list(rows.values())


def pairs_file(records_rows: Iterable[Sequence[str]]) -> str:
    """Returns the text of <split>_data.csv."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(PAIR_HEADER)
    writer.writerows(records_rows)
    return text.getvalue()


def unrelated_file(records: Iterable[tuple[str, int]]) -> str:
    """Returns the text of UNRELATED_CAPTIONS; sentences count from 1, without a newline at the end."""
    return "\n".join((UNRELATED_HEADER, *(f"{image_id} {index + 1}" for image_id, index in records)))


def vocabulary_file(words: Iterable[str]) -> str:
    """Returns the text of vocab.txt, a WordPiece vocabulary: the special tokens of BERT, then the words."""
    return "".join(f"{word}\n" for word in (*SPECIAL_TOKENS, *words))


def content_words(phrase: str) -> str:
    """Returns a phrase in lower case without articles and prepositions, as in the columns phrase1 and phrase2."""
    return " ".join(word for word in phrase.lower().split() if word not in STOP_WORDS)


def _pair_row(image_id: str, first: str, second: str) -> tuple[str, ...]:
    label = relation_between(Mention(first, None).meaning, Mention(second, None).meaning)
    return (image_id, content_words(first), content_words(second), first, second, LABEL_NAMES[label], str(label))


def _written_mentions(caption: Caption) -> list[tuple[Mention, str]]:
    """Returns the mentions in order with their written text: a phrase at the start of the sentence has a capital."""
    numbers = [token for token in caption.tokens if isinstance(token, int)]
    return [
        (caption.mentions[number], capital(caption.mentions[number].text, number == caption.tokens[0]))
        for number in numbers
    ]


def _tagged(caption: Caption, chains: dict[Entity, int]) -> str:
    mentions = iter(_written_mentions(caption))
    words = []
    for place, token in enumerate(caption.tokens):
        if isinstance(token, int):
            mention, text = next(mentions)
            tag = f"{chains[mention.entity]}/{TYPES[mention.entity.kind]}" if mention.entity else NOT_VISUAL_TAG
            words.append(f"[/EN#{tag} {text}]")
        else:
            words.append(capital(token, place == 0))
    return " ".join((*words, "."))


def capital(text: str, first: bool) -> str:
    """Capitalises the first word of a sentence."""
    return text[0].upper() + text[1:] if first else text


def _element(name: str, depth: int, children: Iterable[tuple[str, object]]) -> list[str]:
    """Returns the lines of an XML element whose children hold numbers."""
    indent = "\t" * depth
    inner = [f"{indent}\t<{child}>{value}</{child}>" for child, value in children]
    return [f"{indent}<{name}>", *inner, f"{indent}</{name}>"]


def _inclusive(box: Sequence[float], scene: Scene) -> tuple[int, int, int, int]:
    """Returns the first and last pixels of a box, counted from 1; clips those of a tilted object to the image."""
    x1, y1, x2, y2 = box
    return max(int(x1), 0) + 1, max(int(y1), 0) + 1, min(int(x2) + 1, scene.width), min(int(y2) + 1, scene.height)


CAPTION_IDS_PER_IMAGE = 8
IMAGE_FOLDER = "flickr30k-images"


@dataclass(frozen=True)
class CaptionedImage:
    """The data of an image in the COCO files: its number and id, its size in pixels, its captions."""

    number: int
    image_id: str
    width: int
    height: int
    captions: tuple[str, ...]

    @classmethod
    def of(cls, record: SceneRecord) -> "CaptionedImage":
        """Makes the image of a record, without a caption that was written for another image."""
        captions = tuple(caption_text(caption) for caption in record.related_captions)
        return cls(record.number, record.image_id, record.scene.width, record.scene.height, captions)

    def identified_captions(self) -> list[tuple[int, str]]:
        """Returns the captions with ids that are unique in the data set."""
        return list(enumerate(self.captions, CAPTION_IDS_PER_IMAGE * self.number + 1))


def caption_text(caption: Caption) -> str:
    """Returns a caption in the form of the Flickr30K format: words separated by spaces, a capital, a period."""
    return f"{capital(caption.text, True)} ."


def captions_file(images: Iterable[CaptionedImage], year: int = 2014) -> str:
    """Returns the text of annotations/captions_<split><year>.json."""
    listed = list(images)
    content = {
        "info": {"description": "Drawn scenes", "year": year},
        "images": [
            {"id": int(each.image_id), "file_name": f"{each.image_id}.jpg", "width": each.width, "height": each.height}
            for each in listed
        ],
        "licenses": [],
        "annotations": [
            {"image_id": int(each.image_id), "id": caption_id, "caption": text}
            for each in listed
            for caption_id, text in each.identified_captions()
        ],
    }
    return json.dumps(content) + "\n"


def karpathy_file(images: Iterable[tuple[str, CaptionedImage]]) -> str:
    """Returns the text of dataset_coco.json from (split, image)."""
    return json.dumps({"images": [_karpathy_image(split, each) for split, each in images], "dataset": "coco"}) + "\n"


def corpus_file(documents: Iterable[Iterable[str]]) -> str:
    """Returns the text of corpus.txt: one sentence a line, a blank line between documents."""
    return "\n".join("".join(f"{sentence}\n" for sentence in sentences) for sentences in documents)


def _karpathy_image(split: str, image: CaptionedImage) -> dict[str, object]:
    sentences = [
        {"tokens": text.lower().split()[:-1], "raw": text, "imgid": image.number, "sentid": caption_id}
        for caption_id, text in image.identified_captions()
    ]
    return {
        "filepath": IMAGE_FOLDER,
        "sentids": [sentence["sentid"] for sentence in sentences],
        "filename": f"{image.image_id}.jpg",
        "imgid": image.number,
        "split": split,
        "sentences": sentences,
        "cocoid": int(image.image_id),
    }
