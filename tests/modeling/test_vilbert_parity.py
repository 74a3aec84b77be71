# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""ViLBERT equals the reference tensors of both public codes."""

import pytest
import torch
from torch.nn import functional

from grounded_attention.conversion.vilbert import VILBERT
from grounded_attention.modeling import ViLBertConfig
from grounded_attention.modeling.task_losses import draw_negatives, mean_of, region_target_loss
from tests.helpers.closeness import assert_close

PRETRAINING = ["pretrain_kl", "pretrain_mse", "pretrain_nce", "pretrain_no_coattention", "pretrain_dynamic_attention"]
BASES = [*PRETRAINING, "tasks_mul", "tasks_sum_tasktoken"]
TASKS = ["tasks_mul", "tasks_sum_tasktoken", "beta_tasks"]


@pytest.fixture(scope="module")
def cases(shared):
    file = torch.load(shared / "parity" / "vilbert.pt", weights_only=True)
    return {case["name"]: case for case in file["cases"]}


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


def text_mask(case):
    mask = case["inputs"]["attention_mask"].bool()
    if not case["config"].get("task_specific_tokens"):
        return mask
    return functional.pad(mask, (1, 0), value=True)


@pytest.mark.parametrize("back_end", ["eager", "sdpa"])
@pytest.mark.parametrize("name", BASES)
def test_states_after_every_layer(cases, name, back_end):
    case = cases[name]
    model = convert(case, back_end).vilbert
    wanted = case["outputs"]["base"]
    found = model(**as_inputs(case), output_hidden_states=True)
    hidden = {"t": [*found.hidden_states], "v": [*found.region_hidden_states]}
    assert [f"{stream[0] if stream != 'regions' else 'v'}{number}" for stream, number in model.config.schedule] == [
        layer for layer in wanted["hidden"]["order"] if model.config.with_coattention or layer[0] != "c"
    ]
    masks = {"t": text_mask(case), "v": case["inputs"]["image_attention_mask"].bool()}
    order = [("t", "emb_t"), ("v", "emb_v")]
    for layer in wanted["hidden"]["order"]:
        number = layer[1:]
        if layer[0] != "c":
            order.append((layer[0], f"{layer[0]}.{number}"))
        elif model.config.with_coattention:
            order += [("t", f"c_t.{number}"), ("v", f"c_v.{number}")]
    for stream, key in order:
        states = hidden[stream].pop(0)
        if stream == "t":
            states = as_theirs(case, states)
        kind, _, number = key.partition(".")
        reference = wanted["hidden"][kind] if not number else wanted["hidden"][kind][number]
        assert_close(states[masks[stream]], reference[masks[stream]])
    assert hidden == {"t": [], "v": []}
    assert_close(found.text_pooler_output, wanted["pooled_output_t"])
    assert_close(found.region_pooler_output, wanted["pooled_output_v"])


@pytest.mark.parametrize("name", BASES)
def test_attention_of_every_call(cases, name):
    case = cases[name]
    model = convert(case).vilbert
    wanted = case["outputs"]["base"]
    maps = list(model(**as_inputs(case), output_attentions=True).attentions)
    masks = {"t": text_mask(case), "v": case["inputs"]["image_attention_mask"].bool()}
    if case["config"].get("task_specific_tokens"):
        columns = torch.arange(masks["t"].shape[1]).roll(1)
        columns = torch.tensor([0, len(columns) - 1, *range(1, len(columns) - 1)])
    else:
        columns = torch.arange(masks["t"].shape[1])
    every = {"t": columns, "v": torch.arange(masks["v"].shape[1])}

    def compare(reference, rows, keys):
        found = maps.pop(0)[:, :, every[rows]][..., every[keys]]
        assert_close(found.transpose(1, 2)[masks[rows]], reference.transpose(1, 2)[masks[rows]])

    for stream, number in model.config.schedule:
        if stream == "cross":
            compare(wanted["coattn_text_to_image"][number], "t", "v")
            compare(wanted["coattn_image_to_text"][number], "v", "t")
        else:
            side = "t" if stream == "text" else "v"
            compare(wanted[f"attn_{side}"][number], side, side)
    assert not maps


def pretraining_targets(case):
    """The public code leaves the whole image, column 0, out of labels and targets, and has -1 for no label."""
    inputs = case["inputs"]
    outputs = case["outputs"]
    labels = inputs["masked_lm_labels"]
    targets = {
        "labels": labels.masked_fill(labels < 0, -100),
        # 0 is "aligned" in the public code.
        "relationship_labels": 1 - inputs["next_sentence_label"],
    }
    wanted = functional.pad(inputs["image_label"] == 1, (1, 0), value=False)
    if case["config"]["visual_target"] == 0:
        probs = functional.pad(inputs["image_target"], (0, 0, 1, 0))
        return targets | {"region_label_probs": probs.masked_fill(~wanted[..., None], 0.0)}
    targets["predicted_regions"] = wanted
    if case["config"]["visual_target"] == 2:
        index, (_batch_size, regions) = outputs["nce_negative_index"], wanted.shape
        # An index counts the regions of the batch without column 0.
        index = index // (regions - 1) * regions + index % (regions - 1) + 1
        targets["negative_regions"] = functional.pad(index, (0, 0, 1, 0))
    return targets


