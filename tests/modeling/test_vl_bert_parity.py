# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""VL-BERT equals the reference tensors of the public code (see vl_bert_reference.py), whatever the padding."""

import pytest
import torch
from torch import nn

from grounded_attention.conversion.vl_bert import VL_BERT
from grounded_attention.modeling import VLBertForPreTraining, VLBertForVGP, VLBertModel
from grounded_attention.modeling.modeling_vl_bert import embed_coordinates
from grounded_attention.modeling.task_losses import mean_of, soft_cross_entropy_sum
from tests.conversion.resnet_checkpoints import reference_weights
from tests.helpers.closeness import assert_close
from tests.helpers.vl_bert_parity import GivenVisual, check_vgp, core_inputs, run_core, vgp_inputs
from tests.helpers.vl_bert_reference import as_checkpoint, list_shapes, load_fixture, load_weights, make_config

CORES = ("core_ln", "core_ln_1x1", "core_scale")


def build_core(reference, **overrides):
    config = make_config(reference["config"], use_pooler=reference["config"]["with_pooler"], **overrides)
    model = VLBertModel(config).eval()
    return model, load_weights(model, as_checkpoint(reference["state_dict"], core=True))


def spread(tensors, mask, extra, generator):
    """Adds `extra` padded columns of rubbish to every row and moves the real columns apart, keeping their order."""
    rows, columns = mask.shape
    size = columns + extra
    new_mask = torch.zeros(rows, size, dtype=torch.bool)
    order = torch.zeros(rows, columns, dtype=torch.long)
    for row in range(rows):
        chosen = torch.randperm(size, generator=generator)[: int(mask[row].sum())].sort().values
        new_mask[row, chosen] = True
        order[row, : len(chosen)] = chosen
    spread_tensors = []
    for tensor in tensors:
        filler = torch.randint(0, 3, (rows, size, *tensor.shape[2:]), generator=generator).to(tensor.dtype)
        filler[new_mask] = tensor[mask]
        spread_tensors.append(filler)
    return spread_tensors, new_mask


def pad_randomly(inputs, seed):
    generator = torch.Generator().manual_seed(seed)
    text, text_mask = spread(inputs["text"], inputs["text_mask"], 1 + seed, generator)
    regions, region_mask = spread(inputs["regions"], inputs["region_mask"], 2 * seed, generator)
    return {"text": text, "text_mask": text_mask, "regions": regions, "region_mask": region_mask}


def packed(reference, name):
    """Reference columns in the order of ours: text, regions and END of every row, without padding."""
    states = reference[name]
    text = reference["text_mask_new"]
    regions = reference["object_mask_new"]
    return [states[text], states[regions], states[reference["attention_mask"] & ~text & ~regions]]


def ours(states, mask, text_length):
    parts = [slice(0, text_length), slice(text_length, -1), slice(-1, None)]
    return [states[:, part][mask[:, part]] for part in parts]


@pytest.mark.parametrize("seed", [None, 1, 2, 3])
@pytest.mark.parametrize("name", CORES)
def test_core_equals_reference_on_any_padding(name, seed):
    reference = load_fixture(name)
    model, _ = build_core(reference)
    inputs = core_inputs(reference)
    if seed is not None:
        inputs = pad_randomly(inputs, seed)
    embeddings, states, pooled, mask = run_core(model, inputs)
    text_length = inputs["text"][0].shape[1]
    assert_close(ours(embeddings, mask, text_length), packed(reference, "embedding_output"))
    assert_close(ours(states, mask, text_length), packed(reference, "last_hidden_state"))
    if pooled is not None:
        assert_close(pooled, reference["pooled"])


def to_float64(inputs):
    found = dict(inputs)
    for key in ("text", "regions"):
        found[key] = [tensor.double() if tensor.is_floating_point() else tensor for tensor in inputs[key]]
    return found


def check_gradients(reference, seed):
    """The loss of the reference: mean square of the packed states (0 at padding) + 0.1 * sum of the pooled output."""
    model, names = build_core(reference)
    inputs = core_inputs(reference)
    if seed is not None:
        inputs = pad_randomly(inputs, seed)
    # In float64, where the machine's order of summation does not matter: only the reference's own rounding is left.
    _, states, pooled, mask = run_core(model.double(), to_float64(inputs))
    loss = states[mask].pow(2).sum() / reference["last_hidden_state"].numel() + 0.1 * pooled.sum()
    assert_close(loss.float(), reference["loss"])
    loss.backward()
    parameters = dict(model.named_parameters())
    assert len(reference["grads"]) >= 19
    gradients = {key: parameters[names[f"module.vlbert.{key}"]].grad.float() for key in reference["grads"]}
    assert_close(gradients, reference["grads"])


