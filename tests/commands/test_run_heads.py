# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""`make audit`: from a run of two methods to one page, what is written beside it, cards that take it, mistakes."""

import dataclasses
import json
import shutil

import datasets
import numpy as np
import pytest
from numpy.testing import assert_array_equal

from grounded_attention.commands.heads import main
from grounded_attention.heads.card import HEADS as SECTION
from grounded_attention.heads.card import heads_section
from grounded_attention.heads.changes import compare
from grounded_attention.heads.table import HeadTable
from grounded_attention.training.loop.trainer import GroundingTrainer
from grounded_attention.utils.bounded_files import read_json
from tests.helpers.commands import read_error
from tests.helpers.region_samples import copy_table
from tests.helpers.tiny_scenes import run_train, tiny_recipe, tiny_scenes

METHODS = ("none", "direct")


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    """Scenes, a finished run in `run`, and its audit."""
    folder = tmp_path_factory.mktemp("methods")
    scenes = tiny_scenes(folder / "scenes")
    with pytest.MonkeyPatch.context() as patch:
        assert run_train(patch, folder, recipe(folder, scenes)) == 0
        assert main(["--run", str(folder / "run"), "--limit", "1", "--explore", "1", "--device", "cpu"]) == 0
    return folder


def recipe(folder, scenes):
    return tiny_recipe(scenes, folder / "run", methods=["direct", "none"], resume=True)


@pytest.fixture(autouse=True)
def cached(root, monkeypatch):
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", root / "cache")


def test_the_folder_has_the_audit_of_each_method_and_one_page(root):
    folder = root / "run" / "heads"
    before, after = (HeadTable.load(folder / name) for name in METHODS)
    for result in (before, after):
        assert result.entities.keys() == {"text_to_region", "region_to_text"}
        assert "det" in result.relations
        assert result.choice.split == "validation"
        assert result.about["split"] == "test"
        assert len(result.entities["text_to_region"]["all"].image_ids) == 1
    changes = json.loads((folder / "direct" / "changes.json").read_text())
    assert changes["before"] == "none"
    assert changes["after"] == "direct"
    assert changes["correction"] == "holm"
    expected = compare(before, after).corrected["text_to_region"]
    assert_array_equal(changes["text_to_region"]["p_corrected"], expected)
    assert not (folder / "none" / "changes.json").exists(), "what the others are compared with comes first"
    page = (folder / "heads.html").read_text()
    for part in ("What changed", "Syntactic relations", "Explorer", "not active"):
        assert part in page
    assert "http://" not in page.replace("http://www.w3.org", "")
    assert "https://" not in page


def test_cards_have_the_section_and_training_finds_its_models_finished(root, monkeypatch):
    for name in METHODS:
        section = heads_section(read_json(root / "run" / "heads" / name / "heads.json"))
        text = (root / "run" / name / "README.md").read_text()
        assert text.count(SECTION.place) == text.count(section) == 1
    monkeypatch.setattr(GroundingTrainer, "train", lambda *_, **__: pytest.fail("a finished model is trained again"))
    assert run_train(monkeypatch, root, recipe(root, root / "scenes")) == 0


def test_missing_parses_and_cards_are_reported_and_skipped(root, tmp_path, capsys):
    shutil.copytree(root / "scenes", tmp_path / "old", ignore=shutil.ignore_patterns("parses"))
    shutil.copytree(root / "run", tmp_path / "run")
    (tmp_path / "run" / "none" / "README.md").unlink()
    small = ["--limit", "2", "--explore", "0", "--device", "cpu", "--json"]
    small += ["--data-dir", str(tmp_path / "old"), "--output", str(tmp_path / "out")]
    assert main(["--run", str(tmp_path / "run"), *small]) == 0
    printed = capsys.readouterr()
    assert f"relations left out: no parses in {tmp_path / 'old' / 'parses'}" in printed.err
    assert "--images 24 --seed 1 --force" in printed.err
    assert "none/README.md: no card with a place" in printed.err
    found = json.loads(printed.out)
    assert list(found["methods"]) == list(METHODS)
    best = found["methods"]["direct"]["best"][0]
    counts = HeadTable.load(tmp_path / "out" / "direct").entities["text_to_region"]["all"]
    assert best["accuracy"] == counts.accuracy[int(best["layer"]), best["head"]]
    page = (tmp_path / "out" / "heads.html").read_text()
    assert "Syntactic relations" not in page
    assert "left out: no parses" in page


def missing(run):
    (run / "direct" / "results.json").unlink()


def torn(run):
    with open(run / "none" / "model.safetensors", "r+b") as file:
        file.truncate(100)


def change_data(run, **changes):
    recipe = json.loads((run / "recipe.json").read_text())
    recipe["data"] |= changes
    (run / "recipe.json").write_text(json.dumps(recipe))
    return recipe["data"]


def three_captions(run):
    change_data(run, options={"captions_per_image": 3, "negatives": "random"})


def far_away(run):
    corner = np.array([0, 0, 0.001, 0.001], dtype=np.float32)

    def moved(regions):
        return dataclasses.replace(regions, boxes=np.tile(corner, (len(regions.boxes), 1)))

    copy_table(change_data(run)["regions"], run / "corners", moved)
    change_data(run, regions=str(run / "corners"))


@pytest.mark.parametrize(
    "damage, options, message",
    [
        (shutil.rmtree, "", "run: recipe.json is missing, so this is not a run of train.py; make it with `make"),
        (missing, "", "run/direct: results.json is missing, so this model is not finished; make it with `make train`"),
        (torn, "", "run/none: the checkpoint is incomplete or was changed"),
        (three_captions, "", "found '5 captions', expected 3"),
        (far_away, "--limit 1", "no phrase has a region of"),
        (lambda run: None, "--data-dir nowhere", "nowhere"),
    ],
)
def test_user_errors_are_one_line(root, tmp_path, capsys, damage, options, message):
    shutil.copytree(root / "run", tmp_path / "run", ignore=shutil.ignore_patterns("heads"))
    damage(tmp_path / "run")
    assert main(["--run", str(tmp_path / "run"), "--device", "cpu", *options.split()]) == 2
    assert message in read_error(capsys)
    assert not (tmp_path / "run" / "heads").exists()
