# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""Rows to batches: the processor makes inputs and grounding, the method adds what needs no model, terms are counted.

`GroundingCollator` serves any Trainer; `Collator` joins the rows of a task with regions, pictures and pseudo-labels.
"""

import re
import zlib
from collections.abc import Mapping, Sequence
from copy import copy
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
from torch.nn import functional as F
from transformers.utils import logging

from grounded_attention.dataset_scripts.pseudo_labels.table import PseudoLabelTable
from grounded_attention.processing.chat_prompts import is_conversation
from grounded_attention.processing.grounded_batch import DroppedPhrase, GroundedBatch
from grounded_attention.processing.patch_grounding import PatchGroundingProcessor
from grounded_attention.processing.phrase import Phrase, read_phrase
from grounded_attention.processing.phrase_arrays import TRUNCATED
from grounded_attention.processing.processing_grounded import GroundedProcessor
from grounded_attention.supervision import SupervisionMethod
from grounded_attention.supervision.controls import control_labels
from grounded_attention.supervision.draws import RowGenerators, fixed_generator
from grounded_attention.tasks import Task
from grounded_attention.tasks.task import Examples, region_arguments
from grounded_attention.utils.boxes import check_shape
from grounded_attention.utils.open_images import open_image
from grounded_attention.utils.process_group import shares_memory
from grounded_attention.utils.safe_paths import path_below

from .joins import ShuffledTargets, join_labels

logger = logging.get_logger(__name__)

COUNTS, ROW_KEYS = "component_counts", "row_keys"  # entries of a training batch
CUT_ROWS = "cut_rows"  # of any batch of a task: key of a row whose text was cut -> tokens and phrases that it lost
SEQUENCE_KEYS = {"input_ids", "attention_mask", "token_type_ids", "mm_token_type_ids", "labels"}
Row = Mapping[str, Any]
# What a text has at the place of an image, with the white space behind it; and what a text alone answers.
PLACE = "<image>"
_PLACES = re.compile(r"<image>\s*")
DESCRIBE = "Describe the image."


class GroundingCollator:
    """Makes batches of rows with texts, images or regions, and phrases with boxes; see [`GroundingTrainerMixin`].

    For a decoder a row has the columns of TRL: `image` or `images` (paths, PIL images or arrays), and either
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
        self.method, self.regions, self.training = method, regions, True
        self._readers: tuple[Any, ...] = () if method is None else (method,)
        # `GroundingTrainerMixin` sets them: the largest number of tokens, and whether it must not cut images.
        self.max_length: int | None = None
        self.keeps_images = False

    def __call__(self, rows: Sequence[Row]) -> Mapping[str, Any]:
        batch = self.prepare(self.collate(rows), rows)
        return GroundedBatch(batch, dropped_phrases=batch["dropped_phrases"])

    def collate(self, rows: Sequence[Row]) -> dict[str, Any]:
        """The inputs of the model and the grounding of rows."""
        make = _region_inputs if isinstance(self.processor, GroundedProcessor) else _chat_inputs
        return make(self, rows)

    def prepare(self, batch: dict[str, Any], rows: Sequence[Row]) -> dict[str, Any]:
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

    def counts(self, batch: Mapping[str, Any]) -> Mapping[str, Any]:
        """Loss component -> number of terms in its sum."""
        return {} if self.method is None else self.method.counts(batch)

    def set_epoch(self, epoch: int) -> None:
        """Sets the epoch of the random draws, if there are some."""


def _region_inputs(collator: GroundingCollator, rows: Sequence[Row]) -> dict[str, Any]:
    texts = [row["text"] if row.get("text") is not None else row.get("caption") for row in rows]
    if None in texts:
        place = texts.index(None)
        raise ValueError(
            f"row {place} of the batch has the columns {', '.join(rows[place])}; expected text or caption"
        )
    table: Any = collator.regions
    records = [row["regions"] if row.get("regions") is not None else table[row["image_id"]] for row in rows]
    phrases = [listed(row.get("phrases")) for row in rows]
    batch = collator.processor(texts, phrases=phrases, **region_arguments(records)).reported()
    if cut := batch.pop("cut_tokens", None):
        logger.warning_once(f"texts are cut at their end: here {sum(map(bool, cut))} lose up to {max(cut)} tokens")
    return batch


