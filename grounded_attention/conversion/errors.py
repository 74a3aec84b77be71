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
"""Errors of the converters, and a helper that lists keys in messages."""

from collections.abc import Iterable

_MOST_NAMES = 3


class CheckpointError(ValueError):
    """A file that cannot be converted; the message contains the file or key, what was found and what was expected."""


class OverrideError(CheckpointError):
    """A wrong field in --config, or a field of --config that contradicts the file."""


def name_some(names: Iterable[str]) -> str:
    """The first three names and the number of the others, for example `a, b, c and 5 more`."""
    names = list(names)
    more = len(names) - _MOST_NAMES
    return ", ".join(names[:_MOST_NAMES]) + (f" and {more} more" if more > 0 else "")
