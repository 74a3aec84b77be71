# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""The command `look`: a page, numbers, two models, and what it refuses."""

import json
import re
import shutil

import numpy as np
import pytest
from peft import LoraConfig, get_peft_model
from PIL import Image
from safetensors.torch import load_file, save_file
from torch.testing import assert_close
from transformers import AutoModelForImageTextToText
from transformers.quantizers import quantizer_bnb_8bit

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
    assert main([*map(str, arguments)]) == 0
    return capsys.readouterr().out


def read_look(capsys, *arguments):
    return json.loads(run_look(capsys, *arguments, "--json"))


def refused(capsys, *arguments):
    """The one line of a mistake."""
    assert main([*map(str, arguments)]) == 2
    error = capsys.readouterr().err
    assert error.count("\n") == 1, error
    return error


def test_a_page_and_the_numbers(folder, image, tmp_path, capsys):
    page = tmp_path / "lens.html"
    given = [image, "what is this ?", "--model", folder, "--answer", "a small cat", "--output", page]
    assert read_look(capsys, *given)["form"] == ["contribution"]
    written = read_look(capsys, *given, "--form", "plain")
    assert [word["text"] for word in written["words"] if word["answer"]] == ["a", "small", "cat"]
    assert "Localization Heads" in written["heads_from"]
    data = json.loads(re.search(r'id="explorer-data">(.*?)</script>', page.read_text())[1])
    [example] = data["explorers"][0]["examples"]
    [picture] = example["pictures"]
    assert max(picture["width"], picture["height"]) >= 640
    start, end, _ = example["words"][example["first"]]
    assert example["texts"][-1][start:end] == "small"


def test_the_model_answers_and_two_models_stand_on_one_page(folder, image, tmp_path, capsys):
    page = tmp_path / "lens.html"
    given = [image, "what ?", "--model", folder, "--beside", folder, "--again"]
    printed = run_look(capsys, *given, "--output", page)
    assert printed.count("asked again") == 2
    assert page.read_text().count('"title":') == 4


def test_an_adapter_is_a_model_with_its_base(folder, image, tmp_path, capsys):
    adapter = tmp_path / "adapter"
    settings = LoraConfig(target_modules=["q_proj"], init_lora_weights=False)
    get_peft_model(AutoModelForImageTextToText.from_pretrained(folder), settings).save_pretrained(adapter)
    given = [image, "what ?", "--answer", "a cat", "--heads", "all", "--output", tmp_path / "lens.html", "--model"]
    alone = read_look(capsys, *given, folder)
    shutil.copy(folder / "processor_config.json", adapter)
    for file in folder.glob("tokenizer*"):
        shutil.copy(file, adapter)
    first, second = read_look(capsys, *given, adapter, "--beside", folder)
    assert second["words"] == alone["words"] != first["words"]


def test_rows_are_looked_at(folder, tmp_path, capsys):
    rows = write_rows(tmp_path / "own", 4)
    page = tmp_path / "lens.html"
    given = ["--model", folder, "--answer", "a cat", "--heads", "all", "--output", page]
    source = ["--data", rows, "--boxes", "xyxy pixels"]
    found = read_look(capsys, *given, *source, "--max-rows", 2)
    assert page.read_text().count('"title":') == len(found) == 2
    alone = read_look(capsys, *given, tmp_path / "own" / "0.png", "a red ball and a blue cube")
    assert found[0]["words"] == alone["words"] != found[1]["words"]
    asked = read_look(capsys, *given, *source, "what ?")
    assert "what" in [word["text"] for word in asked["words"]]
    refused(capsys, *given[:-1], tmp_path / "lens.png", *source, "--max-rows", 2)
    for wrong in ([*source, "a.png", "what ?"], ["--split", "val", rows, "what ?"], [rows]):
        assert "--data" in refused(capsys, *given, *wrong)


def test_a_turn_about_two_pictures(folder, tmp_path, capsys):
    pictures = [tmp_path / "a.png", tmp_path / "b.png"]
    Image.new("RGB", (50, 30), "red").save(pictures[0])
    Image.new("RGB", (50, 50), "red").save(pictures[1])
    rows = tmp_path / "rows.jsonl"
    rows.write_text(
        '{"images": ["a.png", "b.png"], "conversations": ['
        '{"from": "human", "value": "<image>\\n<image>\\nwhat is this ?"}, {"from": "gpt", "value": "a cat"}]}'
    )
    given = ["--model", folder, "--answer", "a cat", "--heads", "all", "--output", tmp_path / "lens.html"]
    of_rows = [*given, "--data", rows]
    of_pictures = [*given, *pictures, "what is this ?"]
    assert read_look(capsys, *of_rows) == read_look(capsys, *of_pictures)
    assert run_look(capsys, *of_rows).startswith("row 0, what is this ?: a cat\n")
    assert run_look(capsys, *of_pictures).startswith("a cat\n")


