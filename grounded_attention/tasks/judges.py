# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""Converts the outputs of a model to predictions as words and boxes next to the gold answer, for each task."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from torch import Tensor

from grounded_attention.metrics.gqa_scores import question_scores
from grounded_attention.metrics.phrase_grounding import first_hit
from grounded_attention.metrics.phrase_recall import rank_boxes
from grounded_attention.metrics.vqa_accuracy import soft_targets, vqa_accuracy
from grounded_attention.reports.failures import GOLD, MEANT, PREDICTED, Box, Choice, Judged

Rows = Sequence[Mapping[str, Any]]
# (outputs, batch, rows, context) -> predictions, see the functions `judge_...` below.
JudgeTask = Callable[[Any, Mapping[str, Any], Rows, "JudgeContext"], Iterator[Judged]]
NO_BOX = "no region in this image"


@dataclass(frozen=True)
class JudgeContext:
    """Names of classes and words, which the text of a prediction needs."""

    config: Any
    tokenizer: Any
    labels: Mapping[str, Sequence[str]] = field(default_factory=dict)
    region_names: Sequence[str] = ()
    background: bool = True

    def label(self, column: str, number: int) -> str:
        """Returns the name of a class of a column."""
        return _name(self.labels.get(column, ()), number, f"class {number}")

    def region(self, number: int) -> str:
        """Returns the name that the detector gives to a region class of the model."""
        if self.background and number == 0:
            return "background"
        return _name(self.region_names, number - self.background, f"class {number}")


def _name(names: Sequence[str], number: int, default: str) -> str:
    return names[number] if 0 <= number < len(names) else default


def judge_vgp(outputs: Any, batch: Mapping[str, Any], rows: Rows, context: JudgeContext) -> Iterator[Judged]:
    """Judges the identification of captions, once per example, and the relation of phrases, once per labelled pair."""
    captions, pairs = outputs.identification_logits.float().softmax(-1), outputs.vgp_logits.float().softmax(-1)
    for number, row in enumerate(rows):
        yield _identification(row, captions[number], context)
        for place, label in enumerate(batch["vgp_labels"][number].tolist()):
            if label >= 0:
                yield _phrase_pair(row, place, label, pairs[number, place], context)


def _identification(row: Mapping[str, Any], probabilities: Tensor, context: JudgeContext) -> Judged:
    named = [context.label("identification_label", number) for number in range(len(probabilities))]
    return Judged(
        row["example_id"],
        row["image_id"],
        "identification",
        **_classified(probabilities, row["identification_label"], named),
        texts=(("first caption", row["caption1"]), ("second caption", row["caption2"])),
        boxes=_phrase_boxes(row["phrases"]),
    )


def _phrase_pair(
    row: Mapping[str, Any], place: int, label: int, probabilities: Tensor, context: JudgeContext
) -> Judged:
    pair = row["phrase_pairs"][place]
    phrases = [row["phrases"][pair[name]] for name in ("phrase1", "phrase2")]
    named = [context.label("label", number) for number in range(len(probabilities))]
    return Judged(
        f"{row['example_id']}:{place}",
        row["image_id"],
        "vgp",
        **_classified(probabilities, label, named),
        texts=(
            ("phrases", " / ".join(phrase["text"] for phrase in phrases)),
            ("first caption", row["caption1"]),
            ("second caption", row["caption2"]),
        ),
        boxes=_phrase_boxes(phrases),
    )


def _phrase_boxes(phrases: Sequence[Mapping[str, Any]]) -> tuple[Box, ...]:
    """The boxes of phrases; a box that several phrases share is drawn once."""
    found = {tuple(box): phrase["text"] for phrase in reversed(phrases) for box in phrase["boxes"]}
    return tuple(Box(MEANT, corners, text) for corners, text in found.items())


def _classified(probabilities: Tensor, gold: int, named: Sequence[str], kind: str = "right answer") -> dict[str, Any]:
    """Score, confidence and names for a choice between classes; the gold label is unknown if it is negative."""
    best = int(probabilities.argmax())
    found = {"confidence": probabilities[best].item(), "predicted": named[best]}
    if gold < 0:
        return {**found, "score": None, "gold": ""}
    known = {"gold": named[gold], "kinds": {kind: named[gold]}, "worth": {named[gold]: 1.0}}
    return {**found, **known, "score": float(best == gold), "chance": 1 / len(named)}


def judge_pretraining(outputs: Any, batch: Mapping[str, Any], rows: Rows, context: JudgeContext) -> Iterator[Judged]:
    """Judges the caption match, once per caption; masked words, once per caption; masked regions, once per region."""
    for number, row in enumerate(rows):
        ids, shown = batch["input_ids"][number], batch["attention_mask"][number].bool()
        caption = ("caption as read", context.tokenizer.decode(ids[shown][1:-1]))
        common = (row["caption_id"], row["image_id"])
        if batch.get("relationship_labels") is not None:
            probabilities = outputs.relationship_logits[number].float().softmax(-1)
            named = ("caption of another image", "caption of this image")
            fields = _classified(probabilities, int(batch["relationship_labels"][number]), named)
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
    score, mean_confidence = right.float().mean().item(), confidence.mean().item()
    yield Judged(*common, "words", score, mean_confidence, texts[0], texts[1], texts=(caption,))


