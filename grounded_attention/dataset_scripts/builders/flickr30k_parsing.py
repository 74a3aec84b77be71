# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""Parsers for the files of Flickr30K Entities: tagged captions, annotations in XML, unrelated captions.

Boxes: the XML counts pixels from 1 and includes the last one. As the official utilities do, 1 is subtracted from all
four numbers; they are then divided by the image's width and height. Some tools write such boxes from 0 or with an
exclusive end: up to one pixel outside the image is clipped to [0, 1], more is an error. A box one pixel wide is valid.
"""

import math
import re
from pathlib import Path
from typing import Any
from xml.etree.ElementTree import Element, ParseError

from defusedxml.ElementTree import parse as parse_xml

from grounded_attention.dataset_scripts.files.errors import DataError, data_file, refuse_if
from grounded_attention.dataset_scripts.files.image_files import image_key
from grounded_attention.dataset_scripts.files.records import MAX_INT32
from grounded_attention.utils import bounded_files
from grounded_attention.utils.boxes import look_normalised

HOMEPAGE = "https://github.com/BryanPlummer/flickr30k_entities"
WHERE_TO_GET = f"get Flickr30K Entities from {HOMEPAGE} and unpack its annotations.zip beside the split lists"
# A chain that differs from the number in the other file, if only by a zero in front, would lose its boxes.
CHAIN = re.compile(r"0|[1-9][0-9]{0,17}")
TAG = re.compile(rf"\[/EN#(?P<chain>{CHAIN.pattern})(?P<types>(/[\w-]*)*) (?P<words>[^\[\]]+)\]")
PART = re.compile(r"/EN#|(^|\s)\[|\](\s|$)")
FORM = "[/EN#<chain>/<type> words]"
TYPES = ("bodyparts", "notvisual")  # the official types of two words
SENTENCE_NUMBER = re.compile(r"[1-9][0-9]{0,8}")
NOT_GROUNDED = "0"  # the chain of phrases that describe nothing visible


def read_text(path: Path) -> str:
    """Reads a UTF-8 file."""
    with data_file(path, WHERE_TO_GET):
        return bounded_files.read_text(path)


def parse_unrelated(path: Path) -> set[tuple[str, int]]:
    """Reads UNRELATED_CAPTIONS: a header, then `<image id> <sentence number counted from 1>` a line."""
    listed = set()
    for number, line in enumerate(read_text(path).split("\n"), 1):
        fields = line.split()
        if not fields or line.startswith("#"):
            continue
        refuse_if(
            len(fields) != 2 or not SENTENCE_NUMBER.fullmatch(fields[1]),
            "not an unrelated caption",
            file=path,
            where=f"line {number}",
            found=line,
            expected="an image id and a sentence number from 1",
        )
        listed.add((image_key(fields[0]), int(fields[1]) - 1))
    return listed


def parse_sentence(line: str, **place: Any) -> tuple[str, list[dict[str, Any]]]:
    """Splits a tagged caption, `[/EN#<chain>/<type>... words]`, into plain text and phrases; `place` is that of an
    error."""
    line = " ".join(line.split())
    text = ""
    phrases: list[dict[str, Any]] = []
    done = 0
    for tag in TAG.finditer(line):
        text = text + line[done : tag.start()]
        start = len(text)
        words = tag["words"].strip()
        types = [kind for kind in tag["types"].split("/") if kind]
        sides = line[: tag.start()][-1:] + line[tag.end() :][:1]
        joined = any(side.isalnum() or side in "[]" for side in sides)
        split = types and types[-1] + words.split()[0].split("/")[0] in TYPES  # a space in a type
        if joined or split:
            raise DataError("a phrase that is not apart from its neighbours", found=tag[0], expected=FORM, **place)
        text = text + words
        phrases.append({"text": words, "start": start, "end": len(text), "entity": tag["chain"], "types": types})
        done = tag.end()
    text = text + line[done:]
    between = TAG.sub(" ", line)
    # Brackets inside a word are its letters.
    refuse_if(PART.search(between), "a tag that cannot be read", found=between, expected=FORM, **place)
    return text, phrases


def parse_annotation(path: Path) -> tuple[int, int, dict[str, list[list[float]]]]:
    """Reads width and height of an image, and chain -> its boxes.

    An object may have several names (its boxes then belong to every named chain), and a chain may have several
    objects.
    """
    root = _parse_xml(path)
    width, height = (_number(root.find(f"size/{side}"), side, path, "size") for side in ("width", "height"))
    if not (1 <= width <= MAX_INT32 and 1 <= height <= MAX_INT32) or width % 1 or height % 1:
        expected = "whole numbers from 1 of 32 bits"
        raise DataError("impossible image size", file=path, found=(width, height), expected=expected)
    chains: dict[str, list[list[float]]] = {}
    for index, item in enumerate(root.iterfind("object"), 1):
        names = list(dict.fromkeys((name.text or "").strip() for name in item.iterfind("name")))
        where = f"object {index} (name {', '.join(names)})"
        refuse_if(not names or "" in names, "an object has no name", file=path, where=where)
        if unknown := [name for name in names if not CHAIN.fullmatch(name)]:
            expected = "the number of a chain, as in the captions"
            raise DataError("an object has another name", file=path, where=where, found=unknown[0], expected=expected)
        boxes = [_parse_box(box, width, height, path, where) for box in item.iterfind("bndbox")]
        for name in names:
            chains.setdefault(name, []).extend(boxes)
    chains.pop(NOT_GROUNDED, None)
    return int(width), int(height), chains


def _parse_xml(path: Path) -> Element:
    try:
        with data_file(path, WHERE_TO_GET), bounded_files.open_data(path) as file:
            return parse_xml(file, forbid_dtd=True).getroot()
    except DataError:
        raise
    except (ParseError, ValueError, LookupError) as error:  # an encoding that cannot be read, a declared entity
        problem = f"not well-formed XML without declarations (a truncated or damaged file): {error}"
        raise DataError(problem, file=path, hint="get the file again from a trusted source") from None


def _number(element: Element | None, name: str, path: Path, where: str) -> float:
    text = "" if element is None else (element.text or "").strip()
    try:
        number = float(text)
    except ValueError:
        number = math.nan
    if not math.isfinite(number):
        raise DataError(f"{name} is not a finite number", file=path, where=where, found=text, expected="a number")
    return number


def _parse_box(box: Element, width: float, height: float, path: Path, where: str) -> list[float]:
    sides = ("xmin", "ymin", "xmax", "ymax")
    x1, y1, x2, y2 = pixels = [_number(box.find(side), side, path, where) for side in sides]
    inside = 0 <= x1 <= x2 <= width + 1 and 0 <= y1 <= y2 <= height + 1
    refuse_if(
        not inside or look_normalised([pixels], width, height),
        "the box is inverted, outside the image, or normalised",
        file=path,
        where=where,
        found=pixels,
        expected=f"pixels, x from 1 to {width:g} and y from 1 to {height:g}, at most 1 pixel outside",
    )
    scaled = [(pixel - 1) / size for pixel, size in zip(pixels, (width, height) * 2, strict=True)]
    return [min(max(value, 0.0), 1.0) for value in scaled]
