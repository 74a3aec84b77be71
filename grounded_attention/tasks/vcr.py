# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""Visual commonsense reasoning (VL-BERT, section 4.2.1): choose one of four answers, or reasons, for a question."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import fmean
from typing import Annotated, Any

import numpy as np
import torch
from annotated_types import Ge
from torch import Tensor

from grounded_attention.metrics.item_scores import ItemScores, Scored
from grounded_attention.modeling.task_losses import UNLABELLED, choice_sum, count_labels, cross_entropy_sum
from grounded_attention.pages.failures import Alternative, Judged
from grounded_attention.pages.overlay import MEANT, Box
from grounded_attention.utils.named_types import Batch, Fields, Row
from grounded_attention.utils.schema import Section

from .judges import JudgeContext, Rows, classified
from .task import (
    TEXT_AND_REGIONS,
    Examples,
    LossComponent,
    Metric,
    Task,
    choice_scores,
    classification,
    identify,
    known_labels,
    seen_arguments,
)

# The 80 categories of COCO in order; class k of a detector with background is category k - 1.
COCO_CATEGORIES = (
    "person bicycle car motorcycle airplane bus train truck boat traffic_light fire_hydrant stop_sign parking_meter "
    "bench bird cat dog horse sheep cow elephant bear zebra giraffe backpack umbrella handbag tie suitcase frisbee "
    "skis snowboard sports_ball kite baseball_bat baseball_glove skateboard surfboard tennis_racket bottle wine_glass "
    "cup fork knife spoon bowl banana apple sandwich orange broccoli carrot hot_dog pizza donut cake chair couch "
    "potted_plant bed dining_table toilet tv laptop mouse remote keyboard cell_phone microwave oven toaster sink "
    "refrigerator book clock vase scissors teddy_bear hair_drier toothbrush"
).split()
# The files of VCR write the names without their spaces.
CLASSES = {name.replace("_", joint): number for number, name in enumerate(COCO_CATEGORIES, 1) for joint in (" ", "")}
SPECIALS = 3  # [CLS] question [SEP] choice [SEP]


@dataclass(frozen=True)
class VCROptions(Section):
    """Options of the task."""

    region_classes: bool = True
    max_text_length: Annotated[int, Ge(2)] | None = 64


