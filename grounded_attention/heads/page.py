# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""The audit of one or several models as one HTML page: tables, figures, changes, and the attention explorer.

The page is one file and needs no network. With several models, the others are compared with the first.
"""

import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import Any

import numpy as np

from grounded_attention.metrics.intervals import interval_text
from grounded_attention.pages.explorer import explorer, explorer_body
from grounded_attention.pages.page import embedded_image, folded, html_page, html_table, note
from grounded_attention.pages.tables import conclusion

from . import SAME_SPLIT
from .card import MOST_RELATIONS, NAMES
from .changes import Changes, compare
from .example_attention import ExampleAttention, best_heads, naming_words, words_across_layers_figure
from .figures import ALPHA, changes_figure, grounding_panels_figure
from .heads_file import name_heads
from .ranking import HeadRanking, score_texts
from .statistics import ACTIVE_SHARE, ALL
from .table import BestHead, HeadTable

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
COLUMNS = ("what", "model", "head", "accuracy", "95% interval", "attention", "rule", "chance", "reachable", "items")


@dataclass(frozen=True)
class ExtraSection:
    """An additional section of the page, such as a comparison of maps."""

    heading: str
    text: str
    head: Sequence[str] = ()
    rows: Sequence[Sequence[str]] = ()
    figures: Sequence[tuple[Path, str]] = ()


def ranking_section(ranking: HeadRanking) -> ExtraSection:
    """The chosen heads and how well they find boxes, for the page."""
    counts = ranking.reported_on.counts
    low, high = counts.intervals()
    heads = [
        (name_heads([pair]), *score_texts(counts, pair, interval_text((low[pair], high[pair])))[:4], "")
        for pair in ranking.heads
    ]
    boxes = [
        (score.name, f"{score.pointing:.1%}", interval_text(score.pointing_interval), "", "", f"{score.accuracy:.1%}")
        for score in ranking.boxes
    ]
    text = (
        f"The {len(ranking.heads)} heads that find phrases best, by {ranking.about['options']['rank']}, and how well "
        "they, and baselines, find boxes without training (IoU of at least 0.5)."
    )
    return ExtraSection(
        "Heads that ground", text, ("attention of", "pointing", "95%", "lift", "share", "box"), [*heads, *boxes]
    )


def heads_page(
    results: Mapping[str, HeadTable],
    title: str = "Grounding audit",
    *,
    about: Sequence[tuple[str, str]] = (),
    examples: Mapping[str, Sequence[ExampleAttention]] | None = None,
    extra: Sequence[ExtraSection] = (),
) -> str:
    """Builds the page; all text from data is escaped."""
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
    parts |= {section.heading: _extra(section) for section in extra}
    if any(result.relations for result in results.values()):
        parts["Syntactic relations"] = _relations(results)
    parts["All numbers"] = _best_heads(results)
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


def _best_heads(results: Mapping[str, HeadTable]) -> str:
    chosen = {name: [b for b in result.best_heads() if b.kind in NAMES] for name, result in results.items()}
    whole = _head_rows(results, chosen, lambda best: best.kind != "relations" and best.group == ALL)
    several = any(len(groups) > 2 for result in results.values() for groups in result.entities.values())
    types = _head_rows(results, chosen, lambda best: several and best.kind != "relations" and best.group != ALL)
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


def _head_rows(
    results: Mapping[str, HeadTable], chosen: Mapping[str, Sequence[BestHead]], wanted: Callable[[BestHead], bool]
) -> list[tuple[str, ...]]:
    """One row per group and model; rows of one group are adjacent."""
    rows = [(best, name) for name, of_kind in chosen.items() for best in of_kind if wanted(best)]
    groups = list(dict.fromkeys((best.kind, best.group) for best, _ in rows))
    rows.sort(key=lambda row: groups.index((row[0].kind, row[0].group)))
    return [_head_row(best, name, results[name]) for best, name in rows]


def _head_row(best: BestHead, model: str, result: HeadTable) -> tuple[str, ...]:
    what = NAMES[best.kind] if best.group == ALL else f"{NAMES[best.kind]}: {best.group}"
    head = result.name(best.layer, best.head) + ("" if best.active else " (not active)")
    shares = (f"{best.share:.0%}", f"{best.baseline:.1%}", f"{best.chance:.1%}")
    reachable = "–" if best.upper_bound is None else f"{best.upper_bound:.1%}"
    return what, model, head, f"{best.accuracy:.1%}", interval_text(best.interval), *shares, reachable, str(best.items)


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
        layers = {result.layers for name, result in results.items() if name in of_model}
        alt = f"{NAMES[kind]}: accuracy of each head by layer, of {', '.join(of_model)}"
        caption = (
            f"{NAMES[kind].capitalize()}. Large and dark: heads that give more than {ACTIVE_SHARE:.0%} of their "
            "attention to the candidates. Ring: the head that the table names. Lines: 95% intervals."
        )
        rule = next(iter(results.values())).rule(kind)
        known: dict[str, Any] = {"title": NAMES[kind].capitalize(), "baseline": rule}
        known["ring"] = " / ".join(dict.fromkeys(results[name].choice.ring for name in of_model))
        heads = {name: results[name].choice.heads.get(kind, {}).get(ALL) for name in of_model}
        chosen = {name: pair for name, pair in heads.items() if pair is not None}
        if len(layers) == 1:
            known["layers"] = layers.pop()
        known |= {"intervals": True, "chosen": chosen}
        yield _drawn(grounding_panels_figure, alt, caption, of_model, **known)


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
    p, sure, rise = changes.corrected[kind], changes.significant(kind), changes.comparisons[kind].difference
    up, down = int((sure & (rise > 0)).sum()), int((sure & (rise < 0)).sum())
    layer, head = divmod(int(np.abs(rise).argmax()), rise.shape[1])
    caption = (
        f"{NAMES[kind].capitalize()}: {up} of {changes.tested} heads are significantly more accurate than in "
        f"{changes.names[0]}, {down} less accurate. The largest change is that of "
        f"{changes.before.name(layer, head)}, {100 * rise[layer, head]:+.1f} points (p {_p(p[layer, head])})."
    )
    alt = f"Change of each head's accuracy from {changes.names[0]} to {changes.names[1]}, {NAMES[kind]}"
    known: dict[str, Any] = {"p": p, "layers": changes.before.layers, "names": changes.names}
    baseline = changes.before.rule(kind)
    return _drawn(changes_figure, alt, caption, before, after, suffix=".png", **known, baseline=baseline)


def _p(value: float) -> str:
    return "< 0.001" if value < 0.001 else f"= {value:.3f}"


# Relations and further parts


def _relations(results: Mapping[str, HeadTable]) -> str:
    counts: dict[str, int] = {}
    for result in results.values():
        for relation, counted in result.relations.items():
            counts[relation] = max(counts.get(relation, 0), counted.total)
    common = sorted(counts, key=lambda relation: (-counts[relation], relation))[:MOST_RELATIONS]
    chosen = {name: result.best_heads() for name, result in results.items()}
    rows = _head_rows(results, chosen, lambda best: best.kind == "relations" and best.group in common)
    rows.sort(key=lambda row: [f"{NAMES['relations']}: {relation}" for relation in common].index(row[0]))
    rows = [(_glossed(what), *rest) for what, *rest in rows]
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
            layers=result.layers,
            chosen=result.choice.heads.get("relations", {}),
            ring=result.choice.ring,
            title=f"{name}: for a relation w1 → w2, the word w2 looks at the region of w1",
            suffix=".png",  # ten panels of points are smaller as pixels
        )
        for name, result in results.items()
        if result.relations
    ]
    return note(text) + folded("Table and pictures", html_table(COLUMNS, rows, 3) + "".join(figures))


def _glossed(what: str) -> str:
    relation = what.rpartition(": ")[2]
    return f"{what} ({GLOSS[relation]})" if relation in GLOSS else what


def _words(name: str, result: HeadTable, example: ExampleAttention) -> str:
    """Figures 1 and 5 of the paper, for one model and example; nothing if the example leaves out layers."""
    counts = result.counts
    if counts.accuracy.shape != example.attention.shape[:2]:
        return ""
    text = (
        f"The regions that words of one caption attend to in {name}, in the best head of each of its most accurate "
        "layers. The label of a row shows the share of the attention that goes to regions."
    )
    words, heads = naming_words(example), best_heads(counts.accuracy, MOST_LAYERS, counts.active)
    alt = f"Regions that words of “{example.caption}” attend to across layers, in {name}"
    return note(text) + _drawn(words_across_layers_figure, alt, "", example, words, heads, suffix=".png")


def _extra(section: ExtraSection) -> str:
    table = html_table(section.head, section.rows) if section.rows else ""
    return (
        note(section.text)
        + table
        + "".join(embedded_image(Path(path), shown, shown) for path, shown in section.figures)
    )
