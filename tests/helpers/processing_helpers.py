# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""A tiny tokenizer and processor for the tests of `processing`."""

from transformers import BertTokenizer

from grounded_attention.processing import VLBertProcessor

VOCABULARY = (
    "[PAD] [UNK] [CLS] [SEP] [MASK] a an the man men woman in on with red blue shirt dog cafe run holds two . , ' "
    "##s ##ning ##ning ##es umbrella um ##bre ball and of at"
).split()
FEATURE_SIZE = 6


def make_tokenizer(vocabulary=VOCABULARY):
    return BertTokenizer(vocab={word: index for index, word in enumerate(dict.fromkeys(vocabulary))})


def make_processor(**options):
    return VLBertProcessor(make_tokenizer(), **{"region_feature_size": FEATURE_SIZE, **options})


def span(text, words, of=0, **grounding):
    """Makes the phrase `words` in `text`, which has index `of` in its example."""
    start = text.index(words)
    return {"sentence": of, "start": start, "end": start + len(words), **grounding}
