# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""VL-BERT's task classes: losses by their formulas, token_regions, choices, pixels, initialisation, wrong inputs."""

from unittest import mock

import pytest
import torch
from huggingface_hub.errors import StrictDataclassError
from torch import nn
from torch.nn.functional import binary_cross_entropy_with_logits, cross_entropy
from transformers import BertForPreTraining

from grounded_attention.modeling import (
    VLBertConfig,
    VLBertForMultipleChoice,
    VLBertForReferringExpression,
    VLBertForVisualQuestionAnswering,
)
from tests.helpers.closeness import assert_close
from tests.helpers.padded_inputs import of_shapes
from tests.helpers.tiny_vl_bert import B, D, F, R, T, make_bert, make_inputs, make_model
from tests.modeling.tiny_vl_bert_pixels import as_features, make_pixel_model
from tests.modeling.tiny_vl_bert_pixels import make_inputs as make_pixel_inputs

C = 3
ANSWERS = ["yes", "two dogs", "no"]
POSITIONS = torch.tensor([4, 2, 1])


TEXT = ("input_ids", "attention_mask", "token_type_ids")


def make_choice_inputs():
    """Three texts for each image; the regions are shared."""
    inputs = make_inputs()
    words = torch.randint(1, 40, (B, C, T), generator=torch.Generator().manual_seed(5))
    inputs["attention_mask"] = inputs["attention_mask"][:, None].repeat(1, C, 1)
    return {**inputs, "input_ids": words, "token_type_ids": words % 2}


# -- token_regions


def test_a_token_sees_the_region_it_names():
    """A region whose features reach no text otherwise: no layer mixes states before the embeddings are recorded."""
    model = make_model()
    inputs = make_inputs()
    tags = torch.full((B, T), -1)
    tags[1, 2] = 3

    def embed(**changes):
        return model(**{**inputs, **changes}, output_hidden_states=True).hidden_states[0][:, :T]

    assert_close(embed(token_regions=torch.full((B, T), -1)), embed())
    assert_close(embed(token_regions=torch.where(tags < 0, 0, tags)), embed(token_regions=tags))
    features = inputs["region_features"].clone()
    features[1, 3] += 1.0
    before = embed(token_regions=tags)
    after = embed(token_regions=tags, region_features=features)
    changed = (before != after).any(dim=-1)
    assert changed.nonzero().tolist() == [[1, 2]]
    # As if that region were the whole image.
    swapped = {name: inputs[name].clone() for name in ("region_features", "region_boxes")}
    for value in swapped.values():
        value[1, 0] = value[1, 3]
    assert_close(before[1, 2], embed(**swapped)[1, 2])


def test_text_alone_takes_tokens_without_region():
    model = make_model()
    inputs = make_inputs()
    text = {name: inputs[name] for name in ("input_ids", "attention_mask")}
    none = torch.full((B, T), -1)
    assert_close(model(**text, token_regions=none)[0], model(**text)[0])
    inputs["region_attention_mask"][1] = 0
    assert_close(model(**inputs, token_regions=none)[0], model(**inputs)[0])


@pytest.mark.parametrize("region", [R, 2])  # out of range; padding of row 0
def test_a_token_cannot_name_what_is_no_region(region):
    tags = torch.full((B, T), -1)
    tags[0, 1] = region
    with pytest.raises(ValueError, match="a padded region or one outside the 4 columns"):
        make_model()(**make_inputs(), token_regions=tags)


def test_without_regions_no_token_can_name_one():
    with pytest.raises(ValueError, match="outside the 0 columns"):
        make_model()(torch.ones(1, 2).long(), token_regions=torch.zeros(1, 2).long())


# -- referring expressions


