# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""Several region tables, tracks, splits and items of the downstream tasks, from a recipe; what is refused."""

import json

import numpy as np
import pytest
from transformers import AutoModelForVisualQuestionAnswering

from grounded_attention.dataset_scripts.builders.predictions import VQA_NAMES, read_answers
from grounded_attention.dataset_scripts.regions.table import RegionTable, RegionTableWriter
from grounded_attention.training.experiments.prepared_data import open_regions
from grounded_attention.training.loop.joins import JoinedRegions
from grounded_attention.training.recipes.recipe import load_recipe
from grounded_attention.utils.project import find_recipe
from tests.helpers.tiny_scenes import refusal, run_train, tiny_recipe


def copy_table(source, target, keep):
    table = RegionTable.open(source)
    with RegionTableWriter(target, provenance={"source": "copy"}) as writer:
        for image_id in table.ids:
            if keep(image_id):
                writer.write(table[image_id])
    return target


def expressions(scenes, output, **data):
    recipe = tiny_recipe(scenes, output, methods=["none"], task="referring_expressions")
    detected = str(scenes / "regions")
    true = str(scenes / "regions_gt")
    recipe["data"] |= {"regions": [detected, true], "tracks": {"ground_truth": true, "detected": detected}, **data}
    return recipe


def questions(scenes, output, **sections):
    return tiny_recipe(scenes, output, methods=["none"], task="vqa", options={"answers": {"fewest": 1}}, **sections)


def results(run):
    return json.loads((run / "results.json").read_text())["methods"]["none"]


def test_tables_read_as_one(scenes, tmp_path):
    detected, true = (RegionTable.open(scenes / name) for name in ("regions", "regions_gt"))
    joined = open_regions([str(scenes / "regions"), str(scenes / "regions_gt")])
    image = detected.ids[0]
    both = joined[image]
    parts = (detected[image], true[image])
    for name in ("boxes", "features", "classes", "scores"):
        assert np.array_equal(getattr(both, name), np.concatenate([getattr(part, name) for part in parts])), name
    assert both.class_probs is None  # the true boxes have none
    ids = detected.ids[:3]
    assert joined.counts(ids).tolist() == [len(joined[image_id]) for image_id in ids]
    assert joined.feature_size == detected.feature_size
    assert set(joined.ids) == set(detected.ids)
    some = copy_table(scenes / "regions", tmp_path / "some", lambda image_id: image_id != image)
    partly = open_regions([str(some), str(scenes / "regions_gt")])
    assert np.array_equal(partly[image].boxes, true[image].boxes)
    assert partly.counts([image]).tolist() == [len(true[image])]
    with pytest.raises(KeyError, match=f"found '{image}'"):
        open_regions([str(some)])[image]
    assert len(JoinedRegions([RegionTable.open(some)], empty=True)[image]) == 0


def test_one_training_is_scored_on_every_track_and_split(scenes, tmp_path, monkeypatch, capsys):
    """With an image without detections: its sentences are misses on that track, and none on the other."""
    rows_of = json.loads((scenes / "refcoco+" / "instances.json").read_text())
    table = RegionTable.open(scenes / "regions")
    recipe = expressions(scenes, tmp_path / "run", limit={"train": 8})
    assert run_train(monkeypatch, tmp_path, recipe) == 0
    items = json.loads((tmp_path / "run" / "none" / "items_testA.json").read_text())
    image = items["image_id"][0]
    assert rows_of["images"]
    assert image in table
    some = str(copy_table(scenes / "regions", tmp_path / "some", lambda image_id: image_id != image))
    recipe = expressions(scenes, tmp_path / "run", limit={"train": 8}, regions=some)
    recipe["data"]["tracks"]["detected"] = some
    assert run_train(monkeypatch, tmp_path, recipe, "overwrite=true") == 0
    figures = results(tmp_path / "run")["figures"]
    assert list(figures) == ["validation", "testA", "testB"]
    items = json.loads((tmp_path / "run" / "none" / "items_testA.json").read_text())
    lost = items["image_id"].count(image)
    found = figures["testA"]
    assert lost
    assert found["detected_expressions_without_detections"] == lost
    assert found["ground_truth_expressions_without_detections"] == 0
    assert found["detected_expressions_count"] == found["ground_truth_expressions_count"] == len(items["example_id"])
    for track in ("detected", "ground_truth"):
        scores = items[f"{track}_expressions_accuracy"]
        assert found[f"{track}_expressions_accuracy"] == pytest.approx(np.mean(scores))
    misses = [s for s, i in zip(items["detected_expressions_accuracy"], items["image_id"], strict=True) if i == image]
    assert misses == [0.0] * lost
    assert found["ground_truth_expressions_upper_bound"] == 1.0
    table = (tmp_path / "run" / "table.md").read_text()
    assert "none, testB" in table
    assert "ground_truth_expressions" in table


