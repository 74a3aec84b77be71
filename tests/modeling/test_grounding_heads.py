# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""The heads of phrases in every family: parameters, saving and loading, pre-training to tasks; the sine code."""

import math

import pytest
import torch
from huggingface_hub.errors import StrictDataclassClassValidationError
from torch.testing import assert_close

from grounded_attention.families import FAMILIES
from grounded_attention.modeling.sequence_inputs import sine_encoding
from tests.helpers.exported import tiny_model
from tests.helpers.padded_inputs import padded_inputs

B = 2
HEADS = ("pretraining", "vgp", "phrase_grounding")
CLASSES = [(family, head) for family in FAMILIES for head in HEADS if head in FAMILIES[family].heads]
PHRASE = {"alignment_level": "phrase", "alignment_size": 32}
families = pytest.mark.parametrize("family", FAMILIES)
classes = pytest.mark.parametrize("family, head", CLASSES)
ALIGNMENTS = [PHRASE, {"alignment_level": "token", "alignment_size": 40}]


def make_inputs(model):
    phrase_mask = torch.zeros(B, 2, 6, dtype=torch.bool)
    phrase_mask[:, 0, 1:3] = True
    phrase_mask[0, 1, 4] = True
    return {**padded_inputs([6, 4], [4, 3], model.config.region_feature_size), "phrase_mask": phrase_mask}


def load(model, folder, **fields):
    """The model as it is loaded, and the tensors that its checkpoint lacked."""
    model.save_pretrained(folder)
    loaded, info = type(model).from_pretrained(folder, output_loading_info=True, **fields)
    return loaded, set(info["missing_keys"])


PAIRS = {
    "alignment_phrases": torch.tensor([[[1, 2], [4, -1]], [[1, 2], [-1, -1]]]),
    "alignment_pairs": torch.tensor([[[0, 1], [0, 2], [1, 3], [1, 0], [-1, -1]], [[0, 1], [0, 2], *[[-1, -1]] * 3]]),
}


@pytest.mark.parametrize("fields", ALIGNMENTS, ids=str)
@classes
def test_the_head_is_saved_loaded_and_trained(family, head, fields, tmp_path):
    model = tiny_model(family, head, **fields)
    inputs = make_inputs(model)
    scores = model(**inputs, **PAIRS).alignment_logits
    assert scores.shape == (B, 5)
    scores[PAIRS["alignment_pairs"][..., 0] >= 0].sum().backward()
    for parameter in model.alignment_head.parameters():
        assert parameter.grad.any()
    loaded, missing = load(model, tmp_path)
    assert not missing
    assert_close(loaded(**inputs, **PAIRS).alignment_logits, scores)


@classes
def test_without_the_fields_models_are_as_before(family, head, tmp_path):
    plain = tiny_model(family, head)
    with_head = tiny_model(family, head, **PHRASE)
    new = {f"alignment_head.{name}" for name, _ in with_head.alignment_head.named_parameters()}
    names = {name for name, _ in plain.named_parameters()}
    assert {name for name, _ in with_head.named_parameters()} == names | new
    inputs = make_inputs(plain)
    with torch.no_grad():
        first = plain(**inputs)
        second = plain(**inputs, region_candidate_mask=inputs["region_attention_mask"])
    assert first.get("alignment_logits") is None
    for value, other in zip(first.to_tuple(), second.to_tuple(), strict=True):
        assert not torch.is_tensor(value) or torch.equal(value, other)
    # A checkpoint without the head is loaded with a new one, which is finite, and the other way round it is left.
    loaded, missing = load(plain, tmp_path / "plain", **PHRASE)
    assert missing == new
    assert all(value.abs().max() < 5 for value in loaded.alignment_head.parameters())
    left, _ = load(with_head, tmp_path / "head", alignment_level=None)
    assert left.alignment_head is None


@pytest.mark.parametrize("family, head", [place for place in CLASSES if "pretraining" not in place])
def test_a_task_goes_on_with_the_head_of_pretraining(family, head, tmp_path):
    source = tiny_model(family, "pretraining", grounding_head=True, **PHRASE)
    for parameter in source.parameters():
        torch.nn.init.normal_(parameter)
    source.save_pretrained(tmp_path)
    cls = FAMILIES[family].heads[head]
    model = cls.from_pretrained(tmp_path)
    assert_close(model.alignment_head.state_dict(), source.alignment_head.state_dict(), rtol=0, atol=0)
    if head == "vgp":
        assert_close(model.grounding_head.state_dict(), source.grounding_head.state_dict(), rtol=0, atol=0)
    assert cls.from_pretrained(tmp_path, alignment_level=None).alignment_head is None


@families
def test_pretraining_scores_phrases_for_indirect_supervision(family):
    model = tiny_model(family, "pretraining", grounding_head=True)
    inputs = make_inputs(model)
    found = model(**inputs).grounding_logits
    assert found.shape == (B, 2, 4)
    del inputs["phrase_mask"]
    states = model.base_model(**inputs)
    words = states.text_hidden_state
    pooled = torch.zeros(B, 2, words.shape[-1])
    pooled[:, 0] = words[:, 1:3].amax(1)
    pooled[0, 1] = words[0, 4]
    assert_close(found, model.grounding_head(pooled, states.region_hidden_state))


