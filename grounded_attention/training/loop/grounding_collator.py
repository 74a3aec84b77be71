# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""Rows of any Trainer to batches: the processor makes inputs and grounding, the method adds what needs no model.

Whoever adds the one loss to a loop of their own imports this file, so it needs no extra of the installation.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from torch.nn import functional as F
from transformers.utils import logging

from grounded_attention.dataset_scripts.rows.chats import (
    MESSAGES,
    chat_texts,
    listed,
    place_images,
    row_conversation,
)
from grounded_attention.dataset_scripts.rows.raw import first_of
from grounded_attention.processing.grounded_batch import DroppedPhrase, GroundedBatch
from grounded_attention.processing.patch_grounding import PatchGroundingProcessor
from grounded_attention.processing.phrase import Phrase, read_phrase
from grounded_attention.processing.phrase_arrays import TRUNCATED
from grounded_attention.processing.processing_grounded import GroundedProcessor
from grounded_attention.supervision import SupervisionMethod
from grounded_attention.supervision.method import RowGenerators, fixed_generator
from grounded_attention.tasks.task import region_arguments
from grounded_attention.utils.named_types import Batch, Columns, Fields, Row

logger = logging.get_logger(__name__)

# entries of a training batch
COUNTS = "component_counts"
ROW_KEYS = "row_keys"
SEQUENCE_KEYS = {"input_ids", "attention_mask", "token_type_ids", "mm_token_type_ids", "labels"}
SEQUENCE_KEYS |= {"cross_attention_mask"}


class GroundingCollator:
    """Makes batches of rows with texts, images or regions, and phrases with boxes; see [`GroundingTrainerMixin`].

    A row with `captions` (texts) is an example for each of them that describes the image (`related`, if it has this
    column). For a decoder a row has the columns of TRL: `image` or `images` (paths, PIL images or arrays), and either
    `messages` or `prompt` and `completion` (each a text or messages); or it is one of [`grounded_rows`], whose `text`
    answers "Describe the image.". Images stand where a text has a literal `<image>` for each of them, or come first in
    the first message of the user. For a region model it has `text` or `caption`, and `regions` (an object with
    `features` and `boxes`) or the `image_id` of a record of the table.

    `phrases` is a list of mappings with the keys of [`Phrase`], such as `{"text": "a red ball", "boxes": [[0.1, 0.2,
    0.4, 0.9]]}`, words that occur once in the texts; `sentence` counts the texts.

    Args:
        processor (`PatchGroundingProcessor`, `GroundedProcessor` or `ProcessorMixin`): the processor of the model.
        method (`SupervisionMethod`, *optional*): the supervision method; the work that needs no model is done here.
        regions (`RegionTable`, *optional*): the regions of the rows of a region model, by `image_id`.

    Raises:
        ValueError: raised by a call if a column is missing, or a phrase is not in the texts; the message names the row
            of the batch.

    Returns:
        `GroundedBatch`: by a call: the inputs of the model, for a decoder `labels` (B, N) of the assistant's texts,
        and the grounding, see [`PatchGroundingProcessor`] and [`GroundedProcessor`].
    """

    def __init__(self, processor: Any, method: SupervisionMethod | None = None, regions: Any | None = None):
        known = isinstance(processor, PatchGroundingProcessor | GroundedProcessor)
        self.processor = processor if known else PatchGroundingProcessor(processor)
        self._set(method, regions)

    def _set(self, method: SupervisionMethod | None, regions: Any | None) -> None:
        self.method = method
        self.regions = regions
        self.training = True
        if method is None:
            self._readers: tuple[Any, ...] = ()
        else:
            self._readers = (method,)
        # `GroundingTrainerMixin` sets them: the largest number of tokens, and whether it must not cut images.
        self.max_length: int | None = None
        self.keeps_images = False

    def __call__(self, rows: Sequence[Row]) -> Columns:
        batch = self.prepare(self.collate(rows), rows)
        return GroundedBatch(batch, dropped_phrases=batch["dropped_phrases"])

    def collate(self, rows: Sequence[Row]) -> Fields:
        """The inputs of the model and the grounding of rows."""
        make = _region_inputs if isinstance(self.processor, GroundedProcessor) else _chat_inputs
        return make(self, [each for row in rows for each in _one_text_each(row)])

    def prepare(self, batch: Fields, rows: Sequence[Row]) -> Fields:
        """Adds the entries of the method, and in training the counts of the loss components."""
        for reader in self._readers:
            batch |= reader.prepare_batch(batch, self.generators(rows))
        if self.training and self.method is not None:
            # Plain numbers, so that reading them does not synchronise with the device.
            batch[COUNTS] = {name: int(count) for name, count in self.counts(batch).items()}
        return batch

    def generators(self, rows: Sequence[Row]) -> RowGenerators:
        """The source of random draws of each row; here every row draws the same in any batch."""
        return fixed_generator

    def counts(self, batch: Batch) -> Columns:
        """Loss component -> number of terms in its sum."""
        if self.method is None:
            return {}
        return self.method.counts(batch)

    def set_epoch(self, epoch: int) -> None:
        """Sets the epoch of the random draws, if there are some."""


