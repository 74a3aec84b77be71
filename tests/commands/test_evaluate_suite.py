# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""`grounded-attention evaluate --suite`: every suite on scenes and on files, for region models and for a decoder."""

import json
import random

import datasets
import pytest
import yaml
from PIL import Image
from transformers import set_seed

from grounded_attention import grounded_rows
from grounded_attention.commands import evaluate, evaluate_suite
from grounded_attention.dataset_scripts.scenes.captions import caption_holds
from grounded_attention.dataset_scripts.scenes.probes import foils, scene_probe
from grounded_attention.dataset_scripts.scenes.records import scene_record
from grounded_attention.families import FAMILIES
from grounded_attention.metrics.significance import Estimate
from grounded_attention.modeling import VLBertConfig
from grounded_attention.tasks import TASKS
from grounded_attention.training.experiments import suites
from grounded_attention.training.experiments.models import make_processor
from grounded_attention.training.recipes.recipe import Model
from tests.helpers.tiny_scenes import tiny_scenes
from tests.helpers.tiny_vlm_recipes import save_llava

SIZES = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 16}
SIZES |= {"max_position_embeddings": 128, "region_classes": 80}
HEADS = {"grounding": "referring_expressions", "composition": "pretraining", "hallucination": "vqa"}


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    folder = tmp_path_factory.mktemp("suites")
    cache, datasets.config.HF_DATASETS_CACHE = datasets.config.HF_DATASETS_CACHE, folder / "cache"
    scenes = tiny_scenes(folder / "scenes")
    save_llava(scenes / "vocab.txt", folder / "vlm")
    processor = make_processor(Model(tokenizer=str(scenes / "vocab.txt")))
    more = {"vqa": {"answers": ["yes", "no", "red"]}, "pretraining": {"relationship_head": True}}
    for name in HEADS.values():
        set_seed(0)
        config = VLBertConfig(vocab_size=len(processor.tokenizer), **SIZES, **more.get(name, {}))
        FAMILIES["vl_bert"].heads[TASKS[name].head](config).save_pretrained(folder / name)
        processor.save_pretrained(folder / name)
    yield folder
    datasets.config.HF_DATASETS_CACHE = cache


def run(files, model, suite, *arguments):
    regions = [] if model == "vlm" else ["--regions", str(files / "scenes" / "regions")]
    arguments = ["--suite", suite, "--cpu", *regions, *map(str, arguments)]
    return evaluate.main([str(files / model), *arguments])


@pytest.mark.parametrize("suite", evaluate.SUITES)
@pytest.mark.parametrize("kind", ["vlm", "regions"])
def test_scenes_have_a_version_of_each(kind, suite, files, tmp_path, capsys):
    model = "vlm" if kind == "vlm" else HEADS[suite]
    assert run(files, model, suite, "--probe", files / "scenes", "--limit", 12, "--output", tmp_path, "--json") == 0
    figures = json.loads(capsys.readouterr().out)["scenes"]
    found = json.loads((tmp_path / f"suite_{suite}.json").read_text())
    assert found["figures"]["scenes"] == figures and found["suite"] == suite
    assert figures["accuracy"]["count"] == 12
    for each in figures.values():
        assert each["low"] is None or each["low"] <= each["value"] <= each["high"]
    assert not (tmp_path / ".eval_results").exists()


def test_suites_of_the_command_are_those_that_there_are():
    assert set(evaluate.SUITES) == set(suites._MEASURE)


