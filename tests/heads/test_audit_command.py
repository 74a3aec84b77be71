# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""`grounded-attention audit` on a few scenes: our checkpoints and transformers', what is written, every mistake."""

import json

import datasets
import pytest
import torch
from numpy.testing import assert_allclose
from transformers import BertTokenizer, LxmertConfig, LxmertModel, VisualBertConfig, VisualBertForPreTraining

from grounded_attention.commands import heads as command
from grounded_attention.dataset_scripts.builders import BUILDERS
from grounded_attention.dataset_scripts.regions.table import RegionTable
from grounded_attention.heads.card import HEADS as SECTION
from grounded_attention.heads.card import heads_section
from grounded_attention.heads.examples import grounded_examples
from grounded_attention.heads.measure import audit
from grounded_attention.heads.table import HeadTable
from grounded_attention.modeling import VLBertConfig, VLBertForPreTraining, VLBertForVGP
from grounded_attention.processing import VLBertProcessor
from grounded_attention.training.experiments.models import load_tokenizer
from grounded_attention.utils.bounded_files import read_json
from tests.helpers.built import built
from tests.helpers.tiny_scenes import tiny_scenes

SIZES = {"hidden_size": 16, "num_attention_heads": 2, "intermediate_size": 16, "initializer_range": 0.5}


@pytest.fixture(scope="module")
def places(tmp_path_factory):
    """Scenes and checkpoints of every kind; data sets are built below the same folder."""
    root = tmp_path_factory.mktemp("audit")
    scenes = tiny_scenes(root / "scenes")
    tokenizer = load_tokenizer(str(scenes / "vocab.txt"))
    width = RegionTable.open(scenes / "regions").feature_size
    words = {"vocab_size": len(tokenizer), **SIZES}
    for seed, name in enumerate(("before", "after")):
        torch.manual_seed(seed)
        config = VLBertConfig(**words, num_hidden_layers=2, max_position_embeddings=128, region_feature_size=width)
        VLBertForVGP(config).save_pretrained(root / name)
        VLBertProcessor(tokenizer, region_feature_size=width).save_pretrained(root / name)
    VLBertForPreTraining(config).save_pretrained(root / "pretrained")
    VLBertProcessor(tokenizer, region_feature_size=width).save_pretrained(root / "pretrained")
    # Features that end in the boxes, as the original's of Flickr30K.
    spatial = VisualBertConfig(**words, num_hidden_layers=2, visual_embedding_dim=width + 6, pad_token_id=0)
    VisualBertForPreTraining(spatial).save_pretrained(root / "visual_bert")
    layers = {"l_layers": 1, "r_layers": 1, "x_layers": 2}
    LxmertModel(LxmertConfig(**words, **layers, visual_feat_dim=width)).save_pretrained(root / "lxmert")
    tokenizer.save_pretrained(root / "lxmert")
    tokenizer.save_pretrained(root / "tokenizer")
    more = [*tokenizer.get_vocab(), "one", "too", "many"]
    BertTokenizer(vocab={word: number for number, word in enumerate(more)}).save_pretrained(root / "larger")
    return root


@pytest.fixture
def call(places, monkeypatch, capsys):
    """Runs the command on the scenes; returns its status, output and errors."""
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", places / "cache")
    monkeypatch.chdir(places)

    def run(*options, **changes):
        given = {"model": "after", "data": "flickr30k_entities", "data_dir": "scenes", "regions": "scenes/regions"}
        arguments = [*options, "--device", "cpu"]
        for key, value in {**given, "split": "test", **changes}.items():
            if value is not None:
                arguments += [f"--{key.replace('_', '-')}", str(value)]
        status = command.main(arguments)
        return status, *capsys.readouterr()

    return run


def read_scenes(folder):
    """The test split of the scenes."""
    builder = built(BUILDERS["flickr30k_entities"], folder / "scenes", folder / "cache")
    return builder.as_dataset()


@pytest.fixture
def parses(places):
    """Parses of all captions: every word hangs on the one before it, by the relation `next`."""
    lines = []
    for split in read_scenes(places).values():
        for example in grounded_examples(split):
            lines += [f"# image_id = {example.image_id}", f"# text = {example.caption}"]
            for number, word in enumerate(example.caption.split()):
                relation = "next" if number else "root"
                lines.append(f"{number + 1}\t{word}\t_\t_\t_\t_\t{number}\t{relation}\t_\t_")
            lines.append("")
    path = places / "parses.conllu"
    path.write_text("\n".join(lines) + "\n")
    return path


def test_before_and_after_with_relations_and_the_page(call, places, parses):
    options = {"against": "before", "choose_on": "val", "images": "scenes/flickr30k-images", "explore": 1}
    status, out, err = call(output="audit", relations=parses, **options)
    assert status == 0, err
    assert "Heads were chosen on validation" in out
    assert "heads changed" in out
    folder = places / "audit"
    written = {path.name for path in folder.iterdir()}
    assert written >= {"heads.json", "heads.md", "heads.csv", "changes.json", "heads.html", "against"}
    assert written >= {"text_to_region.png", "relations.png", "changes_text_to_region.png"}
    result = HeadTable.load(folder)
    assert result.choice.split == "validation"
    assert result.about["split"] == "test"
    assert set(result.relations) == {"next"}
    text = (folder / "heads.md").read_text()
    for words in ("chosen on validation", "## ", "against", "| relation, next |"):
        assert words in text
    before = HeadTable.load(folder / "against")
    assert before.about["model"].endswith("before")
    changes = json.loads((folder / "changes.json").read_text())
    difference = result.counts.accuracy - before.counts.accuracy
    assert_allclose(changes["text_to_region"]["difference"], difference, atol=1e-6)


