# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""Examples as batches, and the items that heads answer, with their gold answers; independent of the attention.

From words to regions, an item is a phrase with gold boxes; a gold answer is any candidate region with enough overlap,
or any image token of which a gold box covers enough. From regions to words, an item is a candidate region that answers
a phrase; a gold answer is any word of such a phrase.

Shape letters: B batch, T text, R regions or image tokens, P phrases, Q query rows, K key columns, M items, W tokens of
an item.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from grounded_attention.processing.grounded_batch import fit_text_length, word_inputs
from grounded_attention.processing.patch_grounding import PatchGroundingProcessor
from grounded_attention.supervision import DIRECTIONS
from grounded_attention.supervision.supervise import hides_later_words, returns_maps, unwrap_model
from grounded_attention.utils.boxes import IOU_THRESHOLD, box_iou, check_shape, enclosing_box
from grounded_attention.utils.named_types import Batch, Columns, Fields
from grounded_attention.utils.plain_text import check_one_of

from . import WORDS
from .examples import TOKENS, AuditExample, Images, PromptSettings, find_picture, make_batch
from .reading import ask_at_the_end

CONFIDENT = "most confident region"
FIRST = "first region"
CENTRE = "image token at the centre"
# Special tokens that are not words; [UNK] and [MASK] replace a word, so they count as words.
_NOT_WORDS = ("cls_token_id", "sep_token_id", "pad_token_id", "bos_token_id", "eos_token_id")
DEFAULT_WORD = "last"


@dataclass(frozen=True, eq=False)
class Rules:
    """The rules for a right answer."""

    word: str = DEFAULT_WORD
    iou_threshold: float = IOU_THRESHOLD
    merged: bool = False

    def __post_init__(self):
        check_one_of(self.word, WORDS, "word=")
        if not 0 < self.iou_threshold <= 1:
            raise ValueError(f"iou_threshold={self.iou_threshold}: expected a number above 0 and at most 1")

    def hits(self, region_boxes: np.ndarray, gold: np.ndarray) -> np.ndarray:
        """Mask of the regions (R, 4) that answer a phrase with the gold boxes (G, 4): (R,) bool."""
        targets = enclosing_box(gold)[None] if self.merged else gold
        return np.any(box_iou(region_boxes, targets) >= self.iou_threshold, axis=1)


@dataclass(frozen=True, eq=False)
class HeadBatch:
    """A batch, and what an audit has to know about it."""

    inputs: Batch
    phrase_mask: np.ndarray
    gold: np.ndarray
    candidates: Tensor
    words: Tensor
    scores: Sequence[np.ndarray | None]
    dropped: Sequence[Any]


@dataclass(frozen=True, eq=False)
class Items:
    """The M items of one direction in a batch."""

    rows: Tensor
    columns: Tensor
    example: np.ndarray
    places: np.ndarray
    gold: np.ndarray
    baseline: np.ndarray
    groups: list[tuple[str, ...]]
    boxes: list[np.ndarray]

    def __len__(self) -> int:
        return len(self.example)

    @property
    def chance(self) -> np.ndarray:
        """The share of gold columns among the candidates of each item, (M,) float64 in [0, 1]."""
        candidates = (self.columns >= 0).sum(1).numpy()[self.example]
        return self.gold.sum(1) / np.maximum(candidates, 1)

    @property
    def reachable(self) -> np.ndarray:
        """Whether any candidate is a right answer, (M,) bool."""
        return np.any(self.gold, axis=1)


@dataclass(frozen=True, eq=False)
class Query:
    """What becomes an item: its batch row, the indices of its tokens or its region, the mask (K,) of what answers it,
    its groups and gold boxes.
    """

    example: int
    rows: np.ndarray
    gold: np.ndarray
    groups: tuple[str, ...]
    boxes: np.ndarray


def ground(batch: HeadBatch, examples: Sequence[AuditExample]) -> list[Query]:
    """Finds the phrases of the batch of `examples`, and their answers; a phrase cut with its text is skipped."""
    grounded = []
    for row, example in enumerate(examples):
        for number, phrase in enumerate(example.phrases):
            tokens = np.flatnonzero(batch.phrase_mask[row, number])
            if len(tokens):
                grounded.append(Query(row, tokens, batch.gold[row, number], tuple(phrase.types), phrase.boxes))
    return grounded


def text_items(grounded: Sequence[Query], batch: HeadBatch, word: str) -> Items:
    """Makes the items from words (one of `WORDS`) to regions; the baseline chooses the most confident candidate."""
    columns = _columns(batch.candidates)
    chosen = [_most_confident(row, scores) for row, scores in zip(columns.numpy(), batch.scores, strict=True)]
    if word == "prompt":
        asking = np.array([batch.phrase_mask.shape[2]])  # the column that `ask_at_the_end` adds
        return _items(columns, [replace(one, rows=asking) for one in grounded], chosen)
    return _items(columns, [replace(one, rows=one.rows[TOKENS[word]]) for one in grounded], chosen)


