# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""Pre-training from pictures: mirrored examples, a recipe that trains end to end, its checkpoint, its resume."""

import json
import shutil

import numpy as np
import torch
from datasets import Dataset
from PIL import Image
from safetensors.torch import load_file
from transformers import AutoModelForPreTraining, AutoProcessor

from grounded_attention.dataset_scripts.regions.table import Regions
from grounded_attention.processing import FastRCNNImageProcessor, VLBertProcessor
from grounded_attention.tasks import TASKS
from grounded_attention.training.loop.data import Collator
from tests.helpers.tiny_scenes import run_train, tiny_recipe, tiny_scenes
from tests.helpers.tiny_vgp import TinyTable, tiny_processor

SIZE = {"shortest_edge": 32, "longest_edge": 48}
VISION = {"model_type": "fast_rcnn", "embedding_size": 4, "hidden_sizes": [4, 4, 4, 8], "depths": [1, 1, 1, 1]}
VISION |= {"roi_size": 2}
BOXES = np.float32([[0, 0, 0.5, 0.5], [0.25, 0.5, 1, 1]])


def pixel_collator(folder, **options):
    table = TinyTable({"7": Regions("7", 40, 30, BOXES, np.zeros((2, 4), np.float16), classes=np.int32([1, 2]))})
    processor = VLBertProcessor(tiny_processor().tokenizer, FastRCNNImageProcessor(size=SIZE))
    options = {"relationship": False, "words": False, "region_probability": 1.0, **options}
    return Collator(TASKS["pretraining"], processor, table, images=folder, options=options), processor


def test_a_mirrored_example_is_the_example_of_the_mirrored_picture(tmp_path):
    pixels = np.random.default_rng(0).integers(0, 256, (30, 40, 3), dtype=np.uint8)
    Image.fromarray(pixels).save(tmp_path / "7.png")
    rows = [{"image_id": "7", "caption_id": "7#0", "text": "a left b right", "file_name": "7.png"}]
    mirrored = BOXES[:, [2, 1, 0, 3]] * [-1, 1, -1, 1] + np.float32([1, 0, 1, 0])
    for probability, image, boxes in ((1.0, pixels[:, ::-1], mirrored), (0.0, pixels, BOXES)):
        collate, processor = pixel_collator(tmp_path, flip_probability=probability)
        text = "a right b left" if probability else "a left b right"
        expected = processor([text], images=[np.ascontiguousarray(image)], region_boxes=[boxes])
        batch = collate(rows)
        for name in ("input_ids", "image_sizes", "region_attention_mask"):
            assert torch.equal(batch[name], expected[name])
        torch.testing.assert_close(batch["pixel_values"], expected["pixel_values"])
        torch.testing.assert_close(batch["region_boxes"], expected["region_boxes"])
        assert batch["region_labels"].tolist() == [[-100, 2, 3]]
        assert "region_features" not in batch
    collate, processor = pixel_collator(tmp_path, flip_probability=1.0)
    measured = collate.evaluating(Dataset.from_list(rows))(rows)  # what is measured is never mirrored
    expected = processor(["a left b right"], images=[pixels], region_boxes=[BOXES])
    torch.testing.assert_close(measured["pixel_values"], expected["pixel_values"])


def test_a_recipe_trains_from_pictures_and_goes_on_after_a_kill(tmp_path, monkeypatch):
    scenes = tiny_scenes(tmp_path / "scenes")
    recipe = tiny_recipe(scenes, tmp_path / "run", methods=["none"], task="pretraining", resume=True)
    recipe["data"] |= {"builder": "flickr30k_entities", "images": str(scenes / "flickr30k-images")}
    recipe["data"] |= {"text_corpus": str(scenes / "corpus.txt")}
    recipe["options"] = {"background": False, "region_probability": 0.5, "flip_probability": 0.5}
    recipe["model"]["config"] |= {"vision_config": VISION, "region_feature_size": 8, "region_masking": "pixels"}
    recipe["model"]["processor"] = {"image_processor": {"size": SIZE}}
    recipe["training"] |= {"save_strategy": "steps", "save_steps": 2}
    assert run_train(monkeypatch, tmp_path, recipe) == 0
    directory = tmp_path / "run" / "none"
    figures = json.loads((directory / "results.json").read_text())["figures"]["test"]
    for name in ("words", "text_words", "regions", "relationship"):
        assert 0 <= figures[f"{name}_accuracy"] <= 1
    assert AutoProcessor.from_pretrained(directory).image_processor.size == SIZE
    model = AutoModelForPreTraining.from_pretrained(directory)
    assert model.config.vision_config.model_type == "fast_rcnn"
    straight = load_file(directory / "model.safetensors")
    for path in [path for path in directory.iterdir() if path.name != "checkpoint-2"]:
        shutil.rmtree(path) if path.is_dir() else path.unlink()
    assert run_train(monkeypatch, tmp_path, recipe) == 0
    resumed = load_file(directory / "model.safetensors")
    assert straight.keys() == resumed.keys()
    assert any("vision_model" in name for name in straight)
    for name, weight in straight.items():
        torch.testing.assert_close(weight, resumed[name], rtol=1e-6, atol=1e-7)
