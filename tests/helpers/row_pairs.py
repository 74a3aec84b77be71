# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""The attention of chosen rows over chosen columns, from queries and keys made by hand."""

from grounded_attention.supervision.attention_function import read_rows


def attend_rows(query, key, queries, scaling, mask, share, causal=False, plans=None):
    return tuple(each.pair() for each in read_rows(query, key, queries, scaling, mask, causal, plans, share))
