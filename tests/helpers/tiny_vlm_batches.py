# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""Batches of the small vision-language models with phrases, and their eager maps."""

import numpy as np

from grounded_attention.supervision.supervise import find_language_model
from tests.helpers.tiny_vlm_models import image_maps, make_model
from tests.helpers.tiny_vlm_processors import ANSWERERS, make_processor, wrap


def make_batch(model_type, padding_side):
    """A model, its inputs, and the whole batch: two examples of different length, the second with two images."""
    processor = make_processor(model_type, padding_side)
    generator = np.random.default_rng(3)
    images = []
    for width, height in [(53, 37), (31, 64), (40, 20)]:
        images.append(generator.integers(0, 255, (height, width, 3), dtype=np.uint8))
    dog = {"sentence": 0, "start": 0, "end": 5, "boxes": [[0.3, 0.0, 0.8, 0.6]]}
    cat = {"sentence": 0, "start": 21, "end": 30, "boxes": [[0.41, 0.4, 0.42, 0.45], [0.0, 0.5, 0.5, 1.0]]}
    balls = {"sentence": 0, "start": 4, "end": 13, "boxes": [[0.0, 0.0, 0.6, 1.0]], "image": 1}
    texts = ["a dog runs after the small cat .", "two red balls"]
    grounding = wrap(processor, model_type)
    if model_type in ANSWERERS:
        answered = [[{**each, "sentence": 1, "image": 0} for each in phrases] for phrases in ([dog, cat], [balls])]
        batch = grounding(["what is this ?"] * 2, texts, images=[images[:1], images[1:2]], phrases=answered)
    else:
        batch = grounding(texts, images=[images[:1], images[1:]], phrases=[[dog, cat], [balls]])
    return make_model(model_type, processor.tokenizer), grounding.model_inputs(batch), dict(batch)


def eager_maps(model, inputs):
    """The attention of all rows on the image tokens, of eager attention of the language model."""
    # Not of the vision tower: Emu 3 would round to other codes, and its words read another image.
    language = find_language_model(model)
    before = language.config._attn_implementation  # Inkling 2 has no other
    language.set_attn_implementation("eager")
    outputs = model(**inputs, output_attentions=True)
    language.set_attn_implementation(before)
    return image_maps(outputs, model, inputs)