@pytest.mark.parametrize(("other", "value"), [(0.9, 1.0), (0.1, 0.0)])
def test_a_probe_of_a_file_is_scored_by_the_answers_of_the_model(other, value, files, tmp_path, monkeypatch, capsys):
    """Winoground through the whole command, with the losses of a constructed model: 0.1 for yes to the right caption;
    `other` is that of yes to the other one. A tie is wrong. A limit draws whole pairs."""
    for name, colour in (("p", "blue"), ("q", "red")):
        Image.new("RGB", (8, 6), colour).save(tmp_path / f"{name}.png")
    row = {"image_0": "p.png", "image_1": "q.png", "caption_0": "a p", "caption_1": "a q", "collapsed_tag": "Object"}
    (tmp_path / "probe.jsonl").write_text("".join(json.dumps({**row, "id": n}) + "\n" for n in range(4)))

    def losses(settings, probe, task, rows, given):
        right = {row["example_id"]: f"a {row['image_id']}" in row["question"] for row in rows}
        yes = {key: 0.1 if own else other for key, own in right.items()}
        return {
            row["example_id"]: {"answers_loss": 0.5 if row["answers"] == ["no"] else yes[row["example_id"]]}
            for row in rows
        }

    monkeypatch.setattr(suites, "_score", losses)
    source = tmp_path / "probe.jsonl"
    assert (
        run(files, "vlm", "composition", "--probe", source, "--json", "--limit", 3, "--output", tmp_path / "out") == 0
    )
    figures = json.loads(capsys.readouterr().out)["probe.jsonl"]
    found = {name: (each["value"], each["count"]) for name, each in figures.items()}
    assert found == dict.fromkeys(("text", "image", "group"), (value, 3))


def test_amber_counts_inventions(files, tmp_path, capsys):
    Image.new("RGB", (8, 6)).save(tmp_path / "p.png")
    (tmp_path / "query").mkdir()
    asked = [
        {"id": n, "image": "p.png", "query": f"Is there a {word} in the image?"} for n, word in ((5, "x"), (6, "y"))
    ]
    (tmp_path / "query" / "query_all.json").write_text(json.dumps(asked))
    about = [{"id": n, "type": "relation", "truth": truth, "hallu": []} for n, truth in ((5, "yes"), (6, "no"))]
    (tmp_path / "annotations.json").write_text(json.dumps(about))
    assert run(files, "vlm", "hallucination", "--probe", tmp_path, "--json", "--output", tmp_path / "out") == 0
    [figures] = json.loads(capsys.readouterr().out).values()
    # Random weights say no word that is a no, so they find no invention.
    assert (figures["accuracy"]["value"], figures["recall"]["value"], figures["yes_share"]["value"]) == (0.5, 0, 1)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--suite", "grounding"), "--probe"),
        (("--suite", "grounding", "--probe", "nothing.jsonl"), "nothing.jsonl"),
        (("--suite", "composition", "--probe", "SCENES", "--split", "other"), "other"),
    ],
)
def test_mistakes(arguments, said, files, capsys):
    given = [each.replace("SCENES", str(files / "scenes")) for each in arguments]
    assert evaluate.main([str(files / "vlm"), "--cpu", *given]) == 2
    assert said in capsys.readouterr().err


def test_the_hub_form_of_probes_on_the_hub(tmp_path):
    found = {
        "org/probe": {"accuracy, left of": Estimate(0.5, 0.25, 0.75, 8)},
        "own": {"accuracy": Estimate(1, 1, 1, 2)},
    }
    settings = suites.Settings("model", "composition")
    evaluate_suite.write(found, settings, ["org/probe", "own.jsonl"], tmp_path)
    [entry] = yaml.safe_load((tmp_path / ".eval_results" / "composition.yaml").read_text())
    assert entry["dataset"] == {"id": "org/probe", "task_id": "composition_accuracy_left_of"}
    assert entry["value"] == 0.5 and "25.0% to 75.0%" in entry["notes"]


def test_foils_of_scenes_are_false_and_differ_by_an_exchange(files):
    told = json.loads((files / "scenes" / "scenes.json").read_text())
    rows = list(grounded_rows(scene_probe(files / "scenes", "composition")))
    assert {row["group"] for row in rows} == {"colours", "relations"}
    for row in rows:
        true, foil = (sorted(each.lower().split()) for each in row["captions"])
        if row["group"] == "colours":  # the same words, but for articles
            assert [w for w in true if w not in ("a", "an")] == [w for w in foil if w not in ("a", "an")]
        assert row["captions"][0] != row["captions"][1]
    record = scene_record(told["seed"], 0, told["images"])
    assert all(caption_holds(record.scene, each) for each in record.related_captions)
    assert list(foils(record, random.Random(0)))


def test_evidence_of_scenes_is_the_box_of_the_named_object(files):
    rows = list(grounded_rows(scene_probe(files / "scenes", "evidence")))
    assert rows and all(row["phrases"][0]["text"] in row["text"] and row["answer"] for row in rows)
