# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""Captions of scenes in the formats of COCO (official and Karpathy's), and sentences about further scenes.

Only captions that belong to their image are written. Images are those of the Flickr30K format: `file_name` and
`filename` are names in `flickr30k-images`, ids are the same numbers.
"""

import json
from collections.abc import Iterable
from dataclasses import dataclass

from .captions import Caption
from .writers import SceneRecord, capital

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
