# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""The processors of all families as the Hub has them: their own classes, on PIL and on torchvision."""

import importlib.util
import json
import os
import subprocess
import sys
import tomllib
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from PIL import Image

from grounded_attention.commands import doctor, ground
from grounded_attention.families.vlm import PROCESSOR_PACKAGES, load_processor
from grounded_attention.processing.image_tokens import IMAGE_TOKEN_FAMILIES
from grounded_attention.training.experiments.vision_language import make_vlm_processor
from grounded_attention.training.recipes.recipe import Model, RecipeError
from tests.helpers.tiny_vlm_processors import PROCESSORS, make_tokenizer
from tests.helpers.tiny_vlm_relatives import RELATIVES

ROOT = Path(__file__).parents[2]
TYPES = [name for name in PROCESSORS if not name.endswith("_padded") and name not in RELATIVES]
VIDEOS = {"qwen2_vl", "qwen2_5_vl", "qwen3_vl", "smolvlm", "internvl", "llava_onevision"}


@pytest.fixture(scope="module")
def loaded(tmp_path_factory):
    """What the processors make of two texts, in a process of its own: transformers looks for torchvision once."""
    folder = tmp_path_factory.mktemp("hub")
    environment = {**os.environ, "HF_HUB_OFFLINE": "1", "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-m", "tests.processing.hub_processor_steps", str(folder)]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


def test_all_families_are_loaded(loaded):
    assert set(TYPES) == (set(IMAGE_TOKEN_FAMILIES) - set(RELATIVES)) & set(loaded)
    assert len(TYPES) >= 10  # the oldest transformers has one of them on torchvision only


@pytest.mark.parametrize("model_type", TYPES)
@pytest.mark.parametrize("backend", ["pil", "torchvision"])
def test_a_processor_from_the_hub(loaded, model_type, backend):
    found = loaded[model_type][backend]
    other = loaded[model_type]["pil"]
    assert found["processor"] == loaded[model_type]["class"]
    assert found["image_processor"].endswith("Pil") == (backend == "pil")
    assert (found["video_processor"] != "NoneType") == (model_type in VIDEOS)
    # each image token has its place
    assert found["tokens"] == found["regions"]
    assert all(found["tokens"])
    np.testing.assert_array_equal(found["boxes"], other["boxes"])
    assert found["pixels"] == pytest.approx(other["pixels"], abs=2e-3)  # both resize, with other rounding


@pytest.fixture
def missing(monkeypatch, tmp_path):
    """A folder of Qwen2-VL where torchvision is not installed."""
    find = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name, *rest: None if name in PROCESSOR_PACKAGES else find(name, *rest)
    )
    make_tokenizer().save_pretrained(tmp_path)
    for file, content in {
        "config.json": {"model_type": "qwen2_vl"},
        "preprocessor_config.json": {"image_processor_type": "Qwen2VLImageProcessor"},
        "processor_config.json": {"processor_class": "Qwen2VLProcessor"},
    }.items():
        (tmp_path / file).write_text(json.dumps(content))
    if "torchvision" in sys.modules or find("torchvision") is not None:  # as it reads without it
        import transformers

        def fail(*arguments, **settings):
            raise ImportError("Qwen2VLVideoProcessor requires the Torchvision library but it was not found")

        monkeypatch.setattr(transformers.AutoProcessor, "from_pretrained", fail)
    return tmp_path


def test_the_first_error_says_what_to_install(missing, capsys, tmp_path):
    with pytest.raises(ValueError, match=r'pip install "grounded-attention\[vlm\]"'):
        load_processor(str(missing))
    with pytest.raises(RecipeError, match=r"model\.source .*grounded-attention\[vlm\]"):
        make_vlm_processor(Model(family="vlm", source=str(missing)))
    Image.new("RGB", (40, 30)).save(tmp_path / "a.png")
    assert ground.main([str(tmp_path / "a.png"), "a dog", "--model", str(missing)]) == 2
    (line,) = capsys.readouterr().err.strip().splitlines()
    assert "torchvision" in line
    assert 'pip install "grounded-attention[vlm]"' in line
    assert doctor.main([]) == 0
    assert "grounded-attention[vlm]" in capsys.readouterr().out


def test_the_extra_names_what_processors_need():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    named = " ".join(project["optional-dependencies"]["vlm"])
    assert all(package in named for package in ("peft", *PROCESSOR_PACKAGES))


def test_a_torchvision_for_another_torch_is_a_remark(monkeypatch):
    monkeypatch.setitem(sys.modules, "torchvision", None)
    assert "note" not in doctor._torch()  # it is missing, which the extras say

    class Broken:
        def find_spec(self, name, path=None, target=None):
            if name == "torchvision":
                raise RuntimeError("operator torchvision::nms does not exist")

    monkeypatch.delitem(sys.modules, "torchvision")
    monkeypatch.setattr(sys, "meta_path", [Broken(), *sys.meta_path])
    said = doctor._torch()["note"]
    assert "torchvision" in said
    assert "nms" in said


@pytest.mark.parametrize(
    "sizes",
    [
        '{"height": 1000000, "width": 1000000}',
        '{"shortest_edge": 1000000000000}',
        '{"shortest_edge": 56, "longest_edge": 1000000000}',
    ],
)
def test_pictures_larger_than_any_model_reads_are_refused_before_they_are_made(monkeypatch, sizes):
    size = json.loads(sizes)
    loaded = SimpleNamespace(image_processor=SimpleNamespace(size=size))
    monkeypatch.setattr("transformers.AutoProcessor.from_pretrained", lambda name: loaded)
    with pytest.raises(ValueError, match=str(max(size.values()))):
        load_processor("org/model")
    loaded.image_processor.size = {"height": 1024, "width": 1024, "longest_edge": 28 * 28 * 16384}
    assert load_processor("org/model") is loaded