def _chat_inputs(collator: GroundingCollator, rows: Sequence[Row]) -> dict[str, Any]:
    images = [row_images(row) for row in rows]
    chats, phrases = [], []
    for i, row in enumerate(rows):
        chat = _conversation(row, len(images[i]), f"row {i} of the batch")
        before = int(row.get("messages") is None and row.get("prompt") is None)  # the text "Describe the image."
        read = [
            read_phrase(each, _texts(chat)[before:], f"row {i} of the batch, phrase {number}", grounded=True)
            for number, each in enumerate(listed(row.get("phrases")))
        ]
        read = [replace(each, sentence=each.sentence + before) for each in read]
        chat, read = _place_images(chat, read, len(images[i]))
        chats.append(chat)
        phrases.append(read)
    tokenizer, side = collator.processor.tokenizer, collator.processor.tokenizer.padding_side
    tokenizer.padding_side = side if collator.max_length is None else "right"
    try:
        batch = collator.processor(chats, images=images, phrases=phrases, labels=True).reported()
    finally:
        tokenizer.padding_side = side
    if collator.max_length is not None and batch["input_ids"].shape[1] > collator.max_length:
        _cut(batch, collator.max_length, phrases, collator.keeps_images)
    return batch


def _cut(batch: dict[str, Any], length: int, phrases: Sequence[Sequence[Phrase]], keeps_images: bool) -> None:
    """Keeps the first tokens of sequences padded on the right, as TRL does; drops phrases that lose a token."""
    sizes, texts = batch["attention_mask"].sum(1).tolist(), batch["text_positions"]
    for row in (batch["region_positions"] >= length).any(1).nonzero().flatten().tolist():
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


def row_images(row: Row) -> list[Any]:
    return listed(row.get("images")) or listed(row.get("image"))


def listed(value: Any) -> list[Any]:
    """The entries of a column of a row: a list, a tuple or an array of objects, or one entry; none for None."""
    if isinstance(value, (list, tuple)) or getattr(getattr(value, "dtype", None), "hasobject", False):
        return list(value)
    return [] if value is None else [value]


def _conversation(row: Row, image_count: int, name: str) -> list[dict[str, Any]]:
    """The messages of a row, each with a list of parts, and with places for the images."""
    if row.get("messages") is not None:
        turns = row["messages"]
    elif row.get("prompt") is not None and row.get("completion") is not None:
        turns = [*_messages(row["prompt"], "user"), *_messages(row["completion"], "assistant")]
    elif row.get("text") is not None:
        turns = [*_messages(DESCRIBE, "user"), *_messages(row["text"], "assistant")]
    else:
        raise ValueError(f"{name} has the columns {', '.join(row)}; expected messages, or prompt and completion")
    messages = [{**message, "content": _parts(message.get("content"))} for message in turns]
    parts = [part for message in messages for part in message["content"]]
    if row.get("video") is not None or row.get("videos") is not None or any(part["type"] == "video" for part in parts):
        raise ValueError(f"{name} has a video, from which models do not learn here; give frames as `images`")
    written = sum(part["text"].count(PLACE) for part in parts if part["type"] == "text")
    if not any(part["type"] == "image" for part in parts) and not (written and written == image_count):
        first = next((message for message in messages if message["role"] == "user"), None)
        if first is None and image_count:
            raise ValueError(f"{name} has images, but no message of the user")
        if first is not None:
            first["content"] = [*({"type": "image"} for _ in range(image_count)), *first["content"]]
    return messages


Chat = list[dict[str, Any]]


def _place_images(chat: Chat, phrases: list[Phrase], count: int) -> tuple[Chat, list[Phrase]]:
    """Puts the places of images for `<image>`, if the texts have one for each of them, and moves the phrases."""
    if not count or sum(text.count(PLACE) for text in _texts(chat)) != count:
        return chat, phrases
    pieces: list[tuple[int, int, int]] = []  # text, first and last character of what stays a text
    messages, number = [], 0
    for message in chat:
        parts: list[dict[str, Any]] = []
        for part in message["content"]:
            if part["type"] != "text":
                parts.append(part)
                continue
            end = 0
            for start, stop in [*(each.span() for each in _PLACES.finditer(part["text"])), (len(part["text"]), None)]:
                if part["text"][end:start].strip():
                    pieces.append((number, end, start))
                    parts.append({"type": "text", "text": part["text"][end:start]})
                if stop is not None:
                    parts.append({"type": "image"})
                    end = stop
            number += 1
        messages.append({**message, "content": parts})
    moved = []
    for phrase in phrases:
        for index, (text, start, end) in enumerate(pieces):
            if text == phrase.sentence and start <= phrase.start and phrase.end <= end:
                moved.append(replace(phrase, sentence=index, start=phrase.start - start, end=phrase.end - start))
    return messages, moved


