# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""Masked and steered heads, against other formulations: zeroed weights, and attention in loops by hand."""

import numpy as np
import pytest
import torch
from transformers import AttentionInterface, AttentionMaskInterface, LlamaConfig, LlamaForCausalLM
from transformers.masking_utils import ALL_MASK_ATTENTION_FUNCTIONS

from grounded_attention.families import FAMILIES
from grounded_attention.heads.boxes import box_columns
from grounded_attention.processing.patch_grounding import PatchGroundingProcessor
from grounded_attention.supervision import supervise
from grounded_attention.supervision.head_masking import attention_modules, mask_heads
from grounded_attention.supervision.steering import SteeredColumns, steer_heads
from grounded_attention.supervision.supervise import find_language_model, head_count, head_layers
from tests.helpers.tiny_two_streams import make_lxmert, make_vilbert
from tests.helpers.tiny_visualbert import make_model as make_visualbert
from tests.helpers.tiny_vl_bert import make_model as make_vl_bert
from tests.helpers.tiny_vlm_examples import TEXTS, pictures
from tests.helpers.tiny_vlm_models import make_model
from tests.helpers.tiny_vlm_processors import PROCESSORS, make_processor

HEADS = [(1, 0), (1, 3)]


def make_batch(model_type, padding_side="left", count=2):
    processor = make_processor(model_type, padding_side)
    grounding = PatchGroundingProcessor(processor)
    images = list(pictures(count).values())
    batch = grounding(list(TEXTS[:count]), images=images)
    return make_model(model_type, processor.tokenizer), grounding.model_inputs(batch), batch


@torch.no_grad()
@pytest.mark.parametrize("model_type", PROCESSORS)
def test_masked_heads_are_those_whose_weights_are_zero(model_type):
    model, inputs, _ = make_batch(model_type)
    plain = model(**inputs).logits
    with mask_heads(model, HEADS):
        masked = model(**inputs).logits
    torch.testing.assert_close(model(**inputs).logits, plain, rtol=0, atol=0)
    module = attention_modules(model)[1]
    mixing = getattr(module, "o_proj", None) or module.out_proj
    weight = getattr(mixing, "linear", mixing).weight  # Inkling 2 has a gate beside it
    width = weight.shape[1] // head_count(module, model.config.get_text_config())
    for _, head in HEADS:
        weight[:, head * width : (head + 1) * width] = 0
    torch.testing.assert_close(masked, model(**inputs).logits, atol=1e-5, rtol=1e-4)
    assert not torch.allclose(masked, plain, atol=1e-3)


# How a family is made, and in the names of checkpoints the layers that read the heads of layer 1.
REGION_FAMILIES = {
    "vl_bert": (make_vl_bert, ["layer.1.attention.output.dense"]),
    "visualbert": (make_visualbert, ["layer.1.attention.output.dense"]),
    "vilbert": (make_vilbert, ["c_layer.1.biOutput.dense1", "c_layer.1.biOutput.dense2"]),
    "lxmert": (make_lxmert, ["x_layers.1.visual_attention.output.dense"]),
}


def region_batch(model):
    generator = torch.Generator().manual_seed(0)
    mask = torch.ones(2, 6, dtype=torch.long)
    mask[1, 4:] = 0
    return {
        "input_ids": torch.randint(5, 30, (2, 6), generator=generator),
        "attention_mask": mask,
        "region_features": torch.rand(2, 4, model.config.region_feature_size, generator=generator),
        "region_boxes": torch.rand(2, 4, 2, 2, generator=generator).sort(dim=2).values.flatten(2),
        "region_attention_mask": torch.ones(2, 4, dtype=torch.long),
    }


@torch.no_grad()
@pytest.mark.parametrize("family", REGION_FAMILIES)
def test_masked_heads_of_region_models_are_those_whose_weights_are_zero(family):
    make, names = REGION_FAMILIES[family]
    model = make(FAMILIES[family].base_model)
    batch = region_batch(model)
    plain = model(**batch).text_hidden_state
    with mask_heads(model, [(1, 1)]):
        masked = model(**batch).text_hidden_state
    torch.testing.assert_close(model(**batch).text_hidden_state, plain, rtol=0, atol=0)
    count = model.config.grounding_calls[-1].num_heads
    layers = [module for name, module in model.named_modules() if name.endswith(tuple(names))]
    assert len(layers) == len(names)
    for layer in layers:
        layer.weight.unflatten(1, (count, -1))[:, 1] = 0
    torch.testing.assert_close(masked, model(**batch).text_hidden_state, atol=1e-5, rtol=1e-4)
    assert not torch.allclose(masked, plain, atol=1e-3)
    with pytest.raises(ValueError, match="layer 9, head 0"), mask_heads(model, [(9, 0)]):
        pass


@pytest.mark.parametrize("pair", [(2, 0), (0, 4), (-1, 0)])
def test_a_head_that_does_not_exist_is_refused(pair):
    model, _, _ = make_batch("llava")
    with (
        pytest.raises(ValueError, match="the model has the layers 0 to 1, with the heads 0 to 3"),
        mask_heads(model, [pair]),
    ):
        pass


