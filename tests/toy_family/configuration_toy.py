# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""A toy family's configuration; `tests/families/test_toy_family.py` puts it into a copy of `modeling/`."""

from huggingface_hub.dataclasses import strict

from .task_config import OneStreamConfig, make_auto_map

AUTO_MAP = make_auto_map("toy", "ToyConfig", "ToyModel", "ToyForVGP")


@strict
class ToyConfig(OneStreamConfig):
    model_type = "toy"
    code_places = AUTO_MAP

    region_feature_size: int = 2048
