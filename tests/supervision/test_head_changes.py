# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""Masked and steered heads, against other formulations: zeroed weights, and attention in loops by hand."""

import numpy as np
import pytest
import torch
from torch.testing import assert_close
from transformers import AttentionInterface, AttentionMaskInterface, LlamaConfig, LlamaForCausalLM
from transformers.masking_utils import ALL_MASK_ATTENTION_FUNCTIONS

from grounded_attention.families import FAMILIES
from grounded_attention.heads.boxes import box_columns
from grounded_attention.supervision import supervise
from grounded_attention.supervision.head_masking import attention_modules, mask_heads
from grounded_attention.supervision.method import observed_layers
from grounded_attention.supervision.steering import SteeredColumns, steer_heads
from grounded_attention.supervision.supervise import find_language_model, head_count, head_layers, reads_image_apart
from tests.helpers.tiny_two_streams import make_lxmert, make_vilbert
from tests.helpers.tiny_visualbert import make_model as make_visualbert
from tests.helpers.tiny_vl_bert import make_model as make_vl_bert
from tests.helpers.tiny_vlm_examples import TEXTS, pictures
from tests.helpers.tiny_vlm_models import make_model
from tests.helpers.tiny_vlm_processors import ANSWERERS, PROCESSORS, make_processor, meant, wrap

HEADS = [(1, 0), (1, 3)]


def make_batch(model_type, count=2):
    """A model, its inputs, and the whole batch."""
    processor = make_processor(model_type, "left")
    grounding = wrap(processor, model_type)
    texts = [list(TEXTS[:count])]
    if model_type in ANSWERERS:
        texts = [["what is this ?"] * count, *texts]
    batch = grounding(*texts, images=list(pictures(count).values()))
    return make_model(model_type, processor.tokenizer), grounding.model_inputs(batch), batch


@torch.no_grad()
@pytest.mark.parametrize("model_type", sorted({*meant(), *ANSWERERS} | ({"inkling2"} & {*PROCESSORS})))
def test_masked_heads_are_those_whose_weights_are_zero(model_type):
    model, inputs, _ = make_batch(model_type)
    plain = model(**inputs).logits
    with mask_heads(model, HEADS):
        masked = model(**inputs).logits
    assert torch.equal(model(**inputs).logits, plain)
    module = attention_modules(model)[1]
    mixing = getattr(module, "o_proj", None) or module.out_proj
    weight = getattr(mixing, "linear", mixing).weight  # Inkling 2 has a gate beside it
    count = head_count(module, model.config.get_text_config())
    weight.unflatten(1, (count, -1))[:, [0, 3]] = 0
    assert_close(masked, model(**inputs).logits, atol=1e-5, rtol=1e-4)
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
    assert torch.equal(model(**batch).text_hidden_state, plain)
    count = model.config.grounding_calls[-1].num_heads
    layers = [module for name, module in model.named_modules() if name.endswith(tuple(names))]
    assert len(layers) == len(names)
    for layer in layers:
        layer.weight.unflatten(1, (count, -1))[:, 1] = 0
    assert_close(masked, model(**batch).text_hidden_state, atol=1e-5, rtol=1e-4)
    assert not torch.allclose(masked, plain, atol=1e-3)


@pytest.mark.parametrize("pair", [(2, 0), (0, 4), (-1, 0)])
def test_a_head_that_does_not_exist_is_refused(pair):
    model = small_llama()
    with pytest.raises(ValueError, match="the layers 0 to 1, with the heads 0 to 3"), mask_heads(model, [pair]):
        pass


def test_a_head_that_a_region_model_lacks_is_refused():
    model = make_vl_bert(FAMILIES["vl_bert"].base_model)
    with pytest.raises(ValueError, match="layer 9, head 0"), mask_heads(model, [(9, 0)]):
        pass


