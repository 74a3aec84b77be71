# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""`train.py` from end to end on a few scenes: what it writes, what its checkpoints load as, how it continues."""

import math
import re
import shutil
import sys

import datasets
import pytest
import torch
from torch.testing import assert_close

import train
from grounded_attention.dataset_scripts.regions.table import RegionTable
from grounded_attention.modeling import VLBertForVGP
from grounded_attention.processing import VLBertProcessor
from grounded_attention.training.loop.trainer import GroundingTrainer
from tests.helpers.project_files import ROOT
from tests.helpers.run_elsewhere import run_elsewhere
from tests.helpers.tiny_scenes import run_train, tiny_recipe
from tests.training.runs import assert_ran, assert_same_weights, kill, read_json, results, saved_weights, train_in

METHODS = ["none", "indirect", "direct", "semi_direct"]
FIGURES = {"all_heads", "best_layer", "best_head", "rollout", "chance"}


def recipe_of(scenes, output, **sections):
    """Four methods and a text-only model from a pre-trained start."""
    training = tiny_recipe(scenes, output)["training"]
    start = {"task": "pretraining", "training": {**training, "max_steps": 2}}
    whole = {"methods": METHODS, "start": start, "text_only_baseline": True, "pictures": 1}
    return tiny_recipe(scenes, output, **{**whole, **sections})


@pytest.fixture(scope="module")
def first(tmp_path_factory, scenes):
    """A finished run; no test changes it."""
    directory = tmp_path_factory.mktemp("first")
    train_in(directory, recipe_of(scenes, directory / "run"))
    return directory / "run"


@pytest.fixture
def trained(monkeypatch):
    """(directory, checkpoint it resumed from) of every training that a test starts."""
    calls = []
    train = GroundingTrainer.train

    def recorded(self, resume_from_checkpoint=None, **kwargs):
        calls.append((self.args.output_dir.rsplit("/", 1)[1], resume_from_checkpoint))
        return train(self, resume_from_checkpoint=resume_from_checkpoint, **kwargs)

    monkeypatch.setattr(GroundingTrainer, "train", recorded)
    return calls


def figures(run):
    return {name: result["figures"] for name, result in results(run)["methods"].items()}


def test_results_have_the_agreed_schema(first):
    found = results(first)
    assert list(found["methods"]) == METHODS
    for result in found["methods"].values():
        grounding = result["text_to_region_accuracy"]
        assert grounding.keys() >= FIGURES
        values = [grounding[name] for name in FIGURES]
        values += [result["identification_accuracy"], result["vgp_accuracy"]]
        assert all(isinstance(value, float) and math.isfinite(value) and 0 <= value <= 1 for value in values)
        assert result["figures"]["test"]["identification_count"] == 8
    assert found["baselines"].keys() == {"majority", "chance", "text_only"}
    for baseline in found["baselines"].values():
        assert baseline.keys() >= {"identification_accuracy", "vgp_accuracy"}
    chances = {result["text_to_region_accuracy"]["chance"] for result in found["methods"].values()}
    assert len(chances) == 1
    assert 0 < chances.pop() < 0.5


def test_the_table_the_curves_and_the_pictures_are_there(first):
    table = (first / "table.md").read_text()
    assert table.count("\n|") >= len(METHODS) + 3
    drawn = [first / f"{name}.png" for name in ("loss_curves", "heads")]
    assert all(path.read_bytes().startswith(b"\x89PNG") for path in drawn)
    page = (first / "run.html").read_text()
    assert 'id="examples"' in page
    assert '"models":["before training","none","indirect","direct","semi_direct"]' in re.sub(r"(?<=[,:]) ", "", page)
    for name in METHODS:
        history = read_json(first / name / "history.json")
        assert [entry["step"] for entry in history if "loss" in entry] == [1, 2, 3]


LOAD = """
import sys, torch
from transformers import AutoConfig, AutoModel, AutoProcessor
from transformers.dynamic_module_utils import get_class_from_dynamic_module
directory, arguments, output = sys.argv[1:]
for name in ("modeling", "processing", "training"):
    try:
        __import__(name)
    except ImportError:
        continue
    raise SystemExit(f"{name} is importable")
config = AutoConfig.from_pretrained(directory, trust_remote_code=True)
base = AutoModel.from_pretrained(directory, trust_remote_code=True).eval()
processor = AutoProcessor.from_pretrained(directory, trust_remote_code=True)
task = get_class_from_dynamic_module(config.auto_map["VLBertForVGP"], directory).from_pretrained(directory).eval()
inputs = processor(**torch.load(arguments, weights_only=True), return_tensors="pt")
with torch.no_grad():
    outputs, states = task(**inputs), base(**inputs).last_hidden_state
torch.save([outputs.identification_logits, outputs.vgp_logits, states], output)
"""


@pytest.mark.parametrize("method", ["direct", "indirect"])
def test_a_checkpoint_loads_where_the_project_is_not(first, scenes, tmp_path, method):
    table = RegionTable.open(scenes / "regions")
    regions = table[table.ids[0]]
    first_phrase = {"sentence": 0, "start": 0, "end": 10, "boxes": []}
    second_phrase = {"sentence": 1, "start": 0, "end": 5, "boxes": []}
    arguments = {
        "text": ["a red ball near a box"],
        "text_pair": ["a box"],
        "region_features": [torch.from_numpy(regions.features.copy())],
        "region_boxes": [torch.from_numpy(regions.boxes.copy())],
        "phrases": [[first_phrase, second_phrase]],
        "phrase_pairs": [[(0, 1)]],
    }
    torch.save(arguments, tmp_path / "arguments.pt")
    done = run_elsewhere(LOAD, tmp_path, str(first / method), f"{tmp_path}/arguments.pt", f"{tmp_path}/outputs.pt")
    assert_ran(done)
    model = VLBertForVGP.from_pretrained(first / method).eval()
    inputs = VLBertProcessor.from_pretrained(first / method)(**arguments, return_tensors="pt")
    with torch.no_grad():
        expected = model(**inputs)
        states = model.vl_bert(**inputs).last_hidden_state
    found = torch.load(tmp_path / "outputs.pt", weights_only=True)
    assert_close(found, [expected.identification_logits, expected.vgp_logits, states])


