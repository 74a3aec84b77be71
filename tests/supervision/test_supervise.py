# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""`supervise`: which part of a model it sets, what it leaves alone, and that it can be undone."""

import doctest
import logging
import sys
from contextlib import nullcontext

import pytest
import torch
from torch import nn
from transformers.utils import logging as transformers_logging

from grounded_attention.heads.attention_grounding import AttentionGrounding
from grounded_attention.supervision import get_method, supervise
from tests.helpers.supervision_models import bert
from tests.helpers.tiny_vlms import IMAGE_POSITIONS, PATCHES, WORD_POSITIONS, qwen2_5_vl, qwen3_vl, qwen_inputs

QWEN = [qwen2_5_vl, qwen3_vl]


def grounding() -> dict[str, torch.Tensor]:
    """Five words after four patches; in the model's own sequence, whose mask hides two words of the second row."""
    phrase_mask = torch.tensor([[[1, 1, 0, 0, 0], [0, 0, 0, 1, 0]], [[0, 1, 1, 0, 0], [0, 0, 0, 0, 1]]]).bool()
    phrase_regions = torch.tensor([[[1, 0, 0, 0], [0, 0, 1, 1]], [[0, 1, 0, 0], [1, 0, 0, 0]]]).bool()
    return {
        "phrase_mask": phrase_mask,
        "phrase_regions": phrase_regions,
        "region_candidate_mask": torch.ones(2, PATCHES, dtype=torch.bool),
        "text_positions": torch.tensor([WORD_POSITIONS] * 2),
        "region_positions": torch.tensor([IMAGE_POSITIONS] * 2),
    }


def eager_maps(model, inputs: dict) -> tuple[torch.Tensor, ...]:
    model.set_attn_implementation("eager")
    maps = model(**inputs, output_attentions=True).attentions
    model.set_attn_implementation("sdpa")
    return maps


def test_the_docstring_example_runs():
    result = doctest.testmod(sys.modules[supervise.__module__], optionflags=doctest.NORMALIZE_WHITESPACE)
    assert result.attempted >= 7 and result.failed == 0


@pytest.mark.parametrize("make", QWEN)
@pytest.mark.parametrize("layers", [None, [1]], ids=["all", "one"])
def test_the_language_model_alone_is_set(make, layers):
    """The arguments that ask for attention reach the vision tower too, which must not act on them."""
    model, inputs = make(), qwen_inputs()
    batch = {**inputs, **grounding()}
    method = get_method("direct", directions=["text_to_region"], layers=layers)
    maps = eager_maps(model, inputs)
    expected = method.maps_losses(maps if layers is None else [maps[layer] for layer in layers], batch)
    method.prepare(model)
    assert model.config.vision_config._attn_implementation == "sdpa"
    found = method.losses(model(**inputs, **method.forward_kwargs(batch)), batch)
    torch.testing.assert_close(found, expected, atol=1e-4, rtol=1e-4)
    assert found["text_to_region"][1] == 2 + 1 + 2  # the last word of the second row is padding


@pytest.mark.parametrize("make", [*QWEN, bert])
def test_it_can_be_undone(make):
    model = make()
    before = model.config.get_text_config()._attn_implementation
    with supervise(model) as supervision:
        assert supervision.model.config._attn_implementation == "supervised_sdpa"
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
@pytest.mark.parametrize("make", [qwen3_vl])
def test_grounding_of_a_model_outside_the_project_is_measured(make):
    """`AttentionGrounding` on a decoder, whose attention mask covers its whole sequence, against eager maps."""
    model, inputs = make(), qwen_inputs()
    batch = {**inputs, **grounding()}
    maps, metric = eager_maps(model, inputs), AttentionGrounding(rollout=False)
    supervise(model)
    asked = metric.forward_kwargs(batch)
    assert "attention_mean" not in asked
    metric.update(model(**inputs, **asked), batch)
    figures = metric.compute(metric.state())
    assert figures["text_to_region_tokens"] == 5 and "text_to_region_rollout_by_layer" not in figures
    gold = {(0, 7): [2], (0, 8): [2], (0, 10): [4, 5], (1, 8): [3], (1, 9): [3]}
    for layer, each in enumerate(maps):
        for head in range(each.shape[1]):
            right = [int(each[b, head, row, 2:6].argmax()) + 2 in columns for (b, row), columns in gold.items()]
            assert figures["text_to_region_by_head"][layer][head] == pytest.approx(sum(right) / 5)


@torch.no_grad()
@pytest.mark.parametrize("make", [qwen2_5_vl, qwen3_vl])
def test_a_vision_tower_does_not_warn_about_rows(make, monkeypatch):
    """These models pass `output_attentions` on to their vision tower, whose SDPA warns about it."""
    model, told = make(), []
    handler = logging.Handler()
    handler.emit = lambda record: told.append(record.getMessage())
    logger = logging.getLogger("transformers.integrations.sdpa_attention")
    logger.addHandler(handler)
    monkeypatch.setattr(logger, "level", logging.WARNING)
    logger.manager._clear_cache()
    queries = ((torch.tensor([[7, 8]] * 2), torch.tensor([list(IMAGE_POSITIONS)] * 2)),)
    try:
        for supervised in (True, False):
            transformers_logging.warning_once.cache_clear()
            with supervise(model) if supervised else nullcontext():
                model.model(**qwen_inputs(), attention_queries=queries, output_attentions=True)
            assert any("output_attentions" in text for text in told) is not supervised
    finally:
        logger.removeHandler(handler)
