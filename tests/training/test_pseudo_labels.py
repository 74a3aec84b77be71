# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""Pseudo-labels from the command to a training batch: join, recipe, statistics, contact sheet; the Hub."""

import contextlib
import io
import json
import shutil

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
from grounded_attention.dataset_scripts.regions.table import RegionTable
from grounded_attention.labelling.labels import PseudoLabels
from grounded_attention.processing import VLBertProcessor
from grounded_attention.tasks import Task
from grounded_attention.tasks.caption_rows import to_rows
from grounded_attention.training.experiments.prepared_data import prepare_data
from grounded_attention.training.loop.data import Collator
from grounded_attention.training.loop.joins import join_labels
from grounded_attention.training.recipes.recipe import RecipeError, load_recipe
from tests.helpers.built import built
from tests.helpers.own_rows import python
from tests.helpers.stub_grounder import contents
from tests.helpers.tiny_detectors import save_detector
from tests.helpers.tiny_scenes import tiny_recipe
from tests.training.runs import assert_ran, assert_words, read_json

WRONG = ["--boxes-per-phrase", 9, "--wrong", 0.3]


@pytest.fixture(autouse=True, scope="module")
def cache(tmp_path_factory):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path_factory.mktemp("cache"))
        yield


def label(scenes, output, *arguments, grounder="scenes", phrases="given"):
    places = ["--data-dir", scenes, "--images", scenes / "flickr30k-images", "--output", output]
    chosen = ["--captions", "flickr30k_entities", "--grounder", grounder, "--phrases", phrases]
    return main([*map(str, [*chosen, *places, *arguments])])


@pytest.fixture(scope="module")
def whole_labels(scenes, tmp_path_factory):
    folder = tmp_path_factory.mktemp("whole") / "labels"
    assert label(scenes, folder, "--boxes-per-phrase", 9) == 0
    return folder


@pytest.fixture
def labels(whole_labels, tmp_path):
    """A copy of right labels of all captions, which a test may change."""
    return shutil.copytree(whole_labels, tmp_path / "labels")


def gold_of(scenes, tmp_path):
    """Caption id -> (text, {span: boxes}, image) of the phrases with boxes, from the builder."""
    found = {}
    for split in build(scenes, tmp_path).values():
        for row in split:
            for number, caption_id in enumerate(row["caption_ids"]):
                spans = {}
                for phrase in row["phrases"]:
                    if phrase["sentence"] == number and phrase["boxes"]:
                        spans[phrase["start"], phrase["end"]] = phrase["boxes"]
                found[caption_id] = (row["captions"][number], spans, row["image_id"])
    return found


def build(scenes, tmp_path):
    builder = built(BUILDERS["flickr30k_entities"], scenes, tmp_path / "built")
    return builder.as_dataset()


def area(low, high):
    return np.prod(np.maximum(np.subtract(high, low), 0))


def is_near(region, boxes):
    """Whether the region has half of its union with one of the boxes in common."""
    for box in boxes:
        common = area(np.maximum(region[:2], box[:2]), np.minimum(region[2:], box[2:]))
        union = area(region[:2], region[2:]) + area(box[:2], box[2:]) - common
        if common >= 0.5 * union:
            return True
    return False


@pytest.fixture(scope="module")
def wrong_labels(scenes, tmp_path_factory):
    """Labels of which three in ten are wrong, and what the command prints of them."""
    output = tmp_path_factory.mktemp("wrong") / "labels"
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        assert label(scenes, output, *WRONG, "--regions", scenes / "regions", "--json") == 0
    return output, json.loads(printed.getvalue())


def test_the_command_counts_what_it_labels(scenes, wrong_labels, tmp_path):
    output, printed = wrong_labels
    gold = gold_of(scenes, tmp_path)
    regions = RegionTable.open(scenes / "regions")
    phrases = wrong = matched = matches = 0
    for row in PseudoLabels(output).rows:
        text, spans, image = gold[row["caption_id"]]
        assert image == row["image_id"]
        assert len(row["phrases"]) == len(spans)
        for phrase in row["phrases"]:
            assert text[phrase["start"] : phrase["end"]] == phrase["text"]
            boxes = sorted(phrase["boxes"])
            right = sorted(spans[phrase["start"], phrase["end"]])
            near = [is_near(region, phrase["boxes"]) for region in regions[image].boxes]
            phrases += 1
            wrong += len(boxes) != len(right) or not np.allclose(boxes, right, atol=1e-5)
            matched += any(near)
            matches += sum(near)
    assert printed["phrases"] == phrases
    assert 0.15 < wrong / phrases < 0.45
    counts = {"iou": 0.5, "phrases": phrases, "matched": matched, "regions": matches, "captions_without_regions": 0}
    assert printed["matches"] == counts
    assert sum(printed["scores"]) == printed["boxes"]


