# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""Converts inputs of the public modules for VQA, RefCOCO+ and VCR to inputs of our models (see vl_bert_reference.py).

The public modules add the special tokens: 1 is [CLS], 2 [SEP], 3 [MASK].
"""

import torch

FEATURE_SIZE = 2048


def pad_rows(rows):
    """Pads rows of different lengths with zeros at the end."""
    size = max(map(len, rows))
    return torch.tensor([row + [0] * (size - len(row)) for row in rows])


def region_inputs(inputs):
    """Makes boxes, features (zeros if the fixture has none) and mask; padded boxes are -2."""
    boxes = inputs["boxes"]
    features = boxes[..., 4:] if boxes.shape[-1] > 4 else torch.zeros(*boxes.shape[:2], FEATURE_SIZE)
    return {
        "region_boxes": boxes[..., :4] / inputs["im_info"][:, None, [0, 1, 0, 1]],
        "region_features": features,
        "region_attention_mask": boxes[..., 0] > -1.5,
    }


def vqa_inputs(inputs):
    """[CLS] question [SEP] [MASK] [SEP], types 1 from [MASK] on."""
    questions = [[piece for piece in row if piece] for row in inputs["question"].tolist()]
    ids = pad_rows([[1, *pieces, 2, 3, 2] for pieces in questions])
    positions = torch.tensor([len(pieces) + 2 for pieces in questions])
    return {
        "input_ids": ids,
        "attention_mask": ids > 0,
        "token_type_ids": ((torch.arange(ids.shape[1]) >= positions[:, None]) & (ids > 0)).long(),
        **region_inputs(inputs),
        "answer_positions": positions,
        "labels": inputs["label"],
    }


def referring_inputs(inputs):
    """[CLS] expression [SEP]; padded regions have the target -1 there."""
    ids = pad_rows([[1, *(piece for piece in row if piece), 2] for row in inputs["expression"].tolist()])
    targets = inputs["label"]
    return {"input_ids": ids, "attention_mask": ids > 0, **region_inputs(inputs), "region_targets": targets}


def choice_inputs(inputs):
    """[CLS] question [SEP] answer [SEP]; a piece is (id, tag, unused), and special tokens see the whole image."""
    ids = []
    tags = []
    types = []
    for question, choices in zip(inputs["question"], inputs["answer_choices"], strict=True):
        question = question[question[:, 0] > 0]
        for choice in choices:
            answer = choice[choice[:, 0] > 0]
            ids.append([1, *question[:, 0].tolist(), 2, *answer[:, 0].tolist(), 2])
            tags.append([0, *question[:, 1].tolist(), 0, *answer[:, 1].tolist(), 0])
            types.append([0] * (len(question) + 2) + [1] * (len(answer) + 1))
    shape = (*inputs["answer_choices"].shape[:2], -1)
    ids = pad_rows(ids).view(shape)
    mask = inputs["boxes"][..., 0] > -0.5
    classes = inputs["boxes"][..., 5].long()
    return {
        "input_ids": ids,
        "attention_mask": ids > 0,
        "token_type_ids": pad_rows(types).view(shape),
        "token_regions": pad_rows(tags).view(shape),
        "region_features": torch.zeros(*mask.shape, FEATURE_SIZE),
        "region_boxes": torch.zeros(*mask.shape, 4),
        "region_attention_mask": mask,
        "labels": inputs["answer_label"],
        "region_class_labels": torch.where(mask, classes, -100),
    }
