# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""Decoders in which not every layer has heads: heads are named by the layer's index in the model, everywhere."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from numpy.testing import assert_allclose
from torch.testing import assert_close
from transformers import AutoConfig, AutoModel, AutoModelForImageTextToText
from transformers.models.mllama.configuration_mllama import MllamaTextConfig
from transformers.models.mllama.modeling_mllama import MllamaTextModel

from grounded_attention.heads.ablation import ablate_heads
from grounded_attention.heads.attention_grounding import AttentionGrounding, summarise
from grounded_attention.heads.example_attention import capture_examples
from grounded_attention.heads.heads_file import ChosenHeads
from grounded_attention.heads.measure import audit
from grounded_attention.heads.ranking import rank_heads
from grounded_attention.heads.reading import get_observer
from grounded_attention.processing.patch_grounding import PatchGroundingProcessor
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
DELTA = {"linear_num_key_heads": 2, "linear_num_value_heads": 4, "linear_key_head_dim": 8, "linear_value_head_dim": 8}
MAMBA = {"mamba_n_heads": 8, "mamba_d_head": 8, "mamba_d_state": 8, "mamba_n_groups": 1, "mamba_d_ssm": 64,
         "mamba_chunk_size": 16}  # fmt: skip
EXPERTS = {"num_local_experts": 2, "num_experts": 2, "num_experts_per_tok": 1, "moe_intermediate_size": 16,
           "shared_expert_intermediate_size": 16, "shared_intermediate_size": 16}  # fmt: skip


NEMOTRON = {
    "layers_block_type": ["mamba", "attention"] * 2,
    "mamba_num_heads": 8,
    "mamba_head_dim": 8,
    "ssm_state_size": 8,
    "n_groups": 1,
    "chunk_size": 16,
}
# Type of the language model -> its layers with softmax attention over the sequence, and its configuration.
HYBRIDS = {
    "qwen3_5_text": ([1, 3], {**DELTA, "layer_types": ["linear_attention", "full_attention"] * 2}),
    "lfm2": ([2, 3], {"layer_types": ["conv", "conv", "full_attention", "full_attention"]}),
    "nemotron_h": ([1, 3], NEMOTRON),
    "minimax": (
        [1, 2],
        {**EXPERTS, "layer_types": "linear_attention full_attention full_attention linear_attention".split()},
    ),
    "bamba": ([0, 2], {**MAMBA, "attn_layer_indices": [0, 2]}),
    "falcon_h1": ([0, 1, 2, 3], MAMBA),  # attention and a state space side by side in every layer
    "laguna": ([0, 1, 2, 3], {**EXPERTS, "num_attention_heads_per_layer": [4, 6, 4, 6]}),
}


def make_hybrid(model_type):
    """LLaVA with a hybrid language model, its processor, and the layers with heads."""
    layers, own = HYBRIDS[model_type]
    try:
        text = AutoConfig.for_model(model_type, **{**TEXT, "num_hidden_layers": LAYERS}, **own)
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
    return AutoModelForImageTextToText.from_config(config).eval(), processor, layers


def heads_of(model, layers):
    modules = attention_modules(model)
    return [(layer, head) for layer in layers for head in range(getattr(modules[layer], "num_heads", 4))]


@torch.no_grad()
def logits_by_hand(model, inputs, layer, head):
    """The logits with one head's slice of the input of the output projection set to zero."""
    width = attention_modules(model)[layer].head_dim

    def zero(module, args):
        states = args[0].clone()
        states.unflatten(-1, (-1, width))[..., head, :] = 0
        return (states, *args[1:])

    decoder = find_language_model(model).layers[layer]
    attention = getattr(decoder, "self_attn", None) or decoder.mixer
    projection = getattr(attention, "o_proj", None) or attention.out_proj
    with projection.register_forward_pre_hook(zero):
        return model(**inputs).logits


def make_batch(processor):
    """The inputs of the model, and the whole batch."""
    grounding = PatchGroundingProcessor(processor)
    phrase = {"sentence": 0, "start": 0, "end": 5, "boxes": [[0.2, 0.2, 0.6, 0.6]]}
    batch = grounding(list(TEXTS[:2]), images=list(pictures(2).values()), phrases=[[phrase]] * 2)
    return grounding.model_inputs(batch), batch


