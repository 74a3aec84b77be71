# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""The comparison table in Markdown and in a terminal."""

import math

import pytest

from grounded_attention.pages.tables import accuracy_table, best_method, comparison_table


def method_results(identification, vgp, grounding):
    names = ("all_heads", "best_layer", "best_head", "rollout")
    regions = dict(zip(names, grounding, strict=True)) | {"chance": 0.131}
    return {"identification_accuracy": identification, "vgp_accuracy": vgp, "text_to_region_accuracy": regions}


RESULTS = {
    "methods": {
        "direct": method_results(0.91, 0.8004, (0.61, 0.85, 0.9, 0.4)),
        "none": method_results(0.92, 0.8001, (0.14, 0.2, 0.3, None)),
        "semi_direct": method_results(0.5, 0.7, (0.5, 0.86, 1.0, float("nan"))),
    },
    "baselines": {
        "text_only": {"identification_accuracy": 0.99, "vgp_accuracy": 0.6},
        "majority": {"identification_accuracy": 0.34, "vgp_accuracy": 0.26},
    },
}


def cells(table):
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in table.splitlines() if line[:1] == "|"]
    assert len({len(row) for row in rows}) == 1, "every row has every column"
    return {row[0]: row[1:] for row in rows}


def test_markdown_table_marks_the_best_method_of_each_column():
    rows = cells(comparison_table(RESULTS))
    assert list(rows)[2:] == ["none", "direct", "semi_direct", "majority", "text_only", "chance"]
    assert rows["direct"] == ["0.910", "**0.800**", "**0.610**", "0.850", "0.900", "**0.400**"]
    assert rows["none"] == ["**0.920**", "**0.800**", "0.140", "0.200", "0.300", "–"], "ties are printed as ties"
    assert rows["semi_direct"] == ["0.500", "0.700", "0.500", "**0.860**", "**1.000**", "–"]
    assert rows["text_only"] == ["0.990", "0.600", "–", "–", "–", "–"], "baselines do not compete"
    assert rows["chance"] == ["–", "–", "0.131", "0.131", "0.131", "0.131"]


def test_tables_of_unusual_results():
    rows = cells(comparison_table({"methods": {"mine": {"vgp_accuracy": 0.5}}, "baselines": {"chance": {}}}))
    assert rows["mine"] == ["–", "**0.500**", "–", "–", "–", "–"]
    assert rows["chance"] == ["–"] * 6
    assert "direct" not in cells(comparison_table({"methods": {}})), "a method that was not trained has no row"
    rows = cells(comparison_table(RESULTS | {"baselines": {"chance": {"identification_accuracy": 1 / 3}}}))
    assert rows["chance"] == ["0.333", "–", "0.131", "0.131", "0.131", "0.131"]


def test_terminal_table_is_aligned():
    table = comparison_table(RESULTS).partition("\n\n")[0]
    assert len({len(line) for line in table.splitlines()}) == 1


def test_what_was_predicted_how_well_with_what_only_some_have():
    found = cells(accuracy_table({"a": {"nlvr2_accuracy": 0.5, "nlvr2_consistency": 0.25, "words_accuracy": 1.0}}))
    assert "consistency" in found["model"]
    assert "upper_bound" not in found["model"]
    assert "0.250" in accuracy_table({"a": {"nlvr2_accuracy": 0.5, "nlvr2_consistency": 0.25}})
    assert "consistency" not in accuracy_table({"a": {"words_accuracy": 1.0}})
    phrases = {f"phrase_{name}": 0.5 for name in ("accuracy", "recall@5", "recall@10", "upper_bound")}
    assert accuracy_table({"a": phrases}).count("0.500") == 4


@pytest.mark.parametrize(
    "methods, best",
    [
        # Grounding decides, then VGP, then what the task predicts; a missing figure and NaN never win.
        ({"none": (0.9, 0.2), "direct": (0.8, 0.8), "semi_direct": (0.7, 0.4)}, "direct"),
        ({"semi_direct": (0.7, 0.8), "direct": (0.8, 0.8)}, "direct"),
        ({"none": (0.9, None), "indirect": (0.95, None)}, "indirect"),
        ({"none": (0.9, None), "indirect": (0.8, math.nan)}, "none"),
        ({"none": (None, None)}, "none"),
    ],
)
def test_the_best_method_has_the_highest_main_figure(methods, best):
    rows = {
        name: {"vgp_accuracy": vgp, "text_to_region_accuracy": {"best_head": head}}
        for name, (vgp, head) in methods.items()
    }
    assert best_method({"methods": rows}) == best


@pytest.mark.parametrize(
    "rows",
    [
        {name: {"phrase_accuracy": 1.0} for name in ("none", "direct")},  # equal: the supervised one
        {n: {"figures": {"validation": {"answer_perplexity": p}}} for n, p in (("none", 9.0), ("direct", 8.0))},
        {n: {"figures": {"test": {"answer_perplexity": p}}} for n, p in (("x", 9.0), ("direct", 8.0))},
    ],
)
def test_of_equal_methods_the_next_figure_decides(rows):
    assert best_method({"methods": rows}) == "direct"
