# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""Checkpoints that another transformers saved: they load here with their own code, and with that of the package.

`make newest` names the other Pythons in OLDER_PYTHONS; without it, this one saves them.
"""

import json
import os
import subprocess
import sys

import pytest
from safetensors import safe_open
from transformers import AutoModel, AutoProcessor

from grounded_attention.families import FAMILIES
from grounded_attention.modeling import VisualGroundingPipeline
from tests.conformance.older_checkpoints import KNOWN, scores, ten_steps
from tests.helpers.project_files import ROOT
from tests.helpers.run_elsewhere import run_elsewhere

PYTHONS = os.environ.get("OLDER_PYTHONS", sys.executable).split(os.pathsep)
LOAD = """
import json, sys
from transformers import pipeline
folder, known = sys.argv[1], json.loads(sys.argv[2])
found = {}
for family in sys.argv[3:]:
    pipe = pipeline("visual-grounding", model=f"{folder}/{family}", device="cpu", trust_remote_code=True)
    found[family] = [one["score"] for one in pipe(known, top_k=None)]
print(json.dumps(found))
"""


@pytest.fixture(scope="module", params=PYTHONS)
def older(request, tmp_path_factory):
    """The folder with the checkpoints, and what they computed."""
    folder = tmp_path_factory.mktemp("older")
    command = [request.param, "-m", "tests.conformance.older_checkpoints", str(folder)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-3000:]
    return folder, json.loads((folder / "made.json").read_text())


def keys_of(folder):
    with safe_open(folder / "model.safetensors", "pt") as weights:
        return {*weights.keys()}


def test_the_code_of_a_checkpoint_computes_the_same(older, tmp_path):
    folder, made = older
    done = run_elsewhere(LOAD, tmp_path, str(folder), json.dumps(KNOWN), *FAMILIES)
    assert done.returncode == 0, done.stderr[-3000:]
    for family, found in json.loads(done.stdout.splitlines()[-1]).items():
        assert found == pytest.approx(made["scores"][family], abs=1e-5), (family, made["transformers"])


@pytest.mark.parametrize("family", FAMILIES)
def test_the_package_needs_no_code_of_the_checkpoint(older, tmp_path, family):
    """So a checkpoint whose own code a newer transformers breaks still loads where the package is installed."""
    folder, made = older
    for path in (folder / family).glob("*.py"):
        path.unlink()
    model, info = FAMILIES[family].heads["vgp"].from_pretrained(folder / family, output_loading_info=True)
    assert not any(info[name] for name in ("missing_keys", "unexpected_keys", "mismatched_keys"))
    assert type(AutoModel.from_pretrained(folder / family)) is FAMILIES[family].base_model
    pipe = VisualGroundingPipeline(model, processor=AutoProcessor.from_pretrained(folder / family), device="cpu")
    assert scores(pipe) == pytest.approx(made["scores"][family], abs=1e-5)
    model.save_pretrained(tmp_path)
    assert keys_of(tmp_path) == keys_of(folder / family)


def test_ten_steps_have_the_same_losses(older, tmp_path):
    assert ten_steps(tmp_path) == pytest.approx(older[1]["losses"], abs=1e-5)
