# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""The names that annotations give to what has keys: a row, a batch, columns that are read, fields that are written."""

from collections.abc import Mapping
from typing import Any

Row = Mapping[str, Any]  # a row of `grounded_rows`: its columns
Batch = Mapping[str, Any]  # inputs of a model by name, mostly tensors
Columns = Mapping[str, Any]  # values by name, which are only read: an object of JSON, options, numbers of a table
Fields = dict[str, Any]  # the same, which its owner may change
