# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""A whole tiny Qwen2.5-VL against GUI-AIMA's own forward pass: the pointer loss and its gradients in the weights."""

from pathlib import Path

import pytest
import torch
from torch.nn.utils.rnn import pad_sequence
from transformers import Qwen2_5_VLConfig, Qwen2_5_VLForConditionalGeneration

from grounded_attention import get_method, grounding_loss
from grounded_attention.supervision.method import TARGETS
from grounded_attention.supervision.soft_attention import QUERIES

PLACES = [top / "shared" / "parity" / "attention_grounding.pt" for top in Path(__file__).resolve().parents]
FILE = next((place for place in PLACES if place.is_file()), None)


def name_here(name):
    if name.startswith("model."):
        return f"model.language_model.{name.removeprefix('model.')}"
    return f"model.{name}" if name.startswith("visual.") else name


@pytest.fixture
def theirs():
    return torch.load(FILE, weights_only=True)["gui_aima"]["tiny_model"]


def make_model(theirs):
    words = dict(theirs["config"])
    vision, whole = words.pop("vision_config"), {name: words.pop(name) for name in [*words] if name.endswith("_id")}
    turned = {"rope_theta": words.pop("rope_theta"), "mrope_section": words.pop("rope_scaling")["mrope_section"]}
    words["rope_parameters"] = {"rope_type": "default", **turned}
    tied = words.pop("tie_word_embeddings")
    config = Qwen2_5_VLConfig(text_config=words, vision_config=vision, tie_word_embeddings=tied, **whole)
    model = Qwen2_5_VLForConditionalGeneration(config)
    model.load_state_dict({name_here(name): weight for name, weight in theirs["state_dict"].items()})
    return model.train()


@pytest.mark.skipif(FILE is None, reason="the file ../shared/parity/attention_grounding.pt is not there")
@pytest.mark.parametrize("number", range(4))
def test_a_whole_model_learns_as_with_their_code(theirs, number):
    case, model, ids = theirs["cases"][number], make_model(theirs), theirs["input_ids"]
    soft, (rows, length) = "kl" in case["weighting"], ids.shape
    method = get_method(
        "pointer",
        target="given",
        reduction="queries_soft" if soft else "queries_hard",
        top_queries=1 if soft else int(case["weighting"].split("_")[1]),
    )
    method.prepare(model)
    images = [(row == theirs["token_ids"]["image"]).nonzero()[:, 0] for row in ids]
    places, known = pad_sequence(images, batch_first=True, padding_value=-1), theirs["attention_mask"] > 0
    batch = {
        "phrase_mask": (ids == theirs["token_ids"]["pointer_pad"])[:, None],
        "phrase_anchor": torch.ones(rows, 1, dtype=torch.bool),
        "phrase_regions": pad_sequence([label[0] for label in theirs["labels"]], batch_first=True)[:, None].float(),
        "text_positions": torch.arange(length).expand(rows, -1).masked_fill(~known, -1),
        "region_positions": places,
        "region_attention_mask": (places >= 0).long(),
    }
    batch |= method.prepare_batch(batch)
    queries = [sample["query_positions"] for sample in case["samples"]]  # without the token that opens their anchor
    batch[TARGETS][QUERIES]["rows"] = pad_sequence(queries, batch_first=True, padding_value=-1)
    names = ("input_ids", "attention_mask", "pixel_values", "image_grid_thw", "position_ids")
    inputs = {name: theirs[name] for name in names}
    outputs = model(**inputs, labels=theirs["language_labels"], **method.forward_kwargs(batch))
    torch.testing.assert_close(outputs.loss, case["language_loss"], atol=1e-6, rtol=1e-6)
    loss = grounding_loss(method, outputs, batch)
    torch.testing.assert_close(loss.reshape(()), case["pointer_loss"].reshape(()), atol=1e-6, rtol=0)
    loss.backward()
    ours = dict(model.named_parameters())
    for name, gradient in case["gradients_of_pointer_loss"].items():
        made = ours[name_here(name)].grad
        assert (made is None) == (gradient is None), name
        if gradient is not None:
            assert (made - gradient).abs().max() <= 2e-5 * gradient.abs().max(), name
