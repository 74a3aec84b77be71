# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""How the captions of an audit become batches, and which candidates answer each phrase: for models that read regions,
and for vision-language models, whose regions are image tokens. All other code of the audit is the same for both.

Shape letters: B batch, T text, R regions or image tokens, P phrases.
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from grounded_attention.heads.examples import AuditExample
from grounded_attention.heads.items import IOU_THRESHOLD, AuditBatch, Rules
from grounded_attention.heads.prompts import Images, PromptSettings, find_picture, make_batch
from grounded_attention.processing.patch_grounding import PatchGroundingProcessor
from grounded_attention.supervision import DIRECTIONS
from grounded_attention.supervision.supervise import hides_later_words
from grounded_attention.utils.boxes import check_shape, enclosing_box

CONFIDENT, FIRST, CENTRE = "most confident region", "first region", "image token at the centre"
# Special tokens that are not words; [UNK] and [MASK] replace a word, so they count as words.
_NOT_WORDS = ("cls_token_id", "sep_token_id", "pad_token_id", "bos_token_id", "eos_token_id")


class AuditInputs(ABC):
    """Makes the batches of an audit."""

    directions: tuple[str, ...]
    batch_size: int
    rule: str
    about: dict[str, Any]

    @abstractmethod
    def make(self, examples: Sequence[AuditExample]) -> AuditBatch:
        """Makes the batch of examples whose phrases all have gold boxes."""


class RegionInputs(AuditInputs):
    """The inputs of models that read regions."""

    directions, batch_size, rule = DIRECTIONS, 32, CONFIDENT

    def __init__(self, processor: Any, regions: Mapping[str, Any], rules: Rules, images: Images | None = None):
        self.processor, self.regions, self.rules, self.images = processor, regions, rules, images
        self.about = {"word": rules.word, "iou_threshold": rules.iou_threshold, "merged_box": rules.merged}

    def make(self, examples: Sequence[AuditExample]) -> AuditBatch:
        records = [self.regions[example.image_id] for example in examples]
        for example, record in zip(examples, records, strict=True):
            if hasattr(record, "width"):
                check_shape(example.size, (record.width, record.height), example.image_id, "region table")
        batch = self._process(examples, records)
        boxes, candidates = batch["region_boxes"].cpu().numpy(), batch["region_candidate_mask"].bool().cpu()
        mask = batch["phrase_mask"].bool().cpu().numpy()
        gold = np.zeros((*mask.shape[:2], boxes.shape[1]), dtype=bool)
        for row, example in enumerate(examples):
            for number, phrase in enumerate(example.phrases):
                gold[row, number] = self.rules.hits(boxes[row], phrase.boxes) & candidates[row].numpy()
        words = batch["attention_mask"].bool().cpu() & _are_words(batch["input_ids"].cpu(), self.processor.tokenizer)
        scores = [getattr(record, "scores", None) for record in records]
        return AuditBatch(batch, mask, gold, candidates, words, scores, getattr(batch, "dropped_phrases", ()))

    def _process(self, examples: Sequence[AuditExample], records: Sequence[Any]) -> Any:
        if self.images is None:
            seen = {"region_features": [record.features for record in records]}
        else:
            seen = {"images": [find_picture(self.images, example.image_id) for example in examples]}
        return self.processor(
            [example.caption for example in examples],
            region_boxes=[record.boxes for record in records],
            phrases=[[{"text": 0, "start": p.start, "end": p.end} for p in example.phrases] for example in examples],
            return_tensors="pt",
            **seen,
        )


class PatchInputs(AuditInputs):
    """The inputs of vision-language models, whose image tokens are the regions.

    An image token answers a phrase as in training: a gold box covers enough of it, or no token more of a small box.
    The baseline rule answers the image token that is nearest to the centre of the image.
    """

    batch_size, rule = 4, CENTRE

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
        self.images, self.merged, self.settings = images, rules.merged, PromptSettings(instruction=instruction)
        self.directions = DIRECTIONS[:1] if hides_later_words(model) else DIRECTIONS
        self.about = {
            "word": rules.word,
            "coverage_threshold": self.processor.coverage_threshold,
            "merged_box": rules.merged,
            "instruction": instruction,
        }

    def make(self, examples: Sequence[AuditExample]) -> AuditBatch:
        if self.merged:
            examples = [_with_merged_boxes(example) for example in examples]
        batch = make_batch(self.processor, examples, self.images, self.settings)
        candidates, places = batch["region_candidate_mask"].bool(), batch["text_positions"]
        ids = batch["input_ids"].gather(1, places.clamp(min=0))
        inputs = {name: batch[name] for name in ("text_positions", "region_positions")}
        return AuditBatch(
            # A cache would keep the states of all tokens for a next one, which does not come.
            {**self.processor.model_inputs(batch), **inputs, "use_cache": False},
            batch["phrase_mask"].numpy(),
            (batch["phrase_regions"].bool() & candidates[:, None]).numpy(),
            candidates,
            (places >= 0) & _are_words(ids, self.processor.tokenizer),
            [_nearness(*each) for each in zip(batch["region_boxes"], candidates, strict=True)],
            batch.dropped_phrases,
        )


def _are_words(ids: Tensor, tokenizer: Any) -> Tensor:
    """(B, T) bool: tokens that are no special tokens."""
    known = {number for name in _NOT_WORDS if (number := getattr(tokenizer, name, None)) is not None}
    return ~torch.isin(ids, torch.tensor(sorted(known)).to(ids))


def _with_merged_boxes(example: AuditExample) -> AuditExample:
    merged = (
        replace(phrase, boxes=enclosing_box(phrase.boxes)[None].astype(np.float32)) for phrase in example.phrases
    )
    return replace(example, phrases=tuple(merged))


def _nearness(boxes: Tensor, candidates: Tensor) -> np.ndarray:
    """Minus the distance of each candidate's centre (R,) from the centre of the image."""
    middles = (boxes[candidates, :2] + boxes[candidates, 2:]) / 2
    return -(middles - 0.5).norm(dim=1).numpy()
