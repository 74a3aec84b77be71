# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""Region tables: boxes, features and detections of each image; readers of other formats."""
