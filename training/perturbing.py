# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""The perturbation test of a saved checkpoint: which decision of a task is explained, and when it is right."""

import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

import torch
from torch import Tensor
from torch.utils.data import DataLoader
from tqdm import tqdm

from evaluation.perturbation_curves import STEPS, PerturbationCurves, Scores, perturb
from evaluation.relevancy import MAPS, Reader, ReadOut
from tasks.referring_expressions import score as score_expressions
from tasks.vqa import score as score_answers

from .recipe import Recipe
from .scoring import make_scorer
from .setup import Prepared

Inputs = Mapping[str, Any]


@dataclass(frozen=True)
class Explained:
    """A task's decision: what of it is explained, and `options -> scores`."""

    read_out: Reader
    scores: Callable[[Any], Scores]


def read_identification(outputs: Any, inputs: Inputs) -> ReadOut:
    """The caption that was chosen; it is read from the first word, [CLS]."""
    return ReadOut(outputs.identification_logits.max(-1).values, _first_word(inputs))


def read_answer(outputs: Any, inputs: Inputs) -> ReadOut:
    """The answer that was chosen; it is read from [MASK]."""
    return ReadOut(outputs.logits.max(-1).values, inputs["answer_positions"])


def read_expression(outputs: Any, inputs: Inputs) -> ReadOut:
    """The region that was chosen; it is read from its own state."""
    best = outputs.logits.max(-1)
    return ReadOut(best.values, inputs["input_ids"].shape[1] + best.indices)


def _first_word(inputs: Inputs) -> Tensor:
    return cast(Tensor, inputs["attention_mask"]).argmax(1)


def identification_scores(options: Any) -> Scores:
    """1 where the right caption was chosen."""
    return lambda outputs, batch: (
        (outputs.identification_logits.argmax(-1) == batch["identification_labels"]).double().tolist()
    )


def answer_scores(options: Any) -> Scores:
    """The official accuracy of VQA v2; none where the split has no human answers."""

    def scores(outputs: Any, batch: Mapping[str, Any]) -> Sequence[float | None]:
        found = score_answers(outputs, batch, options).scores.get("vqa_accuracy")
        return [None] * len(batch["answers"]) if found is None else found

    return scores


def expression_scores(options: Any) -> Scores:
    """1 where the region that was chosen overlaps the named object enough."""
    return lambda outputs, batch: score_expressions(outputs, batch, options.convention).scores["expressions_accuracy"]


EXPLAINED = {
    "vgp": Explained(read_identification, identification_scores),
    "vqa": Explained(read_answer, answer_scores),
    "referring_expressions": Explained(read_expression, expression_scores),
}


def measure_perturbation(
    recipe: Recipe,
    checkpoint: str,
    data: Prepared,
    split: str,
    *,
    maps: Sequence[str] = MAPS,
    steps: int = STEPS,
    about: Mapping[str, Any] | None = None,
) -> PerturbationCurves:
    """The curves of a checkpoint on the rows of a split; see `perturb`.

    Args:
        recipe: of the data, with a task of `EXPLAINED`; its seed is that of the random order.
        checkpoint: a folder, or a name on the Hub.
        data: of the recipe.
        split: whose rows.
        maps, steps, about: see `perturb`.
    """
    rows, explained = data.splits[split], EXPLAINED[recipe.task]
    with tempfile.TemporaryDirectory() as directory:
        trainer: Any = make_scorer(recipe, checkpoint, data, directory)
        names = trainer.task.model_inputs
        return perturb(
            trainer.model,
            _batches(trainer, rows),
            inputs=lambda batch: {name: batch[name] for name in names if name in batch},
            read_out=explained.read_out,
            scores=explained.scores(trainer.data_collator.options),
            maps=maps,
            steps=steps,
            seed=recipe.seed,
            about=about,
        )


def _batches(trainer: Any, rows: Any) -> Iterator[tuple[dict[str, Any], list[str]]]:
    collator, size = trainer.data_collator.evaluating(rows), trainer.args.eval_batch_size
    images = rows["image_id"]
    loader = DataLoader(rows, size, collate_fn=collator)
    for number, batch in enumerate(tqdm(loader, desc="take regions away", leave=False, disable=None)):
        moved = {k: v.to(trainer.args.device) if torch.is_tensor(v) else v for k, v in batch.items()}
        yield moved, list(images[number * size : (number + 1) * size])
