# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""From a model's outputs to predictions in words and boxes beside what is right, task by task."""

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
    """What the words of a prediction are made from.

    Args:
        config: the model's configuration.
        tokenizer: of its processor.
        labels: name of a column -> the names of its classes.
        region_names: the detector's names of its classes.
        background: whether the model's region class 0 is the background, which the detector does not count.
    """

    config: Any
    tokenizer: Any
    labels: Mapping[str, Sequence[str]] = field(default_factory=dict)
    region_names: Sequence[str] = ()
    background: bool = True

    def label(self, column: str, number: int) -> str:
        """The name of a class of a column."""
        return _name(self.labels.get(column, ()), number, f"class {number}")

    def region(self, number: int) -> str:
        """What the detector calls a class of the model."""
        if self.background and number == 0:
            return "background"
        return _name(self.region_names, number - self.background, f"class {number}")


def _name(names: Sequence[str], number: int, otherwise: str) -> str:
    return names[number] if 0 <= number < len(names) else otherwise


def judge_vgp(outputs: Any, batch: Mapping[str, Any], rows: Rows, context: JudgeContext) -> Iterator[Judged]:
    """Which caption describes the image, one an example; the relation of phrases, one a labelled pair."""
    told, pairs = outputs.identification_logits.float().softmax(-1), outputs.vgp_logits.float().softmax(-1)
    for number, row in enumerate(rows):
        yield _identification(row, told[number], context)
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
    """Where phrases are grounded; one that several phrases share is drawn once."""
    found = {tuple(box): phrase["text"] for phrase in reversed(phrases) for box in phrase["boxes"]}
    return tuple(Box(MEANT, corners, text) for corners, text in found.items())


def _classified(probabilities: Tensor, gold: int, named: Sequence[str], kind: str = "right answer") -> dict[str, Any]:
    """Score, confidence and words of a choice between named classes; a negative label is not known."""
    best = int(probabilities.argmax())
    found = {"confidence": probabilities[best].item(), "predicted": named[best]}
    if gold < 0:
        return {**found, "score": None, "gold": ""}
    known = {"gold": named[gold], "kinds": {kind: named[gold]}, "worth": {named[gold]: 1.0}}
    return {**found, **known, "score": float(best == gold), "chance": 1 / len(named)}


def judge_pretraining(outputs: Any, batch: Mapping[str, Any], rows: Rows, context: JudgeContext) -> Iterator[Judged]:
    """Whether the caption belongs, masked words, one a caption with any; masked regions, one a region."""
    for number, row in enumerate(rows):
        ids, shown = batch["input_ids"][number], batch["attention_mask"][number].bool()
        caption = ("caption as read", context.tokenizer.decode(ids[shown][1:-1]))
        common = (row["caption_id"], row["image_id"])
        if batch.get("relationship_labels") is not None:
            probabilities = outputs.relationship_logits[number].float().softmax(-1)
            named = ("another image's caption", "this image's caption")
            told = _classified(probabilities, int(batch["relationship_labels"][number]), named)
            yield Judged(*common, "relationship", **told, texts=(caption,))
        if batch.get("labels") is not None:
            yield from _words(common, caption, outputs.mlm_logits[number], batch["labels"][number], context)
        if batch.get("masked_regions") is not None:
            yield from _regions(common, caption, outputs, batch, number, context)


def _words(
    common: tuple[str, str], caption: tuple[str, str], logits: Tensor, labels: Tensor, context: JudgeContext
) -> Iterator[Judged]:
    asked = labels >= 0
    if not asked.any():
        return
    confidence, guessed = logits[asked].float().softmax(-1).max(-1)
    right = guessed == labels[asked]
    said = [" ".join(context.tokenizer.convert_ids_to_tokens(ids.tolist())) for ids in (labels[asked], guessed)]
    score, sure = right.float().mean().item(), confidence.mean().item()
    yield Judged(*common, "words", score, sure, said[0], said[1], texts=(caption,))


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
    asked = labels >= 0 if probs is None else (probs[number].sum(-1) - 1).abs() < 0.1
    for place in asked.nonzero()[:, 0].tolist():
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
    """The answer to each question, beside those of humans."""
    for row, answer, confidence in _answered(outputs, rows, context):
        yield judge_answer(row, answer, confidence)


def judge_gqa(outputs: Any, batch: Mapping[str, Any], rows: Rows, context: JudgeContext) -> Iterator[Judged]:
    """The answer to each question, beside the right one."""
    for row, answer, confidence in _answered(outputs, rows, context):
        yield judge_right_answer(row, answer, confidence)


def _answered(outputs: Any, rows: Rows, context: JudgeContext) -> Iterator[tuple[Mapping[str, Any], str, float]]:
    """Each row with the answer and its probability."""
    logits = outputs.logits.float()
    binary = context.config.vqa_loss == "binary_cross_entropy"
    sure, best = (logits.sigmoid() if binary else logits.softmax(-1)).max(-1)
    for row, confidence, number in zip(rows, sure.tolist(), best.tolist(), strict=True):
        yield row, context.config.answers[number], confidence


