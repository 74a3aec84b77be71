# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""Chooses the heads of a model that ground phrases, on one split, and reports them on another; reads `heads.json`.

Shape letters: n phrases, L layers, H heads.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
from transformers.utils import cached_file

from grounded_attention.metrics.intervals import interval_text
from grounded_attention.modeling.attention_calls import layer_names
from grounded_attention.supervision.supervise import call_layers, find_calls, unwrap_model
from grounded_attention.utils.bounded_files import read_json
from grounded_attention.utils.boxes import IOU_THRESHOLD
from grounded_attention.utils.plain_text import markdown_text
from grounded_attention.utils.whole_files import write_text

from .ablation import Ablation, ablate_heads
from .boxes import BoxScore, Heads, MappedPhrase, box_scores
from .card import CardSection
from .examples import AuditExample, Images, PromptSettings
from .items import Rules
from .measure import Maps, Measurement, make_inputs
from .reading import TEXT_TO_REGION, reads_pixels
from .statistics import SAME_SPLIT
from .table import FILE, FORMAT, HeadCounts, HeadTable, head_entry

TABLE, FIGURE = "heads.md", "heads.png"
MAKE = "make it with `grounded-attention heads`"
# The table lists the chosen heads, and then the next best ones.
LISTED = 10
# Ablation runs the model some 25 times for each example.
ABLATED = 64
# How heads are ranked: by a measure, or as Localization Heads does, without boxes.
RANKS = ("pointing", "lift", "localization")
# Examples of related words, of the examples of a split.
Relate = Callable[[Sequence[AuditExample]], Iterable[AuditExample]]
# Localization Heads counts how often a head is among this many heads of lowest entropy (section 4.2).
LOWEST = 10


# The file


@dataclass(frozen=True)
class ChosenHeads:
    """Heads that ground, and how phrases ask them.

    Args:
        heads (`tuple[tuple[int, int], ...]`): (layer, head) pairs, counted from 0.
        settings (`PromptSettings`): how phrases became prompts when the heads were chosen.
        centre_size (`tuple[float, float]`): mean width and height of gold boxes, for the centre-box baseline.
        layers (`int`, *optional*): layers of the model that the heads belong to.
        heads_per_layer (`int`, *optional*): heads of each of its layers.
        source (`str`, *optional*, defaults to `"heads"`): the file, for errors.
    """

    heads: tuple[tuple[int, int], ...]
    settings: PromptSettings = field(default_factory=PromptSettings)
    centre_size: tuple[float, float] = (0.5, 0.5)
    layers: int | None = None
    heads_per_layer: int | None = None
    source: str = "heads"

    @classmethod
    def from_dict(cls, content: Mapping[str, Any], source: str) -> "ChosenHeads":
        """Reads the content of `heads.json`.

        Raises:
            ValueError: if something is missing or has another form; the message has the source.
        """
        try:
            if content["format"] not in (1, FORMAT):
                raise ValueError(f"format {content['format']!r}, expected {FORMAT}")
            pairs = tuple((_index(one["layer"]), _index(one["head"])) for one in content["chosen"])
            if not pairs:
                raise ValueError("it has no chosen heads")
            about = content["about"]
            if content["format"] == 1:
                layers, heads, asked = content["layers"], content["heads_per_layer"], about["options"]
                settings = PromptSettings(asked["words"], asked["instruction"])
            else:
                layers, heads = len(content["layers"]), content["heads"]
                settings = PromptSettings(about["word"], about.get("instruction"))
            width, height = map(float, content.get("centre_size", (0.5, 0.5)))
            return cls(pairs, settings, (width, height), layers, heads, source)
        except (KeyError, TypeError, ValueError) as error:
            reason = f"no entry {error}" if isinstance(error, KeyError) else str(error)
            raise ValueError(f"{source}: not a ranking of heads ({reason}); {MAKE}") from error

    @classmethod
    def from_file(cls, path: str | Path) -> "ChosenHeads":
        """Reads `heads.json`, or the file of this name in a folder.

        Raises:
            ValueError: if the file does not exist or is no ranking of heads.
        """
        path = Path(path)
        path = path / FILE if path.is_dir() else path
        if not path.is_file():
            raise ValueError(f"{path}: no such file; {MAKE}")
        return cls.from_dict(read_json(path), str(path))

    @classmethod
    def of_model(cls, model: Any, revision: str | None = None) -> "ChosenHeads":
        """Reads `heads.json` in the folder or in the Hub repository of a model.

        Args:
            model (`PreTrainedModel` or `str`): the model, or its folder or name.
            revision (`str`, *optional*): revision of the repository; by default the one of the model's configuration.

        Raises:
            ValueError: if there is no such file, or it is no ranking of heads.
        """
        name = model if isinstance(model, str) else model.name_or_path
        if not isinstance(model, str):
            revision = revision or getattr(model.config, "_commit_hash", None)
        found = find_file(name, revision) if name else None
        if found is None:
            owner = name or "the model"
            raise ValueError(f"{owner} has no {FILE}, which names its heads that ground; {MAKE}, or give heads")
        return cls.from_dict(read_json(found), f"{name}/{FILE}")

    def check(self, model: Any) -> None:
        """Checks that a model, or the model of a configuration, has these layers and heads.

        Raises:
            ValueError: if the heads were chosen for a model of another size.
        """
        found_calls = find_calls(model)
        widths = dict(zip(layer_names(found_calls), call_layers(found_calls), strict=True))
        calls = {widths[call.name]: call.num_heads for call in found_calls}
        config = getattr(unwrap_model(model), "config", model)
        own = hasattr(config, "grounding_calls")
        found = (len(calls) if own else config.get_text_config().num_hidden_layers, max(calls.values()))
        layers = self.layers if self.layers is not None else found[0]
        width = self.heads_per_layer if self.heads_per_layer is not None else found[1]
        beyond = [pair for pair in self.heads if pair[1] >= calls.get(pair[0], 0)]
        if (layers, width) != found or beyond:
            wanted = f"{layers} layers of {width} heads" if (layers, width) != found else f"layer and head {beyond[0]}"
            only = "" if len(calls) == found[0] else f", only in the layers {', '.join(map(str, calls))}"
            raise ValueError(
                f"{self.source}: heads of a model with {wanted}, but {type(model).__name__} has {found[0]} layers of "
                f"{found[1]} heads{only}; {MAKE}"
            )


