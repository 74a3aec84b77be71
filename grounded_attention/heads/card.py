# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""Sections that commands put into the card of a trained model, each at its own place; that of the heads."""

import re
import shutil
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from grounded_attention.metrics.intervals import interval_text
from grounded_attention.utils.bounded_files import read_json, read_text
from grounded_attention.utils.boxes import IOU_THRESHOLD
from grounded_attention.utils.named_types import Columns
from grounded_attention.utils.plain_text import markdown_table, markdown_text
from grounded_attention.utils.whole_files import whole_file, write_text

from . import SAME_SPLIT
from .heads_file import FILE, ChosenHeads, find_file, name_heads
from .statistics import ACTIVE_SHARE

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
        if Path(path).is_dir():
            return Path(path, CARD)
        return Path(path)

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


NAMES = {"text_to_region": "text → region", "region_to_text": "region → text", "relations": "relation"}
# The number of relations in Table 2 of the paper.
MOST_RELATIONS = 10
MOST_NEEDED = 10  # heads whose removal would change most
HEADS = CardSection(
    "the heads", "<!-- heads: grounded-attention heads --card puts its section here -->", "<!-- end of the heads -->"
)
HEADS_FIGURE = "heads.png"
BEST_COLUMNS = ("what", "best head", "accuracy (95 % interval)", "attention", "rule", "chance", "reachable", "items")


def heads_section(content: Columns) -> str:
    """What `heads.json` says as Markdown; it starts with a second-level heading."""
    parts = ["## Where its heads look", " ".join(_introduction(content)), best_table(content["best"])]
    if content.get("boxes"):
        # Chosen heads and their scores as a Markdown table; what was not counted is left empty.
        rows = [chosen_row(one) for one in content["chosen"]]
        table_of_chosen = markdown_table(("head", "pointing", "95 %", "lift", "share", "entropy"), rows, aligned=True)
        parts += [_chosen_text(content), table_of_chosen, boxes_table(content["boxes"])]
    if content.get("ablation"):
        parts += _ablation(content["ablation"])
    limits = [f"- {line}" for line in _limits(content)]
    return "\n\n".join([*parts, "\n".join(limits)]) + "\n"


def region_of(about: Columns) -> str:
    """What a region is: "region", or "image token" for a vision-language model."""
    if "coverage_threshold" in about:
        return "image token"
    return "region"


def _introduction(content: Columns) -> Iterator[str]:
    about = content["about"]
    region = region_of(about)
    where = markdown_text(_data(about))
    kinds = ", ".join(NAMES.get(kind, kind) for kind in content["scores"])
    of_model = ""
    if "model" in about:
        of_model = f" of {markdown_text(str(about['model']))}"
    on_data = f", on {where}" if where else ""
    yield f"How often each attention head{of_model} attends most to the right place ({kinds}){on_data}."
    word = about.get("word", "last")
    whole = {"mean": "its sub-words on average attend", "prompt": "the last token of its prompt attends"}
    attending = whole.get(word, f"its {word} sub-word attends")
    gold = "the box around all gold boxes" if about.get("merged_box") else "any gold box"
    covered = about.get("coverage_threshold")
    if covered is None:
        right = f"with an overlap (IoU) of at least {about.get('iou_threshold', IOU_THRESHOLD):g} with {gold}"
    else:
        right = f"if {gold} covers at least {covered:.0%} of it; a box that covers so much of no token has one, too"
    yield f"The answer of a head to a phrase is the {region} that {attending} to most. It is right {right}."
    if about.get("instruction"):
        yield f"The captions are answers to “{markdown_text(about['instruction'])}”."
    choice = content["choice"]
    if choice is None or choice["split"] == SAME_SPLIT:
        yield "Heads were chosen on the same items that they are reported on, as in the paper; this overstates them."
    else:
        yield f"Heads were chosen on {markdown_text(choice['split'])}."


def best_table(best: Sequence[Columns]) -> str:
    """The best head of each group; of relations the most common ones."""
    relations = [one for one in best if one["kind"] == "relations"]
    common = sorted(relations, key=lambda one: (-one["items"], one["group"]))[:MOST_RELATIONS]
    shown = [one for one in best if one["kind"] != "relations" or one in common]
    return markdown_table(BEST_COLUMNS, [best_row(one, markdown_text) for one in shown], 2)


def best_row(best: Columns, shown: Callable[[str], str] = str) -> tuple[str, ...]:
    """The texts of `BEST_COLUMNS` for a head of `best` in `heads.json`; `shown` writes names of groups and layers."""
    if best["group"] == "all":
        group = ""
    else:
        group = f", {shown(best['group'])}"
    head = shown(f"{best['layer']}-{best['head']}")
    if not best["active"]:
        head += " (not active)"
    reachable = best["upper_bound"]
    return (
        f"{NAMES.get(best['kind'], best['kind'])}{group}",
        head,
        f"{best['accuracy']:.1%} ({interval_text(best['interval'])})",
        f"{best['share']:.0%}",
        f"{best['baseline']:.1%}",
        f"{best['chance']:.1%}",
        "" if reachable is None else f"{reachable:.1%}",
        f"{best['items']} in {best['images']} {best.get('unit', 'images')}",
    )


