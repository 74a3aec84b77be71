# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""The measurements of the vision-language models of a run: on a tiny run on scenes, without and with supervision."""

import json
import re

import pytest
from PIL import Image
from transformers import AutoModelForImageTextToText, AutoProcessor

from grounded_attention.commands import heads, heads_run
from grounded_attention.dataset_scripts.builders import BUILDERS
from grounded_attention.heads.examples import grounded_examples
from grounded_attention.heads.ranking import rank_heads
from grounded_attention.heads.table import HeadTable
from tests.helpers.tiny_scenes import run_train, tiny_scenes
from tests.helpers.tiny_vlm_recipes import vlm_recipe

LIMIT = 2


def read_json(path):
    return json.loads(path.read_text())


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """A run of two models that were trained for one step, and what the command wrote."""
    folder = tmp_path_factory.mktemp("vlm_run")
    scenes = tiny_scenes(folder / "scenes")
    output = folder / "run"
    recipe = vlm_recipe(scenes, output, methods=["none", "direct"])
    recipe["data"] |= {"builder": "llava_instruct", "limit": {"train": 4, "validation": 2, "test": 2}}
    recipe["training"] |= {"max_steps": 1}
    with pytest.MonkeyPatch.context() as patch:
        assert run_train(patch, folder, recipe) == 0
        given = ["--limit", str(LIMIT), "--top-k", "2", "--explore", "1", "--device", "cpu"]
        assert heads.main(["--run", str(output), *given]) == 0
        yield scenes, output


def test_images_that_moved_with_the_data_are_found(finished, tmp_path):
    scenes, output = finished
    moved = tmp_path / "moved"
    moved.symlink_to(scenes)
    run = heads_run.find_run(heads.Heads(run=str(output), data_dir=str(moved)))
    image = next((scenes / "flickr30k-images").iterdir())
    assert run.picture_path(image.stem) == moved / "flickr30k-images" / image.name


def test_the_folder_has_the_page_and_the_numbers_of_all_models(finished):
    _, output = finished
    methods = read_json(output / "heads" / "heads_run.json")["methods"]
    assert list(methods) == ["none", "direct"]
    for name, numbers in methods.items():
        assert numbers["boxes"] == read_json(output / "heads" / name / "heads.json")["boxes"]
    files = [path.name for path in (output / "heads").iterdir()]
    assert sorted(files) == ["direct", "heads.html", "heads_run.json", "none"]


def test_pointing_is_that_of_the_same_rows_in_python(finished):
    """Captions are answers to the instruction; a phrase looks where its tokens look on average."""
    scenes, output = finished
    model = AutoModelForImageTextToText.from_pretrained(output / "direct")
    processor = AutoProcessor.from_pretrained(output / "direct")
    rows = BUILDERS["flickr30k_entities"](data_dir=str(scenes), splits="test")
    rows.download_and_prepare()
    given = []
    images = {}
    for row in rows.as_dataset("test").select(range(LIMIT)):
        images[row["image_id"]] = Image.open(scenes / "flickr30k-images" / f"{row['image_id']}.jpg")
        given.append(next(iter(grounded_examples([row]))))
    prompt = {"words": "mean", "instruction": "Describe the image."}
    ranking = rank_heads(model, processor, given, images, count=1, ablate=0, **prompt)
    expected = ranking.reported_on.counts.mean("pointing")
    best = read_json(output / "heads" / "direct" / "heads.json")["chosen"][0]
    methods = read_json(output / "heads" / "heads_run.json")["methods"]
    pointing = {score["name"]: score["pointing"] for score in methods["direct"]["boxes"]}
    assert pointing["best head"] == pytest.approx(expected[best["layer"], best["head"]])


def test_heads_are_beside_each_model_and_on_its_card(finished):
    _, output = finished
    for name in ("none", "direct"):
        beside = read_json(output / name / "heads.json")
        written = read_json(output / "heads" / name / "heads.json")
        assert written == {**beside, "counts": written["counts"]}
        chosen = beside["chosen"][0]
        section = (output / name / "README.md").read_text().partition("## Where its heads look")[2]
        assert f"L{chosen['layer']} H{chosen['head']}" in section
        assert f" {chosen['pointing']:.1%} |" in section
        assert section.count("Where its heads look") == 0
        assert "## Training" in section


def test_the_page_and_the_statistics_are_those_of_other_models(finished):
    _, output = finished
    found = HeadTable.load(output / "heads" / "direct")
    assert found.about["regions"] == "image tokens"
    assert found.choice.split == "validation"
    assert found.relations
    assert (output / "heads" / "direct" / "changes.json").is_file()
    page = (output / "heads" / "heads.html").read_text()
    assert "What changed" in page
    assert "Explorer" in page


@pytest.mark.parametrize(
    "change, message",
    [
        ({"methods": ["indirect"]}, "indirect.*results.json is missing"),
        ({"methods": ["../none"]}, "recipe.json: .*methods"),
        ({"methods": [3]}, "recipe.json: methods.0"),
        ({"options": {"caption_prompt": 3}}, "options.caption_prompt"),
        ({"data": []}, "recipe.json: data: "),
        ({"task": "x"}, "recipe.json: task"),
    ],
)
def test_runs_that_cannot_be_measured(finished, tmp_path, capsys, change, message):
    recipe = read_json(finished[1] / "recipe.json")
    (tmp_path / "recipe.json").write_text(json.dumps({**recipe, **change}))
    assert_refused(tmp_path, capsys, message)


def test_folders_that_are_no_run(tmp_path, capsys):
    assert_refused(tmp_path, capsys, "recipe.json is missing.*make train")
    for content in ("{}", "[1]"):
        (tmp_path / "recipe.json").write_text(content)
        assert_refused(tmp_path, capsys, "not the recipe of a run")


def assert_refused(folder, capsys, message):
    assert heads.main(["--run", str(folder)]) == 2
    [line] = capsys.readouterr().err.splitlines()
    assert re.search(message, line)
