# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""Chooses the heads of a model that ground phrases, on one split, and reports them on another.

Shape letters: n phrases, L layers, H heads.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
from transformers.utils import logging

from grounded_attention.utils.named_types import Columns, Fields, Head
from grounded_attention.utils.whole_files import write_text

from . import ABLATED, SAME_SPLIT
from .ablation import Ablation, NotCausal, ablate_heads, ablate_region_heads
from .boxes import BoxScore, Way
from .card import heads_section
from .choosing import choose_heads
from .examples import AuditExample, Images
from .heads_file import ChosenHeads, name_heads
from .items import Rules
from .maps import BOX_RULE, BOX_RULES
from .measure import Maps, Measurement
from .table import HeadTable, head_entry

logger = logging.get_logger(__name__)

TABLE = "heads.md"
FIGURE = "heads.png"
# Examples of the choice that a rule for boxes is chosen on.
BOX_EXAMPLES = 500
# Examples of related words, of the examples of a split.
Relate = Callable[[Sequence[AuditExample]], Iterable[AuditExample]]


# The ranking


@dataclass(frozen=True, eq=False)
class HeadRanking:
    """The scores of all heads of a model and the heads that ground best.

    Args:
        heads (`tuple[tuple[int, int], ...]`): the chosen (layer, head) pairs, the best first, counted from 0.
        chosen_on (`HeadTable`): what was counted on the examples of the choice.
        reported_on (`HeadTable`): what was counted on the reported examples.
        boxes (`list[BoxScore]`): pointing game and box accuracy of the chosen heads together, of the best head, of all
            heads, and of baselines, on the reported examples.
        ablation (`Ablation`, *optional*): what the chosen heads count for.
        about (`dict[str, Any]`): the model, the data, the options.
        centre_size (`tuple[float, float]`): mean width and height of the gold boxes of the choice.
        box_rule (`str`): how a map becomes a box, chosen with the heads.
    """

    heads: tuple[Head, ...]
    chosen_on: HeadTable
    reported_on: HeadTable
    boxes: list[BoxScore]
    ablation: Ablation | None
    about: Fields
    centre_size: tuple[float, float] = (0.5, 0.5)
    box_rule: str = BOX_RULE

    @property
    def chosen(self) -> ChosenHeads:
        """The chosen heads, as `pipeline("visual-grounding", heads=...)` takes them."""
        return ChosenHeads.from_dict(self.to_dict(), "the ranking")

    def to_dict(self) -> Fields:
        """The content of `heads.json`."""
        report = self.reported_on.counts
        choice = self.chosen_on.counts
        pointing = choice.accuracy
        chosen = []
        for pair in self.heads:
            chosen.append({**head_entry(report, pair), "pointing_on_choice": float(pointing[pair])})
        ablation = None
        if self.ablation is not None:
            ablation = asdict(self.ablation)
        return {
            **self.reported_on.to_dict(),
            "about": {**self.reported_on.about, **self.about},
            "blind_layers": list(report.blind_layers),
            "chosen": chosen,
            "centre_size": list(self.centre_size),
            "box_rule": self.box_rule,
            "boxes": [asdict(score) for score in self.boxes],
            "ablation": ablation,
            "scores_on_choice": choice.summary(),
        }

    def save(self, folder: str | Path) -> Path:
        """Writes `heads.json` with its counts, `heads.md` and `heads.png` into a folder, and returns the folder.

        Saved into the folder of a model, `heads.json` is what `pipeline("visual-grounding", model=...)` reads.
        """
        folder = Path(folder)
        write_text(folder / TABLE, self.to_markdown())
        self._draw(folder / FIGURE)
        return self.reported_on.save_content(self.to_dict(), folder)

    def _draw(self, path: Path) -> None:
        """Pointing and attention of every head, and how far the words would move without it."""
        from .figures import heads_figure, seen_accuracy

        table = self.reported_on
        panels = {"pointing": seen_accuracy(table.counts), f"attention on {table.region}s": table.counts.mean_share}
        if self.ablation is not None:
            moved = np.full_like(table.counts.mean_share, np.nan)
            for layer, sizes in enumerate(self.ablation.estimates):
                moved[layer, : len(sizes)] = sizes
            panels["size without it, of the largest"] = moved / max(np.nanmax(moved), 1e-12)
        frames = dict.fromkeys(panels, self.heads)
        title = f"Heads by layer and head, from 0 (chance {table.counts.chance_accuracy:.2f}; frame: chosen heads)"
        heads_figure(panels, table.counts.chance_accuracy, path, table.layers, frames, title)

    def to_markdown(self) -> str:
        """The best heads, the chosen ones, boxes and ablation as Markdown, as a model card has them."""
        return heads_section(self.to_dict())


