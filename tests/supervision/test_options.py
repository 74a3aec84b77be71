# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""Options of the supervision methods: through JSON and back, and what is refused."""

import json

import pytest

from grounded_attention.supervision import get_method, method_names
from grounded_attention.supervision.method import AttentionMethod
from grounded_attention.supervision.soft_attention import SoftAttention
from tests.helpers.supervision_models import HEADS, LAYERS, bert


@pytest.mark.parametrize("name", method_names())
def test_config_round_trip(name):
    options = {}
    if name == "grounding_alignment":
        options = {"weight": 3, "level": "token"}
    if isinstance(get_method(name), SoftAttention):
        chosen = {} if name == "actor" else {"layers": [2, 0], "heads": (1,)}
        options |= {**chosen, "target": "fitts", "spread": 1, "background": 0.1, "outside": 1}
    elif isinstance(get_method(name), AttentionMethod):
        options |= {
            "layers": [2, 0],
            "heads": (1,),
            "directions": ["region_to_text"],
            "weights": {"region_to_text": 0.5},
            "box_weight": 2.0,
        }
    config = get_method(name, **options).get_config_dict()
    again = get_method(**json.loads(json.dumps(config))).get_config_dict()
    assert again == config
    assert config["name"] == name
    if "layers" in options:
        options["layers"] = [0, 2]
    assert config == config | json.loads(json.dumps(options))


@pytest.mark.parametrize("option, index", [("layers", LAYERS), ("heads", HEADS)])
def test_layers_and_heads_beyond_the_model_are_refused(option, index):
    with pytest.raises(ValueError, match=rf"cannot supervise {option} \[{index}\]: BertModel has {index} {option}"):
        get_method("direct", **{option: [0, index]}).prepare(bert())