def _regions(
    common: tuple[str, str],
    caption: tuple[str, str],
    outputs: Any,
    batch: Mapping[str, Any],
    number: int,
    context: JudgeContext,
) -> Iterator[Judged]:
    probs = batch.get("region_label_probs")
    labels = batch["region_labels"][number] if probs is None else probs[number].argmax(-1)
    masked = labels >= 0 if probs is None else (probs[number].sum(-1) - 1).abs() < 0.1
    for place in masked.nonzero()[:, 0].tolist():
        probabilities, gold = outputs.region_logits[number, place].float().softmax(-1), int(labels[place])
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
            boxes=(Box(MEANT, _corners(batch["region_boxes"][number, place]), "masked region"),),
        )


def judge_vqa(outputs: Any, batch: Mapping[str, Any], rows: Rows, context: JudgeContext) -> Iterator[Judged]:
    """Judges the answer to each question."""
    for row, answer, confidence in _answered(outputs, rows, context):
        yield judge_answer(row, answer, confidence)


def judge_gqa(outputs: Any, batch: Mapping[str, Any], rows: Rows, context: JudgeContext) -> Iterator[Judged]:
    """Judges the answer to each question of GQA, which has one right answer."""
    for row, answer, confidence in _answered(outputs, rows, context):
        yield judge_right_answer(row, answer, confidence)


def _answered(outputs: Any, rows: Rows, context: JudgeContext) -> Iterator[tuple[Mapping[str, Any], str, float]]:
    """Each row with the answer and its probability."""
    logits = outputs.logits.float()
    binary = context.config.vqa_loss == "binary_cross_entropy"
    confidences, best = (logits.sigmoid() if binary else logits.softmax(-1)).max(-1)
    for row, confidence, number in zip(rows, confidences.tolist(), best.tolist(), strict=True):
        yield row, context.config.answers[number], confidence


def judge_answer(row: Mapping[str, Any], answer: str, confidence: float = 0.0) -> Judged:
    """Judges an answer by the answers of humans."""
    worth = soft_targets(row["answers"])
    counts = sorted({a: list(row["answers"]).count(a) for a in worth}.items(), key=lambda pair: -pair[1])
    named = (("answer type", "answer_type"), ("question type", "question_type"))
    return Judged(
        row["example_id"],
        row["image_id"],
        "vqa",
        vqa_accuracy(answer, row["answers"]) if worth else None,
        confidence,
        ", ".join(f"{given} (×{count})" for given, count in counts),
        answer,
        texts=(("question", row["question"]),),
        kinds={name: row[column] for name, column in named if row.get(column)},
        worth=worth,
    )


def judge_right_answer(row: Mapping[str, Any], answer: str, confidence: float = 0.0) -> Judged:
    """An answer beside the only right one; it has a score if the question is balanced."""
    named = (("structural type", "structural_type"), ("semantic type", "semantic_type"))
    return Judged(
        row["example_id"],
        row["image_id"],
        "gqa",
        question_scores(answer, row).get("accuracy"),
        confidence,
        row["answer"],
        answer,
        texts=(("question", row["question"]),),
        kinds={name: row[column] for name, column in named if row[column]},
        worth={row["answer"]: 1.0} if row["answer"] else {},
    )


def judge_expressions(outputs: Any, batch: Mapping[str, Any], rows: Rows, context: JudgeContext) -> Iterator[Judged]:
    """Judges the region chosen for each sentence; the score is added later, from the metric of the task."""
    confidence = outputs.logits.float().sigmoid().masked_fill(~batch["candidates"], -1.0)
    for number, row in enumerate(rows):
        detected, best = bool(batch["region_candidate_mask"][number].any()), int(confidence[number].argmax())
        boxes = [Box(GOLD, tuple(row["box"]), "gold")]
        if detected:
            boxes.append(Box(PREDICTED, _corners(batch["region_boxes"][number, best]), "predicted"))
        named = [format_box(box.corners, row) for box in boxes]
        yield Judged(
            row["example_id"],
            row["image_id"],
            "expressions",
            None,
            confidence[number, best].item() if detected else 0.0,
            named[0],
            named[1] if detected else NO_BOX,
            texts=(("sentence", row["text"]),),
            boxes=tuple(boxes),
        )


