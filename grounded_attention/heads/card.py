# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""The heads of `heads.json` in a model card: a section about the model, and a sentence about the one before."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from grounded_attention.heads.boxes import BoxScore
from grounded_attention.heads.card_sections import CardSection
from grounded_attention.heads.chosen import FILE, ChosenHeads, find_file
from grounded_attention.heads.ranking import boxes_table, name_heads
from grounded_attention.metrics.intervals import interval_text
from grounded_attention.utils.bounded_files import read_json
from grounded_attention.utils.plain_text import markdown_text

HEADS = CardSection(
    "the heads",
    "<!-- heads: grounded-attention heads --card puts its section here -->",
    "<!-- end of the heads -->",
)


def heads_section(content: Mapping[str, Any]) -> str:
    """The chosen heads and their boxes as Markdown; it starts with a second-level heading."""
    chosen, about = ChosenHeads.from_dict(content, FILE), content["about"]
    rows = ["| head | pointing | 95 % | lift | share |", "|---|---:|---:|---:|---:|"]
    for one in content["chosen"]:
        ends = interval_text(tuple(one["pointing_interval"]))
        name = name_heads([(one["layer"], one["head"])])
        rows.append(f"| {name} | {one['pointing']:.1%} | {ends} | {one['lift']:.2f} | {one['share']:.1%} |")
    flattered = " (the same phrases: this flatters the heads)" if about.get("same_split") else ""
    text = (
        f"The {len(chosen.heads)} heads that find phrases best, by {markdown_text(str(about['options']['rank']))}, on "
        f"{markdown_text(str(about.get('data', 'unnamed data')))}{flattered}. `{FILE}` names them for "
        '`pipeline("visual-grounding", model=...)`. *Pointing*: the image token with the most attention of the phrase '
        "is on its object. *Lift*: attention on the object's tokens, over their part of the image. *Share*: attention "
        "on the image."
    )
    boxes = boxes_table([BoxScore(**score) for score in content["boxes"]])
    return "\n\n".join(["## Heads that ground", text, "\n".join(rows), boxes]) + "\n"


def put_heads_in_card(content: Mapping[str, Any], path: str | Path) -> Path:
    """Writes the section into a model card, replacing an earlier one; returns the card."""
    return HEADS.put(heads_section(content), path)


def heads_before(model: str | None) -> str | None:
    """
    A sentence about the heads of the model that a training starts from.
    """
    found = find_file(model) if model else None
    if found is None:
        return None
    try:
        content = read_json(found)
        ChosenHeads.from_dict(content, str(found))
    except ValueError:  # the training that the card is about has ended; it did not need this file
        return None
    heads = ", ".join(
        name_heads([(one["layer"], one["head"])]) + (f" ({one['pointing']:.1%})" if "pointing" in one else "")
        for one in content["chosen"]
    )
    data = content["about"].get("data")
    where = f" on {markdown_text(str(data))}" if data else ""
    return f"Before training, `{FILE}` of the starting model names these heads as the best ones{where}: {heads}."
