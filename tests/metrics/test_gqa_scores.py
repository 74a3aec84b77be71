# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""GQA's metrics against plain loops over the definition, and cases whose result follows by hand."""

import random
from types import SimpleNamespace

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

ANSWERS = ("yes", "no", "red", "color", "material")
NAMED = (("select", "car"), ("exist", "?"), ("query", "name"), ("query", "color"), ("choose name", "a|b"))
STEPS = [{"operation": operation, "argument": argument, "dependencies": []} for operation, argument in NAMED]


def question(number="1", answer="red", **changes):
    return {
        "example_id": number,
        "image_id": "7",
        "text": "What color is it?",
        "semantic": [{"operation": "select", "argument": "car (1)", "dependencies": []}],
        "answer": answer,
        "is_balanced": True,
        "structural_type": "query",
        "semantic_type": "attr",
        "detailed_type": "directOf",
        "global_group": "",
        "entailed": [number],
        "valid": [],
        "plausible": [],
        **changes,
    }


def random_questions(rng, count=60):
    names = [str(number) for number in range(count)]
    return [
        question(
            name,
            rng.choice(ANSWERS[:3]),
            question=" ".join(["word"] * rng.randrange(3, 6)),
            semantic=rng.sample(STEPS, rng.randrange(1, 5)),
            is_balanced=rng.random() < 0.6,
            structural_type=rng.choice(("query", "verify", "choose")),
            semantic_type=rng.choice(("attr", "rel")),
            detailed_type=rng.choice(("directOf", "twoCommon")),
            global_group=rng.choice(("", "color", "size")),
            entailed=rng.sample(names, rng.randrange(4)),
            valid=rng.sample(ANSWERS, 3),
            plausible=rng.sample(ANSWERS, 2),
        )
        for name in names
    ]


def counted_steps(each):
    """Whether something is there, its name, and a choice of names are no steps."""
    uncounted = [("exist", "?"), ("query", "name"), ("choose name", "a|b")]
    return sum((step["operation"], step["argument"]) not in uncounted for step in each["semantic"])


def by_loops(predictions, questions):
    """The definitions, metric by metric, with `{"accuracy": ..., ...}` of those that have a question."""
    known = {each["example_id"]: each for each in questions}
    balanced = [each for each in questions if each["is_balanced"]]

    def share(chosen, holds):
        if chosen:
            return [sum(1 for each in chosen if holds(each)) / len(chosen)]
        return []

    def right(each):
        return predictions[each["example_id"]] == known[each["example_id"]]["answer"]

    def belongs(column):
        return lambda each: (
            predictions[each["example_id"]]
            in (["color", "material", "shape"] if "Common" in each["detailed_type"] else each[column])
        )

    found = {
        "accuracy": share(balanced, right),
        "open": share([each for each in balanced if each["structural_type"] == "query"], right),
        "binary": share([each for each in balanced if each["structural_type"] != "query"], right),
        "validity": share([each for each in balanced if each["valid"]], belongs("valid")),
        "plausibility": share([each for each in balanced if each["plausible"]], belongs("plausible")),
    }
    for each in balanced:
        words = len(each["text"].split(" "))
        alike = [other for other in balanced if len(other["text"].split(" ")) == words]
        found[f"words_0{words}"] = share(alike, right)
        steps = counted_steps(each)
        found[f"steps_0{steps}"] = share([other for other in balanced if counted_steps(other) == steps], right)
    for kind in ("structural", "semantic"):
        for name in {each[f"{kind}_type"] for each in balanced}:
            found[f"{kind}_{name}"] = share([each for each in balanced if each[f"{kind}_type"] == name], right)
    means = []
    for each in balanced:
        others = [other for other in each["entailed"] if other != each["example_id"]]
        if right(each) and others:
            means.append(sum(right(known[other]) for other in others) / len(others))
    found["consistency"] = [sum(means) / len(means) if means else 0.0]
    total = 0.0
    weight = 0
    for group in {each["global_group"] for each in balanced} - {""}:
        members = [each for each in balanced if each["global_group"] == group]
        for answer in {each["answer"] for each in members}:
            expected = sum(each["answer"] == answer for each in members)
            observed = sum(predictions[each["example_id"]] == answer for each in members)
            total += len(members) * (observed - expected) ** 2 / expected
        weight += len(members)
    found["distribution"] = [total / weight / 100] if weight else []
    return {name: values[0] for name, values in found.items() if values}


def streamed(predictions, questions, processes=1, batch=4):
    """The figures of the streaming metric, of questions dealt out to processes as the Trainer does."""
    states = []
    for rank in range(processes):

        def score(outputs, given):
            scored = [question_scores(*pair) for pair in zip(outputs.answers, given["questions"], strict=True)]
            names = dict.fromkeys(name for one in scored for name in one)
            scores = {f"gqa_{name}": [one.get(name) for one in scored] for name in names}
            return Scored(scores, notes={"answer": outputs.answers})

        metric = GQAScores("gqa", score)
        share = questions[rank::processes]
        for start in range(0, len(share), batch):
            rows = share[start : start + batch]
            ids = {column: [row[column] for row in rows] for column in ("example_id", "image_id")}
            answers = [predictions[row["example_id"]] for row in rows]
            metric.update(SimpleNamespace(answers=answers), {**ids, "questions": rows})
        states.append(metric.state())
    merged = {}
    for state in states:
        for key, value in state.items():
            merged[key] = merged[key] + value if key in merged else value
    return metric.compute(merged)


@pytest.mark.parametrize("seed", range(5))
def test_figures_are_the_definitions(seed):
    rng = random.Random(seed)
    questions = random_questions(rng)
    predictions = {each["example_id"]: rng.choice((each["answer"], *ANSWERS)) for each in questions}
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
    annotations = [
        {"part": "question", "tokens": "4", "object": "1", "box": [0, 0, 0.25, 0.5]},
        {"part": "fullAnswer", "tokens": "1", "object": "2", "box": [0.75, 0.75, 1, 1]},
        {"part": "fullAnswer", "tokens": "3", "object": "1", "box": [0, 0, 0.25, 0.5]},
        {"part": "answer", "tokens": "0", "object": "3", "box": [0, 0, 1, 1]},
        {"part": "question", "tokens": "5", "object": "4", "box": []},
    ]
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
