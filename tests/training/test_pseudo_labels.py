# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""Pseudo-labels from the command to a training batch: join, recipe, statistics, contact sheet; the Hub."""

import json
import shutil
from pathlib import Path

import datasets
import numpy as np
import pytest
import yaml
from transformers import BertTokenizer

from grounded_attention import grounded_rows
from grounded_attention.commands.pseudo_ground import main
from grounded_attention.commands.push_tables import push_labels
from grounded_attention.dataset_scripts.builders import BUILDERS
from grounded_attention.dataset_scripts.files.errors import DataError
from grounded_attention.dataset_scripts.regions.table import RegionTable, RegionTableWriter
from grounded_attention.labelling.labels import PseudoLabels
from grounded_attention.processing import VLBertProcessor
from grounded_attention.tasks import Task
from grounded_attention.tasks.caption_rows import to_rows
from grounded_attention.training.experiments.prepared_data import prepare_data
from grounded_attention.training.loop.data import Collator
from grounded_attention.training.loop.joins import join_labels
from grounded_attention.training.recipes.recipe import RecipeError, load_recipe
from tests.helpers.stub_grounder import contents
from tests.helpers.tiny_detectors import save_detector
from tests.helpers.tiny_scenes import run_train, tiny_recipe
from tests.helpers.warm_python import run_python

ROOT = Path(__file__).parents[2]


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")


def label(scenes, output, *arguments, grounder="scenes", phrases="given"):
    places = ["--data-dir", scenes, "--images", scenes / "flickr30k-images", "--output", output]
    chosen = ["--captions", "flickr30k_entities", "--grounder", grounder, "--phrases", phrases]
    return main([*map(str, [*chosen, *places, *arguments])])


@pytest.fixture
def labels(scenes, tmp_path):
    assert label(scenes, tmp_path / "labels", "--boxes-per-phrase", 9) == 0
    return tmp_path / "labels"


def gold_of(scenes, tmp_path):
    """Caption id -> (text, {span: boxes}) of the phrases with boxes, from the builder."""
    builder = BUILDERS["flickr30k_entities"](data_dir=str(scenes), cache_dir=str(tmp_path / "built"))
    builder.download_and_prepare()
    found = {}
    for split in builder.as_dataset().values():
        for row in split:
            for number, (text, caption_id) in enumerate(zip(row["captions"], row["caption_ids"], strict=True)):
                own = [p for p in row["phrases"] if p["sentence"] == number and p["boxes"]]
                spans = {(p["start"], p["end"]): p["boxes"] for p in own}
                found[caption_id] = (text, spans, row["image_id"])
    return found


def iou(a, b):
    width = min(a[2], b[2]) - max(a[0], b[0])
    height = min(a[3], b[3]) - max(a[1], b[1])
    if width <= 0 or height <= 0:
        return 0.0
    areas = [(box[2] - box[0]) * (box[3] - box[1]) for box in (a, b)]
    return width * height / (sum(areas) - width * height)


