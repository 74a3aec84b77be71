# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""Checks of input shapes and positions in the sequence, for all model families.

Shape letters: B batch, C choices, T text, R regions, D hidden.
"""

import math
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from ..utils.named_types import Columns, Fields
from .attention_calls import DIRECTION_STREAMS

Queries = dict[str, tuple[Tensor, Tensor]]  # direction -> rows and columns whose attention is reported

# Outputs of a processor that a model may not use. They are dropped so that `model(**processor(...))` works.
UNREAD_INPUTS = (
    "text_positions",
    "region_positions",
    "region_image",
    "region_candidate_mask",
    "phrase_mask",
    "phrase_regions",
    "phrase_scores",
    "phrase_pairs",
    "answer_positions",
)


def asking_tokens(phrase_mask: Tensor, words: str) -> Tensor:
    """The tokens of each phrase (..., T) that ask for it: all ("mean"), only its "last" or only its "first"."""
    if words == "mean":
        return phrase_mask
    places = torch.arange(1, phrase_mask.shape[-1] + 1, device=phrase_mask.device)
    mask = phrase_mask.int()
    if words == "last":
        asking = (mask * places).argmax(-1, keepdim=True)
    else:
        asking = mask.argmax(-1, keepdim=True)
    return phrase_mask * (asking + 1 == places)


def drop_unread(kwargs: Columns) -> Fields:
    """The keyword arguments without [`UNREAD_INPUTS`]."""
    if kwargs.get("region_token_type_ids") is not None:
        raise ValueError(
            "region_token_type_ids are given (regions of several images), but this model takes one image: use a model "
            "for visual reasoning, or remove region_image_indices from the processor call."
        )
    return {name: value for name, value in kwargs.items() if name not in UNREAD_INPUTS}


def embed_words(word_embeddings: nn.Module, input_ids: Tensor | None, inputs_embeds: Tensor | None) -> Tensor:
    """Word embeddings `(B, T, D)`: those of `input_ids`, or `inputs_embeds` unchanged."""
    if (input_ids is None) == (inputs_embeds is None):
        raise ValueError("Give exactly one of input_ids and inputs_embeds.")
    note = "; a model for multiple choice takes several texts for each image"
    check_shape("input_ids", input_ids, ("batch_size", "text_length"), note)
    if inputs_embeds is None:
        return word_embeddings(input_ids)
    return inputs_embeds


def check_text(
    inputs_embeds: Tensor,
    attention_mask: Tensor | None,
    token_type_ids: Tensor | None,
    longest: int,
    reason: str,
) -> None:
    """Checks the shapes of the text inputs, and that the text is not too long for the model."""
    batch_size, text_length = inputs_embeds.shape[:2]
    if text_length > longest:
        raise ValueError(
            f"The text is {text_length} tokens long, but this model takes at most {longest} ({reason}). "
            "Truncate it in the processor or tokenizer."
        )
    check_shape("attention_mask", attention_mask, (batch_size, text_length))
    check_shape("token_type_ids", token_type_ids, (batch_size, text_length))


def check_region_shapes(
    region_features: Tensor | None,
    region_boxes: Tensor | None,
    region_attention_mask: Tensor | None,
    batch_size: int,
    field: str,
    width: int,
) -> None:
    """Checks the shapes of the given region inputs."""
    num_regions: int | str = "num_regions"
    note = f"; this model's {field} is {width}"
    check_shape("region_features", region_features, (batch_size, num_regions, width), note)
    if region_features is not None:
        num_regions = region_features.shape[1]
    check_shape("region_boxes", region_boxes, (batch_size, num_regions, 4))
    if region_boxes is not None:
        num_regions = region_boxes.shape[1]
    check_shape("region_attention_mask", region_attention_mask, (batch_size, num_regions))


def check_regions(
    region_features: Tensor | None,
    region_boxes: Tensor | None,
    region_attention_mask: Tensor | None,
    batch_size: int,
    field: str,
    width: int,
    kwargs: Columns,
    reads_boxes: bool = True,
) -> None:
    """Checks the region inputs of a model without a pixel network; if it reads boxes, they belong to the features."""
    if kwargs.get("pixel_values") is not None:
        raise ValueError("pixel_values are given, but the model has no pixel network: give region_features.")
    check_region_shapes(region_features, region_boxes, region_attention_mask, batch_size, field, width)
    if region_features is None:
        refuse_alone("region_features", region_boxes=region_boxes, region_attention_mask=region_attention_mask)
    elif region_boxes is None and reads_boxes:
        raise ValueError(
            "region_boxes are missing: the model embeds the location of each region; give (x1, y1, x2, y2) divided by "
            "image width and height."
        )


def refuse_alone(missing: str, **given: Tensor | None) -> None:
    """Raises `ValueError` for inputs of regions that have a column, without what makes the states of regions."""
    for name, value in given.items():
        if value is not None and value.numel() > 0:
            raise ValueError(f"{name} are given without {missing}.")


def check_shape(name: str, tensor: Tensor | None, expected: tuple[int | str, ...], note: str = "") -> None:
    """Raises `ValueError` if the shape of a given input differs; a name in `expected` allows any size."""
    if tensor is None:
        return
    shape = tuple(tensor.shape)
    fits = len(shape) == len(expected)
    if not fits or any(isinstance(size, int) and size != own for size, own in zip(expected, shape, strict=True)):
        raise ValueError(f"{name} have the shape {shape}, expected ({', '.join(map(str, expected))}){note}.")


def get_first_state(text_states: Tensor, text_mask: Tensor) -> Tensor:
    """The state (B, D) of each row's first attended token, [CLS], wherever the padding is."""
    first = text_mask.int().argmax(dim=1)
    return text_states.gather(1, first[:, None, None].expand(-1, 1, text_states.shape[-1]))[:, 0]