@pytest.mark.parametrize("name", PRETRAINING)
def test_pretraining_losses_and_gradients(cases, name):
    case = cases[name]
    model = convert(case, "sdpa")
    wanted = case["outputs"]
    inputs = as_inputs(case)
    targets = pretraining_targets(case)
    if case["config"]["visual_target"] != 0:
        # Targets are given apart from the features in the public code, whose test values are random.
        inputs["region_features"] = inputs["region_features"].clone()
    found = model(**inputs, **targets_of_features(case, targets))
    mask = case["inputs"]["attention_mask"].bool()
    assert_close(found.mlm_logits[mask], wanted["prediction_logits_t"][mask])
    assert_close(found.relationship_logits, wanted["seq_relationship_logits"].flip(-1))
    regions = case["inputs"]["image_attention_mask"].bool()
    assert_close(found.region_logits[regions], wanted["prediction_logits_v"][regions])
    total = wanted["masked_lm_loss"] + wanted["masked_img_loss"] + wanted["next_sentence_loss"]
    loss = found.loss if case["config"]["visual_target"] == 0 else found.loss + region_loss(case, found, targets)
    assert_close(loss, total)
    if "grads" in wanted:
        loss.backward()
        weights = dict(model.named_parameters())
        for key, gradient in wanted["grads"].items():
            ours = key.replace("bert.", "vilbert.", 1)
            assert_close(weights[ours].grad, gradient, rtol=1e-4, atol=1e-5)


def targets_of_features(case, targets):
    """The targets that the model's own forward takes: for features they are its inputs, which differ here."""
    if case["config"]["visual_target"] == 0:
        return targets
    return {name: value for name, value in targets.items() if name in ("labels", "relationship_labels")}


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
    for image, region in mask.nonzero().tolist():
        across = drawn[image, region, :140]
        within = drawn[image, region, 140:]
        others = {3 * i + r for i, r in mask.nonzero().tolist() if i != image}
        same = {3 * image + r for r in range(3) if mask[image, r] and r != region}
        assert set(across.tolist()) == others
        assert set(within.tolist()) == (same or {-1})


@pytest.mark.parametrize("name", TASKS)
def test_heads_of_tasks(cases, name):
    case = cases[name]
    model = convert(case, "sdpa")
    wanted = case["outputs"]
    found = model(**as_inputs(case))
    text = case["inputs"]["attention_mask"].bool()
    regions = case["inputs"]["image_attention_mask"].bool()
    pairs = {"vil_prediction": found.answer_logits, "vil_logit": found.choice_logits}
    if name != "beta_tasks":
        pairs |= {
            "vil_prediction_gqa": found.gqa_logits,
            "vil_binary_prediction": found.reasoning_logits,
            "vil_tri_prediction": found.entailment_logits,
        }
    for key, logits in pairs.items():
        assert_close(logits, wanted[key])
    # The task token has no logits here.
    columns = [0, *range(2, text.shape[1] + 1)] if case["config"].get("task_specific_tokens") else slice(None)
    for key, logits in (
        ("linguisic_prediction", found.mlm_logits),
        ("linguisic_logit", found.token_logits[..., None]),
    ):
        assert_close(logits[text], wanted[key][:, columns][text])
    assert_close(found.region_logits[regions], wanted["vision_prediction"][regions])
    assert_close(found.referring_logits[regions], wanted["vision_logit"][..., 0][regions])


@pytest.mark.parametrize("name", TASKS)
def test_losses_of_tasks(cases, name):
    case = cases[name]
    found = convert(case, "sdpa")(**as_inputs(case))
    wanted = case["outputs"]
    inputs = case["inputs"]
    bce = functional.binary_cross_entropy_with_logits
    answers = bce(found.answer_logits, inputs["target_vqa"]) * inputs["target_vqa"].shape[1]
    assert_close(answers, wanted["loss_vqa"])
    # The four rows are the choices of one question; the third is right.
    choices = functional.cross_entropy(found.choice_logits.view(1, 4), torch.tensor([2]))
    assert_close(choices, wanted["loss_vcr_4way"])
    regions = inputs["target_grounding_iou"][..., 0]
    assert_close(bce(found.referring_logits, regions) * regions.shape[1], wanted["loss_grounding"])
    if name != "beta_tasks":
        assert_close(bce(found.reasoning_logits, inputs["target_nlvr"]), wanted["loss_nlvr"])
    best = found.referring_logits.argmax(-1, keepdim=True)
    assert torch.equal(best, wanted["grounding_argmax"])
