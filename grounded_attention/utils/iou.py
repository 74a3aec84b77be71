# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""What help says about boxes, without numpy."""

# A region is what a gold box means if their intersection over union (IoU) is at least this.
IOU_THRESHOLD = 0.5
