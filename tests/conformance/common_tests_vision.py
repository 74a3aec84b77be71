# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""transformers' common tests on the models that turn pixels and boxes into region features."""

import unittest
from fnmatch import fnmatch

import torch
from transformers import PreTrainedModel, ResNetConfig
from transformers.models.auto.modeling_auto import MODEL_MAPPING_NAMES
from transformers_tests.test_configuration_common import ConfigTester
from transformers_tests.test_modeling_common import ModelTesterMixin

from grounded_attention.modeling import BackboneRegionFeatures, BackboneRegionsConfig, FastRCNNConfig, FastRCNNFeatures
from tests.conformance.common_tests_models import on_device

NO_STATES = "its output is features of regions, without states or attention maps of layers"
NO_WORDS = "it reads no words"
# Patterns of test names -> why they cannot apply.
SKIPS = {
    "test_*hidden_states*": NO_STATES,
    "test_model_outputs_equivalence": NO_STATES,
    "test_*attention*": NO_STATES,
    "test_*sdpa*": NO_STATES,
    "test_*flash*": NO_STATES,
    "test_*eager*": NO_STATES,
    "test_*inputs_embeds*": NO_WORDS,
    "test_*resize_*embeddings*": NO_WORDS,
    "test_model_get_set_embeddings": NO_WORDS,
    "test_model_rope_*": "it has no rotary position embedding",
    "test_vision_axial_rope": "it has no rotary position embedding",
    "test_training*": "it has no loss",
}


class RegionTester:
    """Small configurations, and the inputs that the common tests ask for."""

    batch_size = 3
    num_regions = 4
    is_training = False

    def __init__(self, config_class):
        self.config_class = config_class

    def get_config(self):
        sizes = {"embedding_size": 8, "hidden_sizes": [8, 8, 12, 16], "depths": [1, 1, 1, 1]}
        if self.config_class is FastRCNNConfig:
            return FastRCNNConfig(**sizes, roi_size=3)
        return BackboneRegionsConfig(backbone_config=ResNetConfig(**sizes), feature_size=16, feature_stride=32)

    def prepare_config_and_inputs_for_common(self):
        corners = 64 * torch.rand(self.batch_size, self.num_regions, 2, 2).sort(dim=2).values
        inputs = {
            "pixel_values": torch.rand(self.batch_size, 3, 64, 64),
            "region_boxes": corners.flatten(2),
            "region_attention_mask": torch.ones(self.batch_size, self.num_regions, dtype=torch.long),
        }
        return self.get_config(), on_device(inputs)


class CommonRegionTests(ModelTesterMixin):
    """The common tests for one class."""

    model_class: type[PreTrainedModel]
    has_attentions = False
    test_resize_embeddings = False

    def setUp(self):
        self.model_tester = RegionTester(self.model_class.config_class)
        self.all_model_classes = (self.model_class,)
        for pattern, reason in SKIPS.items():
            if fnmatch(self._testMethodName, pattern):
                self.skipTest(reason)


for model_class in (FastRCNNFeatures, BackboneRegionFeatures):
    # Some of the tests run on base models only and know them by this table of transformers' own.
    MODEL_MAPPING_NAMES[model_class.config_class.model_type] = model_class.__name__
    name = f"{model_class.__name__}Test"
    bases = (CommonRegionTests, unittest.TestCase)
    globals()[name] = type(name, bases, {"model_class": model_class, "__module__": __name__})
    del name


class VisionConfigurationTest(unittest.TestCase):
    """Saving, loading and common fields of the configurations."""

    def test_fast_rcnn(self):
        self.check(FastRCNNConfig, roi_size=7)

    def test_backbone_regions(self):
        self.check(BackboneRegionsConfig, feature_size=8)

    def check(self, config_class, **fields):
        # Neither has the fields of a Transformer that the tests ask for by default.
        tester = ConfigTester(self, config_class, has_text_modality=False, common_properties=[], **fields)
        tester.run_common_tests()
