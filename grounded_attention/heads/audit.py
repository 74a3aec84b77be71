# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""Measures for every head of a model, and every phrase of a data set, whether the head attends most to a gold region.

Li et al. (2020), "What does BERT with vision look at?", section 3.1: each head is a classifier; its answer for a word
is the region that it attends to most, among the regions only. The whole-image region and END are not candidates
(`region_candidate_mask`). docs/audit.md lists our decisions where the paper is open.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice
from typing import Any

import torch
from accelerate import PartialState
from accelerate.utils import gather_object
from tqdm.auto import tqdm
from transformers.utils import logging

from grounded_attention.heads.audit_result import AuditResult
from grounded_attention.heads.examples import AuditExample
from grounded_attention.heads.inputs import FIRST, AuditInputs, PatchInputs, RegionInputs
from grounded_attention.heads.items import DEFAULT_WORD, IOU_THRESHOLD, Items, Rules, ground, region_items, text_items
from grounded_attention.heads.observers import Observer, get_observer
from grounded_attention.heads.prompts import Images
from grounded_attention.heads.tally import ALL, Tally
from grounded_attention.processing.phrase_grounding import NO_TOKEN, TRUNCATED
from grounded_attention.supervision import DIRECTIONS
from grounded_attention.utils.quiet import is_quiet

logger = logging.get_logger(__name__)

TEXT_TO_REGION, REGION_TO_TEXT = DIRECTIONS
# Reasons why a processor drops a phrase -> their names in `about`. A phrase that no image token shows is judged.
_DROPPED = {TRUNCATED: "truncated", NO_TOKEN: "no_token"}


