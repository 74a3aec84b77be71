# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""The position of a region as numbers that extend its feature.

Shapes: B batch, R region columns, D feature size.
"""

import numpy as np

# x1, y1, x2, y2, width, height
SPATIAL_SIZE = 6


def append_spatial_features(features: np.ndarray, boxes: np.ndarray, attended: np.ndarray) -> np.ndarray:
    """Appends x1, y1, x2, y2, width and height of the normalised box to each feature."""
    sides = boxes[..., 2:] - boxes[..., :2]
    return np.concatenate((features, np.concatenate((boxes, sides), axis=-1) * attended[..., None]), axis=-1).astype(
        np.float32, copy=False
    )