def judge_answer(row: Mapping[str, Any], answer: str, confidence: float = 0.0) -> Judged:
    """An answer beside those of humans; equal answers are counted together (`2 (x8), 3 (x2)`)."""
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
    """The region that each sentence is taken to mean; its score comes from the task's metric."""
    confidence = outputs.logits.float().sigmoid().masked_fill(~batch["candidates"], -1.0)
    for number, row in enumerate(rows):
        seen, best = bool(batch["region_candidate_mask"][number].any()), int(confidence[number].argmax())
        boxes = [Box(GOLD, tuple(row["box"]), "gold")]
        if seen:
            boxes.append(Box(PREDICTED, _corners(batch["region_boxes"][number, best]), "predicted"))
        sizes = [_said(box.corners, row) for box in boxes]
        yield Judged(
            row["example_id"],
            row["image_id"],
            "expressions",
            None,
            confidence[number, best].item() if seen else 0.0,
            sizes[0],
            sizes[1] if seen else NO_BOX,
            texts=(("sentence", row["text"]),),
            boxes=tuple(boxes),
        )


def _said(corners: Sequence[float], row: Mapping[str, Any]) -> str:
    sides = (row["width"], row["height"]) * 2
    x1, y1, x2, y2 = (round(value * side) for value, side in zip(corners, sides, strict=True))
    return f"box {x1}, {y1} to {x2}, {y2}"


def _corners(box: Tensor) -> tuple[float, float, float, float]:
    x1, y1, x2, y2 = box.float().tolist()
    return x1, y1, x2, y2


def judge_vcr(outputs: Any, batch: Mapping[str, Any], rows: Rows, context: JudgeContext) -> Iterator[Judged]:
    """Which of the texts each question is answered with."""
    logits = outputs.logits.float()
    sure = logits.sigmoid() if context.config.choice_loss == "sigmoid" else logits.softmax(-1)
    for row, probabilities in zip(rows, sure, strict=True):
        named = [choice["text"] for choice in row["choices"]]
        told = _classified(probabilities, row["label"], named) | {"kinds": {}, "worth": {}}
        best = int(probabilities.argmax())
        objects = zip(row["boxes"], row.get("objects") or [""] * len(row["boxes"]), strict=True)
        yield Judged(
            row["example_id"],
            row["image_id"],
            "vcr",
            **told,
            texts=(("question", row["question"]["text"]),),
            boxes=tuple(Box(MEANT, tuple(box), name) for box, name in objects),
            choices=tuple(Choice(text, n == row["label"], n == best) for n, text in enumerate(named)),
        )


def judge_statements(outputs: Any, batch: Mapping[str, Any], rows: Rows, context: JudgeContext) -> Iterator[Judged]:
    """Whether each statement is taken to be true of its images."""
    for row, probabilities in zip(rows, outputs.logits.float().softmax(-1), strict=True):
        told = _classified(probabilities, row["label"], ("false", "true"))
        texts = (("statement", row["sentence"]), ("left and right image", ", ".join(row["image_ids"])))
        yield Judged(row["example_id"], row["image_id"], "nlvr2", **told, texts=texts)


def judge_phrases(outputs: Any, batch: Mapping[str, Any], rows: Rows, context: JudgeContext) -> Iterator[Judged]:
    """The region that each phrase is taken to name; right where it overlaps a gold box by one half."""
    for number, row in enumerate(rows):
        for place, phrase in enumerate(row["phrases"]):
            ranked = rank_boxes(outputs, batch, number, place)
            best = [Box(PREDICTED, tuple(box), "predicted") for box in ranked[:1].tolist()]
            rank = first_hit(ranked, phrase["boxes"])
            sure = outputs.logits[number, place].float().softmax(-1).max().item() if best else 0.0
            yield Judged(
                f"{row['example_id']}:{place}",
                row["image_id"],
                "phrases",
                float(rank == 1),
                sure,
                phrase["text"],
                f"found at rank {rank}" if rank else NO_BOX,
                texts=(("phrase", phrase["text"]), ("caption", row["text"])),
                kinds={"type": phrase["types"][0]} if len(phrase["types"]) else {},
                boxes=(*(Box(GOLD, tuple(box), "gold") for box in phrase["boxes"]), *best),
            )


class Judge:
    """Collects every prediction while a split is measured: a metric without figures.

    Args:
        judge: of the task.
        rows: of the split, measured in their order in one process.
        context: what words are made from.
    """

    def __init__(self, judge: JudgeTask, rows: Any, context: JudgeContext):
        self.judge, self.rows, self.context = judge, rows, context
        self.judged: list[Judged] = []
        self._seen = 0

    def forward_kwargs(self, batch: Mapping[str, Any]) -> dict[str, Any]:
        """Nothing beyond the model's ordinary inputs."""
        return {}

    def update(self, outputs: Any, batch: Mapping[str, Any]) -> None:
        """Takes the predictions of the next rows."""
        size = len(batch["input_ids"])
        rows = [self.rows[place] for place in range(self._seen, self._seen + size)]
        self.judged.extend(self.judge(outputs, batch, rows, self.context))
        self._seen += size

    def state(self) -> dict[str, Tensor]:
        """Nothing to add up."""
        return {}

    def compute(self, state: Mapping[str, Tensor]) -> dict[str, Any]:
        """No figures."""
        return {}


def with_scores(judged: Sequence[Judged], items: Mapping[str, Sequence[Any]]) -> list[Judged]:
    """The predictions with the scores that the task's metric gave them, where it keeps those of single examples.

    Args:
        judged: one an example where there are items.
        items: `{group}_accuracy` and `{group}_chance` columns, in the order of `judged`; may be empty.
    """
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
