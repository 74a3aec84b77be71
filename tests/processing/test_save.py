# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
import json
import os
import subprocess
import sys

import numpy as np
import pytest
from transformers import AutoProcessor

from grounded_attention.processing import OLDEST_TRANSFORMERS, FastRCNNImageProcessor, VLBertProcessor
from tests.helpers.closeness import assert_same
from tests.helpers.processing_helpers import FEATURE_SIZE, make_processor, span
from tests.helpers.project_files import ROOT
from tests.helpers.warm_python import run_python, without_project

TEXT = "a man in a red shirt"
SETTINGS = {"max_regions": 7, "region_feature_size": FEATURE_SIZE, "iou_threshold": 0.25}
IMAGE_SIZE = {"shortest_edge": 24, "longest_edge": 40}

FRESH_PROCESS = f"""
import importlib.util, sys
sys.modules["grounded_attention"] = None  # as where it is not installed
import numpy as np
from transformers import AutoProcessor
from transformers.models.auto.image_processing_auto import AutoImageProcessor
processor = AutoProcessor.from_pretrained(sys.argv[1], trust_remote_code=True)
images = AutoImageProcessor.from_pretrained(sys.argv[1], trust_remote_code=True)
print(type(processor.image_processor).__name__, type(images).__name__, images.size == processor.image_processor.size)
image = np.full((30, 40, 3), 7, dtype=np.uint8)
found = processor("a", images=image, region_boxes=[[0, 0, 1, 1]])
print(list(found["pixel_values"].shape), found["image_sizes"].tolist(), found["region_boxes"].shape[1])
inputs = processor({TEXT!r}, region_features=np.ones((1, {FEATURE_SIZE})), region_boxes=[[0, 0, 1, 1]],
    phrases=[{{"sentence": 0, "start": 2, "end": 5, "regions": [0]}}])
print(type(processor).__name__, processor.max_regions, processor.region_feature_size, processor.iou_threshold)
print(inputs["input_ids"].tolist(), inputs["phrase_mask"].int().tolist(), inputs["phrase_regions"].int().tolist())
"""


@pytest.fixture
def saved(tmp_path):
    images = FastRCNNImageProcessor(size=IMAGE_SIZE, image_std=(1.0, 2.0, 3.0))
    make_processor(**SETTINGS, image_processor=images).save_pretrained(tmp_path / "checkpoint")
    return tmp_path / "checkpoint"


def test_settings_and_code_are_written(saved):
    config = json.loads((saved / "processor_config.json").read_text())
    assert {name: config[name] for name in SETTINGS} == SETTINGS
    assert config["image_processor"]["auto_map"] == {
        "AutoImageProcessor": "image_processing_fast_rcnn.FastRCNNImageProcessor"
    }
    assert config["auto_map"] == {"AutoProcessor": "processing_vl_bert.VLBertProcessor"}
    assert {path.name for path in saved.glob("*.py")} == {"image_processing_fast_rcnn.py", "processing_vl_bert.py"}


@pytest.mark.parametrize("loader", [AutoProcessor, VLBertProcessor])
def test_loads_where_the_package_is_imported(saved, loader):
    processor = loader.from_pretrained(saved)
    assert type(processor) is VLBertProcessor
    assert type(processor.image_processor) is FastRCNNImageProcessor
    assert (processor.image_processor.size, processor.image_processor.image_std) == (IMAGE_SIZE, [1.0, 2.0, 3.0])
    assert {name: getattr(processor, name) for name in SETTINGS} == SETTINGS
    expected = make_processor(**SETTINGS)(TEXT, phrases=[span(TEXT, "red shirt")])
    found = processor(TEXT, phrases=[span(TEXT, "red shirt")])
    assert_same(found, expected)


def test_loads_in_a_fresh_process_from_the_copied_files(saved, tmp_path):
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(without_project()), "HF_HOME": str(tmp_path / "home")}
    result = run_python(FRESH_PROCESS, [saved], cwd=tmp_path, env=environment)
    assert result.returncode == 0, result.stderr
    expected = make_processor()(TEXT, phrases=[span(TEXT, "man")])
    images, pixels, *lines = result.stdout.splitlines()[-4:]
    assert images == "FastRCNNImageProcessor FastRCNNImageProcessor True"
    assert pixels == "[1, 3, 24, 32] [[32, 24]] 2"
    assert lines[0] == f"VLBertProcessor 7 {FEATURE_SIZE} 0.25"
    assert lines[1] == f"{expected['input_ids'].tolist()} {expected['phrase_mask'].int().tolist()} [[[0, 1]]]"


def test_input_names_are_the_keys_of_a_full_batch():
    processor = make_processor()
    inputs = processor(
        TEXT,
        region_features=np.ones((1, FEATURE_SIZE)),
        region_boxes=[[0, 0, 1, 1]],
        phrases=[span(TEXT, "man", boxes=[[0, 0, 1, 1]], scores=[0.5])],
        phrase_pairs=[[0, 0]],
        tags=[span(TEXT, "man", regions=[0])],
        layout="masked_answer",
    )
    assert list(inputs) == processor.model_input_names


OLD = """
import sys
from transformers import AutoProcessor
sys.modules["transformers"].__version__ = "4.57.0"
try:
    AutoProcessor.from_pretrained(sys.argv[2], trust_remote_code=True)
except ImportError as error:
    print("copied files:", error)
sys.path.insert(0, sys.argv[1])
try:
    from grounded_attention.processing import VLBertProcessor
except ImportError as error:
    print("imported:", error)
"""


def test_an_old_transformers_gets_one_clear_error(saved, tmp_path):
    environment = {**os.environ, "HF_HOME": str(tmp_path / "home")}
    # In a process of its own: that of `run_python` may have the project imported.
    command = [sys.executable, "-c", OLD, str(ROOT), str(saved)]
    result = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert result.returncode == 0, result.stderr
    lines = result.stdout.splitlines()
    assert [line.partition(":")[0] for line in lines] == ["copied files", "imported"]
    for line in lines:
        assert f"needs transformers >= {OLDEST_TRANSFORMERS}, but 4.57.0 is installed" in line


@pytest.mark.parametrize("value", [True, 3])
def test_an_id_of_two_tokens_is_refused(tmp_path, value):
    make_processor().save_pretrained(tmp_path)
    path = tmp_path / "tokenizer.json"
    content = json.loads(path.read_text())
    ids = content["model"]["vocab"]
    tokens = [*ids]  # in the order of their ids
    ids[tokens[2]] = value  # true becomes 1
    renamed = (tokens[2], tokens[value])
    content["added_tokens"] = [added for added in content["added_tokens"] if added["content"] not in renamed]
    path.write_text(json.dumps(content))
    with pytest.raises(ValueError, match="gives one id to several tokens"):
        AutoProcessor.from_pretrained(tmp_path)
