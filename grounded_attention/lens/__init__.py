# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""Where a vision-language model looks: maps of every word of a prompt and its answer."""

FORMS = ("plain", "relative", "sinks", "rollout", "contribution", "tam", "two-hop")
ROWS = ("own", "before")
EXPORTS = ("label-studio", "fiftyone", "coco")
# What takes the place of image tokens that are covered.
COVERS = ("mean", "blur", "neighbours")
INSTRUCTION = "Describe the image."