def check_directions(grounding_queries: Columns) -> Columns:
    """Raises `ValueError` if `grounding_queries` has an unknown direction; returns it."""
    unknown = set(grounding_queries) - set(DIRECTION_STREAMS)
    if unknown:
        raise ValueError(
            f"grounding_queries has the unknown entries {sorted(unknown)}; expected "
            f"{' and '.join(map(repr, DIRECTION_STREAMS))}."
        )
    return grounding_queries


def locate_queries(grounding_queries: Queries, text_length: int) -> tuple[tuple[Tensor, Tensor], ...]:
    """Converts token and region indices to positions in the sequence [text][regions]."""
    check_directions(grounding_queries)
    located = []
    for name, (row_start, column_start) in {
        "text_to_region": (0, text_length),
        "region_to_text": (text_length, 0),
    }.items():
        if name in grounding_queries:
            rows, columns = grounding_queries[name]
            located.append((shift_indices(rows, row_start), shift_indices(columns, column_start)))
    return tuple(located)


def shift_indices(indices: Tensor, start: int) -> Tensor:
    """Adds `start` to indices; negative indices do not change."""
    if start == 0:
        return indices
    return torch.where(indices < 0, indices, indices + start)


# Inputs of multiple choice with one row per choice; and those that choices may share, with their dimensions then.
_CHOICE_TEXTS = ("input_ids", "attention_mask", "token_type_ids", "inputs_embeds", "token_regions")
_CHOICE_REGIONS = {
    "region_features": 3,
    "region_boxes": 3,
    "region_attention_mask": 2,
    "region_token_type_ids": 2,
    "image_text_alignment": 3,
}


class Choices(NamedTuple):
    """The sizes of a multiple-choice batch. Reshapes inputs for the base model, with one row per choice."""

    batch_size: int  # B
    num_choices: int  # C
    text_length: int  # T

    @classmethod
    def find(cls, input_ids: Tensor | None, inputs_embeds: Tensor | None) -> "Choices":
        """The sizes of `input_ids` (B, C, T) or `inputs_embeds` (B, C, T, D); `ValueError` if both are missing."""
        check_shape("input_ids", input_ids, ("batch_size", "num_choices", "text_length"))
        check_shape("inputs_embeds", inputs_embeds, ("batch_size", "num_choices", "text_length", "hidden_size"))
        words = input_ids if inputs_embeds is None else inputs_embeds
        if words is None:
            raise ValueError("Give exactly one of input_ids and inputs_embeds.")
        return cls(*words.shape[:3])

    def reshape(self, name: str, value: Any) -> Any:
        """An input of the base model, with one row per choice; what is not of texts or regions does not change."""
        if name in _CHOICE_TEXTS:
            return self.flatten(name, value)
        if name in _CHOICE_REGIONS:
            return self.repeat(value, _CHOICE_REGIONS[name])
        return value

    def flatten(self, name: str, tensor: Tensor | None) -> Tensor | None:
        """Reshapes a text input (B, C, T, ...) to (B * C, T, ...)."""
        if tensor is None:
            return None
        check_shape(name, tensor, (*self, *tensor.shape[3:]))
        return tensor.flatten(0, 1)

    def repeat(self, tensor: Tensor | None, dimensions: int) -> Tensor | None:
        """Reshapes a region input (B, R, ...), with `dimensions` dimensions, or (B, C, R, ...) to (B * C, R, ...)."""
        if tensor is None:
            return None
        if tensor.ndim == dimensions:
            # Not `repeat_interleave`: with a number of choices that is not fixed, ONNX has no such node.
            return tensor[:, None].expand(-1, self.num_choices, *tensor.shape[1:]).flatten(0, 1)
        return tensor.flatten(0, 1)

    def flatten_queries(self, queries: Queries | None) -> Queries | None:
        """Reshapes grounding queries (B, C, ...) to (B * C, ...); those of shape (B * C, ...) do not change."""
        if queries is None:
            return None
        flat = {}
        for name, (rows, columns) in queries.items():
            flat[name] = (rows, columns) if rows.ndim == 2 else (rows.flatten(0, 1), columns.flatten(0, 1))
        return flat


TEMPERATURE = 10000.0


def sine_encoding(region_boxes: Tensor, width: int) -> Tensor:
    """Encodes the centre of boxes, y then x, as sines and cosines. A coordinate in [0, 1] times 2 pi is an angle; each
    has `width / 2` channels, of which channels 2 i and 2 i + 1 are the sine and the cosine of the angle divided by
    `10000 ** (4 i / width)`.
    """
    boxes = region_boxes.float()
    places = ((boxes[..., :2] + boxes[..., 2:]) / 2).flip(-1)
    channels = width // 2
    steps = torch.arange(0, channels, 2, device=boxes.device, dtype=torch.float32)
    angles = (2 * math.pi * places)[..., None] / TEMPERATURE ** (steps / channels)
    return torch.stack([angles.sin(), angles.cos()], dim=-1).flatten(-3)
