# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""Texts with phrases and boxes from the rows of builders, and prompts of a vision-language model from them.

A phrase is the phrase of an entity with its boxes, or a word that a dependency relates to an entity, with the boxes of
the entity. All that reads heads treats both in the same way.
"""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from grounded_attention.processing.phrase import Phrase, read_phrase, row_texts
from grounded_attention.utils.boxes import check_shape
from grounded_attention.utils.named_types import Row, Size
from grounded_attention.utils.open_images import open_image
from grounded_attention.utils.plain_text import check_one_of

from . import WORDS

# A picture of an image id.
Images = Callable[[str], Any] | Mapping[str, Any]
# The tokens of a phrase that give its attention, as indices into them. The paper (Li et al., 2020) writes "word"
# without saying which word of a phrase; its grounding fine-tuning (appendix B.4) uses the last sub-word, our default
# for models that read regions.
TOKENS: dict[str, slice] = {"last": slice(-1, None), "first": slice(0, 1), "mean": slice(None)}


@dataclass(frozen=True, eq=False)
class AuditExample:
    """A caption of an image with its phrases, whose boxes are (n, 4) float32; one without boxes is skipped.

    Their types are groups of the report besides "all": types of an entity, or the relation of a syntactic query.
    `size` is width and height in pixels of the upright picture, if the row has them.
    """

    image_id: str
    caption: str
    phrases: tuple[Phrase, ...]
    size: Size | None = None


def size_of(row: Row) -> Size | None:
    """Width and height of a row, if it has both."""
    size = row.get("width"), row.get("height")
    return None if None in size else size  # type: ignore[return-value]


def grounded_examples(rows: Iterable[Row]) -> Iterable[AuditExample]:
    """Makes examples of the texts and phrases of rows, of a builder or of [`grounded_rows`].

    Args:
        rows (`Iterable[Mapping[str, Any]]`): rows with `phrases`, and `text`, `captions` or `messages`.

    Returns:
        `Iterable[AuditExample]`: the examples, made whenever they are read, so that any number of rows takes no
            memory; an iterator if `rows` are one. Texts without phrases are left out, and so is a caption (by its id)
            that an earlier row of the image has too.

    Raises:
        ValueError: if the rows have other columns.
    """
    if isinstance(rows, Iterator):
        return _examples_of(rows)
    return _Examples(rows)


@dataclass(frozen=True)
class _Examples(Iterable[AuditExample]):
    """The examples of rows that can be read again."""

    rows: Iterable[Row]

    def __iter__(self) -> Iterator[AuditExample]:
        return _examples_of(self.rows)


def _examples_of(rows: Iterable[Row]) -> Iterator[AuditExample]:
    seen: set[tuple[str, str]] = set()
    for row in rows:
        if "phrases" not in row or not row.keys() & {"text", "captions", "messages"}:
            raise ValueError(
                f"rows with the columns {', '.join(row)} have no phrases with boxes; use flickr30k_entities, vgp, "
                "refcoco or visual_genome_regions"
            )
        ids = row.get("caption_ids")
        related = row.get("related")
        for number, example in _texts_of_row(row):
            if related is not None and not related[number]:
                continue
            if ids is not None:
                if (row["image_id"], ids[number]) in seen:
                    continue
                seen.add((row["image_id"], ids[number]))
            yield example


# The place of a picture in the text of a conversation; the processor puts its own there.
_PLACE = re.compile(r"<(?:image|img)>\s*")


def _texts_of_row(row: Row) -> Iterator[tuple[int, AuditExample]]:
    """The texts of a row that have phrases, with their numbers; of several pictures one after another."""
    texts = row_texts(row)
    phrases = [read_phrase(each, texts, f"image {row['image_id']}", grounded=True) for each in row["phrases"]]
    for number, text in enumerate(texts):
        clean = _PLACE.sub("", text)
        for image in dict.fromkeys(each.image or 0 for each in phrases if each.sentence == number):
            shown = []
            for each in phrases:
                if each.sentence == number and (each.image or 0) == image:
                    before = len(text[: each.start]) - len(_PLACE.sub("", text[: each.start]))
                    start = each.start - before
                    end = each.end - before
                    moved = replace(each, start=start, end=end, sentence=0, image=0)
                    moved_boxes = np.asarray(each.boxes, dtype=np.float32).reshape(-1, 4)
                    shown.append(replace(moved, boxes=moved_boxes, types=tuple(each.types)))
            name = picture_name(row["image_id"], image)
            yield number, AuditExample(name, clean, tuple(shown), size_of(row) if image == 0 else None)


def picture_name(image_id: str, number: int) -> str:
    """The id of a picture of a row that may have several."""
    if number:
        return f"{image_id}:{number}"
    return image_id


# Prompts


@dataclass(frozen=True)
class PromptSettings:
    """How a text with phrases becomes a prompt, and which tokens ask where a phrase is."""

    words: str = "mean"
    instruction: str | None = None

    def __post_init__(self) -> None:
        check_one_of(self.words, WORDS, "words=")
        if self.words == "prompt" and self.instruction is not None:
            raise ValueError("words='prompt' reads the end of the user's words; remove the instruction")

    def split(self, example: AuditExample) -> Iterator[AuditExample]:
        """The prompts of an example: itself, or one for each phrase."""
        if self.words != "prompt":
            yield example
            return
        for phrase in example.phrases:
            text = example.caption[phrase.start : phrase.end]
            yield replace(example, caption=text, phrases=(replace(phrase, text=text, start=0, end=len(text)),))


def grounded_prompts(examples: Iterable[AuditExample], settings: PromptSettings) -> list[AuditExample]:
    """The prompts of examples; phrases without boxes, and examples without phrases, are left out."""
    prompts: list[AuditExample] = []
    for example in examples:
        phrases = tuple(phrase for phrase in example.phrases if len(phrase.boxes))
        if phrases:
            prompts += settings.split(replace(example, phrases=phrases))
    return prompts


def find_picture(images: Images, image_id: str) -> Any:
    """The picture of an image; a ValueError if a mapping does not have it. A function raises its own errors."""
    if callable(images):
        return images(image_id)
    if image_id not in images:
        raise ValueError(f"image {image_id!r}: images has no picture of it")
    return images[image_id]


def make_batch(processor: Any, examples: Sequence[AuditExample], images: Images, settings: PromptSettings) -> Any:
    """Makes the batch of B prompts (made by `PromptSettings.split`) with their phrases and pictures."""
    pictures = []
    for example in examples:
        pictures.append(open_image(find_picture(images, example.image_id), f"image {example.image_id}"))
        check_shape(example.size, pictures[-1].size, example.image_id, "picture")
    answers = settings.instruction is not None
    phrases = [[replace(phrase, sentence=int(answers)) for phrase in example.phrases] for example in examples]
    texts = [example.caption for example in examples]
    turns = ([settings.instruction] * len(texts), texts) if answers else (texts, None)
    try:
        for number, text in enumerate(texts):
            processor.check_text(text, f"Example {number}")
        return processor(*turns, images=pictures, phrases=phrases)
    except ValueError as error:
        names = ", ".join(dict.fromkeys(example.image_id for example in examples))
        raise ValueError(f"a batch of the images {names}: {error}") from error
