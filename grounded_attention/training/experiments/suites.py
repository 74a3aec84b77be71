# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""Suites of probes: rows of a probe become rows of an existing task, whose scores of examples are read by the rules of
the probe (`metrics/probes.py`)."""

import math
import os
import random
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import datasets
import torch
from accelerate import PartialState

from grounded_attention.dataset_scripts.builders import BUILDERS
from grounded_attention.dataset_scripts.builders.row_forms import HUMANS
from grounded_attention.dataset_scripts.builders.rows import Rows
from grounded_attention.dataset_scripts.rows.probes import amber_descriptions, amber_words, is_amber
from grounded_attention.dataset_scripts.rows.reader import grounded_rows
from grounded_attention.dataset_scripts.scenes.probes import (
    COMPOSITION,
    EVIDENCE,
    OPTIONS,
    PAIRS,
    REVIEWED,
    STATEMENTS,
    VERDICTS,
    descriptions,
    scene_probe,
    shape_words,
)
from grounded_attention.dataset_scripts.scenes.records import MANIFEST
from grounded_attention.families import VLM
from grounded_attention.heads.heads_file import find_file
from grounded_attention.heads.pipeline import PatchGroundingPipeline
from grounded_attention.metrics.gqa_scores import GROUNDED
from grounded_attention.metrics.object_hallucination import (
    NO,
    YES,
    Described,
    description_metrics,
    load_word_tools,
    read_yes_or_no,
)
from grounded_attention.metrics.probes import Matched, box_metrics, match_metrics, verdict_metrics
from grounded_attention.metrics.significance import Estimates
from grounded_attention.metrics.vqa_accuracy import normalise_answer
from grounded_attention.tasks import TASKS
from grounded_attention.tasks.referring_expressions import in_pixels, meant_box
from grounded_attention.training.experiments.scoring import CHANGED, VIEWS, WHOLE, evidence_metrics
from grounded_attention.training.recipes.adapters import read_model_config
from grounded_attention.training.recipes.recipe import Data, Model, Recipe
from grounded_attention.utils.named_types import Columns, Fields, Row
from grounded_attention.utils.progress import with_progress
from grounded_attention.utils.safe_paths import path_below

from .models import make_processor
from .prepared_data import PreparedData, open_regions
from .scoring import read_config, score_splits, write_pictures, write_regions
from .vision_language import load_vlm

GROUNDING = "grounding"
HALLUCINATION = "hallucination"
LENGTH = {GROUNDING: 48, HALLUCINATION: 4, EVIDENCE: 8}  # tokens of an answer
DESCRIPTION = 256  # and of a free description
ASKED = 'Does this image show "{}"? Answer yes or no.'
DESCRIBE = "Describe the image."
CAPTION = "caption"  # the other way to match
# The splits that are measured, the first that there is.
MEASURED = ("test", "testA", "val", "validation", "train")
# Probes of scenes by the builders of the real data sets.
SCENES: Mapping[str, tuple[str, Fields, Sequence[str]]] = {
    GROUNDING: ("refcoco", {}, ("testA", "testB")),
    HALLUCINATION: (
        "pope",
        {"instances": "refcoco+/instances.json", "image_list": "flickr30k_entities/test.txt", "least_objects": 2,
         "questions": 4},
        ("test",),
    ),
}  # fmt: skip
# Suite -> what else is drawn on scenes, and the probe that it is drawn after.
DRAWN: Mapping[str, Mapping[str, str]] = {
    GROUNDING: {REVIEWED: "Ref-L4"},
    COMPOSITION: {OPTIONS: "What'sUp", STATEMENTS: "VSR", PAIRS: "Winoground"},
    HALLUCINATION: {VERDICTS: "AMBER"},
}
Items = Mapping[str, Columns]  # id of an example -> its scores and notes


@dataclass(frozen=True)
class Probe:
    """The rows of a probe, and the folder of their pictures."""

    name: str
    rows: datasets.Dataset
    images: str
    positive: str = YES
    descriptions: Sequence[Columns] = ()  # what AMBER asks to be described
    words: Callable[[], tuple[Any, ...]] = shape_words  # and by what words it is judged


@dataclass(frozen=True)
class Settings:
    """How a suite is run; the fields are options of `evaluate`."""

    checkpoint: str
    suite: str
    regions: str | None = None
    batch_size: int = 32
    limit: int | None = None
    seed: int = 0
    cpu: bool = False
    match: str = YES
    text_only: bool = False

    @cached_property
    def config(self) -> Any:
        """The configuration of the checkpoint."""
        return read_model_config(self.checkpoint)

    @property
    def is_vlm(self) -> bool:
        """Whether the checkpoint writes its answers."""
        return self.config.model_type in VLM.reads

    @property
    def reads_pixels(self) -> bool:
        """Whether the checkpoint is asked about pictures, and not about regions or texts alone."""
        return not self.text_only and (self.is_vlm or getattr(self.config, "vision_config", None) is not None)


def open_probes(suite: str, source: str, match: str, *where: str | None, **reading: Any) -> Iterator[Probe]:
    """A probe, and all others that are drawn on scenes."""
    yield open_probe(suite, source, *where, **reading)
    root = Path(source)
    for kind, after in DRAWN.get(suite, {}).items() if (root / MANIFEST).is_file() else ():
        if kind == STATEMENTS and match == CAPTION:
            print(f"{source}: statements are left out, which have no answer by --match {CAPTION}", file=sys.stderr)
            continue
        path = scene_probe(root, kind)
        if not path.stat().st_size:
            print(f"{source}: too few test images for {after}'s probe, which is left out", file=sys.stderr)
            continue
        probe = replace(open_probe(suite, str(path), str(root / "flickr30k-images")), name=f"scenes, {after}")
        yield replace(probe, positive=NO, descriptions=descriptions(root)) if kind == VERDICTS else probe


def open_probe(suite: str, source: str, images: str | None = None, split: str | None = None, **reading: Any) -> Probe:
    """Reads a probe: scenes, or anything that `grounded_rows` reads; `reading` are its `columns` and `boxes`."""
    root = Path(source)
    if (root / MANIFEST).is_file():
        pictures = str(root / "flickr30k-images")
        if suite in SCENES:
            name, options, splits = SCENES[suite]
            builder = BUILDERS[name](data_dir=source, **options)
            builder.download_and_prepare()
            rows = datasets.concatenate_datasets([builder.as_dataset(each) for each in splits])
            return Probe("scenes", rows, pictures)
        source = str(scene_probe(root, suite))
        images = images or pictures
        name = "scenes"
    else:
        name = root.name if root.exists() else source
    on_hub: Fields = {} if root.exists() else {"streaming": True}
    of_gqa = suite == EVIDENCE and not (root / MANIFEST).is_file() and any(root.rglob("val_sceneGraphs.json"))
    if of_gqa:
        gqa = BUILDERS["gqa"](data_dir=source, splits="val")
        gqa.download_and_prepare()
        if images is None:
            raise ValueError("give the folder of GQA's pictures: --images")
        listed = [made for row in gqa.as_dataset("validation") for made in gqa_evidence(row)]
        return Probe(name, datasets.Dataset.from_list(listed), os.path.abspath(images))
    named = list(grounded_rows(source, images=images, **reading, **on_hub).splits)
    if split is not None and split not in named:
        raise ValueError(f"{source}: no split {split}, found {', '.join(named) or 'rows without splits'}")
    chosen = split or next((each for each in MEASURED if each in named), named[0] if named else "")
    made = Rows(data_dir=source, form=suite, images=images, named_splits={"train": chosen}, **reading)
    made.download_and_prepare()
    # AMBER looks for inventions: there the answer no is the positive one.
    rows = made.as_dataset("train")
    if suite == HALLUCINATION and is_amber(root):
        asked = amber_descriptions(root, images)
        return Probe(name, rows, os.sep, NO, asked, lambda: (*load_word_tools(), *amber_words(root)))
    return Probe(name, rows, os.sep)


def gqa_evidence(row: Row) -> Iterator[Fields]:
    """A question of GQA with the boxes that it and its full answer mean; its own words are phrases."""
    phrases = [each for each in row["phrases"] if each["boxes"]]
    if phrases:
        picture = {"image_id": row["image_id"], "file_name": f"{row['image_id']}.jpg"}
        question = {name: row[name] for name in ("example_id", "text", "answer")}
        boxes = []
        for each in row["annotations"]:
            if each["box"] and each["part"] in GROUNDED:
                boxes.append(each["box"])
        yield {**picture, **question, "phrases": phrases, "boxes": boxes}


def run_suite(settings: Settings, probes: Sequence[Probe]) -> Iterator[tuple[str, Estimates]]:
    """The name of each probe, and its numbers."""
    for probe in probes:
        # At most `limit` rows, drawn; pairs stay together.
        if "pair" in probe.rows.column_names and any(probe.rows["pair"]):
            column = "pair"
        else:
            column = "example_id"
        keys = probe.rows[column]
        drawn = [*dict.fromkeys(probe.rows.shuffle(seed=settings.seed)[column])]
        kept = {*drawn[: settings.limit]}
        limited_rows = probe.rows.select([place for place, key in enumerate(keys) if key in kept])
        yield probe.name, _MEASURE[settings.suite](settings, probe, limited_rows)


def _grounding(settings: Settings, probe: Probe, rows: Any) -> Estimates:
    task = "grounded_generation" if settings.is_vlm else "referring_expressions"
    items = _score(settings, probe, task, rows, {"generate": LENGTH[GROUNDING]} if settings.is_vlm else {})
    predicted = []
    for row in rows:
        predicted.append(items[row["example_id"]].get("found_box" if settings.is_vlm else "box"))
    gold: list[Any] = [meant_box(row) for row in rows]
    if not settings.is_vlm:
        gold = [in_pixels(box, row["width"], row["height"])[0] for row, box in zip(rows, gold, strict=True)]
    about = gold, rows["image_id"], rows["wrong"] if "wrong" in rows.column_names else None
    estimates = box_metrics(predicted, *about)
    if settings.is_vlm and not settings.text_only and find_file(settings.checkpoint) is not None:
        if not estimates["answered"].value:
            estimates = {"answered": estimates["answered"]}
        looked = box_metrics(_boxes_of_heads(settings, probe, rows), *about)
        estimates |= {f"{name}, heads": each for name, each in looked.items() if "answered" not in name}
    return estimates


def _boxes_of_heads(settings: Settings, probe: Probe, rows: Any) -> list[Sequence[float]]:
    """The boxes that the heads of `heads.json` beside a decoder give, as `grounded-attention ground` does."""
    source = Model(source=settings.checkpoint)
    device = torch.device("cpu") if settings.cpu else PartialState().device
    pipe: Any = PatchGroundingPipeline(
        load_vlm(source)[0].eval(), processor=make_processor(source).processor, heads=settings.checkpoint,
        device=device, task="visual-grounding",
    )  # fmt: skip
    found = []
    for row in with_progress(rows, "boxes of heads"):
        name = row.get("file_name") or f"{row['image_id']}.jpg"
        asked = {"image": path_below(probe.images, name.lstrip(os.sep)), "caption": row["text"]}
        found.append(pipe.forward(pipe.preprocess(asked))["items"][0]["boxes"][0].box)
    return found


def _composition(settings: Settings, probe: Probe, rows: Any) -> Estimates:
    asked = []
    pictures = [name for name in ("file_name", "width", "height") if name in rows.column_names]
    for row in rows:
        if len(row["captions"]) == 1 and settings.is_vlm and settings.match == CAPTION:
            raise ValueError(f"{probe.name}: whether a statement is true has no answer by --match caption: use yes")
        about = {"image_id": row["image_id"], **{name: row[name] for name in pictures}}
        for number, text in enumerate(row["captions"]):
            key = f"{row['example_id']}#{number}"
            if not settings.is_vlm:
                asked.append({"example_id": key, "text": text, **about})
            elif settings.match == CAPTION:
                asked.append({"example_id": key, "text": DESCRIBE, "answers": [text], **about})
            else:
                question = {"text": ASKED.format(text), **about}
                asked += [{"example_id": f"{key}#{each}", "answers": [each], **question} for each in (YES, NO)]
    task = "grounded_generation" if settings.is_vlm else "image_text_match"
    items = _score(settings, probe, task, datasets.Dataset.from_list(asked), {})

    def probability(key: str) -> float:
        if not settings.is_vlm:
            return items[key]["match_probability"]
        if settings.match == CAPTION:
            return math.exp(-items[key]["answers_loss"])
        yes = items[f"{key}#{YES}"]["answers_loss"]
        no = items[f"{key}#{NO}"]["answers_loss"]
        return 1 / (1 + math.exp(min(yes - no, 700)))

    matched = []
    for row in rows:
        scores = [probability(f"{row['example_id']}#{number}") for number in range(len(row["captions"]))]
        matched.append(Matched(row["image_id"], scores, row["label"], row["group"], row["pair"]))
    return match_metrics(matched)


def _hallucination(settings: Settings, probe: Probe, rows: Any) -> Estimates:
    answers = _ask(settings, probe, rows, LENGTH[HALLUCINATION])
    verdicts = [read_yes_or_no(answers[name]["said"]) for name in rows["example_id"]]
    gold = [given[0] for given in rows["answers"]]
    images = rows["image_id"]
    groups = rows["sampling"]
    estimates = verdict_metrics(verdicts, gold, images, probe.positive)
    for group in dict.fromkeys(groups) if len(set(groups)) > 1 else ():
        places = [place for place, each in enumerate(groups) if each == group]
        answered = [verdicts[place] for place in places]
        right = [gold[place] for place in places]
        shown = [images[place] for place in places]
        numbers = verdict_metrics(answered, right, shown, probe.positive)
        estimates |= {f"{name}, {group}": numbers[name] for name in ("accuracy", "f1")}
    return estimates | (_descriptions(settings, probe) if probe.descriptions else {})


def _descriptions(settings: Settings, probe: Probe) -> Estimates:
    """AMBER's free descriptions; where they cannot be made or judged they are left out, and the terminal says so."""
    asked = list(probe.descriptions)
    if settings.limit is not None and settings.limit < len(asked):
        asked = random.Random(settings.seed).sample(asked, settings.limit)
    try:
        if not settings.is_vlm:
            raise ValueError("a model of regions writes no text")
        nouns, similar, related, safe = probe.words()
    except (ValueError, OSError) as error:
        print(f"{probe.name}: {len(asked)} free descriptions are left out: {error}", file=sys.stderr)
        return {}
    rows = [
        {"example_id": str(number), "image_id": each["file"], "file_name": each["file"].lstrip(os.sep),
         "text": each["query"], "answers": [", ".join(each["truth"]) or "nothing"]}
        for number, each in enumerate(asked)
    ]  # fmt: skip
    answers = _ask(settings, probe, datasets.Dataset.from_list(rows), DESCRIPTION)
    described = []
    for number, each in enumerate(asked):
        described.append(Described(each["file"], nouns(answers[str(number)]["said"]), each["truth"], each["hallu"]))
    return description_metrics(described, related, safe, similar)


