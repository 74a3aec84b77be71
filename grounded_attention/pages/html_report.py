# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""The HTML page of one evaluation: numbers with their meaning, tables by category, and failures."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from html import escape

from grounded_attention.utils.named_types import Columns, Fields, Size

from .failures import Alternative, Judged, Selection, baselines, by_group, by_kind, choose, mean_score
from .overlay import Picture, card, draw, empty_frame
from .page import Html, folded, html_page, html_table, note

MEANINGS = {
    "identification_accuracy": "examples for which the model finds the caption (of two) that describes the image",
    "vgp_accuracy": "phrase pairs with the right relation",
    "words_accuracy": "masked words that are predicted right, with the image",
    "text_words_accuracy": "masked words that are predicted right, in text without an image",
    "regions_accuracy": "masked regions whose detected class is predicted right",
    "relationship_accuracy": "captions for which the model predicts right whether they belong to the image",
    "answers_accuracy": "questions among the texts of pre-training whose answer is predicted right",
    "vqa_accuracy": "official accuracy: an answer scores min(1, agreeing humans / 3), averaged over sets of nine",
    "vqa_soft_accuracy": "the same without normalisation of the human answers, as in training",
    "vqa_soft_upper_bound": "accuracy of the best possible answer of the model's list",
    "vqa_answers_outside_the_list": "human answers that are not in the model's list",
    "gqa_accuracy": "balanced questions with the right answer, the same text",
    "gqa_binary": "the same, of questions that are not open (structural type not query)",
    "gqa_open": "the same, of open questions (structural type query)",
    "gqa_consistency": "right answers to the questions that a right answer entails, mean over right answers",
    "gqa_validity": "answers that suit the question, such as a color for a question about one",
    "gqa_plausibility": "answers that are possible for the object of the question",
    "gqa_distribution": "distance of the answers' frequencies from the right ones (chi-square / 100); lower is better",
    "gqa_upper_bound": "balanced questions whose right answer is in the model's list",
    "gqa_majority": "accuracy of always the same answer, the most frequent one of training",
    "gqa_answers_outside_the_list": "right answers that are not in the model's list",
    "expressions_accuracy": "sentences whose highest-scored region overlaps the referred object enough",
    "expressions_upper_bound": "sentences for which any region overlaps the referred object enough",
    "expressions_without_detections": "sentences of images without regions; they count as misses",
    "vcr_accuracy": "questions for which the model chooses the right one of four texts",
    "text_to_region_all_heads": "grounded words whose most-attended region is right, mean over layers and heads",
    "text_to_region_best_layer": "the same, for the best layer on this same split",
    "text_to_region_best_head": "the same, for the best head on this same split",
    "text_to_region_tokens": "number of grounded words",
}
ENDINGS = {"count": "number of items"}
MOST_KINDS = 40
BASELINE_NAMES = {"majority": "one answer always", "chance": "chance"}
NUMBER_HEAD = ("metric", "meaning", "", "", *BASELINE_NAMES.values(), "count")
NO_NUMBERS = "No numbers, because the gold answers are unknown."


@dataclass(frozen=True)
class Measured:
    """The results of one split on one track."""

    heading: str
    numbers: Columns
    judged: Sequence[Judged] = ()
    remarks: Sequence[str] = ()


@dataclass(frozen=True)
class Report:
    """The content of the page."""

    title: str
    about: Sequence[tuple[str, str]]
    parts: Sequence[Measured]
    pictures: Mapping[str, Picture] = field(default_factory=dict)
    sizes: Mapping[str, Size] = field(default_factory=dict)
    seed: int = 0


def shown_images(judged: Sequence[Judged], seed: int) -> list[str]:
    """Ids of the images in a report of these predictions."""
    images: dict[str, None] = {}  # in their order
    for items in by_group(judged).values():
        for selection in choose(items, seed):
            images |= dict.fromkeys(one.image_id for one in selection.items)
    return list(images)


def build_report(report: Report) -> str:
    """Builds the page; all text from data is escaped."""
    return html_page(report.title, "\n".join(_part(part, report) for part in report.parts), report.about)


def _part(part: Measured, report: Report) -> str:
    groups = by_group(part.judged)
    rows = number_rows(part.numbers, {name: baselines(items) for name, items in groups.items()})
    pieces = [f"<h2>{escape(part.heading)}</h2>"]
    for line in part.remarks:
        pieces.append(f"<p>{escape(line)}</p>")
    if rows:
        pieces.append(html_table(NUMBER_HEAD, rows, text_columns=2))
    else:
        pieces.append(f"<p>{NO_NUMBERS}</p>")
    for name, items in groups.items():
        pieces.append(_group(name, items, report, len(groups) > 1))
    return "\n".join(pieces)


# Numbers


def number_rows(numbers: Columns, baselines: Mapping[str, Mapping[str, float]]) -> list[list[str]]:
    """A row of the table for each plain number; the baselines and the count of an accuracy stand in its row."""
    taken = {key for name in numbers for key in _beside(name)}
    rows = []
    for name, value in numbers.items():
        if name in taken or not isinstance(value, int | float):
            continue
        meaning = MEANINGS.get(name) or ENDINGS.get(name.rpartition("_")[2], "")
        if isinstance(value, int):  # a count has no baseline
            rows.append([name, meaning, str(value), "", *("" for _ in BASELINE_NAMES), ""])
            continue
        known: Fields = {**baselines.get(name.removesuffix("_accuracy"), {})}
        known |= {key.rpartition("_")[2]: numbers[key] for key in _beside(name) if key in numbers}
        bar = _bar(value) if 0 <= value <= 1 else ""
        others = [_share(known.get(each)) for each in BASELINE_NAMES]
        rows.append([name, meaning, _share(value), bar, *others, str(known.get("count", ""))])
    return rows


def _beside(name: str) -> list[str]:
    """Names of the baselines and counts of a metric."""
    stem = name.removesuffix("_accuracy")
    if stem != name:
        return [f"{stem}_{kind}" for kind in (*BASELINE_NAMES, "count")]
    if name.startswith("text_to_region_") and not name.endswith("_chance"):
        return ["text_to_region_chance"]
    return []


def _share(value: float | None) -> str:
    if value is None:
        return ""
    return f"{value:.3f}"


def _bar(share: float) -> str:
    return Html(f'<span class="bar"><i style="width:{100 * min(max(share, 0.0), 1.0):.1f}%"></i></span>')


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
        score = mean_score(items)
        best = baselines(items).get("majority", 0.0)
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
    size = report.sizes.get(item.image_id, (4, 3))
    picture = report.pictures.get(item.image_id) or empty_frame(*size)
    image = ""
    if item.boxes or picture.source:
        image = draw(picture, item.boxes, f"image {item.image_id}")
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
