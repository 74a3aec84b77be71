# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""What a vision-language model loses without some of its heads, against models whose weights are zero."""

import pytest
import torch

from grounded_attention.heads.ablation import ablate_heads
from grounded_attention.heads.examples import AuditExample
from grounded_attention.heads.ranking import rank_heads
from grounded_attention.processing.patch_grounding import PatchGroundingProcessor
from grounded_attention.supervision.head_masking import attention_modules
from tests.helpers.tiny_vlm_examples import examples, pictures
from tests.helpers.tiny_vlm_models import make_pair

COUNT = 3
QUESTION = "what is this ?"


@torch.no_grad()
def log_likelihood_by_hand(model, processor, example: AuditExample, instruction: str) -> list[float]:
    """The log-probability of each token of the phrases in the answer."""
    grounding = PatchGroundingProcessor(processor)
    phrases = [{"text": 1, "start": p.start, "end": p.end, "boxes": p.boxes} for p in example.phrases]
    batch = grounding(instruction, example.caption, images=pictures(COUNT)[example.image_id], phrases=phrases)
    logits = model(**grounding.model_inputs(batch)).logits[0]
    places = [int(batch["text_positions"][0, t]) for t in torch.nonzero(batch["phrase_mask"][0].any(0)).flatten()]
    return [float(logits[place - 1].log_softmax(-1)[batch["input_ids"][0, place]]) for place in places]


@torch.no_grad()
@pytest.mark.parametrize("model_type", ["llava", "qwen2_5_vl", "smolvlm", "gemma3"])
def test_ablation_equals_zeroed_weights(model_type):
    model, processor = make_pair(model_type)
    heads = [(1, 2), (0, 1)]
    found = ablate_heads(
        model,
        PatchGroundingProcessor(processor),
        examples(COUNT),
        pictures(COUNT),
        heads,
        instruction=QUESTION,
    )
    plain = [log_likelihood_by_hand(model, processor, one, QUESTION) for one in examples(COUNT)]
    count = sum(map(len, plain))
    assert found.tokens == count and found.images == COUNT
    assert found.log_likelihood == pytest.approx(sum(map(sum, plain)) / count, abs=1e-4)
    modules = attention_modules(model)
    for layer, head in heads:
        width = modules[layer].head_dim
        modules[layer].o_proj.weight[:, head * width : (head + 1) * width] = 0
    without = [log_likelihood_by_hand(model, processor, one, QUESTION) for one in examples(COUNT)]
    assert found.together.change == pytest.approx((sum(map(sum, without)) - sum(map(sum, plain))) / count, abs=1e-3)
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
        return outputs if keywords.get("return_dict") else outputs.to_tuple()

    model.register_forward_hook(as_configured, with_kwargs=True)
    assert ablate_heads(model, *given) == named


def test_without_other_heads_in_the_layer_there_is_no_comparison():
    model, processor = make_pair("llava")
    heads = [(0, 0), (0, 1), (0, 2)]
    found = ablate_heads(model, PatchGroundingProcessor(processor), examples(2), pictures(2), heads)
    assert found.together.random is None and found.together.difference is None


def test_a_model_without_its_language_head_has_no_ablation():
    model, processor = make_pair("llava")
    with pytest.raises(ValueError, match="LlavaModel has no language head, which the ablation needs"):
        rank_heads(model.model, processor, examples(2), pictures(2), count=1)
    assert len(rank_heads(model.model, processor, examples(2), pictures(2), count=1, ablate=0).heads) == 1


def test_a_bidirectional_prefix_has_no_ablation():
    model, processor = make_pair("paligemma")
    with pytest.raises(ValueError, match="reads a word of the prompt before it predicts it"):
        rank_heads(model, processor, examples(2), pictures(2), count=1)


@pytest.mark.parametrize("model_type", ["llava", "qwen2_5_vl", "gemma3"])
def test_the_estimate_for_every_head_is_the_slope_of_turning_it_down(model_type):
    """The estimate is linear: the change by a hundredth, through the weights of the head, times a hundred."""
    model, processor = make_pair(model_type)
    given = PatchGroundingProcessor(processor), examples(COUNT), pictures(COUNT), [(0, 1)]
    found = ablate_heads(model, *given, instruction=QUESTION, draws=0)
    assert all(weight.requires_grad for weight in model.parameters())
    for layer, module in attention_modules(model).items():
        assert len(found.estimates[layer]) == module.config.num_attention_heads
        for head, estimate in enumerate(found.estimates[layer]):
            part = module.o_proj.weight[:, head * module.head_dim : (head + 1) * module.head_dim]
            plain, likelihoods = part.detach().clone(), []
            for scale in (0.98, 1.02):
                with torch.no_grad():
                    part.copy_(plain * scale)
                by_hand = [log_likelihood_by_hand(model, processor, one, QUESTION) for one in examples(COUNT)]
                likelihoods.append(sum(map(sum, by_hand)) / found.tokens)
            with torch.no_grad():
                part.copy_(plain)
            assert estimate == pytest.approx(25 * (likelihoods[0] - likelihoods[1]), abs=2e-3)