def find_file(model: str, revision: str | None = None) -> str | None:
    """Finds `heads.json` in the folder or in the Hub repository of a model; `None` if it has no such file."""
    return cached_file(
        model,
        FILE,
        revision=revision,
        _raise_exceptions_for_gated_repo=False,
        _raise_exceptions_for_missing_entries=False,
        _raise_exceptions_for_connection_errors=False,
    )


def has_adapter(model: Any) -> bool:
    """Whether there is an adapter of PEFT in the layers of a model, with or without the wrapper of PEFT."""
    return bool(getattr(unwrap_model(model), "peft_config", None))


def _index(value: Any) -> int:
    if type(value) is not int or value < 0:
        raise ValueError(f"index {value!r}, expected a whole number from 0")
    return value


# The choice


def choose_heads(
    counts: HeadCounts,
    count: int,
    rank: str = "pointing",
    entropies: np.ndarray | None = None,
    real: np.ndarray | None = None,
) -> list[tuple[int, int]]:
    """Chooses the heads that ground best; `entropies` (n, L, H) are those of the phrases, for "localization"."""
    if rank not in RANKS:
        raise ValueError(f"rank={rank!r} is unknown; expected one of {', '.join(RANKS)}")
    if rank == "localization":
        if entropies is None:
            raise ValueError(f"rank={rank!r}: for image tokens only, whose maps have a spatial entropy")
        values = localization_frequency(counts.mean_share, entropies, real)
    else:
        values = np.asarray(counts.mean(rank))
    seeing = counts.seeing
    if not 1 <= count <= seeing.sum():
        raise ValueError(f"{count} heads cannot be chosen: the model has {seeing.sum()} heads that see the image")
    values = np.where(seeing, values, -np.inf)
    order = np.argsort(-values, axis=None, kind="stable")[:count]
    return [(int(layer), int(head)) for layer, head in zip(*np.unravel_index(order, values.shape), strict=True)]


def localization_frequency(share: np.ndarray, entropies: np.ndarray, real: np.ndarray | None = None) -> np.ndarray:
    """How often each head is among the ten of lowest spatial entropy, of the heads that look at the image.

    `share` (L, H) is the mean share, `entropies` (n, L, H) are those of the phrases, `real` (L, H) are the heads that
    the model has.
    """
    real = np.ones(share.shape, dtype=bool) if real is None else real
    bend = elbow(share[real])
    passed = real & ((share > bend) | (share[real].min() == share[real].max()))
    entropy = np.where(passed, entropies, np.inf).reshape(len(entropies), -1)
    lowest = np.argsort(entropy, axis=1, kind="stable")[:, : min(LOWEST, int(passed.sum()))]
    frequency = np.bincount(lowest.ravel(), minlength=entropy.shape[1]) / len(entropy)
    return np.where(passed, frequency.reshape(share.shape), -1.0)