def test_the_command_labels_statistics_and_sheet(scenes, tmp_path, capsys):
    output = tmp_path / "labels"
    options = ["--boxes-per-phrase", 9, "--regions", scenes / "regions", "--wrong", 0.3]
    assert label(scenes, output, *options, "--json") == 0
    printed = json.loads(capsys.readouterr().out)
    table = PseudoLabels(output).rows
    gold = gold_of(scenes, tmp_path)
    regions = RegionTable.open(scenes / "regions")
    wrong = matched = matches = phrases = 0
    for row in table:
        text, spans, image = gold[row["caption_id"]]
        assert image == row["image_id"]
        assert {(p["start"], p["end"]) for p in row["phrases"]} == set(spans)
        for phrase in row["phrases"]:
            phrases += 1
            assert text[phrase["start"] : phrase["end"]] == phrase["text"]
            right = spans[phrase["start"], phrase["end"]]
            equal = len(phrase["boxes"]) == len(right)
            wrong += not (equal and np.allclose(sorted(phrase["boxes"]), sorted(right), atol=1e-5))
            near = [
                any(iou(region, box) >= 0.5 for box in phrase["boxes"]) for region in regions[row["image_id"]].boxes
            ]
            matched = matched + any(near)
            matches = matches + sum(near)
    assert printed["phrases"] == phrases
    assert 0.15 < wrong / phrases < 0.45
    counts = {"iou": 0.5, "phrases": phrases, "matched": matched, "regions": matches, "captions_without_regions": 0}
    assert printed["matches"] == counts
    assert sum(printed["scores"]) == printed["boxes"]
    sheet = (output / "contact_sheet.html").read_text(encoding="utf-8")
    assert sheet.count('<article class="card">') == 12
    places = np.unique(np.linspace(0, len(table) - 1, 12).round().astype(int))
    for row in table.select(places):
        assert f"<figcaption>{row['caption_id']}</figcaption>" in sheet
        for number, phrase in enumerate(row["phrases"], 1):
            scores = ", ".join(f"{score:.2f}" for score in phrase["scores"]) or "no box"
            assert f"{number} {phrase['text']}: {scores}</figcaption>" in sheet
    shown = list(grounded_rows(str(output / "pseudo_labels.parquet"), images=str(scenes / "flickr30k-images")))
    labelled = [[(p["text"], p["boxes"], p["scores"]) for p in row["phrases"]] for row in table]
    assert [[(p["text"], p["boxes"], p["scores"]) for p in row["phrases"]] for row in shown] == labelled
    before = contents(output)
    assert label(scenes, output, *options) == 0
    assert f"{phrases:,} phrases" in capsys.readouterr().out
    assert contents(output) == before


def test_grounding_dino_from_a_folder_and_a_list_of_images(scenes, tmp_path, capsys):
    folder = save_detector("grounding_dino", tmp_path / "dino")
    images = tmp_path / "images.txt"
    paths = sorted((scenes / "flickr30k-images").iterdir())
    images.write_text("".join(f"{path.stem}\t{path}\n" for path in paths))
    options = ["--limit", 6, "--images", images, "--processor", "size={shortest_edge: 48, longest_edge: 64}"]
    assert label(scenes, tmp_path / "a", *options, grounder=folder, phrases="words") == 0
    labels = PseudoLabels(tmp_path / "a")
    assert len(labels.rows) == 6
    assert all(len(p["boxes"]) == 1 for row in labels.rows for p in row["phrases"])
    assert labels.info["provenance"]["grounder"]["model_type"] == "grounding-dino"
    images.write_text(f"x\t{paths[0]}\n")
    assert label(scenes, tmp_path / "b", *options, grounder=folder, phrases="words") == 2
    assert "images.txt, image " in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (["--prompt", "caption"], "--prompt is for another grounder: zero-shot detector; found scenes"),
        (["--dtype", "float16"], "--dtype is for another grounder: zero-shot detector"),
        (["--phrases", "words"], "the simulated grounder needs annotated boxes: give --phrases given"),
        (["--images", "nowhere"], "nowhere: no such folder or list of images"),
        (["captions_per_image=0", "nonsense=1"], "unknown option: found 'nonsense=1'"),
        (["--captions", "text_corpus"], "--captions text_corpus: the rows have the columns"),
        (["--grounder", "/nowhere"], "--grounder /nowhere: cannot be used"),
    ],
)
def test_mistakes_are_one_line(scenes, tmp_path, capsys, arguments, problem):
    places = ["--data-dir", scenes / "corpus.txt"] if "text_corpus" in arguments else []
    assert label(scenes, tmp_path / "out", *places, *arguments) == 2
    error = capsys.readouterr().err.strip().splitlines()[-1]
    assert error.startswith("error: ")
    assert problem in error
    assert not (tmp_path / "out" / "pseudo_labels.json").exists()


# The join


def rows_for(scenes, tmp_path):
    builder = BUILDERS["flickr30k_entities"](data_dir=str(scenes), cache_dir=str(tmp_path / "built"))
    builder.download_and_prepare()
    return to_rows(builder.as_dataset()["train"])


