# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""Tiny checkpoints for the Hub, each base model and each head once, and the auto classes that load them."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from transformers import BertTokenizer, PreTrainedModel, ResNetConfig, ResNetModel

from grounded_attention.families import FAMILIES
from grounded_attention.modeling import BackboneRegionFeatures, FastRCNNConfig, FastRCNNFeatures
from grounded_attention.processing import FastRCNNImageProcessor
from tests.helpers.tiny_vgp import FEATURE_SIZE, WORDS

# Head -> its auto class; other heads are loaded by the name of their class.
AUTO_HEADS = {
    "pretraining": "AutoModelForPreTraining",
    "vqa": "AutoModelForVisualQuestionAnswering",
    "multiple_choice": "AutoModelForMultipleChoice",
}
SIZES = {
    "vocab_size": len(WORDS),
    "hidden_size": 16,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "intermediate_size": 16,
    "region_feature_size": FEATURE_SIZE,
}
# Families that have other fields for some of these sizes.
FAMILY_SIZES = {
    "vilbert": {
        "v_hidden_size": 16,
        "v_num_hidden_layers": 1,
        "v_num_attention_heads": 2,
        "v_intermediate_size": 16,
        "bi_hidden_size": 16,
        "bi_num_attention_heads": 2,
    },
    "lxmert": {"r_layers": 1, "x_layers": 1},
}
FAST_RCNN = {"embedding_size": 4, "hidden_sizes": [8, 16, 32, 64], "depths": [1, 1, 1, 1], "roi_size": 4}


@dataclass(frozen=True)
class HubModel:
    """One checkpoint: name of its repository, the base class for `AutoModel`, and the auto class for its own class."""

    name: str
    make: Callable[[Path], PreTrainedModel]
    base: str
    auto: str
    processor: Callable[[], Any] | None = None


def tiny_config(family, **fields):
    """The configuration of a tiny model of a family."""
    return FAMILIES[family].config_class(**{**SIZES, **FAMILY_SIZES.get(family, {}), **fields})


def _make_family(family, cls):
    return lambda _: cls(tiny_config(family))


def _make_processor(family):
    tokenizer = BertTokenizer(vocab={word: index for index, word in enumerate(WORDS)})
    return lambda: FAMILIES[family].processor_class(tokenizer, region_feature_size=FEATURE_SIZE)


def _model(family, head=""):
    base = FAMILIES[family].base_model
    cls = FAMILIES[family].heads[head] if head else base
    auto = AUTO_HEADS.get(head, cls.__name__) if head else "AutoModel"
    return HubModel(cls.__name__, _make_family(family, cls), base.__name__, auto, _make_processor(family))


def _make_backbone(folder):
    ResNetModel(ResNetConfig(embedding_size=8, hidden_sizes=[8, 12], depths=[1, 1])).save_pretrained(folder)
    return BackboneRegionFeatures.from_backbone(str(folder))


# All heads of a family are saved with the same code (tests/modeling/test_bundles.py).
HUB_MODELS = [
    *map(_model, FAMILIES),
    *(_model("vl_bert", head) for head in ("vgp", "multiple_choice")),
    *(_model("visualbert", head) for head in ("vqa", "visual_reasoning")),
    *(_model("vilbert", head) for head in ("pretraining", "referring_expressions")),
    _model("lxmert", "phrase_grounding"),
    HubModel(
        "FastRCNNFeatures",
        lambda _: FastRCNNFeatures(FastRCNNConfig(**FAST_RCNN)),
        "FastRCNNFeatures",
        "AutoModel",
        FastRCNNImageProcessor,
    ),
    HubModel("BackboneRegionFeatures", _make_backbone, "BackboneRegionFeatures", "AutoModel"),
]


def push_all(folder, namespace):
    """Pushes each model with its processor to `namespace/<class name>`; the models stay in `folder`.

    `VLBertForVGP` gets two versions, the newer one from `folder/newer`; `namespace/secret` is private.
    """
    for number, entry in enumerate(HUB_MODELS):
        torch.manual_seed(number)
        model = entry.make(folder / "backbone")
        model.save_pretrained(folder / entry.name)
        model.push_to_hub(f"{namespace}/{entry.name}")
        if entry.processor is not None:
            entry.processor().push_to_hub(f"{namespace}/{entry.name}")
    newer = FAMILIES["vl_bert"].heads["vgp"](tiny_config("vl_bert"))
    newer.save_pretrained(folder / "newer")
    newer.push_to_hub(f"{namespace}/VLBertForVGP")
    newer.push_to_hub(f"{namespace}/secret", private=True)
