# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""The audit of one or several models as one HTML page: tables, figures, changes, and the attention explorer.

The page is one file and needs no network. With several models, the others are compared with the first.
"""

import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from html import escape
from pathlib import Path

import numpy as np

from grounded_attention.metrics.intervals import interval_text
from grounded_attention.pages.explorer import explorer, explorer_body
from grounded_attention.pages.page import embedded_image, folded, html_page, html_table, note
from grounded_attention.pages.tables import conclusion
from grounded_attention.utils.named_types import Columns

from . import SAME_SPLIT
from .card import BEST_COLUMNS, MOST_RELATIONS, NAMES, best_row, chosen_row
from .changes import LEVEL, Changes, compare
from .example_attention import ExampleAttention
from .figures import heads_figure, seen_accuracy, table_figure
from .ranking import HeadRanking
from .statistics import ALL, RELATIONS
from .table import HeadTable

# What a relation w1 → w2 is in words, of Universal Dependencies and of spaCy's English models.
GLOSS = {
    "acl": "clause of a noun",
    "advmod": "adverb",
    "amod": "adjective of a noun",
    "case": "preposition of a noun",
    "compound": "noun before a noun",
    "conj": "joined by and, or",
    "det": "the, a, some",
    "dobj": "object of a verb",
    "nmod": "noun of another noun",
    "nsubj": "subject of a verb",
    "nummod": "number of a noun",
    "obj": "object of a verb",
    "obl": "place, time or means of a verb",
    "pobj": "noun of a preposition",
    "poss": "whose: its, her",
    "prep": "preposition",
}
COLUMNS = (BEST_COLUMNS[0], "model", *BEST_COLUMNS[1:])


def ranking_section(ranking: HeadRanking) -> str:
    """The chosen heads and how well they find boxes, for the page."""
    chosen = [chosen_row(one) for one in ranking.to_dict()["chosen"]]
    heads = [(*row[:5], "") for row in chosen]
    boxes = []
    for score in ranking.boxes:
        boxes.append(
            (
                score.name,
                f"{score.pointing:.1%}",
                interval_text(score.pointing_interval),
                "",
                "",
                f"{score.accuracy:.1%}",
            )
        )
    text = (
        f"The {len(ranking.heads)} heads that find phrases best, by {ranking.about['options']['rank']}, and how well "
        "they, and baselines, find boxes without training (IoU of at least 0.5)."
    )
    return note(text) + html_table(("attention of", "pointing", "95%", "lift", "share", "box"), [*heads, *boxes])


def heads_page(
    results: Mapping[str, HeadTable],
    title: str = "Grounding audit",
    *,
    about: Sequence[tuple[str, str]] = (),
    examples: Mapping[str, Sequence[ExampleAttention]] | None = None,
    extra: Mapping[str, str] | None = None,
) -> str:
    """Builds the page; all text from data is escaped. `extra` has further parts, heading -> HTML."""
    if not results:
        raise ValueError("results is empty; give at least one model with its result")
    lead, best = _conclusion(results)
    parts: dict[str, str] = {}
    if examples:
        parts["Explorer"] = explorer_body([explorer(examples, _opened(best, results, examples))])
    parts["By layer and head"] = "".join(_layer_figures(results))
    if len(results) > 1:
        parts["What changed"] = "".join(_changes(results))
    parts |= extra or {}
    heads = []
    for name, result in results.items():
        for each in result.best_heads():
            heads.append((name, each))
    if any(result.relations for result in results.values()):
        parts["Syntactic relations"] = _relations(results, heads)
    parts["All numbers"] = _best_heads(results, heads)
    return html_page(title, parts, about, lead)


def _conclusion(results: Mapping[str, HeadTable]) -> tuple[str, tuple[str, int, int] | None]:
    """The sentence at the top, about the heads from words to regions; model, layer and head of the best of them."""
    tables = {name: result.entities["text_to_region"][ALL] for name, result in results.items() if _is_chosen(result)}
    if not tables:
        return "", None
    pairs = {name: results[name].choice.heads["text_to_region"][ALL] for name in tables}
    heads = {name: (results[name].name(*pair), tables[name].share_of(pair)) for name, pair in pairs.items()}
    best = max(heads, key=lambda name: heads[name][1].value)
    same = results[best].choice.split == SAME_SPLIT
    counts = tables[best]
    text = conclusion(heads, counts.chance_accuracy, f"phrases of {len(counts.image_ids):,} {counts.unit}", same)
    return text, (best, *pairs[best])


def _is_chosen(result: HeadTable) -> bool:
    return ALL in result.choice.heads.get("text_to_region", {})


def _opened(
    best: tuple[str, int, int] | None,
    results: Mapping[str, HeadTable],
    examples: Mapping[str, Sequence[ExampleAttention]],
) -> tuple[str, int, int] | None:
    """The same head as the explorer counts, which leaves out layers without attention over the sequence."""
    if best is None or best[0] not in examples:
        return None
    name, layer, head = best
    return name, examples[name][0].layers.index(results[name].layers[layer]), head


# Tables


# Name of a model, and one of its heads as in `best` of `heads.json`.
Best = tuple[str, Columns]


def _best_heads(results: Mapping[str, HeadTable], heads: Sequence[Best]) -> str:
    entities = [one for one in heads if one[1]["kind"] != RELATIONS]
    whole = _head_rows([one for one in entities if one[1]["group"] == ALL])
    several = any(len(groups) > 2 for result in results.values() for groups in result.entities.values())
    if several:
        types = _head_rows([one for one in entities if one[1]["group"] != ALL])
    else:
        types = []
    more = folded("By phrase type", html_table(COLUMNS, types, 3)) if types else ""
    splits = {name: result.choice.split for name, result in results.items()}
    rules = dict.fromkeys(result.rule("text_to_region") for result in results.values())
    return note(_how_chosen(splits, " or ".join(rules))) + html_table(COLUMNS, whole, 3) + more


def _how_chosen(splits: Mapping[str, str], rule: str) -> str:
    same = [name for name, split in splits.items() if split == SAME_SPLIT]
    if same:
        how = "Heads are chosen on the same items that they are reported on, as in the paper; this overstates them"
        how += "." if len(same) == len(splits) else f" ({', '.join(same)})."
    else:
        how = f"Heads are chosen on another split ({', '.join(dict.fromkeys(splits.values()))})."
    return (
        f"{how} Heads are named layer-head, both counted from 0. Intervals resample images. Attention: mean share of "
        f"the head's attention on all candidates together. Rule: accuracy of always answering the {rule}, or from "
        "regions to words the first word. Reachable: items that any candidate answers."
    )


def _head_rows(heads: Sequence[Best]) -> list[tuple[str, ...]]:
    """One row per group and model; rows of one group are adjacent."""
    groups = list(dict.fromkeys((best["kind"], best["group"]) for _, best in heads))
    ordered = sorted(heads, key=lambda one: groups.index((one[1]["kind"], one[1]["group"])))
    rows = ((name, best_row(best)) for name, best in ordered)
    return [(what, name, *rest) for name, (what, *rest) in rows]


# Figures


def _drawn(draw: Callable[..., object], alt: str, caption: str, *arguments: object, **options: object) -> str:
    """Draws a figure and embeds it into the page."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "figure.png"
        draw(*arguments, path, **options)
        return embedded_image(path, alt, caption)