def audit(
    model: Any,
    processor: Any,
    examples: Iterable[AuditExample],
    regions: Mapping[str, Any] | None = None,
    *,
    relations: Iterable[AuditExample] = (),
    word: str = DEFAULT_WORD,
    batch_size: int | None = None,
    directions: Sequence[str] | None = None,
    iou_threshold: float = IOU_THRESHOLD,
    merged_box: bool = False,
    images: Images | None = None,
    instruction: str | None = None,
    about: Mapping[str, Any] | None = None,
    progress: bool = True,
) -> AuditResult:
    """Audits a model.

    Args:
        model (`Any`): a model of this project, a model on transformers' attention interface such as a
            vision-language model, or transformers' VisualBERT or LXMERT; with or without a task head or an adapter.
            It is set to evaluation mode. On the interface, its attention back end is replaced by the supervised one
            during the audit.
        processor (`Any`): its processor, of this project (for transformers' two models: `VisualBERTProcessor`; for a
            vision-language model also its own).
        examples (`Iterable[AuditExample]`): captions with phrases, see `entity_examples`; phrases without gold boxes
            are skipped.
        regions (`Mapping[str, Any]`, *optional*): image id -> regions with `boxes` (n, 4) normalised, `features` (n,
            D) and optionally `scores` (n,), such as a `RegionTable`. As in training, an image with too many regions
            for the processor keeps the first ones. Without it the model is a vision-language model, whose regions are
            its image tokens.
        relations (`Iterable[AuditExample]`, *optional*, defaults to `()`): captions whose "phrases" are words related
            to an entity by a dependency; their group is the relation.
        word (`str`, *optional*, defaults to `DEFAULT_WORD`): the sub-word of a phrase that gives its attention:
            "last", "first" or "mean".
        batch_size (`int`, *optional*): captions per batch; by default 32, and 4 for a vision-language model.
        directions (`Sequence[str]`, *optional*): one or both of "text_to_region" and "region_to_text"; by default
            all in which the model can attend. The image tokens of a causal model cannot see words after them.
        iou_threshold (`float`, *optional*, defaults to `IOU_THRESHOLD`): smallest overlap (IoU) of a right region with
            a gold box, in (0, 1]. Not for image tokens: `PatchGroundingProcessor` says which are right.
        merged_box (`bool`, *optional*, defaults to `False`): whether to merge the gold boxes of a phrase into the
            smallest box around them; otherwise any counts.
        images (`Images`, *optional*): pictures by image id, a mapping or a function, for a model that reads pixels.
        instruction (`str`, *optional*): for a vision-language model, words of the user; the captions are then answers
            of the assistant. Without it the captions are what the user says.
        about (`Mapping[str, Any]`, *optional*): additional facts for the result, such as the names of model, data and
            split.
        progress (`bool`, *optional*, defaults to `True`): whether to show a progress bar.

    Returns:
        `AuditResult`: the counts; equal in every process of a distributed launch, and equal to those of a single
        process.

    Raises:
        ValueError: if an option is unknown, the attention of the model cannot be read, or no phrase can be judged.
        Errors of the region table, such as a missing image, are passed on.
    """
    inputs = _make_inputs(model, processor, regions, Rules(word, iou_threshold, merged_box), images, instruction)
    if batch_size is not None and batch_size < 1:
        raise ValueError(f"batch_size={batch_size}: expected 1 or more")
    directions = _check_directions(directions, inputs, model)
    auditor = _Auditor(get_observer(model), inputs, word, batch_size or inputs.batch_size)
    model.eval()
    entities = auditor.run(examples, directions, progress and "entities")
    words = auditor.run(relations, (TEXT_TO_REGION,), progress and "relations")
    if not entities.phrases["judged"] and not words.phrases["judged"]:
        raise ValueError(
            f"no phrase can be judged ({entities.summary()}); expected captions with phrases that have gold boxes"
        )
    if not entities.fitted + words.fitted:
        logger.warning(
            f"no region fits a gold box ({entities.summary()}), so every head is wrong: are these the regions of "
            "these images, with boxes of the same convention?"
        )
    return AuditResult(
        layers=auditor.observer.layers,
        heads=auditor.observer.heads,
        entities={name: counts for name in entities.tallies if (counts := entities.groups(name))},
        relations={name: counts for name, counts in words.groups(TEXT_TO_REGION).items() if name != ALL},
        about={
            **(about or {}),
            **inputs.about,
            "baseline": inputs.rule if entities.scored and not entities.unscored else FIRST,
            "phrases": dict(entities.phrases),
            **({"relation_words": dict(words.phrases)} if words.phrases["judged"] else {}),
        },
    )


def _make_inputs(
    model: Any,
    processor: Any,
    regions: Mapping[str, Any] | None,
    rules: Rules,
    images: Images | None,
    instruction: str | None,
) -> AuditInputs:
    if regions is None:
        return PatchInputs(model, processor, images, rules, instruction)
    if instruction is not None:
        raise ValueError(f"instruction={instruction!r}: only for a vision-language model, which has no region table")
    return RegionInputs(processor, regions, rules, images)


def _check_directions(directions: Sequence[str] | None, inputs: AuditInputs, model: Any) -> tuple[str, ...]:
    """The directions to audit, in the order of `DIRECTIONS`."""
    if directions is None:
        return inputs.directions
    if not directions or any(name not in DIRECTIONS for name in directions):
        raise ValueError(f"directions={list(directions)}: expected one or both of {', '.join(DIRECTIONS)}")
    if any(name not in inputs.directions for name in directions):
        raise ValueError(
            f"directions={list(directions)}: {type(model).__name__} is causal, so its image tokens cannot see the "
            f"words after them; expected {', '.join(inputs.directions)}"
        )
    return tuple(name for name in DIRECTIONS if name in directions)


