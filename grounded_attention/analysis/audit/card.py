# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""An audit as a section of a model card: what was measured, the best heads, the limits; and its place in a card."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from grounded_attention.analysis.head_counts import ACTIVE_SHARE
from grounded_attention.metrics.intervals import interval_text
from grounded_attention.utils.whole_files import write_text

from .choice import SAME_SPLIT, BestHead

if TYPE_CHECKING:
    from .result import AuditResult

NAMES = {"text_to_region": "words → regions", "region_to_text": "regions → words", "relations": "relation"}
# As many as in the paper's Table 2.
MOST_RELATIONS = 10
CARD = "README.md"
# Where a card wants its audit; once it is there it ends in the second line, so that the next one takes its place.
PLACE = "<!-- audit: grounded-attention audit --card puts its section here -->"
_END = "<!-- end of the audit -->"
_PLACED = re.compile(f"{re.escape(PLACE)}(?:(?:(?!{re.escape(PLACE)}).)*?{re.escape(_END)})?", re.DOTALL)
_COLUMNS = ("what", "best head", "accuracy (95 % interval)", "attention", "rule", "chance", "reachable", "items")


def card_section(result: "AuditResult") -> str:
    """Markdown, from a heading of the second level on."""
    parts = ["## Grounding audit", " ".join(_introduction(result)), _table(result), _layers(result)]
    return "\n\n".join([*parts, "\n".join(f"- {line}" for line in _limits(result))]) + "\n"


def _introduction(result: "AuditResult") -> Iterator[str]:
    about = result.about
    where = " ".join(str(about[name]) for name in ("data", "split") if about.get(name))
    kinds = ", ".join(dict.fromkeys(NAMES.get(kind, kind) for kind in result.counted))
    yield f"How often each attention head looks at the right place ({kinds}){f', on {where}' if where else ''}."
    word = about.get("word", "last")
    asked = "sub-words on average attend" if word == "mean" else f"{word} sub-word attends"
    gold = "the box around all gold boxes" if about.get("merged_box") else "any gold box"
    yield (
        f"A head answers a phrase with the region that its {asked} to most; right is an overlap (IoU) of at least "
        f"{about.get('iou_threshold', 0.5):g} with {gold}."
    )
    for kind, groups in result.entities.items():
        active = groups["all"].active
        yield (
            f"{NAMES[kind].capitalize()}: {active.sum()} of {active.size} heads are active, which is to give the "
            f"candidates more than {ACTIVE_SHARE:.0%} of their attention on average."
        )
    if result.choice.split == SAME_SPLIT:
        yield "Heads were chosen on the items they are reported on, as in the paper, which flatters them."
    else:
        yield f"Heads were chosen on {result.choice.split}."


def _table(result: "AuditResult") -> str:
    common = sorted(result.relations, key=lambda name: (-result.relations[name].total, name))[:MOST_RELATIONS]
    shown = [best for best in result.best_heads() if best.kind != "relations" or best.group in common]
    rows = [_row(result, best) for best in shown]
    lines = [_COLUMNS, ("---", "---", *["--:"] * (len(_COLUMNS) - 2)), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _row(result: "AuditResult", best: BestHead) -> tuple[str, ...]:
    what = NAMES.get(best.kind, best.kind) + (f", {best.group}" if best.group != "all" else "")
    reachable = "" if best.upper_bound is None else f"{best.upper_bound:.1%}"
    return (
        what,
        result.name(best.layer, best.head) + ("" if best.active else " (not active)"),
        f"{best.accuracy:.1%} ({interval_text(best.interval)})",
        f"{best.share:.0%}",
        f"{best.baseline:.1%}",
        f"{best.chance:.1%}",
        reachable,
        f"{best.items} in {best.images} images",
    )


def _layers(result: "AuditResult") -> str:
    best = [layer for layer in result.best_layers() if layer.group == "all"]
    said = [
        f"{NAMES[layer.kind]}, layer {result.layers[layer.layer]}: {layer.accuracy:.1%} "
        f"({interval_text(layer.interval)})"
        for layer in best
    ]
    return f"Mean over the heads of the best layer: {'; '.join(said)}."


def _limits(result: "AuditResult") -> Iterator[str]:
    about, phrases = result.about, result.about.get("phrases", {})
    yield "Heads are named layer-head, both counted from 0. Intervals resample images, not phrases."
    yield (
        "*attention*: the mean share of a head's attention that goes to all candidates together. *rule*: always the "
        f"{about.get('baseline', 'first region')} (from regions to words: the first word). *reachable*: items that "
        "any candidate answers; the others count as wrong."
    )
    yield "The whole image, END and special tokens are no candidates."
    yield "That a head looks at a region does not show that the model's answer rests on it."
    if phrases:
        cut, empty = phrases.get("truncated", 0), phrases.get("no_token", 0)
        yield (
            f"{phrases.get('judged', 0)} phrases were judged; {phrases.get('without_boxes', 0)} without a gold box "
            f"were left out, {cut} were cut with their text, {empty} have no token."
        )


# The card


def find_card(path: str | Path) -> Path:
    """The card that is named, or lies in the folder that is named.

    Raises:
        ValueError: there is none, or none that has a place for an audit.
    """
    card = Path(path, CARD) if Path(path).is_dir() else Path(path)
    if not card.is_file():
        raise ValueError(f"{card}: no model card; train.py writes one beside a model")
    try:
        text = card.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise ValueError(f"{card}: not UTF-8 text ({error.reason})") from error
    if PLACE not in text:
        raise ValueError(f"{card}: no place for the audit; put this line where it belongs: {PLACE}")
    return card


def put_in_card(result: "AuditResult", path: str | Path) -> Path:
    """Puts the section of an audit into a model card, in the place of an earlier one; returns the card.

    Args:
        result (`AuditResult`): the audit.
        path (`str | Path`): a card, or the folder of a checkpoint that has one (`README.md`).

    Raises:
        ValueError: see `find_card`.
    """
    card = find_card(path)
    section = f"{PLACE}\n\n{result.to_card_section()}\n{_END}"
    text = _PLACED.sub(lambda _: section, card.read_text(encoding="utf-8"), count=1)
    write_text(card, text)
    return card
