# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""Scores a checkpoint, or a file of answers, on prepared data, also with the evidence of pictures kept or changed."""

import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import datasets
import numpy as np
import numpy.typing as npt
import torch
from PIL import Image
from torch.utils.data import DataLoader

from grounded_attention.analysis import MAPS, STEPS
from grounded_attention.analysis.faithfulness import (
    RANDOM,
    FaithfulCurves,
    measure_curves,
    random_map,
    step_fractions,
)
from grounded_attention.analysis.relevancy import region_maps
from grounded_attention.dataset_scripts.regions.table import Regions, RegionTableWriter
from grounded_attention.heads.attention_grounding import AttentionGrounding
from grounded_attention.metrics.significance import Estimates, estimate_ratio
from grounded_attention.modeling.finite_numbers import finite_outputs
from grounded_attention.pages.failures import Judged
from grounded_attention.supervision import get_method, supervise
from grounded_attention.tasks import TASKS, Task
from grounded_attention.tasks.judges import Judge, JudgeContext, with_scores
from grounded_attention.training.loop.checkpoint import refuse_changed
from grounded_attention.training.loop.trainer import GroundingTrainer
from grounded_attention.training.recipes.adapters import read_model_config
from grounded_attention.training.recipes.model_family import family_name, head_class
from grounded_attention.training.recipes.recipe import Model, Recipe
from grounded_attention.utils.boxes import covered_shares
from grounded_attention.utils.named_types import Batch, Fields, Row
from grounded_attention.utils.open_images import open_image
from grounded_attention.utils.progress import with_progress
from grounded_attention.utils.safe_paths import path_below

from .arguments import training_arguments
from .models import load_model, make_processor
from .prepared_data import PreparedData
from .trainers import check_fit


@dataclass(frozen=True)
class Scored:
    """The scores of one split on one track."""

    split: str
    track: str
    numbers: Fields
    judged: list[Judged]
    items: Mapping[str, list]

    @property
    def name(self) -> str:
        """The end of its file names."""
        return "_".join(filter(None, (self.split, self.track)))


def read_config(checkpoint: str, task: Task | None = None) -> Any:
    """Reads the configuration of a checkpoint that is whole, and whose family has the head of the task."""
    refuse_changed(checkpoint)
    model = Model(source=checkpoint)
    if task is None:
        family_name(model)
    else:
        head_class(task.head, model)
    return read_model_config(checkpoint)


def make_scorer(recipe: Recipe, checkpoint: str, data: PreparedData, directory: str) -> GroundingTrainer:
    """Makes a Trainer that only measures."""
    task = TASKS[recipe.task]
    source = Model(source=checkpoint)
    processor = make_processor(source)
    model, loading = load_model(head_class(task.head, source), source)
    if loading["missing_keys"]:
        what = f"{type(model).__name__} lacks weights, such as {min(loading['missing_keys'])}"
        raise ValueError(f"{checkpoint}: {what}: give the task that it was trained for, or copy it again")
    check_fit(model, processor, recipe, data)
    task = task.configure(data.options, model.config)
    supervise(model)
    return GroundingTrainer(
        model,
        training_arguments(recipe, Path(directory)),
        data_collator=data.collator(task, processor, recipe.seed),
        processing_class=getattr(processor, "processor", processor),
        task=task,
        method=get_method("none"),
        metrics=task.metrics,
    )


def tables(data: PreparedData) -> Fields:
    """Track -> its region table; without tracks, an empty name -> the only table."""
    return dict(data.tracks) or ({"": data.regions} if data.regions is not None else {})


def score_splits(checkpoint: str, recipe: Recipe, data: PreparedData, heads: bool = False) -> Iterator[Scored]:
    """Scores every split on every track; `heads` keeps the attention of each example too, whose rows have phrases."""
    with tempfile.TemporaryDirectory() as directory:
        trainer = make_scorer(recipe, checkpoint, data, directory)
        for split, rows in data.splits.items():
            for track, regions in (tables(data) or {"": None}).items():
                yield _score(trainer, split, track, rows, regions, heads)


def _score(trainer: Any, split: str, track: str, rows: Any, regions: Any, heads: bool) -> Scored:
    task = trainer.task
    judge = Judge(task.judge, rows, _context(trainer, rows, regions))
    if task.image_tokens:
        annotated = "phrases" in rows.column_names and any(map(len, rows["phrases"]))
        grounded = annotated and trainer.data_collator.images is not None
    else:
        grounded = regions is not None and task.always_has_phrases
    if grounded or heads:
        measured = [AttentionGrounding(not task.image_tokens and not heads, heads)]
    else:
        measured = []
    trainer.metrics = lambda: [*task.metrics(), *measured, judge]
    title = f"evaluate {split}" + (f", {track}" if track else "")
    numbers, items = trainer.measure_items(rows, title, regions)
    return Scored(split, track, numbers, with_scores(judge.judged, items), items)


def _context(trainer: Any, rows: Any, regions: Any) -> JudgeContext:
    labels = {name: each.names for name, each in _class_labels(rows.features)}
    names = [] if regions is None else regions.class_names
    background = getattr(trainer.task.options, "background", True)
    return JudgeContext(trainer.model.config, trainer.processing_class.tokenizer, labels, names, background)


