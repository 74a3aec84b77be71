# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""Pre-training from pictures: mirrored examples, a recipe that trains end to end, its checkpoint, its resume."""

import shutil

import numpy as np
import torch
import yaml
from datasets import Dataset
from PIL import Image
from torch.testing import assert_close
from transformers import AutoModelForPreTraining, AutoProcessor

from grounded_attention.dataset_scripts.regions.table import Regions
from grounded_attention.processing import FastRCNNImageProcessor, VLBertProcessor
from grounded_attention.tasks import TASKS
from grounded_attention.training.loop.data import Collator
from tests.helpers.tiny_vgp import TinyTable, tiny_processor
from tests.training.runs import kill, read_json, saved_weights

SIZE = {"shortest_edge": 32, "longest_edge": 48}
BOXES = np.float32([[0, 0, 0.5, 0.5], [0.25, 0.5, 1, 1]])


def pixel_collator(folder, **options):
    table = TinyTable({"7": Regions("7", 40, 30, BOXES, np.zeros((2, 4), np.float16), classes=np.int32([1, 2]))})
    processor = VLBertProcessor(tiny_processor().tokenizer, FastRCNNImageProcessor(size=SIZE))
    options = {"relationship": False, "words": False, "region_probability": 1.0, **options}
    return Collator(TASKS["pretraining"], processor, table, images=folder, options=options), processor


ROW = {"image_id": "7", "caption_id": "7#0", "text": "a left b right", "file_name": "7.png"}


def assert_collated(batch, processor, text, pixels, boxes):
    expected = processor([text], images=[np.ascontiguousarray(pixels)], region_boxes=[boxes])
    for name in ("input_ids", "image_sizes", "region_attention_mask"):
        assert torch.equal(batch[name], expected[name])
    assert_close(batch["pixel_values"], expected["pixel_values"])
    assert_close(batch["region_boxes"], expected["region_boxes"])
    assert "region_features" not in batch


def test_a_mirrored_example_is_the_example_of_the_mirrored_picture(tmp_path):
    pixels = np.random.default_rng(0).integers(0, 256, (30, 40, 3), dtype=np.uint8)
    Image.fromarray(pixels).save(tmp_path / "7.png")
    collate, processor = pixel_collator(tmp_path, flip_probability=0.0)
    batch = collate([ROW])
    assert batch["region_labels"].tolist() == [[-100, 2, 3]]
    assert_collated(batch, processor, "a left b right", pixels, BOXES)
    collate, processor = pixel_collator(tmp_path, flip_probability=1.0)
    batch = collate([ROW])
    mirrored = BOXES[:, [2, 1, 0, 3]] * [-1, 1, -1, 1] + np.float32([1, 0, 1, 0])
    assert batch["region_labels"].tolist() == [[-100, 2, 3]]
    assert_collated(batch, processor, "a right b left", pixels[:, ::-1], mirrored)
    measured = collate.evaluating(Dataset.from_list([ROW]))([ROW])  # what is measured is never mirrored
    assert_collated(measured, processor, "a left b right", pixels, BOXES)


RECIPE = """
methods: [none]
task: pretraining
resume: true
data: {builder: flickr30k_entities, data_dir: SCENES, regions: SCENES/regions, images: SCENES/flickr30k-images,
       text_corpus: SCENES/corpus.txt, limit: {train: 16, validation: 8, test: 8}}
options: {background: false, region_probability: 0.5, flip_probability: 0.5}
model:
  tokenizer: SCENES/vocab.txt
  processor: {image_processor: {size: {shortest_edge: 32, longest_edge: 48}}}
  config:
    hidden_size: 16
    num_hidden_layers: 2
    num_attention_heads: 2
    intermediate_size: 16
    max_position_embeddings: 128
    region_classes: 65
    region_feature_size: 8
    region_masking: pixels
    vision_config: {model_type: fast_rcnn, embedding_size: 4, hidden_sizes: [4, 4, 4, 8], depths: [1, 1, 1, 1],
                    roi_size: 2}
training: {max_steps: 3, per_device_train_batch_size: 4, per_device_eval_batch_size: 16, logging_steps: 1,
           save_strategy: steps, save_steps: 2, use_cpu: true, disable_tqdm: true}
"""


def test_a_recipe_trains_from_pictures_and_goes_on_after_a_kill(scenes, tmp_path, run_recipe):
    recipe = yaml.safe_load(RECIPE.replace("SCENES", str(scenes)))
    recipe["output_dir"] = str(tmp_path / "run")
    run_recipe(recipe)
    directory = tmp_path / "run/none"
    figures = read_json(directory / "results.json")["figures"]["test"]
    for name in ("words", "text_words", "regions", "relationship"):
        assert 0 <= figures[f"{name}_accuracy"] <= 1
    assert AutoProcessor.from_pretrained(directory).image_processor.size == SIZE
    model = AutoModelForPreTraining.from_pretrained(directory)
    assert model.config.vision_config.model_type == "fast_rcnn"
    straight = saved_weights(directory)
    assert any("vision_model" in name for name in straight)
    kill(directory)
    shutil.rmtree(directory / "checkpoint-3")
    run_recipe(recipe)
    resumed = saved_weights(directory)
    assert straight.keys() == resumed.keys()
    for name, weight in straight.items():
        assert_close(weight, resumed[name], rtol=1e-6, atol=1e-7)
