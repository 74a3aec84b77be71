# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""Reasoning about two images (NLVR2; VisualBERT, appendix B.3): whether a statement is true of them."""

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from grounded_attention.dataset_scripts.builders.nlvr2 import LABELS, read_predictions, write_predictions
from grounded_attention.metrics.item_scores import ItemScores, Scored
from grounded_attention.pages.failures import Judged
from grounded_attention.utils.named_types import Batch, Columns, Fields, Row

from .judges import JudgeContext, Rows, classified
from .task import (
    Examples,
    Metric,
    ScoredFile,
    Task,
    choice_scores,
    classification,
    identify,
    joined_arguments,
    known_labels,
    text_inputs,
)

# Position of the image pair in an identifier such as dev-850-0-1.
PAIR = 2
PARTS = 4


def statement_of(identifier: str) -> str:
    """The identifier `<split>-<set>-<pair>-<sentence>` without the pair, the groups of the official script."""
    parts = identifier.split("-")
    if len(parts) != PARTS or not all(parts):
        raise ValueError(f"identifier {identifier!r}: expected <split>-<set>-<pair>-<sentence>, such as dev-850-0-1")
    parts[PAIR] = ""
    return "-".join(parts)


class StatementScores(ItemScores):
    """Scores of single examples and consistency of their statements, over batches and processes."""

    def __init__(self, name: str, score: Callable[[Any, Columns], Scored], right: str):
        super().__init__(name, score)
        self.right = right

    def state(self) -> Fields:
        """The state of `ItemScores`, and whether each example is right."""
        items = self.items()
        return {**super().state(), "judged": [*zip(items["example_id"], items.get(self.right, ()), strict=False)]}

    def compute(self, state: Columns) -> Fields:
        """The metrics of `ItemScores`, and `{name}_consistency` if there are labels."""
        sums = dict(state)
        statements: dict[str, list[bool]] = defaultdict(list)
        for identifier, value in sums.pop("judged"):
            if value is not None:
                statements[statement_of(identifier)].append(value == 1)
        metrics = super().compute(sums)
        if statements:
            metrics[f"{self.name}_consistency"] = sum(map(all, statements.values())) / len(statements)
        return metrics


class VisualReasoning(Task):
    """A choice between false and true."""

    name = "visual_reasoning"
    title = "reasoning over two images"
    builder = "nlvr2"
    columns = ("example_id", "image_id", "image_ids", "text", "label")
    head = "visual_reasoning"
    example = """inputs = processor(caption, region_image_indices=[0, 1], **seen)  # each box of another image
with torch.no_grad():
    shares = model(**inputs).logits[0].softmax(-1).tolist()
print(f"the statement holds: {{shares[1]:.0%}}")"""
    losses = (classification("truth", "logits", "labels"),)
    predictions = "lines with an identifier, a comma, and True or False"

    def metrics(self) -> list[Metric]:
        return [StatementScores("nlvr2", score, "nlvr2_accuracy")]

    def collate(self, examples: Examples, processor: Any) -> Fields:
        """The regions of the left image come before those of the right image; `region_token_type_ids` (B, R)
        distinguishes them."""
        inputs = text_inputs(examples.rows, processor, **joined_arguments(examples.regions))
        return {**inputs, "labels": known_labels(examples.rows)}

    def judge(self, outputs: Any, batch: Batch, rows: Rows, context: JudgeContext) -> Iterator[Judged]:
        for row, probabilities in zip(rows, outputs.logits.float().softmax(-1), strict=True):
            fields = classified(probabilities, row["label"], ("false", "true"))
            yield Judged(row["example_id"], row["image_id"], "nlvr2", **fields, texts=_texts(row))

    read_predictions = staticmethod(read_predictions)

    def score_predictions(self, path: Path, predictions: Mapping[str, str], split: str, rows: Any) -> ScoredFile:
        """Predictions for other statements than those of the split are allowed."""
        if min(rows["label"]) < 0:
            raise ValueError(f"the labels of the split {split} are not published; only its authors can score it")
        missing = [name for name in rows["example_id"] if name not in predictions]
        if missing:
            examples = ", ".join(missing[:3])
            raise ValueError(f"{path}: no predictions for {len(missing)} statements of {split}, such as {examples}")
        answers = [predictions[name] for name in rows["example_id"]]
        right = [LABELS[each.lower()] == label for each, label in zip(answers, rows["label"], strict=True)]
        metric = StatementScores("nlvr2", lambda outputs, batch: outputs, "nlvr2_accuracy")
        judged = [each == "True" for each in answers]
        metric.update(Scored({"nlvr2_accuracy": right}, notes={"judged": judged}), identify(rows))
        shown = []
        for row, each in zip(rows, answers, strict=True):
            shown.append(
                Judged(
                    row["example_id"],
                    row["image_id"],
                    "nlvr2",
                    float(each == str(bool(row["label"]))),
                    0.0,
                    str(bool(row["label"])).lower(),
                    each.lower(),
                    texts=_texts(row),
                )
            )
        return ScoredFile(metric.compute(metric.state()), shown, metric.items())

    def export(self, items: Mapping[str, list], path: Path) -> bool:
        predictions = dict(zip(items["example_id"], items["judged"], strict=True))
        write_predictions(path.with_name(path.name + ".csv"), predictions)
        return True


def _texts(row: Row) -> tuple[tuple[str, str], ...]:
    return ("statement", row["text"]), ("left and right image", ", ".join(row["image_ids"]))


def score(outputs: Any, batch: Batch) -> Scored:
    """Scores each example: whether the prediction is correct; notes contain the prediction."""
    judged = outputs.logits.argmax(-1).bool().tolist()
    return Scored(choice_scores("nlvr2", outputs, batch), notes={"judged": judged})


TASK = VisualReasoning()
