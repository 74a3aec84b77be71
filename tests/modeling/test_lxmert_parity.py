# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""LXMERT equals the reference tensors of the public code, and transformers' classes on the same checkpoints."""

import pytest
import torch
import transformers
from torch.nn import functional

from grounded_attention.conversion.lxmert import LXMERT
from grounded_attention.modeling import (
    LXMERTForPreTraining,
    LXMERTForVisualQuestionAnswering,
    LXMERTForVisualReasoning,
    LXMERTModel,
)
from grounded_attention.modeling.attention_calls import layer_names
from tests.helpers.closeness import assert_close

SIZES = ("vocab_size", "hidden_size", "num_attention_heads", "intermediate_size", "max_position_embeddings")
LAYERS = ("l_layers", "x_layers", "r_layers", "visual_feat_dim")


@pytest.fixture(scope="module")
def cases(shared):
    file = torch.load(shared / "parity" / "lxmert.pt", weights_only=True)
    return {case["name"]: case for case in file["cases"]}


def convert(case, back_end="sdpa"):
    given = {name: case["config"][name] for name in (*SIZES, *LAYERS)}
    model, _ = LXMERT.build_model(case["state_dict"], given)
    model.set_attn_implementation(back_end)
    return model.eval()


def as_inputs(case):
    inputs = case["inputs"]
    return {
        "input_ids": inputs["input_ids"],
        "attention_mask": inputs["attention_mask"],
        "token_type_ids": inputs["token_type_ids"],
        "region_features": inputs["visual_feats"],
        "region_boxes": inputs["visual_pos"],
    }


def as_targets(case):
    """The public code has -1 for no label; its weights of features are 1 for masked regions."""
    inputs = case["inputs"]

    def unlabelled(labels):
        return labels.masked_fill(labels < 0, -100)

    objects, attributes, features = (inputs["obj_labels"][name] for name in ("obj", "attr", "feat"))
    return {
        "labels": unlabelled(inputs["masked_lm_labels"]),
        "relationship_labels": inputs["matched_label"],
        "answer_labels": unlabelled(inputs["ans"]),
        "region_labels": unlabelled(objects[0]),
        "region_label_weights": objects[1],
        "attribute_labels": unlabelled(attributes[0]),
        "attribute_label_weights": attributes[1],
        "predicted_regions": features[1] > 0,
    }


@pytest.mark.parametrize("back_end", ["eager", "sdpa"])
def test_states_after_every_layer(cases, back_end):
    case = cases["pretrain"]
    model = convert(case, back_end)
    wanted = case["outputs"]
    found = model.lxmert(**as_inputs(case), output_hidden_states=True)
    recorded = wanted["rec"]
    text = [recorded["emb_lang"], *recorded["hidden_l"], *recorded["hidden_x_lang"]]
    mask = case["inputs"]["attention_mask"]
    for ours, theirs in zip(found.hidden_states, text, strict=True):
        assert_close(ours[mask.bool()], theirs[mask.bool()])
    regions = [recorded["emb_vis"], *recorded["hidden_r"], *recorded["hidden_x_vis"]]
    assert_close(list(found.region_hidden_states), regions)
    assert_close(found.pooler_output, wanted["pooled_output"])


def test_attention_of_every_call(cases):
    case = cases["pretrain"]
    model = convert(case, "eager")
    maps = list(model.lxmert(**as_inputs(case), output_attentions=True).attentions)
    wanted = case["outputs"]["rec"]["attn"]
    mask = case["inputs"]["attention_mask"].bool()
    order = [wanted[f"lang.{number}"][0] for number in range(3)] + [wanted[f"vis.{number}"][0] for number in range(2)]
    for number in range(2):
        order += wanted[f"x.{number}.cross_lang_then_vis"]
        order += [wanted[f"x.{number}.{name}"][0] for name in ("lang_self", "vis_self")]
    assert len(maps) == len(order)
    for ours, theirs in zip(maps, order, strict=True):
        rows = mask if ours.shape[2] == mask.shape[1] else torch.ones(len(ours), ours.shape[2], dtype=torch.bool)
        assert_close(ours.transpose(1, 2)[rows], theirs.transpose(1, 2)[rows])
    assert layer_names(model.config.grounding_calls) == ["cross 0", "cross 1"]


def test_mask_of_regions(cases):
    case = cases["pretrain"]
    wanted = case["outputs"]["with_visual_mask"]
    mask = wanted["visual_attention_mask"]
    found = convert(case).lxmert(**as_inputs(case), region_attention_mask=mask)
    text = case["inputs"]["attention_mask"].bool()
    assert_close(found.text_hidden_state[text], wanted["lang_output"][text])
    seen = mask.bool()
    assert_close(found.region_hidden_state[seen], wanted["visn_output"][seen])
    assert_close(found.pooler_output, wanted["pooled_output"])