def test_the_sheet_shows_twelve_rows(wrong_labels):
    output, _ = wrong_labels
    table = PseudoLabels(output).rows
    sheet = (output / "contact_sheet.html").read_text(encoding="utf-8")
    assert sheet.count('<article class="card">') == 12
    places = np.unique(np.linspace(0, len(table) - 1, 12).round().astype(int))
    for row in table.select(places):
        assert f"<figcaption>{row['caption_id']}</figcaption>" in sheet
        for number, phrase in enumerate(row["phrases"], 1):
            scores = ", ".join(f"{score:.2f}" for score in phrase["scores"]) or "no box"
            assert f"{number} {phrase['text']}: {scores}</figcaption>" in sheet


def test_labels_are_rows_and_the_same_command_writes_them_again(scenes, wrong_labels, capsys):
    output, printed = wrong_labels
    rows = grounded_rows(str(output / "pseudo_labels.parquet"), images=str(scenes / "flickr30k-images"))
    for row, labelled in zip(rows, PseudoLabels(output).rows, strict=True):
        for name in ("text", "boxes", "scores"):
            assert [phrase[name] for phrase in row["phrases"]] == [phrase[name] for phrase in labelled["phrases"]]
    before = contents(output)
    assert label(scenes, output, *WRONG, "--regions", scenes / "regions") == 0
    assert f"{printed['phrases']:,} phrases" in capsys.readouterr().out
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
    "arguments, problem",
    [
        (["--prompt", "caption"], "--prompt is for another grounder: zero-shot detector; found scenes"),
        (["--dtype", "float16"], "--dtype is for another grounder: zero-shot detector"),
        (["--phrases", "words"], "the simulated grounder needs annotated boxes: give --phrases given"),
        (["--images", "nowhere"], "nowhere: no such folder or list of images"),
        (["captions_per_image=0", "nonsense=1"], "unknown option: found 'nonsense=1'"),
        (["--captions", "text_corpus"], "--captions text_corpus: the rows have the columns"),
        (["--grounder", "/nowhere"], "/nowhere: no such file or folder"),
    ],
)
def test_mistakes_are_one_line(scenes, tmp_path, capsys, arguments, problem):
    places = ["--data-dir", scenes / "corpus.txt"] if "text_corpus" in arguments else []
    assert label(scenes, tmp_path / "out", *places, *arguments) == 2
    error = capsys.readouterr().err.strip().splitlines()[-1]
    assert error.startswith("error: ")
    assert problem in error
    assert not (tmp_path / "out/pseudo_labels.json").exists()


# The join


def rows_for(scenes, tmp_path):
    return to_rows(build(scenes, tmp_path)["train"])


def labels_by_caption(labels):
    return {row["caption_id"]: row["phrases"] for row in PseudoLabels(labels).rows}


def test_regions_of_joined_phrases_by_hand(scenes, labels, tmp_path):
    rows = rows_for(scenes, tmp_path).select(range(12))
    regions = RegionTable.open(scenes / "regions")
    records = [regions[row["image_id"]] for row in rows]
    joined = join_labels({"train": rows}, ["train"], PseudoLabels(labels))["train"]
    words = sorted({word for row in rows for word in row["text"].lower().split()})
    vocabulary = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *words]
    tokenizer = BertTokenizer(vocab={word: index for index, word in enumerate(vocabulary)})
    batch = VLBertProcessor(tokenizer, region_feature_size=regions.feature_size)(
        text=rows["text"][:],
        phrases=joined["phrases"][:],
        region_boxes=[record.boxes for record in records],
        region_features=[record.features.astype("float32") for record in records],
    )
    several = 0
    for place, record in enumerate(records):
        columns = batch["region_candidate_mask"][place].nonzero()[:, 0].tolist()
        for number, phrase in enumerate(joined[place]["phrases"]):
            assert phrase.keys() == {"text", "start", "end", "boxes", "scores"}
            expected = [is_near(region, phrase["boxes"]) for region in record.boxes]
            assert batch["phrase_regions"][place, number, columns].bool().tolist() == expected
            several += sum(expected) > 1
    assert several, "no phrase has two proposals"


