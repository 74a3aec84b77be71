# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""The readers under fire: what they read, and the command that reads it."""

import hashlib
import json
import shutil
from functools import partial
from pathlib import Path

import yaml

from grounded_attention.commands import build_data, evaluate, import_regions
from grounded_attention.dataset_scripts.regions.table import RegionTable
from grounded_attention.heads.table import HeadTable
from grounded_attention.labelling.labels import PseudoLabels
from grounded_attention.tasks.answering import read_answers
from grounded_attention.training.experiments.models import load_model, make_processor
from grounded_attention.training.recipes.model_family import head_class
from grounded_attention.training.recipes.recipe import Model, load_recipe
from tests.helpers.legacy_region_files import CASES
from tests.helpers.region_samples import SIZE, sample, write_table
from tests.helpers.tiny_scenes import tiny_recipe

from .builder_files import WRITERS
from .more_readers import MORE_READERS, saved_rows
from .reader import OUT, Reader, copy_of, keep, keep_file, keeping

# What each builder reads of the scenes, and its options; the others read files of `builder_files`.
BUILT = {
    "coco_captions": "coco",
    "conceptual_captions": "",
    "flickr30k_entities": "flickr30k_entities",
    "gqa": "gqa",
    "llava_instruct": "llava",
    "lxmert_pretraining": "lxmert",
    "nlvr2": "nlvr2",
    "pope": "refcoco+",
    "refcoco": "refcoco+",
    "text_corpus": "corpus.txt",
    "vcr": "",
    "vgp": "vgp flickr30k_entities",
    "visual_genome_regions": "",
    "vqa_v2": "vqa",
}
OPTIONS = {
    "nlvr2": "image_id_format=url_stem",
    "pope": "instances=instances.json least_objects=2",
    "refcoco": "--config refcoco+",
    "vgp": "negatives=random",
}
# Builders whose `data_dir` is not the folder of the scenes.
PLACES = {"text_corpus": "corpus.txt", "pope": "refcoco+"}

# Builders


def _official(name, base, folder):
    copy_of(*BUILT[name].split())(base / "scenes", folder)
    if name in WRITERS:
        WRITERS[name](folder)


def _build(name, folder):
    options = ["--data-dir", str(folder / PLACES.get(name, "")), "--output", str(OUT)]
    return build_data.main([name, *options, *OPTIONS.get(name, "").split()])


# Region tables and feature files


def _read_table(path):
    table = RegionTable.open(path)
    table.verify()
    found = hashlib.sha256()
    for image_id in table.ids:
        regions = table[image_id]
        found.update(image_id.encode() + regions.boxes.tobytes() + regions.features.tobytes())
    return found.hexdigest(), len(table.ids)


def _import(kind, folder):
    source = folder
    if kind != "vl_bert_zip" or list(folder.glob("*.zip")):
        source = next(path for path in sorted(folder.iterdir()) if path.suffix not in (".json", ".pkl"))
    shutil.rmtree("table", ignore_errors=True)
    options = ["--format", kind, "--feature-size", str(SIZE), "--output", "table"]
    status = import_regions.main([str(source), *options])
    if status == 0:
        keep(*_read_table(Path("table")))
    return status


def _write_legacy(write, base, folder):
    write(folder, [sample(str(number), seed=number) for number in (11, 12, 13, 14)])


# Models, recipes, lists


def _checkpoint(base, folder):
    shutil.copytree(base / "model", folder, dirs_exist_ok=True)


def _read_checkpoint(folder):
    source = Model(source=str(folder))
    vocabulary = make_processor(source).tokenizer.get_vocab()
    model, _ = load_model(head_class("vgp", source), source)
    found = hashlib.sha256()
    for name, value in sorted(model.state_dict().items()):
        found.update(name.encode() + value.numpy().tobytes())
    return (vocabulary, found.hexdigest()), len(vocabulary)


def _recipe(base, folder):
    (folder / "recipe.yaml").write_text(yaml.safe_dump(tiny_recipe(Path("scenes"), Path("run"))))


def _read_recipe(folder):
    return load_recipe(folder / "recipe.yaml", []), 1


def _answers(base, folder):
    (folder / "answers.json").write_text(json.dumps([f"answer {number}" for number in range(50)]))


def _read_answers(folder):
    found = read_answers(str(folder / "answers.json"), [])
    return found, len(found)


def _predictions(base, folder):
    copy_of("vqa")(base / "scenes", folder)
    questions = json.loads(next((folder / "vqa").glob("*val*questions.json")).read_text())["questions"]
    answers = [{"question_id": question["question_id"], "answer": "yes"} for question in questions]
    (folder / "answers.json").write_text(json.dumps(answers))


def _read_predictions(folder):
    files = ["--predictions", str(folder / "answers.json"), "--task", "vqa", "--data-dir", str(folder)]
    return keep_file(evaluate.main([*files, "--split", "validation", "--output", "measured"]), "measured/metrics.json")


def _read_labels(folder):
    labels = PseudoLabels(folder / "labels")
    labels.verify()
    rows = list(labels.rows)
    return rows, len(rows)


def _read_audited(folder):
    table = HeadTable.load(folder / "audited").to_pandas()
    return table.to_csv(), len(table)


def _table(base, folder):
    write_table(folder / "regions", ["a", "bb", "ccc", "dddd"])


def _builder(name):
    return Reader(f"build {name}", partial(_official, name), partial(_build, name), saved_rows)


def _importer(name):
    kind, write, _ = CASES[name]
    return Reader(f"import {name}", partial(_write_legacy, write), partial(_import, kind))


ALL_READERS = (
    *map(_builder, BUILT),
    *map(_importer, CASES),
    Reader("region table", _table, keeping(lambda folder: _read_table(folder / "regions"))),
    Reader("recipe", _recipe, keeping(_read_recipe)),
    Reader("answers list", _answers, keeping(_read_answers)),
    Reader("predictions", _predictions, _read_predictions),
    Reader("checkpoint", _checkpoint, keeping(_read_checkpoint)),
    Reader("pseudo-labels", copy_of("labels"), keeping(_read_labels)),
    Reader("audit result", copy_of("audited"), keeping(_read_audited)),
    *MORE_READERS,
)
READERS = {reader.name: reader for reader in ALL_READERS}
