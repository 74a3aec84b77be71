# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""Reads where a model looked for given answers, for `grounded-attention look --answers`."""

import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from grounded_attention.dataset_scripts.regions.extraction_run import join_processes
from grounded_attention.dataset_scripts.rows.chats import row_images
from grounded_attention.dataset_scripts.rows.columns import LONGEST_TEXT
from grounded_attention.lens.answered import BATCH, ManyLooks, ask_row, describe_others
from grounded_attention.lens.answers import IDS, GivenAnswer, read_answers
from grounded_attention.lens.lens_table import check_table_name, look_table
from grounded_attention.utils.named_types import Row

from .command_line import Result
from .models import ModelOptions, read_heads
from .rows_options import RowSource

MESSAGES = "messages"  # the answers are their last turns


@dataclass(frozen=True)
class AnswerOptions:
    """The options of `look --answers`, as they are given."""

    answers: str
    ids: str | None
    batch_size: int | None
    heads: str
    form: str
    token_rows: str | None


def look_at_answers(
    words: Sequence[str], source: RowSource, model: str, loading: ModelOptions, options: AnswerOptions, output: str
) -> Result | None:
    """Writes the table; the first process returns what was found."""
    path = check_table_name(output)
    if source.data is None or len(words) > 1:
        raise ValueError("--answers are those of the rows of --data: give it, and a question for all rows or none")
    join_processes(cpu=loading.device == "cpu")
    rows = _Rows(source, words)
    answers = _answers(rows, options)
    loaded, processor = loading.load(model)
    heads = read_heads(options.heads)
    looks = ManyLooks(loaded, processor, heads, options.form, options.token_rows, options.batch_size or BATCH)
    ids = IDS if options.ids is None else (options.ids,)
    found = look_table(looks, rows, answers, path, ids=ids)
    if found is None:
        return None
    count = found["rows"]
    lines = [f"{count} answers, {found['words']} words, {found['answer_words']} of them of answers"]
    if count < len(answers):
        lines.append(f"{len(answers) - count} of {len(answers)} rows have no answer or no picture, and were left out")
    if found["other_answers"]:
        lines.append(describe_others(count, [f"row {number}" for number in found["other_answers"]]))
    lines.append(f"written to {path}")
    return found, "\n".join(lines)


class _Rows:
    """The rows of `--data` with pictures as they are stored, or one question about all pictures."""

    def __init__(self, source: RowSource, words: Sequence[str]):
        self.rows = source.open().decode(False)
        self.words = words

    def __iter__(self) -> Iterator[Row]:
        for row in self.rows:
            if self.words:
                row = {key: value for key, value in row.items() if key not in (MESSAGES, "prompt", "completion")}
                row["text"] = self.words[0]
            yield row


def _answers(rows: Iterable[Row], options: AnswerOptions) -> list[GivenAnswer | None]:
    """The answers of a file or of a column; none for rows without a picture. The rows are iterated once."""
    is_file = os.path.isfile(options.answers)
    ids = []
    pictured = []
    answers: list[GivenAnswer | None] = []
    for number, row in enumerate(rows):
        ids.append({name: row.get(name) for name in (*IDS, str(options.ids))})
        pictured.append(bool(row_images(row)))
        if is_file:
            continue
        if options.answers == MESSAGES:
            answers.append(ask_row(row, None, number).answer)
        elif isinstance(row.get(options.answers), str):
            answers.append(GivenAnswer(row[options.answers]))
        else:
            most = f"no text of at most {LONGEST_TEXT} characters in the column {options.answers!r}"
            found = f"row {number} has {most}; columns: {', '.join(row)}"
            raise ValueError(f"--answers {options.answers}: no such file, and {found}")
    if is_file:
        answers = read_answers(options.answers, ids, options.ids)
    return [answer if has else None for answer, has in zip(answers, pictured, strict=True)]
