# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""Computes on the CPU and on another device, and compares: models with gradients, trainings, an audit, the pipeline.

`python -m tests.conformance.device_steps FOLDER DEVICE`; DEVICE may be `pretend` (`tests/conformance/pretend_gpu.py`).
Prints a line for each case that passed; the first difference or error ends it.
"""

import json
import sys
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from accelerate.hooks import AlignDevicesHook, add_hook_to_module
from torch.testing import assert_close
from transformers import pipeline

from grounded_attention.analysis.relevancy import ReadOut, region_maps
from grounded_attention.families import FAMILIES
from grounded_attention.heads.boxes import box_columns
from grounded_attention.heads.measure import audit
from grounded_attention.heads.ranking import rank_heads
from grounded_attention.modeling import FastRCNNConfig, FastRCNNFeatures
from grounded_attention.processing import FastRCNNImageProcessor
from grounded_attention.processing.patch_grounding import PatchGroundingProcessor
from grounded_attention.processing.region_detection import load_detector
from grounded_attention.processing.region_extraction import RegionExtractor
from grounded_attention.supervision import get_method
from grounded_attention.supervision.steering import steer_heads
from tests.helpers.exported import SIZES, draw_inputs, model_inputs, tiny_model
from tests.helpers.tiny_audit import make_examples, make_regions, processor_of, vl_bert
from tests.helpers.tiny_detectors import save_detector
from tests.helpers.tiny_pictures import picture
from tests.helpers.tiny_pipeline import example
from tests.helpers.tiny_scenes import run_train, tiny_recipe, tiny_scenes
from tests.helpers.tiny_trainer import make_method, make_trainer
from tests.helpers.tiny_two_streams import RECIPE_SIZES
from tests.helpers.tiny_vgp import FEATURE_SIZE, tiny_processor
from tests.helpers.tiny_vgp import tiny_model as tiny_vgp_model
from tests.helpers.tiny_vlm_examples import TEXTS, examples, pictures
from tests.helpers.tiny_vlm_models import make_pair
from tests.helpers.tiny_vlm_recipes import vlm_recipe

METHODS = ("none", "indirect", "direct", "semi_direct", "grounding_alignment")
NO_BACKGROUND = {"background": False}
ANSWERS = {"answers": {"fewest": 1}}
PIXELS = {"embedding_size": 4, "hidden_sizes": [4, 4, 4, 8], "depths": [1, 1, 1, 1], "roi_size": 2}
SIZE = {"shortest_edge": 48, "longest_edge": 64}
KEPT = {"distillation": 1.0}


class Training(NamedTuple):
    """A family and a task; keys of the recipe, of its data and of the model's configuration."""

    family: str
    task: str
    keys: dict[str, Any] = {}
    data: dict[str, Any] = {}
    config: dict[str, Any] = {}


