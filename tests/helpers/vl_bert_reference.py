# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""Reads the reference tensors of the public VL-BERT code and loads them into our models.

The files `tests/fixtures/vl_bert_*.safetensors` are parts of tensors that the public code computed with small random
weights:

- `core_ln`: the whole encoder, small gradients only
- `core_ln_1x1` and `core_scale`: first layer, no pooler
- `pretrain_heads`: without the decoder, a copy of the word embeddings
- `vgp_module`: the VGP module without supervision; without its 48 x 4096 region projection, but with its output
  `region_visual`, computed in float64 by its formula
- `pretrain_multitask`: image rows and text-only rows with all losses; reduced like `vgp_module`; masked regions are
  replaced in `region_visual`
- `vqa`, `refcoco`: the modules of these tasks, reduced like `vgp_module`, and without the pooler, which is not used
- `vcr`: the module of VCR with the sigmoid loss, whose inputs are visual embeddings (`inputs.obj_reps`);
  `softmax_loss` is the answer loss of the module with the other loss
- `helpers`: coordinate embeddings, soft cross-entropy

Names are `state_dict.<key>`, `inputs.<name>`, `grads.<key>` and the outputs; the metadata has the configuration of
the public code. To make the files again, load `vl_bert_core_and_tasks.pt` and `vgp_losses_and_modules.pt` of the
reference tensors and save the named entries.
"""

import json
from pathlib import Path

from safetensors import safe_open

from grounded_attention.conversion.vl_bert import VL_BERT
from grounded_attention.modeling import VLBertConfig

FIXTURES = Path(__file__).parents[1] / "fixtures"


def load_fixture(name):
    """Loads a fixture as nested dictionaries (`state_dict`, `inputs`, ...), with its other tensors and `config`."""
    reference = {"grads": {}}
    with safe_open(FIXTURES / f"vl_bert_{name}.safetensors", "pt") as file:
        reference["config"] = json.loads(file.metadata()["config"])
        for key in file.keys():
            group, _, rest = key.partition(".")
            if rest:
                reference.setdefault(group, {})[rest] = file.get_tensor(key)
            else:
                reference[key] = file.get_tensor(key)
    return reference


def make_config(original, **overrides):
    """Makes our configuration from the section `VLBERT` of the public code."""
    same = (
        "vocab_size hidden_size visual_size num_hidden_layers num_attention_heads intermediate_size hidden_act "
        "max_position_embeddings type_vocab_size initializer_range visual_scale_text_init"
    ).split()
    fields = {name: original[name] for name in same}
    fields["visual_norm"] = original["visual_ln"]
    fields["region_classes"] = original["visual_region_classes"]
    return VLBertConfig(**{**fields, **overrides})


def as_checkpoint(state_dict, core=False):
    """Converts a reference state dict to the format of the public code: prefix `module.`, core keys with `vlbert.`."""
    return {f"module.{'vlbert.' if core else ''}{key}": value for key, value in state_dict.items()}


def load_weights(model, checkpoint):
    """Loads an original checkpoint into `model`; returns original key -> our name of all loaded tensors."""
    conversion = VL_BERT.convert_state_dict(checkpoint)
    prefix = "" if hasattr(model, "vl_bert") else "vl_bert."
    weights = {name.removeprefix(prefix): value for name, value in conversion.weights.items()}
    _, unexpected = model.load_state_dict(weights, strict=False)
    assert not unexpected
    model.tie_weights()
    return {key: name.removeprefix(prefix) for key, name in conversion.converted.items()}


def list_shapes(
    hidden=768,
    layers=12,
    intermediate=3072,
    vocab=30522,
    positions=512,
    classes=1601,
    end_to_end=False,
    widths=(64, 256, 512, 1024, 2048),
    depths=(3, 4, 23, 3),
):
    """Returns keys (without `module.`) and shapes of a pre-training checkpoint of the public code, base by default."""
    image = "image_feature_extractor."
    shapes = {
        **dict.fromkeys(("object_linguistic_embeddings.weight", "object_mask_word_embedding.weight"), (1, hidden)),
        "aux_text_visual_embedding.weight": (1, hidden),
        **_linear(image + "obj_downsample.1", hidden, 2048 + widths[-1]),
        "vlbert.word_embeddings.weight": (vocab, hidden),
        "vlbert.end_embedding.weight": (1, hidden),
        "vlbert.position_embeddings.weight": (positions, hidden),
        "vlbert.token_type_embeddings.weight": (3, hidden),
        **_norm("vlbert.embedding_LayerNorm", hidden),
        **_norm("vlbert.visual_ln_text", hidden),
        **_norm("vlbert.visual_ln_object", hidden),
        "vlbert.mlm_head.predictions.bias": (vocab,),
        **_linear("vlbert.mlm_head.predictions.transform.dense", hidden, hidden),
        **_norm("vlbert.mlm_head.predictions.transform.LayerNorm", hidden),
        "vlbert.mlm_head.predictions.decoder.weight": (vocab, hidden),
        **_linear("vlbert.mvrc_head.transform.dense", hidden, hidden),
        **_linear("vlbert.mvrc_head.region_cls_pred", classes, hidden),
    }
    for layer in (f"vlbert.encoder.layer.{index}." for index in range(layers)):
        for name in ("self.query", "self.key", "self.value", "output.dense"):
            shapes |= _linear(f"{layer}attention.{name}", hidden, hidden)
        shapes |= _linear(layer + "intermediate.dense", intermediate, hidden)
        shapes |= _linear(layer + "output.dense", hidden, intermediate)
        shapes |= {**_norm(layer + "attention.output.LayerNorm", hidden), **_norm(layer + "output.LayerNorm", hidden)}
    if not end_to_end:
        return {**shapes, "object_mask_visual_embedding.weight": (1, widths[-1])}
    shapes |= {image + "backbone.conv1.weight": (widths[0], 3, 7, 7), **_batch_norm(image + "backbone.bn1", widths[0])}
    stages = [[f"{image}backbone.layer{number}"] for number in (1, 2, 3)]
    stages.append([image + "roi_head_feature_extractor", image + "head.0"])
    for index, names in enumerate(stages):
        for name in names:
            shapes |= _stage(name, widths[index], widths[index + 1], depths[index])
    return shapes


def list_task_shapes(task, end_to_end=False, answers=3129, **sizes):
    """Returns keys and shapes of a checkpoint of "vqa", "refcoco" or "vcr"; by default base with region features."""
    shapes = list_shapes(end_to_end=end_to_end, **sizes)
    only_pretraining = ("aux_text", "object_mask_", "vlbert.mlm_head.", "vlbert.mvrc_head.")
    shapes = {key: shape for key, shape in shapes.items() if not key.startswith(only_pretraining)}
    hidden = shapes["object_linguistic_embeddings.weight"][1]
    if task == "vqa":
        shapes |= {**_linear("final_mlp.0.dense", hidden, hidden), **_norm("final_mlp.0.LayerNorm", hidden)}
        return {**shapes, **_linear("final_mlp.2", answers, hidden)}
    if task == "refcoco":
        return {**shapes, **_linear("final_mlp.0.dense", hidden, hidden), **_linear("final_mlp.2", 1, hidden)}
    shapes |= {**_linear("vlbert.pooler.dense", hidden, hidden), **_linear("final_mlp.1", 1, hidden)}
    shapes |= {**_linear("cnn_loss_reg.0.dense", hidden, hidden), **_linear("cnn_loss_reg.2", 81, hidden)}
    return {key.replace("vlbert.", "vlbert._module.", 1): shape for key, shape in shapes.items()}


def _linear(name, outputs, inputs):
    return {f"{name}.weight": (outputs, inputs), f"{name}.bias": (outputs,)}


def _norm(name, size):
    return {f"{name}.weight": (size,), f"{name}.bias": (size,)}


def _batch_norm(name, size):
    statistics = {f"{name}.running_mean": (size,), f"{name}.running_var": (size,), f"{name}.num_batches_tracked": ()}
    return {**_norm(name, size), **statistics}


def _stage(name, inputs, outputs, depth):
    shapes = {f"{name}.0.downsample.0.weight": (outputs, inputs, 1, 1)}
    shapes |= _batch_norm(f"{name}.0.downsample.1", outputs)
    middle = outputs // 4
    for block in range(depth):
        sizes = ((middle, outputs if block else inputs, 1), (middle, middle, 3), (outputs, middle, 1))
        for number, (out, into, kernel) in enumerate(sizes, start=1):
            shapes[f"{name}.{block}.conv{number}.weight"] = (out, into, kernel, kernel)
            shapes |= _batch_norm(f"{name}.{block}.bn{number}", out)
    return shapes