def _chosen_text(content: Columns) -> str:
    about = content["about"]
    region = region_of(about)
    rank = markdown_text(str(about["options"]["rank"]))
    return (
        f"The {len(content['chosen'])} heads that find phrases best, by {rank}; "
        f'`{FILE}` names them for `pipeline("visual-grounding", model=...)`. *Pointing*: the {region} with the most '
        f"attention of the phrase is on its object. *Lift*: attention on the object's {region}s, over their part of "
        "the image. *Share*: attention on the image. *Entropy*: spatial entropy, low if attention is in one place. "
        "Below, how often the heads together, and baselines, point right and find the box."
    )


def chosen_row(one: Columns) -> tuple[str, ...]:
    """The texts of a head of `chosen` in `heads.json`."""
    return (
        name_heads([(one["layer"], one["head"])]),
        f"{one['pointing']:.1%}",
        interval_text(one["pointing_interval"]),
        f"{one['lift']:.2f}" if "lift" in one else "",
        f"{one['share']:.1%}",
        f"{one['entropy']:.2f}" if "entropy" in one else "",
    )


def boxes_table(boxes: Sequence[Columns]) -> str:
    """Pointing game and box accuracy of heads and baselines as a Markdown table."""
    rows = []
    for score in boxes:
        rows.append(
            (
                markdown_text(score["name"]),
                f"{score['pointing']:.1%}",
                interval_text(score["pointing_interval"]),
                f"{score['accuracy']:.1%}",
                interval_text(score["accuracy_interval"]),
            )
        )
    head = f"attention of, {boxes[0]['count']:,} phrases"
    return markdown_table((head, "pointing", "95 %", "box, IoU ≥ 0.5", "95 %"), rows, aligned=True)


def _ablation(ablation: Columns) -> Iterator[str]:
    """What the model loses without the chosen heads, and the heads that matter most by the estimate for all heads."""
    rows = []
    for effect in (ablation["together"], *(ablation["single"] if len(ablation["single"]) > 1 else ())):
        compared = ("-", "-")
        if effect["random"] is not None:
            compared = (f"{effect['random']:+.3f}", interval_text(effect["difference"], "+.3f"))
        change = (f"{effect['change']:+.3f}", interval_text(effect["interval"], "+.3f"))
        rows.append((name_heads(effect["heads"]), *change, *compared, f"{effect['size']:.3f}"))
    columns = ("removed", "change", "95 %", "random heads", "difference, 95 %", "size")
    yield markdown_table(columns, rows, aligned=True)
    yield (
        f"Ablation: change of the log-likelihood of the words of grounded phrases, nats for each of "
        f"{ablation['tokens']} tokens ({ablation['log_likelihood']:.3f} with all heads, {ablation['images']} images), "
        "without the heads; and without as many random other heads of the same layers. *Size*: the mean without "
        "signs, of how far each text moves. A head that looks at an object need not be one that the model needs "
        "to name it."
    )
    sizes = []
    for i, layer in enumerate(ablation["estimates"]):
        for j, size in enumerate(layer):
            sizes.append((size, (i, j)))
    needed = ", ".join(f"{name_heads([pair])} {size:.3f}" for size, pair in sorted(sizes, reverse=True)[:MOST_NEEDED])
    sure = ablation["agreement"]
    agreement = "" if sure is None else f" Rank correlation with the removed heads of the table: {sure:.2f}."
    yield (
        f"The heads whose removal would move the words furthest, of all {len(sizes)}, by an estimate of the size from "
        f"one forward and one backward pass (|gradient × output of the head|): {needed}.{agreement}"
    )


def _limits(content: Columns) -> Iterator[str]:
    about = content["about"]
    phrases = about.get("phrases", {})
    region = region_of(about)
    yield "Heads are named layer-head, both counted from 0. Intervals resample images, not phrases."
    yield (
        "*attention*: the mean share of a head's attention on all candidates together; an active head gives them more "
        f"than {ACTIVE_SHARE:.0%}. *rule*: accuracy of always answering the "
        f"{about.get('baseline', 'most confident region')} (from regions to words: the first word). "
        "*reachable*: items that any candidate answers; the others count as wrong."
    )
    if region == "region":
        yield "The whole image, END and special tokens are not candidates."
    else:
        yield "Image tokens without a place in the image, such as padding and the ends of rows, are not candidates."
    yield (
        f"A head that looks at the right {region} does not show that the model's answer depends on it; "
        "grounded-attention heads --ablate measures this."
    )
    if phrases:
        cut = phrases.get("truncated", 0)
        empty = phrases.get("no_token", 0)
        yield (
            f"{phrases.get('judged', 0)} phrases were judged; {phrases.get('without_boxes', 0)} without a gold box "
            f"were skipped, {cut} were cut with their text, {empty} have no token."
        )
    hidden = phrases.get("out_of_sight")
    if hidden:
        yield f"{hidden} phrases are not scored: no image token shows their boxes."
    blind = [layer for layer in content.get("blind_layers", ()) if layer not in content["headless"]]
    if content["headless"]:
        layers = ", ".join(map(str, content["headless"]))
        yield f"Layers {layers} have no softmax attention over the sequence, and so no heads."
    if blind:
        layers = ", ".join(map(str, blind))
        yield f"Layers {layers} see no image token (sliding windows); their heads are not ranked."


def _data(about: Columns) -> str:
    """The data and their split."""
    split = f"split {about['split']}" if about.get("split") else None
    return ", ".join(str(part) for part in (about.get("data"), split) if part)


def put_heads_in_card(content: Columns, path: str | Path, picture: Path | None = None, changed: str = "") -> Path:
    """Writes the section into a model card, with what changed and a picture beside it; returns the card."""
    section = heads_section(content)
    if changed:
        section += f"\n{changed}"
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