def _most_confident(columns: np.ndarray, scores: np.ndarray | None) -> int:
    """The column of the most confident candidate of an example; -1 if it has none."""
    candidates = np.flatnonzero(columns >= 0)
    if not len(candidates):
        return -1
    return int(candidates[0 if scores is None else np.argmax(scores[: len(candidates)])])


def region_items(grounded: Sequence[Query], batch: HeadBatch, word: str = DEFAULT_WORD) -> Items:
    """Makes the items from regions to words; the baseline rule chooses the first word of the caption."""
    columns = _columns(batch.words)
    queried: dict[tuple[int, int], tuple[np.ndarray, list[str]]] = {}
    for one in grounded:
        for region in np.flatnonzero(one.gold).tolist():
            tokens, groups = queried.setdefault((one.example, region), (np.zeros(columns.shape[1], dtype=bool), []))
            tokens[one.rows] = True
            groups.extend(one.groups)
    queries = []
    for (example, region), (tokens, groups) in sorted(queried.items(), key=lambda item: item[0]):
        queries.append(Query(example, np.array([region]), tokens, tuple(groups), np.zeros((0, 4))))
    return _items(columns, queries, [_most_confident(row, None) for row in columns.numpy()])


def _columns(candidates: Tensor) -> Tensor:
    """Mask (B, K) -> the index of each candidate, -1 elsewhere: (B, K) int64."""
    return torch.arange(candidates.shape[1]).expand(candidates.shape).masked_fill(~candidates, -1)


def _items(columns: Tensor, queries: Sequence[Query], choices: Sequence[int]) -> Items:
    """Makes items; a row of several items is queried once. `choices`: what a rule chooses in each example."""
    rows: list[dict[int, int]] = [{} for _ in columns]
    places = np.full((len(queries), max((len(one.rows) for one in queries), default=1)), -1, dtype=np.int64)
    for number, one in enumerate(queries):
        known = rows[one.example]
        places[number, : len(one.rows)] = [known.setdefault(row, len(known)) for row in one.rows.tolist()]
    padded = torch.full((len(rows), max(1, *map(len, rows))), -1, dtype=torch.int64)
    for row, known in zip(padded, rows, strict=True):
        row[: len(known)] = torch.tensor(list(known), dtype=torch.int64)
    right = []
    for one in queries:
        choice = choices[one.example]
        right.append(choice >= 0 and bool(one.gold[choice]))
    gold = np.array([one.gold for one in queries], dtype=bool).reshape(len(queries), columns.shape[1])
    return Items(
        rows=padded,
        columns=columns,
        example=np.array([one.example for one in queries], dtype=np.int64),
        places=places,
        gold=gold,
        baseline=np.array(right, dtype=bool),
        groups=[tuple(dict.fromkeys(one.groups)) for one in queries],
        boxes=[one.boxes for one in queries],
    )


# Batches


class HeadInputs(ABC):
    """Makes the batches of an audit."""

    processor: Any
    rules: Rules
    directions: tuple[str, ...]
    batch_size: int
    rule: str
    about: Fields

    @abstractmethod
    def make(self, examples: Sequence[AuditExample]) -> HeadBatch:
        """Makes the batch of examples whose phrases all have gold boxes."""

    def prompts(self, example: AuditExample) -> Iterable[AuditExample]:
        """The texts that the model reads for an example: itself, or one for each phrase."""
        return (example,)


class RegionInputs(HeadInputs):
    """The inputs of models that read regions."""

    directions = DIRECTIONS
    batch_size = 32
    rule = CONFIDENT

    def __init__(self, model: Any, processor: Any, regions: Columns, rules: Rules, images: Images | None = None):
        if rules.word == "prompt":
            raise ValueError("word='prompt': only a vision-language model reads a prompt whose end asks")
        self.processor = processor
        self.regions = regions
        self.rules = rules
        self.images = images
        fit_text_length(processor, model.config)
        self.about = {"word": rules.word, "iou_threshold": rules.iou_threshold, "merged_box": rules.merged}

    def make(self, examples: Sequence[AuditExample]) -> HeadBatch:
        records = [self.regions[example.image_id] for example in examples]
        for example, record in zip(examples, records, strict=True):
            if hasattr(record, "width"):
                check_shape(example.size, (record.width, record.height), example.image_id, "region table")
        batch = self._process(examples, records)
        boxes = batch["region_boxes"].cpu().numpy()
        candidates = batch["region_candidate_mask"].bool().cpu()
        mask = batch["phrase_mask"].bool().cpu().numpy()
        gold = np.zeros((*mask.shape[:2], boxes.shape[1]), dtype=bool)
        for row, example in enumerate(examples):
            for number, phrase in enumerate(example.phrases):
                gold[row, number] = self.rules.hits(boxes[row], phrase.boxes) & candidates[row].numpy()
        words = batch["attention_mask"].bool().cpu() & _are_words(batch["input_ids"].cpu(), self.processor.tokenizer)
        scores = [getattr(record, "scores", None) for record in records]
        return HeadBatch(batch, mask, gold, candidates, words, scores, getattr(batch, "dropped_phrases", ()))

    def _process(self, examples: Sequence[AuditExample], records: Sequence[Any]) -> Any:
        if self.images is None:
            seen = {"region_features": [record.features for record in records]}
        else:
            seen = {"images": [find_picture(self.images, example.image_id) for example in examples]}
        return self.processor(
            [example.caption for example in examples],
            region_boxes=[record.boxes for record in records],
            phrases=[[{"start": p.start, "end": p.end} for p in example.phrases] for example in examples],
            return_tensors="pt",
            **seen,
        )


