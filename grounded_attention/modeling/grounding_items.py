# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""One input of the pipeline `visual-grounding`: a caption, its phrases and the regions of its image, with checks."""

import importlib
import importlib.util
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from io import BytesIO
from typing import Any
from urllib.request import Request, urlopen

import numpy as np
from PIL import Image

from ..processing.phrase import Phrase, read_phrase
from ..processing.region_boxes import check_pixel_boxes
from ..utils.named_types import Size
from ..utils.whole_words import find_words, whole_words

SPACY_MODEL = "en_core_web_sm"
GIVEN = "given"
BY_SPACY = f"noun phrases by spaCy ({SPACY_MODEL})"
BY_WORDS = "each content word"

# English words that do not describe anything visible.
FUNCTION_WORDS = frozenset(
    "a about above across after against all along also am among an and another any are around as at be because been "
    "before behind being below beneath beside between both but by can could did do does doing down during each either "
    "every few for from had has have having he her hers him his how i if in inside into is it its itself just like "
    "many may me might mine more most much my near neither next no nor not of off on onto or other our out outside "
    "over own shall she should so some such than that the their them then there these they this those through to "
    "together too toward towards under until up upon us very was we were what when where which while who whom whose "
    "why will with within without would you your".split()
)


def find_phrases(caption: str, wanted: Sequence[str | Sequence[int]] | None = None) -> tuple[list[Phrase], str]:
    """Finds the phrases of an English caption."""
    if wanted is not None:
        phrases = _locate(caption, [wanted] if isinstance(wanted, str) else wanted)
        way = GIVEN
    elif _has_spacy():
        phrases = _noun_phrases(caption)
        way = BY_SPACY
    else:
        phrases = content_words(caption)
        way = BY_WORDS
    if not phrases:
        raise ValueError(f"caption {caption!r} has no phrases ({way}); expected a caption that describes the image")
    return phrases, way


def _locate(caption: str, wanted: Sequence[str | Sequence[int]]) -> list[Phrase]:
    phrases: list[Phrase] = []
    for one in wanted:
        if isinstance(one, Mapping | Phrase):
            phrases.append(read_phrase(one, [caption], f"phrase {len(phrases)}"))
        elif not isinstance(one, str):
            try:
                start, end = map(int, one)
            except (TypeError, ValueError):
                start = end = 0
            if not 0 <= start < end <= len(caption):
                raise ValueError(
                    f"phrase {one!r:.80}: expected a text, or start and end of a span with "
                    f"0 <= start < end <= {len(caption)}"
                )
            span = Phrase(caption[start:end], start, end)
            phrases.append(span)
        elif one.strip():
            phrases.append(_occurrence(caption, one.strip(), phrases))
    return sorted(phrases, key=lambda phrase: (phrase.start, phrase.end))


def _occurrence(caption: str, text: str, known: Sequence[Phrase]) -> Phrase:
    """The first occurrence of the text, at word boundaries, that is not in `known`."""
    taken = {other.start for other in known if other.text.lower() == text.lower()}
    for start, end in whole_words(re.escape(text), caption, re.IGNORECASE):
        if start not in taken:
            return Phrase(caption[start:end], start, end)
    often = f" {len(taken) + 1} times" if taken else ""
    raise ValueError(f"phrase {text!r} does not occur{often} in the caption {caption!r}, as whole words")


def content_words(caption: str) -> list[Phrase]:
    """Every word of the caption except English function words."""
    words = [Phrase(caption[start:end], start, end) for start, end in find_words(caption)]
    return [word for word in words if word.text[0].isalnum() and word.text.lower() not in FUNCTION_WORDS]


def unknown_words(tokenizer: Any, caption: str) -> list[str]:
    """The words of a caption that the tokenizer replaces by [UNK], each once, in order, without punctuation."""
    encoded = tokenizer(caption, return_offsets_mapping=True, add_special_tokens=False, split_special_tokens=True)
    pairs = zip(encoded["input_ids"], encoded["offset_mapping"], strict=True)
    parts = [caption[start:end] for token, (start, end) in pairs if token == tokenizer.unk_token_id]
    return list(dict.fromkeys(word for word in parts if re.search(r"\w", word)))


def _has_spacy() -> bool:
    return all(importlib.util.find_spec(name) is not None for name in ("spacy", SPACY_MODEL))


@cache
def _parser() -> Any:
    # Not an import statement: transformers requires every package that the files of a checkpoint import.
    return importlib.import_module("spacy").load(SPACY_MODEL)


