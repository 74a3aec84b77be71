# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""Decoders in which not every layer has heads: heads are named by the layer's index in the model, everywhere."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from transformers import AutoConfig, AutoModel, AutoModelForImageTextToText

from grounded_attention.heads.ablation import ablate_heads
from grounded_attention.heads.attention_grounding import AttentionGrounding, summarise
from grounded_attention.heads.example_attention import capture_examples
from grounded_attention.heads.examples import AuditExample
from grounded_attention.heads.heads_file import ChosenHeads
from grounded_attention.heads.measure import audit
from grounded_attention.heads.ranking import rank_heads
from grounded_attention.heads.reading import get_observer
from grounded_attention.processing.patch_grounding import PatchGroundingProcessor
from grounded_attention.processing.phrase import Phrase
from grounded_attention.supervision import get_method, supervise
from grounded_attention.supervision.head_masking import attention_modules, mask_heads
from grounded_attention.supervision.method import observed_layers
from grounded_attention.supervision.steering import steer_heads
from grounded_attention.supervision.supervise import find_calls, find_language_model, head_layers
from grounded_attention.training.loop.chosen_heads import supervise_chosen
from grounded_attention.training.recipes.recipe import Model, Recipe, SupervisionSection
from tests.helpers.tiny_vlm_examples import TEXTS, examples, pictures
from tests.helpers.tiny_vlm_models import make_pair
from tests.helpers.tiny_vlm_processors import make_processor
from tests.helpers.tiny_vlm_relatives import CLIP, TEXT

LAYERS = 4
DELTA = {f"linear_{name}": value for name, value in
         {"num_key_heads": 2, "num_value_heads": 4, "key_head_dim": 8, "value_head_dim": 8}.items()}  # fmt: skip
MAMBA = {"mamba_n_heads": 8, "mamba_d_head": 8, "mamba_d_state": 8, "mamba_n_groups": 1, "mamba_d_ssm": 64,
         "mamba_chunk_size": 16}  # fmt: skip
EXPERTS = {"num_local_experts": 2, "num_experts": 2, "num_experts_per_tok": 1, "moe_intermediate_size": 16,
           "shared_expert_intermediate_size": 16, "shared_intermediate_size": 16}  # fmt: skip
# Type of the language model -> its layers with softmax attention over the sequence, and its configuration.
HYBRIDS = {
    "qwen3_5_text": ([1, 3], {**DELTA, "layer_types": ["linear_attention", "full_attention"] * 2}),
    "lfm2": ([2, 3], {"layer_types": ["conv", "conv", "full_attention", "full_attention"]}),
    "nemotron_h": (
        [1, 3],
        {
            "layers_block_type": ["mamba", "attention", "mamba", "attention"],
            "mamba_num_heads": 8,
            "mamba_head_dim": 8,
            "ssm_state_size": 8,
            "n_groups": 1,
            "chunk_size": 16,
        },
    ),
    "minimax": ([1, 2], {**EXPERTS, "layer_types": ["linear_attention", *["full_attention"] * 2, "linear_attention"]}),
    "bamba": ([0, 2], {**MAMBA, "attn_layer_indices": [0, 2]}),
    "falcon_h1": ([0, 1, 2, 3], MAMBA),  # attention and a state space side by side in every layer
    "laguna": ([0, 1, 2, 3], {**EXPERTS, "num_attention_heads_per_layer": [4, 6, 4, 6]}),
}


def make_hybrid(model_type):
    """LLaVA with a hybrid language model, and its processor."""
    try:
        text = AutoConfig.for_model(model_type, **{**TEXT, "num_hidden_layers": LAYERS}, **HYBRIDS[model_type][1])
    except ValueError:
        pytest.skip(f"this transformers has no {model_type}")
    torch.manual_seed(1)
    processor = make_processor("llava")
    config = AutoConfig.for_model(
        "llava",
        text_config=text.to_dict(),
        vision_config={**CLIP, "image_size": 24},
        image_token_id=processor.image_token_id,
    )
    return AutoModelForImageTextToText.from_config(config).eval(), processor


def heads_of(model, layers):
    modules = attention_modules(model)
    return [(layer, head) for layer in layers for head in range(getattr(modules[layer], "num_heads", 4))]


