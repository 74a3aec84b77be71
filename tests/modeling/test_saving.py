# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""Saved models of every family: their Auto classes, their pipeline without the project, an older transformers.

`tests/dataset_scripts/test_hub_pull.py` loads every class in a process without the project,
`test_pretraining_handover.py` beside this file compares all weights of every task.
"""

import json

import pytest
import torch
import transformers

from grounded_attention.families import FAMILIES
from grounded_attention.modeling import OLDEST_TRANSFORMERS, VisualGroundingPipeline
from tests.helpers.exported import tiny_model
from tests.helpers.hub_models import AUTO_HEADS, SIZES
from tests.helpers.project_files import ROOT
from tests.helpers.run_elsewhere import run_elsewhere
from tests.helpers.tiny_pipeline import example, features
from tests.helpers.tiny_vgp import FEATURE_SIZE, tiny_processor
from tests.helpers.tiny_vl_bert import make_model as make_vl_bert

families = pytest.mark.parametrize("family", FAMILIES)

GROUND = """
import json, sys
from transformers import pipeline
known = json.loads(sys.argv[2])
pipe = pipeline("visual-grounding", model=sys.argv[1], device="cpu", trust_remote_code=True)
assert "modeling" not in sys.modules
print(json.dumps(pipe(known)))
"""


@pytest.mark.parametrize("family", ["visualbert", "vilbert", "lxmert"])  # VL-BERT's: test_pipeline_visual_grounding.py
def test_the_pipeline_runs_from_the_saved_files(tmp_path, family):
    torch.manual_seed(0)
    sizes = {**SIZES, "region_feature_size": FEATURE_SIZE}
    model = FAMILIES[family].heads["vgp"](FAMILIES[family].config_class(**sizes)).eval()
    processor = FAMILIES[family].processor_class(tiny_processor().tokenizer, region_feature_size=FEATURE_SIZE)
    for part in (model, processor):
        part.save_pretrained(tmp_path / "model")
    known = {**example(), "features": features().tolist()}
    process = run_elsewhere(GROUND, tmp_path, str(tmp_path / "model"), json.dumps(known))
    assert process.returncode == 0, process.stderr[-3000:]
    found = json.loads(process.stdout.splitlines()[-1])
    expected = VisualGroundingPipeline(model, processor=processor, device="cpu")(known)
    assert [record["region"] for record in found] == [record["region"] for record in expected]
    scores = [record["score"] for record in expected]
    assert [record["score"] for record in found] == pytest.approx(scores, abs=1e-5)


@families
def test_registered_classes_load_without_remote_code(tmp_path, family):
    entry = FAMILIES[family]
    for head, auto in AUTO_HEADS.items():
        fields = {"answers": ["yes", "two dogs", "no"]} if head == "vqa" else {}
        tiny_model(family, head, **fields).save_pretrained(tmp_path / head)
        loaded = getattr(transformers, auto).from_pretrained(tmp_path / head)
        assert type(loaded) is entry.heads[head]
        assert type(loaded.config) is entry.config_class
        if fields:
            assert loaded.config.answers == fields["answers"]
            assert loaded.config.id2label[1] == "two dogs"
            assert loaded.config.label2id["no"] == 2
    assert type(transformers.AutoModel.from_pretrained(tmp_path / "vqa")) is entry.base_model


@families
def test_the_vocabulary_can_grow_and_the_word_head_stays_tied(tmp_path, family):
    model = tiny_model(family, "pretraining")
    model.resize_token_embeddings(50)
    assert model(input_ids=torch.tensor([[49, 1]])).mlm_logits.shape == (1, 2, 50)
    model.save_pretrained(tmp_path)
    loaded = type(model).from_pretrained(tmp_path)
    for each in (model, loaded):
        assert each.get_output_embeddings().weight is each.get_input_embeddings().weight


OLD = """
import sys, transformers
transformers.__version__ = "4.57.0"
sys.path.insert(0, sys.argv[1])
try:
    import grounded_attention.modeling
except ImportError as error:
    print(error)
"""
OLD_LOAD = """
import sys, transformers
from transformers import AutoConfig
transformers.__version__ = "4.57.0"
try:
    AutoConfig.from_pretrained(sys.argv[1], trust_remote_code=True)
except ImportError as error:
    print(error)
"""


@pytest.mark.parametrize("with_project", [True, False])
def test_an_old_transformers_gets_one_clear_error(tmp_path, with_project):
    make_vl_bert().save_pretrained(tmp_path / "model")
    script, place = (OLD, ROOT) if with_project else (OLD_LOAD, tmp_path / "model")
    done = run_elsewhere(script, tmp_path, str(place), with_project=with_project)
    assert done.returncode == 0, done.stderr
    assert f"needs transformers >= {OLDEST_TRANSFORMERS}, but 4.57.0 is installed" in done.stdout
    assert done.stdout.count("\n") == 1