def _class_labels(features: Any) -> Iterator[tuple[str, datasets.ClassLabel]]:
    """Every class column; a nested one has its last name."""
    for name, kind in features.items():
        if isinstance(kind, datasets.ClassLabel):
            yield name, kind
        elif isinstance(getattr(kind, "feature", None), dict):
            yield from _class_labels(kind.feature)


# Predictions without a model


def score_file(path: Path, task: Task, split: str, rows: Any) -> Scored:
    """Scores an official file of predictions."""
    scored = task.score_predictions(path, task.read_predictions(path), split, rows)
    return Scored(split, "", scored.numbers, scored.judged, scored.items)


def measure_faithfulness(
    recipe: Recipe, checkpoint: str, data: PreparedData, split: str, maps: Sequence[str] = MAPS
) -> FaithfulCurves:
    """Measures how faithful maps of regions are: regions are left out of `region_attention_mask`, or alone in it.

    The score is that of the decision, an accuracy. The whole-image region of VL-BERT is never left out. Besides `maps`
    (see `region_maps`) the random map is measured; `about` counts the examples without a gold answer.
    """
    if not TASKS[recipe.task].explains:
        known = ", ".join(name for name, each in TASKS.items() if each.explains)
        raise ValueError(f"the task {recipe.task!r} has no decision to explain; expected one of {known}")
    fractions = step_fractions(STEPS)
    rows = data.splits[split]
    scores: list[np.ndarray] = []
    with tempfile.TemporaryDirectory() as directory:
        trainer: Any = make_scorer(recipe, checkpoint, data, directory)
        task = trainer.task
        model = trainer.model.eval()
        loader = DataLoader(rows, trainer.args.eval_batch_size, collate_fn=trainer.data_collator.evaluating(rows))
        for batch in with_progress(loader, "cover regions"):
            batch = trainer._prepare_inputs(batch)
            inputs = {name: batch[name] for name in task.model_inputs if name in batch}
            candidates = batch["region_candidate_mask"].bool().cpu().numpy()
            found = [each.cpu().numpy() for each in region_maps(model, inputs, task.read_out, maps).values()]
            drawn = [random_map(candidates.shape[1], recipe.seed, len(scores) + n) for n in range(len(candidates))]
            score = partial(_score_regions, model, inputs, batch, task)
            scores += [*measure_curves(np.stack([*found, np.stack(drawn)], 1), candidates, score, fractions)]
    curves = np.stack(scores)  # (W, M, 2, F)
    has_score = ~np.isnan(curves).any((1, 2, 3))
    if not has_score.any():
        raise ValueError("no example has a score, because this split has no gold answers; give another split")
    about = {"task": recipe.task, "split": split, "without_a_score": int((~has_score).sum())}
    images = tuple(np.array(rows["image_id"])[has_score].tolist())
    return FaithfulCurves((*maps, RANDOM), fractions, images, curves[has_score], about=about)


@torch.no_grad()
def _score_regions(model: Any, inputs: Batch, batch: Batch, task: Task, shown: np.ndarray) -> np.ndarray:
    """(S, B) float64 scores with the shown regions (S, B, R) alone; NaN for examples without one."""
    attended = inputs["region_attention_mask"]
    scores = []
    for step in torch.from_numpy(shown):
        outputs = model(**{**inputs, "region_attention_mask": attended * step.to(attended)}, return_dict=True)
        scores.append(task.example_scores(finite_outputs(outputs), batch))
    return np.array(scores, dtype=np.float64)  # None is NaN


WHOLE = "whole"
CHANGED = KEPT, MASKED, REPLACED = "kept", "masked", "replaced"
VIEWS = (WHOLE, *CHANGED)


def evidence_metrics(
    right: Mapping[str, Sequence[float]],
    image_ids: Sequence[str],
    heads: npt.ArrayLike | None = None,
    chance: npt.ArrayLike | None = None,
) -> Estimates:
    """Scores N questions; `right`: view of `VIEWS` -> whether each answer is right, 0 or 1.

    Of attention, `heads` (N, H) is the share of the question's grounded words whose most attended region is evidence,
    NaN for a question without such words, which counts for the answers alone, and `chance` (N,) that of a random
    region, below 1. Returned are `accuracy` and that of each view, `dependence`; with attention also `attention` (of
    the head that is best on the images of the other half), `agreement` (questions in which most words look at the
    evidence where the answer depends on it, and do not where it does not), and `evidence_score`.
    """
    views = {view: np.asarray(right[view], dtype=float) for view in VIEWS}
    dependence = views[KEPT] - (views[MASKED] + views[REPLACED]) / 2
    estimates = {}
    for view, values in views.items():
        name = "accuracy" if view == WHOLE else f"accuracy, {view}"
        estimates[name] = estimate_ratio(values, None, image_ids)
    estimates["dependence"] = estimate_ratio(dependence, None, image_ids)
    if heads is None or chance is None:
        return estimates
    looked = best_head(np.asarray(heads, dtype=float), image_ids)
    lucky = np.asarray(chance, dtype=float)
    known = ~np.isnan(looked) & (lucky < 1)
    if not known.any():
        return estimates
    images = np.asarray(image_ids)[known].tolist()
    looked = looked[known]
    depends = dependence[known]
    above = (looked - lucky[known]) / (1 - lucky[known])
    estimates["attention"] = estimate_ratio(looked, None, images)
    estimates["agreement"] = estimate_ratio((looked > 0.5) == (depends > 0), None, images)
    estimates["evidence_score"] = estimate_ratio(depends * above, None, images)
    return estimates


