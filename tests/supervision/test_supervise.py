# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""`supervise`: which part of a model it sets, what it leaves alone, and that it can be undone."""

import doctest
import sys
from contextlib import nullcontext

import pytest
import torch
from torch import nn
from transformers.integrations import sdpa_attention

from grounded_attention.processing.patch_grounding import PatchGroundingProcessor
from grounded_attention.supervision import supervise
from tests.helpers.supervision_models import bert
from tests.helpers.tiny_vlm_examples import TEXTS, pictures
from tests.helpers.tiny_vlm_models import make_pair

QWEN = ["qwen2_5_vl", "qwen3_vl"]


def test_the_docstring_example_runs():
    result = doctest.testmod(sys.modules[supervise.__module__], optionflags=doctest.NORMALIZE_WHITESPACE)
    assert result.attempted >= 7
    assert result.failed == 0


@pytest.mark.parametrize("make", [*(lambda name=name: make_pair(name)[0] for name in QWEN), bert], ids=[*QWEN, "bert"])
def test_it_can_be_undone(make):
    model = make()
    before = model.config.get_text_config()._attn_implementation
    with supervise(model) as supervision:
        assert supervision.model.config._attn_implementation == "supervised_sdpa"
        if model is not supervision.model:
            assert model.config.vision_config._attn_implementation == "sdpa"
        with supervise(model):
            pass
        assert supervision.model.config._attn_implementation == "supervised_sdpa"  # as the inner one found it
    assert model.config.get_text_config()._attn_implementation == before == "sdpa"
    supervise(model).undo()
    assert model.config.get_text_config()._attn_implementation == before


def test_it_is_undone_after_an_error():
    model = bert()
    with pytest.raises(RuntimeError), supervise(model):
        raise RuntimeError
    assert model.config._attn_implementation == "sdpa"


def test_wrappers_are_looked_through():
    class Wrapper(nn.Module):  # as DistributedDataParallel
        def __init__(self, model):
            super().__init__()
            self.module = model

    class Adapter(nn.Module):  # as PEFT's
        def __init__(self, model):
            super().__init__()
            self.base_model = model

        def get_base_model(self):
            return self.base_model

    model = bert()
    assert supervise(Wrapper(Adapter(model))).model is model


def test_what_is_not_a_transformers_model_is_refused():
    with pytest.raises(ValueError, match="Linear is not a transformers model"):
        supervise(nn.Linear(1, 1))


@torch.no_grad()
@pytest.mark.parametrize("model_type", QWEN)
@pytest.mark.parametrize("supervised", [True, False])
def test_a_vision_tower_does_not_warn_about_rows(model_type, supervised, monkeypatch):
    """These models pass `output_attentions` on to their vision tower, whose SDPA warns about it."""
    model, processor = make_pair(model_type)
    grounding = PatchGroundingProcessor(processor)
    batch = grounding(TEXTS[0], images=pictures(1)["image 0"])
    asked = {"attention_queries": ((batch["text_positions"], batch["region_positions"]),), "output_attentions": True}
    warnings = []
    monkeypatch.setattr(sdpa_attention.logger, "warning_once", warnings.append)
    with supervise(model) if supervised else nullcontext():
        model.model(**grounding.model_inputs(batch), **asked)
    assert any("output_attentions" in text for text in warnings) is not supervised
