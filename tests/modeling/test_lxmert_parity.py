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
from tests.helpers.closeness import assert_close, parity_cases

SIZES = ("vocab_size", "hidden_size", "num_attention_heads", "intermediate_size", "max_position_embeddings")
LAYERS = ("l_layers", "x_layers", "r_layers", "visual_feat_dim")


@pytest.fixture(scope="module")
def cases(shared):
    return parity_cases(shared, "lxmert")


@pytest.fixture
def pretrain(cases):
    return cases["pretrain"]


def convert(case, back_end="sdpa"):
    given = {name: case["config"][name] for name in (*SIZES, *LAYERS)}
    model, _ = LXMERT.build_model(case["state_dict"], given)
    model.set_attn_implementation(back_end)
    return model.eval()


def seen_words(case):
    return case["inputs"]["attention_mask"].bool()


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

    objects, object_weights = inputs["obj_labels"]["obj"]
    attributes, attribute_weights = inputs["obj_labels"]["attr"]
    _, feature_weights = inputs["obj_labels"]["feat"]
    return {
        "labels": unlabelled(inputs["masked_lm_labels"]),
        "relationship_labels": inputs["matched_label"],
        "answer_labels": unlabelled(inputs["ans"]),
        "region_labels": unlabelled(objects),
        "region_label_weights": object_weights,
        "attribute_labels": unlabelled(attributes),
        "attribute_label_weights": attribute_weights,
        "predicted_regions": feature_weights > 0,
    }


def feature_loss(found, features, predicted):
    """The loss of features by its formula."""
    errors = functional.smooth_l1_loss(found.predicted_features, features, reduction="none").mean(-1)
    return (errors * predicted).mean() / 0.15


@pytest.mark.parametrize("back_end", ["eager", "sdpa"])
def test_states_after_every_layer(pretrain, back_end):
    wanted = pretrain["outputs"]
    found = convert(pretrain, back_end).lxmert(**as_inputs(pretrain), output_hidden_states=True)
    recorded = wanted["rec"]
    mask = seen_words(pretrain)
    text = [recorded["emb_lang"], *recorded["hidden_l"], *recorded["hidden_x_lang"]]
    assert_close([states[mask] for states in found.hidden_states], [states[mask] for states in text])
    regions = [recorded["emb_vis"], *recorded["hidden_r"], *recorded["hidden_x_vis"]]
    assert_close(list(found.region_hidden_states), regions)
    assert_close(found.pooler_output, wanted["pooled_output"])


def test_attention_of_every_call(pretrain):
    model = convert(pretrain, "eager")
    maps = model.lxmert(**as_inputs(pretrain), output_attentions=True).attentions
    wanted = pretrain["outputs"]["rec"]["attn"]
    names = ["lang.0", "lang.1", "lang.2", "vis.0", "vis.1"]
    order = [wanted[name][0] for name in names]
    for number in range(2):
        order += wanted[f"x.{number}.cross_lang_then_vis"]
        order.append(wanted[f"x.{number}.lang_self"][0])
        order.append(wanted[f"x.{number}.vis_self"][0])
    mask = seen_words(pretrain)
    for ours, theirs in zip(maps, order, strict=True):
        rows = mask if ours.shape[2] == mask.shape[1] else slice(None)
        assert_close(ours.transpose(1, 2)[rows], theirs.transpose(1, 2)[rows])
    assert layer_names(model.config.grounding_calls) == ["cross 0", "cross 1"]


def test_mask_of_regions(pretrain):
    wanted = pretrain["outputs"]["with_visual_mask"]
    regions = wanted["visual_attention_mask"]
    found = convert(pretrain).lxmert(**as_inputs(pretrain), region_attention_mask=regions)
    words = seen_words(pretrain)
    assert_close(found.text_hidden_state[words], wanted["lang_output"][words])
    assert_close(found.region_hidden_state[regions.bool()], wanted["visn_output"][regions.bool()])
    assert_close(found.pooler_output, wanted["pooled_output"])


@pytest.mark.parametrize("name", ["pretrain", "pretrain_no_answers"])
def test_pretraining_losses_and_gradients(cases, name):
    case = cases[name]
    model = convert(case)
    wanted = case["outputs"]
    targets = as_targets(case)
    # The target of the features is the original feature, which masking has replaced in the input.
    features, _ = case["inputs"]["obj_labels"]["feat"]
    predicted = targets.pop("predicted_regions")
    found = model(**as_inputs(case), **targets)
    mask = seen_words(case)
    assert_close(found.mlm_logits[mask], wanted["prediction_logits"][mask])
    assert_close(found.relationship_logits, wanted["cross_relationship_score"])
    assert_close(found.region_logits, wanted["obj_predict"]["obj"])
    assert_close(found.attribute_logits, wanted["obj_predict"]["attr"])
    assert_close(found.predicted_features, wanted["obj_predict"]["feat"])
    assert_close(found.answer_logits, wanted["answer_score"])
    losses = wanted["losses"]
    of_features = feature_loss(found, features, predicted)
    assert_close(of_features, losses["Feat"])
    parts = [losses[key] for key in ("Mask_LM", "Matched", "Obj", "Attr", "Feat", "QA")]
    if name == "pretrain_no_answers":
        assert parts.pop().isnan()  # here it is 0
    total = found.loss + of_features
    assert_close(total, sum(part.reshape(()) for part in parts))
    total.backward()
    weights = dict(model.named_parameters())
    for key, gradient in wanted["grads"].items():
        ours = weights[key.replace("bert.", "lxmert.", 1)].grad
        assert_close(torch.zeros_like(gradient) if ours is None else ours, gradient, rtol=1e-4, atol=1e-5)


