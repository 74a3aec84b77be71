# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""Original checkpoints of VL-BERT, tiny."""

import torch

from tests.helpers.vl_bert_parity import image_weight
from tests.helpers.vl_bert_reference import as_checkpoint, list_shapes, load_fixture

KEY_LISTS = {
    "pretrain_base_e2e": "VLBertForPreTraining",
    "pretrain_base_prec": "VLBertForPreTraining",
    "pretrain_large_e2e": "VLBertForPreTraining",
    "pretrain_large_prec": "VLBertForPreTraining",
    "vgp_base": "VLBertForVGP",
    "vqa_base": "VLBertForVisualQuestionAnswering",
    "refcoco_base": "VLBertForReferringExpression",
    "vcr_base": "VLBertForMultipleChoice",
}


def region_projection():
    generator = torch.Generator().manual_seed(0)
    return {
        "image_feature_extractor.obj_downsample.1.weight": torch.randn(48, 4096, generator=generator),
        "image_feature_extractor.obj_downsample.1.bias": torch.randn(48, generator=generator),
    }


def pretraining_checkpoint():
    reference = load_fixture("pretrain_heads")
    state_dict = as_checkpoint(reference["state_dict"], core=True)
    words = state_dict["module.vlbert.word_embeddings.weight"]
    rest = {
        **region_projection(),
        "object_linguistic_embeddings.weight": torch.randn(1, 48),
        "object_mask_visual_embedding.weight": torch.randn(1, 2048),
        "object_mask_word_embedding.weight": torch.randn(1, 48),
        "aux_text_visual_embedding.weight": torch.randn(1, 48),
        "vlbert.mlm_head.predictions.decoder.weight": words.clone(),
        "image_feature_extractor.backbone.bn1.num_batches_tracked": torch.tensor(0),
    }
    return reference, {**state_dict, **as_checkpoint(rest)}


def vgp_checkpoint():
    reference = load_fixture("vgp_module")
    return reference, as_checkpoint({**reference["state_dict"], **region_projection()})


TINY = {"hidden": 48, "layers": 2, "intermediate": 96, "vocab": 120, "positions": 64, "classes": 17}
TINY_IMAGE = {"end_to_end": True, "widths": (4, 8, 16, 16, 32), "depths": (1, 2, 3, 2)}


def image_checkpoint(shapes):
    """Makes random tensors for the keys; both names of the last stage share tensors, and so do words and decoder."""
    state_dict = {key: image_weight(key, shape) for key, shape in shapes.items()}
    for key in state_dict:
        state_dict[key] = state_dict[key.replace("extractor.head.0.", "extractor.roi_head_feature_extractor.")]
    decoder = "vlbert.mlm_head.predictions.decoder.weight"
    if decoder in state_dict:
        state_dict[decoder] = state_dict["vlbert.word_embeddings.weight"]
    return as_checkpoint(state_dict)


def pixel_checkpoint():
    return image_checkpoint(list_shapes(**TINY, **TINY_IMAGE))


class RunsCode:
    def __reduce__(self):
        return (print, ("executed",))


def without(state_dict, part):
    return {key: value for key, value in state_dict.items() if part not in key}
