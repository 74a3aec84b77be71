# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""Answers that somebody else generated: what servers write, and whose rows they answer."""

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from grounded_attention.dataset_scripts.files.errors import DataError
from grounded_attention.dataset_scripts.files.records import Record, id_text, json_lines
from grounded_attention.utils.named_types import Columns, Row
from grounded_attention.utils.plain_text import shorten_values

ID = "custom_id"  # of a request
IDS = (ID, "id", "image_id", "question_id")  # columns that may have it
HINT = "each line is an answer of the OpenAI Batch API or of `vllm run-batch`, or a chat completion"
BY_COLUMN = "name the column of --data that has these ids: --answer-ids, `column`"
_TOKEN = re.compile(r"token_id:(\d+)")


@dataclass(frozen=True)
class GivenAnswer:
    """An answer that somebody else generated.

    Args:
        text (`str`, *optional*): its text; it may be left out if there are tokens.
        tokens (`tuple[int, ...]`, *optional*): the ids of its tokens in the tokenizer of the model; without them the
            text is tokenised again.
    """

    text: str | None = None
    tokens: tuple[int, ...] | None = None


def read_answers(path: str | Path, rows: Iterable[Row], column: str | None = None) -> list[GivenAnswer | None]:
    """Reads answers that somebody else generated, and finds the row that each of them answers.

    Args:
        path (`str` or `Path`): JSON lines: the output of the OpenAI Batch API or of `vllm run-batch` (chat or
            completions), or chat completions themselves. Tokens are taken from `token_ids`, or from `logprobs` with
            tokens such as `token_id:42`.
        rows (iterable of rows): the rows, such as [`grounded_rows`].
        column (`str`, *optional*): the column of the rows that has the ids of the answers (`custom_id`); by default
            the one of `custom_id`, `id`, `image_id` and `question_id` that has each of them once. Answers without ids
            are those of the rows in their order, and as many.

    Returns:
        `list[GivenAnswer | None]`: the answer of each row; `None` for a row that no line answers.

    Raises:
        DataError: if a line has another form, an error or a status other than 200, or its id is that of no row, of
            several rows, or of an earlier line; the message names the file and the line.
    """
    path = Path(path)
    given: list[GivenAnswer] = []
    places: dict[str, str] = {}  # id -> its line
    for record in json_lines(path, HINT):
        given.append(_read_answer(record))
        name = record.values.get(ID)
        if name is not None:
            name = id_text(name)
            record.refuse_if(name in places, "the id of an earlier answer", found=name, expected="each once")
            places[name] = record.where
        record.refuse_if(len(places) not in (0, len(given)), "ids of some answers", expected=f"{ID} in all, or none")
    ids: dict[str, list[str]] = {each: [] for each in ([column] if column else IDS)}
    count = 0
    for row in rows:
        count += 1
        for each, of_rows in ids.items():
            of_rows.append("" if row.get(each) is None else id_text(row[each]))
    numbers: Sequence[int] = range(count)
    if places:
        numbers = _find_rows(path, places, ids)
    elif not given or len(given) != count or column:
        expected = f"{count}, one for each row, or a {ID} in each line"
        raise DataError("answers without ids", file=path, found=f"{len(given)} answers", expected=expected, hint=HINT)
    answers: list[GivenAnswer | None] = [None] * count
    for number, answer in zip(numbers, given, strict=True):
        answers[number] = answer
    return answers


def _find_rows(path: Path, places: Mapping[str, str], ids: Mapping[str, Sequence[str]]) -> Sequence[int]:
    """The row of each id, by the one column that has all of them once."""
    fitting = {}
    wrong = {}
    for column, of_rows in ids.items():
        counts = Counter(of_rows)
        other = next((each for each in places if counts[each] != 1), None)
        if other is None:
            number = {each: number for number, each in enumerate(of_rows)}
            fitting[column] = [number[each] for each in places]
        elif any(of_rows):
            wrong[column] = (other, f"{column} has it {counts[other]} times")
    if not fitting:
        id, _ = next(iter(wrong.values()), (next(iter(places)), ""))
        found = "; ".join(said for other, said in wrong.values() if other == id) or "no such column"
        expected = f"{', '.join(ids)} with each id once"
        problem = f"no row for {id!r:.80}"
        raise DataError(problem, file=path, where=places[id], found=found, expected=expected, hint=BY_COLUMN)
    numbers = next(iter(fitting.values()))
    if any(each != numbers for each in fitting.values()):
        problem = "columns with the ids, for other rows each"
        raise DataError(problem, file=path, found=", ".join(fitting), hint=BY_COLUMN)
    return numbers


def _read_answer(record: Record) -> GivenAnswer:
    values = record.values
    record.refuse_if(not isinstance(values, Mapping), "not an object", found=values, expected="an object")
    problem = values.get("error")
    record.refuse_if(problem, "the request failed", found=shorten_values(str(problem)))
    body = record
    if "response" in values:
        response = record.member("response")
        status = response.integer("status_code")
        record.refuse_if(status != 200, "the request failed", found=response.values.get("body"), expected="status 200")
        body = response.member("body")
    choices = list(body.records("choices", "choice"))
    body.refuse_if(len(choices) != 1, "several answers, or none", found=len(choices), expected="one choice (n=1)")
    [choice] = choices
    tokens = _tokens(choice)
    if "text" in choice.values:  # of /v1/completions
        return GivenAnswer(choice.text("text"), tokens)
    message = choice.member("message")
    if tokens is not None and message.values.get("content") is None:
        return GivenAnswer(None, tokens)
    thoughts = message.values.get("reasoning_content") or message.values.get("reasoning")
    problem = "reasoning before the answer, which is not in its text"
    message.refuse_if(thoughts and tokens is None, problem, expected="its tokens too: ask for return_token_ids")
    return GivenAnswer(message.text("content"), tokens)


def row_answer(chat: Sequence[Columns]) -> str | None:
    """The text of the last turn of a conversation, if it is the assistant's."""
    if not chat or chat[-1]["role"] != "assistant":
        return None
    return "".join(part["text"] for part in chat[-1]["content"] if part.get("type") == "text")


def _tokens(choice: Record) -> tuple[int, ...] | None:
    """The token ids that a server gave with an answer."""
    values = choice.values
    ids = values.get("token_ids")
    try:
        written = (values.get("logprobs") or {}).get("content")
        if ids is None and written:
            found = [_TOKEN.fullmatch(each["token"]) for each in written]
            if any(found):
                ids = [each and int(each[1]) for each in found]
    except (AttributeError, KeyError, TypeError) as error:
        raise choice.error("bad log-probabilities", found=str(error), expected="those of a server") from None
    if ids is None:
        return None
    is_list = isinstance(ids, list) and all(type(each) is int and each >= 0 for each in ids)
    choice.refuse_if(not is_list, "bad token ids", found=ids, expected="a whole number for each token")
    return tuple(ids)