@pytest.mark.parametrize("name", ["pretrain", "pretrain_no_answers"])
def test_pretraining_losses_and_gradients(cases, name):
    case = cases[name]
    model = convert(case)
    wanted = case["outputs"]
    inputs = as_inputs(case)
    targets = as_targets(case)
    # The target of the features is the original feature, which masking has replaced in the input.
    true = case["inputs"]["obj_labels"]["feat"][0]
    predicted = targets.pop("predicted_regions")
    found = model(**inputs, **targets)
    mask = case["inputs"]["attention_mask"].bool()
    assert_close(found.mlm_logits[mask], wanted["prediction_logits"][mask])
    for ours, theirs in (
        ("relationship_logits", wanted["cross_relationship_score"]),
        ("region_logits", wanted["obj_predict"]["obj"]),
        ("attribute_logits", wanted["obj_predict"]["attr"]),
        ("predicted_features", wanted["obj_predict"]["feat"]),
        ("answer_logits", wanted["answer_score"]),
    ):
        assert_close(getattr(found, ours), theirs)
    features = functional.smooth_l1_loss(found.predicted_features, true, reduction="none").mean(-1)
    features = (features * predicted).mean() / 0.15
    losses = wanted["losses"]
    assert_close(features, losses["Feat"])
    parts = [losses[key] for key in ("Mask_LM", "Matched", "Obj", "Attr", "Feat", "QA")]
    if name == "pretrain_no_answers":
        assert parts.pop().isnan()  # here it is 0
    total = found.loss + features
    assert_close(total, torch.stack([part.reshape(()) for part in parts]).sum())
    total.backward()
    weights = dict(model.named_parameters())
    for key, gradient in wanted["grads"].items():
        ours = weights[key.replace("bert.", "lxmert.", 1)].grad
        assert_close(torch.zeros_like(gradient) if ours is None else ours, gradient, rtol=1e-4, atol=1e-5)


def test_the_models_own_loss_of_features(cases):
    """With features that are not masked, the model's loss of features is the formula above."""
    case = cases["pretrain"]
    model = convert(case)
    inputs = as_inputs(case)
    targets = as_targets(case)
    found = model(**inputs, predicted_regions=targets["predicted_regions"])
    error = functional.smooth_l1_loss(found.predicted_features, inputs["region_features"], reduction="none").mean(-1)
    assert_close(found.loss, (error * targets["predicted_regions"]).mean() / 0.15)


def bert_adam(parameters, moments, lr, decay=0.01):
    """The optimizer of the public code: no bias correction, decay inside the update of every parameter."""
    for parameter in parameters:
        if parameter.grad is None:
            continue
        first, second = moments.setdefault(parameter, [torch.zeros_like(parameter), torch.zeros_like(parameter)])
        first.mul_(0.9).add_(parameter.grad, alpha=0.1)
        second.mul_(0.999).addcmul_(parameter.grad, parameter.grad, value=0.001)
        parameter.data -= lr * (first / (second.sqrt() + 1e-6) + decay * parameter.data)


def test_five_steps_of_training(cases):
    case = cases["pretrain"]
    model = convert(case)
    inputs = as_inputs(case)
    targets = as_targets(case)
    true = case["inputs"]["obj_labels"]["feat"][0]
    predicted = targets.pop("predicted_regions")
    plan = case["outputs"]["bertadam"]
    moments = {}
    parameters = list(model.parameters())
    for step, wanted in enumerate(plan["steps"]):
        model.zero_grad()
        found = model(**inputs, **targets)
        features = functional.smooth_l1_loss(found.predicted_features, true, reduction="none").mean(-1)
        loss = found.loss + (features * predicted).mean() / 0.15
        assert_close(loss.detach(), torch.as_tensor(wanted["loss"]).reshape(()), rtol=1e-4, atol=1e-4)
        loss.backward()
        norm = torch.nn.utils.clip_grad_norm_(parameters, plan["clip"])
        assert_close(norm, torch.as_tensor(wanted["grad_norm"]).reshape(()), rtol=1e-4, atol=1e-4)
        share = step / plan["t_total"]
        warmup = plan["warmup"]
        factor = share / warmup if share < warmup else max((share - 1) / (warmup - 1), 0)
        bert_adam(parameters, moments, plan["lr"] * factor)
        weights = dict(model.named_parameters())
        for key, value in wanted["params"].items():
            assert_close(
                weights[key.replace("bert.", "lxmert.", 1)].data, value, rtol=1e-4, atol=1e-4, msg=f"{step} {key}"
            )


@pytest.mark.parametrize("name", ["vqa", "gqa"])
def test_answers(cases, name):
    case = cases[name]
    model = convert(case)
    assert type(model) is LXMERTForVisualQuestionAnswering
    found = model(**as_inputs(case), labels=case["inputs"]["target"])
    assert_close(found.logits, case["outputs"]["logit"])
    assert_close(found.loss, case["outputs"]["loss"])