def test_a_finished_run_trains_nothing_again(first, scenes, tmp_path, trained, run_recipe):
    shutil.copytree(first, tmp_path / "run")
    run_recipe(recipe_of(scenes, tmp_path / "run", resume=True))
    assert trained == []
    assert results(tmp_path / "run") == results(first)


def test_an_interrupted_run_trains_what_is_missing(first, scenes, tmp_path, trained, run_recipe):
    shutil.copytree(first, tmp_path / "run")
    (tmp_path / "run/indirect/results.json").unlink()
    with open(tmp_path / "run/direct/model.safetensors", "r+b") as file:
        file.truncate(100)  # torn, though its results are there
    run_recipe(recipe_of(scenes, tmp_path / "run", resume=True))
    assert trained == [("indirect", None), ("direct", None)]
    assert figures(tmp_path / "run") == figures(first)
    for name in METHODS:
        assert_same_weights(saved_weights(tmp_path / "run" / name), saved_weights(first / name))


def test_methods_have_the_attention_back_end_of_the_recipe(scenes, tmp_path, monkeypatch, run_recipe):
    used = []
    train = GroundingTrainer.train

    def recorded(self, **kwargs):
        used.append(self.model.config._attn_implementation)
        return train(self, **kwargs)

    monkeypatch.setattr(GroundingTrainer, "train", recorded)
    recipe = recipe_of(scenes, tmp_path / "run", methods=["direct"], text_only_baseline=False)
    run_recipe(recipe, "model.config.attn_implementation=eager")
    assert used == ["supervised_eager", "supervised_eager"], "the start and the method"


def test_methods_side_by_side_are_those_one_after_another(first, scenes, tmp_path, monkeypatch, run_recipe):
    """All but one method and the text-only model are there; these are trained in processes of their own."""
    monkeypatch.setenv("HF_DATASETS_CACHE", str(tmp_path / "cache"))
    for name in ("start", "none", "indirect", "semi_direct"):
        shutil.copytree(first / name, tmp_path / "run" / name)
    recipe = recipe_of(scenes, tmp_path / "run", resume=True, workers=2)
    run_recipe(recipe)
    assert figures(tmp_path / "run") == figures(first)
    baselines = results(tmp_path / "run")["baselines"]
    assert baselines["text_only"]["figures"] == results(first)["baselines"]["text_only"]["figures"]
    logs = {path.parent.name for path in (tmp_path / "run").glob("*/log.txt")}
    assert logs == {"direct", "text_only"}
    assert_same_weights(saved_weights(tmp_path / "run/direct"), saved_weights(first / "direct"))


def test_a_method_continues_from_its_last_complete_checkpoint(scenes, tmp_path, trained, run_recipe):
    recipe = tiny_recipe(scenes, tmp_path / "run", resume=True)
    recipe["training"] |= {"save_strategy": "steps", "save_steps": 1}
    run_recipe(recipe)
    before = figures(tmp_path / "run")
    directory = tmp_path / "run/direct"
    weights = saved_weights(directory)
    kill(directory)
    (directory / "checkpoint-3/optimizer.pt").write_bytes(b"torn")
    run_recipe(recipe)
    assert trained == [("direct", None), ("direct", str(directory / "checkpoint-2"))]
    assert_same_weights(saved_weights(directory), weights)
    assert figures(tmp_path / "run") == before


def test_another_recipe_is_refused_and_overwrite_starts_again(
    scenes, tmp_path, monkeypatch, capsys, trained, run_recipe
):
    recipe = tiny_recipe(scenes, tmp_path / "run", methods=["none"])
    run_recipe(recipe)
    capsys.readouterr()
    assert run_train(monkeypatch, tmp_path, recipe) == 2
    assert "resume=true" in capsys.readouterr().err
    assert run_train(monkeypatch, tmp_path, recipe, "seed=7", "resume=true") == 2
    assert "seed (0, now 7)" in capsys.readouterr().err
    (tmp_path / "run/none/heads.json").touch()
    assert trained == [("none", None)]
    run_recipe(recipe, "seed=7", "overwrite=true")
    assert trained == [("none", None)] * 2
    assert not (tmp_path / "run/none/heads.json").exists()
    assert results(tmp_path / "run")["recipe"]["seed"] == 7


def test_the_recipe_of_make_train_runs_in_an_empty_folder(tmp_path, monkeypatch, capsys):
    """As on a fresh machine: data, vocabulary and start model are all made by the run itself."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")
    small = ["data.scenes.images=24", "data.limit={train: 16, validation: 8, test: 8}", "pictures=1", "workers=1"]
    small += ["training.max_steps=1", "start.training.max_steps=1", "training.warmup_steps=0"]
    monkeypatch.setattr(sys, "argv", ["train.py", str(ROOT / "recipes/scenes/scenes_vgp.yaml"), *small])
    assert train.main() == 0, capsys.readouterr().err
    assert (tmp_path / "data/scenes/vocab.txt").exists()
    assert (tmp_path / "runs/scenes_vgp/table.md").read_text().count("direct") >= 2
