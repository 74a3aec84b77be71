# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""The comparison table in Markdown and in a terminal."""

import io

import pytest

from evaluation.tables import comparison_table, print_table


def method_results(identification: float, vgp: float, grounding: tuple[float | None, ...]) -> dict:
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


def cells(table: str) -> dict[str, list[str]]:
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


def test_the_caption_says_where_layer_and_head_were_chosen():
    caption = comparison_table(RESULTS).split("\n\n")[1]
    assert "chosen on the validation split" in caption and "on the test split" in caption


def test_tables_of_unusual_results():
    rows = cells(comparison_table({"methods": {"mine": {"vgp_accuracy": 0.5}}, "baselines": {"chance": {}}}))
    assert rows["mine"] == ["–", "**0.500**", "–", "–", "–", "–"]
    assert rows["chance"] == ["–"] * 6
    assert "direct" not in cells(comparison_table({"methods": {}})), "a method that was not trained has no row"
    rows = cells(comparison_table(RESULTS | {"baselines": {"chance": {"identification_accuracy": 1 / 3}}}))
    assert rows["chance"] == ["0.333", "–", "0.131", "0.131", "0.131", "0.131"]
    with pytest.raises(ValueError, match=r"\['metods'\].*\"methods\""):
        comparison_table({"metods": {}})


def test_terminal_table_is_aligned(capsys):
    print_table(RESULTS)
    printed = capsys.readouterr().out
    out = io.StringIO()
    print_table(RESULTS, file=out)
    assert printed == out.getvalue()
    lines = printed.splitlines()
    rows = {line.split()[0]: line for line in lines if line.strip()}
    assert rows["direct"].split() == ["direct", "0.910", "0.800*", "0.610*", "0.850", "0.900", "0.400*"]
    points = [[i for i, sign in enumerate(rows[name]) if sign == "."] for name in ("direct", "none", "semi_direct")]
    assert points[0][:5] == points[1] == points[2], "decimal points below each other"
    assert max(map(len, lines)) <= 100
