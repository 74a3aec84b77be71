# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""Tiny models, regions and examples for audits."""

from dataclasses import dataclass

import numpy as np

from grounded_attention.families import FAMILIES, find_family
from grounded_attention.heads.examples import AuditExample
from grounded_attention.processing.phrase import Phrase
from tests.helpers.processing_helpers import make_tokenizer
from tests.helpers.tiny_vgp import tiny_model

FEATURES = 16
LAYERS = 3
HEADS = 2
VOCABULARY = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *"abcdefghijklmnop", *(f"##{x}" for x in "abcdefgh")]


@dataclass
class Record:
    boxes: np.ndarray
    features: np.ndarray
    scores: np.ndarray | None


def make_regions(scores=True):
    rng = np.random.default_rng(3)
    table = {}
    for image in range(7):
        count = int(rng.integers(2, 9))
        corner = rng.uniform(0, 0.5, (count, 2))
        boxes = np.concatenate([corner, corner + rng.uniform(0.2, 0.5, (count, 2))], axis=1).astype(np.float32)
        confidence = rng.random(count).astype(np.float32) if scores else None
        table[f"image{image}"] = Record(boxes, rng.standard_normal((count, FEATURES)).astype(np.float32), confidence)
    return table


def make_examples(regions):
    """Makes two captions per image, with words of one to three pieces.

    The phrases of a caption have one box, two boxes, a box that no region overlaps, and no box.
    """
    rng = np.random.default_rng(4)
    examples = []
    for image, record in regions.items():
        for _ in range(2):
            words = ["".join(rng.choice(list("abcdefgh"), int(rng.integers(1, 4)))) for _ in range(8)]
            caption = " ".join(words)
            phrases = []
            start = 0
            for pair in range(4):
                end = start + len(" ".join(words[2 * pair : 2 * pair + 2]))
                far = np.array([[0, 0, 0.01, 0.01]], np.float32)  # no region overlaps it
                nothing = np.zeros((0, 4), np.float32)
                boxes = [record.boxes[:1], record.boxes[rng.integers(0, len(record.boxes), 2)], far, nothing][pair]
                phrases.append(Phrase("", start, end, boxes=boxes, types=[("x",), ("x", "y"), ("y",), ("z",)][pair]))
                start = end + 1
            examples.append(AuditExample(image, caption, tuple(phrases)))
    return examples


def vl_bert(back_end="sdpa"):
    config = {"num_hidden_layers": LAYERS, "vocab_size": len(VOCABULARY), "initializer_range": 0.6}
    model = tiny_model(seed=5, **config).eval()
    model.set_attn_implementation(back_end)
    return model


def processor_of(model):
    processor = FAMILIES[find_family(model.config.model_type)].processor_class
    return processor(make_tokenizer(VOCABULARY), region_feature_size=FEATURES)
