# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""The input of an audit: captions, phrases in them, and the gold boxes of the phrases.

A phrase is either the phrase of an entity with its boxes, or a word that a dependency relates to an entity, with the
boxes of the entity. The audit treats both in the same way.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from grounded_attention.processing.phrase import Phrase, read_phrase


@dataclass(frozen=True, eq=False)
class AuditExample:
    """A caption of an image with its phrases, whose boxes are (n, 4) float32; one without boxes is skipped.

    Their types are groups of the report besides "all": types of an entity, or the relation of a syntactic query.
    `size` is width and height in pixels of the upright picture, if the row has them.
    """

    image_id: str
    caption: str
    phrases: tuple[Phrase, ...]
    size: tuple[int, int] | None = None


def entity_examples(rows: Iterable[Mapping[str, Any]]) -> Iterator[AuditExample]:
    """Makes examples of the captions and entity phrases of a builder's rows, such as Flickr30K Entities."""
    seen: set[tuple[str, str]] = set()
    for row in rows:
        if "entities" in row:
            yield from _of_image(row)
        elif "caption1" in row and "phrases" in row:
            for number, example in enumerate(_of_pair(row)):
                key = (example.image_id, row.get(f"caption{number + 1}_id") or example.caption)
                if example.phrases and key not in seen:
                    seen.add(key)
                    yield example
        else:
            raise ValueError(
                f"rows of {', '.join(row)} have no captions with phrases; expected captions and entities, or "
                "caption1, caption2 and phrases, as the builders flickr30k_entities and vgp have"
            )


def _of_image(row: Mapping[str, Any]) -> Iterator[AuditExample]:
    boxes = {entity["entity_id"]: _array(entity["boxes"]) for entity in row["entities"]}
    for caption in row["captions"]:
        if caption.get("related", True):
            yield AuditExample(
                row["image_id"],
                caption["text"],
                tuple(
                    _read(
                        {**phrase, "boxes": boxes.get(phrase["entity_id"], _array([]))},
                        [caption["text"]],
                        row["image_id"],
                    )
                    for phrase in caption["phrases"]
                ),
                size_of(row),
            )


def _of_pair(row: Mapping[str, Any]) -> Iterator[AuditExample]:
    captions = [row["caption1"], row["caption2"]]
    phrases = [_read(phrase, captions, row["image_id"]) for phrase in row["phrases"]]
    for number, caption in enumerate(captions):
        found = tuple(replace(phrase, sentence=0) for phrase in phrases if phrase.sentence == number)
        yield AuditExample(row["image_id"], caption, found)


def size_of(row: Mapping[str, Any]) -> tuple[int, int] | None:
    """Width and height of a row, if it has both."""
    size = row.get("width"), row.get("height")
    return None if None in size else size  # type: ignore[return-value]


def _read(phrase: Mapping[str, Any], captions: Sequence[str], image_id: str) -> Phrase:
    read = read_phrase(phrase, captions, f"image {image_id}, phrase {phrase.get('text')!r}", grounded=True)
    return replace(
        read, boxes=_array(read.boxes), types=(read.types,) if isinstance(read.types, str) else tuple(read.types)
    )


def _array(boxes: Any) -> npt.NDArray[np.float32]:
    return np.asarray(boxes, dtype=np.float32).reshape(-1, 4)