@torch.no_grad()
def logits_by_hand(model, inputs, layer, head):
    """The logits with one head's slice of the input of the output projection set to zero."""
    width = attention_modules(model)[layer].head_dim

    def zero(module, args):
        states = args[0].clone()
        states[..., head * width : (head + 1) * width] = 0
        return (states, *args[1:])

    decoder = find_language_model(model).layers[layer]
    attention = getattr(decoder, "self_attn", None) or decoder.mixer
    projection = getattr(attention, "o_proj", None) or attention.out_proj
    handle = projection.register_forward_pre_hook(zero)
    try:
        return model(**inputs).logits
    finally:
        handle.remove()


def make_batch(processor, count=2):
    grounding = PatchGroundingProcessor(processor)
    phrases = [[{"sentence": 0, "start": 0, "end": 5, "boxes": [[0.2, 0.2, 0.6, 0.6]]}]] * count
    return grounding, grounding(list(TEXTS[:count]), images=list(pictures(count).values()), phrases=phrases)


@torch.no_grad()
@pytest.mark.parametrize("model_type", HYBRIDS)
def test_a_ranked_head_is_the_one_that_is_masked_steered_and_read(model_type):
    layers = HYBRIDS[model_type][0]
    model, processor = make_hybrid(model_type)
    assert head_layers(model) == head_layers(model.config) == layers
    grounding, batch = make_batch(processor)
    inputs = grounding.model_inputs(batch)
    plain = model(**inputs).logits
    everything = heads_of(model, layers)
    ranking = rank_heads(model, processor, examples(2), pictures(2), count=len(everything), ablate=2)
    assert {*ranking.heads} == {*everything}
    without = [layer for layer in range(LAYERS) if layer not in layers]
    assert [*ranking.reported_on.headless] == without
    assert len(ranking.ablation.single) == len(everything)
    assert ("no softmax" in ranking.to_markdown()) == bool(without)
    rows = batch["text_positions"]
    columns = batch["region_positions"]
    for layer, head in everything[:2] + everything[-2:]:
        with mask_heads(model, [(layer, head)]):
            masked = model(**inputs).logits
        torch.testing.assert_close(masked, logits_by_hand(model, inputs, layer, head), rtol=0, atol=0)
        assert not torch.allclose(masked, plain, atol=1e-4)
        with steer_heads(model, [(layer, head)], columns[:, :3], 5.0):
            assert not torch.allclose(model(**inputs).logits, plain, atol=1e-4)
        with supervise(model), steer_heads(model, [(layer, head)], columns[:, :3], 5.0):
            asked = {"attention_queries": ((rows, columns),), "output_attentions": True}
            steered = observed_layers(model(**inputs, **asked))
        with supervise(model):
            reports = observed_layers(model(**inputs, **asked))
        assert [report.layer for report in reports] == layers
        changed = [
            (one.layer, number)
            for one, other in zip(reports, steered, strict=True)
            for number in range(one.pairs[0][0].shape[1])
            if one.layer <= layer and not torch.allclose(one.pairs[0][0][:, number], other.pairs[0][0][:, number])
        ]
        assert changed == [(layer, head)]  # the steered head is the one that reports under this name


@torch.no_grad()
@pytest.mark.parametrize("model_type", ["qwen3_5_text", "lfm2"])
def test_the_ranking_has_the_scores_of_eager_maps_at_the_layers_of_the_model(model_type):
    model, processor = make_hybrid(model_type)
    ranking = rank_heads(model, processor, examples(1), pictures(1), count=1, ablate=0)
    (example,) = examples(1)
    grounding = PatchGroundingProcessor(processor)
    phrase = example.phrases[0]
    given = [{"sentence": 0, "start": phrase.start, "end": phrase.end, "boxes": phrase.boxes}]
    batch = grounding(example.caption, images=pictures(1)["image 0"], phrases=given)
    model.set_attn_implementation("eager")
    maps = model(**grounding.model_inputs(batch), output_attentions=True).attentions
    columns = batch["region_positions"][0][batch["region_candidate_mask"][0]]
    tokens = batch["text_positions"][0][batch["phrase_mask"][0, 0]]
    expected = np.zeros((LAYERS, 4))
    for layer, attention in zip(HYBRIDS[model_type][0], maps, strict=True):
        expected[layer] = attention[0][:, tokens][..., columns].sum(-1).mean(-1)
    one = replace(example, phrases=example.phrases[:1])
    table = audit(model, processor, [one], images=pictures(1), word="mean", progress=False)
    np.testing.assert_allclose(table.counts.mean_share, expected, atol=1e-5)
    assert len(table.layers) == len(ranking.to_dict()["layers"]) == LAYERS
    assert table.headless
    shown = capture_examples(model, PatchGroundingProcessor(processor), [example], None, pictures(1))
    assert shown[0].layers == tuple(map(str, HYBRIDS[model_type][0]))
    assert len(shown[0].attention) == 2


