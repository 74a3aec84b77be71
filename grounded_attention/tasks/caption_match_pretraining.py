# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""Pre-training of VisualBERT (appendix A.3): masked words with unmasked images, and whether text and image match.

With captions, each caption gets a second caption: one of the same image, or half of the time one of another image.
With the data of a task, texts are used as they are: questions, captions, a question of VCR with its correct choice, or
statements of NLVR2, which match if they are true.
"""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any

import datasets
import numpy as np
import torch
from annotated_types import Ge

from grounded_attention.metrics.classification import ClassificationAccuracy
from grounded_attention.modeling.task_losses import UNLABELLED
from grounded_attention.tasks.pretraining import draw_other_row
from grounded_attention.utils.named_types import Columns, Fields, Row
from grounded_attention.utils.schema import Section, Share, Weight

from .caption_rows import to_rows
from .masked_task import WORDS, MaskedTask, word_labels
from .masking import WORD_PROBABILITY, mask_words, word_masker
from .task import TEXT_AND_REGIONS, Examples, LossComponent, Metric, joined_arguments, region_arguments
from .vcr import pair_tags


@dataclass(frozen=True)
class CaptionMatchOptions(Section):
    """Options of the task."""

    second_caption: bool = True
    exchanged: Share = 0.5
    word_probability: Share = WORD_PROBABILITY
    max_text_length: Annotated[int, Ge(5)] | None = 128
    relationship_weight: Weight = 1.0


class CaptionMatchPretraining(MaskedTask):
    """Masked words of one or two texts, and the match."""

    name = "caption_match_pretraining"
    builder = "coco_captions"
    model_inputs = (*TEXT_AND_REGIONS, "token_regions", "image_text_alignment", "phrase_mask")
    Options = CaptionMatchOptions

    @property
    def losses(self) -> tuple[LossComponent, ...]:
        return (WORDS, self.relationship)

    def metrics(self) -> list[Metric]:
        return [
            ClassificationAccuracy("words", "mlm_logits", word_labels),
            ClassificationAccuracy("relationship", "relationship_logits", "relationship_labels"),
        ]

    def model_config(self) -> Fields:
        return {"relationship_head": True}

    def to_rows(self, split: Any, grounded: bool = False) -> Any:
        """Makes one row per text: `image_id` (or `image_ids`), `caption_id`, `text`, and some of the columns below.

        `others`: the other captions of the image. `match`: the label of a statement about its images. `second`: the
        correct choice for a question of VCR, with `tags`, the objects that words of both texts name. Rows of VCR
        without a label are left out. `grounded`: captions with their `phrases` and `other_phrases`, those of the other
        captions, if the split has phrases with boxes (see `caption_rows.to_rows`).
        """
        if {"choices", "label"} <= set(split.column_names):
            labelled = [place for place, label in enumerate(split["label"]) if label >= 0]
            return split.select(labelled).map(_with_choice, remove_columns=split.column_names)
        if not {"example_id", "text"} <= set(split.column_names):
            return _with_others(to_rows(split, grounded))
        renamed = {"example_id": "caption_id"} | ({"label": "match"} if "image_ids" in split.column_names else {})
        kept = [name for name in ("image_id", "image_ids", "text", *renamed) if name in split.column_names]
        return split.select_columns(kept).rename_columns({old: new for old, new in renamed.items() if old in kept})

    def collate(self, examples: Examples, processor: Any) -> Fields:
        """Regions are never masked. All draws for a row use the generator of the row. If the rows have phrases, the
        batch has those of both captions; a caption of another image has none."""
        rows = examples.rows
        options = self.options
        generators = [examples.generator(row["caption_id"]) for row in rows]
        match = [row.get("match", -1) for row in rows]
        texts = {"text": [row["text"] for row in rows]}
        grounded = examples.regions is not None and "phrases" in rows[0]
        if grounded:
            phrases = [list(row["phrases"] or ()) for row in rows]
        else:
            phrases = None
        if options.second_caption:
            split = examples.split or rows
            drawn = [_second(row, split, options.exchanged, rng) for row, rng in zip(rows, generators, strict=True)]
            texts["text_pair"], match = [text for text, _, _ in drawn], [label for _, label, _ in drawn]
            if phrases is not None:
                phrases = [own + second for own, (_, _, second) in zip(phrases, drawn, strict=True)]
        elif "second" in rows[0]:
            texts["text_pair"] = [row["second"] for row in rows]
        several = "image_ids" in rows[0]
        visual = joined_arguments(examples.regions) if several else region_arguments(examples.regions)
        if "tags" in rows[0] and visual:
            visual["tags"] = [row["tags"] for row in rows]
        if phrases is not None:
            visual["phrases"] = phrases
        batch = processor(**texts, max_length=options.max_text_length, return_tensors="pt", **visual).reported()
        if max(match) >= 0:
            batch["relationship_labels"] = torch.tensor([label if label >= 0 else UNLABELLED for label in match])
        mask_words(batch, word_masker(processor.tokenizer, options.word_probability), generators)
        return batch


def _with_choice(row: Row) -> Fields:
    return {
        "image_id": row["image_id"],
        "caption_id": row["example_id"],
        "text": row["text"],
        "second": row["choices"][row["label"]],
        "tags": pair_tags(row, row["label"]),
    }


def _with_others(rows: datasets.Dataset) -> datasets.Dataset:
    images = rows["image_id"]
    texts = list(rows["text"])
    places: dict[str, list[int]] = defaultdict(list)
    for place, image_id in enumerate(images):
        places[image_id].append(place)
    others = [[k for k in places[image_id] if k != place] for place, image_id in enumerate(images)]
    joined = rows.add_column("others", [[texts[k] for k in own] for own in others])
    if "phrases" not in rows.column_names:
        return joined
    phrases = list(rows["phrases"])
    return joined.add_column("other_phrases", [[phrases[k] for k in own] for own in others])


def _second(
    row: Row, split: Sequence[Columns], exchanged: float, rng: np.random.Generator
) -> tuple[str, int, list[Fields]]:
    """Draws a second caption, and returns it with 1 if it is of the same image, else 0, and with its phrases."""
    others = row.get("others") or ()
    if not others:
        raise ValueError(
            f"image {row['image_id']}: {row['text']!r} is its only text: set options.second_caption=false for data "
            "with one text per image"
        )
    if rng.random() < exchanged:
        return draw_other_row(row, split, rng, "options.second_caption")["text"], 0, []
    place = int(rng.integers(len(others)))
    theirs = row.get("other_phrases")
    return others[place], 1, [] if theirs is None else [{**each, "sentence": 1} for each in theirs[place] or ()]


TASK = CaptionMatchPretraining()