def test_two_images(cases):
    """The public code stacks the images of an example; here their regions follow one another."""
    case = cases["nlvr2"]
    model = convert(case)
    inputs = case["inputs"]
    assert type(model) is LXMERTForVisualReasoning
    features, boxes = (inputs[name].float().flatten(1, 2) for name in ("feat", "pos"))
    images = torch.arange(2).repeat_interleave(inputs["feat"].shape[2]).expand(len(features), -1)
    texts = {name: inputs[name][: len(features)] for name in ("input_ids", "attention_mask")}
    found = model(
        **texts,
        region_features=features,
        region_boxes=boxes,
        region_token_type_ids=images,
        labels=inputs["label"],
    )
    assert_close(found.logits, case["outputs"]["logit"])
    assert_close(found.loss, case["outputs"]["loss"])


SMALL = {
    "vocab_size": 40,
    "hidden_size": 24,
    "num_attention_heads": 4,
    "intermediate_size": 32,
    "l_layers": 2,
    "x_layers": 2,
    "r_layers": 1,
    "visual_feat_dim": 6,
    "num_qa_labels": 5,
    "num_object_labels": 7,
    "num_attr_labels": 3,
}


@pytest.fixture(scope="module")
def theirs(tmp_path_factory):
    """A checkpoint of transformers."""
    torch.manual_seed(0)
    folder = tmp_path_factory.mktemp("theirs")
    model = transformers.LxmertForPreTraining(transformers.LxmertConfig(**SMALL)).eval()
    for parameter in model.parameters():
        parameter.data.normal_(std=0.2)
    model.save_pretrained(folder)
    return folder


def small_inputs():
    generator = torch.Generator().manual_seed(1)
    return {
        "input_ids": torch.randint(1, 40, (2, 5), generator=generator),
        "features": torch.randn(2, 4, 6, generator=generator),
        "boxes": torch.rand(2, 4, 4, generator=generator),
    }


def run_theirs(folder, inputs):
    model = transformers.LxmertForPreTraining.from_pretrained(folder).eval()
    return model, model(inputs["input_ids"], visual_feats=inputs["features"], visual_pos=inputs["boxes"])


def run_ours(model, inputs):
    return model(inputs["input_ids"], region_features=inputs["features"], region_boxes=inputs["boxes"])


def test_a_checkpoint_of_transformers_loads_here(theirs):
    inputs = small_inputs()
    _, wanted = run_theirs(theirs, inputs)
    model, info = LXMERTForPreTraining.from_pretrained(theirs, output_loading_info=True)
    assert not info["missing_keys"]
    assert not info["unexpected_keys"]
    found = run_ours(model.eval(), inputs)
    assert_close(found.mlm_logits, wanted.prediction_logits)
    assert_close(found.relationship_logits, wanted.cross_relationship_score)
    assert_close(found.answer_logits, wanted.question_answering_score)
    base = LXMERTModel.from_pretrained(theirs).eval()
    assert_close(
        run_ours(base, inputs).text_hidden_state,
        model.lxmert.eval()(
            inputs["input_ids"], region_features=inputs["features"], region_boxes=inputs["boxes"]
        ).text_hidden_state,
    )


def test_round_trip_bit_for_bit(theirs, tmp_path):
    """Theirs -> ours -> theirs: the same names and the same bits."""
    before = transformers.LxmertForPreTraining.from_pretrained(theirs).state_dict()
    LXMERTForPreTraining.from_pretrained(theirs).save_pretrained(tmp_path)
    model, info = transformers.LxmertForPreTraining.from_pretrained(tmp_path, output_loading_info=True)
    assert not info["missing_keys"]
    assert not info["unexpected_keys"]
    after = model.state_dict()
    assert before.keys() == after.keys()
    assert all(torch.equal(before[name], after[name]) for name in before)


@pytest.mark.parametrize("place", ["checkpoint", "argument"])
def test_answers_start_from_those_of_pretraining(theirs, tmp_path, place):
    model = LXMERTForPreTraining.from_pretrained(theirs)
    learned = ["yes", "no", "a red ball", "2", "left"]
    given = {"qa_answers": learned} if place == "argument" else {}
    model.config.qa_answers = None if given else learned
    model.save_pretrained(tmp_path)
    wanted = ["Red ball.", "seven", "No"]
    source = theirs if given else tmp_path
    found = LXMERTForVisualQuestionAnswering.from_pretrained(source, answers=wanted, **given)
    head = found.answer_head.logit_fc
    source = model.answer_head.logit_fc
    assert torch.equal(head[0].weight, source[0].weight)
    assert torch.equal(head[2].weight, source[2].weight)
    assert torch.equal(head[3].weight[0], source[3].weight[2])
    assert torch.equal(head[3].weight[2], source[3].weight[1])
    assert not head[3].weight[1].any()
    assert not head[3].bias[1]
