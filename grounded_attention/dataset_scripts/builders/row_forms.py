# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""The forms that rows of `grounded_rows` take: those of other builders, those of probes, and their own."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import chain
from pathlib import Path
from typing import Any

import datasets
from datasets import List, Value

from grounded_attention.dataset_scripts.files.errors import DataError
from grounded_attention.dataset_scripts.rows.captions import texts_in_order
from grounded_attention.utils.named_types import Columns, Fields, Row

from .flickr30k_entities import FEATURES as ENTITIES
from .llava_instruct import FEATURES as CONVERSATIONS
from .llava_instruct import IMAGE_MARK
from .local_builder import BOXES, SIZE, TEXTS, BuildReport, texts, whole_text
from .pope import FEATURES as OBJECTS
from .refcoco import FEATURES as EXPRESSIONS
from .vqa_v2 import FEATURES as QUESTIONS

OWN = "own"  # the form that is pushed: rows as `grounded_rows` gives them
SEEN = 2000  # rows, which tell the columns of the own form
PICTURES = "pictures"  # the form of pictures with their boxes alone
HUMANS = 10  # answers to a question of VQA v2; an answer that stands alone counts as all of them


# The own form


def own_features(rows: Iterable[Row]) -> datasets.Features:
    """The columns of rows: pictures, texts, phrases, and numbers and texts beside them."""
    columns: Fields = {}
    keys: set[str] = set()
    for row in rows:
        for name, value in row.items():
            known = columns.get(name)
            kind = _kind_of(name, value)
            mixed = {getattr(each, "dtype", None) for each in (known, kind)} == {"int64", "float64"}
            columns[name] = Value("float64") if mixed else known or kind
        keys.update(key for phrase in row["phrases"] for key in phrase)
    columns["phrases"] = List({name: kind for name, kind in _OWN_PHRASE.items() if name in keys} or _OWN_PHRASE)
    columns.pop("split", None)  # it is the name of the file
    return datasets.Features(columns)


def _kind_of(name: str, value: Any) -> Any:
    if name in ("image", "images"):
        if name == "image":
            return datasets.Image()
        return List(datasets.Image())
    if name == "messages":
        plain = all(isinstance(each["content"], str) for each in value)
        if plain:
            content = Value("string")
        else:
            content = List({"type": Value("string"), "text": Value("string")})
        return List({"role": Value("string"), "content": content})
    if isinstance(value, list):
        return TEXTS
    kinds = {bool: "bool", int: "int64", float: "float64"}
    return Value(kinds.get(type(value), "string"))


_OWN_PHRASE = {
    "text": Value("string"),
    **dict.fromkeys(("start", "end", "sentence", "image"), Value("int32")),
    "boxes": List(List(Value("float64"))),
    "weight": Value("float64"),
    "entity": Value("string"),
    "types": TEXTS,
    "scores": List(Value("float64")),
    "regions": List(Value("int32")),
    "mask": {"size": List(Value("int32")), "counts": List(Value("int32"))},
}


def own_row(row: Row, features: Columns, where: str) -> Fields:
    """A row with its pictures inside; every column and every key of its phrases, None where it has none."""
    names = features["phrases"].feature
    keys = set(chain(*row["phrases"]))
    unknown = [*(row.keys() - features.keys() - {"split"}), *(keys - names.keys())]
    if unknown:
        expected = f"only columns of the first {SEEN} rows"
        raise DataError("a column that is new", where=where, found=unknown[0], expected=expected)
    fields = {name: row.get(name) for name in features}
    fields["phrases"] = [{name: phrase.get(name) for name in names} for phrase in row["phrases"]]
    if row.get("image") is not None:
        fields["image"] = _inside(row["image"])
    if row.get("images") is not None:
        fields["images"] = [_inside(each) for each in row["images"]]
    return fields


def _inside(picture: Any) -> Fields:
    if isinstance(picture, str):
        return {"bytes": Path(picture).read_bytes(), "path": None}
    return {"bytes": picture if isinstance(picture, bytes) else picture["bytes"], "path": None}


