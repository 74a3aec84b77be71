# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""The overlap of two boxes in plain numbers, for tests that compute it a second time."""


def plain_iou(one, other):
    """Intersection over union of two boxes (x1, y1, x2, y2)."""
    width = max(min(one[2], other[2]) - max(one[0], other[0]), 0)
    height = max(min(one[3], other[3]) - max(one[1], other[1]), 0)
    area = (one[2] - one[0]) * (one[3] - one[1])
    other_area = (other[2] - other[0]) * (other[3] - other[1])
    return width * height / (area + other_area - width * height)
