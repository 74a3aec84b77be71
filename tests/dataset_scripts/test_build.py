# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
import json
import subprocess
import sys
from pathlib import Path

import datasets
import pytest

from grounded_attention.commands.build_data import main
from grounded_attention.commands.rows_options import parse_options
from grounded_attention.dataset_scripts.builders.flickr30k_entities import Flickr30kEntities
from grounded_attention.dataset_scripts.builders.vgp import VGP
from grounded_attention.dataset_scripts.files.errors import DataError
from tests.dataset_scripts.entities_files import write_vgp
from tests.helpers.built import built

PAIRS = [("1", "A man", "An old man", 2), ("1", "A man", "a giraffe", 2)]


def test_parquet_holds_the_rows_of_the_builder(tmp_path, capsys):
    data = write_vgp(tmp_path / "data", PAIRS)
    output = tmp_path / "built"
    arguments = ["vgp", "negatives=random", "--data-dir", str(data), "--output", str(output), "seed=3"]
    assert main([*arguments, "--json"]) == 0
    printed = json.loads(capsys.readouterr().out)
    assert printed["rows"] == {"train": 60, "validation": 10, "test": 10}
    assert printed["output"] == str(output)
    assert main(arguments) == 0
    printed = capsys.readouterr().out
    assert "train: 60 rows" in printed
    assert "rows_with_phrase_not_in_captions" in printed
    builder = built(VGP, data, tmp_path / "cache", negatives="random", seed=3)
    assert json.loads((output / "report.json").read_text()) == builder.report
    loaded = datasets.load_dataset("parquet", data_dir=str(output), cache_dir=str(tmp_path / "cache"))
    for split in ("train", "validation", "test"):
        assert list(loaded[split]) == list(builder.as_dataset(split))
        assert loaded[split].features == builder.as_dataset(split).features


def test_a_second_build_replaces_the_first(tmp_path):
    data = write_vgp(tmp_path / "data", PAIRS)
    output = tmp_path / "built"
    arguments = ["vgp", "--data-dir", str(data), "--output", str(output), "--split", "train", "--split", "test"]
    assert main([*arguments, "negatives=random"]) == 0
    assert main([*arguments, "negatives=random", "negatives_per_image=0"]) == 0
    loaded = datasets.load_dataset("parquet", data_dir=str(output), cache_dir=str(tmp_path / "cache"))
    assert set(loaded) == {"train", "test"}
    assert len(loaded["train"]) == 30


@pytest.mark.parametrize(
    "command, message",
    {
        "flickr30k_entities --data-dir nowhere": "nowhere: the data folder does not exist",
        "vgp --data-dir data": "pass regions=FOLDER",
        "vgp --data-dir data --config ternary": "Available: ['typology', 'binary']",
        "vgp --data-dir data negative=random": "unknown option: found 'negative=random'",
        "vgp --data-dir data negatives=random seed=1 seed=2": "option seed=2: expected KEY=VALUE, each once",
        "vgp --data-dir data seed=[1": "option seed: invalid YAML",
        "vgp --data-dir data seed=one": "bad option seed",
        "flickr30k_entities --data-dir data --split dev": "no such split",
    }.items(),
)
def test_errors_are_one_line_and_exit_2(tmp_path, monkeypatch, capsys, command, message):
    write_vgp(tmp_path / "data", PAIRS)
    monkeypatch.chdir(tmp_path)
    assert main([*command.split(), "--output", "built"]) == 2
    *_, line = capsys.readouterr().err.splitlines()
    assert line.startswith("error: ")
    assert message in line
    assert not (tmp_path / "built").exists()


@pytest.mark.parametrize("earlier", [True, False])
@pytest.mark.parametrize("place", ["built/notes/mine.txt", "built/vgp-train.parquet", "built.incomplete/mine.txt"])
def test_files_of_others_are_not_removed(tmp_path, capsys, place, earlier):
    data = write_vgp(tmp_path / "data")
    output = tmp_path / "built"
    mine = tmp_path / place
    arguments = ["flickr30k_entities", "--data-dir", str(data), "--output", str(output)]
    output.mkdir()
    if earlier:
        assert main(arguments) == main(arguments) == 0  # a build replaces its own
    built = {path: path.read_bytes() for path in output.iterdir()}
    mine.parent.mkdir(exist_ok=True)
    mine.write_text("x")
    assert main(arguments) == 2
    assert "contains other files" in capsys.readouterr().err
    assert mine.read_text() == "x"
    assert {path: path.read_bytes() for path in output.iterdir() if path in built} == built


def test_a_build_may_follow_one_that_was_killed(tmp_path):
    data = write_vgp(tmp_path / "data")
    output = tmp_path / "built"
    left = tmp_path / "built.incomplete" / "flickr30k_entities-train.parquet"
    left.parent.mkdir()
    left.write_bytes(b"PAR1")
    assert main(["flickr30k_entities", "--data-dir", str(data), "--output", str(output)]) == 0
    assert not left.parent.exists()


def test_the_output_may_not_be_a_link(tmp_path, capsys):
    data = write_vgp(tmp_path / "data")
    target = tmp_path / "elsewhere"
    target.mkdir()
    (tmp_path / "built").symlink_to(target)
    assert main(["flickr30k_entities", "--data-dir", str(data), "--output", str(tmp_path / "built")]) == 2
    assert "is a symbolic link" in capsys.readouterr().err
    assert not any(target.iterdir())


def test_options_take_the_type_of_the_builder():
    assert parse_options(VGP, ["seed=7", "regions=01"]) == {"seed": 7, "regions": "01"}
    with pytest.raises(DataError, match="unknown option"):
        parse_options(Flickr30kEntities, ["seed=7"])


def test_the_command_runs_from_the_clone(tmp_path):
    root = Path(__file__).parents[2]
    command = [sys.executable, "-m", "grounded_attention", "data", "build"]
    shown = subprocess.run([*command, "vgp", "--help"], cwd=root, capture_output=True, text=True, check=True).stdout
    assert "--data-dir data --output" in shown
    arguments = ["vgp", "--data-dir", str(tmp_path), "--output", str(tmp_path / "out"), "negatives=random"]
    failed = subprocess.run([*command, *arguments], cwd=root, capture_output=True, text=True)
    assert failed.returncode == 2
    assert "Traceback" not in failed.stderr
    assert failed.stderr.splitlines()[-1].startswith(f"error: {tmp_path}")
