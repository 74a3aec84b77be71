# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""Referring expressions: which regions are positives, which box is predicted and when it is right, misses, flips."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch
from numpy.testing import assert_allclose
from PIL import Image
from torch.nn import functional as F
from transformers import BertTokenizer

from grounded_attention.dataset_scripts.builders.local_builder import whole_text
from grounded_attention.dataset_scripts.regions.table import Regions
from grounded_attention.modeling import VLBertForReferringExpression
from grounded_attention.processing import FastRCNNImageProcessor, VisualBERTProcessor, VLBertProcessor
from grounded_attention.tasks import TASKS
from grounded_attention.tasks.flipping import flip_boxes
from grounded_attention.tasks.referring_expressions import is_right, score
from grounded_attention.training.loop.data import Collator
from tests.helpers.task_inputs import task_inputs
from tests.helpers.tiny_vgp import FEATURE_SIZE, WORDS, tiny_model, tiny_processor

TASK = TASKS["referring_expressions"]
WIDTH = 100
HEIGHT = 50
GOLD = [10, 10, 50, 40]
# The object itself, half of it (an overlap of 0.5 with the last pixel, less without), another place.
BOXES = [GOLD, [10, 10, 50, 24.5], [60, 10, 90, 40]]


def normalised(boxes):
    return np.float32(np.reshape(boxes, (-1, 4)) / [WIDTH, HEIGHT, WIDTH, HEIGHT])


def record(boxes, image_id="1"):
    boxes = normalised(boxes)
    features = np.random.default_rng(0).random((len(boxes), FEATURE_SIZE)).astype(np.float16)
    return Regions(image_id, WIDTH, HEIGHT, boxes, features)


def row(number=0, image_id="1", text="a b left"):
    box = normalised([GOLD])[0].tolist()
    names = {"example_id": str(number), "image_id": image_id, "text": text, "width": WIDTH, "height": HEIGHT}
    return {**names, "phrases": [whole_text(text, box)]}


def collated(boxes=BOXES, example=None, **options):
    return Collator(TASK, tiny_processor(), {"1": record(boxes)}, options=options)([example or row()])


def outputs(*logits):
    return SimpleNamespace(logits=torch.tensor([logits]))


def test_positives_overlap_by_more_than_half():
    assert collated()["region_targets"].tolist() == [[0, 1, 0, 0]]  # exactly half is none
    assert collated(label_convention="vl_bert")["region_targets"].tolist() == [[0, 1, 1, 0]]
    assert collated(whole_image=False)["region_targets"].tolist() == [[-100, 1, 0, 0]]
    big = collated(boxes=[[0, 0, WIDTH, HEIGHT]], label_convention="continuous")
    assert big["region_targets"].tolist() == [[0, 0]]  # 24% of the picture


def test_the_predicted_box_is_the_best_region_in_pixels():
    best = outputs(0.0, 1.0, 3.0, 2.0)
    scored = score(best, collated(), "vl_bert")
    assert scored.notes["box"] == [[10.0, 10.0, 50.0, 24.5]]
    assert scored.scores["expressions_accuracy"] == [True]  # from an overlap of half on
    assert scored.scores["expressions_chance"] == [0.5]
    assert scored.scores["expressions_upper_bound"] == [True]
    for convention in ("vl_bert_label", "continuous"):
        assert score(best, collated(), convention).scores["expressions_accuracy"] == [False]


@pytest.mark.parametrize("whole_image, box", {True: [0, 0, 100, 50], False: GOLD}.items())
def test_the_whole_image_is_chosen_only_where_it_is_a_candidate(whole_image, box):
    scored = score(outputs(9.0, 1.0, 0.0, 0.0), collated(whole_image=whole_image), "vl_bert")
    assert scored.notes["box"] == [box]


def test_pixels_come_back_as_the_files_have_them():
    """Boxes with two decimals, in images of any size, through float32 shares of the size."""
    rng = np.random.default_rng(1)
    for width, height in rng.integers(50, 641, (50, 2)).tolist():
        gold = np.sort(rng.uniform(0, [width, height], (2, 2)), axis=0).round(2).flatten()
        share = np.float32(gold / [width, height, width, height])
        example = {**row(), "width": width, "height": height, "phrases": [whole_text("a b left", share.tolist())]}
        found = Regions("1", width, height, share[None], np.zeros((1, FEATURE_SIZE), np.float16))
        batch = Collator(TASK, tiny_processor(), {"1": found})([example])
        gold = gold.tolist()
        assert batch["gold_boxes"] == [gold]
        assert score(outputs(0.0, 1.0), batch, "vl_bert").notes["box"] == [gold]
        assert is_right(gold, gold)


