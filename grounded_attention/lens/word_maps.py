# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""What `look` returns: the answer, and a map of the image for every word of prompt and answer.

Shape letters: K heads, W words, R image tokens, Y and X rows and columns of a grid.
"""

import difflib
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any
from unicodedata import normalize

import numpy as np
import torch
from PIL import Image
from torch import Tensor
from torch.nn.functional import interpolate

from grounded_attention.heads.boxes import GroundedBox, ground_box
from grounded_attention.heads.maps import BOX_RULE, TokenGrid
from grounded_attention.heads.points import map_points
from grounded_attention.utils.named_types import Corners, Fields, Head, Size
from grounded_attention.utils.whole_files import write_text
from grounded_attention.utils.whole_words import find_words

from . import check_suffix
from .sequences import Word

ACROSS = 5  # images that a row of a picture has at most


@dataclass(frozen=True, eq=False)
class WordMap:
    """Where a model looks for a word, or for several: attention on the cells of an image's tokens.

    Args:
        text (`str`): the words.
        image (`int`): the image with the most attention of those of the prompt, counted from 0.
        cells (`np.ndarray`): (Y, X) float32, the part of the words' attention on this image that each cell gets, or
            with the form `relative` the ratio to a neutral prompt, divided by its sum.
        frame (`tuple[float, ...]`): the part of the image that the cells cover: x1, y1, x2, y2 in [0, 1].
        box (`tuple[float, ...]`): the box of the attended place: x1, y1, x2, y2 in [0, 1].
        share (`float`): the part of all the attention of the words that goes to the image, in [0, 1].
        heads (`tuple[tuple[int, int], ...]`): the heads, (layer, head); empty for `rollout`.
        size (`tuple[int, int]`): width and height of the image in pixels.
        box_share (`float`): the part of the attention on the image that is in the box, in [0, 1].
    """

    text: str
    image: int
    cells: np.ndarray
    frame: Corners
    box: Corners
    share: float
    heads: tuple[Head, ...]
    size: Size
    box_share: float = 1.0

    @cached_property
    def map(self) -> np.ndarray:
        """The cells on the pixels of the image, (height, width) float32, smooth between them; 0 where none is."""
        width, height = self.size
        x1, y1, x2, y2 = (round(edge * side) for edge, side in zip(self.frame, (width, height) * 2, strict=True))
        pixels = np.zeros((height, width), dtype=np.float32)
        if x2 > x1 and y2 > y1:
            cells = torch.from_numpy(self.cells)[None, None]
            pixels[y1:y2, x1:x2] = interpolate(cells, size=(y2 - y1, x2 - x1), mode="bilinear")[0, 0].numpy()
        return pixels

    @property
    def point(self) -> tuple[float, float]:
        """The best of `map_points`, x and y in [0, 1]; the middle of the frame for a map without attention."""
        x1, y1, x2, y2 = self.frame
        return next((point for point, _ in map_points(self.cells, self.frame)), ((x1 + x2) / 2, (y1 + y2) / 2))


@dataclass(frozen=True, eq=False)
class Lens:
    """Where a model looked while it read a prompt and gave its answer; `lens["ball"]` is the map of a word.

    Args:
        answer (`str`): the answer.
        words (`tuple[Word, ...]`): the words of prompt and answer, in order.
        texts (`tuple[str, ...]`): the texts of the prompt, then the answer.
        images (`tuple[PIL.Image.Image, ...]`): the images, upright; of a video the frames, of those that the model
            reads together the first.
        heads (`tuple[tuple[int, int], ...]`): (layer, head) of the heads that are shown; empty for `rollout`.
        heads_from (`str`): how the heads were chosen.
        form (`tuple[str, ...]`): what was done with the attention, see [`look`].
        attention (`np.ndarray`): (K, W, R) float32, what each head gives to each image token for each word; of
            contributions the positive part of their sum over heads, and of `tam` the maps, with K = 1.
        share (`np.ndarray`): (W, number of images) float32, the mean part of the attention that goes to an image,
            without that on sinks if these are removed; of contributions the part of all positive ones, of `tam` the
            part of the map.
        token_boxes (`np.ndarray`): (R, 4) float32, the part of its image that each image token shows.
        token_images (`np.ndarray`): (R,) int64, the image of each token; -1 for tokens without a place.
        second (`Lens`, *optional*): what the model answered and where it looked with the crop, if asked again.
        crop (`tuple[int, ...]`, *optional*): the crop of the first image, or of a frame, x1, y1, x2, y2 in pixels.
        crop_image (`int`): the image that was cropped, of `images`.
        boxes (`tuple[tuple[float, ...], ...]`): boxes of the first image that the answer says in the form of the
            model's family, its key, brackets or tokens: x1, y1, x2, y2 in [0, 1]; the page draws them.
        box_rule (`str`): how a map becomes a box: as `heads.json` says, if its heads are shown.
        names (`tuple[str, ...]`): of each image, such as "image 1" or "frames 3–4, 1.2 s".
        rows (`str`): `own`, or `before` if the maps are of the positions that produced the words, see [`look`].
        contributions (`np.ndarray`, *optional*): (W, R) float32, what each image token adds to the logit of each word,
            of either sign; with the forms `contribution` and `two-hop`.
        doubts (`dict[int, float]`): number of a word of the answer -> the probability, in [0, 1], that it names
            nothing in the image; of the nouns that `heads.json` has a model of doubt for.
    """

    answer: str
    words: tuple[Word, ...]
    texts: tuple[str, ...]
    images: tuple[Image.Image, ...]
    heads: tuple[Head, ...]
    heads_from: str
    form: tuple[str, ...]
    attention: np.ndarray
    share: np.ndarray
    token_boxes: np.ndarray
    token_images: np.ndarray
    second: "Lens | None" = None
    crop: tuple[int, int, int, int] | None = None
    boxes: tuple[tuple[float, ...], ...] = ()
    box_rule: str = BOX_RULE
    names: tuple[str, ...] = ()
    rows: str = "own"
    contributions: np.ndarray | None = None
    doubts: dict[int, float] = field(default_factory=dict)
    crop_image: int = 0

    def __getitem__(self, key: int | str | tuple[str, int]) -> WordMap:
        """The map of a word: by its number in `words`, by its text (in the answer, or else in the prompt), or by text
        and occurrence, counted from 0. A text of several words is their mean. In scripts
        without spaces any run of characters can be asked for.

        Raises:
            KeyError: if no words are like this; the message names the nearest.
        """
        return self._map(self._find(key))

    def maps(self, key: int | str | tuple[str, int]) -> list[WordMap]:
        """The maps of the same words on every image, or frame of a video; `KeyError` as for `lens[key]`."""
        return [self._map(self._find(key), image) for image in range(len(self.images))]

    def __iter__(self) -> Iterator[WordMap]:
        return (self._map([number]) for number in range(len(self.words)))

    def __len__(self) -> int:
        return len(self.words)

    @property
    def what(self) -> str:
        """What the maps show: `attention`, `contribution` to logits, or `activation` of image tokens (TAM)."""
        if self.contributions is not None:
            return "contribution"
        if self.form == ("tam",):
            return "activation"
        return "attention"

    def _find(self, key: int | str | tuple[str, int]) -> list[int]:
        if isinstance(key, int):
            return [range(len(self.words))[key]]
        text, occurrence = (key, 0) if isinstance(key, str) else key
        text = normalize("NFC", text)
        wanted = [text[start:end] for start, end in find_words(text)]
        names = [normalize("NFC", word.text) for word in self.words]
        exact = []
        loose = []
        for sentence in (len(self.texts) - 1, *range(len(self.texts) - 1)):
            numbers = [number for number, word in enumerate(self.words) if word.sentence == sentence]
            for start in range(len(numbers) - len(wanted) + 1):
                part = numbers[start : start + len(wanted)]
                spoken = [names[number] for number in part]
                if spoken == wanted:
                    exact.append(part)
                elif [each.casefold() for each in spoken] == [each.casefold() for each in wanted]:
                    loose.append(part)
        matches = exact or loose
        if wanted and 0 <= occurrence < len(matches):
            return matches[occurrence]
        if text:
            near = [name for name in dict.fromkeys(names) if text in name][:3]
        else:
            near = []
        near = near or difflib.get_close_matches(text, dict.fromkeys(names), 3, 0.5)
        if near:
            hint = f"; did you mean {', '.join(map(repr, near))}?"
        else:
            hint = f"; words: {', '.join(names[:20])}"
        times = f"{len(matches)} times, not {occurrence + 1}" if matches else "not"
        raise KeyError(f"{text!r} is {times} in prompt and answer{hint}")

    @cached_property
    def _grids(self) -> list[tuple[Tensor, TokenGrid]]:
        grids = []
        for image in range(len(self.images)):
            shown = torch.from_numpy(self.token_images == image)
            grids.append((shown, TokenGrid.of_tokens(torch.from_numpy(self.token_boxes), shown)))
        return grids

    def _map(self, numbers: Sequence[int], image: int | None = None) -> WordMap:
        # Characters of one token, as in Chinese, have one row, which counts once.
        once = [*{self.words[number].rows: number for number in numbers}.values()]
        attention = torch.from_numpy(self.attention[:, once].mean(1))
        share = self.share[once].mean(0)
        if image is None:
            image = int(share.argmax())
        shown, grid = self._grids[image]
        box: GroundedBox = ground_box(attention, shown, grid, self.box_rule)
        cells = grid.maps((attention * shown).mean(0)).numpy()
        cells = cells / max(float(cells.sum()), 1e-12)
        first = self.words[numbers[0]]
        last = self.words[numbers[-1]]
        text = self.texts[first.sentence][first.start : last.end]
        size = self.images[image].size
        return WordMap(text, image, cells, grid.frame, box.box, float(share[image]), self.heads, size, box.share)

    def show(self, words: Sequence[int | str | tuple[str, int]] | None = None) -> Any:
        """Draws the maps of some words, by default the first 12 of the answer, or of the prompt if it has none.

        Of several images, or frames of a video, each word has a row of them on one scale, with the part of its
        attention that each has: all, or the five with most, in order. The box is on the one with most.

        Returns:
            `matplotlib.figure.Figure`: the figure, which a notebook shows.

        Raises:
            KeyError: if there are no such words.
        """
        from grounded_attention.pages.attention_pictures import PatchAttention, patch_figure

        count = len(self.images)
        shown = []
        for key in self._shown() if words is None else words:
            if count == 1:
                one = self[key]
                shown.append(PatchAttention(one.text, one.cells, one.frame, one.box, one.box_share))
                continue
            best = sorted(self.maps(key), key=lambda one: -one.share)[:ACROSS]
            top = max(float(one.cells.max()) * one.share for one in best)
            for one in sorted(best, key=lambda one: one.image):
                name = f"{one.text}\n{self.names[one.image]}"
                box = one.box if one is best[0] else None
                picture = self.images[one.image]
                shown.append(PatchAttention(name, one.cells * one.share, one.frame, box, one.share, picture, top, ""))
        across = 3 if count == 1 else min(count, ACROSS)
        note = f"; in each row {across} of {count} pictures, those with most" if count > ACROSS else ""
        return patch_figure(self.images[-1], shown, what=self.what, across=across, note=note)

    def _shown(self, most: int = 12) -> list[int]:
        every = range(len(self.words))
        numbers = [number for number in every if self.words[number].text[0].isalnum()] or every
        return [*([number for number in numbers if self.words[number].answer] or numbers)][:most]

    def save(self, path: str | Path) -> None:
        """Writes a page to click through (`.html`), a picture (`.png`, `.pdf`, `.svg`) or the numbers (`.json`).

        Raises:
            ValueError: if the file has another suffix.
        """
        path = check_suffix(path)
        if path.suffix == ".html":
            from .page import lens_page

            write_text(path, lens_page([self]))
        elif path.suffix == ".json":
            write_text(path, json.dumps(self.to_dict(), indent=1) + "\n")
        else:
            from grounded_attention.pages.figure_style import save

            save(self.show(), path)

    def answer_places(self) -> list[Fields]:
        """Of each word of the answer `text`, `start`, `end`, and of its map `image`, `box`, `share`, `point`."""
        places: list[Fields] = []
        for number, word in enumerate(self.words):
            if word.answer:
                one = self[number]
                spoken = {"text": word.text, "start": word.start, "end": word.end}
                places.append({**spoken, "image": one.image, "box": one.box, "share": one.share, "point": one.point})
        return places

    def to_dict(self) -> Fields:
        """The answer and, for each word, map and box as plain values."""
        words = []
        for word, one, shares in zip(self.words, self, self.share.tolist(), strict=True):
            place = {"text": word.text, "start": word.start, "end": word.end, "sentence": word.sentence}
            values = {"box": [round(edge, 5) for edge in one.box], "frame": list(one.frame), "share": one.share}
            values["shares"] = [float(f"{share:.4g}") for share in shares]
            cells = []
            for row in one.cells.tolist():
                cells.append([float(f"{value:.4g}") for value in row])
            words.append({**place, "answer": word.answer, "image": one.image, **values, "cells": cells})
        for number, doubt in self.doubts.items():
            words[number]["doubt"] = doubt
        about: Fields = {
            "heads": [list(head) for head in self.heads],
            "heads_from": self.heads_from,
            "form": list(self.form),
            "rows": self.rows,
            "images": list(self.names),
            "boxes": [[round(edge, 5) for edge in box] for box in self.boxes],
        }
        if self.second is None:
            again = {}
        else:
            again = {"crop": list(self.crop or ()), "crop_image": self.crop_image, "second": self.second.to_dict()}
        return {"answer": self.answer, "texts": list(self.texts), **about, "words": words, **again}