def _evidence(settings: Settings, probe: Probe, rows: Any) -> Estimates:
    listed = [{"boxes": [box for phrase in row["phrases"] for box in phrase["boxes"]], **row} for row in rows]
    answers: dict[str, Fields] = {}
    with TemporaryDirectory() as folder:
        if settings.reads_pixels:
            write_pictures(listed, folder, probe.images, settings.seed)
        if settings.regions is not None:
            write_regions(listed, f"{folder}/regions", open_regions(settings.regions), settings.seed)
            settings = replace(settings, regions=f"{folder}/regions")
        probe = replace(probe, images=folder)
        for views in ((WHOLE,), CHANGED):
            questions = []
            for number, row in enumerate(listed):
                for view in views:
                    name = f"{number}_{view}"
                    about = {"example_id": name, "image_id": name, "file_name": f"{name}.png", "text": row["text"]}
                    phrases = row["phrases"] if view == WHOLE else []
                    questions.append({**about, "answers": [row["answer"]], "phrases": phrases})
            heads = views == (WHOLE,) and not settings.text_only
            answers |= _ask(settings, probe, datasets.Dataset.from_list(questions), LENGTH[EVIDENCE], heads)
    right: dict[str, list[bool]] = {}
    for kind in VIEWS:
        right[kind] = [answers_alike(answers[f"{n}_{kind}"]["said"], row["answer"]) for n, row in enumerate(listed)]
    if settings.text_only:
        return evidence_metrics(right, rows["image_id"])
    looked = [answers[f"{n}_{WHOLE}"] for n in range(len(listed))]
    heads_on_gold = [each["heads_on_gold"] for each in looked]
    return evidence_metrics(right, rows["image_id"], heads_on_gold, [each["heads_chance"] for each in looked])