def test_referring_scores_and_loss_by_their_formulas():
    model = make_model(VLBertForReferringExpression)
    inputs = make_inputs()
    targets = torch.tensor([[0.0, 1.0, 1.0, 1.0], [0.0, 0.5, -100.0, 1.0], [0.0, 0.0, 0.0, 0.0]])
    outputs = model(**inputs, region_targets=targets)
    states = model.vl_bert(**inputs).region_hidden_state
    head = model.referring_head
    scores = head.classifier(nn.functional.gelu(head.dense(states))).squeeze(-1)
    mask = inputs["region_attention_mask"].bool()
    assert_close(outputs.logits, scores.masked_fill(~mask, -10000.0))
    valid = mask & (targets >= 0)
    assert valid.sum() == 9
    assert_close(outputs.loss, binary_cross_entropy_with_logits(scores[valid], targets[valid]))


def test_referring_dropout_is_in_the_head_only():
    model = make_model(
        VLBertForReferringExpression,
        referring_dropout=0.5,
        hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0,
        region_dropout=0.0,
    ).train()
    inputs = make_inputs()
    assert_close(model.vl_bert(**inputs)[0], model.vl_bert(**inputs)[0])
    assert not torch.equal(model(**inputs).logits, model(**inputs).logits)


# -- visual question answering


@pytest.mark.parametrize("head", ["mlm", "1fc", "2fc"])
@pytest.mark.parametrize("form", ["binary_cross_entropy", "cross_entropy"])
def test_answers_are_read_at_the_mask(head, form):
    model = make_model(VLBertForVisualQuestionAnswering, answers=ANSWERS, answer_head=head, vqa_loss=form)
    inputs = make_inputs()
    targets = torch.tensor([[1.0, 0.3, 0.0], [0.0, 0.6, 0.6], [0.0, 0.0, 0.0]])
    outputs = model(**inputs, answer_positions=POSITIONS, labels=targets)
    states = model.vl_bert(**inputs).text_hidden_state
    assert_close(outputs.logits, model.answer_head(states[[0, 1, 2], POSITIONS]))
    if form == "binary_cross_entropy":
        expected = binary_cross_entropy_with_logits(outputs.logits, targets, reduction="none").sum() / B
    else:
        # The last row has no right answer.
        expected = cross_entropy(outputs.logits[:2], targets[:2] / targets[:2].sum(-1, keepdim=True))
    assert_close(outputs.loss, expected)


@pytest.mark.parametrize("answers", [[], ["yes", "no", "yes"]])
def test_answers_are_distinct(answers):
    with pytest.raises(ValueError, match="expected each answer once"):
        VLBertConfig(answers=answers)


class WordPieces:
    """Two letters a piece, which is known by the first."""

    def __call__(self, text, add_special_tokens, split_special_tokens):
        assert split_special_tokens
        assert not add_special_tokens
        return {"input_ids": [ord(letter) % 30 for letter in text[::2]]}


@pytest.mark.parametrize("head", ["mlm", "1fc", "2fc"])
def test_the_classifier_starts_from_the_words_of_the_answers(head):
    model = make_model(VLBertForVisualQuestionAnswering, answers=ANSWERS, answer_head=head)
    nn.init.ones_(model.answer_head.classifier.bias)
    model.init_classifier_from_answers(WordPieces())
    words = model.get_input_embeddings().weight
    classifier = model.answer_head.classifier
    for row, answer in enumerate(ANSWERS):
        pieces = WordPieces()(answer, add_special_tokens=False, split_special_tokens=True)["input_ids"]
        assert_close(classifier.weight[row], words[pieces].mean(0))
    assert classifier.bias.eq(0).all()
    assert classifier.weight.requires_grad


@pytest.mark.parametrize(
    "fields, message",
    [
        ({"num_labels": 3}, "placeholders"),
        ({"answers": ANSWERS, "answer_head": "2fc", "answer_hidden_size": 9}, "has width 9, but words have width 24"),
        ({"answers": ["yes", ""]}, "Answer 1, '', has no word piece"),
    ],
)
def test_a_classifier_that_cannot_start_from_words(fields, message):
    model = make_model(VLBertForVisualQuestionAnswering, **fields)
    with pytest.raises(ValueError, match=message):
        model.init_classifier_from_answers(WordPieces())


