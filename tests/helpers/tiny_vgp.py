# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""A tiny VGP data set and model for the training tests: random words and regions, all of different lengths."""

from dataclasses import dataclass

import numpy as np
from datasets import Dataset
from transformers import BertTokenizer, set_seed

from grounded_attention.modeling import VLBertConfig, VLBertForVGP
from grounded_attention.processing import VLBertProcessor
from grounded_attention.tasks import TASKS
from grounded_attention.training.loop.data import Collator

WORDS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *"abcdefghijklmnop"]
FEATURE_SIZE = 16


@dataclass
class TinyRegions:
    """The fields of a region record that the collator reads."""

    features: np.ndarray
    boxes: np.ndarray
    classes: np.ndarray


class TinyTable(dict):
    """Image id -> regions, with the attributes of a region table that training needs."""

    class_names: tuple[str, ...] = ()

    @property
    def ids(self):
        return list(self)


def tiny_processor():
    tokenizer = BertTokenizer(vocab={word: index for index, word in enumerate(WORDS)})
    return VLBertProcessor(tokenizer, region_feature_size=FEATURE_SIZE)


def tiny_model(seed=0, **config):
    set_seed(seed)
    fields = {
        "vocab_size": len(WORDS),
        "hidden_size": 16,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "intermediate_size": 32,
        "max_position_embeddings": 64,
        "region_feature_size": FEATURE_SIZE,
        "visual_scale_text_init": 0.5,
        "visual_scale_region_init": 0.5,
        "hidden_dropout_prob": 0.0,
        "attention_probs_dropout_prob": 0.0,
        "region_dropout": 0.0,
        "classifier_dropout": 0.0,
        **config,
    }
    return VLBertForVGP(VLBertConfig(**fields))


def tiny_table(images):
    rng = np.random.default_rng(0)
    table = TinyTable()
    for image in range(images):
        count = int(rng.integers(2, 6))
        corner = rng.uniform(0, 0.5, (count, 2))
        boxes = np.concatenate([corner, corner + rng.uniform(0.2, 0.5, (count, 2))], axis=1).astype(np.float32)
        features = rng.random((count, FEATURE_SIZE)).astype(np.float16)
        table[str(image)] = TinyRegions(features, boxes, rng.integers(0, 5, count))
    return table


def tiny_rows(table, seed=1):
    """Makes two rows per image: matching captions with phrases, and a pair with a wrong caption.

    Phrases have different numbers of boxes.
    """
    rng = np.random.default_rng(seed)
    rows = []
    for image, regions in table.items():
        for label in (0, int(rng.integers(1, 3))):
            captions = [" ".join(rng.choice(WORDS[5:], int(rng.integers(3, 8)))) for _ in range(2)]
            matching = (0, 1) if label == 0 else (label - 1,)
            phrases = [phrase for caption in matching for phrase in _phrases(caption, captions[caption], regions, rng)]
            pairs = [{"phrase1": 0, "phrase2": len(phrases) - 1, "label": int(rng.integers(5))}] if label == 0 else []
            rows.append(
                {
                    "example_id": f"{image}-{label}",
                    "image_id": image,
                    "captions": captions,
                    "identification_label": label,
                    "phrases": phrases,
                    "phrase_pairs": pairs,
                }
            )
    return Dataset.from_list(rows)


def _phrases(caption, text, regions, rng):
    words = text.split()
    for start in range(0, len(words) - 1, 2):
        begin = len(" ".join(words[:start])) + (start > 0)
        grounded = rng.random() < 0.7
        boxes = [regions.boxes[int(rng.integers(len(regions.boxes)))].tolist()] if grounded else []
        end = begin + len(words[start]) + 1 + len(words[start + 1])
        yield {
            "sentence": caption,
            "start": begin,
            "end": end,
            "text": text[begin:end],
            "entity": "1",
            "boxes": boxes,
        }


def tiny_batch(rows=None):
    """Makes one batch of the first rows of a tiny data set, or of all sixteen."""
    table = tiny_table(8)
    return Collator(TASKS["vgp"], tiny_processor(), table)(list(tiny_rows(table))[:rows])


def run_supervised(model, method, batch):
    """Runs the model on the batch with the arguments of the method."""
    method.prepare(model)
    given = {name: batch[name] for name in TASKS["vgp"].model_inputs if name in batch}
    return model(**given, **method.forward_kwargs(batch))


def losses_of(model, method, batch):
    return method.losses(run_supervised(model, method, batch), batch)
