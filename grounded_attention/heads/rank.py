# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""Ranks the attention heads of a vision-language model by how well they ground phrases.

Shape letters: n phrases, L layers, H heads, B batch, P phrases of an example, R image tokens.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from tqdm.auto import tqdm

from grounded_attention.heads.ablation import Ablation, ablate_heads
from grounded_attention.heads.boxes import BoxScore, BoxTally, Heads
from grounded_attention.heads.examples import AuditExample
from grounded_attention.heads.maps import TokenGrid
from grounded_attention.heads.prompts import Images, PromptSettings, grounded_prompts, make_batch
from grounded_attention.heads.ranking import HeadRanking, name_heads
from grounded_attention.heads.reading import Reader, read_phrases
from grounded_attention.heads.scores import MEASURES, HeadScores, choose_heads, phrase_scores
from grounded_attention.processing.patch_grounding import PatchGroundingProcessor
from grounded_attention.supervision.supervise import head_layers

# Ablation runs the model some 25 times for each example.
ABLATED = 64


def rank_heads(
    model: Any,
    processor: Any,
    examples: Iterable[AuditExample],
    images: Images,
    *,
    report: Iterable[AuditExample] | None = None,
    count: int = 3,
    rank: str = "pointing",
    words: str = "mean",
    instruction: str | None = None,
    ablate: int = ABLATED,
    batch_size: int = 4,
    seed: int = 0,
    progress: bool = False,
    about: Mapping[str, Any] | None = None,
) -> HeadRanking:
    """Scores every head of every layer, chooses the best ones on some examples and reports them on others.

    The attention of the phrases' rows is read on the model's own back end; no attention maps are made.

    Args:
        model (`PreTrainedModel`): a vision-language model, on any registered back end. It is set to evaluation mode.
        processor (`ProcessorMixin` or `PatchGroundingProcessor`): its processor.
        examples (`Iterable[AuditExample]`): texts with phrases and boxes for the choice, see `grounded_examples`.
        images (`Images`): pictures by image id: a mapping, or a function from the id.
        report (`Iterable[AuditExample]`, *optional*): examples of another split, for the report. Without them heads
            are reported on the examples that they were chosen on, which flatters them.
        count (`int`, *optional*, defaults to 3): k, number of heads to choose.
        rank (`str`, *optional*, defaults to `"pointing"`): how heads are ranked, see `choose_heads`.
        words (`str`, *optional*, defaults to `"mean"`): which tokens ask, see `PromptSettings`.
        instruction (`str`, *optional*): words of the user, if the texts are answers, see `PromptSettings`.
        ablate (`int`, *optional*, defaults to 64): number of reported examples for the ablation, 0 for none. It needs
            the model with its language head.
        batch_size (`int`, *optional*, defaults to 4): prompts in a batch.
        seed (`int`, *optional*, defaults to 0): seed of the random heads of the ablation.
        progress (`bool`, *optional*, defaults to `False`): whether to show progress bars.
        about (`Mapping[str, Any]`, *optional*): what `heads.json` says about model and data.

    Returns:
        `HeadRanking`: scores of all heads, the chosen heads, their boxes and the ablation.

    Raises:
        ValueError: if the model's attention cannot be read, its image tokens are not known, no phrase has a box, or an
            option is not valid.
    """
    processor = processor if isinstance(processor, PatchGroundingProcessor) else PatchGroundingProcessor(processor)
    settings = PromptSettings(words, instruction)
    run = _Run(model, processor, images, settings, batch_size, progress)
    examples = list(examples)
    chosen_on, _ = run.score(examples, "choice")
    heads = choose_heads(chosen_on, count, rank)
    sets = {name_heads(heads): heads}
    if count > 1:
        sets["best head"] = heads[:1]
    sets["all heads"] = [(int(layer), int(head)) for layer, head in np.argwhere(chosen_on.seeing)]
    reported = examples if report is None else list(report)
    reported_on, tally = run.score(reported, "report", sets, chosen_on.mean_size)
    ablation: Ablation | None = None
    if ablate:
        ablation = ablate_heads(
            model,
            processor,
            reported[:ablate],
            images,
            heads,
            instruction=instruction,
            batch_size=batch_size,
            seed=seed,
            progress="ablation" if progress else None,
        )
    options = {"rank": rank, "words": words, "instruction": instruction, "count": count, "ablate": ablate}
    return HeadRanking(
        heads=tuple(heads),
        chosen_on=chosen_on,
        reported_on=reported_on,
        boxes=box_scores(reported_on, tally),
        ablation=ablation,
        about={**(about or {}), "same_split": report is None, "options": options},
    )


