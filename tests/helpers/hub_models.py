# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""A tiny checkpoint of each class for the Hub, and the auto class that loads it without the project."""

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
FAMILY_SIZES: dict[str, dict[str, int]] = {
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


def tiny_config(family: str, **fields: Any) -> Any:
    """The configuration of a tiny model of a family."""
    return FAMILIES[family].config_class(**{**SIZES, **FAMILY_SIZES.get(family, {}), **fields})


def _make_family(family: str, cls: type[PreTrainedModel]) -> Callable[[Path], PreTrainedModel]:
    return lambda _: cls(tiny_config(family))


def _make_processor(family: str) -> Callable[[], Any]:
    tokenizer = BertTokenizer(vocab={word: index for index, word in enumerate(WORDS)})
    return lambda: FAMILIES[family].processor_class(tokenizer, region_feature_size=FEATURE_SIZE)


def _family_models(family: str) -> list[HubModel]:
    base = FAMILIES[family].base_model
    classes = {base.__name__: (base, "AutoModel")}
    for head, cls in FAMILIES[family].heads.items():
        classes[cls.__name__] = (cls, AUTO_HEADS.get(head, cls.__name__))
    return [
        HubModel(name, _make_family(family, cls), base.__name__, auto, _make_processor(family))
        for name, (cls, auto) in classes.items()
    ]


def _make_backbone(folder: Path) -> PreTrainedModel:
    ResNetModel(ResNetConfig(embedding_size=8, hidden_sizes=[8, 12], depths=[1, 1])).save_pretrained(folder)
    return BackboneRegionFeatures.from_backbone(str(folder))


HUB_MODELS = [
    *(model for family in sorted(FAMILIES) for model in _family_models(family)),
    HubModel(
        "FastRCNNFeatures",
        lambda _: FastRCNNFeatures(FastRCNNConfig(**FAST_RCNN)),
        "FastRCNNFeatures",
        "AutoModel",
        FastRCNNImageProcessor,
    ),
    HubModel("BackboneRegionFeatures", _make_backbone, "BackboneRegionFeatures", "AutoModel"),
]


def push_all(folder: Path, namespace: str) -> None:
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
