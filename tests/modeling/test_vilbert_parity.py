# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""ViLBERT equals the reference tensors of both public codes."""

import pytest
import torch
from torch.nn import functional

from grounded_attention.conversion.vilbert import VILBERT
from grounded_attention.modeling import ViLBertConfig
from grounded_attention.modeling.task_losses import draw_negatives, mean_of, region_target_loss
from tests.helpers.closeness import assert_close, parity_cases

PRETRAINING = ["pretrain_kl", "pretrain_mse", "pretrain_nce", "pretrain_no_coattention", "pretrain_dynamic_attention"]
BASES = [*PRETRAINING, "tasks_mul", "tasks_sum_tasktoken"]
TASKS = ["tasks_mul", "tasks_sum_tasktoken", "beta_tasks"]


@pytest.fixture(scope="module")
def cases(shared):
    return parity_cases(shared, "vilbert")


def convert(case, back_end="eager"):
    model, _ = VILBERT.build_model(case["state_dict"], case["config"])
    model.set_attn_implementation(back_end)
    return model.eval()


def as_inputs(case):
    inputs = case["inputs"]
    return {
        "input_ids": inputs["input_ids"],
        "attention_mask": inputs["attention_mask"],
        "token_type_ids": inputs["token_type_ids"],
        "region_features": inputs["image_feat"],
        "region_boxes": inputs["image_loc"][..., :4],
        "region_attention_mask": inputs["image_attention_mask"],
        "task_ids": inputs.get("task_ids"),
    }


def as_theirs(case, text_states):
    """The task token stands behind [CLS] in the public code, and in the last column here."""
    if not case["config"].get("task_specific_tokens"):
        return text_states
    return torch.cat([text_states[:, :1], text_states[:, -1:], text_states[:, 1:-1]], dim=1)


def masks_of(case):
    """The tokens and the regions that are not padding, by the letters of the public code."""
    text = case["inputs"]["attention_mask"].bool()
    if case["config"].get("task_specific_tokens"):
        text = functional.pad(text, (1, 0), value=True)
    return {"t": text, "v": case["inputs"]["image_attention_mask"].bool()}


@pytest.mark.parametrize("back_end", ["eager", "sdpa"])
@pytest.mark.parametrize("name", BASES)
def test_states_after_every_layer(cases, name, back_end):
    case = cases[name]
    model = convert(case, back_end).vilbert
    wanted = case["outputs"]["base"]
    reference = wanted["hidden"]
    found = model(**as_inputs(case), output_hidden_states=True)
    order = [layer for layer in reference["order"] if model.config.with_coattention or layer[0] != "c"]
    letters = {"text": "t", "regions": "v", "cross": "c"}
    assert [f"{letters[stream]}{number}" for stream, number in model.config.schedule] == order
    expected = {"t": [reference["emb_t"]], "v": [reference["emb_v"]]}
    for layer in order:
        kind = layer[0]
        number = layer[1:]
        if kind == "c":
            expected["t"].append(reference["c_t"][number])
            expected["v"].append(reference["c_v"][number])
        else:
            expected[kind].append(reference[kind][number])
    hidden = {"t": [as_theirs(case, states) for states in found.hidden_states], "v": found.region_hidden_states}
    for stream, mask in masks_of(case).items():
        for states, reference in zip(hidden[stream], expected[stream], strict=True):
            assert_close(states[mask], reference[mask])
    assert_close(found.text_pooler_output, wanted["pooled_output_t"])
    assert_close(found.region_pooler_output, wanted["pooled_output_v"])


@pytest.mark.parametrize("name", BASES)
def test_attention_of_every_call(cases, name):
    case = cases[name]
    model = convert(case).vilbert
    wanted = case["outputs"]["base"]
    maps = model(**as_inputs(case), output_attentions=True).attentions
    masks = masks_of(case)
    places = {stream: torch.arange(mask.shape[1]) for stream, mask in masks.items()}
    places["t"] = as_theirs(case, places["t"][None])[0]
    order = []
    for stream, number in model.config.schedule:
        if stream == "cross":
            order.append((wanted["coattn_text_to_image"][number], "t", "v"))
            order.append((wanted["coattn_image_to_text"][number], "v", "t"))
        else:
            side = "t" if stream == "text" else "v"
            order.append((wanted[f"attn_{side}"][number], side, side))
    for attention, (reference, rows, keys) in zip(maps, order, strict=True):
        found = attention[:, :, places[rows]][..., places[keys]]
        assert_close(found.transpose(1, 2)[masks[rows]], reference.transpose(1, 2)[masks[rows]])


def pretraining_targets(case):
    """The public code leaves the whole image, column 0, out of labels and targets, and has -1 for no label."""
    inputs = case["inputs"]
    labels = inputs["masked_lm_labels"]
    targets = {
        "labels": labels.masked_fill(labels < 0, -100),
        # 0 is "aligned" in the public code.
        "relationship_labels": 1 - inputs["next_sentence_label"],
    }
    wanted = functional.pad(inputs["image_label"] == 1, (1, 0), value=False)
    kind = case["config"]["visual_target"]
    if kind == 0:
        probs = functional.pad(inputs["image_target"], (0, 0, 1, 0))
        return targets | {"region_label_probs": probs.masked_fill(~wanted[..., None], 0.0)}
    targets["predicted_regions"] = wanted
    if kind == 2:
        regions = wanted.shape[1]
        # An index counts the regions of the batch without column 0.
        index = case["outputs"]["nce_negative_index"]
        index = index // (regions - 1) * regions + index % (regions - 1) + 1
        targets["negative_regions"] = functional.pad(index, (0, 0, 1, 0))
    return targets


