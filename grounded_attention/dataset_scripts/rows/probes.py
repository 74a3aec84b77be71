# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""Probes: pictures with a true caption and foils, statements that are true or not, and yes-or-no questions.

A row to match has `captions`, the right one first, its `label` (1; 0 for a statement that is false), the `group` of
its authors' tables, and the `pair` of the rows that are scored together. A question has `answer` and `sampling`.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from grounded_attention.dataset_scripts.files.errors import DataError
from grounded_attention.dataset_scripts.files.records import json_elements
from grounded_attention.utils.bounded_files import read_json, read_text
from grounded_attention.utils.named_types import Columns
from grounded_attention.utils.whats_up import RELATIONS

from .columns import Context, images_of, make_row
from .pictures import Pictures
from .raw import RawRow, RowError, Rows, as_path, first_of, structured
from .sources import Records, Source

FOILS = ("foil", "negative_caption")
FEWEST_VOTES = 2  # of three people for the caption: VALSE's valid rows
_VERDICTS = ("truth", "label", "answer")
_QUESTIONS = ("question", "query", "text")
_SAMPLINGS = ("sampling", "category", "type")


def _match(record: Columns, captions: Any, group: Any = "", label: int = 1, pair: Any = "", **about: Any) -> RawRow:
    if not isinstance(captions, list) or any(not isinstance(each, str) or not each.strip() for each in captions):
        raise RowError("bad captions", found=captions, expected="a text each, the right one first")
    row = make_row(record, {"captions": captions}, [], **about)
    row.more |= {"label": label, "group": str(group or ""), "pair": str(pair or "")}
    return row


def has_foil(record: Columns) -> bool:
    return isinstance(record.get("caption"), str) and isinstance(record.get(first_of(record, FOILS) or ""), str)


def read_foil(record: Columns, context: Context) -> Rows:
    """VALSE, SugarCrepe, the foils of scenes."""
    votes = structured(record.get("mturk"), "mturk")
    if isinstance(votes, Mapping) and int(votes.get("caption", 0)) < FEWEST_VOTES:
        context.leave_out(f"captions that fewer than {FEWEST_VOTES} people chose over the foil")
        return
    foil = record[first_of(record, FOILS) or ""]
    yield _match(record, [record["caption"], foil], record.get("linguistic_phenomena", record.get("group")))


def has_options(record: Columns) -> bool:
    return isinstance(record.get("caption_options"), (list, str))


def read_options(record: Columns, context: Context) -> Rows:
    """What'sUp: the first caption is right; `mug_right_of_knife.jpeg` is a picture of two objects, which scenes name
    in columns."""
    captions = structured(record["caption_options"], "caption_options")
    if not isinstance(captions, list) or len(captions) < 2:
        raise RowError("bad caption_options", found=captions, expected="different texts, the right one first")
    group = record.get("group")
    pair = record.get("pair")
    path = Path(as_path(*images_of(record)[:1] or [None]) or "")
    parts = path.stem.split("_")
    if len(parts) > 2 and parts[1] in RELATIONS:
        group = parts[1]
        pair = f"{path.parent}/{parts[0]} {parts[-1]}"
    yield _match(record, captions, group, pair=pair)


def has_two_pairs(record: Columns) -> bool:
    return {"image_0", "image_1", "caption_0", "caption_1"} <= record.keys()


def read_two_pairs(record: Columns, context: Context) -> Rows:
    """Winoground: a row for each picture, with its own caption first; both rows have the `pair`."""
    captions = [record["caption_0"], record["caption_1"]]
    pair = record.get("id")
    group = record.get("collapsed_tag")
    if pair is None:
        raise RowError("no id of a pair", found=captions, expected="an id")
    yield _match(record, captions, group, pair=str(pair), images=[record["image_0"]])
    yield _match(record, captions[::-1], group, pair=str(pair), images=[record["image_1"]])


def has_statement(record: Columns) -> bool:
    return {"caption", "label", "relation"} <= record.keys()


def read_statement(record: Columns, context: Context) -> Rows:
    """VSR: a statement, and whether it is true."""
    label = {"0": 0, "1": 1, "False": 0, "True": 1}.get(str(record["label"]))
    if label is None:
        raise RowError("bad label", found=record["label"], expected="0 or 1")
    yield _match(record, [record["caption"]], record["relation"], label)


def _verdict(record: Columns) -> str:
    return str(record.get(first_of(record, _VERDICTS) or "")).lower()


def has_verdict(record: Columns) -> bool:
    marked = {"hallu", "sampling", "image_source"} & record.keys() or {"text", "label"} <= record.keys()
    return _verdict(record) in ("yes", "no") and bool(marked) and first_of(record, _QUESTIONS) is not None


def read_verdict(record: Columns, context: Context) -> Rows:
    """POPE (its own files, lmms-lab's copy) and AMBER's questions: yes or no; `sampling` is the group."""
    row = make_row(record, {"text": record[first_of(record, _QUESTIONS) or ""]}, [])
    row.more |= {"answer": _verdict(record), "sampling": str(record.get(first_of(record, _SAMPLINGS) or "") or "all")}
    row.more.pop("text", None)
    yield row


# AMBER


def is_amber(folder: Path) -> bool:
    return (folder / "annotations.json").is_file() and (folder / "query").is_dir()


def open_amber(folder: Path) -> Source:
    """AMBER's `data` folder: the questions of yes or no."""

    def read() -> Records:
        for path, where, query in _amber_queries(folder):
            if str(query.get("truth")).lower() in ("yes", "no"):
                kind = str(query.get("type")).removeprefix("discriminative-")
                yield path, where, {**query, "hallu": "", "type": kind}

    return Source(str(folder), {"": [read]}, folder, kind="AMBER")


def amber_descriptions(folder: Path, images: str | None) -> list[Columns]:
    """AMBER's queries for a free description: a path, the question, and the objects of its `truth` and `hallu`."""
    pictures = Pictures(folder, images, is_foreign=False)
    asked: list[Columns] = []
    for path, _, query in _amber_queries(folder):
        if isinstance(query.get("truth"), list) and isinstance(query.get("hallu"), list):
            asked.append({"file": pictures.find(query.get("image"), path), **query})
    return asked


def amber_words(folder: Path) -> tuple[Mapping[str, list[str]], list[str]]:
    """The words of each object (`relation.json`), and words that are always right (`safe_words.txt`)."""
    related = read_json(folder / "relation.json")
    if not isinstance(related, Mapping) or not all(isinstance(each, list) for each in related.values()):
        raise DataError("bad words", file=folder / "relation.json", expected="a list of words for each object")
    return related, read_text(folder / "safe_words.txt").split()


def _amber_queries(folder: Path) -> Records:
    """Queries with what the annotations say of their id."""
    whole = folder / "query" / "query_all.json"
    annotations = folder / "annotations.json"
    known = {each["id"]: each for _, _, each in json_elements(annotations, "expected id, type, truth and hallu")}
    for path in [whole] if whole.is_file() else sorted((folder / "query").glob("*.json")):
        for _, index, query in json_elements(path, "expected id, image and query"):
            where = f"element {index}"
            if query.get("id") not in known:
                expected = f"an id of {annotations}"
                raise DataError(
                    "no annotation of a query", file=path, where=where, found=query.get("id"), expected=expected
                )
            yield path, where, {**query, **known[query["id"]]}
