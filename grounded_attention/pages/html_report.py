# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""The HTML page of one evaluation: numbers with their meaning, tables by category, and failures."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from html import escape
from typing import Any

from .colours import scale_colours
from .failures import Alternative, Judged, Selection, baselines, by_group, by_kind, choose, mean_score
from .overlay import Picture, card, draw, empty_frame
from .page import Html, folded, html_page, html_table, note
from .report_numbers import Grid, Number, to_grids, to_numbers

MOST_KINDS = 40
BASELINE_NAMES = {"majority": "one answer always", "chance": "chance"}


@dataclass(frozen=True)
class Measured:
    """The results of one split on one track."""

    heading: str
    numbers: Mapping[str, Any]
    judged: Sequence[Judged] = ()
    remarks: Sequence[str] = ()
    layers: Sequence[str] = ()


@dataclass(frozen=True)
class Report:
    """The content of the page."""

    title: str
    about: Sequence[tuple[str, str]]
    parts: Sequence[Measured]
    pictures: Mapping[str, Picture] = field(default_factory=dict)
    sizes: Mapping[str, tuple[int, int]] = field(default_factory=dict)
    seed: int = 0


def shown_images(judged: Sequence[Judged], seed: int) -> list[str]:
    """Ids of the images in a report of these predictions."""
    chosen = [one for items in by_group(judged).values() for s in choose(items, seed) for one in s.items]
    return list(dict.fromkeys(one.image_id for one in chosen))


def build_report(report: Report) -> str:
    """Builds the page; all text from data is escaped."""
    return html_page(report.title, "\n".join(_part(part, report) for part in report.parts), report.about)


def _part(part: Measured, report: Report) -> str:
    groups = by_group(part.judged)
    plain = {name: baselines(items) for name, items in groups.items()}
    return "\n".join(
        [
            f"<h2>{escape(part.heading)}</h2>",
            *(f"<p>{escape(line)}</p>" for line in part.remarks),
            _numbers(to_numbers(part.numbers, plain)),
            *(_grid(grid, part.layers) for grid in to_grids(part.numbers)),
            *(_group(name, items, report, len(groups) > 1) for name, items in groups.items()),
        ]
    )


# Numbers


def _numbers(numbers: Sequence[Number]) -> str:
    if not numbers:
        return "<p>No numbers, because the gold answers are unknown.</p>"
    head = ("metric", "meaning", "", "", *BASELINE_NAMES.values(), "count")
    return html_table(head, [_number(number) for number in numbers], text_columns=2)


def _number(number: Number) -> list[str]:
    share = isinstance(number.value, float) and 0 <= number.value <= 1
    beside = [_share(number.baselines.get(name)) for name in BASELINE_NAMES]
    value = _share(number.value) if isinstance(number.value, float) else str(number.value)
    count = "" if number.count is None else str(number.count)
    return [number.name, number.meaning, value, _bar(number.value) if share else "", *beside, count]


def _share(value: float | None) -> str:
    return "" if value is None else f"{value:.3f}"


def _bar(share: float) -> str:
    return Html(f'<span class="bar"><i style="width:{100 * min(max(share, 0.0), 1.0):.1f}%"></i></span>')


def _grid(grid: Grid, layers: Sequence[str]) -> str:
    names = layers or [f"layer {number}" for number in range(len(grid.values))]
    head = "<th></th>" + "".join(f"<th>head {n}</th>" for n in range(len(grid.values[0])))
    rows = "".join(
        f"<tr><th>{escape(name)}</th>" + "".join(_cell(value) for value in row) + "</tr>"
        for name, row in reversed(list(zip(names, grid.values, strict=True)))  # layer 0 at the bottom, as in figures
    )
    return folded(grid.name, f'<div class="wide"><table class="grid"><tr>{head}</tr>{rows}</table></div>')


def _cell(value: float) -> str:
    colour = ",".join(f"{part:.0f}" for part in scale_colours(value))
    return f'<td style="background:rgb({colour});color:{"#000" if value > 0.5 else "#fff"}">{value:.2f}</td>'


# Groups


def _group(name: str, items: Sequence[Judged], report: Report, headed: bool) -> str:
    kinds = list(dict.fromkeys(kind for item in items for kind in item.kinds))
    selections = choose(items, report.seed)
    parts = [f"<h3>{escape(name)}</h3>"] if headed else []
    parts += [_kinds(kind, by_kind(items, kind)) for kind in kinds]
    parts += [_selection(selection, report) for selection in selections]
    return "\n".join(parts)


def _kinds(name: str, by_kind: Mapping[str, Sequence[Judged]]) -> str:
    """A table with the score of each category, most frequent first."""
    if not by_kind:
        return ""
    rows = []
    for kind, items in list(by_kind.items())[:MOST_KINDS]:
        score, best = mean_score(items), baselines(items).get("majority", 0.0)
        # If a category has a single right answer, the constant answer is not a useful baseline.
        usual = "" if best in (0.0, 1.0) else _share(best)
        rows.append([kind, str(len(items)), _share(score), _bar(score or 0.0), usual])
    left = len(by_kind) - len(rows)
    rest = note(f"{left} rarer categories are not shown.") if left else ""
    table = html_table((name, "count", "score", "", BASELINE_NAMES["majority"]), rows)
    return folded(f"By {name}", table + rest, is_open=True)


def _selection(selection: Selection, report: Report) -> str:
    cards = "".join(_card(item, report) for item in selection.items)
    return f'<h4>{escape(selection.heading)}</h4>{note(selection.rule)}<div class="cards">{cards}</div>'


def _card(item: Judged, report: Report) -> str:
    picture = report.pictures.get(item.image_id) or empty_frame(*report.sizes.get(item.image_id, (4, 3)))
    seen = bool(item.boxes) or bool(picture.source)
    image = draw(picture, item.boxes, f"image {item.image_id}") if seen else ""
    texts = "".join(f"<dt>{escape(name)}</dt><dd>{escape(text)}</dd>" for name, text in item.texts)
    if item.choices:
        return card(image, f"{_head(item)}<dl>{texts}</dl><ol>{''.join(map(_choice, item.choices))}</ol>")
    answers = [("predicted", item.predicted), ("gold", item.gold)]
    texts += "".join(f'<dt>{name}</dt><dd><span class="{name}">{escape(text)}</span></dd>' for name, text in answers)
    return card(image, f"{_head(item)}<dl>{texts}</dl>")


def _head(item: Judged) -> str:
    mark = "✓ right" if item.right else "✗ wrong"
    if item.score is not None and 0 < item.score < 1:
        mark += f", score {item.score:.2f}"
    sure = f"probability {item.confidence:.2f}" if item.confidence else ""
    return f'<div class="head"><strong>{mark}</strong><span class="count">{sure}</span></div>'


def _choice(choice: Alternative) -> str:
    marks = [name for name, holds in (("gold", choice.gold), ("predicted", choice.predicted)) if holds]
    text = escape(choice.text)
    for name in marks:
        text = f'<span class="{name}">{text}</span>'
    return f"<li>{text}{' — ' + ', '.join(marks) if marks else ''}</li>"