# The sine code


def test_the_code_is_its_closed_form():
    x1, y1, x2, y2 = 0.1, 0.3, 0.8, 0.4
    expected = []
    for place in ((y1 + y2) / 2, (x1 + x2) / 2):
        for frequency in (1, 10000 ** (1 / 3), 10000 ** (2 / 3)):
            angle = 2 * math.pi * place / frequency
            expected += [math.sin(angle), math.cos(angle)]
    code = sine_encoding(torch.tensor([[[x1, y1, x2, y2]]]), 12)
    assert code[0, 0].tolist() == pytest.approx(expected, abs=1e-5)


@families
def test_every_family_adds_the_code_to_its_regions(family, tmp_path):
    sizes = {"v_hidden_size": 24} if family == "vilbert" else {}
    model = tiny_model(family, "pretraining", spatial_encoding="sine", **sizes)
    inputs = make_inputs(model)
    plain = tiny_model(family, "pretraining", **sizes)
    plain.load_state_dict(model.state_dict())
    moved = {**inputs, "region_boxes": inputs["region_boxes"].flip(1)}
    with torch.no_grad():
        states = model.base_model(**inputs).text_hidden_state
        assert not torch.allclose(states, plain.base_model(**inputs).text_hidden_state, atol=1e-4)
        assert not torch.allclose(states, model.base_model(**moved).text_hidden_state, atol=1e-4)
        if family in ("vl_bert", "visualbert"):  # with two streams, text alone reads a column of zeros and its code
            words = inputs["input_ids"]
            assert_close(model(words).mlm_logits, plain(words).mlm_logits)
    model.save_pretrained(tmp_path)
    assert type(model).from_pretrained(tmp_path).config.spatial_encoding == "sine"


def test_the_code_joins_the_embedding_of_a_region_before_its_norm():
    """ViLBERT: LayerNorm(feature + location + code), by hand."""
    model = tiny_model("vilbert", "pretraining", spatial_encoding="sine", v_hidden_size=24)
    part = model.vilbert.v_embeddings
    inputs = make_inputs(model)
    boxes = inputs["region_boxes"]
    area = (boxes[..., 2:] - boxes[..., :2]).prod(-1, keepdim=True)
    location = torch.cat([boxes, area], -1)
    total = part.image_embeddings(inputs["region_features"]) + part.image_location_embeddings(location)
    expected = part.LayerNorm(total + sine_encoding(boxes, 24))
    assert_close(part(inputs["region_features"], boxes), expected)


@families
def test_a_width_that_does_not_fit_is_named(family):
    config = FAMILIES[family].config_class
    prefix = "v_" if family == "vilbert" else ""
    width = {f"{prefix}hidden_size": 18, f"{prefix}num_attention_heads": 3}
    with pytest.raises(StrictDataclassClassValidationError, match=r"(?s)spatial_encoding.*is 18.*multiple of 4"):
        config(spatial_encoding="sine", **width)


@families
def test_no_size_is_zero(family):
    config = FAMILIES[family].config_class
    sizes = [name for name in config().to_dict() if name.endswith(("_size", "_heads"))]
    assert {"alignment_size", "hidden_size", "num_attention_heads", "vgp_hidden_size", "vocab_size"} <= {*sizes}
    for name in (*sizes, "max_position_embeddings", "num_identification_labels", "num_vgp_labels"):
        with pytest.raises(StrictDataclassClassValidationError, match=f"{name} must be positive, found 0"):
            config(**{name: 0})


@families
@pytest.mark.parametrize("wrong", [-1, math.nan, math.inf])
def test_no_number_is_negative_or_without_end(family, wrong):
    config = FAMILIES[family].config_class
    signed = ("visual_scale_text_init", "visual_scale_region_init")
    kinds = (int, float) if wrong == -1 else (float,)
    fields = {name: type(value) for name, value in config().to_dict().items() if type(value) in kinds}
    assert {"hidden_dropout_prob", "layer_norm_eps"} <= {*fields}
    for name, kind in fields.items():
        # transformers checks its own fields.
        if name.endswith("_token_id") or name == "chunk_size_feed_forward" or (wrong == -1 and name in signed):
            continue
        with pytest.raises(StrictDataclassClassValidationError, match=rf"\b{name}\b.*(-1|nan|inf)"):
            config(**{name: kind(wrong)})


@families
def test_a_dropout_is_at_most_one(family):
    config = FAMILIES[family].config_class
    config(hidden_dropout_prob=1.0)
    with pytest.raises(StrictDataclassClassValidationError, match=r"hidden_dropout_prob must be .*to 1, found 1\.5"):
        config(hidden_dropout_prob=1.5)


def test_visualbert_needs_boxes_for_the_code():
    model = tiny_model("visualbert", "pretraining", spatial_encoding="sine")
    inputs = make_inputs(model)
    del inputs["region_boxes"]
    with pytest.raises(ValueError, match="region_boxes"):
        model(**inputs)
