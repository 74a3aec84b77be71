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
from tests.helpers.tiny_visualbert import ANSWERS, SIZES, B, D, F, H, R, T, make_grounding, make_inputs, make_model


def valid(outputs, inputs):
    text = inputs["attention_mask"].bool()
    regions = inputs["region_attention_mask"].bool()
    return torch.cat([outputs.text_hidden_state[text], outputs.region_hidden_state[regions]])


# -- inputs


def test_regions_have_token_type_0_by_default_and_a_second_image_has_1():
    model = make_model()
    inputs = make_inputs()
    zeros = torch.zeros(B, R, dtype=torch.long)
    ones = torch.ones(B, R, dtype=torch.long)
    expected = valid(model(**inputs), inputs)
    assert torch.equal(expected, valid(model(**inputs, region_token_type_ids=zeros), inputs))
    assert not torch.allclose(expected, valid(model(**inputs, region_token_type_ids=ones), inputs), atol=0.01)


def test_padding_and_its_side_do_not_matter():
    model = make_model()
    inputs = make_inputs()
    alignment = torch.tensor([[[1, 2], [0, -1], [-1, -1], [2, -1]]] * B)
    expected = model(**inputs, image_text_alignment=alignment)
    left = {name: value.clone() for name, value in inputs.items()}
    for row in range(B):
        shift = T - int(inputs["attention_mask"][row].sum())
        for name in ("input_ids", "attention_mask", "token_type_ids"):
            left[name][row] = inputs[name][row].roll(shift)
    shifts = T - inputs["attention_mask"].sum(1)[:, None, None]
    found = model(**left, image_text_alignment=torch.where(alignment < 0, alignment, alignment + shifts))
    assert_close(valid(found, left), valid(expected, inputs))
    assert_close(found.pooler_output, expected.pooler_output)


def test_boxes_are_accepted_and_not_read():
    model = make_model()
    inputs = make_inputs()
    expected = valid(model(**inputs), inputs)
    assert torch.equal(expected, valid(model(**{**inputs, "region_boxes": inputs["region_boxes"] / 2}), inputs))


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ({"region_features": torch.rand(B, R, F + 1)}, "this model's visual_embedding_dim is 10"),
        ({"region_attention_mask": torch.ones(B, R + 1)}, r"region_attention_mask have the shape \(3, 5\)"),
        ({"region_boxes": torch.rand(B, R, 5)}, "region_boxes have the shape"),
        ({"region_token_type_ids": torch.zeros(B, R + 1, dtype=torch.long)}, "region_token_type_ids have the shape"),
        ({"image_text_alignment": torch.zeros(B, R, dtype=torch.long)}, "image_text_alignment have the shape"),
        ({"image_text_alignment": torch.full((B, R, 1), T)}, "contains column 7, but the text has 7 tokens"),
        ({"pixel_values": torch.rand(B, 3, 8, 8)}, "has no pixel network"),
        ({"region_features": None}, "region_boxes are given without region_features"),
        ({"inputs_embeds": torch.rand(B, T, D)}, "exactly one of input_ids and inputs_embeds"),
        ({"grounding_queries": {"across": ()}}, "unknown entries"),
    ],
)
def test_mistakes_are_named(change, problem):
    with pytest.raises(ValueError, match=problem):
        make_model()(**{**make_inputs(), **change})


def test_long_texts_are_refused():
    with pytest.raises(ValueError, match="30 tokens long, but this model takes at most 20"):
        make_model()(torch.ones(1, 30, dtype=torch.long))


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
    assert len(found.hidden_states) == len(expected.hidden_states) > 2
    for one, other in zip(found.hidden_states, expected.hidden_states, strict=True):
        columns = seen[:, : other.shape[1]]  # with bypass_transformer the encoder has only text
        assert_close(one[columns], other[columns])


def gradients(model, inputs):
    model.zero_grad()
    model(**inputs).loss.backward()
    return {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}


def pretraining_batch():
    labels = torch.full((B, T), -100)
    labels[0, 2], labels[1, 1] = 5, 7
    return {**make_inputs(), "labels": labels, "relationship_labels": torch.tensor([1, 0, -100])}


def test_loss_and_gradients_equal_transformers(tmp_path):
    torch.manual_seed(0)
    theirs = VisualBertForPreTraining(TheirConfig(**SIZES, visual_embedding_dim=F, pad_token_id=0)).eval()
    theirs.save_pretrained(tmp_path)
    model = VisualBERTForPreTraining.from_pretrained(tmp_path).eval()
    batch = pretraining_batch()
    batch["relationship_labels"] = torch.tensor([1, 0, 1])
    found = gradients(model, batch)
    names = {"region_features": "visual_embeds", "region_attention_mask": "visual_attention_mask"}
    given = {names.get(k, k): v for k, v in batch.items() if k not in ("region_boxes", "relationship_labels")}
    given["labels"] = nn.functional.pad(batch["labels"], (0, R), value=-100)
    given["visual_token_type_ids"] = torch.zeros(B, R, dtype=torch.long)
    expected = gradients(theirs, {**given, "sentence_image_labels": batch["relationship_labels"]})
    assert set(found) == set(expected)
    for name, gradient in expected.items():
        assert_close(found[name], gradient, msg=lambda text, name=name: f"{name}: {text}")


# -- attention supervision


def test_without_early_fusion_no_layer_can_be_supervised():
    rows = torch.tensor([[1]] * B)
    columns = torch.tensor([[0]] * B)
    for name in ("grounding_queries", "attention_queries"):
        with pytest.raises(ValueError, match="bypass_transformer"):
            make_model(bypass_transformer=True)(**make_inputs(), **{name: {"text_to_region": (rows, columns)}})


