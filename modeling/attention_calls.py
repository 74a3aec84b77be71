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
"""Which attention a model has: the calls in which words and regions meet, in the order in which they are made.

Supervision, audits and figures loop over calls, so that they need not know how a family is built.
"""

from collections.abc import Sequence
from typing import NamedTuple

SEQUENCE, TEXT, REGIONS = "sequence", "text", "regions"

# Direction -> the stream of its queries and the stream of its keys.
DIRECTION_STREAMS = {"text_to_region": (TEXT, REGIONS), "region_to_text": (REGIONS, TEXT)}


class AttentionCall(NamedTuple):
    """
    One call of an attention module.

    Args:
        name (`str`): what users call it, such as `"layer 3"` or `"cross 3"`, from 0 on. The two directions of a
            co-attention are two calls of one name; calls of one name read the same states.
        query_stream (`str`): whose states are the queries: `"text"`, `"regions"`, or `"sequence"` for text and regions
            together.
        key_stream (`str`): whose states are the keys.
        num_heads (`int`): attention heads.
    """

    name: str
    query_stream: str
    key_stream: str
    num_heads: int

    @property
    def directions(self) -> tuple[str, ...]:
        """`"text_to_region"` and `"region_to_text"`, those that this call can answer."""
        return tuple(
            name
            for name, (query, key) in DIRECTION_STREAMS.items()
            if self.query_stream in (query, SEQUENCE) and self.key_stream in (key, SEQUENCE)
        )


def one_stream_calls(num_layers: int, num_heads: int) -> tuple[AttentionCall, ...]:
    """The calls of a model with one sequence of text and regions: one a layer, over the whole sequence."""
    return tuple(AttentionCall(f"layer {layer}", SEQUENCE, SEQUENCE, num_heads) for layer in range(num_layers))


def layer_names(calls: Sequence[AttentionCall]) -> list[str]:
    """The names of calls, each once, in order: what `layer` numbers of options and figures count."""
    return list(dict.fromkeys(call.name for call in calls))


__all__ = [
    "DIRECTION_STREAMS",
    "REGIONS",
    "SEQUENCE",
    "TEXT",
    "AttentionCall",
    "layer_names",
    "one_stream_calls",
]
