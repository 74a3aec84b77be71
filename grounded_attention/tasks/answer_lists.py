# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""Which answers a model of visual question answering chooses from."""

import json
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from grounded_attention.metrics.vqa_accuracy import normalise_answer

FEWEST = "fewest"
EXPECTED = 'a JSON file with a list of answers, a list of answers, or {"fewest": n}'


def check_answers(answers: Any) -> None:
    """Refuses what is no answer list in a recipe: see `read_answers`.

    Raises:
        ValueError: names what was found.
    """
    if isinstance(answers, Mapping):
        least = answers.get(FEWEST)
        if set(answers) != {FEWEST} or not isinstance(least, int) or isinstance(least, bool) or least < 1:
            raise ValueError(f"answers is {dict(answers)}, expected {EXPECTED}, n a whole number from 1 on")
    elif isinstance(answers, list | tuple):
        check_list(answers, "answers")
    elif not isinstance(answers, str) or not answers:
        raise ValueError(f"answers is {answers!r}, expected {EXPECTED}")


def check_list(answers: Sequence[Any], source: str) -> list[str]:
    """The answers of a list, each once.

    Raises:
        ValueError: an empty list, an entry that is no text, or one that stands there twice.
    """
    wrong = [answer for answer in answers if not isinstance(answer, str)]
    if wrong or not answers:
        found = repr(wrong[0]) if wrong else "an empty list"
        raise ValueError(f"{source}: found {found}, expected a list of answers as texts")
    twice = [answer for answer, count in Counter(answers).items() if count > 1]
    if twice:
        raise ValueError(f"{source}: the answer {twice[0]!r} stands there twice; each one is a class of its own")
    return list(answers)


def normalise_vqa(answer: str) -> str:
    """An answer of VQA v2 as the evaluation normalises it, without commas."""
    return normalise_answer(answer).replace(",", "")


def read_answers(
    answers: Any, train: Iterable[Sequence[str]], normalise: Callable[[str], str] = normalise_vqa
) -> list[str]:
    """The list of answers that a recipe asks for.

    Args:
        answers: a path of a JSON list (LXMERT's `trainval_label2ans.json`), a list, or `{"fewest": n}` for those of
            the training questions that are the most frequent answer of at least n questions.
        train: the human answers of each training question.
        normalise: how answers are written when they are counted.

    Raises:
        ValueError: an unreadable file, one without a list of different texts, or no answer that is frequent enough.
    """
    if isinstance(answers, Mapping):
        return frequent_answers(train, answers[FEWEST], normalise)
    if not isinstance(answers, str):
        return check_list(answers, "answers")
    try:
        content = json.loads(Path(answers).read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, json.JSONDecodeError) as error:
        raise ValueError(f"{answers}: no list of answers can be read ({error}); expected {EXPECTED}") from error
    if not isinstance(content, list):
        raise ValueError(f"{answers}: found {type(content).__name__}, expected {EXPECTED}")
    return check_list(content, answers)


def frequent_answers(
    train: Iterable[Sequence[str]], fewest: int, normalise: Callable[[str], str] = normalise_vqa
) -> list[str]:
    """Answers that are the most frequent one of at least `fewest` questions, by frequency, then alphabet.

    The rule of the bottom-up attention code, which 3,129 answers of VQA v2 come from: answers are normalised as in the
    evaluation, and lose their commas. The official files name each question's most frequent answer; here it is
    counted, and of equal ones the first counts. The public list counts train2014 and val2014, this one the training
    questions.

    Raises:
        ValueError: no answer is so frequent.
    """
    usual: Counter[str] = Counter()
    for answers in train:
        if answers:
            usual[normalise(Counter(answers).most_common(1)[0][0])] += 1
    kept = sorted((answer for answer, count in usual.items() if count >= fewest), key=lambda a: (-usual[a], a))
    if not kept:
        raise ValueError(f"no answer is given to {fewest} or more of the {usual.total()} training questions")
    return kept


def outside(answers: Iterable[str], known: Mapping[str, Any]) -> int:
    """How many of the answers are not in the list."""
    return sum(answer not in known for answer in answers)
