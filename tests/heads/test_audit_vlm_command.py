# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""`grounded-attention audit` on a tiny LLaVA and its adapter: files, card, the adapter on the Hub, every mistake."""

import json

import datasets
import pytest
import torch
from numpy.testing import assert_allclose, assert_array_equal
from peft import LoraConfig, PeftModel, get_peft_model
from transformers import AutoModelForImageTextToText, AutoProcessor, BertConfig

from grounded_attention.commands import heads as command
from grounded_attention.commands.heads_work import folder_pictures
from grounded_attention.dataset_scripts.builders import BUILDERS
from grounded_attention.heads.card import HEADS as SECTION
from grounded_attention.heads.examples import grounded_examples
from grounded_attention.heads.measure import audit
from grounded_attention.heads.table import HeadTable
from tests.helpers.project_files import ROOT
from tests.helpers.tiny_scenes import tiny_scenes
from tests.helpers.tiny_vlm_files import save_llava
from tests.helpers.warm_python import run_python


@pytest.fixture(scope="module")
def places(tmp_path_factory):
    """Scenes, a tiny LLaVA, and a folder with an adapter of it and a card."""
    root = tmp_path_factory.mktemp("audit")
    tiny_scenes(root / "scenes")
    save_llava(root / "llava")
    made = get_peft_model(
        AutoModelForImageTextToText.from_pretrained(root / "llava"),
        LoraConfig(r=2, target_modules=r".*language_model.*\.(q|k)_proj"),
    )
    torch.manual_seed(1)
    with torch.no_grad():
        for name, weights in made.named_parameters():
            if "lora_" in name:
                weights.normal_(std=0.5)
    made.save_pretrained(root / "adapter")
    AutoProcessor.from_pretrained(root / "llava").save_pretrained(root / "adapter")
    (root / "adapter" / "README.md").write_text(f"# An adapter\n\n{SECTION.place}\n\n## Licence\n")
    BertConfig().save_pretrained(root / "bert")
    return root


@pytest.fixture
def call(places, monkeypatch, capsys):
    """Runs the command on the scenes; returns its status, output and errors."""
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", places / "cache")
    monkeypatch.chdir(places)

    def run(**changes):
        given = {"model": "llava", "data": "flickr30k_entities", "data_dir": "scenes", "split": "test", "limit": 2}
        given |= {"images": "scenes/flickr30k-images", **changes}
        arguments = ["--device", "cpu"]
        for key, value in given.items():
            if value is not None:
                arguments += [f"--{key.replace('_', '-')}", str(value)]
        status = command.main(arguments)
        return status, *capsys.readouterr()

    return run


def test_an_adapter_against_its_model(call, places):
    options = {"relations": "scenes/parses", "explore": 1, "card": "adapter", "word": "last"}
    status, out, err = call(model="adapter", against="llava", output="lora", **options)
    assert status == 0, err
    assert "text to region:" in out
    assert "heads changed" in out
    assert "region → text" not in out
    result = HeadTable.load("lora")
    assert result.relations
    assert result.about["regions"] == "image tokens"
    builder = BUILDERS["flickr30k_entities"](data_dir="scenes", splits=["test"])
    builder.download_and_prepare()
    rows = list(grounded_examples(builder.as_dataset("test").select(range(2))))
    base = AutoModelForImageTextToText.from_pretrained("llava")
    processor = AutoProcessor.from_pretrained("llava")
    pictures = folder_pictures("scenes/flickr30k-images")
    adapted = PeftModel.from_pretrained(base, "adapter")
    expected = audit(adapted, processor, rows, images=pictures, progress=False).counts
    assert_array_equal(result.counts.correct, expected.correct)
    assert_allclose(result.counts.share, expected.share, atol=1e-4)
    before = HeadTable.load("lora/against").counts
    assert abs(before.mean_share - result.counts.mean_share).max() > 1e-3
    card = (places / "adapter" / "README.md").read_text()
    for words in ("image token", "### ", "adapter against "):
        assert words in card
    assert card.endswith("## Licence\n")
    page = (places / "lora" / "heads.html").read_text()
    for words in ("llava", "adapter", "always answering the image token at the centre"):
        assert words in page


REGION_MODEL = str(ROOT / "grounded_attention" / "space" / "models" / "direct")
ON_HUB = """
import json, sys
from huggingface_hub import HfApi, snapshot_download
for name in ("llava", "adapter"):
    HfApi().create_repo("org/" + name)
    HfApi().upload_folder(repo_id="org/" + name, folder_path=name, ignore_patterns=["README.md"])
from grounded_attention.commands import heads
sys.exit(heads.main(sys.argv[1:]))
"""


def test_an_adapter_on_the_hub_loads_with_its_model(call, places, loopback_hub, tmp_path):
    config = places / "adapter" / "adapter_config.json"
    local = config.read_text()
    config.write_text(json.dumps({**json.loads(local), "base_model_name_or_path": "org/llava"}))
    options = "--model org/adapter --data flickr30k_entities --data-dir scenes --images scenes/flickr30k-images"
    options += f" --limit 2 --split test --device cpu --output {tmp_path / 'out'}"
    environment = {**loopback_hub.environment(tmp_path / "home"), "PYTHONPATH": str(ROOT)}
    environment["HF_DATASETS_CACHE"] = str(places / "cache")
    done = run_python(ON_HUB, options.split(), env=environment, cwd=places)
    config.write_text(local)
    assert done.returncode == 0, done.stderr[-2000:]
    assert call(model="adapter", output="here")[0] == 0
    there = HeadTable.load(tmp_path / "out").counts
    assert_array_equal(there.share, HeadTable.load("here").counts.share)


def test_answers_and_expressions(call):
    assert call(output="answers", instruction="What is it?", choose_on="same_split")[0] == 0
    assert "answers to “What is it?”" in HeadTable.load("answers").to_card_section()
    status, out, err = call(data="refcoco", split="testA", choose_on="val", output="expressions")
    assert status == 0, err
    assert "split testA" in out


CAPTIONS = {"data": "coco_captions", "data_dir": "scenes/coco", "split": "val", "choose_on": "train"}


@pytest.mark.parametrize(
    "options, message",
    [
        ({"images": None}, "--model llava: the model reads images"),
        ({"regions": "scenes/regions"}, "--regions: only for models that read regions"),
        ({"against": "bert"}, "model type bert: its image tokens are not known"),
        ({"against": "nowhere"}, "--model nowhere: "),
        ({"images": "llava"}, "--images llava: 2 of 2 images are missing"),
        ({"model": REGION_MODEL, "instruction": "x"}, "--instruction: only for vision-language models"),
        ({"model": REGION_MODEL, "dtype": "bfloat16"}, "--dtype: only for vision-language models"),
        (CAPTIONS, "no phrases with"),
    ],
)
def test_user_errors_are_one_line(call, places, options, message):
    status, _, err = call(output="mistake", **options)
    (line,) = [line for line in err.splitlines() if line.startswith("error: ")]
    assert status == 2
    assert message in line
    assert not (places / "mistake").exists()
