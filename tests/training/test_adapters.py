# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""Adapters of strangers: the patterns that PEFT would match with every module."""

import json

import pytest

from grounded_attention.training.recipes.adapters import base_of

# As Unsloth writes it for vision-language models.
UNSLOTH = r"(?:.*?(?:vision|language).*?(?:self_attn|mlp).*?(?:q_proj|v_proj).*?)"
UNSLOTH += r"|(?:\bmodel\.layers\.[\d]{1,}\.(?:mlp)\.(?:up))"


@pytest.mark.parametrize(
    "fields, is_refused",
    [
        ({"target_modules": ["q_proj", "v_proj"]}, False),
        ({"target_modules": UNSLOTH}, False),
        ({"target_modules": "all-linear", "rank_pattern": {r"^model\.layers\.(\d+)\.q_proj$": 4}}, False),
        ({"rank_pattern": {"(a+)+$": 4}}, True),
        ({"alpha_pattern": {"(?:a|a)*b": 4}}, True),
        ({"target_modules": ".*" * 20 + "x"}, True),
        ({"exclude_modules": "(x{1,9}){1,9}y"}, True),
        ({"rank_pattern": {"a" * 10_000: 4}}, True),
    ],
)
def test_patterns_that_may_never_end(tmp_path, fields, is_refused):
    content = {"base_model_name_or_path": "org/base", "peft_type": "LORA", **fields}
    (tmp_path / "adapter_config.json").write_text(json.dumps(content))
    if not is_refused:
        assert base_of(str(tmp_path)) == "org/base"
        return
    with pytest.raises(ValueError, match=r"adapter_config\.json: the pattern"):
        base_of(str(tmp_path))