def test_regions_of_joined_phrases_by_hand(scenes, labels, tmp_path):
    rows = rows_for(scenes, tmp_path).select(range(12))
    regions = RegionTable.open(scenes / "regions")
    records = [regions[row["image_id"]] for row in rows]
    joined = join_labels({"train": rows}, ["train"], PseudoLabels(labels))["train"]
    assert all({"text", "start", "end", "boxes", "scores"} == set(p) for row in joined for p in row["phrases"])
    words = sorted({word for row in rows for word in row["text"].lower().split()})
    tokenizer = tiny_tokenizer(words)
    processor = VLBertProcessor(tokenizer, region_feature_size=regions.feature_size)
    batch = processor(
        text=[row["text"] for row in rows],
        phrases=joined["phrases"][:],
        region_boxes=[record.boxes for record in records],
        region_features=[record.features.astype("float32") for record in records],
    )
    several = 0
    for place, (row, record) in enumerate(zip(joined, records, strict=True)):
        columns = batch["region_candidate_mask"][place].nonzero()[:, 0].tolist()
        for number, phrase in enumerate(row["phrases"]):
            wanted = [any(iou(box, gold) >= 0.5 for gold in phrase["boxes"]) for box in record.boxes]
            assert batch["phrase_regions"][place, number, columns].bool().tolist() == wanted
            several += sum(wanted) > 1
    assert several, "no phrase has two proposals"


def tiny_tokenizer(words):
    vocabulary = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *words]
    return BertTokenizer(vocab={word: index for index, word in enumerate(vocabulary)})


def test_a_training_row_gets_pseudo_labels_and_an_evaluation_keeps_gold(scenes, labels, tmp_path):
    table = PseudoLabels(labels)
    rows = rows_for(scenes, tmp_path).select([3, 0])
    gold = rows.add_column("phrases", [[{"text": "gold", "entity": "1"}]] * 2)
    labelled = {row["caption_id"]: row["phrases"] for row in table.rows}
    wanted = [labelled[caption] for caption in rows["caption_id"]]
    joined = join_labels({"train": gold, "test": gold, "validation": rows}, ["train"], table)
    assert joined["train"]["phrases"][:] == wanted == joined["validation"]["phrases"][:] != gold["phrases"][:]
    assert joined["test"] is gold
    assert joined["train"].remove_columns("phrases").to_list() == rows.to_list()


def test_rows_that_do_not_fit_their_labels(scenes, labels, tmp_path):
    table = PseudoLabels(labels)
    rows = rows_for(scenes, tmp_path).select([0])
    for column, found in (("text", "Another text"), ("image_id", "x")):
        changed = rows.remove_columns(column).add_column(column, [found])
        with pytest.raises(DataError, match=rf"caption \S+: the labels are those of another .* expected '{found}'"):
            join_labels({"train": changed}, ["train"], table)
    # The size of a picture that the rows do not know comes with its labels, and the collator compares it.
    unknown = rows.remove_columns(["width", "height"])
    assert join_labels({"train": unknown}, ["train"], table)["train"]["width"][:] == rows["width"][:]


# The recipe


def recipe_of(scenes, tmp_path, labels, *overrides):
    content = tiny_recipe(scenes, tmp_path / "run", methods=["direct"], task="pretraining")
    content["data"] |= {"builder": "flickr30k_entities", "pseudo_labels": str(labels)}
    content["options"] = {"background": False}
    (tmp_path / "recipe.yaml").write_text(yaml.safe_dump(content))
    return load_recipe(tmp_path / "recipe.yaml", overrides)


def test_a_recipe_opens_the_labels_and_the_collator_joins_them(scenes, labels, tmp_path):
    recipe = recipe_of(scenes, tmp_path, labels)
    data = prepare_data(recipe)
    seen = []

    class Seen(Task):
        losses = ()

        def collate(self, examples, processor):
            seen.extend(examples.rows)
            return {}

        metrics = judge = None

    train = data.splits["train"]
    collator = Collator(Seen(), None, data.regions, split=train)
    rows = [train[0], train[1]]
    collator(rows)
    labelled = {row["caption_id"]: row["phrases"] for row in PseudoLabels(labels).rows}
    assert [row["phrases"] for row in seen] == [labelled[row["caption_id"]] for row in rows]


