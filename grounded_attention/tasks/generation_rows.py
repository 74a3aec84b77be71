# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""Converts the rows of any builder with captions, referring expressions or questions to rows for text generation."""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import datasets
from datasets import List, Value

from . import caption_rows

CAPTION = "caption"
EXPRESSION = "expression"
QUESTION = "question"
CONVERSATION = "conversation"

FEATURES = {
    "example_id": Value("string"),
    "caption_id": Value("string"),
    "image_id": Value("string"),
    "kind": Value("string"),
    "text": Value("string"),
    "answer": Value("string"),
    "phrases": List(
        {
            "text": Value("string"),
            "start": Value("int32"),
            "end": Value("int32"),
            "boxes": List(List(Value("float32"))),
            "sentence": Value("int32"),  # the message of a conversation; 0 for other rows
        }
    ),
}
# Columns that are kept where the rows have them, and what the evaluation needs them for.
KEPT = {
    "file_name": Value("string"),  # the picture
    **dict.fromkeys(("width", "height"), Value("int32")),  # its size
    "answers": List(Value("string")),  # VQA accuracy
    "answer_type": Value("string"),
    "sampling": Value("string"),  # object hallucination
    "messages": List({"role": Value("string"), "content": Value("string")}),  # a conversation
}


def to_rows(split: datasets.Dataset) -> datasets.Dataset:
    """Makes one row per caption, referring expression, question or conversation: the columns of `FEATURES`, and `KEPT`
    ones.

    `text` is the caption, the expression or the question; `answer` is the answer to a question, "" otherwise;
    `phrases` are the phrases of `text` with boxes. A conversation has its texts in `messages`, and each of its phrases
    the index of its message as `sentence`.
    """
    columns = set(split.column_names)
    if "messages" in columns:
        convert = _of_conversations
    elif {"example_id", "text"} <= columns:
        convert = _of_questions if columns & {"answer", "answers"} else _of_expressions
    else:
        split = caption_rows.to_rows(split, grounded=True)
        convert = _of_captions
        columns = set(split.column_names) - {"answers"}
    kept = {name: kind for name, kind in KEPT.items() if name in columns}
    return split.map(
        _convert,
        fn_kwargs={"convert": convert, "kept": list(kept)},
        batched=True,
        remove_columns=split.column_names,
        features=datasets.Features({**FEATURES, **kept}),
    )


def _convert(batch: Mapping[str, Sequence[Any]], convert: Any, kept: Sequence[str]) -> dict[str, list]:
    made: dict[str, list] = {name: [] for name in (*FEATURES, *kept)}
    for values in zip(*batch.values(), strict=True):
        row = dict(zip(batch, values, strict=True))
        for converted in convert(row):
            filled = {"answer": "", "phrases": [], **converted}
            filled = {"caption_id": filled["example_id"], "image_id": row["image_id"], **filled}
            for name, column in made.items():
                column.append(row[name] if name in kept else filled[name])
    return made


def _of_captions(row: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    phrases = [_phrase(each) for each in row.get("phrases") or ()]
    yield {"example_id": row["caption_id"], "kind": CAPTION, "text": row["text"], "phrases": phrases}


def _of_expressions(row: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    phrases = [_phrase(each) for each in row["phrases"]]
    yield {"example_id": row["example_id"], "kind": EXPRESSION, "text": row["text"], "phrases": phrases}


def _of_questions(row: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    answers = row.get("answers") or []
    usual = Counter(answers).most_common(1)[0][0] if answers else row.get("answer") or ""
    phrases = [_phrase(each) for each in row.get("phrases") or () if each["boxes"]]
    yield {
        "example_id": row["example_id"],
        "kind": QUESTION,
        "text": row["text"],
        "answer": usual,
        "phrases": phrases,
    }


def _of_conversations(row: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    phrases = [{**_phrase(each), "sentence": each["sentence"]} for each in row["phrases"] if each["boxes"]]
    yield {"example_id": row["example_id"], "kind": CONVERSATION, "text": "", "phrases": phrases}


def _phrase(phrase: Mapping[str, Any]) -> dict[str, Any]:
    return {**{name: phrase[name] for name in ("text", "start", "end", "boxes")}, "sentence": 0}
