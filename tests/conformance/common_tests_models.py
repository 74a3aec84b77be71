# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""transformers' common model and configuration tests on every model class here; run by `make conformance`.

A class takes part by its line in CASES.
"""

import fnmatch
import inspect
import unittest
from typing import Any, NamedTuple

import torch
from transformers import PreTrainedModel
from transformers.models.auto.modeling_auto import MODEL_MAPPING_NAMES
from transformers.testing_utils import torch_device
from transformers_tests.test_configuration_common import ConfigTester
from transformers_tests.test_modeling_common import ModelTesterMixin

from grounded_attention.families import FAMILIES, HEADS
from grounded_attention.modeling import (
    FastRCNNConfig,
    LXMERTConfig,
    LXMERTForPreTraining,
    LXMERTForVisualQuestionAnswering,
    ViLBertConfig,
    VisualBERTConfig,
    VisualBERTForMultipleChoice,
    VisualBERTForPhraseGrounding,
    VisualBERTForPreTraining,
    VisualBERTForVGP,
    VLBertConfig,
    VLBertForMultipleChoice,
    VLBertForPreTraining,
    VLBertForReferringExpression,
    VLBertForVGP,
    VLBertForVisualQuestionAnswering,
    VLBertModel,
)


def head_of(model_class):
    """The head of a class, by the end of its name; empty for a base model."""
    return next((head for head, end in HEADS.items() if model_class.__name__.endswith(end)), "")


def read_by(model_class, inputs):
    """Those of the inputs that the class's `forward` has; classes of regions are for VL-BERT's choices alone."""
    known = {*inspect.signature(model_class.forward).parameters}
    if model_class is not VLBertForMultipleChoice:
        known.discard("region_class_labels")
    return {name: tensor for name, tensor in inputs.items() if name in known}


def on_device(inputs):
    """The inputs on the device of the common tests: a GPU if there is one."""
    return {name: tensor.to(torch_device) for name, tensor in inputs.items()}


class VLBertTester:
    """The small configuration and the inputs that the common tests ask for."""

    config_class = VLBertConfig
    batch_size = 3
    seq_length = 7
    num_regions = 5
    num_hidden_layers = 2
    num_attention_heads = 4
    hidden_size = 32
    is_training = True
    num_choices = 2
    # Given beside input_ids when the attention back ends are compared.
    region_inputs = ("region_features", "region_boxes", "region_attention_mask")
    # Text, regions and END: the length of states and attention maps.
    encoder_seq_length = key_length = seq_length + num_regions + 1

    # What the configuration has beside the common sizes.
    fields: dict[str, Any] = {
        "num_hidden_layers": num_hidden_layers,
        "region_feature_size": 16,
        "region_classes": 9,
        "coordinate_dim": 4,
        # At the default, 0, no region would matter.
        "visual_scale_text_init": 0.5,
        "visual_scale_region_init": 0.5,
    }
    # Kinds of hidden states that the output of the base model has.
    base_states_types = 1
    # Patterns of test names that cannot apply to this family -> why.
    skips: dict[str, str] = {}

    def __init__(self, config_overrides, is_base=False):
        self.config_overrides = config_overrides
        self.num_hidden_states_types = self.base_states_types if is_base else 1

    def get_config(self):
        common = {
            "vocab_size": 99,
            "hidden_size": self.hidden_size,
            "num_attention_heads": self.num_attention_heads,
            "intermediate_size": 37,
            "max_position_embeddings": 64,
        }
        return self.config_class(**{**common, **self.fields, **self.config_overrides})

    def prepare_config_and_inputs_for_common(self):
        corners = torch.rand(self.batch_size, self.num_regions, 2, 2).sort(dim=2).values
        inputs = {
            "input_ids": torch.randint(5, 99, (self.batch_size, self.seq_length)),
            "attention_mask": torch.ones(self.batch_size, self.seq_length, dtype=torch.long),
            "token_type_ids": torch.randint(0, 2, (self.batch_size, self.seq_length)),
            "region_features": torch.rand(self.batch_size, self.num_regions, 16),
            "region_boxes": corners.flatten(2),
            "region_attention_mask": torch.ones(self.batch_size, self.num_regions, dtype=torch.long),
        }
        return self.get_config(), on_device(inputs)

    def make_class_inputs(self, model_class, batch_size):
        """What a class takes beside the inputs of the base model, by its head; the same at each call."""
        first = torch.arange(self.seq_length) < 3
        phrases = torch.stack([first, ~first]).expand(batch_size, -1, -1)
        inputs = {
            "pretraining": {"masked_regions": torch.arange(self.num_regions).expand(batch_size, -1) > 2},
            "vqa": {"answer_positions": torch.arange(batch_size) % self.seq_length},
            "vgp": {
                "phrase_mask": phrases,
                "phrase_pairs": torch.tensor([[[0, 1]]]).expand(batch_size, -1, -1),
            },
            "phrase_grounding": {"phrase_mask": phrases},
            "visual_reasoning": {
                "region_token_type_ids": (torch.arange(self.num_regions) > 2).long().expand(batch_size, -1)
            },
        }
        return on_device(read_by(model_class, inputs.get(head_of(model_class), {})))

    def make_labels(self, model_class):
        """What the losses of a class take, by its head; nothing for the base model."""
        config = self.get_config()
        ones = torch.ones(self.batch_size, dtype=torch.long)
        regions = torch.ones(self.batch_size, self.num_regions, dtype=torch.long)
        labels = {
            "pretraining": {
                "labels": torch.ones(self.batch_size, self.seq_length, dtype=torch.long),
                "region_labels": regions,
                "attribute_labels": regions,
                "predicted_regions": regions.bool(),
                "answer_labels": ones,
                **({"relationship_labels": ones} if getattr(config, "relationship_head", True) else {}),
            },
            "vgp": {"identification_labels": ones, "vgp_labels": ones[:, None]},
            "referring_expressions": {"region_targets": torch.eye(self.batch_size, self.num_regions)},
            "vqa": {"labels": torch.eye(self.batch_size, len(config.answers))},
            "multiple_choice": {"labels": ones, "region_class_labels": regions},
            "visual_reasoning": {"labels": ones},
            "phrase_grounding": {
                "phrase_regions": torch.eye(2, self.num_regions).bool().expand(self.batch_size, -1, -1)
            },
        }
        return on_device(read_by(model_class, labels.get(head_of(model_class), {})))

    def shape_inputs(self, model_class, inputs):
        """The inputs of the base model as a class takes them: multiple choice has several texts an image."""
        if head_of(model_class) != "multiple_choice":
            return inputs
        text = ("input_ids", "attention_mask", "token_type_ids", "inputs_embeds")
        texts = {
            name: torch.stack([inputs[name]] * self.num_choices, dim=1)
            for name in text
            if inputs.get(name) is not None
        }
        return {**inputs, **texts}


class PixelTester(VLBertTester):
    """Images in the place of region features."""

    image_size = 32
    region_inputs = ("pixel_values", "image_sizes", "region_boxes", "region_attention_mask")

    def get_config(self):
        vision = FastRCNNConfig(embedding_size=4, hidden_sizes=[4, 4, 8, 16], depths=[1, 1, 1, 1], roi_size=2)
        self.config_overrides = {"vision_config": vision, **self.config_overrides}
        return super().get_config()

    def prepare_config_and_inputs_for_common(self):
        config, inputs = super().prepare_config_and_inputs_for_common()
        del inputs["region_features"]
        inputs["pixel_values"] = torch.rand(self.batch_size, 3, self.image_size, self.image_size)
        inputs["image_sizes"] = torch.full((self.batch_size, 2), self.image_size)
        return config, on_device(inputs)


class VisualBERTTester(VLBertTester):
    """Text and regions, without an END."""

    config_class = VisualBERTConfig
    encoder_seq_length = key_length = VLBertTester.seq_length + VLBertTester.num_regions

    fields = {
        "num_hidden_layers": 2,
        "visual_embedding_dim": 16,
    }


class ViLBertTester(VLBertTester):
    """Two streams; states and maps are those of the text, which the co-attention asks of the regions."""

    config_class = ViLBertConfig
    encoder_seq_length = key_length = VLBertTester.seq_length
    num_hidden_layers = 6  # attention maps: two layers of each stream, and the co-attention both ways
    skips = {"test_num_layers_is_small": "the number is that of the attention maps; the model has two layers"}
    base_states_types = 2
    expected_num_hidden_layers = 4  # states of the text: embeddings, two layers, the co-attention

    fields = {
        "num_hidden_layers": 2,
        "v_feature_size": 16,
        "v_target_size": 9,
        "v_hidden_size": 24,
        "v_num_hidden_layers": 2,
        "v_num_attention_heads": 4,
        "v_intermediate_size": 29,
        "bi_hidden_size": 40,
        "bi_num_attention_heads": 4,
        "t_biattention_id": [1],
        "v_biattention_id": [1],
        "num_gqa_labels": 3,
    }


class LXMERTTester(ViLBertTester):
    """Two streams; in the cross layers each also attends to itself."""

    config_class = LXMERTConfig
    num_hidden_layers = 6  # attention maps: one layer of each stream, and the four calls of a cross layer
    expected_num_hidden_layers = 3  # states of the text: embeddings, a layer, the cross layer

    fields = {
        "l_layers": 1,
        "r_layers": 1,
        "x_layers": 1,
        "visual_feat_dim": 16,
        "num_object_labels": 9,
        "num_attr_labels": 5,
        "num_qa_labels": 4,
    }


# A new family has its line here: what makes its configuration and the inputs of its base model.
TESTERS = {
    "vl_bert": VLBertTester,
    "visualbert": VisualBERTTester,
    "vilbert": ViLBertTester,
    "lxmert": LXMERTTester,
}


class Case(NamedTuple):
    """A class under test, in one configuration; `skips` says why tests cannot apply, by a pattern of their names."""

    model_class: type[PreTrainedModel]
    tester_class: type[VLBertTester]
    variant: str = ""
    config: dict[str, Any] = {}
    skips: dict[str, str] = {}


# These are skipped by transformers too, but for reasons that would be wrong or unclear here.
SKIPS = {
    "test_resize_position_vector_embeddings": "like BERT, it has no resize_position_embeddings",
    "test_sdpa_can_dispatch_composite_models": "it is not made of several models",
    "test_model_rope_*": "it has no rotary position embedding",
    "test_vision_axial_rope": "it has no rotary position embedding",
}
NO_LOSS = {**SKIPS, "test_training*": "a base model has no loss"}
NO_GROUNDING_LOSS = {
    **SKIPS,
    "test_training_gradient_checkpointing*": (
        "every weight is to have a gradient, but the heads for grounding and boxes get their losses from a method of "
        "attention_supervision, not from the model"
    ),
}

PIXELS = {
    **SKIPS,
    "test_eager_matches_sdpa_inference*": (
        "the test fills the batch up with random numbers, also for image sizes, which the model refuses"
    ),
}

# Branches that the defaults leave.
FUSED = {"pooler_size": 20, "pooler_act": "relu", "fusion_method": "mul"}
VARIANTS = (
    Case(VLBertModel, VLBertTester, "projected", {"visual_size": 24, "visual_norm": False}, NO_LOSS),
    Case(VLBertForPreTraining, VLBertTester, "relationship", {"relationship_head": True}, SKIPS),
    Case(
        VLBertForVGP,
        VLBertTester,
        "grounding",
        {"grounding_head": True, "identification_pooling": "cls"},
        NO_GROUNDING_LOSS,
    ),
    Case(VLBertForVGP, VLBertTester, "boxes", {"box_layer": 0}, NO_GROUNDING_LOSS),
    Case(VLBertForVisualQuestionAnswering, VLBertTester, "2fc", {"answer_head": "2fc"}, SKIPS),
    Case(VLBertForReferringExpression, PixelTester, "pixels", skips=PIXELS),
    Case(VisualBERTForVGP, VisualBERTTester, "boxes", {"box_layer": 0}, NO_GROUNDING_LOSS),
    Case(VisualBERTForPhraseGrounding, VisualBERTTester, "paper", {"phrase_scorer": "self_attention"}, SKIPS),
    Case(VisualBERTForPreTraining, VisualBERTTester, "fused", FUSED, SKIPS),
    Case(VisualBERTForMultipleChoice, VisualBERTTester, "fused", FUSED, SKIPS),
    Case(LXMERTForPreTraining, LXMERTTester, "fused", {**FUSED, "visual_pos_dim": 5}, SKIPS),
    Case(LXMERTForVisualQuestionAnswering, LXMERTTester, "fused", FUSED, SKIPS),
)
# Every class of every family, and the variants.
CASES = (
    *(
        Case(model_class, TESTERS[name], skips=SKIPS if head_of(model_class) else NO_LOSS)
        for name, family in FAMILIES.items()
        for model_class in dict.fromkeys(family.classes.values())
    ),
    *VARIANTS,
)

# Some of the tests run on base models only and know them by this table of transformers' own.
MODEL_MAPPING_NAMES.update(
    {family.config_class.model_type: family.base_model.__name__ for family in FAMILIES.values()}
)


class CommonTests(ModelTesterMixin):
    """The common tests for one case."""

    case: Case

    def setUp(self):
        self.model_tester = self.case.tester_class(self.case.config, self.case.model_class.__name__.endswith("Model"))
        self.all_model_classes = (self.case.model_class,)
        self.additional_model_inputs = self.model_tester.region_inputs
        for pattern, reason in {**self.case.skips, **self.model_tester.skips}.items():
            if fnmatch.fnmatch(self._testMethodName, pattern):
                self.skipTest(reason)

    def _prepare_for_class(self, inputs_dict, model_class, return_labels=False):
        inputs = super()._prepare_for_class(inputs_dict, model_class)
        inputs = self.model_tester.shape_inputs(model_class, inputs)
        # Some tests enlarge the batch first.
        batch_size = len(next(iter(inputs.values())))
        inputs.update(self.model_tester.make_class_inputs(model_class, batch_size))
        if return_labels:
            inputs.update(self.model_tester.make_labels(model_class))
        return inputs


# Heads have the attention and the loading of their base model, which is tested in all number formats.
OF_BASE_MODELS = ("test_eager_matches_sdpa_inference_*_[bf]*16_*", "test_bc_torch_dtype")


def left_out(model_class):
    """The tests that a class does not have, as attributes without a value."""
    names = [name for pattern in OF_BASE_MODELS for name in fnmatch.filter(dir(CommonTests), pattern)]
    return dict.fromkeys(names if head_of(model_class) else ())


for case in CASES:
    name = f"{case.model_class.__name__}Test{case.variant and '_' + case.variant}"
    bases = (CommonTests, unittest.TestCase)
    globals()[name] = type(name, bases, {"case": case, "__module__": __name__, **left_out(case.model_class)})
    del name


class ConfigurationTest(unittest.TestCase):
    """Saving, loading and common fields of every configuration class."""

    def test_every_family(self):
        for name, family in FAMILIES.items():
            with self.subTest(name):
                tester = ConfigTester(self, config_class=family.config_class, hidden_size=36, num_attention_heads=4)
                tester.run_common_tests()
