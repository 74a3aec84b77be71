# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""Makes pseudo-labels: finds the noun phrases of captions, grounds them with any model, and writes the boxes."""

# Where the phrases of captions come from, and what a zero-shot detector is asked for.
SOURCES = ("textblob", "spacy", "words", "given")
PROMPTS = ("phrases", "caption")
FLORENCE = "florence2"
MANIFEST = "pseudo_labels.json"  # of finished labels
BOXES_PER_PHRASE = 1
THRESHOLD = 0.0
NMS = 0.7
