# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""Attention supervision in ms-swift: a plugin of one line imports this file.

    echo "import grounded_attention.training.trainers.ms_swift" > plugin.py
    GROUNDING=grounding.yaml swift sft --external_plugins plugin.py --model ... --dataset rows.jsonl ...

The file that the variable GROUNDING names has the keys of [`TrainerOptions`].
"""

import os
import re
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

from swift.pipelines.train.sft import SwiftSft
from swift.template import Template
from swift.trainers import Seq2SeqTrainer, TrainerFactory

from grounded_attention.training.loop.trainer_mixin import GroundingTrainerMixin, HeadReport
from grounded_attention.utils.named_types import Columns, Fields
from grounded_attention.utils.open_images import picture_size

from .followed_rows import GROUNDING, CompletedBatches, FollowedRow, Grounding, PlacedToken, TrainerOptions

VARIABLE = "GROUNDING"
_PLACES = re.compile("(<ref-object>|<bbox>)")
# What replaces a template's own methods; theirs are called inside.
_encode_row = Template._encode_truncated
_tokenize = Template._tokenize
_truncate = Template._truncate
_get_dataset = SwiftSft._get_dataset
_prepare_dataset = SwiftSft._prepare_dataset


def read_options() -> TrainerOptions:
    """The options that the environment variable names."""
    path = os.environ.get(VARIABLE)
    if not path:
        raise ValueError(f"the environment variable {VARIABLE} is not set: expected the YAML file of our options")
    return TrainerOptions.from_file(path)


def record_of(messages: Sequence[Columns], images: Any, objects: Columns | None) -> Columns:
    """A row of ms-swift as our reader takes it."""
    spoken = [{"role": each["role"], "content": each["content"]} for each in messages]
    record: Fields = {"messages": spoken, "images": list(images or ())}
    if objects:
        objects = {key: value for key, value in objects.items() if value}
        record["objects"] = {"bbox_type": "real", **objects}  # pixels, where a row does not say it
    return record


def mark_row(row: FollowedRow, texts: Sequence[str], inputs: Any) -> None:
    """Puts the marks of phrases into the messages, and into the names that their template puts at `<ref-object>`.

    Args:
        row (`FollowedRow`): the row.
        texts (sequence of `str`): the messages as our reader filled them: names and boxes stand in their places.
        inputs (`StdTemplateInputs`): the row of ms-swift, which is changed.

    Raises:
        ValueError: if the reader has other texts than ms-swift.
    """
    names = list(inputs.objects.get("ref") or ())
    used = 0
    contents = []
    for number, (message, filled) in enumerate(zip(inputs.messages, texts, strict=True)):
        place = 0
        made = ""
        for part in _PLACES.split(message["content"]):
            if part == "<bbox>":
                place = filled.index("]", place) + 1
                made += part
                continue
            words = names[used] if part == "<ref-object>" else part
            end = place + len(words)
            if filled[place:end] != words:
                raise ValueError(f"our reader reads {filled!r:.80}, ms-swift has {message['content']!r:.80}")
            marked = row.marked(number, place, end)
            place = end
            if part == "<ref-object>":
                names[used] = marked
                used += 1
                marked = part
            made += marked
        contents.append(made)
    for message, content in zip(inputs.messages, contents, strict=True):
        message["content"] = content
    if names:
        inputs.objects["ref"] = names


def encode_row(self: Any, inputs: Any) -> Any:
    """Their encoding of a row, followed."""
    grounding: Grounding | None = getattr(self, GROUNDING, None)
    if grounding is None or self.mode != "train":
        return _encode_row(self, inputs)
    problem = ""
    texts = [each["content"] for each in inputs.messages]
    row = FollowedRow(texts, [])
    try:
        texts, phrases = grounding.read(record_of(inputs.messages, inputs.images, inputs.objects))
        row = FollowedRow(texts, phrases)
        if phrases:
            mark_row(row, texts, inputs)
    except ValueError as error:  # told when a batch has the row: here ms-swift would take another one
        problem = str(error)
    self.followed_row = row
    try:
        encoded = _encode_row(self, inputs)
    finally:
        self.followed_row = None
    if isinstance(encoded, list):
        raise ValueError("truncation_strategy split loses phrases: give delete, left or right")
    row.problem = problem or row.problem
    sizes = [list(picture_size(image, "a picture")) for image in inputs.images]
    encoded[GROUNDING] = row.entry(encoded["input_ids"], sizes, grounding.special)
    for name in ("input_ids", "labels"):
        if encoded.get(name) is not None:
            encoded[name] = [int(token) for token in encoded[name]]
    return encoded


def tokenize(self: Any, context: str, **kwargs: Any) -> Any:
    row: FollowedRow | None = getattr(self, "followed_row", None)
    if row is None:
        return _tokenize(self, context, **kwargs)
    return row.encode(context, self.tokenizer, lambda text: _tokenize(self, text, **kwargs))


def truncate(self: Any, input_ids: list[int], labels: Any, encoded: Any, truncation_strategy: Any) -> Any:
    """Their cutting, which makes new numbers of the tokens; those that are kept are put back."""
    if not any(isinstance(token, PlacedToken) for token in input_ids):
        return _truncate(self, input_ids, labels, encoded, truncation_strategy)
    _, kept = _truncate(self, input_ids, [*range(len(input_ids))], {}, truncation_strategy)
    ids, labels = _truncate(self, input_ids, labels, encoded, truncation_strategy)
    # They mark the first place as one that is not learnt.
    return [ids[0], *(input_ids[place] for place in kept[1:])], labels


def prepare_dataset(self: Any) -> Any:
    """Their data as tokens, where attention can be supervised.

    Raises:
        ValueError: if rows are joined or parted, have lost their boxes, or the loss is none of `swift sft`.
    """
    args = self.args
    refused = {
        "rlhf_type": "only sft",
        "packing": "rows are packed",
        "padding_free": "rows are packed",
        "cached_dataset": "its rows have lost their boxes",
        "cached_val_dataset": "its rows have lost their boxes",
    }
    for name, reason in refused.items():
        if getattr(args, name, None):
            raise ValueError(f"{name}={getattr(args, name)}: attention is not supervised there ({reason})")
    if args.sequence_parallel_size > 1:
        raise ValueError(f"sequence_parallel_size={args.sequence_parallel_size}: rows are parted; give 1")
    if args.task_type != "causal_lm":
        raise ValueError(f"task_type={args.task_type}: attention is supervised of causal_lm")
    return _prepare_dataset(self)


def get_dataset(self: Any) -> tuple[Any, Any]:
    """Their data; the first rows say how boxes are written."""
    train, validation = _get_dataset(self)
    processor = self.template.processor
    # Where pictures are resized by ms-swift itself, their processor is told not to.
    settings = {"do_resize": False} if hasattr(processor.image_processor, "merge_size") else {}
    model_type = self.model.config.model_type
    options = read_options()
    options = replace(options, images=options.images or self.template.root_image_dir)
    grounding = Grounding(options, _records(train), processor, model_type, settings)
    setattr(self.template, GROUNDING, grounding)
    return train, validation


def _records(dataset: Any) -> Iterator[Columns]:
    for row in dataset:
        yield record_of(row["messages"], row.get("images"), row.get("objects"))


class SwiftTrainer(GroundingTrainerMixin, Seq2SeqTrainer):
    """The trainer of ms-swift for `swift sft`, with attention supervision."""

    needs_collator = False

    def __init__(self, *args: Any, template: Any, **kwargs: Any):
        self.grounding: Grounding = getattr(template, GROUNDING)
        options = self.grounding.options
        weight = options.attention_weight
        method = self.grounding.method
        super().__init__(*args, template=template, method=method, attention_weight=weight, **kwargs)
        if options.report_heads:
            self.add_callback(HeadReport())

    def _get_data_collator(self, args: Any, template: Any) -> CompletedBatches:
        return CompletedBatches(super()._get_data_collator(args, template), self.grounding)

    def _fix_gradient_checkpointing(self) -> None:
        """Re-entrant checkpointing, their default, keeps no gradient of attention."""
        given = self.args.gradient_checkpointing_kwargs or {}
        self.args.gradient_checkpointing_kwargs = {"use_reentrant": False, **given}
        super()._fix_gradient_checkpointing()

    @staticmethod
    def _check_options(trainer: Any) -> None:
        """`prepare_dataset` has checked them."""


Template._encode_truncated = encode_row
Template._tokenize = tokenize
Template._truncate = truncate
SwiftSft._get_dataset = get_dataset
SwiftSft._prepare_dataset = prepare_dataset
TrainerFactory.TRAINER_MAPPING["causal_lm"] = f"{__name__}.{SwiftTrainer.__name__}"