TRAININGS = {
    "pretraining": Training("vl_bert", "pretraining"),
    "pixels": Training(
        "vl_bert",
        "pretraining",
        {"options": NO_BACKGROUND},
        {"builder": "flickr30k_entities", "images": "flickr30k-images"},
        {"vision_config": {**PIXELS, "model_type": "fast_rcnn"}, "region_feature_size": 8, "region_masking": "pixels"},
    ),
    "vgp": Training("vl_bert", "vgp", {"methods": METHODS, "pictures": 1}),
    "kept near its start": Training(
        "vl_bert", "vgp", {"start": {"task": "pretraining", "options": NO_BACKGROUND}, "preserve": KEPT}
    ),
    "referring expressions": Training("vl_bert", "referring_expressions"),
    "vqa": Training("vl_bert", "vqa", {"options": ANSWERS}),
    "caption match": Training("visualbert", "caption_match_pretraining"),
    "phrase grounding": Training("visualbert", "phrase_grounding"),
    "nlvr2": Training("visualbert", "visual_reasoning", {}, {"options": {"image_id_format": "url_stem"}}),
    "vilbert": Training("vilbert", "pretraining", {"options": NO_BACKGROUND}, {}, RECIPE_SIZES["vilbert"]),
    "vilbert, contrast": Training(
        "vilbert",
        "pretraining",
        {"options": NO_BACKGROUND},
        {},
        {**RECIPE_SIZES["vilbert"], "visual_target": "nce", "num_negative": 3},
    ),
    "vilbert, vgp": Training(
        "vilbert", "vgp", {"methods": ["direct", "grounding_alignment"]}, {}, RECIPE_SIZES["vilbert"]
    ),
    "lxmert": Training("lxmert", "pretraining", {"options": NO_BACKGROUND}, {}, RECIPE_SIZES["lxmert"]),
    "lxmert, vgp": Training("lxmert", "vgp", {"methods": ["direct"]}, {}, RECIPE_SIZES["lxmert"]),
    "lxmert, gqa": Training("lxmert", "gqa", {"options": ANSWERS}, {}, RECIPE_SIZES["lxmert"]),
    "vlm": Training("vlm", "grounded_generation", {"methods": ["none", "direct"], "pictures": 1}),
}
CLOSE = {"rtol": 1e-3, "atol": 1e-4}
# A figure counts answers, and rounding decides between two that are as good.
CLOSE_FIGURES = {"rtol": 0.0, "atol": 0.02}
FIGURES = ", figures"
# A training step waits for: whether anything is padded, the valid regions, the valid columns, the gradient norm.
WAITS_OF_A_STEP = 4


def run_model(family, head, device, folder):
    """The outputs of a head, and the gradients of all weights; the outputs without masks too."""
    model = tiny_model(family, head, unpad=True).to(device)
    inputs = draw_inputs(model_inputs(model), SIZES[0])
    if head == "multiple_choice":
        inputs["labels"] = torch.arange(len(inputs["input_ids"])) % SIZES[0]["choices"]
    inputs = {name: tensor.to(device) for name, tensor in inputs.items()}
    scores = _scores(model(**inputs, return_dict=True))
    assert scores
    assert {value.device.type for value in scores.values()} == {device}
    sum(value.sigmoid().sum() for value in scores.values()).backward()
    found = scores | {name: weight.grad for name, weight in model.named_parameters() if weight.grad is not None}
    assert len(found) > len(scores)
    del inputs["attention_mask"], inputs["region_attention_mask"]
    whole = {f"{name} without masks": value for name, value in _scores(model(**inputs, return_dict=True)).items()}
    return {name: tensor.detach().cpu() for name, tensor in (found | whole).items()}


def _scores(outputs):
    return {name: value for name, value in outputs.items() if isinstance(value, torch.Tensor)}


def run_two_devices(device, folder):
    """The losses of direct supervision and the gradients of a model whose last layer is on the device."""
    model = tiny_model("vl_bert", "vgp", num_hidden_layers=2)
    method = get_method("direct")
    method.prepare(model)
    inputs = draw_inputs(model_inputs(model), SIZES[0])
    batch = {**inputs, "phrase_regions": inputs["phrase_mask"][..., :1].expand(-1, -1, SIZES[0]["regions"])}
    encoder = model.vl_bert.encoder
    encoder.layer[-1].to(device)
    add_hook_to_module(encoder.layer[-1], AlignDevicesHook(device))
    add_hook_to_module(encoder, AlignDevicesHook("cpu", io_same_device=True))
    outputs = model(**inputs, **method.forward_kwargs(batch))
    assert next(iter(outputs.attentions[-1].reports)).rows.device.type == torch.device(device).type
    losses = {name: total for name, (total, _) in method.losses(outputs, batch).items()}
    sum(losses.values()).backward()
    gradients = {name: p.grad.cpu() for name, p in encoder.named_parameters() if p.grad is not None}
    assert len(gradients) == 20  # all of the first layer, queries and keys of the last
    return {**losses, **gradients}


