# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""Texts with phrases and boxes from the rows of builders, and prompts of a vision-language model from them."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from typing import Any

import numpy as np
import torch

from grounded_attention.heads.examples import AuditExample, entity_examples, size_of
from grounded_attention.processing.open_images import open_image
from grounded_attention.processing.patch_grounding import PatchGroundingProcessor
from grounded_attention.processing.phrase import Phrase
from grounded_attention.utils.boxes import check_shape

# Which tokens of a prompt ask where a phrase is.
WORDS = ("mean", "last", "prompt")

# A picture of an image id.
Images = Callable[[str], Any] | Mapping[str, Any]


def grounded_examples(rows: Iterable[Mapping[str, Any]]) -> Iterator[AuditExample]:
    """Makes examples of the texts and phrases of a builder's rows.

    Args:
        rows (`Iterable[Mapping[str, Any]]`): rows of `flickr30k_entities` or `vgp`, whose captions have phrases; of
            `refcoco`, whose expression is one phrase; or of `visual_genome_regions`, likewise.

    Returns:
        `Iterator[AuditExample]`: the examples; captions without phrases are left out.

    Raises:
        ValueError: if the rows have other columns.
    """
    rows = iter(rows)
    first = next(rows, None)
    if first is None:
        return
    every = chain([first], rows)
    if "text" in first and "box" in first:
        for row in every:
            yield _whole_text(row["image_id"], row["text"], row["box"], size_of(row))
    elif "regions" in first:
        for row in every:
            for region in row["regions"]:
                yield _whole_text(row["image_id"], region["text"], region["box"], size_of(row))
    elif "entities" in first or "phrases" in first:
        yield from (example for example in entity_examples(every) if example.phrases)
    else:
        raise ValueError(
            f"rows with the columns {', '.join(first)} have no phrases with boxes; use flickr30k_entities, vgp, "
            "refcoco or visual_genome_regions"
        )


def _whole_text(image_id: str, text: str, box: Sequence[float], size: tuple[int, int] | None) -> AuditExample:
    boxes = np.asarray(box, dtype=np.float32).reshape(-1, 4)
    return AuditExample(image_id, text, (Phrase(text, 0, len(text), boxes=boxes),), size)


@dataclass(frozen=True)
class PromptSettings:
    """How a text with phrases becomes a prompt, and which tokens ask where a phrase is."""

    words: str = "mean"
    instruction: str | None = None

    def __post_init__(self) -> None:
        if self.words not in WORDS:
            raise ValueError(f"words={self.words!r} is unknown; expected one of {', '.join(WORDS)}")
        if self.words == "prompt" and self.instruction is not None:
            raise ValueError("words='prompt' reads the end of the user's words; remove the instruction")

    def split(self, example: AuditExample) -> Iterator[AuditExample]:
        """The prompts of an example: itself, or one for each phrase."""
        if self.words != "prompt":
            yield example
            return
        for phrase in example.phrases:
            text = example.caption[phrase.start : phrase.end]
            yield replace(example, caption=text, phrases=(replace(phrase, text=text, start=0, end=len(text)),))


def grounded_prompts(examples: Iterable[AuditExample], settings: PromptSettings) -> list[AuditExample]:
    """The prompts of examples; phrases without boxes, and examples without phrases, are left out."""
    prompts: list[AuditExample] = []
    for example in examples:
        phrases = tuple(phrase for phrase in example.phrases if len(phrase.boxes))
        if phrases:
            prompts += settings.split(replace(example, phrases=phrases))
    return prompts


def find_picture(images: Images, image_id: str) -> Any:
    """The picture of an image; a ValueError if a mapping does not have it. A function raises its own errors."""
    if callable(images):
        return images(image_id)
    if image_id not in images:
        raise ValueError(f"image {image_id!r}: images has no picture of it")
    return images[image_id]


def make_batch(processor: Any, examples: Sequence[AuditExample], images: Images, settings: PromptSettings) -> Any:
    """Makes the batch of B prompts (made by `PromptSettings.split`) with their phrases and pictures."""
    pictures = []
    for example in examples:
        pictures.append(open_image(find_picture(images, example.image_id), f"image {example.image_id}"))
        check_shape(example.size, pictures[-1].size, example.image_id, "picture")
    answers = settings.instruction is not None
    phrases = [[replace(phrase, sentence=int(answers)) for phrase in example.phrases] for example in examples]
    texts = [example.caption for example in examples]
    given = ([settings.instruction] * len(texts), texts) if answers else (texts, None)
    try:
        for number, text in enumerate(texts):
            processor.check_text(text, f"Example {number}")
        return processor(*given, images=pictures, phrases=phrases)
    except ValueError as error:
        names = ", ".join(dict.fromkeys(example.image_id for example in examples))
        raise ValueError(f"a batch of the images {names}: {error}") from error


def inputs_on(batch: Mapping[str, Any], device: torch.device) -> dict[str, Any]:
    """The entries of a batch that the model reads, on its device."""
    inputs = PatchGroundingProcessor.model_inputs(batch)
    return {name: value.to(device) if isinstance(value, torch.Tensor) else value for name, value in inputs.items()}