def _messages(value: Any, role: str) -> list[dict[str, Any]]:
    return list(value) if is_conversation(value) else [{"role": role, "content": value}]


def _parts(content: Any) -> list[dict[str, Any]]:
    """The parts of a message; rows of Arrow tables have every key in every part, some of them None."""
    if isinstance(content, str):
        return [{"type": "text", "text": content}]
    return [{key: value for key, value in part.items() if value is not None} for part in content or ()]


def _texts(chat: Sequence[Row]) -> list[str]:
    return [part["text"] for message in chat for part in message["content"] if part["type"] == "text"]


# Random draws of a validation or test split use this epoch number, which no training reaches.
EVALUATION = 2**31 - 1


def row_key(row: Mapping[str, Any]) -> str:
    """The name of a row, which decides its random draws."""
    return row["example_id"] if "example_id" in row else row["caption_id"]


def count_components(task: Task, method: SupervisionMethod, batch: Mapping[str, Any]) -> dict[str, torch.Tensor]:
    """Loss component -> number of terms in its sum, () int64; without components that the batch does not have."""
    counted = {component.name: component.count(batch) for component in task.losses}
    return {name: count for name, count in counted.items() if count is not None} | method.counts(batch)


class Collator(GroundingCollator):
    """Makes a batch of a task's rows: looks up the regions of each row; the task builds inputs and targets. Random
    draws of a task (masking) depend only on the seed, the epoch and the key of the row.
    """

    def __init__(
        self,
        task: Task,
        processor: Any,
        regions: Any | None,
        seed: int = 0,
        *,
        split: Any | None = None,
        texts: Any | None = None,
        pseudo_labels: PseudoLabelTable | None = None,
        images: str | Path | None = None,
        options: Any | None = None,
        labels: str = "gold",
        method: SupervisionMethod | None = None,
    ):
        self._set(method, regions)
        self.task, self.processor, self.seed, self.labels = task.configure(options), processor, seed, labels
        self.split, self.texts, self.pseudo_labels = split, texts, pseudo_labels
        self.images = None if images is None else Path(images)
        self._epoch = torch.zeros((), dtype=torch.int64)
        if shares_memory():  # with running DataLoader workers
            self._epoch.share_memory_()
        donors = copy(self)
        donors._epoch = torch.tensor(EVALUATION)  # an image has the same donor in every epoch, also if captions change
        self._donor_targets = ShuffledTargets(split, donors.collate, seed)

    def set_epoch(self, epoch: int) -> None:
        self._epoch.fill_(epoch)

    def evaluating(self, split: Any, regions: Any | None = None, metrics: Sequence[Any] = ()) -> "Collator":
        """A copy for an evaluation split; its random draws are the same in every epoch."""
        other = copy(self)
        other.split, other.training = split, False
        other._readers = tuple(metric for metric in metrics if hasattr(metric, "prepare_batch"))
        other.regions = self.regions if regions is None else regions
        other._epoch = torch.tensor(EVALUATION)
        return other

    def __call__(self, rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
        return self.prepare(self.collate(rows), rows)

    def prepare(self, batch: dict[str, Any], rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
        if self.training and self.labels != "gold" and "phrase_regions" in batch:
            batch["gold_regions"] = batch["phrase_regions"]  # a control is one of attention, not of region words
            batch["phrase_regions"] = self._control(rows, batch).float()
            batch.pop("phrase_boxes", None)  # the control's regions are those of no box
        keys = {ROW_KEYS: [row_key(row) for row in rows]} if self.training and self.method is not None else {}
        return {**super().prepare(batch, rows), **keys, **_cut_rows(batch, rows)}

    def generators(self, rows: Sequence[Mapping[str, Any]]) -> RowGenerators:
        return lambda row: self.generator(f"{row_key(rows[row])} supervision")

    def counts(self, batch: Mapping[str, Any]) -> Mapping[str, Any]:
        return count_components(self.task, cast(SupervisionMethod, self.method), batch)

    def _control(self, rows: Sequence[Mapping[str, Any]], batch: Mapping[str, Any]) -> torch.Tensor:
        # Pseudo-labels replace the annotated phrases, and have no entities.
        named = [() if self.pseudo_labels is not None else row.get("phrases") or () for row in rows]
        entities = [[phrase.get("entity_id") for phrase in phrases] for phrases in named]
        images, epoch = [row["image_id"] for row in rows], int(self._epoch)
        return control_labels(
            self.labels,
            batch,
            images,
            entities,
            seed=self.seed,
            epoch=epoch,
            donor_targets=self._donor_targets if self.split is not None else None,
        )

    def collate(self, rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
        records = None if self.regions is None else [self._regions(row) for row in rows]
        if self.pseudo_labels is not None:
            rows = join_labels(rows, self.pseudo_labels, records, self.training)
        try:
            examples = Examples(
                rows,
                records,
                self.generator,
                self.split,
                self.texts,
                self._pictures(rows),
                self.training,
                None if self.regions is None else self._regions,
            )
            return self.task.collate(examples, self.processor)
        except ValueError as error:
            raise ValueError(f"{_image(rows, str(error))}{error}") from error

    def _regions(self, row: Mapping[str, Any]) -> Any:
        """The region record of the row's image, or a tuple with one record for each of its `image_ids`."""
        table: Any = self.regions
        if "image_ids" in row:
            return tuple(table[each] for each in row["image_ids"])
        record = table[row["image_id"]]
        if len(record.boxes):  # an image without detections may have no known size
            _check_size(row, record, "region table")
        return record

    def _pictures(self, rows: Sequence[Mapping[str, Any]]) -> list[Any] | None:
        if self.images is None:
            return None
        names = [row.get("file_name") or f"{row['image_id']}.jpg" for row in rows]
        pictures = [open_image(path_below(self.images, name)) for name in names]
        for row, picture in zip(rows, pictures, strict=True):
            _check_size(row, picture, "picture")
        return pictures

    def generator(self, key: str) -> np.random.Generator:
        """The random generator for the row with this key, in this epoch."""
        return np.random.default_rng((self.seed, int(self._epoch), zlib.crc32(key.encode())))


def _check_size(row: Mapping[str, Any], held: Any, what: str) -> None:
    size: Any = (row.get("width"), row.get("height"))
    if None not in size:
        check_shape(size, (held.width, held.height), row["image_id"], what)


def _cut_rows(batch: Mapping[str, Any], rows: Sequence[Row]) -> dict[str, Any]:
    if "cut_tokens" not in batch:
        return {}
    cut = np.reshape(batch["cut_tokens"], (len(rows), -1)).sum(1).tolist()  # a row may have several texts
    dropped = batch.get("dropped_phrases") or [[]] * len(rows)
    lost = [[each.words for each in of_row if each.reason == TRUNCATED] for of_row in dropped]
    return {CUT_ROWS: {row_key(row): each for row, *each in zip(rows, cut, lost, strict=True) if each[0]}}


def _image(rows: Sequence[Mapping[str, Any]], message: str) -> str:
    """The image of the example whose number a message of the processor contains."""
    counted = re.match(r"Example (\d+)", message)
    if counted is None or int(counted[1]) >= len(rows):
        return ""
    return f"image {rows[int(counted[1])]['image_id']}: "


def check_regions(splits: Sequence[Any], regions: Any, empty_images: bool = False) -> None:
    """Checks that every image of the rows of each split is in the region table; with `empty_images`, that one is."""
    wanted = {image_id for rows in splits for image_id in _images(rows)}
    missing = sorted(image_id for image_id in wanted if image_id not in regions)
    if not missing:
        return
    if not empty_images:
        regions[missing[0]]  # raises the error of the table, which contains the table and the image
    if len(missing) == len(wanted):
        known = ", ".join(repr(image_id) for image_id in regions.ids[:3])
        raise ValueError(
            f"none of the {len(wanted)} images of the rows is in the region table; the rows have ids such as "
            f"{missing[0]!r}, the table has {known}: give the table of these images, or another "
            "data.options.image_id_format"
        )


def _images(rows: Any) -> set[str]:
    """The image ids of the rows; a row has one `image_id` or several `image_ids`."""
    if "image_ids" in rows.column_names:
        return {image_id for images in rows["image_ids"] for image_id in images}
    return set(rows.unique("image_id"))


def limit_rows(rows: Any, limit: int | None, seed: int) -> Any:
    """At most `limit` rows (None keeps all), chosen by a shuffle with `seed` and kept in their original order."""
    if limit is None or limit >= len(rows):
        return rows
    chosen = np.random.default_rng(seed).permutation(len(rows))[:limit]
    return rows.select(np.sort(chosen))
