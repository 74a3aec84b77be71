# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""Compares rows with what a folder of small sources expects (`../shared/rows/README.md` has the keys)."""

import json

import datasets
import numpy as np

from grounded_attention import read_phrase
from grounded_attention.utils.open_images import open_image

NEAR = 1.5e-3


def open_expected(folder, tmp_path):
    """The source of a folder as `grounded_rows` takes it, and what is expected of it."""
    expected = json.loads((folder / "expected.json").read_text(encoding="utf-8"))
    given = expected["source"]
    path = folder / "source" / given["path"] if given["path"] != "." else folder / "source"
    if "load" not in given:
        return path, expected
    data = datasets.load_dataset(
        given["load"], data_files=str(path), split="train", streaming=given.get("streaming", False), cache_dir=tmp_path
    )
    return data.with_format(given["format"]) if given.get("format") else data, expected


def texts_of(row):
    if "messages" in row:
        texts = []
        for message in row["messages"]:
            content = message["content"]
            if isinstance(content, str):
                texts.append(content)
            else:
                texts += [part["text"] for part in content if "text" in part]
        return texts
    return row.get("captions") or [row.get("text") or row.get("caption") or ""]


def picture_name(image, pictures):
    """The name of the expected picture that an image is, by its size and the mean colours of a 3 x 3 grid."""
    array = np.asarray(open_image(image), dtype=np.float64)
    bands = [band for rows in np.array_split(array, 3) for band in np.array_split(rows, 3, axis=1)]
    colours = np.array([band.mean((0, 1)) for band in bands])
    distances = {}
    for name, known in pictures.items():
        if tuple(known["size"]) == array.shape[1::-1]:
            distances[name] = np.abs(colours - known["colours"]).max()
    assert min(distances.values(), default=255) < 16, "an unknown picture"
    return min(distances, key=distances.get)


def found_phrases(rows, pictures):
    """Each phrase as `read_phrase` reads it with its picture and text, and the texts and names of all pictures."""
    found = []
    texts_found = set()
    names_found = set()
    for row in rows:
        images = row.get("images") or ([row["image"]] if "image" in row else [])
        names = [picture_name(image, pictures) for image in images]
        texts = texts_of(row)
        texts_found.update((*names, text) for text in texts)
        names_found.update(names)
        for number, phrase in enumerate(row["phrases"]):
            read = read_phrase(phrase, texts, f"phrase {number}", grounded=True)
            found.append((read, names[read.image or 0], texts[read.sentence]))
    return found, texts_found, names_found


def same_words(text, wanted):
    if "text_any" in wanted:
        return text in wanted["text_any"]
    if "text_has" in wanted:
        return wanted["text_has"].lower() in text.lower()
    return text == wanted["text"]


def same_boxes(boxes, wanted):
    if len(boxes) != len(wanted):
        return False
    distances = np.abs(np.reshape(boxes, (-1, 1, 4)) - np.reshape(wanted, (1, -1, 4))).max(2)
    return bool((distances <= NEAR).any(0).all())


def candidates_for(wanted, row, found, compare_spans):
    """The numbers of the phrases that have the picture, the words and the place of a wanted one."""
    numbers = []
    for number, (phrase, name, text) in enumerate(found):
        fits = name == row["pictures"][wanted["image"]] and same_words(phrase.text, wanted)
        if compare_spans and "start" in wanted:
            fits &= phrase.start == wanted["start"]
            fits &= not row["texts"] or text == row["texts"][wanted["sentence"]]
        if fits:
            numbers.append(number)
    return numbers


def compare(rows, expected):
    """Asserts that rows are those of `expected`."""
    found, texts_found, names_found = found_phrases(rows, expected["pictures"])
    boxes = [phrase.boxes for phrase, _, _ in found]
    used = []
    for row in expected["rows"]:
        for wanted in row["phrases"]:
            numbers = candidates_for(wanted, row, found, "span" not in expected["open"])
            if expected["grouping"] == "phrase":
                numbers = [number for number in numbers if same_boxes(boxes[number], wanted["boxes"])][:1]
            elif not same_boxes([box for number in numbers for box in boxes[number]], wanted["boxes"]):
                numbers = []
            if not numbers and wanted.get("optional"):
                continue
            assert numbers, f"not found: {wanted} in {found}"
            phrase, _, _ = found[numbers[0]]
            assert phrase.weight == wanted.get("weight", phrase.weight)
            assert phrase.entity == wanted.get("entity", phrase.entity)
            used += numbers
        if expected["exact_texts"]:
            assert {(*row["pictures"], text) for text in row["texts"]} <= texts_found
        assert not row["phrases"] or set(row["pictures"]) <= names_found
    assert len(used) == len(set(used)), used
    extra = [phrase for number, phrase in enumerate(found) if number not in used and boxes[number]]
    assert not extra, f"not expected: {extra}"