def test_a_folder_of_frames_is_a_video(tmp_path, capsys, monkeypatch):
    processor = add_videos(make_processor("qwen2_5_vl"), "qwen2_5_vl")
    model = make_model("qwen2_5_vl", processor.tokenizer)
    loaded = (model, PatchGroundingProcessor(processor))
    load = "grounded_attention.training.experiments.pretrained.load_vlm"
    monkeypatch.setattr(load, lambda name, **options: loaded)
    frames = tmp_path / "frames"
    frames.mkdir()
    for number in range(9, 12):  # in the order of numbers, not of letters
        Image.new("RGB", (50, 40), (20 * number,) * 3).save(frames / f"{number}.png")
    given = ["what is this ?", "--model", "qwen", "--answer", "a cat", "--output", tmp_path / "lens.html"]
    found = read_look(capsys, frames, *given)
    assert found["images"] == ["frames 1–2, 0.2 s", "frame 3, 1.0 s"]
    assert {len(word["shares"]) for word in found["words"]} == {2}
    assert [frame.getpixel((0, 0))[0] for frame in open_video(frames).frames] == [180, 200, 220]
    (tmp_path / "clip.mp4").write_bytes(b"no video")
    Image.new("RGB", (40, 50)).save(frames / "12.png")
    for wrong in (frames, tmp_path / "clip.mp4", tmp_path):
        refused(capsys, wrong, *given)


@pytest.mark.parametrize(
    "options, message",
    [
        ("--heads 9-0", "layer and head (9, 0)"),
        ("--heads nowhere.json", "nowhere.json"),
        ("--form flat", "'flat' is unknown"),
        ("--output x.gif", "x.gif"),
    ],
)
def test_wrong_options_are_one_line(folder, image, options, message, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    given = [image, "what ?", "--model", folder, "--answer", "a cat", *options.split()]
    assert message in refused(capsys, *given)
    assert not list(tmp_path.iterdir())


def test_weights_of_8_bits(folder, image, tmp_path, monkeypatch, capsys):
    output = tmp_path / "lens.json"
    given = [image, "a cat", "--model", folder, "--answer", "a cat", "--dtype", "8bit", "--device", "cpu"]
    run_look(capsys, *given, "--output", output)
    assert output.stat().st_size > 100
    monkeypatch.setattr(quantizer_bnb_8bit, "is_bitsandbytes_available", lambda: False)
    assert "bitsandbytes" in refused(capsys, *given)


def test_heads_are_read():
    assert read_heads("auto") == "auto"
    assert read_heads("7") == 7
    assert read_heads("14-3, 20-0") == [(14, 3), (20, 0)]
    assert read_heads("runs/x-1/heads.json") == "runs/x-1/heads.json"


SIZE = {"size": {"height": 10**6, "width": 10**6}, "do_resize": True}
GENERATION = "generation_config.json"
PROCESSOR = "processor_config.json"


@pytest.mark.parametrize(
    "file, settings, message",
    [
        (GENERATION, {"eos_token_id": [1e99]}, "copied: the checkpoint cannot be loaded"),
        (GENERATION, {"max_new_tokens": "x"}, "the checkpoint cannot be loaded .*'str' and 'int'"),
        (PROCESSOR, SIZE, "image processor has size.height 1000000"),
        (PROCESSOR, {"image_mean": ["x"] * 3}, "the checkpoint cannot be loaded .*'x'"),
    ],
)
def test_wrong_settings_of_a_checkpoint_are_one_line(folder, image, tmp_path, capsys, file, settings, message):
    copied = shutil.copytree(folder, tmp_path / "copied")
    path = copied / file
    content = json.loads(path.read_text()) if path.exists() else {}
    content.get("image_processor", content).update(settings)
    path.write_text(json.dumps(content))
    assert main([str(image), "what ?", "--model", str(copied), "--output", str(tmp_path / "a.html")]) == 2
    assert re.search(message, capsys.readouterr().err.splitlines()[-1])


def test_a_checkpoint_without_the_models_weights_is_refused(folder, image, tmp_path, capsys):
    copied = shutil.copytree(folder, tmp_path / "copied")
    weights = load_file(copied / "model.safetensors")
    renamed = {f"other.{name}": value for name, value in weights.items()}
    save_file(renamed, copied / "model.safetensors", {"format": "pt"})
    page = tmp_path / "lens.html"
    assert main([str(image), "what ?", "--model", str(copied), "--output", str(page)]) == 2
    assert "weights" in capsys.readouterr().err.splitlines()[-1]
    assert not page.exists()


LOADED = ("qwen3_5", "gemma3", "lighton_ocr", "mistral3", "nemotron_h_omni", "pp_chart2table")


@pytest.mark.parametrize("model_type", [name for name in LOADED if name in PROCESSORS])
def test_models_are_loaded_without_their_language_head(model_type, tmp_path, monkeypatch):
    """What `ground` reads, with the weights of the whole checkpoint."""
    processor = make_processor(model_type)
    model = make_model(model_type, processor.tokenizer)
    model.save_pretrained(tmp_path)
    loading = "grounded_attention.training.experiments.pretrained.load_processor"
    monkeypatch.setattr(loading, lambda *arguments, **options: processor)
    loaded, _ = load_vlm(str(tmp_path), with_language_head=False)
    assert_close(loaded.state_dict(), model.base_model.state_dict(), rtol=0, atol=0)