class PatchInputs(HeadInputs):
    """The inputs of vision-language models, whose image tokens are the regions. An image token answers a phrase as in
    training: a gold box covers enough of it, or no token more of a small box.
    """

    batch_size = 4
    rule = CENTRE

    def __init__(
        self, model: Any, processor: Any, images: Images | None, rules: Rules, instruction: str | None = None
    ):
        if images is None:
            raise ValueError(
                "without regions, the regions are the image tokens of a vision-language model: give images"
            )
        if rules.iou_threshold != IOU_THRESHOLD:
            raise ValueError(
                f"iou_threshold={rules.iou_threshold}: for regions only; an image token is right if a gold box covers "
                "enough of it, see coverage_threshold of PatchGroundingProcessor"
            )
        wrapped = isinstance(processor, PatchGroundingProcessor)
        self.processor = processor if wrapped else PatchGroundingProcessor(processor)
        self.processor.check_model(unwrap_model(model).config)
        self.images = images
        self.rules = rules
        if returns_maps(model):
            self.batch_size = 1
        self.settings = PromptSettings(rules.word, instruction)
        if self.processor.family.decoder is not None and (instruction is None or rules.word == "prompt"):
            raise ValueError(
                "the decoder of this model reads the image for words of its answer alone: give an instruction, to "
                "which the texts are answers, and no words='prompt'"
            )
        self.directions = DIRECTIONS[:1] if hides_later_words(model) else DIRECTIONS
        self.about = {
            "word": rules.word,
            "coverage_threshold": self.processor.coverage_threshold,
            "merged_box": rules.merged,
            "instruction": instruction,
        }

    def prompts(self, example: AuditExample) -> Iterable[AuditExample]:
        return self.settings.split(example)

    def make(self, examples: Sequence[AuditExample]) -> HeadBatch:
        if self.rules.merged:
            examples = [_with_merged_boxes(example) for example in examples]
        batch = make_batch(self.processor, examples, self.images, self.settings)
        candidates = batch["region_candidate_mask"].bool()
        places = batch["text_positions"]
        ids = batch[word_inputs(batch)[0]].gather(1, places.clamp(min=0))
        # A cache would keep the states of all tokens for a next one, which does not come.
        inputs = {**batch, "use_cache": False}
        if self.rules.word == "prompt":
            inputs["text_positions"] = ask_at_the_end(batch)
        gold = batch["phrase_regions"].bool() & candidates[:, None]
        is_word = (places >= 0) & _are_words(ids, self.processor.tokenizer)
        nearness = []
        for boxes, is_candidate in zip(batch["region_boxes"], candidates, strict=True):
            nearness.append(_nearness(boxes, is_candidate))
        return HeadBatch(
            inputs,
            batch["phrase_mask"].numpy(),
            gold.numpy(),
            candidates,
            is_word,
            nearness,
            batch.dropped_phrases,
        )


def _are_words(ids: Tensor, tokenizer: Any) -> Tensor:
    """(B, T) bool: tokens that are no special tokens."""
    known = set()
    for name in _NOT_WORDS:
        number = getattr(tokenizer, name, None)
        if number is not None:
            known.add(number)
    return ~torch.isin(ids, torch.tensor(sorted(known)).to(ids))


def _with_merged_boxes(example: AuditExample) -> AuditExample:
    merged = (
        replace(phrase, boxes=enclosing_box(phrase.boxes)[None].astype(np.float32), mask=None)
        for phrase in example.phrases
    )
    return replace(example, phrases=tuple(merged))


def _nearness(boxes: Tensor, candidates: Tensor) -> np.ndarray:
    """Minus the distance of each candidate's centre (R,) from the centre of the image."""
    middles = (boxes[candidates, :2] + boxes[candidates, 2:]) / 2
    return -(middles - 0.5).norm(dim=1).numpy()