def rank_heads(
    model: Any,
    processor: Any,
    examples: Iterable[AuditExample],
    images: Images,
    *,
    report: Iterable[AuditExample] | None = None,
    regions: Columns | None = None,
    count: int = 3,
    rank: str = "pointing",
    words: str = "mean",
    instruction: str | None = None,
    ablate: int | None = None,
    batch_size: int | None = None,
    seed: int = 0,
    merged_box: bool = False,
    relate: Relate | None = None,
    progress: bool = False,
    about: Columns | None = None,
) -> HeadRanking:
    """Scores every head of every layer, chooses the best ones on some examples and reports them on others.

    The attention of the phrases' rows is read on the model's own back end; no attention maps are made.

    Args:
        model (`PreTrainedModel`): a vision-language model, on any registered back end, or with `regions` a model that
            reads regions. It is set to evaluation mode.
        processor (`ProcessorMixin` or `PatchGroundingProcessor`): its processor.
        examples (`Iterable[AuditExample]`): texts with phrases and boxes for the choice, see `grounded_examples`.
        images (`Images`): pictures by image id: a mapping, or a function from the id.
        report (`Iterable[AuditExample]`, *optional*): examples of another split, for the report. Without them heads
            are reported on the examples that they were chosen on, which flatters them.
        regions (`Mapping[str, Any]`, *optional*): image id -> regions, for a model that reads regions, see `audit`. A
            phrase that no region fits counts as wrong, and a box is that of the region that heads attend to most.
        count (`int`, *optional*, defaults to 3): k, number of heads to choose.
        rank (`str`, *optional*, defaults to `"pointing"`): how heads are ranked, see `choose_heads`.
        words (`str`, *optional*, defaults to `"mean"`): which tokens ask, see `PromptSettings`.
        instruction (`str`, *optional*): words of the user, if the texts are answers, see `PromptSettings`.
        ablate (`int`, *optional*): number of reported examples for the ablation, 0 for none; by default 64, and 0 with
            `regions` or for a model without likelihoods (PaliGemma). It needs a vision-language model with its
            language head, or a pre-trained model that reads regions (VLBertForPreTraining, ...).
        batch_size (`int`, *optional*): texts in a batch; by default 4, and 32 with `regions`.
        seed (`int`, *optional*, defaults to 0): seed of the random heads of the ablation.
        merged_box: which regions are right, see `audit`.
        relate (`Callable`, *optional*): makes examples of words that a dependency relates to phrases, of the examples
            of a split; they are counted too.
        progress (`bool`, *optional*, defaults to `False`): whether to show progress bars.
        about (`Mapping[str, Any]`, *optional*): what `heads.json` says about model and data; `split` and `choose_on`
            are the names of the splits.

    Returns:
        `HeadRanking`: scores of all heads, the chosen heads, their boxes and the ablation.

    Raises:
        ValueError: if the model's attention cannot be read, its image tokens are not known, no phrase has a box, or an
            option is not valid.
    """
    rules = Rules(words, merged=merged_box)
    run = Measurement(model, processor, images, regions, rules, instruction, batch_size, for_choice=True)

    def score(examples: Iterable[AuditExample], title: str, maps: Maps) -> HeadTable:
        related = () if relate is None else relate(list(examples))
        return run.score(examples, title, relations=related, progress=progress, maps=maps)

    examples = _repeatable(examples)
    keep = 0
    if run.tokens:
        grounded = (number for number, each in enumerate(examples) if any(len(one.boxes) for one in each.phrases))
        keep = 1 + max(islice(grounded, BOX_EXAMPLES), default=-1)
    maps = Maps(run.tokens, keep=keep, entropies=run.tokens and rank == "localization")
    chosen_on = score(examples, "choice", maps)
    entropies = None
    if maps.entropies:
        entropies = np.stack([phrase.entropy for phrase in maps.phrases])  # type: ignore[misc]
    heads = choose_heads(chosen_on.counts, count, rank, entropies, chosen_on.real)
    centre_size = maps.mean_size()
    rule = BOX_RULE
    if run.tokens:
        ways: dict[str, Way] = {name: (heads, name) for name in BOX_RULES}
        judged = maps.judge_kept(ways, centre_size)
        if judged is None:
            judged = Maps(run.tokens, ways, centre_size)
            run.score(islice(examples, keep), "boxes", progress=progress, maps=judged)
        rule = max(judged.scores()[: len(BOX_RULES)], key=lambda score: score.accuracy).name
    every = [(int(layer), int(head)) for layer, head in np.argwhere(chosen_on.counts.seeing)]
    if count > 1:
        best = {"best head": (heads[:1], rule)}
    else:
        best = {}
    sets: dict[str, Way] = {name_heads(heads): (heads, rule), **best, "all heads": (every, rule)}
    reported = examples if report is None else _repeatable(report)
    maps = Maps(run.tokens, sets, centre_size)
    reported_on = score(reported, "report", maps)
    chosen_on.about["split"] = (about or {}).get("choose_on", "another split")
    reported_on = reported_on.choose_on(SAME_SPLIT if report is None else chosen_on)
    ablation: Ablation | None = None
    asked = ablate is not None
    if ablate is None:
        ablate = ABLATED if regions is None else 0
    first = list(islice(reported, ablate))
    drawn: Fields = {"seed": seed, "progress": "ablation" if progress else None}
    if ablate and regions is None:
        size = batch_size or run.inputs.batch_size
        read = (run.inputs.processor, first, images, heads)
        try:
            ablation = ablate_heads(model, *read, instruction=instruction, batch_size=size, **drawn)
        except NotCausal as error:
            if asked:
                raise
            ablate = 0
            logger.warning(f"no ablation: {error}")
    elif ablate:
        ablation = ablate_region_heads(model, run, first, heads, **drawn)
    options = {"rank": rank, "words": words, "instruction": instruction, "count": count, "ablate": ablate}
    return HeadRanking(
        heads=tuple(heads),
        chosen_on=chosen_on,
        reported_on=replace(reported_on, about={**(about or {}), **reported_on.about}),
        boxes=maps.scores(),
        ablation=ablation,
        about={**(about or {}), "same_split": report is None, "options": options},
        centre_size=centre_size,
        box_rule=rule,
    )


