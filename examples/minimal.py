# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""Teaches the attention of a small region model from rows of your own, in a plain PyTorch loop (seconds on a CPU)."""

import random

import torch
from transformers import BertTokenizer

from grounded_attention import AttentionGrounding, VLBertProcessor, get_method, grounding_loss
from grounded_attention.modeling import VLBertConfig, VLBertModel

THINGS = ("ball", "bird", "boat", "cat", "dog", "fish", "hat", "tree")
WORDS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "a", "and", *THINGS]
random.seed(0), torch.manual_seed(0)
LOOKS = torch.randn(len(THINGS), 64)  # stands for the features that a detector computes of each thing


def make_row() -> dict:
    """Your row: a text, boxes and features of the regions of its image, and phrases of the text with their boxes."""
    seen = random.sample(range(len(THINGS)), k=5)
    boxes = [[i / 5, 0.4, (i + 1) / 5, 0.6] for i in range(5)]  # x1, y1, x2, y2, divided by width and height
    phrases = [{"text": THINGS[seen[i]], "boxes": [boxes[i]]} for i in random.sample(range(5), k=2)]
    text = f"a {phrases[0]['text']} and a {phrases[1]['text']}"
    return {"text": text, "region_boxes": boxes, "region_features": LOOKS[seen], "phrases": phrases}


def collate(rows: list[dict]) -> dict:
    return processor(**{key: [row[key] for row in rows] for key in rows[0]})


@torch.no_grad()
def pointing() -> str:
    """How often the region that a word attends to most is the one that it names, on rows that are not trained on."""
    measure, batch = AttentionGrounding(rollout=False), collate(test_rows)
    measure.update(model.eval()(**batch, **measure.forward_kwargs(batch)), batch)
    scores = measure.compute(measure.state())
    return f"best head {scores['text_to_region_best_head']:.0%}, chance {scores['text_to_region_chance']:.0%}"


train_rows, test_rows = [make_row() for _ in range(2000)], [make_row() for _ in range(200)]
processor = VLBertProcessor(BertTokenizer(vocab={word: i for i, word in enumerate(WORDS)}), region_feature_size=64)
sizes = {"hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 128}
config = VLBertConfig(vocab_size=len(WORDS), region_feature_size=64, coordinate_dim=8, **sizes)
model = VLBertModel(config)  # or VLBertModel.from_pretrained(...)
method = get_method("direct")
method.prepare(model)  # its attention function now also reports what the loss reads
print("before:", pointing())
optimizer = torch.optim.AdamW(model.train().parameters(), lr=3e-3)
for _ in range(100):
    batch = collate(random.sample(train_rows, k=32))
    outputs = model(**batch, **method.forward_kwargs(batch))
    loss = grounding_loss(method, outputs, batch)  # with the loss of a task: outputs.loss + grounding_loss(...)
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
print("after: ", pointing())