def test_limited_rows_follow_the_seed_or_are_the_same_for_every_seed(scenes, labels, tmp_path):
    def drawn(*changes):
        recipe = recipe_of(scenes, tmp_path, labels, "data.limit={train: 5}", *changes)
        return prepare_data(recipe).splits["train"]["caption_id"][:]

    everything = prepare_data(recipe_of(scenes, tmp_path, labels, "data.limit={}")).splits["train"]["caption_id"]
    for seed in (1, 2):  # published tables draw with the seed of the run
        chosen = np.random.default_rng(seed).permutation(len(everything))[:5]
        assert drawn(f"seed={seed}") == [everything[place] for place in sorted(chosen)]
    assert drawn("seed=1", "data.limit_seed=0") == drawn("seed=2", "data.limit_seed=0") != drawn("seed=1")


def test_a_recipe_trains_with_labels_and_its_model_labels_again(scenes, labels, tmp_path, monkeypatch, capsys):
    recipe_of(scenes, tmp_path, labels)
    content = yaml.safe_load((tmp_path / "recipe.yaml").read_text())
    assert run_train(monkeypatch, tmp_path, content) == 0
    assert json.loads((tmp_path / "run" / "recipe.json").read_text())["data"]["pseudo_labels"] == str(labels)
    # Self-training: the trained model labels the captions again.
    capsys.readouterr()
    regions = ["--regions", scenes / "regions", "--boxes-per-phrase", 3, "--limit", 10]
    assert label(scenes, tmp_path / "own", *regions, grounder=tmp_path / "run" / "direct") == 0
    assert "100.0%) at IoU >= 0.5" in capsys.readouterr().out  # its boxes are regions
    own = PseudoLabels(tmp_path / "own")
    boxes = RegionTable.open(scenes / "regions")
    assert own.info["provenance"]["grounder"]["kind"] == "attention"
    for row in own.rows:
        for phrase in row["phrases"]:
            assert 1 <= len(phrase["boxes"]) <= 3
            assert phrase["scores"] == sorted(phrase["scores"], reverse=True)
            for box in phrase["boxes"]:
                assert np.abs(boxes[row["image_id"]].boxes - box).max(axis=1).min() < 2e-3
    assert label(scenes, tmp_path / "none", grounder=tmp_path / "run" / "direct") == 2
    assert "a checkpoint of this project needs --regions" in capsys.readouterr().err


def test_captions_that_were_never_labelled_stop_before_training(scenes, tmp_path, capsys):
    assert label(scenes, tmp_path / "few", "--split", "train", "--limit", 3) == 0
    recipe = recipe_of(scenes, tmp_path, tmp_path / "few")
    with pytest.raises(RecipeError, match=r"data\.pseudo_labels: .*few, split \w+: \d+ of \d+ captions were never"):
        prepare_data(recipe)


def test_labels_whose_provenance_has_no_licence_are_not_pushed(labels):
    path = labels / "pseudo_labels.json"
    content = json.loads(path.read_text())
    for provenance in ({}, {"captions": 5}, {"captions": {"licence": {"identifier": "mit"}}}):
        path.write_text(json.dumps({**content, "provenance": provenance}))
        with pytest.raises(DataError, match=r"pseudo_labels\.json: the provenance does not have the licence"):
            push_labels(labels, "me/labels")


def test_labels_that_cannot_be_opened(scenes, labels, tmp_path):
    with pytest.raises(DataError, match=r"nowhere: no pseudo-labels here: .*make them with"):
        prepare_data(recipe_of(scenes, tmp_path, "nowhere"))
    recipe = recipe_of(scenes, tmp_path, labels, "data.builder=vqa_v2", "task=vqa", "options={}")
    with pytest.raises(RecipeError, match=r"data\.pseudo_labels: the rows have no column caption_id"):
        prepare_data(recipe)


