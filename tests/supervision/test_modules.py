# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""The whole VGP module with its released attention losses, through VLBertForVGP and a method, equals the public code.

`tests/fixtures/supervision_modules.safetensors` has what the reference modules got and gave: `<module>.inputs.<name>`,
`<module>.outputs.<name>`, `<module>.loss`, and `<module>.grad_norms` in the order of the keys in its metadata. Their
weights and regions are those of `vl_bert_vgp_module`; `<module>.vg_cls.*` are the grounding head's. To cut it again,
load `vgp_losses_and_modules.pt` of the reference tensors and save the named entries, of the boxes coordinates only.
"""

import itertools
import json

import pytest
import torch
from safetensors import safe_open
from torch.testing import assert_close

from grounded_attention.modeling import VLBertForVGP
from tests.helpers.closeness import below
from tests.helpers.method_variants import make_method
from tests.helpers.vl_bert_parity import CLOSE, GivenVisual, check_vgp, vgp_inputs
from tests.helpers.vl_bert_reference import FIXTURES, as_checkpoint, load_fixture, load_weights, make_config

METHODS = {"direct": "direct", "semi-direct": "semi_direct", "indirect": "indirect"}
DIRECTIONS = ["attention_loss_1", "attention_loss_2"]
RECORDED = {"direct": DIRECTIONS, "semi-direct": DIRECTIONS, "indirect": ["vg_loss"]}


def read_fixture(name):
    """The cut of one module, in the form of the whole file."""
    with safe_open(FIXTURES / "supervision_modules.safetensors", "pt") as file:
        keys = json.loads(file.metadata()["grad_norms"])[f"module_{name}"]
        found = below({key: file.get_tensor(key) for key in file.keys()}, f"module_{name}.")
    reference = load_fixture("vgp_module")
    head = {key: value for key, value in found.items() if key.startswith("vg_cls.")}
    return {
        "inputs": below(found, "inputs."),
        "outputs": below(found, "outputs."),
        "loss": found["loss"],
        "grad_norms": dict(zip(keys, found["grad_norms"].tolist(), strict=True)),
        "state_dict": {**reference["state_dict"], **head},
        "config": reference["config"],
        "region_visual": reference["region_visual"],
    }


def build(reference, back_end="sdpa"):
    """Our model, original key -> our name, and the inputs of the heads."""
    has_head = "vg_cls.1.weight" in reference["state_dict"]
    config = make_config(reference["config"]["NETWORK"]["VLBERT"], grounding_head=has_head)
    model = VLBertForVGP(config).eval()
    model.set_attn_implementation(back_end)
    names = load_weights(model, as_checkpoint(reference["state_dict"]))
    inputs = vgp_inputs(reference["inputs"])
    if "region_visual" in reference:
        model.vl_bert.region_encoder = GivenVisual(reference["region_visual"])
        inputs["region_features"] = torch.zeros(*inputs["region_boxes"].shape[:2], config.region_feature_size)
    return model, names, inputs


def tags(inputs):
    """(B, T): the region of each token, 0 for none, in [CLS] first [SEP] second [SEP]."""
    first = inputs["sentence1"][..., 1]
    second = inputs["sentence2"][..., 1]
    none = first.new_zeros(len(first), 1)
    return torch.cat([none, first, none, second, none], dim=1)


def grounded_phrases(inputs, following):
    """Runs of a tag as phrases (B, P, T) and their regions (B, P, R).

    `following`: in the place of a phrase's tokens as many that follow it, the fault of the public indirect method.
    """
    tagged = tags(inputs)
    phrase_mask = torch.zeros(len(tagged), tagged.shape[1], tagged.shape[1], dtype=torch.bool)
    phrase_regions = torch.zeros(len(tagged), tagged.shape[1], inputs["boxes"].shape[1], dtype=torch.bool)
    for example, row in enumerate(tagged):
        start = 0
        phrase = 0
        for tag, run in itertools.groupby(row.tolist()):
            end = start + len(list(run))
            if tag > 0:
                tokens = slice(end, 2 * end - start) if following else slice(start, end)
                phrase_mask[example, phrase, tokens] = True
                phrase_regions[example, phrase, tag] = True
                phrase += 1
            start = end
    return phrase_mask, phrase_regions


def add_grounding(inputs, reference, following):
    """Inputs whose first phrases are those of the pairs, ungrounded, and whose others are the grounded ones.

    All regions but the whole image are candidates.
    """
    candidates = torch.ones(inputs["region_boxes"].shape[:2], dtype=torch.bool)
    candidates[:, 0] = False
    phrase_mask, phrase_regions = grounded_phrases(reference["inputs"], following)
    ungrounded = phrase_regions.new_zeros(*inputs["phrase_mask"].shape[:2], phrase_regions.shape[2])
    return {
        **inputs,
        "phrase_mask": torch.cat([inputs["phrase_mask"], phrase_mask], dim=1),
        "phrase_regions": torch.cat([ungrounded, phrase_regions], dim=1),
        "region_candidate_mask": candidates,
    }


def check_module(name, reference, back_end="sdpa"):
    model, names, inputs = build(reference, back_end)
    batch = add_grounding(inputs, reference, following=name == "indirect")
    method = make_method(METHODS[name], "released")
    method.prepare(model)
    outputs = check_vgp(model, {**batch, **method.forward_kwargs(batch)}, reference)
    losses = [total / count for total, count in method.losses(outputs, batch).values()]
    for loss, key in zip(losses, RECORDED[name], strict=True):
        assert_close(loss, reference["outputs"][key].float(), **CLOSE)
    loss = outputs.loss + sum(losses)
    assert_close(loss, reference["loss"], **CLOSE)
    loss.backward()
    parameters = dict(model.named_parameters())
    compared = 0
    for key, norm in reference["grad_norms"].items():
        parameter = parameters.get(names.get(f"module.{key}"))
        if parameter is not None:
            assert parameter.grad.norm().item() == pytest.approx(float(norm), rel=1e-4, abs=1e-5), key
            compared += 1
    # Without the file the region projection has no weights here.
    assert compared == len(reference["grad_norms"]) - (2 if "region_visual" in reference else 0)


@pytest.mark.parametrize("back_end", ["sdpa", "eager"])
@pytest.mark.parametrize("name", list(METHODS))
def test_module_losses_and_gradients(name, back_end):
    """`indirect` pools the words after a phrase, the public code's fault, because they are given as its words."""
    check_module(name, read_fixture(name), back_end)


@pytest.mark.parametrize("name", list(METHODS))
def test_module_from_features_and_boxes_on(shared, name):
    file = torch.load(shared / "parity" / "vgp_losses_and_modules.pt", weights_only=True)
    check_module(name, file[f"module_{name}"])


def test_the_public_fault_of_indirect_is_not_ours():
    """With the phrases' own words the loss is another: the words after them come in only where a caller gives them."""
    reference = read_fixture("indirect")
    model, _, inputs = build(reference)
    batch = add_grounding(inputs, reference, following=False)
    total, count = make_method("indirect", "released").losses(model(**batch), batch)["grounding"]
    assert abs(total / count - reference["outputs"]["vg_loss"]) > 1e-4
