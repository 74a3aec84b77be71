# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""Answers of the vision-language models of a run, for `grounded-attention run-heads`: their table and pictures."""

import sys
from collections import Counter
from collections.abc import Mapping
from statistics import fmean
from typing import Any

from accelerate import PartialState

from grounded_attention.dataset_scripts.builders import BUILDERS
from grounded_attention.heads.boxes import CENTRE, RANDOM, BoxScore
from grounded_attention.heads.heads_file import name_heads
from grounded_attention.heads.ranking import HeadRanking
from grounded_attention.metrics.vqa_accuracy import vqa_accuracy
from grounded_attention.training.experiments.measuring import TEXT_ONLY
from grounded_attention.training.experiments.prepared_data import PreparedData, prepare_data
from grounded_attention.training.experiments.scoring import score_splits
from grounded_attention.training.recipes.recipe import Data, Recipe
from grounded_attention.utils.plain_text import markdown_table

from .run_heads_models import REPORTED, Run

TASK = "grounded_generation"
QUESTIONS, OBJECTS = "vqa_v2", "pope"
# As in real data, the questions of test have no answers; nothing is chosen on those of validation.
ANSWERED = "validation"
# Objects of scenes: a scene has few kinds of them.
OBJECT_OPTIONS = {
    "instances": "refcoco+/instances.json",
    "image_list": "flickr30k_entities/test.txt",
    "least_objects": 2,
    "questions": 4,
}
ANSWER_LENGTH = 4  # tokens
BATCH = 32
HALLUCINATION, ACCURACY = "hallucination_", "_accuracy"
COLUMNS = ("pointing, best head", "pointing, heads", "box, heads", "VQA", "hallucination")
CAPTION = (
    "Pointing: part of the phrases whose most-attended image token is on the object; of the best head, and of the "
    "{count} best heads together, which also give a box (right if its IoU with a gold box is at least 0.5). Heads are "
    "chosen on captions of validation; {phrases} phrases of {images} images of test. VQA: accuracy of generated "
    "answers, validation. Hallucination: accuracy of yes and no to 'Is there a ... in the image?', mean of POPE's "
    "three ways to choose absent objects, test. text_only was trained without pictures; the centre of the image "
    "stands for each phrase. chance: any image token, the box of another phrase, the most frequent answer of "
    "training, a guess."
)


def prepare_questions(run: Run, builder: str, split: str, limit: int, **options: Any) -> tuple[Recipe, PreparedData]:
    """The questions of a split, to be answered in a few words."""
    data = Data(
        data_dir=run.data.data_dir,
        builder=builder,
        images=run.data.images,
        options={"splits": [split], **options},
        train_splits=[split],
        limit={split: limit},
    )
    training = {"per_device_eval_batch_size": BATCH, "use_cpu": PartialState().device.type == "cpu"}
    recipe = Recipe(TASK, seed=run.seed, data=data, options={"generate": ANSWER_LENGTH}, training=training)
    prepared = prepare_data(recipe)
    prepared.splits = {split: prepared.splits[split]}
    return recipe, prepared


def answer(run: Run, name: str, recipe: Recipe, data: PreparedData) -> dict[str, Any]:
    """The figures of the generated answers of one model."""
    rows = data.text_alone() if name == TEXT_ONLY else data
    (scored,) = score_splits(str(run.folder / name), recipe, rows)
    return scored.figures


def mean_hallucination(figures: Mapping[str, Any]) -> float:
    """The accuracy of yes and no, averaged over the samplings."""
    return fmean(v for k, v in figures.items() if k.startswith(HALLUCINATION) and k.endswith(ACCURACY))


def usual_answer_accuracy(run: Run, asked: Any) -> float:
    """The VQA accuracy of the answer that is most frequent in training."""
    builder = BUILDERS[QUESTIONS](data_dir=run.data.data_dir, splits=["train"])
    builder.download_and_prepare()
    counts = Counter(answer for answers in builder.as_dataset("train")["answers"] for answer in answers)
    usual = counts.most_common(1)[0][0]
    return fmean(vqa_accuracy(usual, answers) for answers in asked["answers"])


# Table


def table_rows(
    rankings: Mapping[str, HeadRanking], answered: Mapping[str, tuple[float, float]], usual: float
) -> dict[str, tuple[float, ...]]:
    """Row of the table -> its figures in [0, 1], in the order of `COLUMNS`."""
    rows: dict[str, tuple[float, ...]] = {}
    for name, ranking in rankings.items():
        together, best = _score(ranking, name_heads(ranking.heads)), _best(ranking)
        rows[name] = (best.pointing, together.pointing, together.accuracy, *answered[name])
    ranking = next(iter(rankings.values()))
    if TEXT_ONLY in answered:
        centre = _score(ranking, CENTRE)
        rows[TEXT_ONLY] = (centre.pointing, centre.pointing, centre.accuracy, *answered[TEXT_ONLY])
    chance = _score(ranking, RANDOM)
    rows["chance"] = (chance.pointing, chance.pointing, chance.accuracy, usual, 0.5)
    return rows


def _score(ranking: HeadRanking, name: str) -> BoxScore:
    return next(score for score in ranking.boxes if score.name == name)


def _best(ranking: HeadRanking) -> BoxScore:
    return _score(ranking, "best head" if len(ranking.heads) > 1 else name_heads(ranking.heads))


def table(rows: Mapping[str, tuple[float, ...]]) -> str:
    """The table as Markdown, aligned for a terminal."""
    shown = [[name, *(f"{each:.1%}" for each in row)] for name, row in rows.items()]
    return markdown_table(["model", *COLUMNS], shown, aligned=True)


def measure_answers(
    run: Run, rankings: Mapping[str, HeadRanking], count: int, options: Any
) -> tuple[dict[str, tuple[float, ...]], dict[str, Any]]:
    """The rows of the table, and the figures of all answers to `count` questions of each kind."""
    questions = prepare_questions(run, QUESTIONS, ANSWERED, count)
    objects = prepare_questions(run, OBJECTS, REPORTED, count, **OBJECT_OPTIONS)
    figures = {}
    for name in (*rankings, *([run.text_only] if run.text_only else [])):
        if not options.quiet:
            print(f"answers: {name}", file=sys.stderr)
        figures[name] = {"vqa": answer(run, name, *questions), "objects": answer(run, name, *objects)}
    answered = {
        name: (answers["vqa"]["vqa_accuracy"], mean_hallucination(answers["objects"]))
        for name, answers in figures.items()
    }
    return table_rows(rankings, answered, usual_answer_accuracy(run, questions[1].splits[ANSWERED])), figures


def write_answers(rows: Mapping[str, tuple[float, ...]], rankings: Mapping[str, HeadRanking]) -> tuple[str, str]:
    """The table, and what it says."""
    ranking = next(iter(rankings.values()))
    report = ranking.reported_on.counts
    note = CAPTION.format(count=len(ranking.heads), phrases=report.total, images=len(report.image_ids))
    return table(rows), note
