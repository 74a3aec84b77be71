# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""A full Omni model is read in its thinker: in memory, and from its checkpoint."""

import pytest
import torch
from numpy.testing import assert_array_equal
from transformers import AutoConfig
from transformers.models.auto.modeling_auto import MODEL_FOR_MULTIMODAL_LM_MAPPING

from grounded_attention.lens.look import look
from grounded_attention.training.experiments.pretrained import load_vlm, reads_image_tokens
from tests.helpers.tiny_vlm_models import make_pair
from tests.lens.answered_rows import ROWS

OMNI = ("qwen2_5_omni", "qwen3_omni_moe")


@pytest.mark.parametrize("kind", OMNI)
def test_a_full_model_and_its_thinker_are_read_alike(kind, tmp_path, monkeypatch):
    thinker, processor = make_pair(f"{kind}_thinker")
    config = AutoConfig.for_model(kind, thinker_config=thinker.config.to_dict(), enable_audio_output=False)
    torch.manual_seed(1)
    full = MODEL_FOR_MULTIMODAL_LM_MAPPING[type(config)](config)
    full.thinker.load_state_dict(thinker.state_dict())
    full.save_pretrained(tmp_path)
    # The tiny processor has no parts for sound, which its files would name.
    load = "grounded_attention.training.experiments.pretrained.load_processor"
    monkeypatch.setattr(load, lambda *place, **revision: processor)
    assert reads_image_tokens(str(tmp_path))
    loaded = load_vlm(str(tmp_path))
    assert type(loaded[0]) is type(thinker)
    asked = ROWS[0]["image"], ROWS[0]["text"]
    for form in ("plain", "contribution"):
        wanted = look(thinker, processor, *asked, form=form, max_new_tokens=4)
        for pair in ((full, processor), loaded):
            found = look(*pair, *asked, form=form, max_new_tokens=4)
            assert (found.answer, found.heads) == (wanted.answer, wanted.heads)
            assert_array_equal(found.attention, wanted.attention)
