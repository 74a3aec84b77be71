# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""Measures the models of a run and writes the files of `grounded-attention vlm-run`."""

import argparse
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from statistics import fmean
from typing import Any

import torch
from accelerate import PartialState
from transformers.utils import logging

from grounded_attention.dataset_scripts.builders import BUILDERS
from grounded_attention.heads.boxes import CENTRE, RANDOM, BoxScore, ground_box
from grounded_attention.heads.card import CARD
from grounded_attention.heads.examples import AuditExample, PromptSettings, grounded_examples, make_batch
from grounded_attention.heads.maps import TokenGrid
from grounded_attention.heads.ranking import FILE, HEADS, HeadRanking, name_heads, put_heads_in_card, rank_heads
from grounded_attention.heads.reading import get_observer, read_phrases
from grounded_attention.metrics.intervals import to_json
from grounded_attention.metrics.vqa_accuracy import vqa_accuracy
from grounded_attention.reports.patch_pictures import PatchAttention, patch_comparison_figure
from grounded_attention.tasks import TASKS
from grounded_attention.training.experiments.arguments import check_options
from grounded_attention.training.experiments.measuring import TEXT_ONLY
from grounded_attention.training.experiments.models import load_model, make_processor
from grounded_attention.training.experiments.output import RECIPE, read_run
from grounded_attention.training.experiments.prepared_data import PreparedData, prepare_data
from grounded_attention.training.experiments.scoring import score_splits
from grounded_attention.training.loop.checkpoint import MANIFEST, is_complete
from grounded_attention.training.recipes.model_family import head_class
from grounded_attention.training.recipes.recipe import Data, Model, Recipe
from grounded_attention.utils.bounded_files import read_text
from grounded_attention.utils.plain_text import aligned_table
from grounded_attention.utils.whole_files import write_text

from .image_options import folder_pictures

TASK = "grounded_generation"
CAPTIONS, QUESTIONS, OBJECTS = "flickr30k_entities", "vqa_v2", "pope"
CHOSEN_ON, REPORTED = "validation", "test"
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


@dataclass(frozen=True)
class Run:
    """A finished run: its folder, the names of its models, its data."""

    folder: Path
    names: list[str]
    data_dir: str
    images: str
    instruction: str
    seed: int

    @property
    def seeing(self) -> list[str]:
        """The models with pictures."""
        return [name for name in self.names if name != TEXT_ONLY]


def find_run(folder: Path) -> Run:
    """
    Finds the run and checks that its models are finished.
    """
    remedy = "make it with `make vlm`, or with train.py and another recipe"
    recipe = read_run(folder, remedy)
    if recipe.task != TASK or not recipe.data.images:
        raise ValueError(f"{folder}: a run of the task {recipe.task}, expected {TASK} with data.images; {remedy}")
    names = [*recipe.methods, *([TEXT_ONLY] if recipe.text_only_baseline else [])]
    for name in names:
        if not (folder / name / "results.json").is_file():
            raise ValueError(f"{folder / name}: results.json is missing, so this model is not finished; {remedy}")
        if (folder / name / MANIFEST).is_file() and not is_complete(folder / name):
            raise ValueError(f"{folder / name}: the checkpoint is incomplete or was changed; copy or train it again")
    options = check_options(TASKS[TASK], recipe.options, f"{folder / RECIPE}: options")
    return Run(folder, names, recipe.data.data_dir, recipe.data.images, options.caption_prompt, recipe.seed)


# Heads


def load_captions(run: Run, limit: int) -> dict[str, list[AuditExample]]:
    """Split -> the first captions with phrases, one of each image."""
    builder = BUILDERS[CAPTIONS](data_dir=run.data_dir, splits=[CHOSEN_ON, REPORTED])
    builder.download_and_prepare()
    found = {}
    for split in (CHOSEN_ON, REPORTED):
        of_image: dict[str, AuditExample] = {}
        for example in grounded_examples(builder.as_dataset(split)):
            of_image.setdefault(example.image_id, example)
        found[split] = list(islice(of_image.values(), limit))
    return found


def rank_model(run: Run, name: str, model: Any, processor: Any, captions: Any, options: Any) -> HeadRanking:
    """The heads of one model."""
    return rank_heads(
        model,
        processor,
        captions[CHOSEN_ON],
        folder_pictures(run.images),
        report=captions[REPORTED],
        count=options.top_k,
        words=options.words,
        instruction=run.instruction,
        ablate=options.ablate,
        batch_size=BATCH,
        seed=run.seed,
        about={"model": str(run.folder / name), "data": f"{CAPTIONS}, split {REPORTED}", "choose_on": CHOSEN_ON},
    )


def put_beside_model(ranking: HeadRanking, model: Path) -> None:
    """Writes `heads.json` into the folder of a model, and the heads into its card if it has a place for them."""
    content = ranking.to_dict()
    write_text(model / FILE, to_json(content, indent=1) + "\n")
    card = model / CARD
    if card.is_file() and HEADS.place in read_text(card):
        put_heads_in_card(content, card)