# Forms


def _expressions(row: Row, key: str, report: BuildReport) -> Iterator[Fields]:
    for number, phrase in enumerate(row["phrases"]):
        if len(phrase["boxes"]) != 1:
            report.add("phrases without one box", key)
            continue
        name = f"{key}-{number}"
        text = phrase["text"]
        box = phrase["boxes"][0]
        yield {"example_id": name, "text": text, "phrases": [whole_text(text, box)]}


def _reviewed(row: Row, key: str, report: BuildReport) -> Iterator[Fields]:
    """As `_expressions`, with the verdict of Ref-L4's authors on references of RefCOCO: quality 0 is wrong."""
    for fields in _expressions(row, key, report):
        yield {**fields, "wrong": row.get("caption_quality") in (0, "0")}


def _to_match(row: Row, key: str, report: BuildReport) -> Iterator[Fields]:
    if "label" not in row or "captions" not in row:
        report.add("rows without captions to match", key)
        return
    yield {"example_id": key, **{name: row[name] for name in ("captions", "label", "group", "pair")}}


def _verdicts(row: Row, key: str, report: BuildReport) -> Iterator[Fields]:
    if row.get("answer") not in ("yes", "no") or "sampling" not in row:
        report.add("rows without a question of yes or no", key)
        return
    yield {"example_id": key, "text": row["text"], "answers": [row["answer"]], "sampling": row["sampling"]}


def _phrases_of_text(row: Row) -> list[Fields]:
    with_boxes = []
    for each in row["phrases"]:
        if each["boxes"] and each["sentence"] == 0:
            with_boxes.append(each)
    return [{name: each[name] for name in _PHRASES.feature} for each in with_boxes]


def _evidence(row: Row, key: str, report: BuildReport) -> Iterator[Fields]:
    phrases = _phrases_of_text(row)
    if not phrases or "text" not in row or not row.get("answer"):
        report.add("rows without a question, its answer and a box", key)
        return
    options = row.get("multi-choice options")  # TreeBench
    if options:
        question = f"{row['text']}\n{options}"
    else:
        question = row["text"]
    yield {"example_id": key, "text": question, "answer": str(row["answer"]), "phrases": phrases}


def _captions(row: Row, key: str, report: BuildReport) -> Iterator[Fields]:
    if "messages" in row:
        report.add("conversations", key)
        return
    captions = texts_in_order(row)
    phrases = sorted(row["phrases"], key=lambda phrase: phrase["sentence"])
    yield {
        "captions": captions,
        "caption_ids": [f"{key}#{number}" for number in range(len(captions))],
        "related": [True] * len(captions),
        "phrases": [{name: phrase.get(name) for name in ENTITIES["phrases"].feature} for phrase in phrases],
        "objects": [box for phrase in phrases for box in phrase["boxes"]],
    }


def _questions(row: Row, key: str, report: BuildReport) -> Iterator[Fields]:
    turns = _turns(row)[0] if "messages" in row else []
    if len(turns) == 2:
        question = turns[0]
        answers = [turns[1]]
    else:
        question = row.get("text", "")
        answers = list(row.get("answers") or ())
        if not answers and row.get("answer") is not None:
            answers = [str(row["answer"])]
    if not question or not any(answers):
        report.add("rows without a question and its answer", key)
        return
    phrases = _phrases_of_text(row) if "text" in row else []
    about = {"example_id": key, "question_type": "", "answer_type": ""}
    if len(answers) == 1:
        answers = answers * HUMANS
    yield {**about, "text": question, "answers": answers, "phrases": phrases}