# -- multiple choice


@pytest.mark.parametrize("form", ["sigmoid", "softmax"])
def test_choices_equal_one_text_after_the_other(form):
    model = make_model(VLBertForMultipleChoice, choice_loss=form, choice_region_classes=5)
    inputs = make_choice_inputs()
    labels = torch.tensor([2, -100, 0])
    classes = torch.randint(0, 5, (B, R))
    classes[inputs["region_attention_mask"] == 0] = -100
    targets = classes[:, None].expand(-1, C, -1)
    outputs = model(**inputs, labels=labels)
    region_logits = []
    for choice in range(C):
        text = {name: inputs[name][:, choice] for name in TEXT}
        base = model.vl_bert(**{**inputs, **text})
        assert_close(outputs.logits[:, choice], model.choice_head.classifier(base.pooler_output)[:, 0])
        region_logits.append(model.region_class_head(base.region_hidden_state))
    rows = outputs.logits[[0, 2]]
    if form == "sigmoid":
        expected = binary_cross_entropy_with_logits(rows, torch.tensor([[0.0, 0.0, 1.0], [1.0, 0.0, 0.0]]))
    else:
        expected = cross_entropy(rows, labels[[0, 2]])
    assert_close(outputs.loss, expected)
    region_logits = torch.stack(region_logits, dim=1)
    valid = targets != -100
    assert_close(outputs.region_class_logits[valid], region_logits[valid])
    both = model(**inputs, labels=labels, region_class_labels=classes).loss
    assert_close(both, expected + cross_entropy(region_logits[valid], targets[valid]))


def test_regions_may_have_a_dimension_of_choices():
    model = make_model(VLBertForMultipleChoice)
    inputs = make_choice_inputs()
    labels = torch.randint(0, 81, (B, R))
    expected = model(**inputs, region_class_labels=labels)
    for name in ("region_features", "region_boxes", "region_attention_mask"):
        value = inputs[name]
        inputs[name] = value[:, None].expand(-1, C, *value.shape[1:])
    outputs = model(**inputs, region_class_labels=labels[:, None].expand(-1, C, -1))
    assert_close(outputs.logits, expected.logits)
    assert_close(outputs.loss, expected.loss)


def test_choices_take_embeddings_and_text_alone():
    model = make_model(VLBertForMultipleChoice)
    inputs = make_choice_inputs()
    text = {name: inputs[name] for name in ("input_ids", "attention_mask")}
    expected = model(**text)
    assert expected.region_class_logits.shape == (B, C, 0, 81)
    embeds = model.get_input_embeddings()(text.pop("input_ids"))
    assert_close(model(**text, inputs_embeds=embeds).logits, expected.logits)


def test_a_choice_head_may_have_two_layers_and_no_region_classes():
    model = make_model(VLBertForMultipleChoice, choice_hidden_size=5, choice_region_classes=None)
    outputs = model(**make_choice_inputs())
    assert model.choice_head.dense.out_features == 5
    assert (outputs.region_class_logits, outputs.logits.shape) == (None, (B, C))


# -- from pixels


def test_choices_compute_the_features_of_an_image_once():
    model = make_pixel_model(VLBertForMultipleChoice)
    inputs = make_pixel_inputs()
    choices = make_choice_inputs()
    inputs |= {name: choices[name] for name in TEXT}
    seen = []
    model.vl_bert.vision_model.register_forward_hook(lambda module, given, output: seen.append(len(given[0])))
    logits = model(**inputs).logits
    assert seen == [2]  # the third row is text alone
    assert_close(logits, model(**as_features(model, inputs)).logits)


# -- grounding queries


