# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""Rows of `grounded_rows` go straight into the collator: texts, chats with a literal `<image>`, several images."""

import pytest
import torch
import yaml
from PIL import Image

from grounded_attention import GroundingCollator, grounded_rows
from tests.helpers.tiny_vlm_processors import make_processor

BOX = [0.6, 0.6, 0.95, 0.95]
ROWS = """
a text: {text: the dog, bbox: [0.6, 0.6, 0.95, 0.95]}
messages:
  messages: [{role: user, content: "Where?"}, {role: assistant, content: the dog}]
  phrases: [{text: the dog, boxes: [[0.6, 0.6, 0.95, 0.95]]}]
a literal place:
  messages: [{role: user, content: "<image>\\nWhere is the dog?"}, {role: assistant, content: Here.}]
  phrases: [{text: the dog, boxes: [[0.6, 0.6, 0.95, 0.95]]}]
an answer after it:
  messages: [{role: user, content: "<image>\\nWhere is the dog?"}, {role: assistant, content: See the dog.}]
  phrases: [{text: the dog, sentence: 1, start: 4, end: 11, boxes: [[0.6, 0.6, 0.95, 0.95]]}]
"""
ROWS = yaml.safe_load(ROWS)


@pytest.mark.parametrize("case", ROWS)
def test_a_row(case):
    processor = make_processor("llava")
    rows = list(grounded_rows([{"image": Image.new("RGB", (40, 40)), **ROWS[case]}]))
    batch = GroundingCollator(processor)(rows)
    assert batch["phrase_mask"].sum() > 0
    assert batch["phrase_regions"].sum() > 0
    assert torch.isfinite(batch["phrase_regions"]).all()
    tokens = batch["input_ids"][0][batch["text_positions"][0]]
    assert "dog" in processor.tokenizer.decode(tokens[batch["phrase_mask"][0, 0]])
    assert "<image>\n" not in processor.tokenizer.decode(tokens)


def test_two_images():
    images = [Image.new("RGB", (40, 40)), Image.new("RGB", (40, 40), "red")]
    talk = [{"role": "user", "content": "<image><image>Compare."}, {"role": "assistant", "content": "the dog"}]
    phrases = [{"text": "the dog", "image": 1, "boxes": [BOX]}]
    rows = list(grounded_rows([{"images": images, "messages": talk, "phrases": phrases}]))
    batch = GroundingCollator(make_processor("llava"))(rows)
    gold = batch["phrase_regions"][0, 0] > 0
    assert gold.any()
    assert not gold[: len(gold) // 2].any()