def format_box(corners: Sequence[float], row: Mapping[str, Any]) -> str:
    """Formats a box in pixels, such as `box 3, 4 to 80, 95`."""
    sides = (row["width"], row["height"]) * 2
    x1, y1, x2, y2 = (round(value * side) for value, side in zip(corners, sides, strict=True))
    return f"box {x1}, {y1} to {x2}, {y2}"


def _corners(box: Tensor) -> tuple[float, float, float, float]:
    x1, y1, x2, y2 = box.float().tolist()
    return x1, y1, x2, y2


def judge_vcr(outputs: Any, batch: Mapping[str, Any], rows: Rows, context: JudgeContext) -> Iterator[Judged]:
    """Judges the choice for each question."""
    logits = outputs.logits.float()
    confidences = logits.sigmoid() if context.config.choice_loss == "sigmoid" else logits.softmax(-1)
    for row, probabilities in zip(rows, confidences, strict=True):
        named = [choice["text"] for choice in row["choices"]]
        fields = _classified(probabilities, row["label"], named) | {"kinds": {}, "worth": {}}
        best = int(probabilities.argmax())
        objects = zip(row["boxes"], row.get("objects") or [""] * len(row["boxes"]), strict=True)
        yield Judged(
            row["example_id"],
            row["image_id"],
            "vcr",
            **fields,
            texts=(("question", row["question"]["text"]),),
            boxes=tuple(Box(MEANT, tuple(box), name) for box, name in objects),
            choices=tuple(Choice(text, n == row["label"], n == best) for n, text in enumerate(named)),
        )


def judge_statements(outputs: Any, batch: Mapping[str, Any], rows: Rows, context: JudgeContext) -> Iterator[Judged]:
    """Judges whether each statement is true of its images."""
    for row, probabilities in zip(rows, outputs.logits.float().softmax(-1), strict=True):
        fields = _classified(probabilities, row["label"], ("false", "true"))
        texts = (("statement", row["sentence"]), ("left and right image", ", ".join(row["image_ids"])))
        yield Judged(row["example_id"], row["image_id"], "nlvr2", **fields, texts=texts)


def judge_phrases(outputs: Any, batch: Mapping[str, Any], rows: Rows, context: JudgeContext) -> Iterator[Judged]:
    """Judges the region chosen for each phrase; it is right if its IoU with a gold box is at least 0.5."""
    for number, row in enumerate(rows):
        for place, phrase in enumerate(row["phrases"]):
            ranked = rank_boxes(outputs, batch, number, place)
            best = [Box(PREDICTED, tuple(box), "predicted") for box in ranked[:1].tolist()]
            rank = first_hit(ranked, phrase["boxes"])
            confidence = outputs.logits[number, place].float().softmax(-1).max().item() if best else 0.0
            yield Judged(
                f"{row['example_id']}:{place}",
                row["image_id"],
                "phrases",
                float(rank == 1),
                confidence,
                phrase["text"],
                f"found at rank {rank}" if rank else NO_BOX,
                texts=(("phrase", phrase["text"]), ("caption", row["text"])),
                kinds={"type": phrase["types"][0]} if len(phrase["types"]) else {},
                boxes=(*(Box(GOLD, tuple(box), "gold") for box in phrase["boxes"]), *best),
            )


class Judge:
    """Collects all predictions during an evaluation: a metric without figures.

    Args:
        judge (`JudgeTask`): judge function of the task.
        rows (`Any`): rows of the split; one process evaluates them in this order.
        context (`JudgeContext`): names of classes and words.
    """

    def __init__(self, judge: JudgeTask, rows: Any, context: JudgeContext):
        self.judge, self.rows, self.context = judge, rows, context
        self.judged: list[Judged] = []
        self._seen = 0

    def forward_kwargs(self, batch: Mapping[str, Any]) -> dict[str, Any]:
        """Returns no further arguments."""
        return {}

    def update(self, outputs: Any, batch: Mapping[str, Any]) -> None:
        """Adds the predictions for the next rows."""
        size = len(batch["input_ids"])
        rows = [self.rows[place] for place in range(self._seen, self._seen + size)]
        self.judged.extend(self.judge(outputs, batch, rows, self.context))
        self._seen += size

    def state(self) -> dict[str, Tensor]:
        """Returns an empty state."""
        return {}

    def compute(self, state: Mapping[str, Tensor]) -> dict[str, Any]:
        """Returns no figures."""
        return {}


def with_scores(judged: Sequence[Judged], items: Mapping[str, Sequence[Any]]) -> list[Judged]:
    """Adds the scores of the metric of the task to predictions."""
    if not items:
        return list(judged)
    unknown = [None] * len(judged)
    columns = [
        (items.get(f"{one.group}_accuracy", unknown), items.get(f"{one.group}_chance", unknown)) for one in judged[:1]
    ]
    return [
        replace(one, score=score, chance=one.chance if chance is None else chance)
        for accuracy, chances in columns
        for one, score, chance in zip(judged, accuracy, chances, strict=True)
    ]