def test_a_training_row_gets_pseudo_labels_and_an_evaluation_keeps_gold(scenes, labels, tmp_path):
    rows = rows_for(scenes, tmp_path).select([3, 0])
    gold = rows.add_column("phrases", [[{"text": "gold", "entity": "1"}]] * 2)
    labelled = labels_by_caption(labels)
    expected = [labelled[caption] for caption in rows["caption_id"]]
    joined = join_labels({"train": gold, "test": gold, "validation": rows}, ["train"], PseudoLabels(labels))
    assert joined["train"]["phrases"][:] == expected
    assert joined["validation"]["phrases"][:] == expected
    assert joined["test"] is gold
    assert joined["train"].remove_columns("phrases").to_list() == rows.to_list()


@pytest.mark.parametrize("column, value", [("text", "Another text"), ("image_id", "x")])
def test_rows_that_do_not_fit_their_labels(scenes, labels, tmp_path, column, value):
    row = rows_for(scenes, tmp_path).select([0]).remove_columns(column).add_column(column, [value])
    with pytest.raises(DataError, match=rf"caption \S+: the labels are those of another .* expected '{value}'"):
        join_labels({"train": row}, ["train"], PseudoLabels(labels))


def test_a_picture_without_a_size_has_that_of_its_labels(scenes, labels, tmp_path):
    """The collator compares it."""
    rows = rows_for(scenes, tmp_path).select([0])
    unknown = rows.remove_columns(["width", "height"])
    joined = join_labels({"train": unknown}, ["train"], PseudoLabels(labels))["train"]
    assert joined["width"][:] == rows["width"][:]


# The recipe


def content_of(scenes, tmp_path, labels):
    content = tiny_recipe(scenes, tmp_path / "run", task="pretraining", options={"background": False})
    content["data"] |= {"builder": "flickr30k_entities", "pseudo_labels": str(labels)}
    return content


def recipe_of(scenes, tmp_path, labels, *overrides):
    (tmp_path / "recipe.yaml").write_text(yaml.safe_dump(content_of(scenes, tmp_path, labels)))
    return load_recipe(tmp_path / "recipe.yaml", overrides)


def test_a_recipe_opens_the_labels_and_the_collator_joins_them(scenes, labels, tmp_path):
    data = prepare_data(recipe_of(scenes, tmp_path, labels))
    collated = []

    class Collated(Task):
        losses = ()

        def collate(self, examples, processor):
            collated.extend(examples.rows)
            return {}

        metrics = judge = None

    train = data.splits["train"]
    Collator(Collated(), None, data.regions, split=train)([train[0], train[1]])
    labelled = labels_by_caption(labels)
    assert len(collated) == 2
    for row in collated:
        assert row["phrases"] == labelled[row["caption_id"]]


def test_limited_rows_follow_the_seed_or_are_the_same_for_every_seed(scenes, labels, tmp_path):
    def drawn(*changes):
        recipe = recipe_of(scenes, tmp_path, labels, "data.limit={train: 5}", *changes)
        return prepare_data(recipe).splits["train"]["caption_id"][:]

    everything = prepare_data(recipe_of(scenes, tmp_path, labels, "data.limit={}")).splits["train"]["caption_id"]
    for seed in (1, 2):  # published tables draw with the seed of the run
        chosen = np.random.default_rng(seed).permutation(len(everything))[:5]
        assert drawn(f"seed={seed}") == [everything[place] for place in sorted(chosen)]
    assert drawn("seed=1", "data.limit_seed=0") == drawn("seed=2", "data.limit_seed=0") != drawn("seed=1")


