# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""VQA accuracy, equal for each question to the official evaluation of VQA v2, including its peculiarities.

The score of an answer is the mean of min(1, matches / 3) over the ten sets of nine human answers. Unless all ten human
answers are identical, answers are normalised first: punctuation, number words, articles, missing apostrophes.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from .item_scores import Scored, check_complete

# Characters that are removed or replaced with a space; ' : $ % & are kept.
PUNCTUATION = ';/[]"{}()=+\\_-><@`,?!'
NUMBERS = "zero one two three four five six seven eight nine ten".split()
NUMBER_WORDS = {"none": "0", **{word: str(number) for number, word in enumerate(NUMBERS)}}
ARTICLES = frozenset(("a", "an", "the"))
# Words that people write without the apostrophe; without those that are other words without it (we'll, he'll).
CONTRACTIONS = """
ain't aren't can't could've couldn't couldn't've didn't doesn't don't hadn't hadn't've hasn't haven't he'd he'd've he's
how'd how'll how's isn't it'd it'd've it'll ma'am mightn't mightn't've might've mustn't must've needn't not've o'clock
oughtn't 'ow's'at shan't she'd've should've shouldn't shouldn't've somebody'd've somebody'll somebody's someone'd
someone'd've someone'll someone's something'd something'd've something'll that's there'd there'd've there're there's
they'd they'd've they'll they're they've 'twas wasn't we'd've we've weren't what'll what're what's what've when's
where'd where's where've who'd who'd've who'll who's who've why'll why're why's won't would've wouldn't wouldn't've
y'all y'all'll y'all'd've you'd you'd've you'll you're you've
""".split()
# The official table has each word with exactly one apostrophe removed; one entry is the other way round.
WITHOUT_APOSTROPHE = {
    word[:place] + word[place + 1 :]: word
    for word in CONTRACTIONS
    for place, character in enumerate(word)
    if character == "'"
} | {"somebody'd": "somebodyd"}
# The official code passes a flag (re.UNICODE, 32) as the count, so later full stops are kept.
MOST_FULL_STOPS = 32
FULL_STOP = re.compile(r"\.(?!\d)")
DIGIT_COMMA = re.compile(r"\d,\d")
HUMANS = 10


def normalise_answer(answer: str) -> str:
    """Normalises an answer as the official evaluation does: case, punctuation, articles, number words."""
    return normalise_words(strip_punctuation(_one_line(answer)))


def strip_punctuation(text: str) -> str:
    """Removes punctuation next to a space or in a text with a number with a comma; otherwise inserts a space."""
    number = DIGIT_COMMA.search(text) is not None
    stripped = text
    for character in PUNCTUATION:
        away = number or f"{character} " in text or f" {character}" in text
        stripped = stripped.replace(character, "" if away else " ")
    return FULL_STOP.sub("", stripped, count=MOST_FULL_STOPS)


def normalise_words(text: str) -> str:
    """Converts to lower case and digits, removes articles, and inserts missing apostrophes."""
    words = (NUMBER_WORDS.get(word, word) for word in text.lower().split())
    return " ".join(WITHOUT_APOSTROPHE.get(word, word) for word in words if word not in ARTICLES)


def vqa_accuracy(prediction: str, answers: Sequence[str]) -> float:
    """
    Accuracy of one predicted answer, in [0, 1].

    Args:
        prediction (`str`): the answer.
        answers (`Sequence[str]`): human answers, ten in VQA v2.
    """
    prediction = _one_line(prediction)
    answers = [_one_line(answer) for answer in answers]
    if len(set(answers)) > 1:
        prediction, *answers = (normalise_words(strip_punctuation(text)) for text in (prediction, *answers))
    return matches_to_accuracy(sum(answer == prediction for answer in answers), len(answers))


def matches_to_accuracy(matches: int, humans: int = HUMANS) -> float:
    """The mean of min(1, matches / 3) over the sets without one human: 0, 0.3, 0.6, 0.9, 1 for ten humans."""
    without_a_match = matches * min(1.0, (matches - 1) / 3)
    return (without_a_match + (humans - matches) * min(1.0, matches / 3)) / humans


def soft_targets(answers: Iterable[str]) -> dict[str, float]:
    """Distinct answer -> its accuracy, as training targets (VL-BERT's public code); answers are not normalised."""
    answers = list(answers)
    return {answer: matches_to_accuracy(answers.count(answer), len(answers)) for answer in dict.fromkeys(answers)}


def score_questions(
    predictions: Mapping[Any, str], references: Mapping[Any, Sequence[str]], source: str = "the predictions"
) -> dict[Any, float]:
    """Computes the accuracy of every question."""
    check_complete(references, predictions, f"{source} has no answer")
    check_complete(predictions, references, f"{source} has answers that nobody asked")
    return {question: vqa_accuracy(predictions[question], answers) for question, answers in references.items()}


def score_answers(predicted: Sequence[str], answers: Sequence[Sequence[str]], kinds: Sequence[str]) -> Scored:
    """Scores each question: `vqa_accuracy`, and `vqa_<kind>_accuracy` of its answer type, which may be empty. A
    question without human answers has no score."""
    accuracy: list[float | None] = []
    for prediction, humans in zip(predicted, answers, strict=True):
        accuracy.append(vqa_accuracy(prediction, humans) if len(humans) else None)
    scores = {"vqa_accuracy": accuracy}
    for kind in filter(None, dict.fromkeys(kinds)):
        of_kind = [value if own == kind else None for value, own in zip(accuracy, kinds, strict=True)]
        scores[f"vqa_{kind.replace('/', '_')}_accuracy"] = of_kind
    return Scored(scores)


def _one_line(text: str) -> str:
    return text.replace("\n", " ").replace("\t", " ").strip()