def test_an_image_without_detections_is_a_miss():
    whole = whole_text("a b left", [0.0, 0.0, 1.0, 1.0])
    scored = score(outputs(5.0), collated([], {**row(), "phrases": [whole]}), "vl_bert")
    assert scored.notes["box"] == [None]
    assert scored.totals == {"expressions_without_detections": 1}
    assert list(scored.scores.values()) == [[False], [0.0], [False]]


def test_a_batch_with_and_without_detections():
    regions = {"1": record(BOXES), "2": record([], "2")}
    batch = Collator(TASK, tiny_processor(), regions)([row(), row(1, "2")])
    targets = batch["region_targets"]
    assert targets.tolist() == [[0, 1, 0, 0], [0, -100, -100, -100]]
    model = VLBertForReferringExpression(tiny_model().config).eval()
    found = model(**task_inputs(TASK, batch, "region_targets"))
    (component,) = TASK.losses
    mean = (component.total(found, batch) / component.count(batch)).item()
    assert mean == pytest.approx(found.loss.item(), abs=1e-6)
    assert component.count(batch) == 5
    valid = targets >= 0
    by_hand = F.binary_cross_entropy_with_logits(found.logits[valid], targets[valid].float())
    assert mean == pytest.approx(by_hand.item(), abs=1e-6)
    assert score(found, batch, "vl_bert").notes["box"][1] is None


@pytest.mark.parametrize("whole_image", [True, False])
@pytest.mark.parametrize("boxes", [{"1": BOXES, "2": []}, {"1": [], "2": []}], ids=["some", "none"])
def test_a_family_without_a_whole_image_has_no_target_where_nothing_is_detected(boxes, whole_image):
    regions = {name: record(found, name) for name, found in boxes.items()}
    processor = VisualBERTProcessor(tiny_processor().tokenizer, region_feature_size=FEATURE_SIZE)
    batch = Collator(TASK, processor, regions, options={"whole_image": whole_image})([row(), row(1, "2")])
    assert torch.equal(batch["candidates"], batch["region_candidate_mask"].bool())
    wanted = [1, 0, 0] if boxes["1"] else []
    assert [value for value in batch["region_targets"].flatten().tolist() if value >= 0] == wanted


def test_pictures_are_mirrored_with_boxes_and_words_in_training_alone(tmp_path):
    left = np.zeros((HEIGHT, WIDTH, 3), dtype=np.uint8)
    left[:, : WIDTH // 2] = 255
    Image.fromarray(left).save(tmp_path / "1.png")
    tokenizer = BertTokenizer(vocab={word: number for number, word in enumerate([*WORDS, "left", "right"])})
    pixels = FastRCNNImageProcessor(size={"shortest_edge": 50, "longest_edge": 100})
    processor = VLBertProcessor(tokenizer, image_processor=pixels, region_feature_size=FEATURE_SIZE)
    example = {**row(), "file_name": "1.png"}
    options = {"flip_probability": 1.0}
    collator = Collator(TASK, processor, {"1": record(BOXES)}, images=tmp_path, options=options)
    flipped = collator([example])
    plain = collator.evaluating([example])([example])
    assert tokenizer.decode(flipped["input_ids"][0]) == "[CLS] a b right [SEP]"
    assert tokenizer.decode(plain["input_ids"][0]) == "[CLS] a b left [SEP]"
    mirrored = flip_boxes(plain["region_boxes"][0].numpy())
    assert_allclose(flipped["region_boxes"][0], mirrored, atol=1e-6)
    assert torch.equal(flipped["region_targets"], plain["region_targets"])
    assert torch.allclose(flipped["pixel_values"], plain["pixel_values"].flip(-1), atol=1e-5)


def test_features_are_never_mirrored():
    batch = collated(flip_probability=1.0)
    assert torch.allclose(batch["region_boxes"][0, 1:], torch.from_numpy(normalised(BOXES)), atol=1e-6)


def test_no_regions_at_all():
    with pytest.raises(ValueError, match="referring expressions need regions: set"):
        Collator(TASK, tiny_processor(), None)([row()])
