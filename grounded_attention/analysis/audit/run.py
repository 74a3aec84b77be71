# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""Measures for every head of a model, and every phrase of a data set, whether the head attends most to a gold region.

Li et al. (2020), "What does BERT with vision look at?", section 3.1: each head is a classifier; its answer for a word
is the region that it attends to most, among the regions only. The whole-image region and END are not candidates
(`region_candidate_mask`). docs/audit.md lists our decisions where the paper is open.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice
from typing import Any

import torch
from accelerate import PartialState
from accelerate.utils import gather_object
from tqdm.auto import tqdm

from grounded_attention.analysis.observers import Observer, get_observer
from grounded_attention.supervision import DIRECTIONS
from grounded_attention.utils.quiet import is_quiet

from .examples import AuditExample
from .items import DEFAULT_WORD, IOU_THRESHOLD, Items, Rules, ground, region_items, text_items
from .result import AuditResult
from .tally import ALL, Tally

TEXT_TO_REGION, REGION_TO_TEXT = DIRECTIONS
CONFIDENT, FIRST = "most confident region", "first region"
# Special tokens that are not words; [UNK] and [MASK] replace a word, so they count as words.
_NOT_WORDS = ("cls_token_id", "sep_token_id", "pad_token_id", "bos_token_id", "eos_token_id")


