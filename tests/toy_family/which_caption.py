# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""A toy task, which caption describes the image; `test_toy_family.py` puts it into a copy of `tasks/`."""

import torch

from grounded_attention.metrics.classification import ClassificationAccuracy
from grounded_attention.pages.failures import Judged

from .judges import classified
from .task import TEXT_AND_REGIONS, Task, classification, seen_arguments


class WhichCaption(Task):
    name = "which_caption"
    title = "choosing captions"
    builder = "vgp"
    columns = ("image_id", "captions", "phrases", "identification_label")
    head = "vgp"
    model_inputs = (*TEXT_AND_REGIONS, "phrase_mask")
    losses = (classification("choice", "identification_logits", "identification_labels"),)
    example = """with torch.no_grad():
    best = model(**processor(caption, "{other}", **seen)).identification_logits[0].argmax().item()
print("the caption chosen:", ("both", "the first", "the second")[best])"""

    def metrics(self):
        return [ClassificationAccuracy("choice", "identification_logits", "identification_labels")]

    def collate(self, examples, processor):
        seen = seen_arguments(examples.images, examples.regions)
        texts, pairs = zip(*[row["captions"] for row in examples.rows], strict=True)
        phrases = [row["phrases"] for row in examples.rows]
        labels = torch.tensor([row["identification_label"] for row in examples.rows])
        inputs = processor(text=list(texts), text_pair=list(pairs), phrases=phrases, return_tensors="pt", **seen)
        return {**inputs, "identification_labels": labels}

    def judge(self, outputs, batch, rows, context):
        for row, shares in zip(rows, outputs.identification_logits.softmax(-1), strict=True):
            fields = classified(shares, row["identification_label"], ("both", "the first", "the second"))
            yield Judged(row["example_id"], row["image_id"], "choice", **fields)


TASK = WhichCaption()
