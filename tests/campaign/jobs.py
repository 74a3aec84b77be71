# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""The commands under fire: each writes to its working directory, and is run again after a fault.

Importing this module imports everything that the commands need, so that forked processes begin at once.
"""

from collections.abc import Callable
from contextlib import chdir
from dataclasses import dataclass
from pathlib import Path

from grounded_attention.commands import build_data, draw_scenes, evaluate, heads, import_regions
from grounded_attention.commands.command_line import explain_error, make_parser, run
from grounded_attention.dataset_scripts.regions.readers import READERS
from grounded_attention.dataset_scripts.regions.table import RegionTable
from grounded_attention.training.experiments import experiment, report
from tests.helpers.region_samples import SIZE, lxmert_fields, sample, write_tsv
from tests.helpers.stub_grounder import label, many_texts, rows_of, save_images
from tests.helpers.tiny_checkpoint import save_checkpoint
from tests.helpers.tiny_scenes import tiny_scenes

from .fingerprint import fingerprint
from .hub_jobs import pushed_files, train_pushed
from .inputs import use_cache, write_models, write_run, write_stopped_run
from .more_jobs import (
    WHOLE,
    in_two_ranks,
    rank_heads,
    study,
    train_adapter,
    train_vlm,
    train_whole,
    train_with,
    write_whole,
)

PRELOADED = (READERS, experiment, report)
CAPTIONS = many_texts(12)


@dataclass(frozen=True)
class Job:
    """A command under fire."""

    name: str
    work: Callable  # runs it in the working directory; the argument is the folder of `prepare`
    result: Callable = fingerprint  # what must be equal afterwards, of the working directory
    ranks: int = 1  # processes


def prepare(base, whole=True):
    """Makes what the commands read; `whole`: also what only the last jobs, most readers and wrong values need."""
    use_cache(base)
    scenes = tiny_scenes(base / "scenes")
    save_checkpoint(scenes, base / "model")
    rows = [lxmert_fields(sample(f"image-{number}", count=3, seed=number)) for number in range(12)]
    rows[5:5] = [rows[0], rows[1][:4]]  # twice, and torn
    write_tsv(base / "obj36.tsv", rows)
    save_images(base / "pictures", rows_of(CAPTIONS))
    with chdir(base):
        _labels(base)
        assert _audit(base) == 0
    if whole:
        write_models(base)
        write_whole(base)
        with chdir(base):
            assert rank_heads(base) == 0
        write_stopped_run(base, train_with())
        write_run(base / "finished", train_with(), base)
        write_run(base / "finished_study", study, base)
        write_run(base / "finished_vlm", train_vlm, base)


def as_command(work):
    """Runs a piece of work as a command does: user errors are one line, program errors are raised."""

    def quiet(options):
        work()

    return run(make_parser("campaign", "examples:\n  none"), quiet, [], explain_error=explain_error)


def _rows(base):
    use_cache(Path.cwd())
    options = ["negatives=nearest", f"regions={base / 'scenes' / 'regions'}"]
    return build_data.main(["vgp", "--data-dir", str(base / "scenes"), "--output", "built", *options])


def _scenes(base):
    return draw_scenes.main(["--output", "drawn", "--images", "5", "--seed", "3"])


def _import(base):
    arguments = ["--format", "lxmert_tsv", "--feature-size", str(SIZE), "--resume", "--output", "regions"]
    return import_regions.main([str(base / "obj36.tsv"), *arguments, "--on-error", "skip"])


def _audit(base):
    use_cache(base)
    data = ["--data", "flickr30k_entities", "--data-dir", str(base / "scenes"), "--split", "test"]
    return heads.main(["--model", str(base / "model"), *data, "--output", "audited", "--limit", "4"])


def _evaluate(base):
    use_cache(base)
    data = ["--task", "vgp", "--data-dir", str(base / "scenes"), "--regions", str(base / "scenes" / "regions")]
    data += ["--images", str(base / "scenes" / "flickr30k-images"), "--limit", "4"]
    return evaluate.main([str(base / "model"), *data, "--output", "measured"])


def _labels(base):
    return as_command(lambda: label(rows_of(CAPTIONS), base / "pictures", Path("labels")))


def _imported(place):
    """The rows of the table. A continued import begins a new shard, so its files are others."""
    table = RegionTable.open(place / "regions")
    table.verify()
    found = {key: repr((table[key].boxes.tolist(), table[key].features.tolist())) for key in table.ids}
    about = {"checksum": table.info["checksum"], "summary": repr(table.info["summary"]), "ids": repr(table.ids)}
    return {**found, **about}


ALL_JOBS = (
    Job("train", train_with(start=True)),
    Job("train_one_kept", train_with(methods=["none", "direct"], start=True, save_total_limit=1, logging_steps=2)),
    Job("rows", _rows),
    Job("scenes", _scenes),
    Job("import", _import, _imported),
    Job("audit", _audit),
    Job("evaluate", _evaluate),
    Job("pseudo_labels", _labels),
    Job("train_two_ranks", in_two_ranks(train_with(methods=["none"])), ranks=2),
    Job("train_workers", train_with(dataloader_num_workers=2, logging_steps=2, save_total_limit=1)),
    Job("train_pushed", train_pushed, pushed_files),
    Job("study", study),
    Job("train_adapter", train_adapter),
    Job("rank_heads", rank_heads),
    *(Job(f"train_whole_{family}", train_whole(family)) for family in WHOLE),
)
JOBS = {job.name: job for job in ALL_JOBS}
