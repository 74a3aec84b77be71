# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""Writers of scenes and their captions in official file formats: Flickr30K Entities, VGP's typology, COCO captions.

A writer turns a `SceneRecord` into the text of files; `dataset` decides their paths. Formats of other data sets use
the same records.
"""

import csv
import io
import json
from collections.abc import Iterable, Mapping, Sequence
from itertools import combinations

from . import shapes
from .captions import Caption, Entity, Mention
from .drawn import DrawnImage, SceneRecord
from .language import ALTERNATION, EQUIVALENCE, FORWARD_ENTAILMENT, INDEPENDENCE, REVERSE_ENTAILMENT, relation_between
from .world import Scene

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
TYPES = {"object": "other", "ground": "scene", "light": "other/scene"}


def sentences(record: SceneRecord) -> str:
    """Returns the text of Sentences/<id>.txt: one tagged caption a line."""
    chains = record.chains()
    foreign = record.foreign_chains()
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


def unrelated_file(records: Iterable[SceneRecord]) -> str:
    """Returns the text of UNRELATED_CAPTIONS; sentences count from 1, without a newline at the end."""
    lines = (f"{record.image_id} {record.unrelated + 1}" for record in records if record.unrelated is not None)
    return "\n".join((UNRELATED_HEADER, *lines))


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
    mentions = [caption.mentions[number] for number in numbers]
    return [
        (mention, capital(mention.text, number == caption.tokens[0]))
        for number, mention in zip(numbers, mentions, strict=True)
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
    if first:
        return text[0].upper() + text[1:]
    return text


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


def caption_text(caption: Caption) -> str:
    """Returns a caption in the form of the Flickr30K format: words separated by spaces, a capital, a period."""
    return f"{capital(caption.text, True)} ."


def numbered_captions(record: SceneRecord) -> list[tuple[int, str]]:
    """The captions of an image, without one of another image, with ids that are unique in the data set."""
    return list(enumerate(map(caption_text, record.related_captions), CAPTION_IDS_PER_IMAGE * record.number + 1))


def listed_images(records: Iterable[SceneRecord]) -> list[dict[str, object]]:
    """Images as COCO's files of annotations list them."""
    return [
        {
            "id": int(record.image_id),
            "file_name": f"{record.image_id}.jpg",
            "width": record.scene.width,
            "height": record.scene.height,
        }
        for record in records
    ]


def captions_file(records: Sequence[SceneRecord]) -> str:
    """Returns the text of annotations/captions_<split>2014.json."""
    content = {
        "info": {"description": "Drawn scenes", "year": 2014},
        "images": listed_images(records),
        "licenses": [],
        "annotations": [
            {"image_id": int(record.image_id), "id": caption_id, "caption": text}
            for record in records
            for caption_id, text in numbered_captions(record)
        ],
    }
    return json.dumps(content) + "\n"


def karpathy_file(splits: Mapping[str, Iterable[DrawnImage]]) -> str:
    """Returns the text of dataset_coco.json."""
    images = [_karpathy_image(split, each.record) for split, listed in splits.items() for each in listed]
    return json.dumps({"images": images, "dataset": "coco"}) + "\n"


def corpus_file(documents: Iterable[Iterable[str]]) -> str:
    """Returns the text of corpus.txt: one sentence a line, a blank line between documents."""
    return "\n".join("".join(f"{sentence}\n" for sentence in sentences) for sentences in documents)


def _karpathy_image(split: str, record: SceneRecord) -> dict[str, object]:
    sentences = [
        {"tokens": text.lower().split()[:-1], "raw": text, "imgid": record.number, "sentid": caption_id}
        for caption_id, text in numbered_captions(record)
    ]
    return {
        "filepath": IMAGE_FOLDER,
        "sentids": [sentence["sentid"] for sentence in sentences],
        "filename": f"{record.image_id}.jpg",
        "imgid": record.number,
        "split": split,
        "sentences": sentences,
        "cocoid": int(record.image_id),
    }