def _conversations(row: Row, key: str, report: BuildReport) -> Iterator[Fields]:
    texts, phrases = _turns(row)
    lost = sum(bool(each["boxes"]) for each in row["phrases"]) - len(phrases)
    if lost:
        report.add("phrases that are in no turn", key, lost)
    if not texts or not all(texts[1::2]):
        report.add("rows that are no turns of user and assistant", key)
        return
    messages = [{"role": ("user", "assistant")[number % 2], "content": text} for number, text in enumerate(texts)]
    yield {"example_id": key, "messages": messages, "phrases": phrases}


def _turns(row: Row) -> tuple[list[str], list[Fields]]:
    """The texts of turns of user and assistant, without the marks of pictures, and the phrases in them; none if roles
    do not take turns. What the system says is left out, and a last question without an answer."""
    turns: list[str] = []
    places: dict[int, tuple[int, int]] = {}  # text of the row -> its turn, and characters before it
    number = 0
    for message in row.get("messages") or ():
        content = message["content"]
        if isinstance(content, str):
            parts = [content]
        else:
            parts = [part["text"] for part in content if "text" in part]
        if message["role"] == "system":
            number += len(parts)
            continue
        if message["role"] != ("user", "assistant")[len(turns) % 2]:
            return [], []
        text = ""
        for part in parts:
            cleaned = part.replace(IMAGE_MARK, "").strip()
            text += "\n" * bool(text)
            before = part.find(cleaned) if cleaned in part else len(part)
            places[number] = (len(turns), len(text) - before)
            number += 1
            text += cleaned
        turns.append(text)
    turns = turns[: len(turns) // 2 * 2]
    phrases = []
    for phrase in row["phrases"]:
        turn, moved = places.get(phrase["sentence"], (len(turns), 0))
        start = phrase["start"] + moved
        end = phrase["end"] + moved
        if turn < len(turns) and phrase["boxes"] and turns[turn][max(start, 0) : end] == phrase["text"]:
            place = {"sentence": turn, "text": phrase["text"], "start": start, "end": end}
            phrases.append({**place, "boxes": phrase["boxes"]})
    return turns, phrases


def _pictures(row: Row, key: str, report: BuildReport) -> Iterator[Fields]:
    yield {"phrases": [{"boxes": phrase["boxes"]} for phrase in row["phrases"]]}


_PICTURE = {**texts("file_name"), **SIZE}
_PHRASES = CONVERSATIONS["phrases"]
# Form -> the columns of its rows, the function that makes them of a row of `grounded_rows`, and what it needs of it.
_TO_MATCH = {
    **texts("example_id", "image_id", "group", "pair"),
    "captions": TEXTS,
    "label": Value("int32"),
}
_EVIDENCE = {
    **texts("example_id", "image_id", "text", "answer"),
    "phrases": _PHRASES,
}
FORMS: Mapping[str, tuple[Fields, Callable[[Row, str, BuildReport], Iterator[Fields]], str]] = {
    "flickr30k_entities": ({**ENTITIES, **_PICTURE}, _captions, "a text or captions"),
    "refcoco": ({**EXPRESSIONS, **_PICTURE}, _expressions, "phrases with one box"),
    # Probes: see `training/experiments/suites.py`.
    "grounding": ({**EXPRESSIONS, **_PICTURE, "wrong": Value("bool")}, _reviewed, "phrases with one box"),
    "composition": ({**_TO_MATCH, **_PICTURE}, _to_match, "captions to match (docs/evaluation.md)"),
    "evidence": ({**_EVIDENCE, **_PICTURE}, _evidence, "a question, its answer and boxes of its evidence"),
    "hallucination": ({**OBJECTS, **_PICTURE}, _verdicts, "questions of yes or no"),
    "vqa_v2": ({**QUESTIONS, **_PICTURE, "phrases": _PHRASES}, _questions, "a question and its answer"),
    "llava_instruct": ({**CONVERSATIONS, **_PICTURE}, _conversations, "messages of user and assistant in turns"),
}
_BOXES = {**texts("image_id"), **_PICTURE, "phrases": List({"boxes": BOXES})}
ALL_FORMS = {**FORMS, PICTURES: (_BOXES, _pictures, "a picture")}