@torch.no_grad()
@pytest.mark.parametrize("model_type", HYBRIDS)
def test_a_ranked_head_is_the_one_that_is_masked_steered_and_read(model_type):
    model, processor, layers = make_hybrid(model_type)
    assert head_layers(model) == head_layers(model.config) == layers
    inputs, batch = make_batch(processor)
    plain = model(**inputs).logits
    pairs = heads_of(model, layers)
    ranking = rank_heads(model, processor, examples(2), pictures(2), count=len(pairs), ablate=2)
    assert set(ranking.heads) == set(pairs)
    without = [layer for layer in range(LAYERS) if layer not in layers]
    assert list(ranking.reported_on.headless) == without
    assert len(ranking.ablation.single) == len(pairs)
    assert ("no softmax" in ranking.to_markdown()) == bool(without)
    columns = batch["region_positions"]
    asked = {"attention_queries": ((batch["text_positions"], columns),), "output_attentions": True}
    with supervise(model):
        reports = observed_layers(model(**inputs, **asked))
    assert [report.layer for report in reports] == layers
    for layer, head in pairs[:2] + pairs[-2:]:
        with mask_heads(model, [(layer, head)]):
            masked = model(**inputs).logits
        assert torch.equal(masked, logits_by_hand(model, inputs, layer, head))
        assert not torch.allclose(masked, plain, atol=1e-4)
        with supervise(model), steer_heads(model, [(layer, head)], columns[:, :3], 5.0):
            outputs = model(**inputs, **asked)
        assert not torch.allclose(outputs.logits, plain, atol=1e-4)
        for report, steered in zip(reports, observed_layers(outputs), strict=True):
            if report.layer <= layer:
                before = report.pairs[0][0].unbind(1)
                after = steered.pairs[0][0].unbind(1)
                changed = [n for n in range(len(before)) if not torch.allclose(before[n], after[n])]
                assert changed == ([head] if report.layer == layer else [])


@torch.no_grad()
@pytest.mark.parametrize("model_type", ["qwen3_5_text", "lfm2"])
def test_an_audit_has_the_scores_of_eager_maps_at_the_layers_of_the_model(model_type):
    model, processor, layers = make_hybrid(model_type)
    (example,) = examples(1)
    phrase = example.phrases[0]
    one = replace(example, phrases=(phrase,))
    table = audit(model, processor, [one], images=pictures(1), word="mean", progress=False)
    (shown,) = capture_examples(model, PatchGroundingProcessor(processor), [example], None, pictures(1))
    grounding = PatchGroundingProcessor(processor)
    given = [{"sentence": 0, "start": phrase.start, "end": phrase.end, "boxes": phrase.boxes}]
    batch = grounding(example.caption, images=pictures(1)["image 0"], phrases=given)
    model.set_attn_implementation("eager")
    maps = model(**grounding.model_inputs(batch), output_attentions=True).attentions
    columns = batch["region_positions"][0][batch["region_candidate_mask"][0]]
    tokens = batch["text_positions"][0][batch["phrase_mask"][0, 0]]
    expected = np.zeros((LAYERS, 4))
    for layer, attention in zip(layers, maps, strict=True):
        expected[layer] = attention[0][:, tokens][..., columns].sum(-1).mean(-1)
    assert_allclose(table.counts.mean_share, expected, atol=1e-5)
    assert len(table.layers) == LAYERS
    assert table.headless
    assert shown.layers == tuple(map(str, layers))
    assert len(shown.attention) == 2


REFUSING = {
    "mask": lambda model, _: mask_heads(model, [(0, 1)]).__enter__(),
    "steer": lambda model, _: steer_heads(model, [(0, 1)], torch.tensor([[1, 2]]), 1.0).__enter__(),
    "ablate": lambda model, processor: ablate_heads(
        model, PatchGroundingProcessor(processor), examples(1), pictures(1), [(0, 1)]
    ),
    "check": lambda model, _: ChosenHeads(((0, 1),)).check(model),
    "layers": lambda model, _: get_method("direct", layers=[0]).prepare(model),
    "heads": lambda model, _: get_method("direct", heads=[[0, 1], [3, 0]]).prepare(model),
}


@pytest.mark.parametrize("call", REFUSING.values(), ids=REFUSING)
@pytest.mark.parametrize("model_type", ["qwen3_5_text", "lfm2", "nemotron_h"])
def test_heads_of_layers_without_heads_are_refused(model_type, call):
    model, processor, layers = make_hybrid(model_type)
    with pytest.raises(ValueError, match=f"layers {layers[0]}, {layers[1]}"):
        call(model, processor)


def test_a_file_that_counts_only_layers_with_heads_is_refused():
    model, *_ = make_hybrid("lfm2")
    ChosenHeads(((2, 3),), layers=LAYERS, heads_per_layer=4).check(model)
    with pytest.raises(ValueError, match="2 layers of 4 heads"):
        ChosenHeads(((1, 1),), layers=2, heads_per_layer=4).check(model)


@pytest.mark.parametrize(
    "name, options",
    [
        ("direct", {"layers": [3]}),
        ("direct", {"layers": ["layer 3"]}),
        ("direct", {"heads": [[3, 1]]}),
        ("semi_direct", {"layers": [3]}),
        ("semi_direct", {"layers": ["layer 3"]}),
    ],
)
def test_supervised_layers_are_those_of_the_model(name, options):
    model, processor, _ = make_hybrid("qwen3_5_text")
    inputs, batch = make_batch(processor)
    method = get_method(name, **options)
    method.prepare(model)
    outputs = model(**inputs, **method.forward_kwargs(batch))
    sum(total for total, _ in method.losses(outputs, batch).values()).backward()
    module = attention_modules(model)[3]
    assert module.k_proj.weight.grad.any()
    if "heads" in options:  # the rows of the one supervised query head alone have a gradient
        by_head = module.q_proj.weight.grad.unflatten(0, (4, -1)).flatten(1)
        assert by_head.any(1).tolist() == [False, True, False, False]


