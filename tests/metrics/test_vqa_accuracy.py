# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""VQA accuracy against official scores, and against plain second formulations."""

import json
from itertools import product

import pytest

from grounded_attention.metrics.vqa_accuracy import (
    CONTRACTIONS,
    matches_to_accuracy,
    normalise_answer,
    score_questions,
    soft_targets,
    vqa_accuracy,
)
from tests.metrics.score_formulations import leave_one_out


def read(folder, name):
    return json.loads((folder / name).read_text(encoding="utf-8"))


def test_every_question_has_its_official_score(shared):
    folder = shared / "real" / "vqa"
    official = read(folder, "golden_official_scores.json")
    predictions = {str(row["question_id"]): row["answer"] for row in read(folder, "golden_predictions.json")}
    annotations = read(folder, "v2_mscoco_train2014_3000_annotations.json")["annotations"]
    references = {str(row["question_id"]): [a["answer"] for a in row["answers"]] for row in annotations}
    scores = score_questions(predictions, references)
    rounded = {question: round(100 * score, 2) for question, score in scores.items()}
    assert rounded == official["per_question_accuracy_percent"]
    assert round(100 * sum(scores.values()) / len(scores), 2) == official["overall"]


def test_every_answer_has_its_official_normal_form(shared):
    pairs = read(shared / "real" / "vqa", "golden_answer_normalisation_pairs.json")
    assert [(answer, normalise_answer(answer)) for answer, _ in pairs] == [tuple(pair) for pair in pairs]


@pytest.mark.parametrize("matches", range(11))
def test_accuracy_is_the_mean_over_the_sets_of_nine(matches):
    answers = ["cat"] * matches + [f"dog {number}" for number in range(10 - matches)]
    expected = leave_one_out("cat", answers)
    assert vqa_accuracy("cat", answers) == pytest.approx(expected)
    assert matches_to_accuracy(matches) == pytest.approx(expected)


def test_soft_targets_score_each_answer_as_if_it_were_predicted():
    answers = ["red"] * 6 + ["dark red"] * 3 + ["maroon"]
    targets = soft_targets(answers)
    assert targets == pytest.approx({answer: leave_one_out(answer, answers) for answer in set(answers)})


def test_answers_are_normalised_only_where_humans_disagree():
    assert vqa_accuracy("Yes", ["yes"] * 10) == 0.0
    assert vqa_accuracy("Yes", ["yes"] * 9 + ["no"]) == 1.0


@pytest.mark.parametrize(
    "spoken, written",
    [
        ("Two", "2"),
        ("The red car", "red car"),
        ("red-car", "red car"),
        ("dont", "don't"),
        ("none", "0"),
        ("x,y", "x y"),
    ],
)
def test_what_means_the_same_is_the_same(spoken, written):
    assert normalise_answer(spoken) == written
    assert normalise_answer(written) == written


def test_full_stops_stay_within_numbers_alone():
    assert normalise_answer("2.5 m.") == "2.5 m"
    assert normalise_answer("10,000") == "10000"


def test_a_missing_apostrophe_is_put_in():
    for word in CONTRACTIONS:
        places = [place for place, character in enumerate(word) if character == "'"]
        for place in places:
            assert normalise_answer(word[:place] + word[place + 1 :]) == word


def test_normal_form_of_pieces_has_no_article_and_no_number_word():
    for number, noun in product(("one", "ten", "3"), ("the dog", "an apple")):
        words = normalise_answer(f"{number} {noun}").split()
        assert words[0].isdigit()
        assert not {"a", "an", "the"} & set(words)


def test_missing_and_unknown_questions_are_refused():
    references = {"7": ["yes"] * 10, "8": ["no"] * 10}
    with pytest.raises(ValueError, match=r"answers\.json has no answer for 1 of 2 questions, such as 8"):
        score_questions({"7": "yes"}, references, source="answers.json")
    with pytest.raises(ValueError, match="nobody asked for 1 of 3 questions, such as 9"):
        score_questions({"7": "yes", "8": "no", "9": "no"}, references)