def answers_alike(said: str, answer: str) -> bool:
    """Whether an answer is the right one as VQA v2 writes it; of a choice by letter the first letter counts."""
    if len(answer) == 1 and answer.isalpha() and answer.isupper():
        return said.strip("( *").startswith(answer) and not said.strip("( *")[1:2].isalpha()
    return normalise_answer(said) == normalise_answer(answer)


_MEASURE: Mapping[str, Callable[[Settings, Probe, Any], Estimates]] = {
    GROUNDING: _grounding,
    COMPOSITION: _composition,
    HALLUCINATION: _hallucination,
    EVIDENCE: _evidence,
}


def _ask(settings: Settings, probe: Probe, rows: Any, length: int, heads: bool = False) -> dict[str, Fields]:
    """The scores and notes of each question, and its answer as `said`; `length` is that of a written answer."""
    if settings.is_vlm:
        items = _score(settings, probe, "grounded_generation", rows, {"generate": length}, heads)
        return {name: {**item, "said": str(item["generated"])} for name, item in items.items()}

    def as_vqa(row: Fields) -> Fields:
        evidence = {"evidence": row["phrases"]} if heads else {}
        return {**evidence, "answers": row["answers"] * HUMANS, "question_type": "", "answer_type": "", "phrases": []}

    items = _score(settings, probe, "vqa", rows.map(as_vqa), {}, heads)
    return {name: {**item, "said": str(item["answer"])} for name, item in items.items()}


