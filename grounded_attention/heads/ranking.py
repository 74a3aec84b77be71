# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""The ranking of the heads of a model: `heads.json`, a table, a figure."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from grounded_attention.heads.ablation import Ablation
from grounded_attention.heads.boxes import BoxScore
from grounded_attention.heads.chosen import FILE, FORMAT, ChosenHeads
from grounded_attention.heads.scores import HeadScores
from grounded_attention.metrics.intervals import interval_text, to_json
from grounded_attention.utils.plain_text import markdown_text
from grounded_attention.utils.whole_files import write_text

TABLE, FIGURE = "heads.md", "heads.png"
# The table lists the chosen heads, and then the next best ones.
LISTED = 10


def name_heads(heads: Sequence[tuple[int, int]]) -> str:
    """The name of heads in tables, for example `L14 H24 + L14 H13`; long lists are counted."""
    if len(heads) > 4:
        return f"{len(heads)} heads"
    return " + ".join(f"L{layer} H{head}" for layer, head in heads)


@dataclass(frozen=True, eq=False)
class HeadRanking:
    """The scores of all heads of a model and the heads that ground best.

    Args:
        heads (`tuple[tuple[int, int], ...]`): the chosen (layer, head) pairs, the best first, counted from 0.
        chosen_on (`HeadScores`): the scores on the examples of the choice.
        reported_on (`HeadScores`): the scores on the reported examples.
        boxes (`list[BoxScore]`): pointing game and box accuracy of the chosen heads together, of the best head, of all
            heads, and of baselines, on the reported examples.
        ablation (`Ablation`, *optional*): what the chosen heads count for.
        about (`dict[str, Any]`): the model, the data, the options.
    """

    heads: tuple[tuple[int, int], ...]
    chosen_on: HeadScores
    reported_on: HeadScores
    boxes: list[BoxScore]
    ablation: Ablation | None
    about: dict[str, Any]

    @property
    def chosen(self) -> ChosenHeads:
        """The chosen heads, as `pipeline("visual-grounding", heads=...)` takes them."""
        return ChosenHeads.from_dict(self.to_dict(), "the ranking")

    def to_dict(self) -> dict[str, Any]:
        """The content of `heads.json`."""
        return {
            "format": FORMAT,
            "about": self.about,
            "layers": self.reported_on.layers,
            "heads_per_layer": self.reported_on.heads,
            "blind_layers": list(self.reported_on.blind_layers),
            "chosen": [self._chosen_head(index) for index in range(len(self.heads))],
            "centre_size": list(self.chosen_on.mean_size),
            "boxes": [asdict(score) for score in self.boxes],
            "ablation": None if self.ablation is None else asdict(self.ablation),
            "choice": self.chosen_on.summary(),
            "report": self.reported_on.summary(),
        }

    def _chosen_head(self, index: int) -> dict[str, Any]:
        layer, head = self.heads[index]
        low, high = self.reported_on.intervals("pointing")[:, layer, head].tolist()
        means = {name: float(self.reported_on.mean(name)[layer, head]) for name in self.reported_on.scores}
        chosen_on = float(self.chosen_on.mean("pointing")[layer, head])
        return {
            "layer": layer,
            "head": head,
            **means,
            "pointing_interval": [low, high],
            "pointing_on_choice": chosen_on,
        }

    def save(self, folder: str | Path) -> Path:
        """Writes `heads.json`, `heads.md` and `heads.png` into a folder, and returns the folder.

        Saved into the folder of a model, `heads.json` is what `pipeline("visual-grounding", model=...)` reads.
        """
        from grounded_attention.heads.head_figure import ranking_figure

        folder = Path(folder)
        folder.mkdir(parents=True, exist_ok=True)
        write_text(folder / TABLE, self.to_markdown())
        ranking_figure(self, folder / FIGURE)
        write_text(folder / FILE, to_json(self.to_dict(), indent=1) + "\n")
        return folder

    def to_markdown(self) -> str:
        """The chosen heads, the next best ones, boxes and ablation as Markdown."""
        parts = ["# Heads that ground phrases", self._about_text(), self._heads_table(), boxes_table(self.boxes)]
        if self.ablation is not None:
            parts.append(self._ablation_table(self.ablation))
        return "\n\n".join(parts) + "\n"

    def _about_text(self) -> str:
        options = self.about["options"]
        report = self.reported_on
        named = {name: markdown_text(str(self.about[name])) for name in ("model", "data") if name in self.about}
        lines = [f"{name.capitalize()}: {value}." for name, value in named.items()]
        lines.append(
            f"{len(self.heads)} heads by {markdown_text(str(options['rank']))}, on {len(self.chosen_on.image_ids)} "
            f"phrases of {self.chosen_on.images} images; reported on {len(report.image_ids)} phrases of "
            f"{report.images} images"
            + (" (**the same: the figures flatter the chosen heads**)." if self.about.get("same_split") else ".")
        )
        if report.skipped:
            lines.append(f"{report.skipped} phrases are not scored: no image token shows their boxes.")
        lines += [f"{remark}." for remark in unranked(report)]
        return " ".join(lines)

    def _heads_table(self) -> str:
        report = self.reported_on
        low, high = report.intervals("pointing")
        means = {name: report.mean(name) for name in report.scores}
        order = [divmod(int(place), report.heads) for place in (-means["pointing"]).argsort(None, kind="stable")]
        others = [pair for pair in order if pair not in self.heads and report.seeing[pair]][:LISTED]
        rows = ["| head | pointing | 95 % | lift | share | entropy |", "|---|---:|---:|---:|---:|---:|"]
        for pair in (*self.heads, *others):
            name = f"**{name_heads([pair])}**" if pair in self.heads else name_heads([pair])
            figures = (f"{means['pointing'][pair]:.1%}", interval_text((low[pair], high[pair])))
            rows.append(
                f"| {name} | {' | '.join(figures)} | {means['lift'][pair]:.2f} | {means['share'][pair]:.1%} | "
                f"{means['entropy'][pair]:.2f} |"
            )
        rows.append(f"| chance | {report.chance.mean():.1%} | | 1.00 | | |")
        text = (
            "Bold heads are chosen, the others are the next best. *Pointing*: the image token with the most attention "
            "of the phrase is one of its object. *Lift*: attention on the object's tokens, over their part of the "
            "image. *Share*: attention on the image. *Entropy*: spatial entropy, low if attention is in one place."
        )
        return "\n".join(rows) + "\n\n" + text

    @staticmethod
    def _ablation_table(ablation: Ablation) -> str:
        rows = [
            "| removed | change | 95 % | random heads | difference, 95 % |",
            "|---|---:|---:|---:|---:|",
        ]
        for effect in (ablation.together, *(ablation.single if len(ablation.single) > 1 else ())):
            random = "-" if effect.random is None else f"{effect.random:+.3f}"
            difference = "-" if effect.difference is None else interval_text(effect.difference, "+.3f")
            interval = interval_text(effect.interval, "+.3f")
            rows.append(
                f"| {name_heads(effect.heads)} | {effect.change:+.3f} | {interval} | {random} | {difference} |"
            )
        text = (
            f"Ablation: change of the log-likelihood of the words of grounded phrases, nats for each of "
            f"{ablation.tokens} tokens ({ablation.log_likelihood:.3f} with all heads, {ablation.images} images), "
            "without the heads; and without as many random other heads of the same layers. A head that looks at an "
            "object need not be one that the model needs to name it."
        )
        return "\n".join(rows) + "\n\n" + text


def unranked(scores: HeadScores) -> list[str]:
    """Which layers have no ranked heads, and why, each as a sentence without its full stop."""
    windows = [layer for layer in scores.blind_layers if layer not in scores.headless]
    reasons = {
        "have no softmax attention over the sequence, and so no heads": scores.headless,
        "see no image token (sliding windows); their heads are not ranked": windows,
    }
    return [f"Layers {', '.join(map(str, layers))} {reason}" for reason, layers in reasons.items() if layers]


def boxes_table(boxes: Sequence[BoxScore]) -> str:
    """Pointing game and box accuracy of heads and baselines as a Markdown table."""
    rows = ["| attention of | pointing | 95 % | box, IoU ≥ 0.5 | 95 % |", "|---|---:|---:|---:|---:|"]
    for score in boxes:
        ends = interval_text(score.pointing_interval), interval_text(score.accuracy_interval)
        rows.append(
            f"| {markdown_text(score.name)} | {score.pointing:.1%} | {ends[0]} | {score.accuracy:.1%} | {ends[1]} |"
        )
    return "\n".join(rows)