def test_questions_with_and_without_answers(scenes, tmp_path, monkeypatch, capsys):
    recipe = questions(scenes, tmp_path / "run")
    recipe["data"]["limit"] = {"train": 16, "validation": 5, "test": 4}
    assert run_train(monkeypatch, tmp_path, recipe) == 0
    assert "answers are outside the list" in capsys.readouterr().out
    run = tmp_path / "run" / "none"
    figures = results(tmp_path / "run")
    items = json.loads((run / "items_validation.json").read_text())
    assert figures["vqa_accuracy"] == figures["figures"]["validation"]["vqa_accuracy"]
    assert figures["vqa_accuracy"] == pytest.approx(np.mean(items["vqa_accuracy"]))
    assert figures["figures"]["test"] == {"vqa_count": 4}
    answers = read_answers(run / "predictions_validation.json", **VQA_NAMES)
    assert answers == dict(zip(items["example_id"], items["answer"], strict=True))
    assert len(answers) == 5
    assert len(read_answers(run / "predictions_test.json", **VQA_NAMES)) == 4
    model = AutoModelForVisualQuestionAnswering.from_pretrained(run, trust_remote_code=True)
    assert set(answers.values()) <= set(model.config.id2label.values())


def test_a_nested_start_and_training_on_what_is_measured(scenes, tmp_path, monkeypatch, capsys):
    training = {**tiny_recipe(scenes, tmp_path)["training"], "max_steps": 1}
    start = {"task": "pretraining", "options": {"background": False}, "training": training}
    recipe = questions(scenes, tmp_path / "run", start=start, model=_model(scenes, vqa_loss="cross_entropy"))
    recipe["data"]["train_splits"] = ["train", "validation"]
    assert run_train(monkeypatch, tmp_path, recipe) == 0
    printed = capsys.readouterr().out
    assert "validation is used for training" in printed
    assert "answers, train: " in printed
    assert json.loads((tmp_path / "run" / "none" / "config.json").read_text())["vqa_loss"] == "cross_entropy"


def _model(scenes, **config):
    model = tiny_recipe(scenes, scenes)["model"]
    return {**model, "config": {**model["config"], **config}}


def test_questions_about_an_image_without_features(scenes, tmp_path, monkeypatch, capsys):
    content = json.loads((scenes / "vqa" / "v2_OpenEnded_mscoco_val2014_questions.json").read_text())
    image = str(content["questions"][0]["image_id"])
    some = copy_table(scenes / "regions", tmp_path / "some", lambda image_id: image_id != image)
    recipe = questions(scenes, tmp_path / "run")
    recipe["data"] |= {"regions": str(some), "limit": {}}
    assert run_train(monkeypatch, tmp_path, recipe) == 2
    line = capsys.readouterr().err.strip().splitlines()[-1]
    assert line.startswith("error: ")
    assert f"'{image}'" in line
    assert str(some) in line


def test_a_table_of_other_images(scenes, tmp_path, monkeypatch, capsys):
    whole = RegionTable.open(scenes / "regions")
    with RegionTableWriter(tmp_path / "other", provenance={"source": "made"}) as writer:
        record = whole[whole.ids[0]]
        writer.write(type(record)("COCO_1", record.width, record.height, record.boxes, record.features))
    recipe = expressions(scenes, tmp_path / "run")
    recipe["data"]["tracks"]["detected"] = str(tmp_path / "other")
    assert run_train(monkeypatch, tmp_path, recipe) == 2
    line = capsys.readouterr().err.strip().splitlines()[-1]
    assert "images of the rows is in the region table" in line
    assert "COCO_1" in line
    assert "image_id_format" in line


@pytest.mark.parametrize(
    ("override", "words"),
    [
        ("methods=[direct]", ["'direct'", "phrases", "referring_expressions"]),
        ("data.regions=null", ["data.regions is null", "referring_expressions"]),
        ("text_only_baseline=true", ["text_only_baseline", "referring_expressions"]),
        ("options.convention=giou", ["options", "'giou'", "vl_bert"]),
        ("data.train_splits=[]", ["data.train_splits is empty"]),
        ("data.train_splits=[trian]", ["data.train_splits", "trian", "'data.train_splits: train'"]),
        ("data.tracks={x: nowhere}", ["nowhere"]),
        ("data.options={config_name: refcocop}", ["refcocop"]),
    ],
)
def test_a_wrong_key_or_value(scenes, tmp_path, monkeypatch, capsys, override, words):
    line = refusal(capsys, monkeypatch, tmp_path, expressions(scenes, tmp_path / "run"), override)
    assert all(word in line for word in words), line


def test_the_settings_of_the_public_code_are_the_facts_table():
    vqa, expressions, vcr = (load_recipe(find_recipe(f"{n}_released")) for n in ("vqa", "refcoco_plus", "vcr"))
    assert vqa.training["learning_rate"] == pytest.approx(6.25e-7 * 4 * 64)
    assert vqa.training["num_train_epochs"] == 5
    assert expressions.training["learning_rate"] == pytest.approx(8e-7 * 4 * 4 * 2)
    assert vcr.training["learning_rate"] == pytest.approx(7e-5 * 4 * 4 * 4)
    for recipe, warmup, clip in ((vqa, 500, 1), (expressions, 3750, 1), (vcr, 1000, 10)):
        assert (recipe.training["warmup_steps"], recipe.training["max_grad_norm"]) == (warmup, clip)
    assert vqa.data.train_splits == ["train", "validation"]
    assert load_recipe(find_recipe("vqa")).data.train_splits == ["train"]
