# Copyright 2026 The grounded-attention authors. All rights reserved.
#
# Licensed under the Apache License, Version 2.0 (the "License");
# you may not use this file except in compliance with the License.
# You may obtain a copy of the License at
#
#     http://www.apache.org/licenses/LICENSE-2.0
#
# Unless required by applicable law or agreed to in writing, software
# distributed under the License is distributed on an "AS IS" BASIS,
# WITHOUT WARRANTIES OR CONDITIONS OF ANY KIND, either express or implied.
# See the License for the specific language governing permissions and
# limitations under the License.
"""Shapes and places of what the model families read.

Shape letters: B batch, C choices, T text, R regions, D hidden.
"""

import torch

# What a processor returns and a model may not need; dropped so that `model(**processor(...))` works.
UNREAD_INPUTS = ("region_candidate_mask", "phrase_mask", "phrase_regions", "phrase_pairs", "answer_positions")


def check_shape(name: str, tensor: torch.Tensor | None, expected: tuple[int | str, ...], note: str = "") -> None:
    """Compares the shape of an input, where given; names in `expected` stand for any size."""
    if tensor is None:
        return
    shape = tuple(tensor.shape)
    fits = len(shape) == len(expected)
    if not fits or any(isinstance(size, int) and size != found for size, found in zip(expected, shape, strict=True)):
        raise ValueError(f"{name} have the shape {shape}, expected ({', '.join(map(str, expected))}){note}.")


def get_first_state(text_states: torch.Tensor, text_mask: torch.Tensor) -> torch.Tensor:
    """The state (B, D) of each row's first attended token, [CLS], wherever the padding is."""
    first = text_mask.int().argmax(dim=1)
    return text_states.gather(1, first[:, None, None].expand(-1, 1, text_states.shape[-1]))[:, 0]


def locate_queries(
    grounding_queries: dict[str, tuple[torch.Tensor, torch.Tensor]], text_length: int
) -> tuple[tuple[torch.Tensor, torch.Tensor], ...]:
    """Token and region indices to sequence positions; -1 stays -1."""
    located = []
    for name, (row_start, column_start) in {
        "text_to_region": (0, text_length),
        "region_to_text": (text_length, 0),
    }.items():
        if name in grounding_queries:
            rows, columns = grounding_queries[name]
            located.append((shift_indices(rows, row_start), shift_indices(columns, column_start)))
    unknown = set(grounding_queries) - {"text_to_region", "region_to_text"}
    if unknown:
        raise ValueError(
            f"grounding_queries has the unknown entries {sorted(unknown)}; expected 'text_to_region' and "
            "'region_to_text'."
        )
    return tuple(located)


def shift_indices(indices: torch.Tensor, start: int) -> torch.Tensor:
    """Indices further on by `start`; negative ones stay."""
    return torch.where(indices < 0, indices, indices + start)


def flatten_choices(name: str, tensor: torch.Tensor | None, given: torch.Tensor) -> torch.Tensor | None:
    """(B, C, T, ...) to (B * C, T, ...); `given` is the text."""
    if tensor is None:
        return None
    check_shape(name, tensor, (*given.shape[:3], *tensor.shape[3:]))
    return tensor.flatten(0, 1)


def repeat_for_choices(tensor: torch.Tensor | None, dimensions: int, num_choices: int) -> torch.Tensor | None:
    """(B, R, ...), of so many dimensions, or (B, C, R, ...) to (B * C, R, ...)."""
    if tensor is None:
        return None
    return tensor.repeat_interleave(num_choices, dim=0) if tensor.ndim == dimensions else tensor.flatten(0, 1)


def flatten_queries(
    queries: dict[str, tuple[torch.Tensor, torch.Tensor]] | None,
) -> dict[str, tuple[torch.Tensor, torch.Tensor]] | None:
    """Queries (B * C, ...) or (B, C, ...) to (B * C, ...)."""
    if queries is None:
        return None
    flat = {}
    for name, (rows, columns) in queries.items():
        flat[name] = (rows, columns) if rows.ndim == 2 else (rows.flatten(0, 1), columns.flatten(0, 1))
    return flat


__all__ = [
    "UNREAD_INPUTS",
    "check_shape",
    "flatten_choices",
    "flatten_queries",
    "get_first_state",
    "locate_queries",
    "repeat_for_choices",
    "shift_indices",
]
