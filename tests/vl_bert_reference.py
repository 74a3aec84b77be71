# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""Reads the reference tensors of the public VL-BERT code and puts them into our models.

The files `tests/fixtures/vl_bert_*.safetensors` are cuts of tensors that the public code computed on small random
weights:

- `core_ln`: the whole encoder, small gradients only
- `core_ln_1x1` and `core_scale`: first layer, no pooler
- `pretrain_heads`: without the decoder, a copy of the word embeddings
- `vgp_module`: the VGP module without supervision; its 48 x 4096 region projection is left out and `region_visual`
  holds what it gives, computed in float64 by its formula
- `helpers`: coordinate embeddings, soft cross-entropy

Names are `state_dict.<key>`, `inputs.<name>`, `grads.<key>` and the outputs; the metadata has the public code's
configuration. To cut them again, load `vl_bert_core_and_tasks.pt` and `vgp_losses_and_modules.pt` of the reference
tensors and save the named entries.
"""

import json
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open

from modeling import VLBertConfig
from modeling.conversion_vl_bert import convert_state_dict

FIXTURES = Path(__file__).parent / "fixtures"


def load_fixture(name: str) -> dict[str, Any]:
    """A fixture as nested dictionaries (`state_dict`, `inputs`, ...), plus its other tensors and `config`."""
    reference: dict[str, Any] = {"grads": {}}
    with safe_open(FIXTURES / f"vl_bert_{name}.safetensors", "pt") as file:
        reference["config"] = json.loads(file.metadata()["config"])
        for key in file.keys():
            group, _, rest = key.partition(".")
            if rest:
                reference.setdefault(group, {})[rest] = file.get_tensor(key)
            else:
                reference[key] = file.get_tensor(key)
    return reference


def make_config(original: dict[str, Any], **overrides: Any) -> VLBertConfig:
    """Our configuration for the public code's `VLBERT` section."""
    same = (
        "vocab_size hidden_size visual_size num_hidden_layers num_attention_heads intermediate_size hidden_act "
        "max_position_embeddings type_vocab_size initializer_range visual_scale_text_init"
    ).split()
    fields = {name: original[name] for name in same}
    fields["visual_norm"] = original["visual_ln"]
    fields["region_classes"] = original["visual_region_classes"]
    return VLBertConfig(**{**fields, **overrides})


def as_checkpoint(state_dict: dict[str, torch.Tensor], core: bool = False) -> dict[str, torch.Tensor]:
    """A reference state dict as the public code saves it: `module.` in front, core keys under `vlbert.`."""
    return {f"module.{'vlbert.' if core else ''}{key}": value for key, value in state_dict.items()}


def load_weights(model: torch.nn.Module, checkpoint: dict[str, torch.Tensor]) -> dict[str, str]:
    """Converts an original checkpoint into `model`; returns original key -> our name of what went in."""
    conversion = convert_state_dict(checkpoint)
    prefix = "" if hasattr(model, "vl_bert") else "vl_bert."
    weights = {name.removeprefix(prefix): value for name, value in conversion.weights.items()}
    _, unexpected = model.load_state_dict(weights, strict=False)
    assert not unexpected
    model.tie_weights()
    return {key: name.removeprefix(prefix) for key, name in conversion.converted.items()}
