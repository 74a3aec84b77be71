# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""The names that annotations give to what has keys, such as a row or a batch, and to pairs and places."""

import os
from collections.abc import Mapping
from typing import Any

Row = Mapping[str, Any]  # a row of `grounded_rows`: its columns
Batch = Mapping[str, Any]  # inputs of a model by name, mostly tensors
Columns = Mapping[str, Any]  # values by name, which are only read: an object of JSON, options, numbers of a table
Fields = dict[str, Any]  # the same, which its owner may change

AnyPath = str | os.PathLike[str]
Head = tuple[int, int]  # layer and head
Size = tuple[int, int]  # width and height
Span = tuple[int, int]  # the first character of words, and the one after the last
Corners = tuple[float, float, float, float]  # x1, y1, x2, y2
