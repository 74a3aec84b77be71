# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""Files of predictions for the servers of challenges: a list of objects with a question and its answer."""

import json
from collections.abc import Mapping
from pathlib import Path

from grounded_attention.dataset_scripts.files.records import listed
from grounded_attention.utils.whole_files import write_text

VQA_NAMES = {"question": "question_id", "answer": "answer"}  # numbers; ids of other rows are texts
GQA_NAMES = {"question": "questionId", "answer": "prediction"}  # texts, also of digits


def write_answers(path: Path, answers: Mapping[str, str], question: str, answer: str) -> None:
    """Writes the answer to each question under the names of a challenge."""
    numbers = question == VQA_NAMES["question"]
    rows = []
    for key, text in answers.items():
        rows.append({question: int(key) if numbers and key.isdecimal() else key, answer: text})
    write_text(path, json.dumps(rows))


def read_answers(path: Path, question: str, answer: str) -> dict[str, str]:
    """Reads such a file."""
    answers: dict[str, str] = {}
    for record in listed(path, f"predictions are a list of objects with {question} and {answer}"):
        is_text = isinstance(record.values, dict) and isinstance(record.values.get(question), str)
        if is_text:
            key = record.text(question)
        else:
            key = str(record.integer(question))
        record.refuse_if(key in answers, "the question has two answers", found=key)
        answers[key] = record.text(answer)
    return answers
