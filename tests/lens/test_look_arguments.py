# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""What is given in the place of a model, a processor, heads or words, and models whose weights are elsewhere."""

import accelerate
import numpy as np
import pytest
import torch
from PIL import Image
from transformers import Trainer

from grounded_attention.heads.heads_file import read_pairs
from grounded_attention.lens.look import look
from grounded_attention.pages.tables import best_method
from grounded_attention.processing.image_tokens import get_image_token_family
from grounded_attention.training.loop.trainer_mixin import GroundingTrainerMixin
from tests.helpers.tiny_vlm_models import make_pair

TEXT = "what is the small cat near two red balls ?"
IMAGE = Image.fromarray(np.random.default_rng(0).integers(0, 255, (40, 56, 3), dtype=np.uint8))
NO_WORDS = [{"role": "user", "content": [{"type": "image", "image": IMAGE}]}]


@pytest.fixture(scope="module")
def pair():
    return make_pair("llava")


WRONG = {
    "swapped": (lambda model, processor: look(processor, model, IMAGE, TEXT), "model first"),
    "a class": (lambda model, processor: look(type(model), processor, IMAGE, TEXT), "is a class"),
    "a name": (lambda model, processor: look("org/name", processor, IMAGE, TEXT), "no|not"),
    "a class of processors": (lambda model, processor: look(model, type(processor), IMAGE, TEXT), "AutoProcessor"),
    "a tokenizer": (lambda model, processor: look(model, processor.tokenizer, IMAGE, TEXT), "AutoProcessor"),
    "no words": (lambda model, processor: look(model, processor, IMAGE, " \n"), "empty"),
    "a conversation without words": (lambda model, processor: look(model, processor, messages=NO_WORDS), "empty"),
    "heads as a text": (lambda model, processor: read_pairs("heads.json"), "pairs"),
    "a model of regions": (lambda model, processor: get_image_token_family(None, "vl_bert"), "attention ground"),
    "cross-attention": (lambda model, processor: get_image_token_family(None, "idefics"), "take a model"),
}


@pytest.mark.parametrize("wrong", WRONG)
def test_a_wrong_argument_is_named(pair, wrong):
    call, words = WRONG[wrong]
    with pytest.raises(ValueError, match=words) as error:
        call(*pair)
    assert "closest" not in str(error.value)


@pytest.mark.parametrize("how", ["disk", "cpu"])
def test_offloaded_weights_give_the_same_maps(pair, tmp_path, how):
    wanted = look(*pair, IMAGE, TEXT, max_new_tokens=4)
    model, processor = make_pair("llava")
    device = torch.device("cpu")
    if how == "disk":
        model = accelerate.disk_offload(model, tmp_path, execution_device=device)
    else:
        model = accelerate.cpu_offload(model, execution_device=device)
    found = look(model, processor, IMAGE, TEXT, max_new_tokens=4)
    assert found.answer == wanted.answer
    assert np.array_equal(found.attention, wanted.attention)


def test_the_mixin_comes_before_the_trainer():
    with pytest.raises(ValueError, match=r"class Late\(GroundingTrainerMixin, Trainer\)"):
        type("Late", (Trainer, GroundingTrainerMixin), {})
    type("First", (type("Other", (), {"compute_loss": None}), GroundingTrainerMixin, Trainer), {})


def test_after_a_tie_the_control_is_not_the_best():
    def measured(first, second):
        return {"text_to_region_accuracy": {"best_head": first}, "vgp_accuracy": second}

    for none, direct, best in (
        ((0.5, 0.9), (0.5, 0.8), "direct"),
        ((0.5004, 0.9), (0.5, 0.8), "direct"),  # as printed
        ((0.6, 0.8), (0.5, 0.9), "none"),
        ((0.5, 0.8), (0.6, 0.7), "direct"),
    ):
        assert best_method({"methods": {"none": measured(*none), "direct": measured(*direct)}}) == best
