# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""A study's table and chart, read as a reader would."""

import copy

import numpy as np
import pytest
from matplotlib.colors import to_rgb
from PIL import Image

from grounded_attention.reports.figure_style import BLUE, VERMILLION
from grounded_attention.reports.study_figures import differences_figure, study_table


def difference(mean, width, claimed, seeds=(1, 2, 3, 4, 5)):
    by_seed = {str(seed): mean + 0.001 * (seed - 3) for seed in seeds}
    low, high = mean - width, mean + width
    return {"mean": mean, "low": low, "high": high, "seeds": list(seeds), "by_seed": by_seed, "claimed": claimed}


def figure(mean, difference=None, seeds=(1, 2, 3, 4, 5)):
    differences = {} if difference is None else {"original": difference}
    return {"mean": mean, "seeds": {str(seed): mean for seed in seeds}, "differences": differences}


def column(name, baselines):
    return {"name": name, "split": "validation", "items": 20, "images": 7, "baselines": baselines}


RESULTS = {
    "study": "table1",
    "seeds": [1, 2, 3, 4, 5],
    "rows": ["original", "direct", "none", "random"],
    "against": ["original", "random"],
    "fewest_seeds": 5,
    "cells": {"finished": 9, "all": 12},
    "columns": [column("VQA", {"majority": 0.25}), column("refs", {"chance": 0.125, "upper_bound": 0.96})],
    "figures": {
        "original": {"VQA": figure(0.5), "refs": figure(0.6)},
        "direct": {
            "VQA": figure(0.52, difference(0.02, 0.01, True)),
            "refs": figure(0.55, difference(-0.05, 0.02, True)),
        },
        "none": {"VQA": figure(0.9, difference(0.4, 0.9, False, (1,)), (1,))},
        "random": {},
    },
    "notes": ["Trained on train alone."],
}


def cells(table, title):
    """Name -> cells of the rows of the table whose head starts with this title."""
    block = next(block for block in table.split("\n\n") if block.startswith(f"| {title} |"))
    rows = [[cell.strip() for cell in line.strip("|").split(" | ")] for line in block.splitlines()]
    return {row[0]: row[1:] for row in rows}


def test_the_table_shows_every_seed_and_marks_the_best_of_the_complete_rows():
    rows = cells(study_table(RESULTS), "Row")
    assert rows["original"] == ["50.0 (50.0 50.0 50.0 50.0 50.0)", "**60.0** (60.0 60.0 60.0 60.0 60.0)"]
    assert rows["direct"][0] == "**52.0** (52.0 52.0 52.0 52.0 52.0)"
    assert rows["none"] == ["90.0 (90.0 – – – –)", "–"], "one seed is not the best of five"
    assert rows["random"] == ["–", "–"]
    assert rows["*chance*"] == ["–", "12.5"] and rows["*best possible*"] == ["–", "96.0"]
    assert rows["*always the most frequent answer*"] == ["25.0", "–"]


def test_claimed_differences_are_marked():
    table = study_table(RESULTS)
    rows = cells(table, "Difference to original")
    assert rows["direct"] == ["+2.0\\* [+1.0, +3.0]", "−5.0\\* [−7.0, −3.0]"]
    assert rows["none"] == ["+40.0 [−50.0, +130.0]", "–"]
    assert "random" not in rows and "Difference to random" not in table
    assert "direct is better than original on VQA; direct is worse than original on refs" in table
    assert "3 differences are compared" in table and "3 of 12 cells are not trained yet" in table
    assert table.endswith("- Trained on train alone.\n")


def test_nothing_is_claimed_of_few_seeds_or_of_intervals_with_zero():
    few = copy.deepcopy(RESULTS)
    for row in ("direct", "none"):
        few["figures"][row] = {"VQA": figure(0.5, difference(0.1, 0.01, False, (1, 2)), (1, 2))}
    assert "No difference is claimed: a claim needs 5 seeds, and only 2 seeds" in study_table(few)
    wide = copy.deepcopy(RESULTS)
    wide["figures"]["direct"] = {"VQA": figure(0.5, difference(0.1, 0.2, False))}
    assert "No difference is claimed: every interval" in study_table(wide)
    alone = {**RESULTS, "figures": {**RESULTS["figures"], "direct": {}, "none": {}}}
    assert "no two rows can be compared yet" in study_table(alone)


def test_a_difference_of_nothing_has_no_sign():
    same = copy.deepcopy(RESULTS)
    same["figures"]["direct"]["VQA"] = figure(0.5, difference(-0.0001, 0.0, False))
    assert cells(study_table(same), "Difference to original")["direct"][0] == "0.0 [0.0, 0.0]"


def colours(path):
    return {tuple(pixel) for pixel in np.asarray(Image.open(path).convert("RGB")).reshape(-1, 3).tolist()}


def rgb(colour):
    return tuple(round(255 * part) for part in to_rgb(colour))


def test_the_chart_has_a_panel_a_column_and_an_interval_a_difference(tmp_path):
    drawn = differences_figure(RESULTS, tmp_path / "table1.png")
    vqa, refs = [axes for axes in drawn.axes if axes.axison]
    assert [text.get_text() for text in vqa.get_yticklabels()] == ["direct", "none", "random"]
    assert vqa.get_title() == "VQA\noriginal 50.0"
    assert vqa.yaxis_inverted(), "rows from top to bottom as in the table"
    intervals = [line.get_xdata() for line in refs.get_lines() if len(line.get_xdata()) == 2 and line.get_lw() == 2.5]
    assert np.allclose(intervals, [[-7, -3]])
    dots = [line.get_xdata() for line in refs.get_lines() if line.get_marker() == "."]
    assert np.allclose(dots, [[-5.2, -5.1, -5.0, -4.9, -4.8]])
    assert {rgb(BLUE), rgb(VERMILLION)} <= colours(tmp_path / "table1.png")
    first = (tmp_path / "table1.png").read_bytes()
    differences_figure(RESULTS, tmp_path / "table1.png")
    assert (tmp_path / "table1.png").read_bytes() == first


def test_a_chart_of_nothing_yet_and_of_many_columns(tmp_path):
    names = [f"column {number}" for number in range(7)]
    many = {**RESULTS, "columns": [column(name, {}) for name in names], "figures": {r: {} for r in RESULTS["rows"]}}
    drawn = differences_figure(many, tmp_path / "table1.png")
    titles = [axes.get_title() for axes in drawn.axes if axes.axison]
    assert titles == [f"{name}\noriginal –" for name in names]


def test_a_row_alone_has_a_chart_too(tmp_path):
    alone = {**RESULTS, "rows": ["original"], "figures": {"original": RESULTS["figures"]["original"]}}
    differences_figure(alone, tmp_path / "table1.png")
    assert (tmp_path / "table1.png").is_file()
    with pytest.raises(ValueError, match="file type"):
        differences_figure(alone, tmp_path / "table1.txt")
