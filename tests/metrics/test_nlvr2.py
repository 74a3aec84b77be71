# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""NLVR2's accuracy and consistency, over batches and processes."""

import random
from types import SimpleNamespace

import pytest

from grounded_attention.metrics.item_scores import Scored
from grounded_attention.tasks.visual_reasoning import StatementScores, statement_of
from tests.metrics.score_formulations import by_hand, drawn


def test_statements_are_grouped_by_set_and_sentence():
    assert statement_of("dev-850-3-1") == statement_of("dev-850-0-1") == "dev-850--1"
    assert len({statement_of(name) for name in ("dev-850-0-1", "dev-850-0-0", "dev-85-0-1", "test1-850-0-1")}) == 4


@pytest.mark.parametrize("identifier", ["dev-850-0", "dev-850-0-0-0", "dev--0-0", ""])
def test_bad_identifiers_are_named(identifier):
    with pytest.raises(ValueError, match=r"expected <split>-<set>-<pair>-<sentence>"):
        statement_of(identifier)


def scores():
    return StatementScores("nlvr2", lambda outputs, batch: Scored({"nlvr2_accuracy": outputs.right}), "nlvr2_accuracy")


def batch(identifiers):
    return {"example_id": identifiers, "image_id": identifiers}


def test_states_of_two_processes_add_up_to_the_figures_of_one():
    right = drawn()
    names = list(right)
    random.Random(1).shuffle(names)
    metrics = [scores(), scores()]
    for number in range(0, len(names), 7):
        part = names[number : number + 7]
        metrics[number % 2].update(SimpleNamespace(right=[right[name] for name in part]), batch(part))
    first, second = (metric.state() for metric in metrics)
    merged = {key: value + second[key] for key, value in first.items()}
    found = scores().compute(merged)
    assert (found["nlvr2_accuracy"], found["nlvr2_consistency"]) == pytest.approx(by_hand(right))
    assert 0 < found["nlvr2_consistency"] < found["nlvr2_accuracy"] < 1
    assert found["nlvr2_count"] == len(right)


def test_examples_without_label_have_no_consistency():
    metric = scores()
    metric.update(SimpleNamespace(right=[None, None]), batch(["test2-1-0-0", "test2-1-1-0"]))
    assert metric.compute(metric.state()) == {"nlvr2_count": 2}
    empty = scores()
    assert empty.compute(empty.state()) == {"nlvr2_count": 0}
