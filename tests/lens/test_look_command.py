# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""The command `look`: a page, numbers, two models, and what it refuses."""

import json
import re
import shutil

import numpy as np
import pytest
import torch
from peft import LoraConfig, get_peft_model
from PIL import Image
from safetensors.torch import load_file, save_file
from transformers import AutoModelForImageTextToText

from grounded_attention.commands.look import main
from grounded_attention.commands.models import read_heads
from grounded_attention.processing.patch_grounding import PatchGroundingProcessor
from grounded_attention.processing.videos import open_video
from grounded_attention.training.experiments.pretrained import load_vlm
from tests.helpers.own_rows import write_rows
from tests.helpers.tiny_vlm_files import save_llava
from tests.helpers.tiny_vlm_models import make_model
from tests.helpers.tiny_vlm_processors import PROCESSORS, add_videos, make_processor


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return save_llava(tmp_path_factory.mktemp("llava"))


@pytest.fixture(scope="module")
def image(tmp_path_factory):
    path = tmp_path_factory.mktemp("images") / "a.png"
    Image.fromarray(np.random.default_rng(0).integers(0, 255, (40, 60, 3), dtype=np.uint8)).save(path)
    return path


def run_look(capsys, *arguments):
    status = main([str(each) for each in arguments])
    printed = capsys.readouterr()
    return status, printed.out, printed.err


def test_a_page_and_the_numbers(folder, image, tmp_path, capsys):
    page = tmp_path / "lens.html"
    given = [image, "what is this ?", "--model", folder, "--answer", "a small cat", "--output", page, "--json"]
    status, printed, _ = run_look(capsys, *given)
    assert status == 0
    written = json.loads(printed)
    assert [word["text"] for word in written["words"] if word["answer"]] == ["a", "small", "cat"]
    assert "Localization Heads" in written["heads_from"]
    assert 'id="explorer-data"' in page.read_text()


def test_the_model_answers_and_two_models_stand_on_one_page(folder, image, tmp_path, capsys):
    page = tmp_path / "lens.html"
    given = [image, "what ?", "--model", folder, "--beside", folder, "--again"]
    status, printed, _ = run_look(capsys, *given, "--output", page)
    assert status == 0
    assert printed.count("asked again") == 2
    assert page.read_text().count('"title":') == 4


def test_an_adapter_is_a_model_with_its_base(folder, image, tmp_path, capsys):
    adapter = tmp_path / "adapter"
    settings = LoraConfig(target_modules=["q_proj"], init_lora_weights=False)
    get_peft_model(AutoModelForImageTextToText.from_pretrained(folder), settings).save_pretrained(adapter)
    given = [image, "what ?", "--model", folder, "--answer", "a cat", "--heads", "all", "--json"]
    given += ["--output", tmp_path / "lens.html"]
    alone = json.loads(run_look(capsys, *given)[1])
    shutil.copy(folder / "processor_config.json", adapter)
    for file in folder.glob("tokenizer*"):
        shutil.copy(file, adapter)
    adapted = [adapter if each == folder else each for each in given]
    first, second = json.loads(run_look(capsys, *adapted, "--beside", folder)[1])
    assert second["words"] == alone["words"] != first["words"]


def test_rows_are_looked_at(folder, tmp_path, capsys):
    rows = write_rows(tmp_path / "own", 4)
    page = tmp_path / "lens.html"
    given = ["--model", folder, "--answer", "a cat", "--heads", "all", "--json", "--output", page]
    source = ["--data", rows, "--boxes", "xyxy pixels"]
    status, printed, _ = run_look(capsys, *given, *source, "--max-rows", 2)
    found = json.loads(printed)
    assert status == 0
    assert page.read_text().count('"title":') == len(found) == 2
    question = "a red ball and a blue cube"
    alone = json.loads(run_look(capsys, *given, tmp_path / "own" / "0.png", question)[1])
    assert found[0]["words"] == alone["words"] != found[1]["words"]
    asked = json.loads(run_look(capsys, *given, *source, "what ?")[1])
    assert "what" in {word["text"] for word in asked["words"]}
    assert run_look(capsys, *given[:-1], tmp_path / "lens.png", *source, "--max-rows", 2)[0] == 2
    for wrong in ([*source, "a.png", "what ?"], ["--split", "val", rows, "what ?"], [rows]):
        status, _, error = run_look(capsys, *given, *wrong)
        assert status == 2
        assert error.count("\n") == 1
        assert "--data" in error


def test_a_turn_about_two_pictures(folder, tmp_path, capsys):
    pictures = [tmp_path / "a.png", tmp_path / "b.png"]
    for number, path in enumerate(pictures):
        Image.new("RGB", (50, 30 + 20 * number), "red").save(path)
    turns = [("human", "<image>\n<image>\nwhat is this ?"), ("gpt", "a cat")]
    row = {"images": ["a.png", "b.png"], "conversations": [{"from": who, "value": text} for who, text in turns]}
    (tmp_path / "rows.jsonl").write_text(json.dumps(row))
    given = ["--model", folder, "--answer", "a cat", "--heads", "all", "--output", tmp_path / "lens.html"]
    inputs = [["--data", tmp_path / "rows.jsonl"], [*pictures, "what is this ?"]]
    found, alone = (json.loads(run_look(capsys, *given, *each, "--json")[1]) for each in inputs)
    assert found == alone
    assert [run_look(capsys, *given, *each)[1].partition("\n")[0] for each in inputs] == [
        "row 0, what is this ?: a cat", "a cat",
    ]  # fmt: skip


