# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""Feed-forward layers in parts: the same numbers, few tokens at a time, nothing left behind."""

import pytest
import torch
from torch.testing import assert_close

from grounded_attention.heads.reading import TOKENS_AT_ONCE, feed_forward_in_parts
from tests.helpers.tiny_vgp import tiny_model, tiny_processor, tiny_table

CAPTIONS = ["a b c", "d e"]


@pytest.mark.parametrize("unpad", [False, True])
def test_parts_give_what_the_whole_gives(monkeypatch, unpad):
    monkeypatch.setitem(TOKENS_AT_ONCE, "cpu", 3)
    model = tiny_model(unpad=unpad).eval()
    table = tiny_table(2)
    seen = []
    regions = {name: [getattr(table[key], name) for key in table] for name in ("features", "boxes")}
    inputs = tiny_processor()(CAPTIONS, region_features=regions["features"], region_boxes=regions["boxes"])
    inputs.pop("region_candidate_mask")
    layer = model.vl_bert.encoder.layer[0]
    layer.intermediate.register_forward_hook(lambda module, args, output: seen.append(tuple(output.shape)))
    with torch.no_grad():
        expected = model(**inputs).identification_logits
        whole = seen.pop()
        with feed_forward_in_parts(model):
            found = model(**inputs).identification_logits
    assert_close(found, expected)
    assert {shape[0] for shape in seen[:-1]} == {3}
    assert seen[-1][0] <= 3
    assert sum(shape[0] for shape in seen) == torch.tensor(whole[:-1]).prod()
    assert "feed_forward_chunk" not in vars(layer)


def test_an_error_leaves_the_layers_as_they_were():
    model = tiny_model()
    with pytest.raises(RuntimeError, match="ended"), feed_forward_in_parts(model):
        raise RuntimeError("ended")
    assert "feed_forward_chunk" not in vars(model.vl_bert.encoder.layer[0])
