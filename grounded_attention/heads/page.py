# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""The audit of one or several models as one HTML page: tables, figures, changes, and the attention explorer.

The page is one file and needs no network. With several models, the others are compared with the first.
"""

import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from html import escape
from pathlib import Path
from typing import Any

import numpy as np

from grounded_attention.metrics.intervals import interval_text
from grounded_attention.pages.explorer import explorer, explorer_body
from grounded_attention.pages.page import embedded_image, folded, html_page, html_table, note
from grounded_attention.pages.tables import conclusion

from . import SAME_SPLIT
from .card import BEST_COLUMNS, MOST_RELATIONS, NAMES, best_row, chosen_row
from .changes import Changes, compare
from .example_attention import ExampleAttention, best_heads, naming_words, words_across_layers_figure
from .figures import ALPHA, changes_figure, grounding_panels_figure, panel_options
from .ranking import HeadRanking
from .statistics import ACTIVE_SHARE, ALL, RELATIONS
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
MOST_LAYERS = 4  # number of rows in the picture of words across layers
COLUMNS = (BEST_COLUMNS[0], "model", *BEST_COLUMNS[1:])


def ranking_section(ranking: HeadRanking) -> str:
    """The chosen heads and how well they find boxes, for the page."""
    chosen = [chosen_row(one) for one in ranking.to_dict()["chosen"]]
    heads = [(*row[:5], "") for row in chosen]
    boxes = [
        (score.name, f"{score.pointing:.1%}", interval_text(score.pointing_interval), "", "", f"{score.accuracy:.1%}")
        for score in ranking.boxes
    ]
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
    if examples and best is not None and best[0] in examples:
        parts["Words across layers"] = _words(best[0], results[best[0]], examples[best[0]][0])
    if len(results) > 1:
        parts["What changed"] = "".join(_changes(results))
    parts |= extra or {}
    heads = [(name, each) for name, result in results.items() for each in result.best_entries()]
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
    text = conclusion(heads, tables[best].chance_accuracy, f"phrases of {len(tables[best].image_ids):,} images", same)
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
Best = tuple[str, Mapping[str, Any]]


def _best_heads(results: Mapping[str, HeadTable], heads: Sequence[Best]) -> str:
    entities = [one for one in heads if one[1]["kind"] != RELATIONS]
    whole = _head_rows([one for one in entities if one[1]["group"] == ALL])
    several = any(len(groups) > 2 for result in results.values() for groups in result.entities.values())
    types = _head_rows([one for one in entities if one[1]["group"] != ALL]) if several else []
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


def _drawn(
    draw: Callable[..., object], alt: str, caption: str, *arguments: object, suffix: str = ".svg", **options: object
) -> str:
    """Draws a figure and embeds it into the page."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / f"figure{suffix}"
        draw(*arguments, path, **options)
        return embedded_image(path, alt, caption)


def _layer_figures(results: Mapping[str, HeadTable]) -> Iterator[str]:
    for kind in dict.fromkeys(kind for result in results.values() for kind in result.entities):
        of_model = {name: result.entities[kind][ALL] for name, result in results.items() if kind in result.entities}
        alt = f"{NAMES[kind]}: accuracy of each head by layer, of {', '.join(of_model)}"
        caption = (
            f"{NAMES[kind].capitalize()}. Large and dark: heads that give more than {ACTIVE_SHARE:.0%} of their "
            "attention to the candidates. Ring: the head that the table names. Lines: 95% intervals."
        )
        known: list[dict[str, Any]] = [panel_options(results[name], kind) for name in of_model]
        rings = " / ".join(dict.fromkeys(each["ring"] for each in known))
        heads = {name: each["chosen"].get(ALL) for name, each in zip(of_model, known, strict=True)}
        options = known[0] | {"ring": rings, "chosen": heads, "title": NAMES[kind].capitalize(), "intervals": True}
        if len({each["layers"] for each in known}) > 1:
            options["layers"] = None
        yield _drawn(grounding_panels_figure, alt, caption, of_model, **options)


def _changes(results: Mapping[str, HeadTable]) -> Iterator[str]:
    (first, before), *others = results.items()
    yield note(
        f"Each model against {first}, for each head: a paired permutation test that exchanges the answers for whole "
        f"images, two-sided, corrected for the number of heads (Holm); significant where p ≤ {ALPHA:g}."
    )
    for name, after in others:
        if (before.layers, before.heads) != (after.layers, after.heads):
            yield note(f"{name} is not compared, because it has other layers or heads than {first}.")
            continue
        yield f"<h3>{escape(name)} against {escape(first)}</h3>"
        changes = compare(before, after, (first, name))
        yield from (_change(changes, kind) for kind in changes.comparisons)


def _change(changes: Changes, kind: str) -> str:
    before, after = (table.entities[kind][ALL] for table in (changes.before, changes.after))
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
    known: dict[str, Any] = {"p": p, "layers": changes.before.layers, "names": changes.names}
    return _drawn(changes_figure, alt, caption, before, after, suffix=".png", **known)


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
            grounding_panels_figure,
            f"Accuracy of each head by layer for each relation, of {name}",
            "",
            {relation: result.relations[relation] for relation in common if relation in result.relations},
            **panel_options(result, RELATIONS),
            title=f"{name}: for a relation w1 → w2, the word w2 looks at the region of w1",
            suffix=".png",  # ten panels of points are smaller as pixels
        )
        for name, result in results.items()
        if result.relations
    ]
    return note(text) + folded("Table and pictures", html_table(COLUMNS, rows, 3) + "".join(figures))


def _words(name: str, result: HeadTable, example: ExampleAttention) -> str:
    """Figures 1 and 5 of the paper, for one model and example; nothing if the example leaves out layers."""
    counts = result.counts
    if counts.accuracy.shape != example.attention.shape[:2]:
        return ""
    text = (
        f"The regions that words of one caption attend to in {name}, in the best head of each of its most accurate "
        "layers. The label of a row shows the share of the attention that goes to regions."
    )
    words = naming_words(example)
    heads = best_heads(counts.accuracy, MOST_LAYERS, counts.active)
    alt = f"Regions that words of “{example.caption}” attend to across layers, in {name}"
    return note(text) + _drawn(words_across_layers_figure, alt, "", example, words, heads, suffix=".png")
