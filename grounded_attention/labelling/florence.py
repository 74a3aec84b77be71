# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""Florence-2 as a grounder: it writes the places of a phrase as text."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor
from transformers import Florence2ForConditionalGeneration

from grounded_attention.processing.region_detection import dictionary_digest, model_provenance
from grounded_attention.utils.named_types import Fields

from . import FLORENCE
from .grounder import Candidates, Example, load_grounding_model

TASK = "<CAPTION_TO_PHRASE_GROUNDING>"
MAX_NEW_TOKENS = 64  # a box is four tokens
STEPS = 1000  # Florence-2 divides each side of the image into this number of places


class FlorenceGrounder:
    """Florence-2 with its task of phrase grounding; each phrase is a prompt of its own, decoded greedily.

    Florence-2 gives no scores. The score of all boxes of a phrase is the geometric mean of the probabilities of the
    tokens that it wrote.
    """

    reads_images = True

    def __init__(self, model: Any, processor: Any, name: str = "", batch_size: int = 8) -> None:
        self.model = model.eval()
        self.processor = processor
        self.batch_size = batch_size
        self.provenance: Fields = {
            "kind": "florence-2",
            **model_provenance(model, name),
            "processor": dictionary_digest(processor.image_processor.to_dict()),
            "task": TASK,
        }

    def ground(self, examples: Sequence[Example]) -> list[list[Candidates]]:
        asked = [(example, phrase.text) for example in examples for phrase in example.phrases]
        candidates: list[Candidates] = []
        for start in range(0, len(asked), self.batch_size):
            candidates += self._run(asked[start : start + self.batch_size])
        each = iter(candidates)
        return [[next(each) for _ in example.phrases] for example in examples]

    @torch.no_grad()
    def _run(self, asked: Sequence[tuple[Example, str]]) -> list[Candidates]:
        inputs = self.processor(
            text=[TASK + text for _, text in asked],
            images=[example.image for example, _ in asked],
            padding=True,
            return_tensors="pt",
        )
        generated = self.model.generate(
            **inputs.to(self.model.device, self.model.dtype),
            max_new_tokens=MAX_NEW_TOKENS,
            do_sample=False,
            num_beams=1,
            return_dict_in_generate=True,
            output_logits=True,
        )
        logits = [step.float().cpu() for step in generated.logits]
        padding = self.processor.tokenizer.pad_token_id
        scores = written_probability(generated.sequences.cpu(), logits, padding)
        candidates = []
        for (example, _), sequence, score in zip(asked, generated.sequences.cpu(), scores.tolist(), strict=True):
            # The processor rounds boxes down to whole pixels; with this size it returns the steps that were written.
            answer = self.processor.post_process_generation(sequence=sequence, task=TASK, image_size=(STEPS, STEPS))
            steps = np.asarray(answer[TASK]["bboxes"], dtype=np.float32).reshape(-1, 4)
            size = np.array([example.width, example.height] * 2)
            boxes = ((steps + 0.5) * size / STEPS).astype(np.float32)
            # The model may write the corners in any order.
            boxes = boxes[(boxes[:, :2] < boxes[:, 2:]).all(axis=1)]
            candidates.append(Candidates(boxes, np.full(len(boxes), score, dtype=np.float32)))
        return candidates


def written_probability(sequences: Tensor, logits: Sequence[Tensor], padding: int) -> Tensor:
    """The geometric mean of the probabilities of the tokens that a model wrote."""
    tokens = sequences[:, sequences.shape[1] - len(logits) :]
    log_probabilities = torch.stack(list(logits), dim=1).log_softmax(-1)  # (B, steps, V)
    chosen = log_probabilities.gather(-1, tokens[..., None])[..., 0]
    written = tokens != padding
    return ((chosen * written).sum(-1) / written.sum(-1).clamp(min=1)).exp()


def load_florence(name_or_path: str, batch_size: int = 8, **options: Any) -> FlorenceGrounder:
    """Loads Florence-2 from the Hub or a folder, in transformers' format ("florence-community/Florence-2-base"); the
    `options` are those of `load_grounding_model`.
    """
    model, processor = load_grounding_model(Florence2ForConditionalGeneration, (FLORENCE,), name_or_path, **options)
    return FlorenceGrounder(model, processor, name_or_path, batch_size)
