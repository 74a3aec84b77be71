# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""A study's table and chart, read as a reader would."""

import copy

import numpy as np
import pytest
from matplotlib.colors import to_rgb
from PIL import Image

from grounded_attention.reports.colours import BLUE, VERMILLION
from grounded_attention.reports.study_curves import learning_curves_figure
from grounded_attention.reports.study_figures import differences_figure, study_table

pytestmark = pytest.mark.drawn_figures


def difference(mean, width, claimed, seeds=(1, 2, 3, 4, 5)):
    by_seed = {str(seed): mean + 0.001 * (seed - 3) for seed in seeds}
    low, high = mean - width, mean + width
    ends = {"low": low, "high": high, "interval": True}
    return {"mean": mean, **ends, "seeds": list(seeds), "by_seed": by_seed, "claimed": claimed}


def figure(mean, difference=None, seeds=(1, 2, 3, 4, 5)):
    differences = {} if difference is None else {"original": difference}
    return {"mean": mean, "seeds": {str(seed): mean for seed in seeds}, "differences": differences}


def column(name, baselines):
    return {"name": name, "task": name, "split": "validation", "items": 20, "images": 7, "baselines": baselines}


def cost(parameters, seconds, runs=1):
    return {"parameters": parameters, "train_rows": 9, "seconds": 99.0, "train_seconds": seconds, "runs": runs}


RESULTS = {
    "study": "table1",
    "seeds": [1, 2, 3, 4, 5],
    "rows": ["original", "direct", "none", "random"],
    "against": ["original", "random"],
    "compared": {
        "original": ["random"],
        "direct": ["original", "random"],
        "none": ["original"],
        "random": ["original"],
    },
    "costs": {
        "original": {"start": cost(1500, 60.4), "VQA": cost(1200, 30.0)},
        "direct": {"start": cost(1500, 60.4), "fine_tuning": cost(1300, 20.0), "VQA": cost(1234, 31.0, runs=2)},
        "none": {},
        "random": {},
    },
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


def test_a_difference_without_items_shows_its_seeds_and_is_not_counted():
    plain = copy.deepcopy(RESULTS)
    plain["figures"]["none"]["refs"] = figure(0.7, {**difference(0.1, 0.02, False, (1, 2)), "interval": False})
    table = study_table(plain)
    assert cells(table, "Difference to original")["none"][1] == "+10.0 (+8.0 to +12.0)"
    assert "3 differences are compared" in table and "no interval, because single items are not saved" in table
    assert "no interval" not in study_table(RESULTS)


def test_a_row_has_its_own_comparison():
    own = copy.deepcopy(RESULTS)
    own["compared"]["none"] = ["direct"]
    own["figures"]["none"]["VQA"]["differences"] = {"direct": difference(0.3, 0.1, False, (1,))}
    rows = cells(study_table(own), "Difference to direct")
    assert rows["none"] == ["+30.0 [+20.0, +40.0]", "–"] and "direct" not in rows


def test_costs_are_in_the_table_and_say_what_was_interrupted():
    table = study_table(RESULTS)
    head = "| Row | parameters | start, seconds | fine_tuning, seconds | VQA, seconds |"
    assert head in table
    block = next(part for part in table.split("\n\n") if part.startswith(head)).splitlines()
    assert block[2] == "| original | 1,200 | 60 | – | 30 |"
    assert block[3] == "| direct | 1,234 | 60 | 20 | 31† |"
    assert len(block) == 4 and "†: a cell was interrupted" in table


def test_learning_curves_have_a_marker_and_a_line_style_each(tmp_path):
    points = [{"column": "VQA", "rows": 500}, {"column": "refs", "rows": 2000}]
    found = copy.deepcopy(RESULTS)
    found |= {"curves": {"both": points}, "groups": {}}
    found["figures"]["direct"]["refs"]["seeds"] = {"1": 0.5, "2": 0.6}
    drawn = learning_curves_figure(found, tmp_path / "a.png")
    (axes,) = drawn.axes
    lines = {line.get_label(): line for line in axes.get_lines()}
    assert list(lines) == ["original", "direct", "none"], "a row without figures has no line"
    assert np.allclose(lines["direct"].get_xydata(), [[500, 52], [2000, 55]])
    assert len({line.get_marker() for line in lines.values()}) == len({line.get_ls() for line in lines.values()}) == 3
    band = axes.collections[1].get_paths()[0].vertices
    assert band[:, 1].max() == pytest.approx(60) and band[:, 1].min() == pytest.approx(50)
    groups = {"much": {"plain": "original", "taught": "direct"}, "little": {"taught": "none"}}
    panels = learning_curves_figure({**found, "groups": groups}, tmp_path / "b.png").axes
    assert [axes.get_title() for axes in panels] == ["both\nmuch", "both\nlittle"]
    assert [[line.get_label() for line in axes.get_lines()] for axes in panels] == [["plain", "taught"], ["taught"]]
    for axes in (*drawn.axes, *panels):
        low, high = axes.get_ylim()
        heights = [height for line in axes.get_lines() for height in line.get_ydata()]
        assert high - low >= 15 and low < min(heights) and max(heights) < high


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