def _noun_phrases(caption: str) -> list[Phrase]:
    chunks = _parser()(caption).noun_chunks
    return [Phrase(chunk.text, chunk.start_char, chunk.end_char) for chunk in chunks if chunk.root.pos_ != "PRON"]


@dataclass(eq=False)
class GroundingItem:
    """A caption, its phrases and the regions of its image; n regions."""

    caption: str
    phrases: list[Phrase]  # spans of the caption
    image: Image.Image | None = None  # the image, if it is needed
    size: Size | None = None  # width and height in pixels; required if boxes are given
    boxes: np.ndarray | None = None  # (n, 4): `(x1, y1, x2, y2)` divided by width and height, float32
    features: np.ndarray | None = None  # (n, D): region features
    scores: list[float] | None = None  # the detector's score of each region
    labels: Sequence[str | None] = ()  # the detector's class of each region

    @property
    def known_boxes(self) -> np.ndarray:
        """`boxes`; `ValueError` if no regions were found."""
        if self.boxes is None:
            raise ValueError(f"no regions were found for the caption {self.caption!r}")
        return self.boxes

    @property
    def pixels(self) -> np.ndarray:
        """The boxes in pixels, `(n, 4)` float32."""
        size = self.size or (self.image.size if self.image is not None else (1, 1))
        return self.known_boxes * np.tile(np.asarray(size, np.float32), 2)


def image_size(image: Image.Image | None, size: Any) -> Size | None:
    """Width and height in pixels: `size`, or the size of the image. `ValueError` if they differ."""
    if size is None:
        if image is None:
            return None
        return image.size
    width, height = (int(value) for value in size)
    if image is not None and image.size != (width, height):
        raise ValueError(f"image_size is ({width}, {height}), but the image has the size {image.size}")
    return width, height


def normalise(boxes: Any, size: Size | None) -> np.ndarray:
    """Boxes in pixels, clipped to the image and divided by its size: (n, 4) float32. `ValueError` if malformed."""
    if size is None:
        raise ValueError("boxes are in pixels: give the image or image_size too")
    pixels = np.asarray(boxes, np.float32)
    if pixels.ndim != 2 or pixels.shape[1] != 4 or not len(pixels):
        raise ValueError(f"boxes of shape {pixels.shape}, expected (n, 4): x1, y1, x2, y2 in pixels")
    check_pixel_boxes(pixels, size)
    limit = np.tile(np.asarray(size, np.float32), 2)
    return pixels.clip(0, limit) / limit


def of_each(values: Any, count: int, name: str) -> list[Any] | None:
    """The values as a list with one entry per region; `None` without values. `ValueError` if the length differs."""
    if values is None:
        return None
    entries = values.tolist() if hasattr(values, "tolist") else list(values)
    if len(entries) != count:
        raise ValueError(f"found {len(entries)} {name} for {count} boxes, expected one per box")
    return entries


def read_caption(item: Any, known: Sequence[str]) -> str:
    """The caption of an input. `ValueError` if the input is no dictionary with these keys, or has no caption."""
    if not isinstance(item, Mapping):
        raise ValueError(f"found {type(item).__name__}, expected an image with a caption, or a dictionary")
    unknown = sorted(set(item) - set(known))
    caption = item.get("caption")
    if unknown:
        raise ValueError(f"unknown: {', '.join(unknown)}; known keys of an input are {', '.join(known)}")
    if not isinstance(caption, str) or not caption.strip():
        raise ValueError(f"caption {caption!r}: expected a text")
    return caption


def is_url(image: Any) -> bool:
    """Whether an image is given by its address."""
    return isinstance(image, str) and image.startswith(("http://", "https://"))


def download_image(address: str) -> BytesIO:
    """The file at an address, at most 256 MiB of it, for `open_image`. `ValueError` for any error of the client."""
    try:
        with urlopen(Request(address, headers={"User-Agent": "grounded-attention"}), timeout=60) as file:
            return BytesIO(file.read(2**28))
    except Exception as error:
        raise ValueError(f"image {address}: {type(error).__name__}: {error}") from error


def rows_of_boxes(features: Any, count: int) -> np.ndarray:
    """Features of given boxes, (count, D) float32. `ValueError` if there is not a row for each box."""
    values = np.asarray(features, np.float32)
    if values.ndim != 2 or len(values) != count:
        raise ValueError(f"features of shape {values.shape}, expected ({count}, D): a row for each box")
    return values