def register_by_hand(name, heads, target, strength):
    """An attention function in loops over examples and heads, which adds the number where it belongs."""

    def by_hand(module, query, key, value, attention_mask, scaling=None, **kwargs):
        groups = query.shape[1] // key.shape[1]
        output = torch.zeros_like(query)
        for example, places in enumerate(target.columns):
            for head, rows in enumerate(query[example]):
                scores = scaling * rows @ key[example, head // groups].T
                if head in heads.get(module.layer_idx, ()):
                    for place in set(places[places >= 0].tolist()):
                        scores[target.first_row[example] :, place] += strength
                hidden = attention_mask[example, 0] != 0  # eager's mask: 0 or the lowest number
                weights = scores.masked_fill(hidden, -torch.inf).softmax(-1).nan_to_num()
                output[example, head] = weights @ value[example, head // groups]
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
    assert torch.equal(model(**inputs).logits, plain)
    register_by_hand("by_hand", {1: [0, 3]}, target, 3.0)
    find_language_model(model).set_attn_implementation("by_hand")
    expected = model(**inputs).logits
    assert_close(steered[words], expected[words], atol=1e-4, rtol=1e-3)
    assert not torch.allclose(steered[words], plain[words], atol=1e-2)
    before = words & (torch.arange(words.shape[1]) < target.first_row[:, None])  # of the words that were asked for
    assert_close(steered[before], plain[before], atol=1e-5, rtol=1e-4)


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
@pytest.mark.parametrize("model_type", [*PROCESSORS, *ANSWERERS])
def test_reported_rows_are_steered_too(model_type):
    """The steered head gives exp(strength) times the weight to a column, before normalisation."""
    model, inputs, batch = make_batch(model_type, count=1)
    columns = batch["region_positions"]
    after = columns.amax(1) + 1
    if reads_image_apart(model):  # all rows
        after *= 0
    target = SteeredColumns(columns[:, :3], after)
    if model_type == "t5gemma2":
        with pytest.raises(ValueError, match="cross-attention"), steer_heads(model, [(1, 2)], target, 2.0):
            pass
        return
    kinds = getattr(find_language_model(model).config, "layer_types", None) or ["full_attention"] * 9
    layers = head_layers(model)
    layer = max(one for one in layers if kinds[one] != "sliding_attention")
    asked = {"attention_queries": ((batch["text_positions"], columns),), "output_attentions": True}

    def read():
        reports = observed_layers(model(**inputs, **asked))
        log_alpha, log_share = reports[layers.index(layer)].pairs[0]
        return (log_alpha + log_share[..., None]).exp()[0]

    with supervise(model):
        plain = read()
        with steer_heads(model, [(layer, 2)], target, 2.0):
            steered = read()
    raised = plain.clone()
    raised[..., :3] *= np.exp(2.0)
    rest = 1 - plain.sum(-1)
    expected = raised / (raised.sum(-1) + rest)[..., None]
    assert_close(steered[2], expected[2], atol=1e-5, rtol=1e-4)
    assert_close(steered[[0, 1, 3]], plain[[0, 1, 3]], atol=1e-6, rtol=1e-5)


@torch.no_grad()
def test_words_before_an_image_of_mllama_are_not_steered():
    processor = make_processor("mllama")
    model = make_model("mllama", processor.tokenizer)
    patches = wrap(processor, "mllama")
    chat = [{"role": "user", "content": [{"type": "text", "text": "a small cat"}, {"type": "image"}]}]
    batch = patches(chat, images=[np.full((37, 53, 3), 90, dtype=np.uint8)])
    inputs = patches.model_inputs(batch)
    seeing = batch["cross_attention_mask"][0].flatten(1).any(-1)
    assert not seeing[:3].any()
    before = model(**inputs).logits[0]
    layer = head_layers(model)[0]
    with steer_heads(model, [(layer, 0)], box_columns(batch, [[[0, 0, 0.5, 0.5]]]), strength=4.0):
        moved = (model(**inputs).logits[0] - before).abs().amax(-1)
    assert moved[~seeing].max() == 0
    assert moved[seeing].max() > 1e-4


def test_the_columns_of_boxes_are_the_tokens_in_them():
    _, _, batch = make_batch("llava")
    found = box_columns(batch, [[[0.0, 0.0, 1.0, 1.0]], []])
    shown = batch["region_positions"][0][batch["region_candidate_mask"][0]]
    assert found.columns[0].tolist() == shown.tolist()
    assert set(found.columns[1].tolist()) == {-1}
    assert found.first_row.tolist() == (batch["region_positions"].amax(1) + 1).tolist()


@pytest.mark.parametrize(
    "boxes, message",
    [([[]], "boxes of 1 examples, but the batch has 2"), ([[[0.5, 0.1, 0.2, 0.9]], []], "example 0: boxes")],
)
def test_boxes_that_do_not_fit_are_refused(boxes, message):
    _, _, batch = make_batch("llava")
    with pytest.raises(ValueError, match=message):
        box_columns(batch, boxes)


def small_llama():
    sizes = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 16}
    return LlamaForCausalLM(LlamaConfig(vocab_size=20, **sizes)).eval()


COLUMNS = torch.tensor([[1, 2]])


def flash_llama():
    model = small_llama()
    model.config._attn_implementation_internal = "flash_attention_2"
    return model


@pytest.mark.parametrize(
    "make, change, message",
    [
        (lambda: make_batch("gemma3")[0], {"heads": [(0, 1)]}, r"layers \[0\] of Gemma3TextModel.*sliding window"),
        (flash_llama, {}, "'flash_attention_2' takes no bias"),
        (small_llama, {"strength": float("inf")}, "expected a finite number"),
        (small_llama, {"columns": COLUMNS.float()}, "expected .* int64"),
        (small_llama, {"heads": [(7, 0)]}, "the layers 0 to 1"),
    ],
)
def test_what_cannot_be_steered_is_refused(make, change, message):
    given = {"heads": HEADS, "columns": COLUMNS, "strength": 1.0, **change}
    with pytest.raises(ValueError, match=message), steer_heads(make(), *given.values()):
        pass


def test_a_model_is_steered_once():
    model = small_llama()
    with steer_heads(model, HEADS, COLUMNS, 1.0):
        with pytest.raises(ValueError, match="steered already"), steer_heads(model, HEADS, COLUMNS, 1.0):
            pass
    assert model.config._attn_implementation == "sdpa"


@pytest.mark.parametrize(
    "columns, shape, message",
    [
        (COLUMNS, (1, 2), "position 2 is outside of the sequence of 2"),
        (torch.tensor([[1, 2], [0, -1]]), (3, 6), "2 sequences, but the model reads 3"),
    ],
)
def test_columns_of_other_sequences_are_refused(columns, shape, message):
    model = small_llama()
    with steer_heads(model, HEADS, columns, 1.0), pytest.raises(ValueError, match=message):
        model(torch.ones(shape, dtype=torch.long))


@torch.no_grad()
@pytest.mark.parametrize("unpad", [False, True])
@pytest.mark.parametrize("family", ["vl_bert", "visualbert"])
def test_steered_heads_of_region_models_look_at_the_boxes(family, unpad):
    """In every row the steered head gives exp(strength) times the weight to the regions, before normalisation."""
    make = REGION_FAMILIES[family][0]
    model = make(attn_implementation="eager")
    inputs = region_batch(model)
    first = model(**inputs, output_attentions=True).attentions[0]
    batch = {
        **inputs,
        "region_positions": torch.arange(6, 10).expand(2, -1),
        "region_image": torch.zeros(2, 4, dtype=torch.long),
        "region_candidate_mask": inputs["region_attention_mask"].bool(),
    }
    columns = box_columns(batch, [inputs["region_boxes"][0, :1], inputs["region_boxes"][1, 2:3]], 0.999)
    assert not columns.first_row.any()
    assert 6 in columns.columns[0]
    assert 8 in columns.columns[1]
    expected = first.clone()
    for example, places in enumerate(columns.columns):
        expected[example, 1, :, places[places >= 0]] *= np.exp(2.0)
    expected[:, 1] /= expected[:, 1].sum(-1, keepdim=True)
    model.config.unpad = unpad
    with steer_heads(model, [(0, 1)], columns, 2.0):
        steered = model(**inputs, output_attentions=True)
    rows = inputs["attention_mask"].bool()
    found = steered.attentions[0].transpose(1, 2)[:, :6]
    assert_close(found[rows], expected.transpose(1, 2)[:, :6][rows])
    other = make(attn_implementation="sdpa")
    other.config.unpad = unpad
    with steer_heads(other, [(0, 1)], columns, 2.0):
        states = other(**inputs).last_hidden_state[:, :6]
    assert_close(states[rows], steered.last_hidden_state[:, :6][rows], atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("family", ["vilbert", "lxmert"])
def test_heads_between_two_streams_cannot_be_steered(family):
    model = REGION_FAMILIES[family][0](FAMILIES[family].base_model)
    with pytest.raises(ValueError, match="cross-attention"), steer_heads(model, [(1, 0)], COLUMNS, 1.0):
        pass
