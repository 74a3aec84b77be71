# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""Where attention looks, for every model: read, score, choose, ablate, draw and box the heads."""

# What the help of commands names is here, so that it need not import torch.
FILE = "heads.json"
# Heads are chosen on the split that they are reported on.
SAME_SPLIT = "same_split"
# Which tokens of a prompt ask where a phrase is; "prompt" is its last token.
WORDS = ("mean", "last", "first", "prompt")
# How heads are ranked: by a measure, or as Localization Heads does, without boxes.
RANKS = ("pointing", "lift", "localization")
# Ablation runs the model some 25 times for each example.
ABLATED = 64