def _repeatable(examples: Iterable[AuditExample]) -> Iterable[AuditExample]:
    """Examples that can be read again: what is read only once is kept."""
    if isinstance(examples, Iterator):
        return list(examples)
    return examples


def evaluate_heads(
    model: Any,
    processor: Any,
    examples: Iterable[AuditExample],
    images: Images,
    heads: ChosenHeads | str | Path | Iterable[Head],
    *,
    regions: Columns | None = None,
    batch_size: int | None = None,
    merged_box: bool = False,
    progress: bool = False,
) -> list[BoxScore]:
    """Measures the boxes of heads that were chosen before: pointing game and accuracy at an IoU of 0.5.

    Args:
        heads (`ChosenHeads`, `str`, `Path` or pairs): (layer, head) pairs, how phrases ask them, how their map becomes
            a box, and the size of the box in the centre of every image, the baseline; `chosen` of a ranking, a
            `heads.json`, a model that has one, or pairs alone.

    The other arguments and the errors are those of `rank_heads`.

    Returns:
        `list[BoxScore]`: the heads together, each single one if there are several, the centre box, and chance.
    """
    chosen = ChosenHeads.named(heads)
    chosen.check(model)
    rules = Rules(chosen.settings.words, merged=merged_box)
    instruction = chosen.settings.instruction
    run = Measurement(model, processor, images, regions, rules, instruction, batch_size, for_choice=True)
    pairs = chosen.heads
    sets: dict[str, Way] = {name_heads(pairs): (list(pairs), chosen.box_rule)}
    if len(pairs) > 1:
        sets.update({name_heads([head]): ([head], chosen.box_rule) for head in pairs})
    maps = Maps(run.tokens, sets, chosen.centre_size)
    run.score(examples, "boxes", progress=progress, maps=maps)
    return maps.scores()
