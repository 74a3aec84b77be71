# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""transformers' common processor tests on every processor here; run by `make conformance`."""

import unittest
from typing import ClassVar

import numpy as np
from transformers import BertTokenizer
from transformers_tests.test_processing_common import ProcessorTesterMixin

from grounded_attention.processing import VisualBERTProcessor, VLBertProcessor

WORDS = "[PAD] [UNK] [CLS] [SEP] [MASK] lower newer upper older longer string a b c ? ##s".split()

IN_SIGNATURE = (
    "no modality of ProcessingKwargs describes texts with regions, so the options stand in the signature of __call__"
)
SKIPS = {
    "test_call_arguments_default_none": IN_SIGNATURE,
    "test_call_arguments_not_in_processor_kwargs": IN_SIGNATURE,
    "test_flat_kwarg_applied_when_modality_dict_lacks_it": IN_SIGNATURE,
    "test_processor_text_has_no_visual": "calls with images alone; here they come with boxes or a detector",
}


class VLBertProcessorTest(ProcessorTesterMixin, unittest.TestCase):
    processor_class = VLBertProcessor
    own_inputs: ClassVar[dict] = {}

    def setUp(self):
        if self._testMethodName in SKIPS:
            self.skipTest(SKIPS[self._testMethodName])

    @classmethod
    def _setup_tokenizer(cls):
        return BertTokenizer(vocab={word: index for index, word in enumerate(WORDS)})

    @staticmethod
    def prepare_processor_dict():
        return {"max_regions": 7, "region_feature_size": 16, "iou_threshold": 0.6}

    def test_model_input_names(self):
        """Upstream calls with text and images; here regions, phrases, tags and an answer make up the other names."""
        processor = self.get_processor()
        phrases = [{"sentence": 0, "start": 0, "end": 5, "regions": [1]}, {"sentence": 0, "start": 6, "end": 11}]
        phrases[1] |= {"boxes": [[0.2, 0.2, 0.9, 0.9]], "scores": [0.5]}
        inputs = processor(
            self.prepare_text_inputs(),
            region_features=np.ones((2, 16), dtype=np.float32),
            region_boxes=[[0.1, 0.1, 0.5, 0.5], [0.2, 0.2, 0.9, 0.9]],
            phrases=phrases,
            phrase_pairs=[[0, 1]],
            tags=[{"sentence": 0, "start": 0, "end": 5, "regions": [1]}],
            layout=processor.answer_layout,
            **self.own_inputs,
        )
        self.assertSetEqual(set(inputs.keys()), set(processor.model_input_names))


class VisualBERTProcessorTest(VLBertProcessorTest):
    processor_class = VisualBERTProcessor
    own_inputs: ClassVar[dict] = {"region_image_indices": [0, 1]}

    @staticmethod
    def prepare_processor_dict():
        return {"max_regions": 7, "region_feature_size": 16, "iou_threshold": 0.6, "spatial_features": True}
