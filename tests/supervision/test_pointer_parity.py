# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""A whole tiny Qwen2.5-VL against the forward passes of GUI-AIMA, GUI-Actor and V2P: losses, gradients of weights."""

import pytest
import torch
from torch.nn.utils.rnn import pad_sequence
from torch.testing import assert_close
from transformers import Qwen2_5_VLConfig, Qwen2_5_VLForConditionalGeneration

from grounded_attention import get_method, grounding_loss
from grounded_attention.supervision.actor import HEAD
from grounded_attention.supervision.method import TARGETS
from grounded_attention.supervision.soft_attention import QUERIES


def name_here(name):
    name = name.replace("multi_patch_pointer_head.", f"{HEAD}.")
    if name.startswith("model."):
        return f"model.language_model.{name.removeprefix('model.')}"
    if name.startswith("visual."):
        return f"model.{name}"
    return name


@pytest.fixture(scope="module")
def recorded(shared):
    return torch.load(shared / "parity" / "attention_grounding.pt", weights_only=True)


def make_model(theirs):
    words = dict(theirs["config"])
    vision = words.pop("vision_config")
    whole = {name: words.pop(name) for name in [*words] if name.endswith("_id")}
    turned = {"rope_theta": words.pop("rope_theta"), "mrope_section": words.pop("rope_scaling")["mrope_section"]}
    words["rope_parameters"] = {"rope_type": "default", **turned}
    tied = words.pop("tie_word_embeddings")
    config = Qwen2_5_VLConfig(text_config=words, vision_config=vision, tie_word_embeddings=tied, **whole)
    model = Qwen2_5_VLForConditionalGeneration(config)
    model.load_state_dict({name_here(name): weight for name, weight in theirs["state_dict"].items()})
    return model.train()


def make_batch(theirs, method, labels):
    ids = theirs["input_ids"]
    names = theirs["token_ids"]
    images = [(row == names["image"]).nonzero()[:, 0] for row in ids]
    places = pad_sequence(images, batch_first=True, padding_value=-1)
    gold = pad_sequence([label[0] for label in labels], batch_first=True)
    batch = {
        "phrase_mask": (ids == names["pointer_pad"])[:, None],
        "phrase_anchor": torch.ones(len(ids), 1, dtype=torch.bool),
        "phrase_regions": gold[:, None].float(),
        "text_positions": torch.arange(ids.shape[1]).where(theirs["attention_mask"] > 0, -1),
        "region_positions": places,
        "region_attention_mask": (places >= 0).long(),
    }
    return batch | method.prepare_batch(batch)


def assert_learns(model, method, batch, theirs, wanted):
    """One step's losses, and the gradients of the pointer loss."""
    names = ("input_ids", "attention_mask", "pixel_values", "image_grid_thw", "position_ids")
    inputs = {name: theirs[name] for name in names}
    outputs = model(**inputs, labels=theirs["language_labels"], **method.forward_kwargs(batch))
    assert_close(outputs.loss, wanted["language_loss"], atol=1e-6, rtol=1e-6)
    loss = grounding_loss(method, outputs, batch)
    assert_close(loss.reshape(()), wanted["pointer_loss"].reshape(()), atol=1e-6, rtol=0)
    loss.backward()
    ours = dict(model.named_parameters())
    for name, gradient in wanted["gradients_of_pointer_loss"].items():
        found = ours[name_here(name)].grad
        assert (found is None) == (gradient is None), name
        if gradient is not None:
            assert (found - gradient).abs().max() <= 2e-5 * gradient.abs().max(), name


# How the four cases of the file reduce, and over how many queries.
CASES = [("queries_hard", 1), ("queries_hard", 3), ("queries_soft", 1), ("queries_soft", 1)]


@pytest.mark.parametrize("number", range(4))
def test_attention_of_a_whole_model_is_taught_as_by_gui_aima(recorded, number):
    theirs = recorded["gui_aima"]["tiny_model"]
    case = theirs["cases"][number]
    model = make_model(theirs)
    reduction, top_queries = CASES[number]
    method = get_method("pointer", target="given", reduction=reduction, top_queries=top_queries)
    method.prepare(model)
    batch = make_batch(theirs, method, theirs["labels"])
    queries = [sample["query_positions"] for sample in case["samples"]]  # without the token that opens their anchor
    batch[TARGETS][QUERIES]["rows"] = pad_sequence(queries, batch_first=True, padding_value=-1)
    assert_learns(model, method, batch, theirs, case)


@pytest.mark.parametrize("source", ["gui_actor", "v2p"])
def test_a_head_of_a_whole_model_is_taught_as_by_its_authors(recorded, source):
    theirs = recorded["gui_aima"]["tiny_model"]
    wanted = recorded[source]["tiny_model"]
    model = make_model(theirs)
    method = get_method("actor", target="given", outside=float(source == "v2p"), dropout=0.0)
    method.prepare(model)
    getattr(model, HEAD).load_state_dict(wanted["head_state_dict"])
    assert_learns(model, method, make_batch(theirs, method, wanted["labels"]), theirs, wanted)