def elbow(values: np.ndarray) -> float:
    """The value at the elbow of the sorted values: the point farthest from the line between the two ends."""
    ordered = np.sort(values, axis=None)
    if ordered[0] == ordered[-1]:
        return float(ordered[0])
    steps = np.linspace(0.0, 1.0, len(ordered))
    heights = (ordered - ordered[0]) / (ordered[-1] - ordered[0])
    return float(ordered[int(np.abs(heights - steps).argmax())])


# The ranking


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
        chosen_on (`HeadTable`): what was counted on the examples of the choice.
        reported_on (`HeadTable`): what was counted on the reported examples.
        boxes (`list[BoxScore]`): pointing game and box accuracy of the chosen heads together, of the best head, of all
            heads, and of baselines, on the reported examples.
        ablation (`Ablation`, *optional*): what the chosen heads count for.
        about (`dict[str, Any]`): the model, the data, the options.
        centre_size (`tuple[float, float]`): mean width and height of the gold boxes of the choice.
    """

    heads: tuple[tuple[int, int], ...]
    chosen_on: HeadTable
    reported_on: HeadTable
    boxes: list[BoxScore]
    ablation: Ablation | None
    about: dict[str, Any]
    centre_size: tuple[float, float] = (0.5, 0.5)

    @property
    def chosen(self) -> ChosenHeads:
        """The chosen heads, as `pipeline("visual-grounding", heads=...)` takes them."""
        return ChosenHeads.from_dict(self.to_dict(), "the ranking")

    def to_dict(self) -> dict[str, Any]:
        """The content of `heads.json`."""
        report, choice = self.reported_on.counts, self.chosen_on.counts
        pointing = choice.accuracy
        chosen = [{**head_entry(report, p), "pointing_on_choice": float(pointing[p])} for p in self.heads]
        return {
            **self.reported_on.to_dict(),
            "about": {**self.reported_on.about, **self.about},
            "blind_layers": list(report.blind_layers),
            "chosen": chosen,
            "centre_size": list(self.centre_size),
            "boxes": [asdict(score) for score in self.boxes],
            "ablation": None if self.ablation is None else asdict(self.ablation),
            "scores_on_choice": choice.summary(),
        }

    def save(self, folder: str | Path) -> Path:
        """Writes `heads.json` with its counts, `heads.md` and `heads.png` into a folder, and returns the folder.

        Saved into the folder of a model, `heads.json` is what `pipeline("visual-grounding", model=...)` reads.
        """
        from .figures import ranking_figure

        folder = Path(folder)
        folder.mkdir(parents=True, exist_ok=True)
        write_text(folder / TABLE, self.to_markdown())
        ranking_figure(self.reported_on, self.heads, folder / FIGURE)
        return self.reported_on.save_content(self.to_dict(), folder)

    def to_markdown(self) -> str:
        """The chosen heads, the next best ones, boxes and ablation as Markdown."""
        parts = ["# Heads that ground phrases", self._about_text(), self._heads_table(), boxes_table(self.boxes)]
        if self.ablation is not None:
            parts.append(self._ablation_table(self.ablation))
        return "\n\n".join(parts) + "\n"

    def _about_text(self) -> str:
        options = self.about["options"]
        report, choice = self.reported_on.counts, self.chosen_on.counts
        named = {name: markdown_text(str(self.about[name])) for name in ("model", "data") if name in self.about}
        lines = [f"{name.capitalize()}: {value}." for name, value in named.items()]
        lines.append(
            f"{len(self.heads)} heads by {markdown_text(str(options['rank']))}, on {choice.total} "
            f"phrases of {len(choice.image_ids)} images; reported on {report.total} phrases of "
            f"{len(report.image_ids)} images"
            + (" (**the same: the figures flatter the chosen heads**)." if self.about.get("same_split") else ".")
        )
        if skipped := self.reported_on.about["phrases"].get("out_of_sight"):
            lines.append(f"{skipped} phrases are not scored: no image token shows their boxes.")
        lines += [f"{remark}." for remark in unranked(self.reported_on)]
        return " ".join(lines)

    def _heads_table(self) -> str:
        report = self.reported_on.counts
        low, high = report.intervals()
        order = [
            divmod(int(place), self.reported_on.heads) for place in (-report.accuracy).argsort(None, kind="stable")
        ]
        others = [pair for pair in order if pair not in self.heads and report.seeing[pair]][:LISTED]
        rows = ["| head | pointing | 95 % | lift | share | entropy |", "|---|---:|---:|---:|---:|---:|"]
        for pair in (*self.heads, *others):
            name = f"**{name_heads([pair])}**" if pair in self.heads else name_heads([pair])
            numbers = score_texts(report, pair, interval_text((low[pair], high[pair])))
            rows.append(f"| {name} | {' | '.join(numbers)} |")
        rows.append(f"| chance | {report.chance_accuracy:.1%} | | 1.00 | | |")
        region = self.reported_on.region
        text = (
            f"Bold heads are chosen, the others are the next best. *Pointing*: the {region} with the most attention "
            f"of the phrase is one of its object. *Lift*: attention on the object's {region}s, over their part of the "
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


def score_texts(counts: HeadCounts, pair: tuple[int, int], interval: str) -> tuple[str, ...]:
    """Pointing, its interval, lift, share and entropy of a head, for tables; what was not counted is left empty."""
    lift, entropy = (None if (found := counts.mean(name)) is None else found[pair] for name in ("lift", "entropy"))
    return (
        f"{counts.accuracy[pair]:.1%}",
        interval,
        "" if lift is None else f"{lift:.2f}",
        f"{counts.mean_share[pair]:.1%}",
        "" if entropy is None else f"{entropy:.2f}",
    )


def unranked(table: HeadTable) -> list[str]:
    """Which layers have no ranked heads, and why, each as a sentence without its full stop."""
    windows = [layer for layer in table.counts.blind_layers if layer not in table.headless]
    reasons = {
        "have no softmax attention over the sequence, and so no heads": table.headless,
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


def rank_heads(
    model: Any,
    processor: Any,
    examples: Iterable[AuditExample],
    images: Images,
    *,
    report: Iterable[AuditExample] | None = None,
    regions: Mapping[str, Any] | None = None,
    count: int = 3,
    rank: str = "pointing",
    words: str = "mean",
    instruction: str | None = None,
    ablate: int = ABLATED,
    batch_size: int | None = None,
    seed: int = 0,
    iou_threshold: float = IOU_THRESHOLD,
    merged_box: bool = False,
    relate: Relate | None = None,
    progress: bool = False,
    about: Mapping[str, Any] | None = None,
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
        ablate (`int`, *optional*, defaults to 64): number of reported examples for the ablation, 0 for none. It needs
            a vision-language model with its language head.
        batch_size (`int`, *optional*): texts in a batch; by default 4, and 32 with `regions`.
        seed (`int`, *optional*, defaults to 0): seed of the random heads of the ablation.
        iou_threshold, merged_box: which regions are right, see `audit`.
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
    rules = Rules(words, iou_threshold, merged_box)
    run = HeadScorer(model, processor, images, regions, rules, instruction, batch_size, relate, progress)
    examples = list(examples)
    chosen_on, phrases = run.score(examples, "choice")
    entropies = np.stack([phrase.entropy for phrase in phrases]) if run.tokens else None  # type: ignore[misc]
    heads = choose_heads(chosen_on.counts, count, rank, entropies, chosen_on.real)
    sizes = np.stack([(phrase.boxes[:, 2:] - phrase.boxes[:, :2]).mean(0) for phrase in phrases])
    width, height = sizes.astype(np.float32).mean(0, dtype=np.float64).tolist()
    centre_size = (width, height)
    sets: dict[str, Heads] = {name_heads(heads): heads}
    if count > 1:
        sets["best head"] = heads[:1]
    sets["all heads"] = [(int(layer), int(head)) for layer, head in np.argwhere(chosen_on.counts.seeing)]
    reported = examples if report is None else list(report)
    reported_on, found = run.score(reported, "report", sets, centre_size)
    chosen_on.about["split"] = (about or {}).get("choose_on", "another split")
    reported_on = reported_on.choose_on(SAME_SPLIT if report is None else chosen_on)
    ablation: Ablation | None = None
    if ablate and regions is None:
        ablation = ablate_heads(
            model,
            run.inputs.processor,
            reported[:ablate],
            images,
            heads,
            instruction=instruction,
            batch_size=batch_size or run.inputs.batch_size,
            seed=seed,
            progress="ablation" if progress else None,
        )
    options = {"rank": rank, "words": words, "instruction": instruction, "count": count, "ablate": ablate}
    return HeadRanking(
        heads=tuple(heads),
        chosen_on=chosen_on,
        reported_on=replace(reported_on, about={**(about or {}), **reported_on.about}),
        boxes=box_scores(found),
        ablation=ablation,
        about={**(about or {}), "same_split": report is None, "options": options},
        centre_size=centre_size,
    )


def evaluate_heads(
    model: Any,
    processor: Any,
    examples: Iterable[AuditExample],
    images: Images,
    heads: Heads,
    *,
    regions: Mapping[str, Any] | None = None,
    centre_size: tuple[float, float] = (0.5, 0.5),
    words: str = "mean",
    instruction: str | None = None,
    batch_size: int | None = None,
    iou_threshold: float = IOU_THRESHOLD,
    merged_box: bool = False,
    progress: bool = False,
) -> list[BoxScore]:
    """Measures the boxes of heads that were chosen before: pointing game and accuracy at an IoU of 0.5.

    Args:
        heads (`Heads`): (layer, head) pairs, counted from 0.
        centre_size (`tuple[float, float]`, *optional*, defaults to `(0.5, 0.5)`): width and height of the box in the
            centre of every image, the baseline.

    The other arguments and the errors are those of `rank_heads`.

    Returns:
        `list[BoxScore]`: the heads together, each single one if there are several, the centre box, and chance.
    """
    rules = Rules(words, iou_threshold, merged_box)
    run = HeadScorer(model, processor, images, regions, rules, instruction, batch_size, None, progress)
    sets: dict[str, Heads] = {name_heads(heads): list(heads)}
    if len(heads) > 1:
        sets.update({name_heads([head]): [head] for head in heads})
    return box_scores(run.score(examples, "boxes", sets, centre_size)[1])


class HeadScorer:
    """Passes of one model over splits.

    Image tokens: phrases that none of them shows are left out. Regions of a detector: all are counted.
    """

    def __init__(
        self,
        model: Any,
        processor: Any,
        images: Images,
        regions: Mapping[str, Any] | None,
        rules: Rules,
        instruction: str | None = None,
        batch_size: int | None = None,
        relate: Relate | None = None,
        progress: bool = False,
    ):
        self.tokens, self.progress, self.relate = regions is None, progress, relate
        pictures = images if regions is None or reads_pixels(model) else None
        self.inputs = make_inputs(model, processor, regions, rules, pictures, instruction)
        self.measurement = Measurement(model, self.inputs, batch_size, only_reachable=self.tokens)

    def score(
        self,
        examples: Iterable[AuditExample],
        title: str,
        sets: Mapping[str, Heads] | None = None,
        centre_size: tuple[float, float] = (0.5, 0.5),
    ) -> tuple[HeadTable, list[MappedPhrase]]:
        """Scores all heads, and judges the boxes of sets of heads."""
        examples, maps = list(examples), Maps(self.tokens, sets or {}, centre_size)
        directions = (TEXT_TO_REGION,) if self.tokens else self.inputs.directions
        counted = self.measurement.run(examples, directions, self.progress and title, maps)
        words = None
        if self.relate is not None:
            words = self.measurement.run(self.relate(examples), (TEXT_TO_REGION,), self.progress and "relations")
        unseen = counted.phrases["out_of_sight"]
        if not counted.phrases["judged"] + unseen:
            raise ValueError(f"the examples for the {title} have no phrase with a box")
        if not counted.phrases["judged"]:
            raise ValueError(
                f"none of the {unseen} phrases for the {title} is on an image token; check that the boxes are "
                "those of these images"
            )
        table = self.measurement.table(counted, words)
        return table.sorted_images() if self.tokens else table, maps.phrases


# In a model card


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
        f"{markdown_text(_data(about) or 'unnamed data')}{flattered}. `{FILE}` names them for "
        '`pipeline("visual-grounding", model=...)`. *Pointing*: the image token with the most attention of the phrase '
        "is on its object. *Lift*: attention on the object's tokens, over their part of the image. *Share*: attention "
        "on the image."
    )
    boxes = boxes_table([BoxScore(**score) for score in content["boxes"]])
    return "\n\n".join(["## Heads that ground", text, "\n".join(rows), boxes]) + "\n"


def _data(about: Mapping[str, Any]) -> str:
    """The data and their split."""
    split = f"split {about['split']}" if about.get("split") else None
    return ", ".join(str(part) for part in (about.get("data"), split) if part)


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
    data = _data(content["about"])
    where = f" on {markdown_text(data)}" if data else ""
    return f"Before training, `{FILE}` of the starting model names these heads as the best ones{where}: {heads}."