def best_head(heads: np.ndarray, image_ids: Sequence[str]) -> np.ndarray:
    """(N,) the values (N, H) of the head that is best on the other half of the images: one that was chosen on the same
    questions would look better than it is."""
    _, image = np.unique(np.asarray(image_ids), return_inverse=True)
    sides = np.random.default_rng(0).permutation(image.max() + 1)[image] % 2
    means = []
    for side in (0, 1):
        means.append(np.nanmean(heads[sides == side], 0) if (sides == side).any() else None)
    chosen = []
    for each in means:
        chosen.append(int(np.argmax(np.nan_to_num(each))) if each is not None else 0)
    return np.where(sides == 0, heads[:, chosen[1]], heads[:, chosen[0]])


INSIDE = 0.5  # of a region's area in the evidence, from which it is evidence
Boxes = Sequence[Sequence[float]]


def _views(
    is_evidence: np.ndarray, own: np.ndarray, nothing: np.ndarray, foreign: np.ndarray
) -> dict[str, np.ndarray]:
    return {
        WHOLE: own,
        KEPT: np.where(is_evidence, own, nothing),
        MASKED: np.where(is_evidence, nothing, own),
        REPLACED: np.where(is_evidence, foreign, own),
    }


def picture_views(picture: Image.Image, boxes: Boxes, other: Image.Image) -> dict[str, Image.Image]:
    """View -> the picture; what is taken away gets the mean colour, what replaces it is of the same place."""
    pixels = np.asarray(picture.convert("RGB"))  # (H, W, 3)
    mean = pixels.mean((0, 1)).round().astype(np.uint8)
    foreign = np.asarray(other.convert("RGB").resize(picture.size))
    is_evidence = np.zeros((*pixels.shape[:2], 1), dtype=bool)
    for x1, y1, x2, y2 in np.asarray(boxes, dtype=float) * (picture.size * 2):
        is_evidence[int(np.floor(y1)) : int(np.ceil(y2)), int(np.floor(x1)) : int(np.ceil(x2))] = True
    view_pixels = _views(is_evidence, pixels, mean, foreign)
    return {view: Image.fromarray(values) for view, values in view_pixels.items()}


def region_views(record: Regions, boxes: Boxes, other: Regions, rng: np.random.Generator) -> dict[str, Regions]:
    """View -> the regions; features that are taken away are 0, those that replace them are of another picture's."""
    covered = covered_shares(record.boxes, boxes) >= INSIDE  # (R, boxes)
    is_evidence = np.any(covered, axis=1)[:, None]  # (R, 1)
    nothing = np.zeros_like(record.features)
    if len(other):
        foreign = other.features[rng.integers(len(other), size=len(record))]
    else:
        foreign = nothing
    view_features = _views(is_evidence, record.features, nothing, foreign)
    return {view: replace(record, features=features) for view, features in view_features.items()}


def draw_others(image_ids: Sequence[str], seed: int) -> list[int]:
    """For each row the number of a row of another picture."""
    if len({*image_ids}) < 2:
        raise ValueError("evidence is replaced by that of another picture: give rows of several pictures")
    rng = np.random.default_rng(seed)
    others = []
    for image_id in image_ids:
        other = int(rng.integers(len(image_ids)))
        while image_ids[other] == image_id:
            other = int(rng.integers(len(image_ids)))
        others.append(other)
    return others


def write_pictures(rows: Sequence[Row], folder: str, images: str, seed: int) -> None:
    """Writes the views of the pictures of rows: `<row number>_<view>.png`."""
    others = draw_others([row["image_id"] for row in rows], seed)
    for number, (row, other) in enumerate(zip(rows, others, strict=True)):
        picture = open_image(path_below(images, row["file_name"]))
        foreign = open_image(path_below(images, rows[other]["file_name"]))
        for view, view_picture in picture_views(picture, row["boxes"], foreign).items():
            view_picture.save(f"{folder}/{number}_{view}.png")


def write_regions(rows: Sequence[Row], folder: str, table: Any, seed: int) -> None:
    """Writes a table with the views of the regions of rows: `<row number>_<view>`."""
    others = draw_others([row["image_id"] for row in rows], seed)
    rng = np.random.default_rng(seed)
    with RegionTableWriter(folder, {"source": "evidence"}) as writer:
        for number, (row, other) in enumerate(zip(rows, others, strict=True)):
            views = region_views(table[row["image_id"]], row["boxes"], table[rows[other]["image_id"]], rng)
            for view, view_regions in views.items():
                writer.write(replace(view_regions, image_id=f"{number}_{view}", class_probs=None))
