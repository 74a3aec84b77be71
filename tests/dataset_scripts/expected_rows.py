# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""Compares rows with what a folder of small sources expects (`../shared/rows/README.md` has the keys)."""

import json
from collections import Counter

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
        return [
            part if isinstance(part, str) else part["text"]
            for message in row["messages"]
            for part in ([message["content"]] if isinstance(message["content"], str) else message["content"])
            if isinstance(part, str) or "text" in part
        ]
    return row.get("captions") or [row.get("text") or row.get("caption") or ""]


def picture_name(image, pictures):
    """The name of the expected picture that an image is, by its size and the mean colours of a 3 x 3 grid."""
    array = np.asarray(open_image(image), dtype=np.float64)
    grid = [part.mean((0, 1)) for rows in np.array_split(array, 3) for part in np.array_split(rows, 3, axis=1)]
    best = min(
        ((name, known) for name, known in pictures.items() if tuple(known["size"]) == array.shape[1::-1]),
        key=lambda each: np.abs(np.array(grid) - each[1]["colours"]).max(),
        default=(None, None),
    )
    assert best[0] is not None and np.abs(np.array(grid) - best[1]["colours"]).max() < 16, "an unknown picture"
    return best[0]


def found_phrases(rows, pictures):
    """Picture, words, boxes and the rest of each phrase, as `read_phrase` reads it."""
    found = []
    texts_seen = []
    pictures_seen = []
    for row in rows:
        images = row.get("images") or ([row["image"]] if "image" in row else [])
        names = [picture_name(image, pictures) for image in images]
        texts = texts_of(row)
        texts_seen.append((tuple(names), tuple(texts)))
        pictures_seen += names
        for number, phrase in enumerate(row["phrases"]):
            read = read_phrase(phrase, texts, f"phrase {number}", grounded=True)
            found.append(
                {
                    "picture": names[read.image or 0],
                    "text": read.text,
                    "sentence_text": texts[read.sentence],
                    "start": read.start,
                    "end": read.end,
                    "boxes": [tuple(box) for box in read.boxes],
                    "weight": read.weight,
                    "entity": read.entity,
                }
            )
    return found, texts_seen, pictures_seen


def same_words(phrase, wanted):
    if "text_any" in wanted:
        return phrase["text"] in wanted["text_any"]
    if "text_has" in wanted:
        return wanted["text_has"].lower() in phrase["text"].lower()
    return phrase["text"] == wanted["text"]


def same_boxes(boxes, wanted):
    return len(boxes) == len(wanted) and all(
        any(np.abs(np.array(box) - other).max() <= NEAR for box in boxes) for other in wanted
    )


def compare(rows, expected):
    """Asserts that rows are those of `expected`."""
    found, texts_seen, pictures_seen = found_phrases(rows, expected["pictures"])
    used = Counter()
    for wanted_row in expected["rows"]:
        for wanted in wanted_row["phrases"]:
            picture = wanted_row["pictures"][wanted["image"]]
            candidates = [
                (i, each) for i, each in enumerate(found) if each["picture"] == picture and same_words(each, wanted)
            ]
            if "span" not in expected["open"] and "start" in wanted:
                candidates = [each for each in candidates if each[1]["start"] == wanted["start"]]
                if wanted_row["texts"]:
                    text = wanted_row["texts"][wanted["sentence"]]
                    candidates = [each for each in candidates if each[1]["sentence_text"] == text]
            if expected["grouping"] == "phrase":
                matching = [each for each in candidates if same_boxes(each[1]["boxes"], wanted["boxes"])]
                whole = matching[:1]
            else:
                boxes = [box for _, each in candidates for box in each["boxes"]]
                matching = candidates if same_boxes(boxes, wanted["boxes"]) else []
                whole = matching
            if not matching and wanted.get("optional"):
                continue
            assert matching, f"not found: {wanted} of {picture} in {found}"
            for key in ("weight", "entity"):
                if key in wanted:
                    assert matching[0][1][key] == wanted[key], (key, matching[0])
            used.update(i for i, _ in whole)
        if wanted_row["texts"] and expected["exact_texts"]:
            names = tuple(wanted_row["pictures"])
            for text in wanted_row["texts"]:
                assert any(names == seen and text in texts for seen, texts in texts_seen), text
        assert not wanted_row["phrases"] or set(wanted_row["pictures"]) <= set(pictures_seen)
    assert max(used.values(), default=1) == 1, used
    extra = [each for i, each in enumerate(found) if i not in used and each["boxes"]]
    assert not extra, f"not expected: {extra}"
