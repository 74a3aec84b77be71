# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""Random generators for methods and metrics that draw from the rows of a batch."""

from collections.abc import Callable

import numpy as np

# The number of a row in the batch -> its random generator. Those of a collator depend only on the seed, the epoch and
# the key of the row.
RowGenerators = Callable[[int], np.random.Generator]


def fixed_generator(row: int) -> np.random.Generator:
    """The generator without a collator, the same for all rows, so that a row draws the same in any batch."""
    return np.random.default_rng(0)
