# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""Phrase grounding (Flickr30K Entities; VisualBERT, appendix B.4): predict the region of each phrase in a caption."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Any

import datasets
import numpy as np
import torch
from annotated_types import Ge
from torch import Tensor

from grounded_attention.metrics.phrase_grounding import PROTOCOLS
from grounded_attention.metrics.phrase_recall import PhraseRecall
from grounded_attention.modeling.task_losses import grounding_divergence_sum
from grounded_attention.utils.schema import Of, Section

from .caption_rows import KEPT, phrases_with_boxes
from .judges import judge_phrases
from .task import (
    TEXT_AND_REGIONS,
    Batch,
    Examples,
    LossComponent,
    Task,
    identify,
    region_arguments,
)


@dataclass(frozen=True)
class PhraseGroundingOptions(Section):
    """Options of the task."""

    protocol: Annotated[str, Of(PROTOCOLS)] = "proposal"
    max_text_length: Annotated[int, Ge(3)] | None = 128


def to_rows(split: datasets.Dataset) -> datasets.Dataset:
    """Makes one row per caption that has phrases with boxes: `{image_id, example_id, text, phrases}`, and `KEPT` ones.

    `phrases` contains the phrases with at least one box, each with `text`, `start`, `end`, `types` and `boxes`.
    Captions that do not describe the image are left out.
    """
    if not {"captions", "entities"} <= set(split.column_names):
        raise ValueError(
            f"the rows have the columns {', '.join(split.column_names)}; phrase grounding needs captions and "
            "entities: use the builder flickr30k_entities"
        )
    return split.map(_flatten, batched=True, batch_size=100, remove_columns=split.column_names)


def _flatten(images: Mapping[str, Sequence[Any]]) -> dict[str, list]:
    kept = [name for name in KEPT if name in images]
    rows: dict[str, list] = {name: [] for name in (*kept, "example_id", "text", "phrases")}
    columns = [images[name] for name in (*kept, "captions", "entities")]
    for *values, captions, entities in zip(*columns, strict=True):
        boxes = {entity["entity_id"]: entity["boxes"] for entity in entities}
        for caption in captions:
            phrases = phrases_with_boxes(caption, boxes, ("text", "start", "end", "types"))
            if caption.get("related", True) and phrases:
                found = (*values, caption["caption_id"], caption["text"], phrases)
                for name, value in zip(rows, found, strict=True):
                    rows[name].append(value)
    return rows


def collate(examples: Examples, processor: Any, options: PhraseGroundingOptions) -> dict[str, Any]:
    """Makes a batch of captions with phrases."""
    rows, regions = examples.rows, examples.regions
    if regions is None:
        raise ValueError("phrase grounding needs regions: set data.regions to a region table")
    spans = [row["phrases"] for row in rows]
    inputs = processor(
        text=[row["text"] for row in rows],
        phrases=spans,
        max_length=options.max_text_length,
        return_tensors="pt",
        **region_arguments(regions),
    )
    gold = [[(np.asarray(p["boxes"], dtype=np.float32), tuple(p["types"])) for p in row["phrases"]] for row in rows]
    return {**inputs.reported(), **identify(rows), "gold": gold}


def grounding_loss(outputs: Any, batch: Batch) -> Tensor:
    """Sums over phrases the divergence from the uniform distribution over regions of the phrase (public code).

    A phrase without gold regions adds 0.
    """
    return grounding_divergence_sum(outputs.logits, batch["phrase_regions"])[0]


def configure(task: Task, options: PhraseGroundingOptions, config: Any) -> Task:
    """Returns the task with the metric for the protocol."""
    return replace(task, metrics=lambda: [PhraseRecall(options.protocol)])


# Code for model cards, see `Task.example`.
EXAMPLE = """inputs = processor(caption, phrases=[{{"text": phrase}}], **seen)
with torch.no_grad():
    scores = model(**inputs).logits[0, 0][inputs["region_candidate_mask"][0]]
print(f"{{phrase}}: box {{boxes[scores.argmax()]}}")"""

TASK = Task(
    name="phrase_grounding",
    title="phrase grounding",
    builder="flickr30k_entities",
    columns=("example_id", "image_id", "text", "phrases"),
    head="phrase_grounding",
    model_inputs=(*TEXT_AND_REGIONS, "phrase_mask"),
    # The sum is divided by the number of captions, not of phrases, as in the public code.
    losses=(LossComponent("grounding", grounding_loss, lambda batch: torch.tensor(len(batch["input_ids"]))),),
    metrics=lambda: [PhraseRecall()],
    collate=collate,
    options=PhraseGroundingOptions,
    to_rows=to_rows,
    configure=configure,
    needs_regions=True,
    judge=judge_phrases,
    example=EXAMPLE,
)