@pytest.mark.parametrize("model_type", ["qwen3_5_text", "lfm2", "nemotron_h"])
def test_heads_of_layers_without_heads_are_refused(model_type):
    model, processor = make_hybrid(model_type)
    layers = HYBRIDS[model_type][0]
    names = ", ".join(map(str, HYBRIDS[model_type][0]))
    columns = torch.tensor([[1, 2]])
    refused = [
        lambda: mask_heads(model, [(0, 1)]).__enter__(),
        lambda: steer_heads(model, [(0, 1)], columns, 1.0).__enter__(),
        lambda: ablate_heads(model, PatchGroundingProcessor(processor), examples(1), pictures(1), [(0, 1)]),
        lambda: ChosenHeads(((0, 1),)).check(model),
        lambda: get_method("direct", layers=[0]).prepare(model),
        lambda: get_method("direct", heads=[[0, 1], [3, 0]]).prepare(model),
    ]
    for call in refused:
        with pytest.raises(ValueError, match=f"layers {names}"):
            call()
    with pytest.raises(ValueError, match="2 layers of 4 heads"):  # a file with places instead of layers
        ChosenHeads(((1, 1),), layers=len(layers), heads_per_layer=4).check(model)
    ChosenHeads(((layers[0], 3),), layers=LAYERS, heads_per_layer=4).check(model)


@pytest.mark.parametrize("options", [{"layers": [3]}, {"layers": ["layer 3"]}, {"heads": [[3, 1]]}])
@pytest.mark.parametrize("method", ["direct", "semi_direct"])
def test_supervised_layers_are_those_of_the_model(method, options):
    if method == "semi_direct" and "heads" in options:
        pytest.skip("this method averages heads")
    model, processor = make_hybrid("qwen3_5_text")
    grounding, batch = make_batch(processor)
    made = get_method(method, **options)
    made.prepare(model)
    outputs = model(**grounding.model_inputs(batch), **made.forward_kwargs(batch))
    sum(total for total, _ in made.losses(outputs, batch).values()).backward()
    gradients = {layer: module.k_proj.weight.grad for layer, module in attention_modules(model).items()}
    assert gradients[3].abs().sum() > 0
    if "heads" in options:  # the rows of the one supervised query head alone have a gradient
        rows = attention_modules(model)[3].q_proj.weight.grad.unflatten(0, (4, -1)).abs().sum((1, 2)) > 0
        assert rows.tolist() == [False, True, False, False]


@torch.no_grad()
def test_measured_heads_of_a_training_have_the_layers_of_the_model():
    model, processor = make_hybrid("lfm2")
    grounding, batch = make_batch(processor)
    metric = AttentionGrounding()
    with supervise(model):
        metric.update(model(**grounding.model_inputs(batch), **metric.forward_kwargs(batch)), batch)
    figures = metric.compute(metric.state())
    assert figures["text_to_region_layers"] == [2, 3]
    assert len(figures["text_to_region_by_head"]) == 2
    chosen = summarise(figures, figures)
    assert chosen["layer"] in (2, 3)
    assert chosen["head"][0] in (2, 3)
    assert chosen["rollout_layer"] in (2, 3)
    measured = {"accuracy": [[0.1, 0.9], [0.2, 0.3]], "layers": [2, 3]}
    for kind, heads in (({"best": 2}, [[2, 1], [3, 1]]), ({"worst": 1}, [[2, 0]]), ({"list": [[3, 0]]}, [[3, 0]])):
        recipe = Recipe(methods=["direct"], model=Model(), supervision=SupervisionSection(heads=kind))
        made, record = supervise_chosen(recipe, measured)
        assert made.supervision.options["direct"]["heads"] == heads
        assert all(0 < one["accuracy"] < 1 for one in record["heads"])