class VCR(Task):
    """A choice among texts, some words of which name objects by number."""

    name = "vcr"
    title = "visual commonsense reasoning"
    builder = "vcr"
    columns = ("example_id", "image_id", "objects", "boxes", "text", "choices", "phrases", "label")
    head = "multiple_choice"
    model_inputs = (*TEXT_AND_REGIONS, "token_regions", "image_text_alignment")
    Options = VCROptions
    hub_task = "multiple-choice"
    example = """answers = ["{word}", "{other}"]
inputs = processor([caption] * 2, answers, **{{name: [value] * 2 for name, value in seen.items()}})
texts = {{name: inputs[name][None] for name in ("input_ids", "attention_mask", "token_type_ids")}}
regions = {{name: inputs[name][:1] for name in inputs if name.startswith(("region", "pixel", "image_sizes"))}}
with torch.no_grad():
    shares = model(**texts, **regions).logits[0].softmax(-1).tolist()
for answer, share in zip(answers, shares):
    print(f"{{answer}}: {{share:.0%}}")"""

    @property
    def losses(self) -> tuple[LossComponent, ...]:
        softmax = self.config is not None and self.config.choice_loss == "softmax"
        return (SOFTMAX if softmax else SIGMOID, REGIONS)

    def metrics(self) -> list[Metric]:
        return [ItemScores("vcr", score)]

    def check_config(self) -> None:
        if self.options.region_classes and not hasattr(self.config, "choice_region_classes"):
            raise ValueError(
                f"models of the family {self.config.model_type!r} do not predict the categories of objects: set "
                "options.region_classes=false"
            )

    def trained_options(self, config: Any, grounded: bool) -> Fields:
        return {"region_classes": False}  # an evaluation does not use the categories of objects

    def collate(self, examples: Examples, processor: Any) -> Fields:
        rows = examples.rows
        regions = examples.regions
        for row, record in zip(rows, regions or (), strict=regions is not None):
            if len(record.boxes) != len(row["boxes"]):
                raise ValueError(
                    f"image {row['image_id']}: the region table has {len(record.boxes)} regions, but the image of the "
                    f"question has {len(row['boxes'])} objects, and its words refer to objects by number: extract "
                    "features of exactly these boxes, in the same order"
                )
        pairs = [(row, number) for row in rows for number in range(len(row["choices"]))]
        tagged = regions is not None or examples.images is not None
        texts = _texts(pairs, processor, self.options.max_text_length, tagged)
        cut = {"cut_tokens": texts.pop("cut_tokens")} if "cut_tokens" in texts else {}
        batch = cut | {name: values.unflatten(0, (len(rows), -1)) for name, values in texts.items()}
        if tagged:
            visual = seen_arguments(examples.images, regions or [_Boxes(row) for row in rows])
            inputs = processor(text=[row["text"] for row in rows], return_tensors="pt", **visual)
            batch |= {name: values for name, values in inputs.items() if name not in batch}
            if self.options.region_classes:
                batch["region_class_labels"] = _class_labels(batch["region_candidate_mask"], rows)
        return {**batch, **identify(rows), "labels": known_labels(rows)}

    def judge(self, outputs: Any, batch: Batch, rows: Rows, context: JudgeContext) -> Iterator[Judged]:
        logits = outputs.logits.float()
        if context.config.choice_loss == "sigmoid":
            confidences = logits.sigmoid()
        else:
            confidences = logits.softmax(-1)
        for row, probabilities in zip(rows, confidences, strict=True):
            named = row["choices"]
            fields = classified(probabilities, row["label"], named) | {"kinds": {}, "worth": {}}
            best = int(probabilities.argmax())
            names = row.get("objects") or [""] * len(row["boxes"])
            boxes = []
            for box, name in zip(row["boxes"], names, strict=True):
                boxes.append(Box(MEANT, tuple(box), name))
            choices = []
            for number, text in enumerate(named):
                choices.append(Alternative(text, number == row["label"], number == best))
            yield Judged(
                row["example_id"],
                row["image_id"],
                "vcr",
                **fields,
                texts=(("question", row["text"]),),
                boxes=tuple(boxes),
                choices=tuple(choices),
            )


class _Boxes:
    """The boxes of a row, used instead of a region record for models that read pixels."""

    def __init__(self, row: Row):
        self.boxes = np.asarray(row["boxes"], dtype=np.float32).reshape(-1, 4)


def _texts(pairs: Sequence[Any], processor: Any, length: int | None, tagged: bool) -> dict[str, Tensor]:
    """The text inputs of each question with each choice; tags need only the boxes of regions, so features are 0."""
    visual: Fields = {}
    if tagged:
        boxes = [_Boxes(row).boxes for row, _ in pairs]
        visual["region_boxes"] = boxes
        visual["region_features"] = [np.zeros((len(b), processor.region_feature_size), np.float16) for b in boxes]
        visual["tags"] = [pair_tags(row, number) for row, number in pairs]
    inputs = processor(
        text=[row["text"] for row, _ in pairs],
        text_pair=[row["choices"][number] for row, number in pairs],
        max_length=None if length is None else length + SPECIALS,
        return_tensors="pt",
        **visual,
    ).reported()
    names = ("cut_tokens", "input_ids", "attention_mask", "token_type_ids", "token_regions", "image_text_alignment")
    return {name: inputs[name] for name in names if name in inputs}


def pair_tags(row: Row, number: int) -> list[Fields]:
    """The phrases of the question and of one of its choices, as those of a pair of texts."""
    named = [phrase for phrase in row["phrases"] if phrase["sentence"] in (0, number + 1)]
    return [{**phrase, "sentence": min(phrase["sentence"], 1)} for phrase in named]