@pytest.mark.parametrize("name", PRETRAINING)
def test_pretraining_losses_and_gradients(cases, name):
    case = cases[name]
    model = convert(case, "sdpa")
    wanted = case["outputs"]
    targets = pretraining_targets(case)
    with_classes = case["config"]["visual_target"] == 0
    words = {name: targets[name] for name in ("labels", "relationship_labels")}
    found = model(**as_inputs(case), **(targets if with_classes else words))
    masks = masks_of(case)
    assert_close(found.mlm_logits[masks["t"]], wanted["prediction_logits_t"][masks["t"]])
    assert_close(found.relationship_logits, wanted["seq_relationship_logits"].flip(-1))
    assert_close(found.region_logits[masks["v"]], wanted["prediction_logits_v"][masks["v"]])
    # Targets of features are given apart from the features in the public code, whose test values are random.
    loss = found.loss if with_classes else found.loss + region_loss(case, found, targets)
    assert_close(loss, wanted["masked_lm_loss"] + wanted["masked_img_loss"] + wanted["next_sentence_loss"])
    if "grads" in wanted:
        loss.backward()
        weights = dict(model.named_parameters())
        gradients = {key: weights[key.replace("bert.", "vilbert.", 1)].grad for key in wanted["grads"]}
        assert_close(gradients, wanted["grads"], rtol=1e-4, atol=1e-5)


def region_loss(case, found, targets):
    kind = ("classes", "features", "nce")[case["config"]["visual_target"]]
    features = functional.pad(case["inputs"]["image_target"], (0, 0, 1, 0))
    config = ViLBertConfig(visual_target=kind)
    return mean_of(region_target_loss(config, found.region_logits, {**targets, "region_features": features}))


def test_without_a_masked_region_the_loss_is_finite(cases):
    """The public code gives NaN."""
    case = cases["pretrain_kl"]
    assert case["outputs"]["masked_img_loss_when_no_region_masked"].isnan()
    targets = pretraining_targets(case)
    targets["region_label_probs"] = torch.zeros_like(targets["region_label_probs"])
    loss = convert(case, "sdpa")(**as_inputs(case), **targets).loss
    wanted = case["outputs"]["masked_lm_loss"] + case["outputs"]["next_sentence_loss"]
    assert_close(loss, wanted)


def test_negatives_are_other_regions():
    mask = torch.tensor([[True, True, True], [True, True, False], [True, False, False]])
    torch.manual_seed(0)
    drawn = draw_negatives(mask, 200)
    assert drawn.shape == (3, 3, 200)
    places = mask.nonzero().tolist()
    for image, region in places:
        others = {3 * i + r for i, r in places if i != image}
        same = {3 * image + r for i, r in places if i == image and r != region}
        assert set(drawn[image, region, :140].tolist()) == others
        assert set(drawn[image, region, 140:].tolist()) == (same or {-1})


@pytest.mark.parametrize("name", TASKS)
def test_heads_of_tasks(cases, name):
    case = cases[name]
    model = convert(case, "sdpa")
    wanted = case["outputs"]
    found = model(**as_inputs(case))
    text = case["inputs"]["attention_mask"].bool()
    regions = case["inputs"]["image_attention_mask"].bool()
    assert_close(found.answer_logits, wanted["vil_prediction"])
    assert_close(found.choice_logits, wanted["vil_logit"])
    if name != "beta_tasks":
        assert_close(found.gqa_logits, wanted["vil_prediction_gqa"])
        assert_close(found.reasoning_logits, wanted["vil_binary_prediction"])
        assert_close(found.entailment_logits, wanted["vil_tri_prediction"])
    # The task token has no logits here.
    columns = [0, *range(2, text.shape[1] + 1)] if case["config"].get("task_specific_tokens") else slice(None)
    assert_close(found.mlm_logits[text], wanted["linguisic_prediction"][:, columns][text])
    assert_close(found.token_logits[text], wanted["linguisic_logit"][:, columns, 0][text])
    assert_close(found.region_logits[regions], wanted["vision_prediction"][regions])
    assert_close(found.referring_logits[regions], wanted["vision_logit"][..., 0][regions])


@pytest.mark.parametrize("name", TASKS)
def test_losses_of_tasks(cases, name):
    case = cases[name]
    found = convert(case, "sdpa")(**as_inputs(case))
    wanted = case["outputs"]
    inputs = case["inputs"]
    bce = functional.binary_cross_entropy_with_logits
    target = inputs["target_vqa"]
    assert_close(bce(found.answer_logits, target) * target.shape[1], wanted["loss_vqa"])
    # The four rows are the choices of one question; the third is right.
    choices = functional.cross_entropy(found.choice_logits.view(1, 4), torch.tensor([2]))
    assert_close(choices, wanted["loss_vcr_4way"])
    regions = inputs["target_grounding_iou"][..., 0]
    assert_close(bce(found.referring_logits, regions) * regions.shape[1], wanted["loss_grounding"])
    if name != "beta_tasks":
        assert_close(bce(found.reasoning_logits, inputs["target_nlvr"]), wanted["loss_nlvr"])
    assert torch.equal(found.referring_logits.argmax(-1, keepdim=True), wanted["grounding_argmax"])