# The Hub


READ_BACK = """
import sys
from datasets import load_dataset
from grounded_attention.labelling.labels import PseudoLabels

local = PseudoLabels.open(sys.argv[2])
for _ in range(2):
    pulled = PseudoLabels.open("hub://" + sys.argv[1])
    assert list(pulled.rows) == list(local.rows) and pulled.info == local.info
rows = load_dataset(sys.argv[1], split="train")
assert list(rows) == list(local.rows)
print("equal", len(rows))
"""
PUSH = "import sys; from grounded_attention.commands.push import main; sys.exit(main(sys.argv[1:]))"
OPEN = """
import sys
from grounded_attention.labelling.labels import PseudoLabels
try:
    PseudoLabels.open(sys.argv[1])
except ValueError as error:
    print("error:", error)
"""


def python(hub, home, code, *arguments):
    environment = {**hub.environment(home), "PYTHONPATH": str(ROOT)}
    return run_python(code, arguments, cwd=ROOT, env=environment)


def test_labels_come_back_equal_from_the_hub(labels, loopback_hub, tmp_path):
    done = python(loopback_hub, tmp_path / "home", PUSH, labels, "org/labels", "--json")
    assert done.returncode == 0, done.stderr[-2000:]
    commits = loopback_hub.commits("org/labels", kind="datasets")
    assert json.loads(done.stdout)["commit_url"].endswith(commits[0]["id"])
    card = loopback_hub.read("org/labels", "README.md", kind="datasets").decode()
    assert "license: cc0-1.0" in card
    assert "phrases with a box" in card
    assert '"wrong": 0.0' in card
    done = python(loopback_hub, tmp_path / "other", READ_BACK, "org/labels", labels)
    assert done.returncode == 0 and done.stdout.startswith("equal"), done.stderr[-2000:]
    # A file that is damaged is neither pushed nor pulled.
    damaged = tmp_path / "damaged"
    shutil.copytree(labels, damaged)
    shard = damaged / "pseudo_labels.parquet"
    content = bytearray(shard.read_bytes())
    content[len(content) // 2] ^= 1
    shard.write_bytes(bytes(content))
    with pytest.raises(DataError, match=r"pseudo_labels\.parquet"):
        PseudoLabels(damaged).verify()
    done = python(loopback_hub, tmp_path / "home", PUSH, damaged, "org/other")
    assert done.returncode == 2 and "pseudo_labels.parquet" in done.stderr, done.stderr[-2000:]


def test_what_is_not_pushed_or_pulled(labels, loopback_hub, tmp_path, scenes):
    manifest = json.loads((labels / "pseudo_labels.json").read_text())
    manifest["provenance"]["captions"]["licence"] |= {"identifier": "unknown", "redistribution": "unclear"}
    other = tmp_path / "unclear"
    shutil.copytree(labels, other)
    (other / "pseudo_labels.json").write_text(json.dumps(manifest))
    done = python(loopback_hub, tmp_path / "home", PUSH, other, "org/labels")
    assert done.returncode == 2
    assert "does not clearly allow redistribution" in done.stderr
    done = python(loopback_hub, tmp_path / "home", PUSH, other, "org/labels", "--permission", "mine")
    assert done.returncode == 0, done.stderr[-2000:]
    with RegionTableWriter(tmp_path / "regions", {}) as writer:
        writer.write(next(_records(scenes)))
    done = python(loopback_hub, tmp_path / "home", PUSH, tmp_path / "regions", "org/regions", "--licence", "mit")
    assert done.returncode == 0, done.stderr[-2000:]
    done = python(loopback_hub, tmp_path / "home", PUSH, labels, "org/regions")
    assert done.returncode == 2
    assert "the repository contains other files" in done.stderr
    done = python(loopback_hub, tmp_path / "home", OPEN, "hub://org/regions")
    assert "error: org/regions: no pseudo-labels in this repository" in done.stdout, done.stderr[-2000:]


def _records(scenes):
    table = RegionTable.open(scenes / "regions")
    return (table[image_id] for image_id in table)