@pytest.mark.parametrize("seed", [None, 1, 4])
def test_core_gradients_equal_reference(seed):
    check_gradients(load_fixture("core_ln"), seed)


@pytest.mark.parametrize("name", ["ln", "ln_1x1", "scale"])
def test_all_layers_and_gradients_equal_reference(shared, name):
    file = torch.load(shared / "parity" / "vl_bert_core_and_tasks.pt", weights_only=True)
    reference = file["core"][name]
    reference["last_hidden_state"] = reference["hidden_layers"][-1]
    for seed in (None, 1):
        check_gradients(reference, seed)


def test_pretraining_heads_equal_reference():
    reference = load_fixture("pretrain_heads")
    model = VLBertForPreTraining(make_config(reference["config"], relationship_head=True)).eval()
    load_weights(model, as_checkpoint(reference["state_dict"], core=True))
    inputs = core_inputs(reference)
    _, states, pooled, _ = run_core(model.vl_bert, inputs)
    text_length = inputs["text"][0].shape[1]
    text, regions, _ = states.split([text_length, inputs["regions"][0].shape[1], 1], dim=1)
    text_mask = inputs["text_mask"]
    region_mask = inputs["region_mask"]
    assert_close(model.relationship_head(pooled), reference["relationship_logits"])
    assert_close(model.mlm_head(text)[text_mask], reference["mlm_logits"][text_mask])
    assert_close(model.region_head(regions)[region_mask], reference["mvrc_logits"][region_mask])


def test_helpers_equal_reference():
    reference = load_fixture("helpers")
    places = reference["coordinate_embeddings"]
    boxes = places["boxes"]
    size = boxes[:, [4, 5, 4, 5]]
    mine = embed_coordinates(boxes[:, :4] / size, dim=256, form="center")
    assert_close(mine.view_as(places["out"]), places["out"])
    soft = reference["soft_cross_entropy"]
    assert_close(mean_of(soft_cross_entropy_sum(soft["logits"], soft["target"])), soft["mean"])


@pytest.mark.parametrize("name", ["none", "direct", "semi-direct", "indirect"])
def test_vgp_module_equals_reference_from_pixels_boxes_on(shared, name):
    reference = torch.load(shared / "parity" / "vgp_losses_and_modules.pt", weights_only=True)[f"module_{name}"]
    config = make_config(reference["config"]["NETWORK"]["VLBERT"], grounding_head=name == "indirect")
    model = VLBertForVGP(config).eval()
    names = load_weights(model, as_checkpoint(reference["state_dict"]))
    outputs = check_vgp(model, vgp_inputs(reference["inputs"]), reference)
    assert (outputs.grounding_logits is not None) == (name == "indirect")
    if name == "none":
        outputs.loss.backward()
        parameters = dict(model.named_parameters())
        wanted = reference["grad_norms"]
        norms = {key: parameters[names[f"module.{key}"]].grad.norm() for key in wanted}
        assert_close(norms, {key: torch.tensor(float(norm)) for key, norm in wanted.items()}, rtol=1e-4)


def pretraining_inputs(inputs):
    ids = inputs["text"]
    boxes = inputs["boxes"]
    mlm = inputs["mlm_labels"]
    return {
        "input_ids": ids,
        "attention_mask": ids > 0,
        "region_boxes": boxes[..., :4] / inputs["im_info"][:, None, [0, 1, 0, 1]],
        "region_features": boxes[..., 4:],
        "region_attention_mask": boxes[..., 0] > -1.5,
        "masked_regions": inputs["mvrc_ops"] == 1,
        "labels": torch.where(mlm < 0, -100, mlm),
        "region_label_probs": inputs["mvrc_labels"],
        "relationship_labels": inputs["relationship_label"],
    }


def check_pretraining(model, inputs, expected):
    """Logits where they mean something, and every loss by itself."""
    outputs = model(**inputs)
    text = inputs["attention_mask"].bool()
    regions = inputs["region_attention_mask"].bool()
    assert_close(outputs.mlm_logits[text], expected["mlm_logits"][text])
    rows = len(expected["mvrc_logits"])
    assert_close(outputs.region_logits[regions], expected["mvrc_logits"][regions[:rows]])
    assert_close(outputs.relationship_logits[:rows], expected["relationship_logits"])
    assert_close(outputs.loss, expected["loss"])
    losses = {"labels": "mlm_loss", "region_label_probs": "mvrc_loss", "relationship_labels": "relationship_loss"}
    for name, key in losses.items():
        others = {other: value for other, value in inputs.items() if other == name or other not in losses}
        assert_close(model(**others).loss, expected[key])