def evaluate_heads(
    model: Any,
    processor: Any,
    examples: Iterable[AuditExample],
    images: Images,
    heads: Heads,
    *,
    centre_size: tuple[float, float] = (0.5, 0.5),
    words: str = "mean",
    instruction: str | None = None,
    batch_size: int = 4,
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
    processor = processor if isinstance(processor, PatchGroundingProcessor) else PatchGroundingProcessor(processor)
    run = _Run(model, processor, images, PromptSettings(words, instruction), batch_size, progress)
    sets = {name_heads(heads): list(heads)}
    if len(heads) > 1:
        sets.update({name_heads([head]): [head] for head in heads})
    scores, tally = run.score(examples, "boxes", sets, centre_size)
    return box_scores(scores, tally)


def box_scores(scores: HeadScores, tally: BoxTally) -> list[BoxScore]:
    """The scores of each way to ground of a tally, with intervals over images."""
    found = []
    for name, columns in tally.columns(scores.image_ids).items():
        (point_low, box_low), (point_high, box_high) = scores.bootstrap(columns)
        point, box = columns.mean(0)
        ends = (float(point_low), float(point_high)), (float(box_low), float(box_high))
        found.append(BoxScore(name, float(point), ends[0], float(box), ends[1]))
    return found


class _Run:
    """A model that reads prompts in batches."""

    def __init__(
        self, model: Any, processor: Any, images: Images, settings: PromptSettings, batch_size: int, progress: bool
    ):
        self.model, self.processor, self.images, self.settings = model.eval(), processor, images, settings
        self.batch_size, self.progress = batch_size, progress

    def score(
        self,
        examples: Iterable[AuditExample],
        title: str,
        sets: Mapping[str, Heads] | None = None,
        centre_size: tuple[float, float] = (0.5, 0.5),
    ) -> tuple[HeadScores, BoxTally]:
        """Scores all heads, and tallies the boxes of sets of heads."""
        prompts = grounded_prompts(examples, self.settings)
        layers = range(self.model.config.get_text_config().num_hidden_layers)
        headless = tuple(sorted({*layers} - {*head_layers(self.model)}))
        if not prompts:
            raise ValueError(f"the examples for the {title} have no phrase with a box")
        table, tally = _Table(), BoxTally(centre_size)
        bar = tqdm(total=len(prompts), desc=title, unit=" texts", disable=not self.progress)
        with bar, read_phrases(self.model) as read:
            for start in range(0, len(prompts), self.batch_size):
                part = prompts[start : start + self.batch_size]
                self._score_batch(read, part, table, tally, sets or {})
                bar.update(len(part))
        return table.scores(title, headless), tally

    def _score_batch(
        self,
        read: Reader,
        prompts: Sequence[AuditExample],
        table: "_Table",
        tally: BoxTally,
        sets: Mapping[str, Heads],
    ) -> None:
        batch = make_batch(self.processor, prompts, self.images, self.settings)
        layers = read(batch, self.settings.words)
        device = layers[0].device
        for index, prompt in enumerate(prompts):
            boxes = batch["region_boxes"][index].to(device)
            candidates = batch["region_candidate_mask"][index].to(device)
            grid = TokenGrid.of_tokens(boxes, candidates)
            for number, phrase in enumerate(prompt.phrases):
                gold = batch["phrase_regions"][index, number].bool().to(device)
                if not (gold & candidates).any():
                    table.skipped += 1
                    continue
                attention = torch.stack([layer[index, :, number] for layer in layers])  # (L, H, R)
                table.add(prompt.image_id, attention, gold, candidates, grid, phrase.boxes)
                if sets:
                    tally.add(attention, sets, gold, phrase.boxes, (boxes, candidates, grid))


class _Table:
    """Collects the scores of all heads, phrase by phrase."""

    def __init__(self) -> None:
        self.image_ids: list[str] = []
        self.rows: dict[str, list[np.ndarray]] = {name: [] for name in MEASURES}
        self.chance: list[float] = []
        self.sizes: list[np.ndarray] = []
        self.skipped = 0

    def add(self, image_id: str, attention: Any, gold: Any, candidates: Any, grid: TokenGrid, boxes: Any) -> None:
        layers, heads = attention.shape[:2]
        for name, values in phrase_scores(attention.flatten(0, 1), gold, candidates, grid).items():
            self.rows[name].append(values.cpu().numpy().reshape(layers, heads))
        self.image_ids.append(image_id)
        self.chance.append(float(gold[candidates].float().mean()))
        self.sizes.append((boxes[:, 2:] - boxes[:, :2]).mean(0))

    def scores(self, title: str, headless: tuple[int, ...]) -> HeadScores:
        if not self.image_ids:
            raise ValueError(
                f"none of the {self.skipped} phrases for the {title} is on an image token; check that the boxes are "
                "those of these images"
            )
        return HeadScores(
            tuple(self.image_ids),
            {name: np.stack(rows) for name, rows in self.rows.items()},
            np.array(self.chance, dtype=np.float32),
            np.stack(self.sizes).astype(np.float32),
            self.skipped,
            headless,
        )