def _class_labels(candidates: Tensor, rows: Sequence[Row]) -> Tensor:
    """(B, R) int64: the class of each object, 0 for the whole image, -100 for padding."""
    labels = torch.full(candidates.shape, UNLABELLED)
    for target, columns, row in zip(labels, candidates, rows, strict=True):
        unknown = [name for name in row["objects"] if name not in CLASSES]
        if unknown:
            raise ValueError(
                f"image {row['image_id']}: the object {unknown[0]!r} is not one of the 80 categories of COCO, which "
                "options.region_classes predicts: set options.region_classes=false"
            )
        target[0] = 0
        target[columns] = torch.tensor([CLASSES[name] for name in row["objects"]])[: int(columns.sum())]
    return labels


def sigmoid_loss(outputs: Any, batch: Batch) -> Tensor:
    """Averages the binary cross-entropy over choices and sums it over questions (public code)."""
    labelled = batch["labels"] >= 0
    return choice_sum(outputs.logits[labelled], batch["labels"][labelled], "sigmoid")[0]


def region_class_loss(outputs: Any, batch: Batch) -> Tensor:
    """Sums the cross-entropy of the classes of regions, for each choice."""
    logits: Any = getattr(outputs, "region_class_logits", None)
    labels = batch["region_class_labels"]
    known = 0 if logits is None else logits.shape[-1]
    classes = int(labels.max()) + 1
    if classes > known:
        raise ValueError(
            f"the regions have {classes} classes (with the whole image), but model.config.choice_region_classes is "
            f"{known or None}: set it to the number of classes, or set options.region_classes=false"
        )
    return cross_entropy_sum(logits, labels[:, None].expand(logits.shape[:3]))[0]


def _count_regions(batch: Batch) -> Tensor | None:
    labels = batch.get("region_class_labels")
    if labels is None:
        return None
    return count_labels(labels) * batch["input_ids"].shape[1]


SOFTMAX = classification("choices", "logits", "labels")  # as in the paper
SIGMOID = replace(SOFTMAX, total=sigmoid_loss)
REGIONS = LossComponent("region_classes", region_class_loss, _count_regions)


def score(outputs: Any, batch: Batch) -> Scored:
    """Scores each question: whether the best choice is correct; notes contain the choice."""
    chosen = outputs.logits.argmax(-1).tolist()
    labels = batch["labels"].tolist()
    notes = {"chosen": chosen, "label": [label if label >= 0 else None for label in labels]}
    scores = choice_scores("vcr", outputs, batch)
    if scores:
        scores["vcr_chance"] = [None if label < 0 else 1 / outputs.logits.shape[1] for label in labels]
    return Scored(scores, notes=notes)


def join_runs(answers: Mapping[str, list], rationales: Mapping[str, list]) -> dict[str, float]:
    """
    Computes Q→A, QA→R and Q→AR from the items of two runs on the same split; a question counts for Q→AR if its answer
    and its rationale are right.

    Args:
        answers (`Mapping[str, list]`): columns `example_id`, `chosen` and `label` of a run that chooses answers.
        rationales (`Mapping[str, list]`): those of a run that chooses rationales.

    Raises:
        ValueError: if the runs have different questions, or a question has no label.
    """
    right = []
    for run in (answers, rationales):
        if None in run.get("label", [None]):
            raise ValueError("some questions have no label: only the evaluation server can score the test split")
        chosen = zip(run["example_id"], run["chosen"], run["label"], strict=True)
        right.append({question: choice == label for question, choice, label in chosen})
    differing = sorted(right[0].keys() ^ right[1].keys())
    if differing:
        raise ValueError(
            f"the runs have different questions: {len(differing)} are in one run only, such as {differing[0]}; give "
            "two runs on the same split"
        )
    both = [is_right and right[1][question] for question, is_right in right[0].items()]
    return {"q_to_a": fmean(right[0].values()), "qa_to_r": fmean(right[1].values()), "q_to_ar": fmean(both)}


TASK = VCR()