def test_a_recipe_trains_with_labels_and_its_model_labels_again(scenes, labels, tmp_path, capsys, run_recipe):
    run_recipe(content_of(scenes, tmp_path, labels))
    assert read_json(tmp_path / "run/recipe.json")["data"]["pseudo_labels"] == str(labels)
    # Self-training: the trained model labels the captions again.
    model = tmp_path / "run/direct"
    capsys.readouterr()
    options = ["--regions", scenes / "regions", "--boxes-per-phrase", 3, "--limit", 10]
    assert label(scenes, tmp_path / "own", *options, grounder=model) == 0
    assert "100.0%) at IoU >= 0.5" in capsys.readouterr().out  # its boxes are regions
    own = PseudoLabels(tmp_path / "own")
    regions = RegionTable.open(scenes / "regions")
    assert own.info["provenance"]["grounder"]["kind"] == "attention"
    for row in own.rows:
        boxes = regions[row["image_id"]].boxes
        for phrase in row["phrases"]:
            assert 1 <= len(phrase["boxes"]) <= 3
            assert phrase["scores"] == sorted(phrase["scores"], reverse=True)
            for box in phrase["boxes"]:
                assert np.abs(boxes - box).max(axis=1).min() < 2e-3
    assert label(scenes, tmp_path / "none", grounder=model) == 2
    assert "a checkpoint of this project needs --regions" in capsys.readouterr().err


def test_captions_that_were_never_labelled_stop_before_training(scenes, tmp_path, capsys):
    assert label(scenes, tmp_path / "few", "--split", "train", "--limit", 3) == 0
    recipe = recipe_of(scenes, tmp_path, tmp_path / "few")
    with pytest.raises(RecipeError, match=r"data\.pseudo_labels: .*few, split \w+: \d+ of \d+ captions were never"):
        prepare_data(recipe)


@pytest.mark.parametrize("provenance", [{}, {"captions": 5}, {"captions": {"licence": {"identifier": "mit"}}}])
def test_labels_whose_provenance_has_no_licence_are_not_pushed(labels, provenance):
    path = labels / "pseudo_labels.json"
    path.write_text(json.dumps(read_json(path) | {"provenance": provenance}))
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
OPEN = "import sys; from grounded_attention.labelling.labels import PseudoLabels; PseudoLabels.open(sys.argv[1])"


@pytest.fixture
def push(loopback_hub, tmp_path):
    """What `push` prints for a folder, and the words of its error."""

    def push(*arguments, error=None):
        done = python(loopback_hub, tmp_path / "home", PUSH, *arguments)
        assert done.returncode == (2 if error else 0), done.stderr[-2000:]
        assert (error or "") in done.stderr
        return done.stdout

    return push


def test_labels_come_back_equal_from_the_hub(labels, loopback_hub, push, tmp_path):
    pushed = json.loads(push(labels, "org/labels", "--json"))
    commits = loopback_hub.commits("org/labels", kind="datasets")
    assert pushed["commit_url"].endswith(commits[0]["id"])
    card = loopback_hub.read("org/labels", "README.md", kind="datasets").decode()
    assert_words(card, 'license: cc0-1.0 ... phrases with a box ... "wrong": 0.0')
    done = python(loopback_hub, tmp_path / "other", READ_BACK, "org/labels", labels)
    assert_ran(done)
    assert done.stdout.startswith("equal")


def test_a_damaged_file_is_neither_opened_nor_pushed(labels, push):
    shard = labels / "pseudo_labels.parquet"
    content = bytearray(shard.read_bytes())
    content[len(content) // 2] ^= 1
    shard.write_bytes(bytes(content))
    with pytest.raises(DataError, match=r"pseudo_labels\.parquet"):
        PseudoLabels(labels).verify()
    push(labels, "org/other", error="pseudo_labels.parquet")


def test_labels_of_captions_with_an_unknown_licence_need_a_permission(labels, push):
    manifest = read_json(labels / "pseudo_labels.json")
    manifest["provenance"]["captions"]["licence"] |= {"identifier": "unknown", "redistribution": "unclear"}
    (labels / "pseudo_labels.json").write_text(json.dumps(manifest))
    push(labels, "org/labels", error="does not clearly allow redistribution")
    push(labels, "org/labels", "--permission", "mine")


def test_a_repository_with_other_files_has_no_labels(labels, loopback_hub, push, tmp_path, scenes):
    push(scenes / "regions", "org/regions")
    push(labels, "org/regions", error="the repository contains other files")
    done = python(loopback_hub, tmp_path / "home", OPEN, "hub://org/regions")
    assert "org/regions: no pseudo-labels in this repository" in done.stderr
