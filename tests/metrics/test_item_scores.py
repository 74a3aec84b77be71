# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""Scores of single examples: means, totals, and their order when several processes took every n-th example."""

import doctest

import pytest

import grounded_attention.metrics.item_scores
from grounded_attention.metrics.item_scores import ItemScores, Scored, interleave


def batch(*names):
    return {"example_id": list(names), "image_id": [f"image {name}" for name in names]}


def metric(*batches):
    found = ItemScores("made", lambda outputs, batch: outputs)
    for outputs, rows in batches:
        found.update(outputs, rows)
    return found


def test_figures_are_means_of_the_items():
    found = metric(
        (Scored({"hit": [True, False]}, {"lost": 2}, {"answer": ["x", "y"]}), batch("a", "b")),
        (Scored({"hit": [None], "odd": [0.25]}, {"lost": 1}, {"answer": [None]}), batch("c")),
    )
    assert found.compute(found.state()) == {"hit": 0.5, "odd": 0.25, "lost": 3, "made_count": 3}
    assert found.items() == {
        "example_id": ["a", "b", "c"],
        "image_id": ["image a", "image b", "image c"],
        "hit": [1.0, 0.0, None],
        "answer": ["x", "y", None],
        "odd": [None, None, 0.25],
    }


def test_a_score_that_no_example_has_is_no_figure():
    found = metric((Scored({"hit": [None]}), batch("a")))
    assert found.compute(found.state()) == {"made_count": 1}
    assert "hit" not in interleave([found.items()])


@pytest.mark.parametrize("processes", [1, 2, 3])
def test_processes_together_give_what_one_gives(processes):
    names = list("abcdefg")
    values = {name: float(number) for number, name in enumerate(names)}
    shares = []
    states = []
    for rank in range(processes):
        mine = names[rank::processes]
        found = metric(*((Scored({"hit": [values[name]]}), batch(name)) for name in mine))
        shares.append(found.items())
        states.append(found.state())
    joined = interleave(shares)
    assert joined["example_id"] == names
    assert joined["hit"] == list(values.values())
    merged = {key: sum(state[key] for state in states) for key in states[0]}
    assert found.compute(merged) == {"hit": 3.0, "made_count": 7}


def test_a_process_without_examples_or_scores():
    empty = metric().items()
    full = metric((Scored({"hit": [1.0]}), batch("a"))).items()
    assert interleave([full, empty])["hit"] == [1.0]
    assert interleave([{}]) == {}


def test_the_example_of_the_docstring_runs():
    assert doctest.testmod(grounded_attention.metrics.item_scores).failed == 0


def test_a_score_for_other_examples_is_refused():
    with pytest.raises(ValueError, match="hit has 1 values for 2 examples"):
        metric((Scored({"hit": [1.0]}), batch("a", "b")))
