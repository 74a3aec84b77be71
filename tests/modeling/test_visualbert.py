# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""VisualBERT: heads against plain formulas, supervision, back ends, initialisation, inputs and their errors."""

import pytest
import torch
from torch import nn
from transformers import BertConfig, BertForPreTraining, VisualBertForPreTraining
from transformers import VisualBertConfig as TheirConfig

from grounded_attention.families import FAMILIES, find_family
from grounded_attention.modeling import (
    VisualBERTConfig,
    VisualBERTForMultipleChoice,
    VisualBERTForPhraseGrounding,
    VisualBERTForPreTraining,
    VisualBERTForVGP,
    VisualBERTForVisualQuestionAnswering,
    VisualBERTForVisualReasoning,
    VisualBERTModel,
)
from tests.helpers.closeness import assert_close
from tests.helpers.padded_inputs import of_shapes
from tests.helpers.tiny_visualbert import ANSWERS, SIZES, B, D, F, H, R, T, make_grounding, make_inputs, make_model


def valid(outputs, inputs):
    text = inputs["attention_mask"].bool()
    regions = inputs["region_attention_mask"].bool()
    return torch.cat([outputs.text_hidden_state[text], outputs.region_hidden_state[regions]])


# -- inputs


ALIGNMENT = torch.tensor([[[1, 2], [0, -1], [-1, -1], [2, -1]]] * B)
ZEROS = torch.zeros(B, R, dtype=torch.long)


def test_regions_have_token_type_0_by_default_and_a_second_image_has_1():
    model = make_model()
    inputs = make_inputs()
    expected = valid(model(**inputs), inputs)
    assert torch.equal(expected, valid(model(**inputs, region_token_type_ids=ZEROS), inputs))
    assert not torch.allclose(expected, valid(model(**inputs, region_token_type_ids=ZEROS + 1), inputs), atol=0.01)


def test_padding_and_its_side_do_not_matter():
    model = make_model()
    inputs = make_inputs()
    expected = model(**inputs, image_text_alignment=ALIGNMENT)
    shifts = T - inputs["attention_mask"].sum(1)
    left = dict(inputs)
    for name in ("input_ids", "attention_mask", "token_type_ids"):
        left[name] = torch.stack([inputs[name][row].roll(shifts[row].item()) for row in range(B)])
    moved = torch.where(ALIGNMENT < 0, -1, ALIGNMENT + shifts[:, None, None])
    found = model(**left, image_text_alignment=moved)
    assert_close(valid(found, left), valid(expected, inputs))
    assert_close(found.pooler_output, expected.pooler_output)


def test_boxes_are_accepted_and_not_read():
    model = make_model()
    inputs = make_inputs()
    expected = model(**inputs).last_hidden_state
    inputs["region_boxes"] = inputs["region_boxes"] / 2
    assert torch.equal(model(**inputs).last_hidden_state, expected)


@pytest.mark.parametrize(
    "change, problem",
    [
        ({"region_features": (3, 4, 11)}, "this model's visual_embedding_dim is 10"),
        ({"region_attention_mask": (3, 5)}, r"region_attention_mask have the shape \(3, 5\)"),
        ({"region_boxes": (3, 4, 5)}, "region_boxes have the shape"),
        ({"region_token_type_ids": (3, 5)}, "region_token_type_ids have the shape"),
        ({"image_text_alignment": (3, 4)}, "image_text_alignment have the shape"),
        ({"image_text_alignment": torch.full((B, R, 1), T)}, "contains column 7, but the text has 7 tokens"),
        ({"pixel_values": (3, 3, 8, 8)}, "has no pixel network"),
        ({"region_features": None}, "region_boxes are given without region_features"),
        ({"inputs_embeds": (3, 7, 24)}, "exactly one of input_ids and inputs_embeds"),
        ({"grounding_queries": {"across": ()}}, "unknown entries"),
        ({"input_ids": (3, 30)}, "30 tokens long, but this model takes at most 20"),
    ],
)
def test_mistakes_are_named(change, problem):
    with pytest.raises(ValueError, match=problem):
        make_model()(**{**make_inputs(), **of_shapes(change)})


# -- back ends


