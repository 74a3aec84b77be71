# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""GQA's metrics against plain loops over the definition, and cases whose result follows by hand."""

import random

import pytest

from grounded_attention.metrics.gqa_scores import (
    GQAScores,
    consistency,
    distribution,
    gqa_scores,
    grounding_score,
    question_scores,
)
from grounded_attention.metrics.item_scores import Scored
from tests.metrics.score_formulations import ANSWERS, by_loops, question, random_questions


def streamed(predictions, questions, processes=1, batch=4):
    """The figures of the streaming metric, of questions dealt out to processes as the Trainer does."""

    def score(answers, given):
        scored = [question_scores(*pair) for pair in zip(answers, given["questions"], strict=True)]
        names = dict.fromkeys(name for scores in scored for name in scores)
        columns = {f"gqa_{name}": [scores.get(name) for scores in scored] for name in names}
        return Scored(columns, notes={"answer": answers})

    merged = {}
    for rank in range(processes):
        metric = GQAScores("gqa", score)
        share = questions[rank::processes]
        for start in range(0, len(share), batch):
            rows = share[start : start + batch]
            ids = {column: [row[column] for row in rows] for column in ("example_id", "image_id")}
            metric.update([predictions[name] for name in ids["example_id"]], {**ids, "questions": rows})
        for key, value in metric.state().items():
            merged[key] = merged[key] + value if key in merged else value
    return metric.compute(merged)


@pytest.mark.parametrize("seed", range(5))
def test_figures_are_the_definitions(seed):
    rng = random.Random(seed)
    questions = random_questions(rng)
    predictions = {row["example_id"]: rng.choice((row["answer"], *ANSWERS)) for row in questions}
    expected = by_loops(predictions, questions)
    assert {"consistency", "distribution", "validity", "binary"} <= set(expected)
    assert gqa_scores(predictions, questions) == pytest.approx(expected)
    for processes in (1, 3):
        figures = streamed(predictions, questions, processes)
        assert figures.pop("gqa_count") == len(questions)
        assert figures == pytest.approx({f"gqa_{name}": value for name, value in expected.items()})


def test_right_answers_are_the_best_case():
    questions = random_questions(random.Random(7))
    figures = gqa_scores({each["example_id"]: each["answer"] for each in questions}, questions)
    assert figures["accuracy"] == figures["consistency"] == figures["binary"] == figures["open"] == 1.0
    assert figures["distribution"] == 0.0


def test_a_question_that_is_not_balanced_counts_for_consistency_alone():
    questions = [question("1", entailed=["1", "2", "3"]), question("2", is_balanced=False), question("3")]
    figures = gqa_scores({"1": "red", "2": "blue", "3": "red"}, questions)
    assert figures["accuracy"] == 1.0
    assert figures["consistency"] == 0.5
    assert question_scores("red", questions[1]) == {}


def test_consistency_is_a_mean_of_means_of_right_questions():
    right = {"a": True, "b": False, "c": True, "d": True}
    assert consistency(right, {"a": ["b", "c"], "c": ["d"]}) == (0.5 + 1) / 2
    assert consistency(right, {"a": ["b", "c"], "b": ["a"]}) == 0.5, "b is wrong, so it entails nothing"
    assert consistency(right, {"a": ["a"], "c": []}) == consistency(right, {"b": ["a"]}) == 0.0
    assert consistency(right, {}) is None
    assert consistency(right, {"a": ["b", "e"]}) is None, "nobody knows whether e is right"
    alone = [question("1", entailed=[]), question("2", entailed=[])]
    answers = {"1": "red", "2": "red"}
    assert streamed(answers, alone)["gqa_consistency"] == gqa_scores(answers, alone)["consistency"] == 0.0


def test_grounding_by_hand():
    """A grid of two by two cells; attention 0.4 on the upper left one, whose half is in the first object, and 0.3 on
    the lower right one, a quarter of which is in the second. The answer's own object does not count."""
    cells = [[0, 0, 0.5, 0.5], [0.5, 0, 1, 0.5], [0, 0.5, 0.5, 1], [0.5, 0.5, 1, 1]]
    marks = [
        ("question", "4", "1", [0, 0, 0.25, 0.5]),
        ("fullAnswer", "1", "2", [0.75, 0.75, 1, 1]),
        ("fullAnswer", "3", "1", [0, 0, 0.25, 0.5]),
        ("answer", "0", "3", [0, 0, 1, 1]),
        ("question", "5", "4", []),
    ]
    annotations = [dict(zip(("part", "tokens", "object", "box"), mark, strict=True)) for mark in marks]
    found = grounding_score(annotations, cells, [0.4, 0.2, 0.1, 0.3])
    assert found == pytest.approx(0.4 * 0.5 + 0.3 * 0.25 + 0.4 * 0.5)


def test_distribution_is_chi_square_of_each_group():
    """Three a and one b, always answered a: (4 - 3)^2 / 3 + (0 - 1)^2 / 1; the other group is answered right."""
    one = [("g", gold, "a") for gold in "aaab"]
    assert distribution(one) == pytest.approx((1 / 3 + 1) / 100)
    assert distribution([*one, *[("h", "c", "c")] * 4]) == pytest.approx((1 / 3 + 1) / 2 / 100)
    assert distribution([("g", "a", "b"), ("g", "b", "a")]) == 0.0, "wrong answers, but equally frequent"
    assert distribution([("g", "a", "never right")]) == pytest.approx(1 / 100)
    assert distribution([]) is None


def test_choices_do_not_count_where_they_are_unknown_or_of_common_attributes():
    assert "validity" not in question_scores("red", question())
    common = question(detailed_type="twoCommon", valid=["red"], plausible=["red"])
    assert question_scores("red", common)["validity"] == 0.0
    assert question_scores("shape", common)["plausibility"] == 1.0


def test_answers_are_compared_as_texts():
    assert question_scores("Red", question())["accuracy"] == 0.0
    assert question_scores("red ", question())["accuracy"] == 0.0


def test_missing_predictions_are_named():
    questions = [question(str(number)) for number in range(5)]
    with pytest.raises(ValueError, match=r"no predictions for 4 of .* questions, such as 1, 2, 3"):
        gqa_scores({"0": "red"}, questions)
    extra = question("9", is_balanced=False)
    figures = gqa_scores({"0": "red", "unknown": "red"}, [question("0", entailed=["9"]), extra])
    assert figures["accuracy"] == 1.0
    assert "consistency" not in figures


def test_questions_without_answers_are_not_scored():
    questions = [question(str(number), "", structural_type="") for number in range(3)]
    assert streamed(dict.fromkeys("012", "red"), questions) == {"gqa_count": 3}