def test_the_models_own_loss_of_features(pretrain):
    """With features that are not masked, the model's loss of features is the formula above."""
    inputs = as_inputs(pretrain)
    predicted = as_targets(pretrain)["predicted_regions"]
    found = convert(pretrain)(**inputs, predicted_regions=predicted)
    assert_close(found.loss, feature_loss(found, inputs["region_features"], predicted))


def bert_adam(parameters, moments, lr, decay=0.01):
    """The optimizer of the public code: no bias correction, decay inside the update of every parameter."""
    for parameter in parameters:
        if parameter.grad is None:
            continue
        first, second = moments.setdefault(parameter, [torch.zeros_like(parameter), torch.zeros_like(parameter)])
        first.mul_(0.9).add_(parameter.grad, alpha=0.1)
        second.mul_(0.999).addcmul_(parameter.grad, parameter.grad, value=0.001)
        parameter.data -= lr * (first / (second.sqrt() + 1e-6) + decay * parameter.data)


def test_five_steps_of_training(pretrain):
    model = convert(pretrain)
    targets = as_targets(pretrain)
    features, _ = pretrain["inputs"]["obj_labels"]["feat"]
    predicted = targets.pop("predicted_regions")
    plan = pretrain["outputs"]["bertadam"]
    warmup = plan["warmup"]
    moments = {}
    weights = dict(model.named_parameters())
    for step, wanted in enumerate(plan["steps"]):
        model.zero_grad()
        found = model(**as_inputs(pretrain), **targets)
        loss = found.loss + feature_loss(found, features, predicted)
        assert loss.item() == pytest.approx(float(wanted["loss"]), rel=1e-4)
        loss.backward()
        norm = torch.nn.utils.clip_grad_norm_(weights.values(), plan["clip"])
        assert norm.item() == pytest.approx(float(wanted["grad_norm"]), rel=1e-4)
        share = step / plan["t_total"]
        factor = share / warmup if share < warmup else max((share - 1) / (warmup - 1), 0)
        bert_adam(weights.values(), moments, plan["lr"] * factor)
        found = {key: weights[key.replace("bert.", "lxmert.", 1)].data for key in wanted["params"]}
        assert_close(found, wanted["params"], rtol=1e-4, atol=1e-4)


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
    features = inputs["feat"].float().flatten(1, 2)
    images = torch.arange(2).repeat_interleave(inputs["feat"].shape[2]).expand(len(features), -1)
    found = model(
        inputs["input_ids"][: len(features)],
        attention_mask=inputs["attention_mask"][: len(features)],
        region_features=features,
        region_boxes=inputs["pos"].float().flatten(1, 2),
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


def test_a_checkpoint_of_transformers_loads_here(theirs):
    generator = torch.Generator().manual_seed(1)
    words = torch.randint(1, 40, (2, 5), generator=generator)
    features = torch.randn(2, 4, 6, generator=generator)
    boxes = torch.rand(2, 4, 4, generator=generator)
    original = transformers.LxmertForPreTraining.from_pretrained(theirs).eval()
    wanted = original(words, visual_feats=features, visual_pos=boxes)
    model, info = LXMERTForPreTraining.from_pretrained(theirs, output_loading_info=True)
    assert not info["missing_keys"]
    assert not info["unexpected_keys"]
    found = model.eval()(words, region_features=features, region_boxes=boxes)
    assert_close(found.mlm_logits, wanted.prediction_logits)
    assert_close(found.relationship_logits, wanted.cross_relationship_score)
    assert_close(found.answer_logits, wanted.question_answering_score)
    base = LXMERTModel.from_pretrained(theirs)
    assert_close(base.state_dict(), model.lxmert.state_dict(), rtol=0, atol=0)


def test_round_trip_bit_for_bit(theirs, tmp_path):
    """Theirs -> ours -> theirs: the same names and the same bits."""
    before = transformers.LxmertForPreTraining.from_pretrained(theirs)
    LXMERTForPreTraining.from_pretrained(theirs).save_pretrained(tmp_path)
    after, info = transformers.LxmertForPreTraining.from_pretrained(tmp_path, output_loading_info=True)
    assert not info["missing_keys"]
    assert not info["unexpected_keys"]
    assert_close(after.state_dict(), before.state_dict(), rtol=0, atol=0)


@pytest.mark.parametrize("place", ["checkpoint", "argument"])
def test_answers_start_from_those_of_pretraining(theirs, tmp_path, place):
    model = LXMERTForPreTraining.from_pretrained(theirs)
    learned = ["yes", "no", "a red ball", "2", "left"]
    given = {"qa_answers": learned} if place == "argument" else {}
    model.config.qa_answers = None if given else learned
    model.save_pretrained(tmp_path)
    wanted = ["Red ball.", "seven", "No"]
    found = LXMERTForVisualQuestionAnswering.from_pretrained(theirs if given else tmp_path, answers=wanted, **given)
    first, _, norm, last = found.answer_head.logit_fc
    source = model.answer_head.logit_fc
    assert torch.equal(first.weight, source[0].weight)
    assert torch.equal(norm.weight, source[2].weight)
    assert torch.equal(last.weight[[0, 2]], source[3].weight[[2, 1]])
    assert not last.weight[1].any()
    assert not last.bias[1]