def join_streams(inputs, ids, labels):
    """Rows of text alone under the image rows, as the public multi-task module has them, and which they are."""
    text = inputs["input_ids"]
    alone = len(ids)
    columns = ids.shape[1] - text.shape[1]
    rows = {"relationship_labels": nn.functional.pad(inputs["relationship_labels"], (0, alone), value=-100)}
    for name, value, other in (
        ("input_ids", 0, ids),
        ("attention_mask", 0, ids > 0),
        ("labels", -100, labels),
    ):
        rows[name] = nn.functional.pad(inputs[name], (0, columns, 0, alone), value=value)
        rows[name][-alone:] = other
    rows["text_only"] = torch.arange(len(text) + alone) >= len(text)
    for name in REGIONS:
        value = inputs[name]
        rows[name] = torch.cat([value, value.new_zeros(alone, *value.shape[1:])])
    return rows


REGIONS = ("region_boxes", "region_features", "region_attention_mask", "masked_regions", "region_label_probs")


def multitask_case(inputs, outputs, loss):
    """Our inputs and what is expected of them, from the reference's two streams."""
    labels = torch.where(inputs["aux_labels"] < 0, -100, inputs["aux_labels"])
    expected = {**outputs, "loss": loss}
    expected["mlm_logits"] = torch.cat([outputs["mlm_logits_wvc"], outputs["mlm_logits_aux"]])
    expected["mlm_loss"] = outputs["mlm_loss_wvc"] + outputs["mlm_loss_aux"]
    return join_streams(pretraining_inputs(inputs), inputs["aux_text"], labels), expected


def test_two_streams_of_pretraining_equal_reference():
    """Words beside images, words alone, regions and relationship, from the visual embeddings on."""
    reference = load_fixture("pretrain_multitask")
    model = VLBertForPreTraining(make_config(reference["config"], relationship_head=True)).eval()
    load_weights(model, as_checkpoint(reference["state_dict"]))
    visual = nn.functional.pad(reference["region_visual"], (0, 0, 0, 0, 0, 4))
    model.vl_bert.region_encoder = GivenVisual(visual)
    reference["inputs"]["boxes"] = nn.functional.pad(reference["inputs"]["boxes"], (0, 2048))
    inputs, expected = multitask_case(reference["inputs"], reference["outputs"], reference["loss"])
    check_pretraining(model, inputs, expected)


@pytest.mark.parametrize("name", ["pretrain", "pretrain_multitask"])
def test_pretraining_module_equals_reference(shared, name):
    """Masked regions, masked words, text-only rows and every loss, from features and boxes on."""
    file = torch.load(shared / "parity" / "vl_bert_core_and_tasks.pt", weights_only=True)
    reference = file["tasks"][name]
    config = make_config(reference["config"]["NETWORK"]["VLBERT"], relationship_head=True)
    model = VLBertForPreTraining(config).eval()
    load_weights(model, as_checkpoint(reference["state_dict"]))
    inputs = pretraining_inputs(reference["inputs"])
    expected = {**reference["outputs"], "loss": reference["loss"]}
    if name == "pretrain_multitask":
        ids, labels = reference["aux"]
        given = {**reference["inputs"], "aux_text": ids, "aux_labels": labels}
        inputs, expected = multitask_case(given, reference["outputs"], reference["loss"])
    check_pretraining(model, inputs, expected)


def test_pixels_give_the_reference_visual_embeddings(shared):
    """An end-to-end checkpoint, converted, on images and boxes in pixels; also with masked regions."""
    reference = torch.load(shared / "parity" / "fast_rcnn.pt", weights_only=True)["resnet50"]
    trunk = list_shapes(hidden=32, layers=1, intermediate=8, vocab=20, positions=12, classes=5)
    trunk = {key: torch.zeros(shape) for key, shape in trunk.items() if "image_feature_extractor" not in key}
    trunk["object_mask_visual_embedding.weight"] = reference["inputs"]["mask_visual_embed"][None]
    model, _ = VL_BERT.build_model(
        {**reference_weights(reference), **as_checkpoint(trunk)}, {"num_attention_heads": 4}
    )
    assert model.config.vision_config.depths == [3, 4, 6, 3]
    assert model.config.region_masking == "feature"
    seen = []
    model.eval().vl_bert.region_encoder.register_forward_hook(lambda *call: seen.append(call[-1]))
    given = reference["inputs"]
    inputs = {
        "input_ids": torch.ones(2, 3, dtype=torch.long),
        "pixel_values": given["images"],
        "image_sizes": given["im_info"][:, :2].long(),
        "region_boxes": given["boxes"] / given["im_info"][:, None, [0, 1, 0, 1]],
        "region_attention_mask": given["box_mask"],
    }
    with torch.no_grad():
        model(**inputs)
        model(**inputs, masked_regions=given["mvrc_ops"] == 1)
    mask = given["box_mask"]
    expected = [reference["obj_reps"][mask], reference["obj_reps_masked_visual"][mask]]
    assert_close([features[mask] for features in seen], expected, rtol=1e-4, atol=1e-4)