@pytest.mark.parametrize("bypass", [False, True])
def test_unpadded_states_are_the_same(bypass):
    model = make_model(bypass_transformer=bypass)
    inputs = make_inputs()
    expected = model(**inputs, output_hidden_states=True)
    model.config.unpad = True
    found = model(**inputs, output_hidden_states=True)
    assert_close(valid(found, inputs), valid(expected, inputs))
    seen = torch.cat([inputs["attention_mask"], inputs["region_attention_mask"]], dim=1).bool()
    assert len(found.hidden_states) > 2
    for state, other in zip(found.hidden_states, expected.hidden_states, strict=True):
        columns = seen[:, : other.shape[1]]  # with bypass_transformer the encoder has only text
        assert_close(state[columns], other[columns])


def gradients(model, inputs):
    model.zero_grad()
    model(**inputs).loss.backward()
    return {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}


def test_loss_and_gradients_equal_transformers(tmp_path):
    torch.manual_seed(0)
    theirs = VisualBertForPreTraining(TheirConfig(**SIZES, visual_embedding_dim=F, pad_token_id=0)).eval()
    theirs.save_pretrained(tmp_path)
    model = VisualBERTForPreTraining.from_pretrained(tmp_path).eval()
    inputs = make_inputs()
    labels = torch.full((B, T), -100)
    labels[[0, 1], [2, 1]] = torch.tensor([5, 7])
    pairs = torch.tensor([1, 0, 1])
    their_inputs = {
        "input_ids": inputs["input_ids"],
        "attention_mask": inputs["attention_mask"],
        "token_type_ids": inputs["token_type_ids"],
        "visual_embeds": inputs["region_features"],
        "visual_attention_mask": inputs["region_attention_mask"],
        "visual_token_type_ids": ZEROS,
        "labels": nn.functional.pad(labels, (0, R), value=-100),
        "sentence_image_labels": pairs,
    }
    found = gradients(model, {**inputs, "labels": labels, "relationship_labels": pairs})
    assert_close(found, gradients(theirs, their_inputs))


# -- attention supervision


@pytest.mark.parametrize("name", ["grounding_queries", "attention_queries"])
def test_without_early_fusion_no_layer_can_be_supervised(name):
    queries = {"text_to_region": (torch.ones(B, 1).long(), torch.zeros(B, 1).long())}
    with pytest.raises(ValueError, match="bypass_transformer"):
        make_model(bypass_transformer=True)(**make_inputs(), **{name: queries})


# -- heads


@pytest.mark.parametrize("scorer", ["single_head", "self_attention"])
def test_phrases_are_scored_as_described(scorer):
    model = make_model(VisualBERTForPhraseGrounding, phrase_scorer=scorer)
    inputs = make_inputs()
    mask, regions, _ = make_grounding()
    outputs = model(**inputs, phrase_mask=mask, phrase_regions=regions)
    states = model.visual_bert(**inputs).last_hidden_state
    head = model.attention
    width = D // H
    total = 0.0
    for row, phrase, token in [(0, 0, 2), (0, 1, 4), (1, 0, 2)]:
        there = inputs["region_attention_mask"][row].bool()
        query = head.query(states[row, token])
        if scorer == "single_head":
            scores = head.key(states[row, T:]) @ query / width**0.5
            assert head.key.out_features == width
        else:
            both = torch.cat([inputs["attention_mask"][row].bool(), there])
            products = (head.key(states[row]) * query).view(T + R, H, width).sum(-1) / width**0.5
            shares = products.masked_fill(~both[:, None], -torch.inf).softmax(0)
            scores = shares.mean(1).log()[T:]
        scores = scores.masked_fill(~there, -10000.0)
        assert_close(outputs.logits[row, phrase], scores)
        right = regions[row, phrase]
        if right.any():
            total += (-right.sum().log() - scores.log_softmax(-1)[right].mean()).item()
    assert outputs.loss.item() == pytest.approx(total / B, rel=1e-5)
    outputs.loss.backward()
    assert all((p.grad is not None) is p.requires_grad for p in model.parameters())


def test_the_divergence_from_the_scores_of_the_answers():
    """The other losses of answers are those of VL-BERT."""
    model = make_model(VisualBERTForVisualQuestionAnswering, answers=ANSWERS, vqa_loss="kl_divergence")
    targets = torch.tensor([[0.6, 0.3, 0.0], [0.0, 1.0, 0.0], [0.0, 0.5, 0.5]])
    outputs = model(**make_inputs(), answer_positions=torch.tensor([4, 2, 1]), labels=targets)
    logs = outputs.logits.log_softmax(-1)
    assert_close(outputs.loss, nn.functional.kl_div(logs, targets, reduction="sum") / B)


