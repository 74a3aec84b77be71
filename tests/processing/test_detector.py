# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""`processor(images=..., detector=RegionExtractor(...))` with a real detector and VL-BERT's region-feature network."""

import torch
from torch.testing import assert_close

from grounded_attention.modeling import FastRCNNConfig, FastRCNNFeatures, VLBertConfig, VLBertModel
from grounded_attention.processing import FastRCNNImageProcessor
from grounded_attention.processing.region_detection import load_detector
from grounded_attention.processing.region_extraction import RegionExtractor
from tests.helpers.processing_helpers import make_processor
from tests.helpers.tiny_detectors import save_detector
from tests.helpers.tiny_pictures import picture

WIDTH = 8
NETWORK = {"embedding_size": 4, "hidden_sizes": [4, 4, 4, WIDTH], "depths": [1, 1, 1, 1], "roi_size": 2}
TEXTS = ["a man", "a", "a dog"]
IMAGES = [picture(60, 40), None, picture(30, 50, 1)]


def test_found_boxes_and_their_features_reach_the_model(tmp_path):
    detector = load_detector(str(save_detector("yolos", tmp_path)))
    torch.manual_seed(0)
    network = FastRCNNFeatures(FastRCNNConfig(**NETWORK)).eval()
    pixels = FastRCNNImageProcessor(size={"shortest_edge": 48, "longest_edge": 64})
    extractor = RegionExtractor(detector, network, pixels, min_regions=3, max_regions=5)
    processor = make_processor(region_feature_size=WIDTH)
    inputs = processor(TEXTS, images=IMAGES, detector=extractor)
    assert inputs["region_features"].shape[2] == WIDTH
    assert "pixel_values" not in inputs
    assert inputs["region_candidate_mask"].any(1).tolist() == [True, False, True]
    for row in (0, 2):
        image = pixels([IMAGES[row]])
        found = inputs["region_candidate_mask"][row]
        boxes = inputs["region_boxes"][row][found] * image["image_sizes"][0].repeat(2)
        with torch.no_grad():
            expected = network(image["pixel_values"], boxes[None]).region_features[0]
        assert_close(inputs["region_features"][row][found], expected, rtol=1e-4, atol=1e-5)
        # The feature of the whole image is the mean of the others.
        assert_close(inputs["region_features"][row, 0], expected.mean(0), rtol=1e-4, atol=1e-5)
    sizes = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 16}
    config = VLBertConfig(vocab_size=len(processor.tokenizer), region_feature_size=WIDTH, **sizes)
    with torch.no_grad():
        outputs = VLBertModel(config).eval()(**inputs)
    assert outputs.text_hidden_state.isfinite().all()
