# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""Options of the supervision methods: through JSON and back, and what is refused."""

import json
import math

import pytest

from grounded_attention.supervision import get_method, method_names
from grounded_attention.supervision.method import AttentionMethod
from tests.helpers.supervision_models import HEADS, LAYERS, bert


@pytest.mark.parametrize("variant", ["paper", "released"])
@pytest.mark.parametrize("name", method_names())
def test_config_round_trip(name, variant):
    options = {"variant": variant} if name not in ("none", "grounding_alignment") else {}
    if name == "grounding_alignment":
        options = {"weight": 3, "pairs": 4, "negatives": "grounded", "masked": False, "whole_image": True}
        options |= {"confidence": False, "size": 8, "fusion": "concat", "pooling": "mean", "bidirectional": True}
    if isinstance(get_method(name), AttentionMethod):
        options |= {
            "layers": [2, 0],
            "heads": (1,),
            "directions": ["region_to_text"],
            "weights": {"region_to_text": 0.5},
            "box_weight": 2.0,
            "box_layer": 1,
        }
    config = get_method(name, **options).get_config_dict()
    again = get_method(**json.loads(json.dumps(config))).get_config_dict()
    assert again == config and config["name"] == name
    if "layers" in options:
        options["layers"] = [0, 2]
    assert config == config | json.loads(json.dumps(options))


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("directly", {}, "'directly' is unknown; expected one of none, indirect, direct, semi_direct"),
        ("direct", {"layer": [1]}, "no option layer; its options: variant, layers"),
        ("none", {"layers": [1]}, "no option layers; its options: none"),
        ("indirect", {"variant": "original"}, "variant='original' is unknown; expected one of paper, released"),
        ("direct", {"target": "all"}, "target='all' is unknown"),
        ("direct", {"normalization": "sum"}, "normalization='sum' is unknown"),
        ("direct", {"directions": ["image_to_text"]}, "direction='image_to_text' is unknown"),
        ("direct", {"weights": {"both": 1.0}}, "direction='both' is unknown"),
        ("direct", {"directions": []}, "directions is empty"),
        ("direct", {"layers": []}, "layers=\\[\\]: expected at least one index, each from 0 on"),
        ("direct", {"heads": [-1]}, "heads=\\[-1\\]: expected at least one index, each from 0 on"),
        ("direct", {"variant": "released", "target": "any"}, "requires variant=.paper."),
        ("direct", {"label_smoothing": 0.1}, "no option label_smoothing; its options: variant, layers"),
        ("direct", {"box_weight": -1}, "box_weight=-1: expected a finite number of at least 0"),
        ("direct", {"box_weight": math.nan}, "box_weight=nan: expected a finite number"),
        ("direct", {"box_weight": math.inf}, "box_weight=inf: expected a finite number"),
        ("semi_direct", {"box_weight": True}, "box_weight=True: expected a finite number"),
        ("direct", {"box_layer": 1}, "box_layer=1 has no effect because box_weight is 0"),
        ("direct", {"box_layer": -1}, "box_layer=-1: expected the index of a layer"),
        ("direct", {"box_layer": 1.0}, "box_layer=1.0: expected the index of a layer"),
    ],
)
def test_wrong_options_are_explained(name, options, message):
    with pytest.raises(ValueError, match=message):
        get_method(name, **options)


@pytest.mark.parametrize(("option", "index"), [("layers", LAYERS), ("heads", HEADS)])
def test_layers_and_heads_beyond_the_model_are_refused(option, index):
    with pytest.raises(ValueError, match=rf"cannot supervise {option} \[{index}\]: BertModel has {index} {option}"):
        get_method("direct", **{option: [0, index]}).prepare(bert())