@torch.no_grad()
def test_cross_attention_has_heads_to_remove_but_no_positions_of_the_sequence():
    from transformers.models.mllama.configuration_mllama import MllamaTextConfig
    from transformers.models.mllama.modeling_mllama import MllamaTextModel

    torch.manual_seed(0)
    sizes = {**TEXT, "num_hidden_layers": 3, "cross_attention_layers": [1], "vocab_size": 60}
    config = MllamaTextConfig(**sizes, rope_parameters={"rope_type": "default", "rope_theta": 1e4})
    model = MllamaTextModel(config).eval()
    torch.nn.init.ones_(model.layers[1].cross_attn_attn_gate)
    ids = torch.arange(4, 12)[None]
    rows = torch.tensor([[5, 6]])
    image = torch.randn(1, len(ids[0]), 32, generator=torch.Generator().manual_seed(3))  # as long as the text
    full = {"cross_attention_mask": torch.zeros(1, 1, 8, 8), "full_text_row_masked_out_mask": torch.ones(1, 1, 8, 1)}
    seen = {"cross_attention_states": image, **full}
    for inputs in ({}, seen):
        with supervise(model) as supervision:
            assert [call.name for call in supervision.calls] == ["layer 0", "layer 2"]
            asked = {"attention_queries": ((rows, torch.tensor([[1, 2, 3]])),), "output_attentions": True}
            outputs = model(input_ids=ids, **inputs, **asked)
        assert [report.layer for report in observed_layers(outputs)] == [0, 2]
    with mask_heads(model, [(1, 2)]):
        masked = model(input_ids=ids, **seen).last_hidden_state
    model.layers[1].cross_attn.o_proj.weight[:, 16:24] = 0
    torch.testing.assert_close(masked, model(input_ids=ids, **seen).last_hidden_state)
    with pytest.raises(ValueError, match="cross-attention"), steer_heads(model, [(1, 2)], rows, 1.0):
        pass
    with pytest.raises(ValueError, match="layers 0, 2 only"):
        get_method("direct", layers=[1]).prepare(model)
    observer = get_observer(model)
    found = observer.observe({"input_ids": ids, "text_positions": rows, "region_positions": rows - 3},
                             {"text_to_region": (torch.tensor([[0]]), torch.tensor([[0, 1]]))})  # fmt: skip
    assert observer.layers == ("0", "1", "2")
    assert observer.headless == (1,)
    assert found["text_to_region"][1].exp().sum((1, 2, 3)).bool().tolist() == [True, False, True]


def test_modules_that_several_layers_share_are_refused():
    config = AutoConfig.for_model("zamba2", **{**TEXT, "num_hidden_layers": LAYERS}, mamba_d_state=8, mamba_ngroups=1,
                                  n_mamba_heads=4, mamba_headdim=16, layers_block_type=["mamba", "hybrid"] * 2,
                                  num_mem_blocks=1, adapter_rank=4)  # fmt: skip
    model = AutoModel.from_config(config)
    for call in (lambda: find_calls(model), lambda: attention_modules(model)):
        with pytest.raises(ValueError, match=r"\[-1"):
            call()


def test_decoders_whose_layers_all_attend_keep_their_names():
    model, processor = make_pair("gemma3")  # sliding and full windows are both attention
    assert head_layers(model) == [0, 1]
    assert len(attention_modules(model)) == 2
    late = AuditExample("image 0", "a dog", (Phrase("a dog", 0, 5, boxes=examples(1)[0].phrases[0].boxes),))
    ranking = rank_heads(model, processor, [late], pictures(1), count=1, ablate=0)
    assert ranking.reported_on.headless == ()
    assert ranking.to_dict()["layers"] == ["0", "1"]
