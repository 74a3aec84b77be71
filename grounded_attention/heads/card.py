# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""Sections that commands put into the card of a trained model, each at its own place: the audit, the chosen heads."""

import re
import shutil
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from grounded_attention.metrics.intervals import interval_text
from grounded_attention.utils.bounded_files import read_json, read_text
from grounded_attention.utils.boxes import IOU_THRESHOLD
from grounded_attention.utils.plain_text import markdown_table, markdown_text
from grounded_attention.utils.whole_files import whole_file, write_text

from . import SAME_SPLIT
from .boxes import BoxScore
from .heads_file import FILE, ChosenHeads, find_file, name_heads
from .statistics import ACTIVE_SHARE

if TYPE_CHECKING:
    from .table import BestHead, HeadTable

CARD = "README.md"


@dataclass(frozen=True)
class CardSection:
    """A section of model cards."""

    title: str
    place: str
    end: str

    def find(self, path: str | Path) -> Path:
        """Finds a model card."""
        card = self.file(path)
        if not card.is_file():
            raise ValueError(f"{card}: no model card found; train.py writes one into the folder of a model")
        if self.place not in read_text(card):
            raise ValueError(
                f"{card}: no place for {self.title}; add this line where the section should be: {self.place}"
            )
        return card

    @staticmethod
    def file(path: str | Path) -> Path:
        """The card at a path, or in the folder of a model."""
        return Path(path, CARD) if Path(path).is_dir() else Path(path)

    def is_in(self, path: str | Path) -> bool:
        """Whether there is a card with a place for this section."""
        return self.file(path).is_file() and self.place in read_text(self.file(path))

    def put(self, section: str, path: str | Path) -> Path:
        """Writes a section into a card, replacing an earlier one; returns the card."""
        card = self.find(path)
        write_text(card, self.put_in_text(section, read_text(card)))
        return card

    def put_in_text(self, section: str, text: str) -> str:
        """The text of a card with the section at its place."""
        place = re.escape(self.place)
        placed = re.compile(f"{place}(?:(?:(?!{place}).)*?{re.escape(self.end)})?", re.DOTALL)
        return placed.sub(lambda _: f"{self.place}\n\n{section}\n{self.end}", text, count=1)


# The audit

NAMES = {"text_to_region": "text → region", "region_to_text": "region → text", "relations": "relation"}
# The number of relations in Table 2 of the paper.
MOST_RELATIONS = 10
# The place of the audit in a card.
PLACE = "<!-- audit: grounded-attention audit --card puts its section here -->"
AUDIT = CardSection("the audit", PLACE, "<!-- end of the audit -->")
_COLUMNS = ("what", "best head", "accuracy (95 % interval)", "attention", "rule", "chance", "reachable", "items")


def audit_section(result: "HeadTable") -> str:
    """The section as Markdown; it starts with a second-level heading."""
    parts = ["## Grounding audit", " ".join(_introduction(result)), _table(result)]
    return "\n\n".join([*parts, "\n".join(f"- {line}" for line in _limits(result))]) + "\n"


def _introduction(result: "HeadTable") -> Iterator[str]:
    about = result.about
    where = markdown_text(" ".join(str(about[name]) for name in ("data", "split") if about.get(name)))
    kinds = ", ".join(dict.fromkeys(NAMES.get(kind, kind) for kind in result.counted))
    yield f"How often each attention head attends most to the right place ({kinds}){f', on {where}' if where else ''}."
    word = about.get("word", "last")
    whole = {"mean": "its sub-words on average attend", "prompt": "the last token of its prompt attends"}
    attending = whole.get(word, f"its {word} sub-word attends")
    gold = "the box around all gold boxes" if about.get("merged_box") else "any gold box"
    if (covered := about.get("coverage_threshold")) is None:
        right = f"with an overlap (IoU) of at least {about.get('iou_threshold', IOU_THRESHOLD):g} with {gold}"
    else:
        right = f"if {gold} covers at least {covered:.0%} of it; a box that covers so much of no token has one, too"
    yield f"The answer of a head to a phrase is the {result.region} that {attending} to most. It is right {right}."
    if result.region != "region":
        yield "The regions of this model are its image tokens."
    if about.get("instruction"):
        yield f"The captions are answers to “{markdown_text(about['instruction'])}”."
    for kind, groups in result.entities.items():
        active = groups["all"].active
        yield (
            f"{NAMES[kind].capitalize()}: {active.sum()} of {result.real.sum()} heads are active; an active head "
            f"gives more than {ACTIVE_SHARE:.0%} of its attention to the candidates on average."
        )
    if result.choice.split == SAME_SPLIT:
        yield "Heads were chosen on the same items that they are reported on, as in the paper; this overstates them."
    else:
        yield f"Heads were chosen on {markdown_text(result.choice.split)}."


def _table(result: "HeadTable") -> str:
    common = sorted(result.relations, key=lambda name: (-result.relations[name].total, name))[:MOST_RELATIONS]
    shown = [best for best in result.best_heads() if best.kind != "relations" or best.group in common]
    return markdown_table(_COLUMNS, [_row(result, best) for best in shown], 2)


