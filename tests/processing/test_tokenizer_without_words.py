# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""A folder without the words of its tokenizer, which transformers loads with special tokens alone, is refused."""

import pytest
from transformers import AutoProcessor, BertTokenizer, Qwen2Tokenizer, T5Tokenizer

from grounded_attention.families import FAMILIES
from grounded_attention.processing import PatchGroundingProcessor
from grounded_attention.processing.region_detection import load_detector
from grounded_attention.processing.sequence_layouts import check_tokenizer
from grounded_attention.training.experiments.models import make_processor
from grounded_attention.training.recipes.recipe import Model, RecipeError
from tests.helpers.processing_helpers import make_tokenizer
from tests.helpers.tiny_detectors import save_detector
from tests.helpers.tiny_vlm_files import save_llava


@pytest.mark.parametrize("make", [BertTokenizer, Qwen2Tokenizer, T5Tokenizer])
def test_special_tokens_alone_are_no_words(make):
    with pytest.raises(ValueError, match=r"special tokens: tokenizer.json is missing"):
        check_tokenizer(make())


@pytest.mark.parametrize("family", FAMILIES)
def test_region_models(tmp_path, family):
    processor_class = FAMILIES[family].processor_class
    processor_class(make_tokenizer()).save_pretrained(tmp_path)
    assert processor_class.from_pretrained(tmp_path).tokenizer.get_vocab() == make_tokenizer().get_vocab()
    (tmp_path / "tokenizer.json").unlink()
    loads = (processor_class.from_pretrained, AutoProcessor.from_pretrained)
    for load in loads:
        with pytest.raises(ValueError, match=f"{tmp_path} has no words"):
            load(tmp_path)
    for place in ({"source": str(tmp_path)}, {"tokenizer": str(tmp_path)}):
        with pytest.raises(RecipeError, match=f"model.*{tmp_path}"):
            make_processor(Model(family=family, **place))


def test_vision_language_models(tmp_path):
    processor = AutoProcessor.from_pretrained(save_llava(tmp_path))
    words = Qwen2Tokenizer()
    words.add_tokens(["<image>"], special_tokens=True)
    processor.tokenizer = words
    with pytest.raises(ValueError, match="has no words"):
        PatchGroundingProcessor(processor)


def test_zero_shot_detectors(tmp_path):
    name = save_detector("grounding_dino", tmp_path)
    (name / "tokenizer.json").unlink()
    with pytest.raises(ValueError, match=r"cannot be used: .* has no words"):
        load_detector(str(name), queries=["a cat"])