@pytest.mark.parametrize(
    "options, choice, reported",
    [
        ({"regions": None, "split": "val"}, "chosen on test", "split validation"),  # regions lie with the data
        ({}, "chosen on validation", "split test"),
        ({"choose_on": "same_split"}, "chosen on the same items", "split test"),
    ],
)
def test_heads_are_chosen_on_another_split_unless_asked_otherwise(call, options, choice, reported):
    status, out, err = call(limit=2, output="plain", **options)
    assert status == 0, err
    assert choice in out
    assert reported in out


def test_the_command_counts_what_the_python_call_counts(call, places):
    status, out, err = call("--json", output="counted", word="mean", limit=2)
    assert status == 0, err
    found = HeadTable.load(places / "counted").counts
    rows = read_scenes(places)["test"].select(range(2))
    model = VLBertForVGP.from_pretrained("after")
    processor = VLBertProcessor.from_pretrained("after")
    regions = RegionTable.open("scenes/regions")
    counts = audit(model, processor, grounded_examples(rows), regions, word="mean", progress=False).counts
    assert counts.image_ids == found.image_ids
    assert (counts.correct == found.correct).all()
    best = json.loads(out)["best"][0]
    assert best["kind"] == "text_to_region"
    assert best["accuracy"] == found.accuracy[int(best["layer"]), best["head"]]


@pytest.mark.parametrize(
    "model, options, layers",
    [("visual_bert", {"tokenizer": "tokenizer"}, ("0", "1")), ("lxmert", {}, ("cross 0", "cross 1"))],
)
def test_checkpoints_of_transformers(call, places, model, options, layers):
    status, out, err = call(model=model, output=model, limit=2, **options)
    assert status == 0, err
    result = HeadTable.load(places / model)
    assert result.layers == layers
    assert result.counts.total > 10
    assert "region → text" in out


def test_heads_of_a_pretrained_region_model_are_removed(call, places):
    status, out, err = call(model="pretrained", output="ablated", limit=3, ablate=3)
    assert status == 0, err
    effects = json.loads((places / "ablated/heads.json").read_text())["ablation"]
    assert f"| {effects['together']['change']:+.3f} |" in out
    assert effects["tokens"] > 10
    assert [len(layer) for layer in effects["estimates"]] == [2, 2]


def test_the_section_goes_into_a_card_and_the_next_one_takes_its_place(call, places):
    card = places / "after" / "README.md"
    start = "# A model\n\nText.\n\n"
    end = "\n\n## Licence\n\nNone.\n"
    card.write_text(f"{start}{SECTION.place}{end}")
    for limit, name in ((2, "after"), (4, "after"), (4, card)):
        status, _, err = call(output="card", limit=limit, card=name)
        assert status == 0, err
        section = heads_section(read_json(places / "card" / "heads.json"))
        text = card.read_text()
        assert text.startswith(f"{start}{SECTION.place}\n\n{section}")
        assert text.endswith(f"\n{SECTION.end}{end}")
        assert text.count("## Where its heads look") == 1


def test_rows_of_caption_pairs(call, places):
    status, _, err = call(data="vgp", output="pairs", limit=4)
    assert status == 0, err
    assert HeadTable.load(places / "pairs").entities["text_to_region"].keys() == {"all"}


CAPTIONS = {"data": "coco_captions", "data_dir": "scenes/coco", "split": "val"}


@pytest.mark.parametrize(
    "options, message",
    [
        ({"model": "nowhere"}, "--model nowhere: "),
        ({"model": "tokenizer"}, "--model tokenizer: "),
        ({"model": "visual_bert"}, "--model visual_bert: no tokenizer in visual_bert"),
        ({"model": "visual_bert", "tokenizer": "larger"}, "the tokenizer larger has"),
        ({"data": "flickr"}, "flickr: no such file or folder"),
        (CAPTIONS, "'test', expected train or validation"),
        ({**CAPTIONS, "choose_on": "train"}, "have no phrases with boxes"),
        ({"data_dir": "nowhere"}, "nowhere"),
        ({"regions": "nowhere"}, "nowhere"),
        ({"split": "dev"}, "no such split: found 'dev'"),
        ({"card": "before"}, "before/README.md: no model card"),
        ({"card": "scenes/vocab.txt"}, "vocab.txt: no place for the heads"),
        ({"choose_on": "test"}, "--choose-on test is also the reported split"),
        ({"images": "nowhere"}, "--images nowhere: no such folder"),
        ({"explore": "2"}, "--explore 2 shows images"),
        ({"ablate": "2"}, "--model after: VLBertForVGP predicts no masked words"),
        ({"relations": "nowhere.conllu"}, "nowhere.conllu"),
        ({"against": "lxmert"}, "the layers cross 0, cross 1 of 2 heads and 0, 1 of 2"),
    ],
)
def test_user_errors_are_one_line(call, options, message):
    status, _, err = call(output="mistake", limit=2, **options)
    (line,) = [line for line in err.splitlines() if line.startswith("error: ")]
    assert status == 2
    assert message in line