def _one_text_each(row: Row) -> list[Row]:
    """A row with captions as a row for each that describes its image, with its own phrases; any other row itself."""
    captions = row.get("captions")
    if captions is None:
        return [row]
    related = row.get("related") or [True] * len(captions)
    phrases = [read_phrase(each, captions, "a phrase", grounded=True) for each in listed(row.get("phrases"))]
    of_each: list[Row] = []
    for number, text in enumerate(captions):
        if related[number]:
            own = [replace(each, sentence=0) for each in phrases if each.sentence == number]
            of_each.append({**row, "text": text, "phrases": own})
    return of_each


def _region_inputs(collator: GroundingCollator, rows: Sequence[Row]) -> Fields:
    texts = []
    for row in rows:
        texts.append(row["text"] if row.get("text") is not None else row.get("caption"))
    if None in texts:
        place = texts.index(None)
        raise ValueError(
            f"row {place} of the batch has the columns {', '.join(rows[place])}; expected text or caption"
        )
    table: Any = collator.regions
    records = [row["regions"] if row.get("regions") is not None else table[row["image_id"]] for row in rows]
    phrases = [listed(row.get("phrases")) for row in rows]
    batch = collator.processor(texts, phrases=phrases, **region_arguments(records)).reported()
    cut = batch.pop("cut_tokens", None)
    if cut:
        logger.warning_once(f"texts are cut at their end: here {sum(map(bool, cut))} lose up to {max(cut)} tokens")
    return batch


def _chat_inputs(collator: GroundingCollator, rows: Sequence[Row]) -> Fields:
    images = []
    chats = []
    phrases = []
    for i, row in enumerate(rows):
        chat, pictures = row_conversation(row, f"row {i} of the batch")
        before = int(first_of(row, (*MESSAGES, "prompt")) is None)  # the text "Describe the image."
        read = []
        for number, each in enumerate(listed(row.get("phrases"))):
            read.append(
                read_phrase(each, chat_texts(chat)[before:], f"row {i} of the batch, phrase {number}", grounded=True)
            )
        read = [replace(each, sentence=each.sentence + before) for each in read]
        chat, read = place_images(chat, read, len(pictures))
        images.append(pictures)
        chats.append(chat)
        phrases.append(read)
    tokenizer = collator.processor.tokenizer
    side = collator.processor.tokenizer.padding_side
    tokenizer.padding_side = side if collator.max_length is None else "right"
    try:
        batch = collator.processor(chats, images=images, phrases=phrases, labels=True).reported()
    finally:
        tokenizer.padding_side = side
    longest = max(batch[name].shape[1] for name in ("input_ids", "decoder_input_ids") if name in batch)
    if collator.max_length is not None and longest > collator.max_length:
        if "decoder_input_ids" in batch:
            raise ValueError(
                f"a row of the batch has {longest} tokens, and sequences of an encoder and its decoder are not cut at "
                f"max_length={collator.max_length}: give a larger one, or None"
            )
        _cut(batch, collator.max_length, phrases, collator.keeps_images)
    return batch


def _cut(batch: Fields, length: int, phrases: Sequence[Sequence[Phrase]], keeps_images: bool) -> None:
    """Keeps the first tokens of sequences padded on the right, as TRL does; drops phrases that lose a token."""
    sizes = batch["attention_mask"].sum(1).tolist()
    texts = batch["text_positions"]
    beyond = batch["region_positions"] >= length
    if "cross_attention_mask" in batch:  # they are no positions of the sequence
        beyond &= False
    for row in beyond.any(1).nonzero().flatten().tolist():
        said = f"row {row} of the batch has {sizes[row]} tokens, and image tokens beyond max_length={length}"
        if not keeps_images:
            raise ValueError(f"{said}: give a larger max_length (None does not cut), or smaller images")
        logger.warning_once(f"{said}, TRL's default: such batches are not cut")
        return
    batch |= {name: batch[name][:, :length] for name in SEQUENCE_KEYS & batch.keys()}
    lost = (batch["phrase_mask"] & (texts >= length)[:, None]).any(2)
    for row, phrase in lost.nonzero().tolist():
        batch["dropped_phrases"][row].append(DroppedPhrase(phrase, phrases[row][phrase].text, TRUNCATED))
    extra = int(texts.shape[1] == length)  # a mask of the whole sequence is recognised by its length
    batch["text_positions"] = F.pad(texts.masked_fill(texts >= length, -1), (0, extra), value=-1)
    batch["phrase_mask"] = F.pad(batch["phrase_mask"] & ~lost[..., None], (0, extra))
    batch["phrase_regions"] = batch["phrase_regions"] * ~lost[..., None]
    logger.warning_once(
        f"sequences of up to {max(sizes)} tokens are cut to max_length={length}; this batch loses {int(lost.sum())} "
        f"phrases (`dropped_phrases`) and the answers of {int((batch['labels'] < 0).all(1).sum())} rows"
    )