def run_training(name, device, folder):
    """The losses of three steps and the figures of all splits, by method."""
    training = TRAININGS[name]
    scenes = tiny_scenes(folder / "scenes")
    output = folder / device / name.replace(" ", "_")
    output.parent.mkdir(parents=True, exist_ok=True)
    if training.family == "vlm":
        recipe = vlm_recipe(scenes, output)
    else:
        recipe = tiny_recipe(scenes, output, task=training.task, methods=["none"])
        recipe["model"] |= {"family": training.family, "processor": {"image_processor": {"size": SIZE}}}
        if "vision_config" not in training.config:
            del recipe["model"]["processor"]
        if training.family != "vl_bert":
            del recipe["model"]["config"]["region_classes"]
        recipe["model"]["config"] |= training.config
    recipe |= {"pictures": 0, **training.keys}
    recipe["data"] |= training.data
    if "images" in training.data:
        recipe["data"]["images"] = str(scenes / training.data["images"])
    # A pretended device has no pinned memory; Adam makes whole steps of the rounding of gradients near 0.
    recipe["training"] |= {"use_cpu": device == "cpu", "dataloader_pin_memory": False, "optim": "sgd"}
    if "start" in recipe:
        recipe["start"] = {**recipe["start"], "training": recipe["training"]}
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("ACCELERATE_TORCH_DEVICE", device)
        assert run_train(patch, output.parent, recipe) == 0
    found = {}
    for method, results in json.loads((output / "results.json").read_text())["methods"].items():
        history = json.loads((output / method / "history.json").read_text())
        losses = [entry["loss"] for entry in history if "loss" in entry]
        assert len(losses) == 3
        found[method] = losses
        figures = [figure for split in results["figures"].values() for figure in split.values()]
        found[method + FIGURES] = [float(figure) for figure in figures if isinstance(figure, (int, float))]
    return found


def run_audit(device, folder):
    """Right answers and share of attention of every head."""
    regions = make_regions()
    model = vl_bert()
    result = audit(model.to(device), processor_of(model), make_examples(regions), regions, progress=False)
    counts = {f"{kind} {group}": each for kind, found in result.counted.items() for group, each in found.items()}
    assert counts
    return {f"{name} {part}": getattr(each, part) for name, each in counts.items() for part in ("correct", "share")}


def run_heads(model_type, device, folder):
    """The scores of the heads of a vision-language model, what changes without them, and with attention steered."""
    model, processor = make_pair(model_type)
    model.to(device)
    ranking = rank_heads(model, processor, examples(3), pictures(3), ablate=2, count=2)
    grounding = PatchGroundingProcessor(processor)
    batch = grounding(list(TEXTS[:2]), images=list(pictures(2).values()))
    target = box_columns(batch, [[[0.3, 0.2, 0.6, 0.7]], [[0.2, 0.5, 0.4, 0.8]]])
    with torch.no_grad(), steer_heads(model, [(1, 0), (1, 3)], target, 3.0):
        inputs = {name: tensor.to(device) for name, tensor in grounding.model_inputs(batch).items()}
        steered = model(**inputs).logits.cpu()[batch["attention_mask"].bool()]
    change = [ranking.ablation.together.change]
    counts = ranking.reported_on.counts
    scores = {name: np.asarray(counts.mean(name)) for name in ("pointing", "lift", "share", "entropy")}
    return {**scores, "change": change, "steered": steered}


def run_region_maps(device, folder):
    """Maps of the regions of a VL-BERT."""
    model = tiny_vgp_model(initializer_range=0.4).eval().to(device)
    words = torch.arange(5, 20).view(3, 5)
    features = torch.randn(3, 4, FEATURE_SIZE, generator=seeded())
    corners = torch.rand(3, 4, 2, generator=seeded()) / 2
    ones = torch.ones(3, 4, dtype=torch.long)
    batch = {"input_ids": words, "region_features": features, "region_boxes": torch.cat([corners, corners + 0.4], -1)}
    batch["region_attention_mask"] = ones
    batch = {name: tensor.to(device) for name, tensor in batch.items()}

    def read_out(outputs, inputs):
        scores = outputs.identification_logits.max(-1).values
        return ReadOut(scores, torch.zeros(len(scores), dtype=torch.long, device=scores.device))

    return {name: value.cpu() for name, value in region_maps(model, batch, read_out).items()}


