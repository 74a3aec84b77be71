# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""Several region tables, tracks, splits and items of the downstream tasks, from a recipe; what is refused."""

from dataclasses import replace

import numpy as np
import pytest
from transformers import AutoModelForVisualQuestionAnswering

from grounded_attention.dataset_scripts.files.records import VQA_NAMES, read_answer_file
from grounded_attention.dataset_scripts.regions.table import RegionTable, RegionTableWriter
from grounded_attention.training.experiments.prepared_data import open_regions
from grounded_attention.training.loop.joins import JoinedRegions
from grounded_attention.training.recipes.recipe import load_recipe
from grounded_attention.utils.project import find_recipe
from tests.helpers.region_samples import copy_table, without
from tests.helpers.tiny_scenes import run_train, tiny_recipe
from tests.training.runs import assert_words, read_json, results


def expressions(scenes, output, **data):
    recipe = tiny_recipe(scenes, output, methods=["none"], task="referring_expressions")
    tracks = {"ground_truth": f"{scenes}/regions_gt", "detected": f"{scenes}/regions"}
    recipe["data"] |= {"regions": [*tracks.values()], "tracks": tracks, **data}
    return recipe


def questions(scenes, output):
    return tiny_recipe(scenes, output, methods=["none"], task="vqa", options={"answers": {"fewest": 1}})


def figures_of(run):
    return results(run)["methods"]["none"]["figures"]


def test_tables_read_as_one(scenes, tmp_path):
    detected = RegionTable.open(scenes / "regions")
    true = RegionTable.open(scenes / "regions_gt")
    joined = open_regions([str(scenes / "regions"), str(scenes / "regions_gt")])
    image = detected.ids[0]
    both = joined[image]
    for name in ("boxes", "features", "classes", "scores"):
        expected = np.concatenate([getattr(detected[image], name), getattr(true[image], name)])
        assert np.array_equal(getattr(both, name), expected), name
    assert both.class_probs is None  # the true boxes have none
    assert joined.counts([image]).tolist() == [len(both)]
    assert joined.feature_size == detected.feature_size
    assert set(joined.ids) == set(detected.ids)
    some = copy_table(scenes / "regions", tmp_path / "some", without(image))
    partly = open_regions([str(some), str(scenes / "regions_gt")])
    assert np.array_equal(partly[image].boxes, true[image].boxes)
    assert partly.counts([image]).tolist() == [len(true[image])]
    with pytest.raises(KeyError, match=f"found '{image}'"):
        open_regions([str(some)])[image]
    assert len(JoinedRegions([RegionTable.open(some)], empty=True)[image]) == 0


def test_one_training_is_scored_on_every_track_and_split(scenes, tmp_path, run_recipe):
    """With an image without detections: its sentences are misses on that track, and none on the other."""
    run_recipe(expressions(scenes, tmp_path / "run", limit={"train": 8}))
    image = read_json(tmp_path / "run/none/items_testA.json")["image_id"][0]
    assert image in RegionTable.open(scenes / "regions")
    some = copy_table(scenes / "regions", tmp_path / "some", without(image))
    recipe = expressions(scenes, tmp_path / "run", limit={"train": 8}, regions=str(some))
    run_recipe(recipe, f"data.tracks.detected={some}", "overwrite=true")
    figures = figures_of(tmp_path / "run")
    assert list(figures) == ["validation", "testA", "testB"]
    found = figures["testA"]
    items = read_json(tmp_path / "run/none/items_testA.json")
    is_lost = np.array(items["image_id"]) == image
    assert is_lost.any()
    assert found["detected_expressions_without_detections"] == is_lost.sum()
    assert found["ground_truth_expressions_without_detections"] == 0
    for track in ("detected", "ground_truth"):
        assert found[f"{track}_expressions_count"] == len(is_lost)
        scores = np.array(items[f"{track}_expressions_accuracy"])
        assert found[f"{track}_expressions_accuracy"] == pytest.approx(scores.mean())
    assert not np.array(items["detected_expressions_accuracy"])[is_lost].any()
    assert found["ground_truth_expressions_upper_bound"] == 1.0
    table = (tmp_path / "run/table.md").read_text()
    assert "none, testB" in table
    assert "ground_truth_expressions" in table


