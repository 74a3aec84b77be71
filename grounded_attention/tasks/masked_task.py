# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""What both tasks of pre-training share: masked words of captions, and whether caption and image match."""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from torch import Tensor

from grounded_attention.pages.failures import Judged
from grounded_attention.pages.overlay import MEANT, Box
from grounded_attention.utils.named_types import Batch

from .judges import JudgeContext, Rows, classified, corners
from .pretraining_losses import RELATIONSHIP
from .task import LossComponent, Task


class MaskedTask(Task):
    """Base class of these tasks; their options have `relationship_weight`, the factor of the loss of the match."""

    title = "pre-training"
    columns = ("image_id", "caption_id", "text")
    head = "pretraining"
    phrases_on_demand = True
    example = """inputs = processor(caption, phrases=[{{"text": "{word}"}}], **seen)
hidden = inputs["phrase_mask"][0, 0]  # the columns of the word
inputs["input_ids"][0, hidden] = processor.tokenizer.mask_token_id
with torch.no_grad():
    best = model(**inputs).mlm_logits[0, hidden].softmax(-1).max(-1)
print(f"in the place of '{word}': {{processor.tokenizer.decode(best.indices)}} ({{best.values[0]:.0%}})")"""

    @property
    def targets(self) -> tuple[str, ...]:
        return ("labels",)

    @property
    def relationship(self) -> LossComponent:
        """The loss of the match."""
        return replace(RELATIONSHIP, weight=self.options.relationship_weight)

    def judge(self, outputs: Any, batch: Batch, rows: Rows, context: JudgeContext) -> Iterator[Judged]:
        """Judges the caption match and the masked words, once per caption, and each masked region."""
        for number, row in enumerate(rows):
            ids = batch["input_ids"][number]
            shown = batch["attention_mask"][number].bool()
            caption = ("caption as read", context.tokenizer.decode(ids[shown][1:-1]))
            common = (row["caption_id"], row["image_id"])
            if batch.get("relationship_labels") is not None:
                probabilities = outputs.relationship_logits[number].float().softmax(-1)
                named = ("caption of another image", "caption of this image")
                fields = classified(probabilities, int(batch["relationship_labels"][number]), named)
                yield Judged(*common, "relationship", **fields, texts=(caption,))
            if batch.get("labels") is not None:
                yield from _words(common, caption, outputs.mlm_logits[number], batch["labels"][number], context)
            if batch.get("masked_regions") is not None:
                yield from _regions(common, caption, outputs, batch, number, context)


def _words(
    common: tuple[str, str], caption: tuple[str, str], logits: Tensor, labels: Tensor, context: JudgeContext
) -> Iterator[Judged]:
    masked = labels >= 0
    if not masked.any():
        return
    confidence, predicted = logits[masked].float().softmax(-1).max(-1)
    right = predicted == labels[masked]
    texts = [" ".join(context.tokenizer.convert_ids_to_tokens(ids.tolist())) for ids in (labels[masked], predicted)]
    score = right.float().mean().item()
    mean_confidence = confidence.mean().item()
    yield Judged(*common, "words", score, mean_confidence, texts[0], texts[1], texts=(caption,))


def _regions(
    common: tuple[str, str],
    caption: tuple[str, str],
    outputs: Any,
    batch: Batch,
    number: int,
    context: JudgeContext,
) -> Iterator[Judged]:
    probs = batch.get("region_label_probs")
    if probs is None:
        labels = batch["region_labels"][number]
        masked = labels >= 0
    else:
        labels = probs[number].argmax(-1)
        masked = (probs[number].sum(-1) - 1).abs() < 0.1
    for place in masked.nonzero()[:, 0].tolist():
        probabilities = outputs.region_logits[number, place].float().softmax(-1)
        gold = int(labels[place])
        best = int(probabilities.argmax())
        names = (context.region(gold), context.region(best))
        yield Judged(
            f"{common[0]}:{place}",
            common[1],
            "regions",
            float(best == gold),
            probabilities[best].item(),
            *names,
            texts=(caption,),
            kinds={"right answer": names[0]},
            chance=1 / len(probabilities),
            worth={names[0]: 1.0},
            boxes=(Box(MEANT, corners(batch["region_boxes"][number, place]), "masked region"),),
        )
