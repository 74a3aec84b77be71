# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""What a model loses without some of its heads, against models whose weights are zero."""

import numpy as np
import pytest
import torch

from grounded_attention.heads.ablation import ablate_heads
from grounded_attention.heads.ranking import rank_heads
from grounded_attention.modeling import VLBertForPreTraining, VLBertModel
from grounded_attention.processing.patch_grounding import PatchGroundingProcessor
from grounded_attention.supervision.head_masking import attention_modules, output_projections
from tests.helpers.exported import tiny_model
from tests.helpers.tiny_audit import FEATURES, VOCABULARY, make_examples, make_regions, processor_of
from tests.helpers.tiny_vl_bert import make_model
from tests.helpers.tiny_vlm_examples import examples, pictures
from tests.helpers.tiny_vlm_models import make_pair

COUNT = 3
QUESTION = "what is this ?"
SIZES = {
    "vocab_size": len(VOCABULARY),
    "initializer_range": 0.6,
    "region_feature_size": FEATURES,
    "max_position_embeddings": 64,
}


@torch.no_grad()
def likelihoods_by_hand(model, processor):
    """Of each answer the log-probability of the tokens of its phrases, and the number of these tokens."""
    grounding = PatchGroundingProcessor(processor)
    sums = []
    count = 0
    for example in examples(COUNT):
        phrases = [{"sentence": 1, "start": p.start, "end": p.end, "boxes": p.boxes} for p in example.phrases]
        image = pictures(COUNT)[example.image_id]
        batch = grounding(QUESTION, example.caption, images=image, phrases=phrases)
        logs = model(**grounding.model_inputs(batch)).logits[0].log_softmax(-1)
        places = batch["text_positions"][0][batch["phrase_mask"][0].any(0)]
        tokens = batch["input_ids"][0, places]
        sums.append(float(logs[places - 1, tokens].sum()))
        count += len(tokens)
    return np.array(sums), count


@torch.no_grad()
@pytest.mark.parametrize("model_type", ["llava", "qwen2_5_vl", "smolvlm", "gemma3"])
def test_ablation_equals_zeroed_weights(model_type):
    model, processor = make_pair(model_type)
    heads = [(1, 2), (0, 1)]
    given = PatchGroundingProcessor(processor), examples(COUNT), pictures(COUNT), heads
    found = ablate_heads(model, *given, instruction=QUESTION)
    plain, count = likelihoods_by_hand(model, processor)
    assert found.tokens == count
    assert found.images == COUNT
    assert found.log_likelihood == pytest.approx(plain.sum() / count, abs=1e-4)
    for layer, head in heads:
        module = attention_modules(model)[layer]
        module.o_proj.weight.unflatten(1, (-1, module.head_dim))[:, head] = 0
    without, _ = likelihoods_by_hand(model, processor)
    change = without - plain
    assert found.together.change == pytest.approx(change.sum() / count, abs=1e-3)
    assert found.together.size == pytest.approx(abs(change).sum() / count, abs=1e-3)
    low, high = found.together.interval
    assert low <= found.together.change <= high
    assert [effect.heads for effect in found.single] == [[(1, 2)], [(0, 1)]]
    assert found.together.random is not None


def test_ablation_of_a_model_that_gives_tuples_unless_asked_for_named_outputs():
    model, processor = make_pair("llava")
    given = PatchGroundingProcessor(processor), examples(COUNT), pictures(COUNT), [(1, 2)]
    named = ablate_heads(model, *given)

    # What `return_dict: false` in a configuration does, without its side effects inside transformers' own models.
    def as_configured(module, arguments, keywords, outputs):
        if keywords.get("return_dict"):
            return outputs
        return outputs.to_tuple()

    model.register_forward_hook(as_configured, with_kwargs=True)
    assert ablate_heads(model, *given) == named


def test_without_other_heads_in_the_layer_there_is_no_comparison():
    model, processor = make_pair("llava")
    heads = [(0, 0), (0, 1), (0, 2)]
    found = ablate_heads(model, PatchGroundingProcessor(processor), examples(2), pictures(2), heads)
    assert found.together.random is None
    assert found.together.difference is None


def test_a_model_without_its_language_head_has_no_ablation():
    model, processor = make_pair("llava")
    with pytest.raises(ValueError, match="LlavaModel has no language head"):
        rank_heads(model.model, processor, examples(2), pictures(2), count=1)
    assert len(rank_heads(model.model, processor, examples(2), pictures(2), count=1, ablate=0).heads) == 1


def test_a_bidirectional_prefix_has_no_ablation():
    model, processor = make_pair("paligemma")
    with pytest.raises(ValueError, match="reads a word of the prompt before it predicts it"):
        rank_heads(model, processor, examples(2), pictures(2), count=1, ablate=2)
    ranking = rank_heads(model, processor, examples(2), pictures(2), count=1)  # not asked for
    assert ranking.ablation is None
    assert ranking.about["options"]["ablate"] == 0