@torch.no_grad()
def test_measured_heads_of_a_training_have_the_layers_of_the_model():
    model, processor, layers = make_hybrid("lfm2")
    inputs, batch = make_batch(processor)
    metric = AttentionGrounding()
    with supervise(model):
        metric.update(model(**inputs, **metric.forward_kwargs(batch)), batch)
    figures = metric.compute(metric.state())
    assert figures["text_to_region_layers"] == layers
    assert len(figures["text_to_region_by_head"]) == 2
    chosen = summarise(figures, figures)
    for layer in (chosen["layer"], chosen["head"][0], chosen["rollout_layer"]):
        assert layer in layers


@pytest.mark.parametrize(
    "choice, heads", [({"best": 2}, [[2, 1], [3, 1]]), ({"worst": 1}, [[2, 0]]), ({"list": [[3, 0]]}, [[3, 0]])]
)
def test_a_recipe_supervises_measured_heads(choice, heads):
    measured = {"accuracy": [[0.1, 0.9], [0.2, 0.3]], "layers": [2, 3]}
    recipe = Recipe(methods=["direct"], model=Model(), supervision=SupervisionSection(heads=choice))
    changed, record = supervise_chosen(recipe, measured)
    assert changed.supervision.options["direct"]["heads"] == heads
    for head in record["heads"]:
        assert 0 < head["accuracy"] < 1


def make_mllama():
    """A model whose layer 1 attends to an image, and inputs with one."""
    torch.manual_seed(0)
    sizes = {**TEXT, "num_hidden_layers": 3, "cross_attention_layers": [1], "vocab_size": 60}
    model = MllamaTextModel(MllamaTextConfig(**sizes, rope_parameters={"rope_type": "default", "rope_theta": 1e4}))
    torch.nn.init.ones_(model.layers[1].cross_attn_attn_gate)
    return model.eval(), {
        "input_ids": torch.arange(4, 12)[None],
        "cross_attention_states": torch.randn(1, 8, 32, generator=torch.Generator().manual_seed(3)),  # as the text
        "cross_attention_mask": torch.zeros(1, 1, 8, 8),
        "full_text_row_masked_out_mask": torch.ones(1, 1, 8, 1),
    }


ROWS = torch.tensor([[5, 6]])


@torch.no_grad()
def test_cross_attention_has_heads_to_remove():
    model, inputs = make_mllama()
    with mask_heads(model, [(1, 2)]):
        masked = model(**inputs).last_hidden_state
    model.layers[1].cross_attn.o_proj.weight[:, 16:24] = 0
    assert_close(masked, model(**inputs).last_hidden_state)


@torch.no_grad()
def test_heads_over_the_image_are_those_of_cross_attention():
    model, inputs = make_mllama()
    asked = {"attention_queries": ((ROWS, ROWS - 3),), "output_attentions": True}
    with supervise(model) as supervision:
        outputs = model(**inputs, **asked)
    assert [call.name for call in supervision.calls] == ["layer 1"]
    assert [report.layer for report in observed_layers(outputs)] == [1]
    with pytest.raises(ValueError, match="cross-attention"), steer_heads(model, [(0, 2)], ROWS, 1.0):
        pass
    with pytest.raises(ValueError, match="layers 1 only"):
        get_method("direct", layers=[0]).prepare(model)
    with pytest.raises(ValueError, match="no attention in the direction"):
        get_method("direct", directions=["region_to_text"]).prepare(model)
    observer = get_observer(model)
    batch = {**inputs, "text_positions": ROWS, "region_positions": ROWS - 3}
    found = observer.observe(batch, {"text_to_region": (torch.tensor([[0]]), torch.tensor([[0, 1]]))})
    assert observer.layers == ("0", "1", "2")
    assert observer.headless == (0, 2)
    assert found["text_to_region"][1].exp().flatten(1).any(1).tolist() == [False, True, False]


@pytest.mark.parametrize("find", [find_calls, attention_modules])
def test_modules_that_several_layers_share_are_refused(find):
    config = AutoConfig.for_model("zamba2", **{**TEXT, "num_hidden_layers": LAYERS}, mamba_d_state=8, mamba_ngroups=1,
                                  n_mamba_heads=4, mamba_headdim=16, layers_block_type=["mamba", "hybrid"] * 2,
                                  num_mem_blocks=1, adapter_rank=4)  # fmt: skip
    model = AutoModel.from_config(config)
    with pytest.raises(ValueError, match=r"\[-1"):
        find(model)


def test_decoders_whose_layers_all_attend_keep_their_names():
    model, processor = make_pair("gemma3")  # sliding and full windows are both attention
    assert head_layers(model) == [0, 1]
    assert len(attention_modules(model)) == 2
    ranking = rank_heads(model, processor, examples(1), pictures(1), count=1, ablate=0)
    assert ranking.reported_on.headless == ()
    assert ranking.to_dict()["layers"] == ["0", "1"]