@dataclass
class _Counted:
    """The counts of one pass over examples."""

    tallies: dict[str, Tally]
    phrases: Counter = field(default_factory=lambda: Counter(judged=0, without_boxes=0, truncated=0, no_token=0))
    fitted: int = 0  # judged phrases with a right answer among their candidates
    scored: int = 0
    unscored: int = 0

    def groups(self, direction: str) -> dict[str, Any]:
        return self.tallies[direction].counts() if direction in self.tallies else {}

    def summary(self) -> str:
        return ", ".join(f"{count} {name.replace('_', ' ')}" for name, count in self.phrases.items())

    def gathered(self) -> "_Counted":
        """The counts of all processes together."""
        whole = _Counted({name: Tally() for name in self.tallies})
        for part in gather_object([self]):
            for name, tally in part.tallies.items():
                whole.tallies[name].merge(tally)
            whole.phrases.update(part.phrases)
            whole.fitted += part.fitted
            whole.scored, whole.unscored = whole.scored + part.scored, whole.unscored + part.unscored
        return whole


@dataclass(frozen=True)
class _Auditor:
    observer: Observer
    inputs: AuditInputs
    word: str
    batch_size: int

    def run(self, examples: Iterable[AuditExample], directions: Sequence[str], progress: str | bool) -> _Counted:
        """Runs one pass. The processes take batches in turn, so the batches equal those of a single process."""
        state, counted = _processes(), _Counted({name: Tally() for name in directions})
        judged = self._with_boxes(examples, counted if state.is_main_process else _Counted({}))
        shown = bool(progress) and state.is_main_process
        bar = tqdm(desc=str(progress), unit=" captions", disable=not shown or is_quiet(), leave=False)
        with bar:
            for number, batch in enumerate(_batches(judged, self.batch_size)):
                if number % state.num_processes == state.process_index:
                    self._count(batch, counted)
                bar.update(len(batch))
        return counted.gathered()

    def _with_boxes(self, examples: Iterable[AuditExample], counted: _Counted) -> Iterator[tuple[int, AuditExample]]:
        """Yields numbered examples, with only the phrases that have gold boxes."""
        for number, example in enumerate(examples):
            kept = tuple(phrase for phrase in example.phrases if len(phrase.boxes))
            counted.phrases["without_boxes"] += len(example.phrases) - len(kept)
            if kept:
                yield number, replace(example, phrases=kept)

    def _count(self, numbered: Sequence[tuple[int, AuditExample]], counted: _Counted) -> None:
        numbers, examples = [number for number, _ in numbered], [example for _, example in numbered]
        batch = self.inputs.make(examples)
        _note_dropped(batch.dropped, counted)
        grounded = ground(batch, examples)
        counted.phrases["judged"] += len(grounded)
        counted.fitted += sum(bool(one.regions.any()) for one in grounded)
        counted.scored += sum(given is not None for given in batch.scores)
        counted.unscored += sum(given is None for given in batch.scores)
        items: dict[str, Items] = {}
        for name in counted.tallies:
            text = name == TEXT_TO_REGION
            items[name] = text_items(grounded, batch, self.word) if text else region_items(grounded, batch)
        wanted = {name: found for name, found in items.items() if len(found)}
        if not wanted:
            return
        device = self.observer.model.device
        given = {name: value.to(device) if hasattr(value, "to") else value for name, value in batch.inputs.items()}
        queries = {name: (found.rows.to(device), found.columns.to(device)) for name, found in wanted.items()}
        pairs = self.observer.observe(given, queries)
        for name, found in wanted.items():
            counted.tallies[name].add(found, pairs[name], [example.image_id for example in examples], numbers)


def _processes() -> PartialState:
    """The processes of this launch; without a GPU, accelerate needs `cpu=True` to find several."""
    return PartialState(cpu=not torch.cuda.is_available())


def _batches(examples: Iterator[Any], size: int) -> Iterator[list[Any]]:
    while batch := list(islice(examples, size)):
        yield batch


def _note_dropped(dropped: Sequence[Any], counted: _Counted) -> None:
    for phrases in dropped:
        counted.phrases.update(_DROPPED[each.reason] for each in phrases if each.reason in _DROPPED)
