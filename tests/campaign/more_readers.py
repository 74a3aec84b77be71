# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""Readers under fire of models, runs, pictures and lists."""

import json
import shutil
from contextlib import chdir
from functools import partial
from pathlib import Path

import pyarrow.parquet as parquet
import torch

from grounded_attention.commands import convert, heads, pseudo_ground
from grounded_attention.dataset_scripts.regions.boxes import read_boxes
from grounded_attention.families import VLM
from grounded_attention.heads.dependency_parses import read_conllu
from grounded_attention.heads.heads_file import ChosenHeads
from grounded_attention.training.experiments.models import load_model, make_processor
from grounded_attention.training.recipes.model_family import head_class
from grounded_attention.training.recipes.recipe import Model
from tests.helpers.vl_bert_checkpoints import vgp_checkpoint

from .fingerprint import fingerprint
from .inputs import use_cache
from .more_jobs import study, train_with
from .reader import OUT, Reader, copy_of, keep, keep_file, keeping

_BASE = []  # the folder of `prepare`, whose cache of rows a continued run uses


def _original(base, folder):
    torch.save({"state_dict": vgp_checkpoint()[1]}, folder / "original.pth")
    (folder / "fields.json").write_text(json.dumps({"num_attention_heads": 4}))


def _convert(folder):
    shutil.rmtree("converted", ignore_errors=True)
    files = ["--checkpoint", str(folder / "original.pth"), "--config", str(folder / "fields.json")]
    return keep_file(convert.main(["vl_bert", *files, "--output", "converted"]), "converted/model.safetensors")


def _adapter(base, folder):
    """The adapter names its model, here the copy beside it."""
    copy_of("vlm", "adapter")(base, folder)
    path = folder / "adapter" / "adapter_config.json"
    content = {**json.loads(path.read_text()), "base_model_name_or_path": str(folder / "vlm")}
    path.write_text(json.dumps(content))


def _load_vlm(name, folder):
    source = Model(source=str(folder / name), tokenizer=str(folder / "vlm"))
    vocabulary = make_processor(source).tokenizer.get_vocab()
    model, _ = load_model(head_class(VLM.head, source), source)
    sums = sorted((name, float(value.double().sum())) for name, value in model.state_dict().items())
    return (sums, vocabulary), 1


def _continue(folder):
    """Trains on from the checkpoints of a run that was stopped before its end."""
    shutil.rmtree("work", ignore_errors=True)
    shutil.copytree(folder / "stopped", "work/place")
    shutil.copyfile(_BASE[0] / "recipe.yaml", "work/recipe.yaml")
    with chdir("work/place"):
        status = train_with()(_BASE[0])
    return keep_file(status, "work/place/run/direct/model.safetensors")


def _stopped(base, folder):
    _BASE[:] = [base]
    copy_of("stopped")(base, folder)


def _finished(name, base, folder):
    _BASE[:] = [base]
    shutil.copytree(base / name, folder / "run")


def _again(folder):
    """Runs the study again: it reads its cells and writes its table; a damaged cell is trained again."""
    shutil.rmtree("work", ignore_errors=True)
    shutil.copytree(folder / "run", "work")
    with chdir("work/place"):
        status = study(_BASE[0])
    if status == 0:
        found = fingerprint(Path("work/place/run"))
        keep((found["results.json"], found["table.md"]), 1)
    return status


def _heads_of_run(folder):
    """Measures the heads of the models of a run."""
    use_cache(_BASE[0])
    run = ["--run", str(folder / "run" / "place" / "run"), "--output", "measured", "--device", "cpu"]
    status = heads.main([*run, "--limit", "2", "--explore", "0"])
    return keep_file(status, "measured/direct/heads.csv")


def _ranked(folder):
    return ChosenHeads.from_file(folder / "ranked"), 1


def _parsed(folder):
    parses = read_conllu(folder / "parses")
    return parses, len(parses)


def _pictures(base, folder):
    _BASE[:] = [base]
    (folder / "pictures").mkdir()
    pictures = sorted((base / "scenes" / "flickr30k-images").iterdir())
    for picture in pictures:
        shutil.copyfile(picture, folder / "pictures" / picture.name)
    (folder / "list.txt").write_text("".join(f"{path.stem}\tpictures/{path.name}\n" for path in pictures))


def _label(folder):
    use_cache(_BASE[0])
    captions = ["--captions", "flickr30k_entities", "--data-dir", str(_BASE[0] / "scenes"), "--split", "train"]
    options = ["--images", str(folder / "list.txt"), "--grounder", "scenes", "--phrases", "given", "--limit", "12"]
    return pseudo_ground.main([*captions, *options, "--output", str(OUT)])


def saved_rows():
    """The rows of all Parquet files."""
    return sum(parquet.read_metadata(path).num_rows for path in OUT.rglob("*.parquet"))


def _boxes(base, folder):
    record = {"boxes": [[1, 2, 30, 40], [5, 5, 20, 20]], "scores": [0.5, 0.25], "labels": ["a dog", "a ball"]}
    (folder / "boxes.json").write_text(json.dumps({f"image {number}": record for number in range(6)}))
    (folder / "boxes.jsonl").write_text("".join(json.dumps({"image_id": str(n), **record}) + "\n" for n in range(6)))


def _read_boxes(folder):
    found = [read_boxes(folder / name) for name in ("boxes.json", "boxes.jsonl")]
    return found, sum(map(len, found))


MORE_READERS = (
    Reader("original checkpoint", _original, _convert),
    Reader("stopped run", _stopped, _continue, slow=True),
    Reader("study folder", partial(_finished, "finished_study"), _again, slow=True),
    Reader("audited run", partial(_finished, "finished"), _heads_of_run, slow=True),
    Reader("measured run", partial(_finished, "finished_vlm"), _heads_of_run, slow=True),
    Reader("vision-language model", copy_of("vlm"), keeping(partial(_load_vlm, "vlm"))),
    Reader("adapter", _adapter, keeping(partial(_load_vlm, "adapter")), slow=True),
    Reader("heads.json", copy_of("ranked"), keeping(_ranked)),
    Reader("parses", copy_of("scenes/parses"), keeping(_parsed)),
    Reader("pictures", _pictures, _label, saved_rows, slow=True),
    Reader("boxes", _boxes, keeping(_read_boxes)),
)