def test_questions_with_and_without_answers(scenes, tmp_path, capsys, run_recipe):
    run_recipe(questions(scenes, tmp_path / "run"), "data.limit={train: 16, validation: 5, test: 4}")
    assert "answers are outside the list" in capsys.readouterr().out
    run = tmp_path / "run/none"
    found = results(tmp_path / "run")["methods"]["none"]
    items = read_json(run / "items_validation.json")
    assert found["vqa_accuracy"] == found["figures"]["validation"]["vqa_accuracy"]
    assert found["vqa_accuracy"] == pytest.approx(np.mean(items["vqa_accuracy"]))
    assert found["figures"]["test"] == {"vqa_count": 4}
    answers = read_answer_file(run / "predictions_validation.json", **VQA_NAMES)
    assert answers == dict(zip(items["example_id"], items["answer"], strict=True))
    assert len(answers) == 5
    assert len(read_answer_file(run / "predictions_test.json", **VQA_NAMES)) == 4
    model = AutoModelForVisualQuestionAnswering.from_pretrained(run, trust_remote_code=True)
    assert set(answers.values()) <= set(model.config.id2label.values())


def test_a_nested_start_and_training_on_what_is_measured(scenes, tmp_path, capsys, run_recipe):
    start = "start={task: pretraining, options: {background: false}, training: {max_steps: 1, use_cpu: true}}"
    recipe = questions(scenes, tmp_path / "run")
    run_recipe(recipe, start, "model.config.vqa_loss=cross_entropy", "data.train_splits=[train,validation]")
    assert_words(capsys.readouterr().out, "validation is used for training ... answers, train: ")
    assert read_json(tmp_path / "run/none/config.json")["vqa_loss"] == "cross_entropy"


def error_of(capsys, monkeypatch, folder, recipe):
    assert run_train(monkeypatch, folder, recipe) == 2
    return capsys.readouterr().err.strip().splitlines()[-1]


def test_questions_about_an_image_without_features(scenes, tmp_path, monkeypatch, capsys):
    content = read_json(scenes / "vqa/v2_OpenEnded_mscoco_val2014_questions.json")
    image = str(content["questions"][0]["image_id"])
    some = copy_table(scenes / "regions", tmp_path / "some", without(image))
    recipe = questions(scenes, tmp_path / "run")
    recipe["data"] |= {"regions": str(some), "limit": {}}
    assert_words(error_of(capsys, monkeypatch, tmp_path, recipe), f"error: ... '{image}' ... {some}")


def test_a_table_of_other_images(scenes, tmp_path, monkeypatch, capsys):
    whole = RegionTable.open(scenes / "regions")
    with RegionTableWriter(tmp_path / "other", provenance={"source": "made"}) as writer:
        writer.write(replace(whole[whole.ids[0]], image_id="COCO_1"))
    recipe = expressions(scenes, tmp_path / "run")
    recipe["data"]["tracks"]["detected"] = str(tmp_path / "other")
    line = error_of(capsys, monkeypatch, tmp_path, recipe)
    assert_words(line, "images of the rows is in the region table ... COCO_1 ... image_id_format")


@pytest.mark.parametrize(
    "override, words",
    [
        ("methods=[direct]", "'direct' ... phrases ... referring_expressions"),
        ("data.regions=null", "data.regions is null ... referring_expressions"),
        ("text_only_baseline=true", "text_only_baseline ... referring_expressions"),
        ("options.convention=giou", "options ... 'giou' ... vl_bert"),
        ("data.train_splits=[]", "data.train_splits is empty"),
        ("data.train_splits=[trian]", "data.train_splits ... trian ... 'data.train_splits: train'"),
        ("data.tracks={x: nowhere}", "nowhere"),
        ("data.options={config_name: refcocop}", "refcocop"),
    ],
)
def test_a_wrong_key_or_value(scenes, tmp_path, override, words, refused):
    assert_words(refused(expressions(scenes, tmp_path / "run"), override), words)


def training_of(name):
    return load_recipe(find_recipe(name)).training


def test_the_settings_of_the_public_code_are_the_facts_table():
    vqa = training_of("vqa_released")
    assert vqa["learning_rate"] == pytest.approx(6.25e-7 * 4 * 64)
    assert vqa["num_train_epochs"] == 5
    assert (vqa["warmup_steps"], vqa["max_grad_norm"]) == (500, 1)
    expressions = training_of("refcoco_plus_released")
    assert expressions["learning_rate"] == pytest.approx(8e-7 * 4 * 4 * 2)
    assert (expressions["warmup_steps"], expressions["max_grad_norm"]) == (3750, 1)
    vcr = training_of("vcr_released")
    assert vcr["learning_rate"] == pytest.approx(7e-5 * 4 * 4 * 4)
    assert (vcr["warmup_steps"], vcr["max_grad_norm"]) == (1000, 10)
    assert load_recipe(find_recipe("vqa_released")).data.train_splits == ["train", "validation"]
    assert load_recipe(find_recipe("vqa")).data.train_splits == ["train"]
