# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""Builders of data sets that have built their rows."""


def built(kind, data_dir, cache, **options):
    """The builder, with its report; `as_dataset` gives the rows."""
    builder = kind(data_dir=str(data_dir), cache_dir=str(cache), **options)
    builder.download_and_prepare()
    return builder