def _layer_figures(results: Mapping[str, HeadTable]) -> Iterator[str]:
    for kind in dict.fromkeys(kind for result in results.values() for kind in result.entities):
        of_model = {name: result for name, result in results.items() if kind in result.entities}
        panels = {name: seen_accuracy(result.entities[kind][ALL]) for name, result in of_model.items()}
        frames = {}
        for name, result in of_model.items():
            pair = result.choice.heads.get(kind, {}).get(ALL)
            if pair is not None:
                frames[name] = [pair]
        first, *others = of_model.values()
        if all(other.layers == first.layers for other in others):
            layers = first.layers
        else:
            layers = None
        alt = f"{NAMES[kind]}: accuracy of each head by layer, of {', '.join(of_model)}"
        caption = f"{NAMES[kind].capitalize()}. Frame: the head that the table names."
        chance = first.entities[kind][ALL].chance_accuracy
        yield _drawn(heads_figure, alt, caption, panels, chance, layers=layers, chosen=frames, title=alt)


def _changes(results: Mapping[str, HeadTable]) -> Iterator[str]:
    (first, before), *others = results.items()
    yield note(
        f"Each model against {first}, for each head: a paired permutation test that exchanges the answers for whole "
        f"images, two-sided, corrected for the number of heads (Holm); significant where p ≤ {LEVEL:g}."
    )
    for name, after in others:
        if (before.layers, before.heads) != (after.layers, after.heads):
            yield note(f"{name} is not compared, because it has other layers or heads than {first}.")
            continue
        yield f"<h3>{escape(name)} against {escape(first)}</h3>"
        changes = compare(before, after, (first, name))
        yield from (_change(changes, kind) for kind in changes.comparisons)


def _change(changes: Changes, kind: str) -> str:
    p = changes.corrected[kind]
    rise = changes.comparisons[kind].difference
    up, down = changes.better_and_worse(kind)
    layer, head = divmod(int(np.abs(rise).argmax()), rise.shape[1])
    caption = (
        f"{NAMES[kind].capitalize()}: {up} of {changes.tested} heads are significantly more accurate than in "
        f"{changes.names[0]}, {down} less accurate. The largest change is that of "
        f"{changes.before.name(layer, head)}, {100 * rise[layer, head]:+.1f} points (corrected p "
        f"{p[layer, head]:.2g})."
    )
    alt = f"Change of each head's accuracy from {changes.names[0]} to {changes.names[1]}, {NAMES[kind]}"
    return _drawn(changes.figure, alt, caption, kind)


# Relations and further parts


def _relations(results: Mapping[str, HeadTable], heads: Sequence[Best]) -> str:
    counts: dict[str, int] = {}
    for result in results.values():
        for relation, counted in result.relations.items():
            counts[relation] = max(counts.get(relation, 0), counted.total)
    common = sorted(counts, key=lambda relation: (-counts[relation], relation))[:MOST_RELATIONS]
    rows = []
    for relation in common:
        of_relation = [one for one in heads if (one[1]["kind"], one[1]["group"]) == (RELATIONS, relation)]
        gloss = f" ({GLOSS[relation]})" if relation in GLOSS else ""
        rows += [(what + gloss, *rest) for what, *rest in _head_rows(of_relation)]
    text = (
        "For a dependency relation w1 → w2 whose word w1 has a region: how often w2 attends most to that region. In "
        "“a red ball” the adjective (amod) and the article (det) depend on “ball”: do they look at the ball, too? "
        f"The {len(common)} most common relations, with the best head of each."
    )
    figures = [
        _drawn(
            table_figure,
            f"Accuracy of each head by layer for each relation, of {name}",
            f"{name}: for a relation w1 → w2, the word w2 looks at the region of w1.",
            result,
            RELATIONS,
            [relation for relation in common if relation in result.relations],
        )
        for name, result in results.items()
        if result.relations
    ]
    return note(text) + folded("Table and pictures", html_table(COLUMNS, rows, 3) + "".join(figures))