def register_by_hand(name, heads, target, strength):
    """An attention function in loops over examples, heads and rows, which adds the number where it belongs."""

    def by_hand(module, query, key, value, attention_mask, scaling=None, **kwargs):
        groups = query.shape[1] // key.shape[1]
        output = torch.zeros_like(query)
        for example in range(len(query)):
            places = set(target.columns[example].tolist()) - {-1}
            for head in range(query.shape[1]):
                keys = key[example, head // groups]
                values = value[example, head // groups]
                chosen = head in heads.get(module.layer_idx, ())
                for row in range(query.shape[2]):
                    scores = scaling * keys @ query[example, head, row]
                    if chosen and row >= target.first_row[example]:
                        for place in places:
                            scores[place] += strength
                    hidden = attention_mask[example, 0, row] != 0  # eager's mask: 0 or the lowest number
                    weights = scores.masked_fill(hidden, -torch.inf).softmax(-1).nan_to_num()
                    output[example, head, row] = weights @ values
        return output.transpose(1, 2).contiguous(), None

    AttentionInterface.register(name, by_hand)
    AttentionMaskInterface.register(name, ALL_MASK_ATTENTION_FUNCTIONS["eager"])


@torch.no_grad()
@pytest.mark.parametrize("back_end", ["sdpa", "eager"])
@pytest.mark.parametrize("model_type", ["llava", "qwen2_5_vl", "smolvlm", "gemma3"])
def test_steered_heads_equal_loops_by_hand(model_type, back_end):
    model, inputs, batch = make_batch(model_type)
    model.set_attn_implementation(back_end)
    words = batch["attention_mask"].bool()
    target = box_columns(batch, [[[0.3, 0.2, 0.6, 0.7]], [[0.4, 0.4, 0.7, 0.5], [0.2, 0.5, 0.4, 0.8]]])
    plain = model(**inputs).logits
    with steer_heads(model, HEADS, target, 3.0):
        steered = model(**inputs).logits
    torch.testing.assert_close(model(**inputs).logits, plain, rtol=0, atol=0)
    register_by_hand("by_hand", {1: [0, 3]}, target, 3.0)
    find_language_model(model).set_attn_implementation("by_hand")
    expected = model(**inputs).logits
    torch.testing.assert_close(steered[words], expected[words], atol=1e-4, rtol=1e-3)
    assert not torch.allclose(steered[words], plain[words], atol=1e-2)
    for example, first in enumerate(target.first_row.tolist()):  # nothing before the words has changed
        before = words[example] & (torch.arange(words.shape[1]) < first)
        torch.testing.assert_close(steered[example][before], plain[example][before], atol=1e-5, rtol=1e-4)


@torch.no_grad()
@pytest.mark.parametrize("model_type", ["llava", "qwen2_5_vl", "smolvlm"])
@pytest.mark.parametrize("cache", [None, "static"])
def test_generation_with_a_cache_equals_one_without(model_type, cache):
    model, inputs, batch = make_batch(model_type)
    target = box_columns(batch, [[[0.3, 0.2, 0.6, 0.7]], [[0.2, 0.5, 0.4, 0.8]]])
    settings = {"max_new_tokens": 4, "do_sample": False, "eos_token_id": None, "pad_token_id": 0}
    with steer_heads(model, HEADS, target, 6.0):
        cached = model.generate(**inputs, **settings, cache_implementation=cache)
        plain = model.generate(**inputs, **settings, use_cache=False)
        several = model.generate(**inputs, **settings, num_beams=2, num_return_sequences=2)
    assert torch.equal(cached, plain)
    assert len(several) == 4


@torch.no_grad()
@pytest.mark.parametrize("model_type", PROCESSORS)
def test_reported_rows_are_steered_too(model_type):
    """The steered head gives exp(strength) times the weight to a column, before normalisation."""
    model, inputs, batch = make_batch(model_type, count=1)
    rows = batch["text_positions"]
    columns = batch["region_positions"]
    target = SteeredColumns(columns[:, :3], columns.amax(1) + 1)
    kinds = getattr(find_language_model(model).config, "layer_types", None) or ["full_attention"] * 9
    layers = head_layers(model)
    layer = max(one for one in layers if kinds[one] != "sliding_attention")

    def read():
        reports = model(**inputs, attention_queries=((rows, columns),), output_attentions=True).attentions
        return reports[layers.index(layer)].pairs[0]

    with supervise(model):
        before = read()
        with steer_heads(model, [(layer, 2)], target, 2.0):
            after = read()
    plain, steered = ((log_alpha + log_share[..., None]).exp()[0] for log_alpha, log_share in (before, after))
    bias = torch.ones(plain.shape[-1])
    bias[:3] = np.exp(2.0)
    rest = 1 - plain.sum(-1)
    expected = plain * bias / ((plain * bias).sum(-1) + rest)[..., None]
    torch.testing.assert_close(steered[2], expected[2], atol=1e-5, rtol=1e-4)
    torch.testing.assert_close(steered[[0, 1, 3]], plain[[0, 1, 3]], atol=1e-6, rtol=1e-5)


def test_the_columns_of_boxes_are_the_tokens_in_them():
    _, _, batch = make_batch("llava")
    found = box_columns(batch, [[[0.0, 0.0, 1.0, 1.0]], []])
    shown = batch["region_positions"][0][batch["region_candidate_mask"][0]]
    assert found.columns[0].tolist() == shown.tolist()
    assert set(found.columns[1].tolist()) == {-1}
    assert found.first_row.tolist() == (batch["region_positions"].amax(1) + 1).tolist()


@pytest.mark.parametrize(
    ("boxes", "message"),
    [([[]], "boxes of 1 examples, but the batch has 2"), ([[[0.5, 0.1, 0.2, 0.9]], []], "example 0: boxes")],
)
def test_boxes_that_do_not_fit_are_refused(boxes, message):
    _, _, batch = make_batch("llava")
    with pytest.raises(ValueError, match=message):
        box_columns(batch, boxes)


def small_llama(**settings):
    sizes = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 16}
    return LlamaForCausalLM(LlamaConfig(vocab_size=20, **sizes, **settings)).eval()


def test_what_cannot_be_steered_is_refused():
    columns = torch.tensor([[1, 2]])
    sliding = make_batch("gemma3")[0]
    flash = small_llama()
    flash.config._attn_implementation_internal = "flash_attention_2"
    cases = [
        (sliding, [(0, 1)], columns, 1.0, r"layers \[0\] of Gemma3TextModel attend in a sliding window"),
        (flash, HEADS, columns, 1.0, "'flash_attention_2' takes no bias for single heads"),
        (small_llama(), HEADS, columns, float("inf"), "expected a finite number"),
        (small_llama(), HEADS, columns.float(), 1.0, "expected .* int64"),
        (small_llama(), [(7, 0)], columns, 1.0, "the model has the layers 0 to 1"),
    ]
    for model, heads, given, strength, message in cases:
        with pytest.raises(ValueError, match=message), steer_heads(model, heads, given, strength):
            pass
    model = small_llama()
    with steer_heads(model, HEADS, columns, 1.0):
        with pytest.raises(ValueError, match="steered already"), steer_heads(model, HEADS, columns, 1.0):
            pass
        with pytest.raises(ValueError, match="position 2 is outside of the sequence of 2 tokens"):
            model(torch.tensor([[1, 2]]))
    with steer_heads(model, HEADS, torch.tensor([[1, 2], [0, -1]]), 1.0):
        with pytest.raises(ValueError, match="columns for 2 sequences, but the model reads 3"):
            model(torch.ones(3, 6, dtype=torch.long))
    assert model.config._attn_implementation == "sdpa"


@torch.no_grad()
@pytest.mark.parametrize("unpad", [False, True])
@pytest.mark.parametrize("family", ["vl_bert", "visualbert"])
def test_steered_heads_of_region_models_look_at_the_boxes(family, unpad):
    """In every row the steered head gives exp(strength) times the weight to the regions, before normalisation."""
    model = REGION_FAMILIES[family][0](attn_implementation="eager")
    inputs = region_batch(model)
    sequence = model(**inputs, output_attentions=True).attentions[0].shape[-1]
    positions = torch.arange(sequence)[None].expand(2, -1)[:, 6:10]
    batch = {**inputs, "region_positions": positions, "region_image": torch.zeros(2, 4, dtype=torch.long)}
    batch["region_candidate_mask"] = inputs["region_attention_mask"].bool()
    columns = box_columns(batch, [inputs["region_boxes"][0, :1], inputs["region_boxes"][1, 2:3]], 0.999)
    assert not columns.first_row.any()
    assert 6 in columns.columns[0]
    assert 8 in columns.columns[1]
    expected = list(model(**inputs, output_attentions=True).attentions)
    model.config.unpad = unpad
    for example, places in enumerate(columns.columns):
        expected[0][example, 1, :, places[places >= 0]] *= np.exp(2.0)
    expected[0][:, 1] /= expected[0][:, 1].sum(-1, keepdim=True)
    with steer_heads(model, [(0, 1)], columns, 2.0):
        steered = model(**inputs, output_attentions=True)
    rows = inputs["attention_mask"].bool()
    torch.testing.assert_close(
        steered.attentions[0][:, :, :6].movedim(1, 2)[rows], expected[0][:, :, :6].movedim(1, 2)[rows]
    )
    other = REGION_FAMILIES[family][0](attn_implementation="sdpa")
    other.config.unpad = unpad
    with steer_heads(other, [(0, 1)], columns, 2.0):
        torch.testing.assert_close(
            other(**inputs).last_hidden_state[:, :6][rows],
            steered.last_hidden_state[:, :6][rows],
            atol=1e-5,
            rtol=1e-4,
        )


@pytest.mark.parametrize("family", ["vilbert", "lxmert"])
def test_heads_between_two_streams_cannot_be_steered(family):
    model = REGION_FAMILIES[family][0](FAMILIES[family].base_model)
    with pytest.raises(ValueError, match="cross-attention"), steer_heads(model, [(1, 0)], torch.tensor([[0]]), 1.0):
        pass