def test_grounding_queries_may_have_a_dimension_of_choices():
    model = make_model(VLBertForMultipleChoice)
    inputs = make_choice_inputs()
    rows = torch.arange(B * C * 2).view(B, C, 2) % T
    columns = torch.zeros(B, C, 1, dtype=torch.long)
    flat = (rows.flatten(0, 1), columns.flatten(0, 1))
    encoder = model.vl_bert.encoder
    with mock.patch.object(encoder, "forward", wraps=encoder.forward) as forward:
        model(**inputs, grounding_queries={"text_to_region": (rows, columns)})
        model(**inputs, grounding_queries={"text_to_region": flat})
    for call in forward.call_args_list:
        (queries,) = call.kwargs["attention_queries"]
        assert torch.equal(queries[0], flat[0])
        assert torch.equal(queries[1], flat[1] + T)


# -- where weights come from


def test_from_bert_starts_the_answer_head(tmp_path):
    bert = make_bert(BertForPreTraining, tmp_path)
    model = VLBertForVisualQuestionAnswering.from_bert(str(tmp_path), region_feature_size=F, answers=ANSWERS)
    states = torch.randn(2, D)
    assert_close(model.answer_head.transform(states), bert.cls.predictions.transform(states))


# -- wrong inputs


UNKNOWN = {"text_to_text": (torch.zeros(B, 1), torch.zeros(B, 1))}


@pytest.mark.parametrize(
    "cls, change, message",
    [
        (
            VLBertForReferringExpression,
            {"region_targets": (3, 2)},
            r"region_targets have the shape \(3, 2\)",
        ),
        (VLBertForVisualQuestionAnswering, {"answer_positions": None}, "answer_positions are missing"),
        (VLBertForVisualQuestionAnswering, {"answer_positions": POSITIONS[:2]}, "answer_positions have the shape"),
        (VLBertForVisualQuestionAnswering, {"labels": (3, 9)}, r"labels have the shape \(3, 9\)"),
        (VLBertForReferringExpression, {"grounding_queries": UNKNOWN}, "unknown entries"),
        (VLBertForVisualQuestionAnswering, {"grounding_queries": UNKNOWN}, "unknown entries"),
        (VLBertForMultipleChoice, {"grounding_queries": UNKNOWN}, "unknown entries"),
        (VLBertForMultipleChoice, {"input_ids": None}, "exactly one of input_ids and inputs_embeds"),
        (VLBertForMultipleChoice, {"input_ids": (3, 7)}, "input_ids have the shape"),
        (VLBertForMultipleChoice, {"token_type_ids": (3, 7)}, "token_type_ids have the shape"),
        (VLBertForMultipleChoice, {"labels": (3, 3)}, r"labels have the shape \(3, 3\), expected \(3\)"),
        (VLBertForMultipleChoice, {"region_class_labels": (3, 9)}, "region_class_labels have the shape"),
        (VLBertForMultipleChoice, {"image_sizes": (3, 2)}, "image_sizes are given without pixel_values"),
        (VLBertForMultipleChoice, {"pixel_values": (3, 3, 4, 4)}, "Give region_features or pixel_values"),
    ],
)
def test_wrong_inputs_are_named(cls, change, message):
    inputs = make_choice_inputs() if cls is VLBertForMultipleChoice else make_inputs()
    if cls is VLBertForVisualQuestionAnswering:
        inputs["answer_positions"] = POSITIONS
    with pytest.raises(ValueError, match=message):
        make_model(cls)(**{**inputs, **of_shapes(change)})


def test_region_class_labels_need_the_head():
    model = make_model(VLBertForMultipleChoice, choice_region_classes=None)
    with pytest.raises(ValueError, match="choice_region_classes is None"):
        model(**make_choice_inputs(), region_class_labels=torch.zeros(B, R).long())


@pytest.mark.parametrize(
    "field, value",
    [("answer_head", "3fc"), ("vqa_loss", "mse"), ("choice_loss", "hinge"), ("choice_region_classes", 0)],
)
def test_config_refuses_unknown_heads_and_losses(field, value):
    with pytest.raises(StrictDataclassError, match=field):
        VLBertConfig(**{field: value})