def _row(result: "HeadTable", best: "BestHead") -> tuple[str, ...]:
    what = NAMES.get(best.kind, best.kind) + (f", {markdown_text(best.group)}" if best.group != "all" else "")
    reachable = "" if best.upper_bound is None else f"{best.upper_bound:.1%}"
    return (
        what,
        markdown_text(result.name(best.layer, best.head)) + ("" if best.active else " (not active)"),
        f"{best.accuracy:.1%} ({interval_text(best.interval)})",
        f"{best.share:.0%}",
        f"{best.baseline:.1%}",
        f"{best.chance:.1%}",
        reachable,
        f"{best.items} in {best.images} images",
    )


def _limits(result: "HeadTable") -> Iterator[str]:
    phrases = result.about.get("phrases", {})
    yield "Heads are named layer-head, both counted from 0. Intervals resample images, not phrases."
    yield (
        "*attention*: the mean share of a head's attention on all candidates together. *rule*: accuracy of always "
        f"answering the {result.rule('text_to_region')} (from regions to words: the first word). "
        "*reachable*: items that any candidate answers; the others count as wrong."
    )
    if result.region == "region":
        yield "The whole image, END and special tokens are not candidates."
    else:
        yield "Image tokens without a place in the image, such as padding and the ends of rows, are not candidates."
    yield (
        f"A head that looks at the right {result.region} does not show that the model's answer depends on it"
        f"{'.' if result.region == 'region' else '; grounded-attention heads --ablate measures this.'}"
    )
    if phrases:
        cut, empty = phrases.get("truncated", 0), phrases.get("no_token", 0)
        yield (
            f"{phrases.get('judged', 0)} phrases were judged; {phrases.get('without_boxes', 0)} without a gold box "
            f"were skipped, {cut} were cut with their text, {empty} have no token."
        )


# The chosen heads

HEADS = CardSection(
    "the heads", "<!-- heads: grounded-attention heads --card puts its section here -->", "<!-- end of the heads -->"
)


HEADS_FIGURE = "heads.png"


def boxes_table(boxes: Sequence[BoxScore]) -> str:
    """Pointing game and box accuracy of heads and baselines as a Markdown table."""
    rows = []
    for score in boxes:
        ends = interval_text(score.pointing_interval), interval_text(score.accuracy_interval)
        rows.append((markdown_text(score.name), f"{score.pointing:.1%}", ends[0], f"{score.accuracy:.1%}", ends[1]))
    return markdown_table(("attention of", "pointing", "95 %", "box, IoU ≥ 0.5", "95 %"), rows)


def heads_section(content: Mapping[str, Any]) -> str:
    """The chosen heads and their boxes as Markdown; it starts with a second-level heading."""
    chosen, about = ChosenHeads.from_dict(content, FILE), content["about"]
    rows = []
    for one in content["chosen"]:
        ends = interval_text(tuple(one["pointing_interval"]))
        name = name_heads([(one["layer"], one["head"])])
        rows.append((name, f"{one['pointing']:.1%}", ends, f"{one['lift']:.2f}", f"{one['share']:.1%}"))
    chosen_table = markdown_table(("head", "pointing", "95 %", "lift", "share"), rows)
    flattered = " (the same phrases: this flatters the heads)" if about.get("same_split") else ""
    judged = about["phrases"]["judged"]
    text = (
        f"The {len(chosen.heads)} heads that find phrases best, by {markdown_text(str(about['options']['rank']))}, on "
        f"{judged} phrases of {markdown_text(_data(about) or 'unnamed data')}{flattered}. `{FILE}` names them for "
        '`pipeline("visual-grounding", model=...)`. *Pointing*: the image token with the most attention of the phrase '
        "is on its object. *Lift*: attention on the object's tokens, over their part of the image. *Share*: attention "
        "on the image."
    )
    boxes = boxes_table([BoxScore(**score) for score in content["boxes"]])
    return "\n\n".join(["## Heads that ground", text, chosen_table, boxes]) + "\n"


def _data(about: Mapping[str, Any]) -> str:
    """The data and their split."""
    split = f"split {about['split']}" if about.get("split") else None
    return ", ".join(str(part) for part in (about.get("data"), split) if part)


def put_heads_in_card(content: Mapping[str, Any], path: str | Path, picture: Path | None = None) -> Path:
    """Writes the section into a model card, replacing an earlier one, and a picture beside it; returns the card."""
    section = heads_section(content)
    if picture is not None and picture.is_file():
        with whole_file(HEADS.file(path).with_name(HEADS_FIGURE)) as draft:
            shutil.copyfile(picture, draft)
        section += f"\n![Every head by layer and head]({HEADS_FIGURE})\n"
    return HEADS.put(section, path)


def heads_before(model: str | None) -> str | None:
    """A sentence about the heads of the model that a training starts from."""
    file = find_file(model) if model else None
    if file is None:
        return None
    try:
        content = read_json(file)
        ChosenHeads.from_dict(content, str(file))
    except ValueError:  # the training that the card is about has ended; it did not need this file
        return None
    heads = ", ".join(name_heads([(one["layer"], one["head"])]) for one in content["chosen"])
    data = _data(content["about"])
    where = f" on {markdown_text(data)}" if data else ""
    return f"Before training, `{FILE}` of the starting model names these heads as the best ones{where}: {heads}."