def seeded():
    return torch.Generator().manual_seed(0)


def run_regions(device, folder):
    """Boxes of a detector and features of VL-BERT's network."""
    saved = folder / "detector"
    if not saved.exists():
        save_detector("yolos", saved)
        torch.manual_seed(0)
        FastRCNNFeatures(FastRCNNConfig(**PIXELS)).save_pretrained(folder / "network")
    network = FastRCNNFeatures.from_pretrained(folder / "network").eval().to(device)
    extractor = RegionExtractor(
        load_detector(str(saved), device=device), network, FastRCNNImageProcessor(size=SIZE), min_regions=3
    )
    found = extractor.extract([picture(60, 40), picture(30, 50, 1)])
    return {f"{part} {k}": getattr(each, part) for k, each in enumerate(found) for part in ("boxes", "features")}


def run_pipeline(device, folder):
    """The scores of the regions of phrases."""
    checkpoint = folder / "checkpoint"
    if not checkpoint.exists():
        tiny_vgp_model().save_pretrained(checkpoint)
        tiny_processor().save_pretrained(checkpoint)
    found = pipeline("visual-grounding", model=str(checkpoint), device=device)([example(), example(seed=2)])
    return {"scores": [record["score"] for records in found for record in records]}


def count_waits(method, device, folder):
    """How often a training step waits for a value of the pretended device."""
    from tests.conformance.pretend_gpu import WAITS

    counts = []
    for steps in (2, 6):
        sizes = {"max_steps": steps, "max_grad_norm": 1.0, "logging_steps": 100, "per_device_train_batch_size": 4}
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("ACCELERATE_TORCH_DEVICE", device)
            model = tiny_vgp_model(**make_method(method).model_config, unpad=True)
            trainer = make_trainer(folder, method, model, use_cpu=False, dataloader_pin_memory=False, **sizes)
            WAITS.clear()
            trainer.train()
        counts.append(WAITS.total())
    return (counts[1] - counts[0]) / 4


def cases():
    """Name and function of a device and a folder."""
    for family, entry in FAMILIES.items():
        for head in (None, *entry.heads):
            yield f"{family}, {head or 'base model'}", partial(run_model, family, head)
    for name in TRAININGS:
        yield f"training, {name}", partial(run_training, name)
    yield "layers on two devices", run_two_devices
    yield "audit", run_audit
    for model_type in ("llava", "qwen2_5_vl", "gemma3"):
        yield f"heads, {model_type}", partial(run_heads, model_type)
    yield "maps of regions", run_region_maps
    yield "regions", run_regions
    yield "pipeline", run_pipeline


def main(folder, device):
    """Compares all cases."""
    for name, work in cases():
        found = work(device, folder)
        expected = work("cpu", folder)
        assert found.keys() == expected.keys()
        for key, value in expected.items():
            close = CLOSE_FIGURES if key.endswith(FIGURES) else CLOSE
            assert_close(found[key], value, **close, msg=lambda text, key=key: f"{key}: {text}")
        print(name, flush=True)
    if device != "pretend":
        return
    for method in METHODS:
        found = count_waits(method, device, folder)
        assert found <= WAITS_OF_A_STEP, f"{method}: a step waits {found} times"
        print(f"a step of {method} waits {found:g} times", flush=True)


if __name__ == "__main__":
    context = nullcontext()
    if sys.argv[2] == "pretend":
        from tests.conformance.pretend_gpu import pretend_gpu

        context = pretend_gpu()
    with context:
        main(Path(sys.argv[1]), sys.argv[2])
