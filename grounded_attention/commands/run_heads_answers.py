# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""Answers of the vision-language models of a run, for `grounded-attention run-heads`: their table and pictures."""

import sys
from collections import Counter
from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass
from statistics import fmean
from typing import Any

from accelerate import PartialState

from grounded_attention.dataset_scripts.builders import BUILDERS
from grounded_attention.heads.boxes import CENTRE, RANDOM, BoxScore
from grounded_attention.heads.heads_file import name_heads
from grounded_attention.heads.ranking import HeadRanking
from grounded_attention.metrics.intervals import interval_text
from grounded_attention.metrics.significance import ItemScores, paired_difference
from grounded_attention.metrics.vqa_accuracy import vqa_accuracy
from grounded_attention.training.experiments.measuring import TEXT_ONLY
from grounded_attention.training.experiments.prepared_data import PreparedData, prepare_data
from grounded_attention.training.experiments.scoring import score_splits
from grounded_attention.training.experiments.suites import SCENES
from grounded_attention.training.recipes.recipe import Data, Recipe
from grounded_attention.utils.plain_text import markdown_table

from .run_heads_models import REPORTED, UNSUPERVISED, Run

TASK = "grounded_generation"
QUESTIONS, OBJECTS = "vqa_v2", "pope"
# As in real data, the questions of test have no answers; nothing is chosen on those of validation.
ANSWERED = "validation"
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
BY_TYPE = (
    "VQA of validation by question type, on one training of each model; chance: the most frequent answer of this type "
    "in training. Differences have 95 % intervals: bootstrap over images."
)
ACCURATE = "vqa_accuracy"


@dataclass(frozen=True)
class Answers:
    """What the models answer: rows of the table, what it says, numbers of each model, and the table by type."""

    rows: Mapping[str, tuple[float, ...]]
    note: str
    numbers: Mapping[str, Any]
    by_type: Sequence[Sequence[str]]  # the first row is the head

    def tables(self) -> tuple[str, str]:
        """Both tables as Markdown, aligned for a terminal."""
        head, *lines = self.by_type
        return table(self.rows), markdown_table(head, lines, aligned=True)


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


def answer(run: Run, name: str, recipe: Recipe, data: PreparedData) -> Any:
    """The scores of the generated answers of one model."""
    rows = data.text_alone() if name == TEXT_ONLY else data
    (scored,) = score_splits(str(run.folder / name), recipe, rows)
    return scored


def mean_hallucination(numbers: Mapping[str, Any]) -> float:
    """The accuracy of yes and no, averaged over the samplings."""
    return fmean(v for k, v in numbers.items() if k.startswith(HALLUCINATION) and k.endswith(ACCURACY))


def usual_answer_accuracy(rows: Any, asked: Any) -> float:
    """The VQA accuracy, on the rows `asked`, of the answer that is most frequent in `rows`."""
    counts = Counter(answer for answers in rows["answers"] for answer in answers)
    usual = counts.most_common(1)[0][0]
    return fmean(vqa_accuracy(usual, answers) for answers in asked["answers"])


def by_question_type(items: Mapping[str, Mapping[str, Sequence]], training: Any, asked: Any) -> list[list[str]]:
    """The table by question type, the largest first: number, chance, each model, and what supervision changes."""
    compared = [name for name in items if name not in (UNSUPERVISED, TEXT_ONLY) and UNSUPERVISED in items]
    made = [["questions", "number", "chance", *items, *(f"{name} - {UNSUPERVISED}" for name in compared)]]
    types = Counter(asked["question_type"])
    for name in ("all", *(each for each, _ in types.most_common())):
        places = [place for place, each in enumerate(asked["question_type"]) if name in ("all", each)]
        known = [place for place, each in enumerate(training["question_type"]) if name in ("all", each)]
        chosen = asked.select(places)
        wanted = {*chosen["example_id"]}
        scores = {model: ItemScores.collect([_of_examples(each, wanted)], ACCURATE) for model, each in items.items()}
        cells = [usual_answer_accuracy(training.select(known), chosen), *(each.mean for each in scores.values())]
        made.append([name, str(len(places)), *(f"{each:.1%}" for each in cells)])
        for model in compared:
            difference = paired_difference(scores[model], scores[UNSUPERVISED])
            made[-1].append(f"{difference.mean:+.1%} ({interval_text((difference.low, difference.high))})")
    return made


def _of_examples(items: Mapping[str, Sequence], wanted: Set[str]) -> dict[str, list[Any]]:
    places = [place for place, each in enumerate(items["example_id"]) if each in wanted]
    return {name: [items[name][place] for place in places] for name in ("example_id", "image_id", ACCURATE)}


# Table


def table_rows(
    rankings: Mapping[str, HeadRanking], answered: Mapping[str, tuple[float, float]], usual: float
) -> dict[str, tuple[float, ...]]:
    """Row of the table -> its numbers in [0, 1], in the order of `COLUMNS`."""
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


def measure_answers(run: Run, rankings: Mapping[str, HeadRanking], count: int, options: Any) -> Answers:
    """The answers of all models to `count` questions of each kind."""
    questions = prepare_questions(run, QUESTIONS, ANSWERED, count)
    objects = prepare_questions(run, OBJECTS, REPORTED, count, **SCENES["hallucination"][1])
    numbers, items, answered = {}, {}, {}
    for name in (*rankings, *([run.text_only] if run.text_only else [])):
        if not options.quiet:
            print(f"answers: {name}", file=sys.stderr)
        said, objected = answer(run, name, *questions), answer(run, name, *objects)
        items[name], numbers[name] = said.items, {"vqa": said.numbers, "objects": objected.numbers}
        answered[name] = (said.numbers[ACCURATE], mean_hallucination(objected.numbers))
    builder = BUILDERS[QUESTIONS](data_dir=run.data.data_dir, splits=["train", ANSWERED])
    builder.download_and_prepare()
    training, asked = builder.as_dataset("train"), builder.as_dataset(ANSWERED)
    wanted = {*next(iter(items.values()))["example_id"]}
    asked = asked.select([place for place, each in enumerate(asked["example_id"]) if each in wanted])
    rows = table_rows(rankings, answered, usual_answer_accuracy(training, asked))
    report = (ranking := next(iter(rankings.values()))).reported_on.counts
    note = CAPTION.format(count=len(ranking.heads), phrases=report.total, images=len(report.image_ids))
    return Answers(rows, note, numbers, by_question_type(items, training, asked))