def slope_of_turning_down(parts, likelihoods):
    """How far four hundredths of a head move the likelihoods, times 25."""
    found = []
    for scale in (0.98, 1.02):
        plain = [part.clone() for part in parts]
        for part in parts:
            part.mul_(scale)
        found.append(likelihoods())
        for part, values in zip(parts, plain, strict=True):
            part.copy_(values)
    return 25 * abs(found[0] - found[1]).sum()


@pytest.mark.parametrize("model_type", ["llava", "qwen2_5_vl", "gemma3"])
def test_the_estimate_for_every_head_is_the_slope_of_turning_it_down(model_type):
    model, processor = make_pair(model_type)
    given = PatchGroundingProcessor(processor), examples(COUNT), pictures(COUNT), [(0, 1)]
    found = ablate_heads(model, *given, instruction=QUESTION, draws=0)
    assert all(weight.requires_grad for weight in model.parameters())
    for layer, module in attention_modules(model).items():
        parts = module.o_proj.weight.detach().unflatten(1, (-1, module.head_dim)).unbind(1)
        moved = [slope_of_turning_down([part], lambda: likelihoods_by_hand(model, processor)[0]) for part in parts]
        assert found.estimates[layer] == pytest.approx(np.array(moved) / found.tokens, abs=2e-3)


@torch.no_grad()
def masked_likelihoods_by_hand(model, regions, texts):
    """Of each caption the log-probability of the tokens of phrases with boxes, all hidden; and their number."""
    processor = processor_of(model)
    names = ("attention_mask", "token_type_ids", "region_features", "region_boxes", "region_attention_mask")
    sums = []
    count = 0
    for example in texts:
        record = regions[example.image_id]
        given = {"region_boxes": [record.boxes], "region_features": [record.features]}
        spans = [{"sentence": 0, "start": p.start, "end": p.end} for p in example.phrases if len(p.boxes)]
        batch = processor([example.caption], phrases=[spans], return_tensors="pt", **given)
        hidden = batch["phrase_mask"].any(1)
        ids = batch["input_ids"].masked_fill(hidden, VOCABULARY.index("[MASK]"))
        inputs = {name: batch[name] for name in names if name in batch}
        logs = model(input_ids=ids, **inputs).mlm_logits.log_softmax(-1)
        tokens = batch["input_ids"][hidden]
        sums.append(float(logs[hidden].gather(1, tokens[:, None]).sum()))
        count += len(tokens)
    return np.array(sums), count


@pytest.mark.parametrize("unpad", [True, False])
def test_ablation_of_a_region_model_equals_zeroed_weights(unpad):
    model = make_model(VLBertForPreTraining, **SIZES, unpad=unpad).eval()
    regions = make_regions()
    texts = make_examples(regions)[:5]
    found = rank_heads(model, processor_of(model), texts, {}, regions=regions, count=1, ablate=len(texts)).ablation
    plain, count = masked_likelihoods_by_hand(model, regions, texts)
    assert found.tokens == count
    assert found.log_likelihood == pytest.approx(plain.sum() / count, abs=1e-4)
    heads = model.config.num_attention_heads
    for layer, head in found.together.heads:
        weight = model.base_model.encoder.layer[layer].attention.output.dense.weight.data
        weight.unflatten(1, (heads, -1))[:, head] = 0
    without, _ = masked_likelihoods_by_hand(model, regions, texts)
    assert found.together.change == pytest.approx((without - plain).sum() / count, abs=1e-4)
    assert {len(layer) for layer in found.estimates} == {heads}


@pytest.mark.parametrize("family", ["vl_bert", "vilbert"])
def test_the_estimates_of_a_region_model_are_slopes(family):
    """A co-attention of ViLBERT has a head in both directions."""
    model = tiny_model(family, "pretraining", **SIZES, unpad=True).eval()
    regions = make_regions()
    texts = make_examples(regions)[:3]
    found = rank_heads(model, processor_of(model), texts, {}, regions=regions, count=1, ablate=3).ablation
    for layer, estimates in enumerate(found.estimates):
        weights = [module.weight.detach() for module in output_projections(model)[layer][0]]
        moved = []
        for head in range(len(estimates)):
            parts = [weight.unflatten(1, (len(estimates), -1))[:, head] for weight in weights]
            moved.append(slope_of_turning_down(parts, lambda: masked_likelihoods_by_hand(model, regions, texts)[0]))
        assert estimates == pytest.approx(np.array(moved) / found.tokens, abs=2e-3)
    assert model.config.unpad


def test_a_region_model_that_predicts_no_words_has_no_ablation():
    model = make_model(VLBertModel, **SIZES).eval()
    regions = make_regions()
    given = model, processor_of(model), make_examples(regions)[:2], {}
    with pytest.raises(ValueError, match="VLBertModel predicts no masked words"):
        rank_heads(*given, regions=regions, count=1, ablate=2)
    assert rank_heads(*given, regions=regions, count=1).ablation is None
