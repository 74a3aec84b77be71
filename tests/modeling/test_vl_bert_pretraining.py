# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""The losses of VL-BERT's pre-training, and inputs with masked or missing parts."""

import pytest
import torch
from torch import nn

from grounded_attention.modeling import VLBertForPreTraining
from tests.helpers.closeness import assert_close
from tests.helpers.tiny_vl_bert import B, R, T, make_inputs, make_model


def test_masked_regions_hide_feature_and_word_but_not_the_box():
    model = make_model(VLBertForPreTraining)
    inputs = make_inputs()
    nn.init.normal_(model.region_mask_embedding.weight)
    masked = torch.zeros(B, R, dtype=torch.bool)
    masked[:, 1] = True
    expected = model(**inputs, masked_regions=masked).region_logits
    inputs["region_features"][:, 1] += 5.0
    assert_close(model(**inputs, masked_regions=masked).region_logits, expected)
    assert not torch.allclose(model(**inputs).region_logits[:, 1], expected[:, 1])
    inputs["region_boxes"][:, 1, 0] += 0.1
    assert not torch.allclose(model(**inputs, masked_regions=masked).region_logits, expected)


def test_hard_region_labels_are_one_hot_distributions():
    model = make_model(VLBertForPreTraining)
    inputs = make_inputs()
    labels = torch.full((B, R), -100)
    labels[0, 1], labels[1, 2] = 3, 0
    probs = torch.zeros(B, R, 6)
    probs[0, 1, 3] = probs[1, 2, 0] = 1.0
    hard = model(**inputs, region_labels=labels).loss
    soft = model(**inputs, region_label_probs=probs).loss
    assert_close(hard, soft)
    with pytest.raises(ValueError, match="not both"):
        model(**inputs, region_labels=labels, region_label_probs=probs)


NOTHING = {
    "labels": torch.full((B, T), -100),
    "text_only": torch.tensor([False, False, True]),
    "region_labels": torch.full((B, R), -100),
    "region_label_probs": torch.zeros(B, R, 6),
    "relationship_labels": torch.full((B,), -100),
}


@pytest.mark.parametrize(
    "names",
    [["labels"], ["labels", "text_only"], ["region_labels"], ["region_label_probs"], ["relationship_labels"]],
    ids=" ".join,
)
def test_nothing_labelled_gives_zero_with_a_graph(names):
    model = make_model(VLBertForPreTraining, relationship_head=True)
    outputs = model(**make_inputs(), **{name: NOTHING[name] for name in names})
    assert outputs.loss == 0
    outputs.loss.backward()
    gradients = [parameter.grad for parameter in model.parameters() if parameter.grad is not None]
    assert len(gradients) > 10
    assert all(gradient.isfinite().all() for gradient in gradients)


def test_pretraining_works_on_text_alone():
    model = make_model(VLBertForPreTraining)
    ids = torch.randint(1, 40, (2, 5))
    outputs = model(input_ids=ids, labels=ids)
    assert outputs.region_logits.shape == (2, 0, 6)
    outputs.loss.backward()
    gradient = model.vl_bert.embeddings.text_only_visual_embedding.weight.grad
    assert gradient.abs().sum() > 0


def test_relationship_labels_need_the_head():
    with pytest.raises(ValueError, match=r"config\.relationship_head is False"):
        make_model(VLBertForPreTraining)(**make_inputs(), relationship_labels=torch.ones(B, dtype=torch.long))
