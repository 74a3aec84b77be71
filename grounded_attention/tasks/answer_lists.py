# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""Lists of answers from which a model for visual question answering chooses."""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Annotated, Any

from annotated_types import Len

from grounded_attention.metrics.vqa_accuracy import normalise_answer
from grounded_attention.utils.bounded_files import FileError, read_json
from grounded_attention.utils.named_types import Columns
from grounded_attention.utils.schema import Count, Of, section

FEWEST = "fewest"
EXPECTED = 'a JSON file with a list of answers, a list of answers, or {"fewest": n}'
# The field `answers` of a recipe, see [`read_answers`].
Answers = Annotated[
    Any, Of(Annotated[str, Len(1)] | Annotated[list[str], Len(1)] | Annotated[section({FEWEST: Count}), Len(1)])
]
LXMERT_ANSWER = "ans"  # the key of an answer in LXMERT's all_ans.json, whose entries also list data sets


def check_list(answers: Sequence[Any], source: str) -> list[str]:
    """Checks a list of answers."""
    wrong = [answer for answer in answers if not isinstance(answer, str)]
    if wrong or not answers:
        instead = repr(wrong[0]) if wrong else "an empty list"
        raise ValueError(f"{source}: found {instead}, expected a list of answers, which are strings")
    twice = [answer for answer, count in Counter(answers).items() if count > 1]
    if twice:
        raise ValueError(f"{source}: the answer {twice[0]!r} occurs twice; remove one, because each answer is a class")
    return list(answers)


def normalise_vqa(answer: str) -> str:
    """Normalises an answer as the evaluation of VQA v2 does, and removes commas."""
    return normalise_answer(answer).replace(",", "")


def read_answers(
    answers: Any, train: Iterable[Sequence[str]], normalise: Callable[[str], str] = normalise_vqa
) -> list[str]:
    """Reads the list of answers of a recipe."""
    if isinstance(answers, Mapping):
        return frequent_answers(train, answers[FEWEST], normalise)
    if not isinstance(answers, str):
        return check_list(answers, "answers")
    try:
        content = read_json(answers)
    except (OSError, FileError) as error:
        raise ValueError(f"{answers}: cannot read a list of answers ({error}); expected {EXPECTED}") from error
    if not isinstance(content, list):
        raise ValueError(f"{answers}: found {type(content).__name__}, expected {EXPECTED}")
    listed = []
    for each in content:
        listed.append(each.get(LXMERT_ANSWER, each) if isinstance(each, dict) else each)
    return check_list(listed, answers)


def frequent_answers(
    train: Iterable[Sequence[str]], fewest: int, normalise: Callable[[str], str] = normalise_vqa
) -> list[str]:
    """The most frequent answers of at least `fewest` questions (bottom-up attention code: 3,129 of VQA v2)."""
    usual: Counter[str] = Counter()
    for answers in train:
        if answers:
            usual[normalise(Counter(answers).most_common(1)[0][0])] += 1
    kept = sorted((answer for answer, count in usual.items() if count >= fewest), key=lambda a: (-usual[a], a))
    if not kept:
        raise ValueError(
            f"no answer is the most frequent one of {fewest} or more of the {usual.total()} training questions: "
            "give a smaller answers.fewest"
        )
    return kept


def outside(answers: Iterable[str], known: Columns) -> int:
    """Returns the number of answers that are not in the list."""
    return sum(answer not in known for answer in answers)


def fitted(answers: Answers | None) -> list[str]:
    """The list, once it has been read."""
    if not isinstance(answers, list):
        raise ValueError(f"answers is {answers!r}: the list has not been read yet, call fit_options first")
    return answers