def look(run: Run, model: Any, processor: Any, ranking: HeadRanking, examples: Sequence[AuditExample]) -> list[Any]:
    """Where the chosen heads look: for each example the attention of its phrases."""
    settings = PromptSettings(ranking.about["options"]["words"], run.instruction)
    layers, heads = torch.tensor(ranking.heads).T
    shown = []
    observer = get_observer(model)
    for example in examples:
        batch = make_batch(processor, [example], folder_pictures(run.images), settings)
        attention = read_phrases(observer, batch, settings.words)[:, 0].cpu()  # (L, H, P, R)
        candidates = batch["region_candidate_mask"][0]
        grid = TokenGrid.of_tokens(batch["region_boxes"][0], candidates)
        found = [ground_box(attention[layers, heads, n], candidates, grid) for n in range(len(example.phrases))]
        texts = [example.caption[phrase.start : phrase.end] for phrase in example.phrases]
        shown.append(
            [
                PatchAttention(text, each.map, grid.frame, each.box, each.share)
                for text, each in zip(texts, found, strict=True)
            ]
        )
    return shown


def to_show(captions: Sequence[AuditExample], count: int) -> list[AuditExample]:
    """The first captions with two or three phrases that have boxes; other phrases are left out."""
    grounded = (
        replace(each, phrases=tuple(phrase for phrase in each.phrases if len(phrase.boxes))) for each in captions
    )
    return list(islice((each for each in grounded if len(each.phrases) in (2, 3)), count))


# Answers


def prepare_questions(run: Run, builder: str, split: str, limit: int, **options: Any) -> tuple[Recipe, PreparedData]:
    """The questions of a split, to be answered in a few words."""
    data = Data(
        data_dir=run.data_dir,
        builder=builder,
        images=run.images,
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
    builder = BUILDERS[QUESTIONS](data_dir=run.data_dir, splits=["train"])
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
    return aligned_table(["model", *COLUMNS], [[name, *(f"{each:.1%}" for each in row)] for name, row in rows.items()])


# The command


def work(options: argparse.Namespace) -> str:
    """Runs the command and returns the text to print."""
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    for name, least in (("limit", 2), ("questions", 1), ("top_k", 1), ("pictures", 0), ("ablate", 0)):
        if getattr(options, name) < least:
            raise ValueError(f"--{name.replace('_', '-')} {getattr(options, name)}: expected {least} or more")
    PartialState(cpu=options.cpu or not torch.cuda.is_available())
    run = find_run(Path(options.run))
    folder = Path(options.output or run.folder / "vlm")
    captions = load_captions(run, options.limit)
    shown = to_show(captions[REPORTED], options.pictures)
    rankings, looks = {}, {}
    for name in run.seeing:
        _say(f"heads: {name}", options)
        source = Model(source=str(run.folder / name))
        processor = make_processor(source)
        model = load_model(head_class("generation", source), source)[0].eval().to(PartialState().device)
        rankings[name] = rank_model(run, name, model, processor, captions, options)
        rankings[name].save(folder / name)
        put_beside_model(rankings[name], run.folder / name)
        looks[name] = look(run, model, processor, rankings[name], shown)
    questions = prepare_questions(run, QUESTIONS, ANSWERED, options.questions)
    objects = prepare_questions(run, OBJECTS, REPORTED, options.questions, **OBJECT_OPTIONS)
    figures = {}
    for name in run.names:
        _say(f"answers: {name}", options)
        figures[name] = {"vqa": answer(run, name, *questions), "objects": answer(run, name, *objects)}
    answered = {
        name: (found["vqa"]["vqa_accuracy"], mean_hallucination(found["objects"])) for name, found in figures.items()
    }
    rows = table_rows(rankings, answered, usual_answer_accuracy(run, questions[1].splits[ANSWERED]))
    for number, example in enumerate(shown):
        of_methods = {name: looks[name][number] for name in looks}
        gold = [phrase.boxes for phrase in example.phrases]
        picture = folder / "pictures" / f"{example.image_id}.png"
        patch_comparison_figure(folder_pictures(run.images)(example.image_id), of_methods, gold, picture)
    report = next(iter(rankings.values())).reported_on.counts
    note = CAPTION.format(count=options.top_k, phrases=report.total, images=len(report.image_ids))
    write_text(folder / "vlm.md", f"{table(rows)}\n\n{note}\n")
    content = {"rows": {name: dict(zip(COLUMNS, row, strict=True)) for name, row in rows.items()}, "answers": figures}
    write_text(folder / "vlm.json", to_json(content, indent=1) + "\n")
    return to_json(content) if options.json else f"{table(rows)}\nwritten: {folder}/ (vlm.md, heads, pictures)"


def _say(line: str, options: argparse.Namespace) -> None:
    if not options.quiet:
        print(line, file=sys.stderr)
