# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""Attention supervision in LLaMA-Factory: its own argument file, and ours beside it.

    python -m grounded_attention.training.trainers.llamafactory train.yaml grounding.yaml [key=value ...]

The second file has the keys of [`TrainerOptions`]. With several processes, `torchrun --nproc_per_node 2 -m ...`.
"""

import sys
from collections.abc import Iterator
from typing import Any

from llamafactory.data import SFTDataCollatorWith4DAttentionMask, loader
from llamafactory.data.processor import SupervisedDatasetProcessor
from llamafactory.train.sft import workflow
from llamafactory.train.sft.trainer import CustomSeq2SeqTrainer
from llamafactory.train.tuner import run_exp

from grounded_attention.training.loop.trainer_mixin import GroundingTrainerMixin, HeadReport
from grounded_attention.utils.named_types import Columns, Fields

from .followed_rows import GROUNDING, CompletedBatches, FollowedRow, Grounding, TrainerOptions

NOT_REENTRANT = "use_reentrant_gc=false"
_get_tokens = loader._get_preprocessed_dataset


class Launch:
    """What the replaced parts of LLaMA-Factory share in one process."""

    options: TrainerOptions
    grounding: Grounding


def record_of(prompt: list[Fields], response: list[Fields], images: Any) -> Columns:
    """A row of LLaMA-Factory as our reader takes it."""
    messages = [{"role": each["role"], "content": each["content"]} for each in [*prompt, *response]]
    return {"messages": messages, "images": list(images or ())}


class FollowedTokenizer:
    """A tokenizer that follows a row; everything else is that of the tokenizer inside."""

    def __init__(self, tokenizer: Any, row: FollowedRow):
        self._tokenizer = tokenizer
        self._row = row

    def __getattr__(self, name: str) -> Any:
        return getattr(self._tokenizer, name)

    def encode(self, text: str, add_special_tokens: bool = False) -> list[int]:
        """The tokens of a text with marks."""
        return self._row.encode(
            text, self._tokenizer, lambda plain: self._tokenizer.encode(plain, add_special_tokens=False)
        )


class GroundedProcessor(SupervisedDatasetProcessor):
    """Makes their rows into tokens, and follows the phrases."""

    tokenizer: Any
    grounding: Grounding

    def preprocess_dataset(self, examples: dict[str, list[Any]]) -> dict[str, list[Any]]:
        self.entries: list[str] = []
        made = super().preprocess_dataset(examples)
        made[GROUNDING] = self.entries
        return made

    def _encode_data_example(
        self, prompt: Any, response: Any, system: Any, tools: Any, images: Any, videos: Any, audios: Any
    ) -> tuple[list[int], list[int]]:
        grounding = self.grounding
        texts, phrases = grounding.read(record_of(prompt, response, images))
        given = [message["content"] for message in [*prompt, *response]]
        if texts != given:
            raise ValueError(f"our reader reads {texts!r:.80}, LLaMA-Factory has {given!r:.80}")
        row = FollowedRow(texts, phrases)
        marked = []
        for number, message in enumerate([*prompt, *response]):
            marked.append({**message, "content": row.marked(number)})
        tokenizer = self.tokenizer
        self.tokenizer = FollowedTokenizer(tokenizer, row)
        try:
            count = len(prompt)
            ids, labels = super()._encode_data_example(
                marked[:count], marked[count:], system, tools, images, videos, audios
            )
        finally:
            self.tokenizer = tokenizer
        self.entries.append(row.entry(ids, self._sizes(images), grounding.special))
        return [int(token) for token in ids], [int(label) for label in labels]

    def _sizes(self, images: Any) -> list[list[int]]:
        """Width and height of the pictures as their plugin gives them to the image processor."""
        most = getattr(self.processor, "image_max_pixels", 768 * 768)
        least = getattr(self.processor, "image_min_pixels", 32 * 32)
        plugin = self.template.mm_plugin
        pictures = plugin._regularize_images(images, image_max_pixels=most, image_min_pixels=least)["images"]
        return [list(picture.size) for picture in pictures]


def get_tokens(
    dataset: Any,
    data_args: Any,
    training_args: Any,
    stage: str,
    template: Any,
    tokenizer: Any,
    processor: Any = None,
    **more: Any,
) -> Any:
    """Their data as tokens; the first rows say how boxes are written."""
    if stage != "sft":
        raise ValueError(f"stage={stage}: attention is supervised in sft")
    for name in ("packing", "neat_packing"):
        if getattr(data_args, name, False):
            raise ValueError(f"{name}: attention is not supervised in rows that are packed")
    if processor is None:
        raise ValueError("the model has no processor of images: attention supervision needs a vision-language model")
    if dataset is not None and not hasattr(Launch, GROUNDING):
        Launch.grounding = Grounding(Launch.options, _records(dataset), processor)
    return _get_tokens(dataset, data_args, training_args, stage, template, tokenizer, processor, **more)


def _records(dataset: Any) -> Iterator[Columns]:
    for row in dataset:
        yield record_of(row["_prompt"], row["_response"], row["_images"])


def make_processor(*args: Any, **kwargs: Any) -> GroundedProcessor:
    processor = GroundedProcessor(*args, **kwargs)
    processor.grounding = Launch.grounding
    return processor


def make_collator(*args: Any, **kwargs: Any) -> CompletedBatches:
    if not hasattr(Launch, GROUNDING):
        raise ValueError("tokenized_path: rows that were made into tokens before have lost their boxes; remove it")
    return CompletedBatches(SFTDataCollatorWith4DAttentionMask(*args, **kwargs), Launch.grounding)


class FactoryTrainer(GroundingTrainerMixin, CustomSeq2SeqTrainer):
    """The trainer of LLaMA-Factory for `stage: sft`, with attention supervision."""

    def __init__(self, *args: Any, **kwargs: Any):
        options = Launch.options
        method = Launch.grounding.method
        super().__init__(*args, method=method, attention_weight=options.attention_weight, **kwargs)
        if options.report_heads:
            self.add_callback(HeadReport())

    @staticmethod
    def _check_options(trainer: Any) -> None:
        """`get_tokens` has checked them."""


def main(arguments: list[str]) -> None:
    """Trains as `llamafactory-cli train`, with attention supervision.

    Args:
        arguments (`list[str]`): their argument file, ours, and values that replace those of theirs, as `key=value`.
    """
    if len(arguments) < 2 or "=" in arguments[1]:
        raise SystemExit("give two files: python -m grounded_attention.training.trainers.llamafactory TRAIN GROUNDING")
    theirs, ours, *more = arguments
    Launch.options = TrainerOptions.from_file(ours)
    loader._get_preprocessed_dataset = get_tokens
    loader.SupervisedDatasetProcessor = make_processor
    workflow.SFTDataCollatorWith4DAttentionMask = make_collator
    workflow.CustomSeq2SeqTrainer = FactoryTrainer
    sys.argv = [sys.argv[0], theirs, NOT_REENTRANT, *more]
    print(f"{NOT_REENTRANT}: re-entrant gradient checkpointing keeps no gradient of attention")
    run_exp()


if __name__ == "__main__":
    main(sys.argv[1:])