def _score(
    settings: Settings, probe: Probe, name: str, rows: Any, task_options: Columns, heads: bool = False
) -> Items:
    """The scores and notes of each example of a task; `heads` adds its attention."""
    task = TASKS[name]
    config = read_config(settings.checkpoint, task)
    if settings.text_only and (settings.regions or task.needs_regions):
        raise ValueError(f"--text-only: no --regions, and not the suite {settings.suite} of a model of regions")
    if settings.regions is None and not settings.reads_pixels and not settings.text_only:
        raise ValueError("the model reads regions: give --regions TABLE with those of the probe's pictures")
    options = {**task.trained_options(config, settings.regions is not None), **task_options}
    data = Data(data_dir=probe.images, regions=settings.regions)
    training = {"per_device_eval_batch_size": settings.batch_size, "use_cpu": settings.cpu}
    recipe = Recipe(name, options, seed=settings.seed, data=data, training=training)
    splits = {"test": task.to_rows(rows)}
    fitted = task.configure(options).fit_options(splits)
    regions = open_regions(settings.regions, task.empty_images)
    prepared = PreparedData(splits, regions, images=probe.images if settings.reads_pixels else None, options=fitted)
    [scored] = score_splits(settings.checkpoint, recipe, prepared, heads)
    names = [key for key in scored.items if key != "example_id"]
    items = {}
    for place, key in enumerate(scored.items["example_id"]):
        items[key] = {each: scored.items[each][place] for each in names}
    return items
