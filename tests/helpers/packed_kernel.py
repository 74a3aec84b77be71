# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""A stand-in for FlashAttention, which needs a GPU."""

from itertools import pairwise

import torch
from torch.nn.functional import scaled_dot_product_attention as attend


def packed_kernel(lengths):
    """FlashAttention for packed rows, by loops; a mask goes to all queries, as in a stream's own attention."""

    def kernel(module, query, key, value, mask, *, cu_seq_lens_q=None, cu_seq_lens_k=None, scaling=None, **kwargs):
        if cu_seq_lens_q is None:
            assert query.shape[2] == key.shape[2]
            hidden = None if mask is None else mask[:, None, None].bool()
            return attend(query, key, value, hidden, scale=scaling).transpose(1, 2), None
        assert mask is None
        assert query.shape[0] == key.shape[0] == 1
        lengths.append((kwargs["max_length_q"], kwargs["max_length_k"], id(cu_seq_lens_k)))
        rows = []
        ends = cu_seq_lens_q.tolist()
        key_ends = cu_seq_lens_k.tolist()
        for (first, last), (start, end) in zip(pairwise(ends), pairwise(key_ends), strict=True):
            keys = key[:, :, start:end]
            rows.append(attend(query[:, :, first:last], keys, value[:, :, start:end], scale=scaling))
        assert ends[-1] == query.shape[2]
        assert key_ends[-1] == key.shape[2]
        return torch.cat(rows, dim=2).transpose(1, 2), None

    return kernel