def test_a_folder_of_frames_is_a_video(tmp_path, capsys, monkeypatch):
    processor = add_videos(make_processor("qwen2_5_vl"), "qwen2_5_vl")
    model = make_model("qwen2_5_vl", processor.tokenizer)
    monkeypatch.setattr(
        "grounded_attention.training.experiments.pretrained.load_vlm",
        lambda name, **how: (model, PatchGroundingProcessor(processor)),
    )
    frames = tmp_path / "frames"
    frames.mkdir()
    for number in range(9, 12):  # in the order of numbers, not of letters
        Image.new("RGB", (50, 40), (20 * number,) * 3).save(frames / f"{number}.png")
    given = [frames, "what is this ?", "--model", "qwen", "--answer", "a cat", "--output", tmp_path / "lens.html"]
    found = json.loads(run_look(capsys, *given, "--json")[1])
    assert found["images"] == ["frames 1–2, 0.2 s", "frame 3, 1.0 s"]
    assert all(len(word["shares"]) == 2 for word in found["words"])
    assert [each.getpixel((0, 0))[0] for each in open_video(frames).frames] == [180, 200, 220]
    (tmp_path / "clip.mp4").write_bytes(b"no video")
    Image.new("RGB", (40, 50)).save(frames / "12.png")
    for wrong in ([frames], [tmp_path / "clip.mp4"], [tmp_path]):
        status, _, error = run_look(capsys, *wrong, *given[1:])
        assert status == 2 and error.count("\n") == 1, wrong


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--heads", "9-0"], "layer and head (9, 0)"),
        (["--heads", "nowhere.json"], "nowhere.json"),
        (["--form", "flat"], "'flat' is unknown"),
        (["--output", "x.gif"], "x.gif"),
        (["--dtype", "4bit"], "bitsandbytes"),
    ],
)
def test_wrong_options_are_one_line(folder, image, options, message, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    status, _, error = run_look(capsys, image, "what ?", "--model", folder, "--answer", "a cat", *options)
    assert status == 2
    assert error.count("\n") == 1
    assert message in error
    assert not list(tmp_path.iterdir())


def test_heads_are_read():
    assert read_heads("auto") == "auto"
    assert read_heads("7") == 7
    assert read_heads("14-3, 20-0") == [(14, 3), (20, 0)]
    assert read_heads("runs/x-1/heads.json") == "runs/x-1/heads.json"


WRONG_SETTINGS = {
    "generation_config.json": ({"eos_token_id": [1e99]}, "copied: the checkpoint cannot be loaded"),
    "lengths of generation_config.json": (
        {"max_new_tokens": "x"},
        "the checkpoint cannot be loaded .*'str' and 'int'",
    ),
    "size": (
        {"size": {"height": 10**6, "width": 10**6}, "do_resize": True},
        "image processor has size.height 1000000",
    ),
    "mean": ({"image_mean": ["x"] * 3}, "the checkpoint cannot be loaded .*'x'"),
}


@pytest.mark.parametrize("name", WRONG_SETTINGS)
def test_wrong_settings_of_a_checkpoint_are_one_line(folder, image, tmp_path, capsys, name):
    settings, message = WRONG_SETTINGS[name]
    shutil.copytree(folder, tmp_path / "copied")
    path = tmp_path / "copied" / (name.split()[-1] if name.endswith("json") else "processor_config.json")
    content = json.loads(path.read_text()) if path.exists() else {}
    content.get("image_processor", content).update(settings)
    path.write_text(json.dumps(content))
    status, _, error = run_look(
        capsys, image, "what ?", "--model", tmp_path / "copied", "--output", tmp_path / "a.html"
    )
    assert status == 2 and re.search(message, error.splitlines()[-1]), error


def test_a_checkpoint_without_the_models_weights_is_refused(folder, image, tmp_path, capsys):
    copied = tmp_path / "copied"
    shutil.copytree(folder, copied)
    weights = load_file(copied / "model.safetensors")
    save_file(
        {f"other.{name}": value for name, value in weights.items()}, copied / "model.safetensors", {"format": "pt"}
    )
    status, _, error = run_look(capsys, image, "what ?", "--model", copied, "--output", tmp_path / "lens.html")
    assert status == 2
    assert "weights" in error.splitlines()[-1]
    assert not (tmp_path / "lens.html").exists()


@pytest.mark.parametrize(
    "model_type",
    [
        name
        for name in ("qwen3_5", "gemma3", "lighton_ocr", "mistral3", "nemotron_h_omni", "pp_chart2table")
        if name in PROCESSORS
    ],
)
def test_models_are_loaded_without_their_language_head(model_type, tmp_path, monkeypatch):
    """What `ground` reads, with the weights of the whole checkpoint."""
    processor = make_processor(model_type)
    model = make_model(model_type, processor.tokenizer)
    model.save_pretrained(tmp_path)
    loading = "grounded_attention.training.experiments.pretrained.load_processor"
    monkeypatch.setattr(loading, lambda *given, **more: processor)
    loaded, _ = load_vlm(str(tmp_path), with_language_head=False)
    expected = model.base_model.state_dict()
    assert loaded.state_dict().keys() == expected.keys()
    assert all(torch.equal(value, expected[name]) for name, value in loaded.state_dict().items())