def test_choices_share_regions_or_have_their_own():
    model = make_model(VisualBERTForMultipleChoice)
    text = {}
    regions = {}
    for name, value in {**make_inputs(), "image_text_alignment": ALIGNMENT}.items():
        if name.startswith(("region", "image")):
            regions[name] = value
        else:
            text[name] = torch.stack([value, value.flip(0)], dim=1)
    shared = model(**text, **regions, labels=torch.tensor([0, 1, -100]))
    own = model(**text, **{name: torch.stack([value] * 2, dim=1) for name, value in regions.items()})
    assert torch.equal(shared.logits, own.logits)
    second = model(**{name: value[:, 1:] for name, value in text.items()}, **regions)
    assert_close(second.logits, shared.logits[:, 1:])
    assert_close(shared.loss, nn.functional.cross_entropy(shared.logits[:2], torch.tensor([0, 1])))


def test_statements():
    model = make_model(VisualBERTForVisualReasoning)
    outputs = model(**make_inputs(), labels=torch.tensor([1, -100, 0]))
    expected = nn.functional.cross_entropy(outputs.logits[[0, 2]], torch.tensor([1, 0]))
    assert_close(outputs.loss, expected)


# -- initialisation


def test_visual_tables_start_as_copies_of_the_text_tables():
    tables = make_model().embeddings
    assert torch.equal(tables.visual_token_type_embeddings.weight, tables.token_type_embeddings.weight)
    assert torch.equal(tables.visual_position_embeddings.weight, tables.position_embeddings.weight)
    assert tables.visual_position_embeddings.weight is not tables.position_embeddings.weight
    apart = make_model(special_visual_initialize=False).embeddings
    assert not torch.equal(apart.visual_position_embeddings.weight, apart.position_embeddings.weight)


def test_a_saved_model_keeps_its_visual_tables(tmp_path):
    model = make_model()
    nn.init.constant_(model.embeddings.visual_position_embeddings.weight, 0.5)
    model.save_pretrained(tmp_path)
    loaded = VisualBERTForVGP.from_pretrained(tmp_path)
    assert loaded.visual_bert.embeddings.visual_position_embeddings.weight.eq(0.5).all()


@pytest.mark.parametrize("cls", [VisualBERTModel, VisualBERTForPreTraining, VisualBERTForVGP])
def test_from_bert(tmp_path, cls):
    torch.manual_seed(1)
    bert = BertForPreTraining(BertConfig(**SIZES)).eval()
    nn.init.normal_(bert.cls.predictions.bias)
    bert.save_pretrained(tmp_path)
    model = cls.from_bert(str(tmp_path), visual_embedding_dim=F).eval()
    ids = make_inputs()["input_ids"]
    base = getattr(model, "visual_bert", model)
    expected = bert(ids)
    assert_close(base(ids).last_hidden_state, bert.bert(ids).last_hidden_state)
    tables = base.embeddings
    assert torch.equal(tables.visual_position_embeddings.weight, tables.position_embeddings.weight)
    if cls is VisualBERTForPreTraining:
        assert_close(model(ids).mlm_logits, expected.prediction_logits)
        # BERT's class 0 is "belongs"; here it is 1.
        assert_close(model(ids).relationship_logits, expected.seq_relationship_logits.flip(1))


# -- the registry


def test_a_head_of_one_name_returns_the_same_in_every_family():
    for name, family in FAMILIES.items():
        assert find_family(family.config_class.model_type) == name
        for cls in (family.base_model, *family.heads.values()):
            assert cls.config_class is family.config_class
        assert {"pretraining", "vgp", "vqa", "multiple_choice", "referring_expressions"} <= set(family.heads)
    assert find_family("visual_bert") == "visualbert"  # these two are those of transformers
    assert find_family("lxmert") == "lxmert"
    assert find_family("bert") is None
    assert FAMILIES["visualbert"].head_of("VisualBertForQuestionAnswering") == "vqa"
    assert FAMILIES["visualbert"].head_of("VisualBERTForVGP") == "vgp"


def test_the_width_of_regions_has_the_projects_name():
    config = VisualBERTConfig(region_feature_size=64)
    assert config.visual_embedding_dim == config.region_feature_size == 64
    assert "region_feature_size" not in config.to_dict()


def test_sizes_that_do_not_fit_are_refused():
    with pytest.raises(Exception, match="must be a multiple of num_attention_heads"):
        VisualBERTConfig(hidden_size=30, num_attention_heads=4)
    with pytest.raises(Exception, match="visual_embedding_dim must be positive"):
        VisualBERTConfig(visual_embedding_dim=0)