def audit(
    model: Any,
    processor: Any,
    examples: Iterable[AuditExample],
    regions: Mapping[str, Any],
    *,
    relations: Iterable[AuditExample] = (),
    word: str = DEFAULT_WORD,
    batch_size: int = 32,
    directions: Sequence[str] = DIRECTIONS,
    iou_threshold: float = IOU_THRESHOLD,
    merged_box: bool = False,
    images: Callable[[str], Any] | None = None,
    about: Mapping[str, Any] | None = None,
    progress: bool = True,
) -> AuditResult:
    """Audits a model.

    Args:
        model (`Any`): a model of this project, a model on transformers' attention interface, or transformers'
            VisualBERT or LXMERT; with or without a task head. It is set to evaluation mode. On the interface, its
            attention back end is replaced by the supervised one during the audit.
        processor (`Any`): its processor, of this project (for transformers' two models: `VisualBERTProcessor`).
        examples (`Iterable[AuditExample]`): captions with phrases, see `entity_examples`; phrases without gold boxes
            are skipped.
        regions (`Mapping[str, Any]`): image id -> regions with `boxes` (n, 4) normalised, `features` (n, D) and
            optionally `scores` (n,), such as a `RegionTable`. As in training, an image with too many regions for the
            processor keeps the first ones.
        relations (`Iterable[AuditExample]`, *optional*, defaults to `()`): captions whose "phrases" are words related
            to an entity by a dependency; their group is the relation.
        word (`str`, *optional*, defaults to `DEFAULT_WORD`): the sub-word of a phrase that gives its attention:
            "last", "first" or "mean".
        batch_size (`int`, *optional*, defaults to `32`): captions per batch.
        directions (`Sequence[str]`, *optional*, defaults to `DIRECTIONS`): one or both of "text_to_region" and
            "region_to_text".
        iou_threshold (`float`, *optional*, defaults to `IOU_THRESHOLD`): smallest overlap (IoU) of a right region with
            a gold box, in (0, 1].
        merged_box (`bool`, *optional*, defaults to `False`): whether to merge the gold boxes of a phrase into the
            smallest box around them; otherwise any counts.
        images (`Callable[[str], Any]`, *optional*): image id -> image, for a model that reads pixels.
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
    unknown = [name for name in directions if name not in DIRECTIONS]
    if unknown or not directions:
        raise ValueError(f"directions={list(directions)}: expected one or both of {', '.join(DIRECTIONS)}")
    if batch_size < 1:
        raise ValueError(f"batch_size={batch_size}: expected 1 or more")
    tokenizer = processor.tokenizer
    specials = {number for name in _NOT_WORDS if (number := getattr(tokenizer, name, None)) is not None}
    auditor = _Auditor(
        get_observer(model), processor, regions, Rules(word, iou_threshold, merged_box, specials), images, batch_size
    )
    model.eval()
    entities = auditor.run(examples, tuple(name for name in DIRECTIONS if name in directions), progress and "entities")
    words = auditor.run(relations, (TEXT_TO_REGION,), progress and "relations")
    if not entities.phrases["judged"] and not words.phrases["judged"]:
        raise ValueError(
            f"no phrase can be judged ({entities.summary()}); expected captions with phrases that have gold boxes"
        )
    return AuditResult(
        layers=auditor.observer.layers,
        heads=auditor.observer.heads,
        entities={name: counts for name in entities.tallies if (counts := entities.groups(name))},
        relations={name: counts for name, counts in words.groups(TEXT_TO_REGION).items() if name != ALL},
        about={
            **(about or {}),
            "word": word,
            "iou_threshold": iou_threshold,
            "merged_box": merged_box,
            "baseline": CONFIDENT if entities.scored and not entities.unscored else FIRST,
            "phrases": dict(entities.phrases),
            **({"relation_words": dict(words.phrases)} if words.phrases["judged"] else {}),
        },
    )


@dataclass
class _Counted:
    """The counts of one pass over examples."""

    tallies: dict[str, Tally]
    phrases: Counter = field(default_factory=lambda: Counter(judged=0, without_boxes=0, truncated=0, no_token=0))
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
            whole.scored, whole.unscored = whole.scored + part.scored, whole.unscored + part.unscored
        return whole


@dataclass(frozen=True)
class _Auditor:
    observer: Observer
    processor: Any
    regions: Mapping[str, Any]
    rules: Rules
    images: Callable[[str], Any] | None
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
        records = [self.regions[example.image_id] for example in examples]
        batch = self._process(examples, records)
        _note_dropped(batch, counted)
        grounded = ground(batch, examples, self.rules)
        counted.phrases["judged"] += len(grounded)
        scores = [getattr(record, "scores", None) for record in records]
        counted.scored += sum(given is not None for given in scores)
        counted.unscored += sum(given is None for given in scores)
        items: dict[str, Items] = {}
        for name in counted.tallies:
            text = name == TEXT_TO_REGION
            items[name] = (
                text_items(grounded, batch, self.rules, scores) if text else region_items(grounded, batch, self.rules)
            )
        wanted = {name: found for name, found in items.items() if len(found)}
        if not wanted:
            return
        device = self.observer.model.device
        batch = {name: value.to(device) if hasattr(value, "to") else value for name, value in batch.items()}
        queries = {name: (found.rows.to(device), found.columns.to(device)) for name, found in wanted.items()}
        pairs = self.observer.observe(batch, queries)
        for name, found in wanted.items():
            counted.tallies[name].add(found, pairs[name], [example.image_id for example in examples], numbers)

    def _process(self, examples: Sequence[AuditExample], records: Sequence[Any]) -> Any:
        """The model input of the captions, regions and phrases."""
        if self.images is None:
            seen = {"region_features": [record.features for record in records]}
        else:
            seen = {"images": [self.images(example.image_id) for example in examples]}
        return self.processor(
            [example.caption for example in examples],
            region_boxes=[record.boxes for record in records],
            phrases=[[{"text": 0, "start": p.start, "end": p.end} for p in example.phrases] for example in examples],
            return_tensors="pt",
            **seen,
        )


def _processes() -> PartialState:
    """The processes of this launch; without a GPU, accelerate needs `cpu=True` to find several."""
    return PartialState(cpu=not torch.cuda.is_available())


def _batches(examples: Iterator[Any], size: int) -> Iterator[list[Any]]:
    while batch := list(islice(examples, size)):
        yield batch


def _note_dropped(batch: Any, counted: _Counted) -> None:
    for dropped in getattr(batch, "dropped_phrases", ()):
        counted.phrases.update("truncated" if each.reason == "truncated" else "no_token" for each in dropped)
