# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""Models whose weights are quantised to 8 bits by bitsandbytes, as `--dtype 8bit` loads them."""

import pytest
import torch
from bitsandbytes.nn import Int8Params, Linear8bitLt

from grounded_attention.supervision import get_method, supervise
from grounded_attention.supervision.supervise import find_language_model
from tests.helpers.tiny_vlm_batches import eager_maps, make_batch
from tests.helpers.tiny_vlm_processors import meant

# Of indexers, whose code casts states to the type of these weights; transformers keeps them as they are too.
NOT_QUANTISED = ("weights_proj",)


def quantise(model):
    """Gives the linear layers of the language model weights of 8 bits."""
    count = 0
    for module in [*find_language_model(model).modules()]:
        for name, layer in [*module.named_children()]:
            if type(layer) is torch.nn.Linear and name not in NOT_QUANTISED:
                other = Linear8bitLt(
                    layer.in_features, layer.out_features, layer.bias is not None, has_fp16_weights=False
                )
                other.weight = Int8Params(layer.weight.detach(), requires_grad=False, has_fp16_weights=False).to("cpu")
                other.bias = layer.bias
                setattr(module, name, other)
                count += 1
    assert count > 4


@torch.no_grad()
@pytest.mark.parametrize("model_type", meant())
def test_rows_of_quantised_weights_equal_eager_maps(model_type):
    model, inputs, batch = make_batch(model_type, "right")
    exact = eager_maps(model, inputs)
    quantise(model)
    rounded = eager_maps(model, inputs)
    assert not torch.allclose(exact[-1], rounded[-1], atol=1e-6)
    method = get_method("direct", directions=["text_to_region"])
    expected = method.maps_losses(rounded, batch)["text_to_region"]
    find_language_model(model).set_attn_implementation("eager")  # rounding of states would show the least difference
    with supervise(model):
        found = method.losses(model(**inputs, **method.forward_kwargs(batch)), batch)["text_to_region"]
    torch.testing.assert_close(found[0], expected[0], atol=1e-4, rtol=1e-4)
    assert found[1] == expected[1]
