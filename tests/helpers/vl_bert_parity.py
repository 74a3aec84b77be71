# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""Inputs, models and checks for comparisons with the reference formulation of VL-BERT."""

import zlib

import torch
from torch.nn.functional import pad
from torch.testing import assert_close
from transformers.masking_utils import create_bidirectional_mask

from grounded_attention.modeling.modeling_vl_bert import get_first_state

CLOSE = {"rtol": 1e-5, "atol": 1e-5}


def core_inputs(reference):
    inputs = reference["inputs"]
    visual, linguistic = inputs["object_vl_embeddings"].split([inputs["text_visual_embeddings"].shape[-1], 48], dim=-1)
    return {
        "text": [inputs["text_input_ids"], inputs["text_token_type_ids"], inputs["text_visual_embeddings"]],
        "text_mask": inputs["text_mask"],
        "regions": [visual, linguistic],
        "region_mask": inputs["object_mask"],
    }


def run_core(model, inputs):
    """Returns embeddings, last states and pooled output for given visual and linguistic embeddings, and masks of all
    columns.
    """
    ids, types, text_visual = inputs["text"]
    visual, linguistic = inputs["regions"]
    words = model.embeddings.word_embeddings(ids)
    boxes = visual.new_zeros(*visual.shape[:2], 4)
    embeddings = model.embeddings(words, inputs["text_mask"], types, text_visual, visual, linguistic, boxes)
    end = torch.ones_like(inputs["text_mask"][:, :1])
    mask = torch.cat([inputs["text_mask"], inputs["region_mask"], end], dim=1)
    bias = create_bidirectional_mask(config=model.config, inputs_embeds=embeddings, attention_mask=mask)
    states = model.encoder(embeddings, attention_mask=bias)
    pooled = None
    if model.pooler is not None:
        pooled = model.pooler(get_first_state(states[:, : ids.shape[1]], inputs["text_mask"])[:, None])
    return embeddings, states, pooled, mask


def vgp_inputs(inputs):
    """Converts caption tensors of the public module (token id, tag, one column per phrase) to our inputs.

    1 is [CLS], 2 [SEP].
    """
    first = inputs["sentence1"]
    second = inputs["sentence2"]
    labels = inputs["label"]
    front = first.shape[1] + 2  # [CLS], the first caption, [SEP]
    back = second.shape[1] + 1
    pairs = first.shape[-1] - 2
    first_ids = pad(pad(first[..., 0], (1, 0), value=1), (0, 1), value=2)
    second_ids = pad(second[..., 0], (0, 1), value=2)
    phrases = [pad(first[..., 2:], (0, 0, 1, 1 + back)), pad(second[..., 2:], (0, 0, front, 1))]
    pair = torch.stack([torch.arange(pairs), torch.arange(pairs) + pairs], dim=-1)
    sizes = inputs["im_info"][:, None, [0, 1, 0, 1]]
    return {
        "input_ids": torch.cat([first_ids, second_ids], dim=1),
        "token_type_ids": torch.tensor([[0] * front + [1] * back] * len(first)),
        "region_boxes": inputs["boxes"][..., :4] / sizes,
        "region_features": inputs["boxes"][..., 4:],
        "phrase_mask": torch.cat(phrases, dim=2).transpose(1, 2).bool(),
        "phrase_pairs": torch.where(labels[..., 1:] < 0, -1, pair),
        "identification_labels": labels[:, 0, 0],
        "vgp_labels": torch.where(labels[..., 1] < 0, -100, labels[..., 1]),
    }


def check_vgp(model, inputs, reference):
    outputs = model(**inputs)
    expected = reference["outputs"]
    assert_close(outputs.identification_logits, expected["sentence_label_logits"], **CLOSE)
    assert_close(outputs.vgp_logits.flatten(0, 1), expected["phrase_label_logits"], **CLOSE)
    loss = expected["sentence_cls_loss"] + expected["phrase_cls_loss"]
    assert_close(outputs.loss, loss, **CLOSE)
    return outputs


class GivenVisual(torch.nn.Module):
    """Replaces the region encoder, whose weights are not in the fixture."""

    def __init__(self, visual):
        super().__init__()
        self.visual = visual

    def forward(self, region_features, region_boxes):
        return self.visual


def image_weight(key, shape):
    """Returns the tensor of the reference for a key of its region-feature module."""
    random = torch.randn(shape, generator=torch.Generator().manual_seed(zlib.crc32(key.encode())))
    if key.endswith("num_batches_tracked"):
        return torch.tensor(0)
    if key.endswith("running_var"):
        return 0.5 + random.abs()
    if len(shape) == 1:
        if key.endswith("weight"):
            return 1 + 0.1 * random
        return 0.1 * random
    return random / random[0].numel() ** 0.5
