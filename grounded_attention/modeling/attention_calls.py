# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""The attention calls of a model in which words and regions meet, in order of execution.

Supervision, audits and figures loop over these calls, so they do not depend on the architecture of a family.
"""

from collections.abc import Sequence
from typing import NamedTuple

SEQUENCE = "sequence"
TEXT = "text"
REGIONS = "regions"

# Direction -> the stream of its queries and the stream of its keys.
DIRECTION_STREAMS = {"text_to_region": (TEXT, REGIONS), "region_to_text": (REGIONS, TEXT)}


class AttentionCall(NamedTuple):
    """One call of an attention module."""

    name: str  # for users, such as `"cross 3"`, from 0; calls of one name (both directions) read the same states
    query_stream: str  # `"text"`, `"regions"`, or `"sequence"` for both together
    key_stream: str  # the stream of the keys, with the same values
    num_heads: int

    @property
    def directions(self) -> tuple[str, ...]:
        """The directions that this call computes, of `"text_to_region"` and `"region_to_text"`."""
        return tuple(
            name
            for name, (query, key) in DIRECTION_STREAMS.items()
            if self.query_stream in (query, SEQUENCE) and self.key_stream in (key, SEQUENCE)
        )


def one_stream_calls(num_layers: int, num_heads: int) -> tuple[AttentionCall, ...]:
    """The calls of a model with one sequence of text and regions: one call per layer, over the whole sequence."""
    return tuple(AttentionCall(f"layer {layer}", SEQUENCE, SEQUENCE, num_heads) for layer in range(num_layers))


def layer_names(calls: Sequence[AttentionCall]) -> list[str]:
    """The names of the calls, each once, in order. The `layer` numbers of options and figures index this list."""
    return list(dict.fromkeys(call.name for call in calls))


def layer_labels(calls: Sequence[AttentionCall]) -> list[str]:
    """The names of the calls for figures and tables: `"3"` for `"layer 3"`, others such as `"cross 3"` as they are."""
    return [name.removeprefix("layer ") for name in layer_names(calls)]