# -- heads


@pytest.mark.parametrize("scorer", ["single_head", "self_attention"])
def test_phrases_are_scored_as_described(scorer):
    model = make_model(VisualBERTForPhraseGrounding, phrase_scorer=scorer)
    inputs = make_inputs()
    mask, regions, _ = make_grounding()
    outputs = model(**inputs, phrase_mask=mask, phrase_regions=regions)
    states = model.visual_bert(**inputs).last_hidden_state
    total = 0.0
    for row, phrase, token in [(0, 0, 2), (0, 1, 4), (1, 0, 2)]:
        there = inputs["region_attention_mask"][row].bool()
        words = inputs["attention_mask"][row].bool()
        query = model.attention.query(states[row, token])
        scorer_ = model.attention
        if scorer == "single_head":
            keys = scorer_.key(states[row, T:])
            scores = (keys @ query / (D / H) ** 0.5).masked_fill(~there, -10000.0)
            assert scorer_.key.out_features == D // H
        else:
            keys = scorer_.key(states[row])
            both = torch.cat([words, there])
            heads = [
                (keys[:, part] @ query[part] / (D / H) ** 0.5).masked_fill(~both, -torch.inf).softmax(-1)
                for part in (slice(0, D // H), slice(D // H, D))
            ]
            scores = (sum(heads) / H).log()[T:].masked_fill(~there, -10000.0)
        assert_close(outputs.logits[row, phrase], scores)
        right = regions[row, phrase]
        if right.any():
            total += (-right.sum().log() - scores.log_softmax(-1)[right].mean()).item()
    assert outputs.loss.item() == pytest.approx(total / B, rel=1e-5)
    outputs.loss.backward()
    trained = {name for name, p in model.named_parameters() if p.grad is not None}
    assert trained == {name for name, p in model.named_parameters() if p.requires_grad}


def test_the_divergence_from_the_scores_of_the_answers():
    """The other losses of answers are those of VL-BERT."""
    model = make_model(VisualBERTForVisualQuestionAnswering, answers=ANSWERS, vqa_loss="kl_divergence")
    targets = torch.tensor([[0.6, 0.3, 0.0], [0.0, 1.0, 0.0], [0.0, 0.5, 0.5]])
    outputs = model(**make_inputs(), answer_positions=torch.tensor([4, 2, 1]), labels=targets)
    expected = (torch.special.xlogy(targets, targets) - targets * outputs.logits.log_softmax(-1)).sum() / B
    assert_close(outputs.loss, expected)


def test_choices_share_regions_or_have_their_own():
    model = make_model(VisualBERTForMultipleChoice)
    inputs = make_inputs()
    text = {
        n: torch.stack([inputs[n], inputs[n].flip(0)], 1) for n in ("input_ids", "attention_mask", "token_type_ids")
    }
    regions = {name: value for name, value in inputs.items() if name.startswith("region")}
    regions["image_text_alignment"] = torch.tensor([[[1, 2], [0, -1], [-1, -1], [2, -1]]] * B)
    shared = model(**text, **regions, labels=torch.tensor([0, 1, -100]))
    own = model(**text, **{name: torch.stack([value] * 2, dim=1) for name, value in regions.items()})
    assert torch.equal(shared.logits, own.logits)
    alone = make_model(VisualBERTForMultipleChoice)
    single = {n: v[:, 1:] for n, v in text.items()}
    assert_close(alone(**single, **regions).logits, shared.logits[:, 1:])
    assert_close(shared.loss, nn.functional.cross_entropy(shared.logits[:2], torch.tensor([0, 1])))


def test_statements():
    model = make_model(VisualBERTForVisualReasoning)
    outputs = model(**make_inputs(), labels=torch.tensor([1, -100, 0]))
    expected = nn.functional.cross_entropy(outputs.logits[[0, 2]], torch.tensor([1, 0]))
    assert_close(outputs.loss, expected)


# -- initialisation


def test_visual_tables_start_as_copies_of_the_text_tables():
    embeddings = make_model().embeddings
    for part in ("token_type", "position"):
        copy = getattr(embeddings, f"visual_{part}_embeddings").weight
        assert torch.equal(copy, getattr(embeddings, f"{part}_embeddings").weight)
        assert copy is not getattr(embeddings, f"{part}_embeddings").weight
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


@pytest.mark.parametrize(
    ("fields", "problem"),
    [({"hidden_size": 48}, "hidden_size=48 contradicts"), ({"regions": 1}, "VisualBERTConfig has no field regions")],
)
def test_from_bert_refuses_wrong_fields(tmp_path, fields, problem):
    BertForPreTraining(BertConfig(**SIZES)).save_pretrained(tmp_path)
    with pytest.raises(ValueError, match=problem):
        VisualBERTModel.from_bert(str(tmp_path), **fields)


# -- the registry


def test_a_head_of_one_name_returns_the_same_in_every_family():
    for name, family in FAMILIES.items():
        assert find_family(family.config_class.model_type) == name
        assert family.base_model.config_class is family.config_class
        assert all(cls.config_class is family.config_class for cls in family.heads.values())
    heads = [set(family.heads) for family in FAMILIES.values()]
    assert set.intersection(*heads) >= {"pretraining", "vgp", "vqa", "multiple_choice", "referring_expressions"}
    assert find_family("visual_bert") == find_family("visualbert") == "visualbert"
    assert find_family("bert") is None
    assert find_family("lxmert") == find_family("grounded_lxmert") == "lxmert"  # the first is that of transformers
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
