# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""The readers under fire: what they read, and the command that reads it."""

import hashlib
import json
import shutil
from functools import partial
from pathlib import Path

import pyarrow.parquet as parquet
import yaml

from grounded_attention.commands import build_data, evaluate, import_regions
from grounded_attention.dataset_scripts.regions.table import RegionTable
from grounded_attention.heads.table import HeadTable
from grounded_attention.labelling.labels import PseudoLabels
from grounded_attention.tasks.answer_lists import read_answers
from grounded_attention.training.experiments.models import load_model, make_processor
from grounded_attention.training.recipes.model_family import head_class
from grounded_attention.training.recipes.recipe import Model, load_recipe
from tests.helpers.legacy_region_files import CASES
from tests.helpers.region_samples import SIZE, butd_fields, lxmert_fields, sample, write_table, write_tsv
from tests.helpers.tiny_scenes import tiny_recipe

from .builder_files import WRITERS
from .jobs import as_command
from .more_readers import MORE_READERS
from .reader import OUT, Reader, keep, kept_rows

# What each builder reads of the scenes, or of the files of `builder_files`, and its options.
BUILT: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "coco_captions": (("coco",), ()),
    "conceptual_captions": ((), ()),
    "flickr30k_entities": (("flickr30k_entities",), ()),
    "gqa": (("gqa",), ()),
    "llava_instruct": (("llava",), ()),
    "lxmert_pretraining": (("lxmert",), ()),
    "nlvr2": (("nlvr2",), ("image_id_format=url_stem",)),
    "pope": (("refcoco+",), ("instances=instances.json", "least_objects=2")),
    "refcoco": (("refcoco+",), ("--config", "refcoco+")),
    "text_corpus": (("corpus.txt",), ()),
    "vcr": ((), ()),
    "vgp": (("vgp", "flickr30k_entities"), ("negatives=random",)),
    "visual_genome_regions": ((), ()),
    "vqa_v2": (("vqa",), ()),
}
# Builders whose `data_dir` is not the folder of the scenes.
PLACES = {"text_corpus": "corpus.txt", "pope": "refcoco+"}

# Builders


def _copy(names, base, folder):
    for name in names:
        source = base / "scenes" / name
        shutil.copytree(source, folder / name) if source.is_dir() else shutil.copyfile(source, folder / name)


def _official(name, base, folder):
    _copy(BUILT[name][0], base, folder)
    if name in WRITERS:
        WRITERS[name](folder)


def _build(name, folder):
    where = folder / PLACES.get(name, "")
    return build_data.main([name, "--data-dir", str(where), "--output", str(OUT), *BUILT[name][1]])


def _built_rows():
    return sum(parquet.read_metadata(path).num_rows for path in OUT.rglob("*.parquet"))


# Region tables and feature files


def _digest_table(path):
    table = RegionTable.open(path)
    table.verify()
    found = hashlib.sha256()
    for image_id in table.ids:
        regions = table[image_id]
        found.update(image_id.encode() + regions.boxes.tobytes() + regions.features.tobytes())
    keep(found.hexdigest(), len(table.ids))


def _import(kind, folder):
    if kind == "vl_bert_zip" and not list(folder.glob("*.zip")):
        source = folder
    else:
        found = [path for path in sorted(folder.iterdir()) if path.suffix not in (".json", ".pkl")]
        source = found[0]
    arguments = [str(source), "--format", kind, "--feature-size", str(SIZE), "--output", "table"]
    shutil.rmtree("table", ignore_errors=True)
    status = import_regions.main(arguments)
    if status == 0:
        _digest_table(Path("table"))
    return status


def _write_legacy(write, base, folder):
    write(folder, [sample(str(number), seed=number) for number in (11, 12, 13, 14)])


def _write_tsv(fields, base, folder):
    write_tsv(folder / "obj36.tsv", [fields(sample(f"image-{n}", count=2, seed=n)) for n in range(6)])


# Models, recipes, lists


def _checkpoint(base, folder):
    shutil.copytree(base / "model", folder, dirs_exist_ok=True)


def _model(folder):
    def load():
        source = Model(source=str(folder))
        processor = make_processor(source)
        model, _ = load_model(head_class("vgp", source), source)
        found = hashlib.sha256()
        for name, value in sorted(model.state_dict().items()):
            found.update(name.encode() + value.numpy().tobytes())
        keep((processor.tokenizer.get_vocab(), found.hexdigest()), len(processor.tokenizer))

    return as_command(load)


def _recipe(base, folder):
    (folder / "recipe.yaml").write_text(yaml.safe_dump(tiny_recipe(Path("scenes"), Path("run"))))


def _read_recipe(folder):
    return as_command(lambda: keep(load_recipe(folder / "recipe.yaml", []), 1))


def _answers(base, folder):
    (folder / "answers.json").write_text(json.dumps([f"answer {number}" for number in range(50)]))


def _read_answers(folder):
    def read():
        found = read_answers(str(folder / "answers.json"), [])
        keep(found, len(found))

    return as_command(read)


def _predictions(base, folder):
    _copy(("vqa",), base, folder)
    questions = json.loads(next((folder / "vqa").glob("*val*questions.json")).read_text())["questions"]
    answers = [{"question_id": each["question_id"], "answer": "yes"} for each in questions]
    (folder / "answers.json").write_text(json.dumps(answers))


def _read_predictions(folder):
    files = ["--predictions", str(folder / "answers.json"), "--task", "vqa", "--data-dir", str(folder)]
    status = evaluate.main([*files, "--split", "validation", "--output", "measured"])
    if status == 0:
        keep(json.loads(Path("measured/metrics.json").read_text()), 1)
    return status


def _labels(base, folder):
    shutil.copytree(base / "labels", folder / "labels")


def _read_labels(folder):
    def read():
        labels = PseudoLabels(folder / "labels")
        labels.verify()
        rows = list(labels.rows)
        keep(rows, len(rows))

    return as_command(read)


def _audited(base, folder):
    shutil.copytree(base / "audited", folder / "audited")


def _read_audited(folder):
    def read():
        result = HeadTable.load(folder / "audited")
        keep(result.to_pandas().to_csv(), len(result.to_pandas()))

    return as_command(read)


def _table(base, folder):
    write_table(folder / "regions", ["a", "bb", "ccc", "dddd"])


READERS = {
    reader.name: reader
    for reader in (
        *(Reader(f"build {name}", partial(_official, name), partial(_build, name), _built_rows) for name in BUILT),
        *(
            Reader(f"import {name}", partial(_write_legacy, write), partial(_import, kind), kept_rows)
            for name, (kind, write, _) in CASES.items()
        ),
        Reader("import LXMERT tsv", partial(_write_tsv, lxmert_fields), partial(_import, "lxmert_tsv"), kept_rows),
        Reader("import bottom-up tsv", partial(_write_tsv, butd_fields), partial(_import, "butd_tsv"), kept_rows),
        Reader(
            "region table", _table, lambda folder: as_command(lambda: _digest_table(folder / "regions")), kept_rows
        ),
        Reader("recipe", _recipe, _read_recipe, kept_rows),
        Reader("answers list", _answers, _read_answers, kept_rows),
        Reader("predictions", _predictions, _read_predictions, kept_rows),
        Reader("checkpoint", _checkpoint, _model, kept_rows),
        Reader("pseudo-labels", _labels, _read_labels, kept_rows),
        Reader("audit result", _audited, _read_audited, kept_rows),
        *MORE_READERS,
    )
}
