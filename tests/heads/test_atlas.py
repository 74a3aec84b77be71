# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""Heads of a model go to an atlas as a pull request, and are found there by name and revision."""

import json
import os

import numpy as np
import pytest
from PIL import Image

from grounded_attention.commands import heads
from grounded_attention.heads.atlas import VARIABLE, publish_heads
from tests.helpers.project_files import ROOT
from tests.helpers.tiny_vlm_files import save_llava
from tests.helpers.warm_python import run_python

NAME = "org/model"
ATLAS = "org/atlas"
HEADS = {
    "format": 2,
    "layers": ["0", "1"],
    "heads": 4,
    "about": {"word": "mean"},
    "chosen": [{"layer": 1, "head": 2}],
}
# Publishes heads.json, merges the pull request (its file goes to main), and looks with the model of the Hub.
SCRIPT = f"""
import contextlib, io, json
from huggingface_hub import HfApi
from PIL import Image
from transformers import AutoModelForImageTextToText, AutoProcessor
from grounded_attention import look
from grounded_attention.commands import look as command
from grounded_attention.heads.atlas import find_revision, publish_heads

api, found = HfApi(), {{}}
api.create_repo("{NAME}")
api.upload_folder(repo_id="{NAME}", folder_path="llava")
api.create_repo("{ATLAS}", repo_type="dataset")
model = AutoModelForImageTextToText.from_pretrained("{NAME}")
revision = find_revision("{NAME}")
found["url"] = publish_heads("heads.json", "{NAME}", revision, "{ATLAS}")

def lens():
    picture = Image.open("a.png")
    shown = look(model, AutoProcessor.from_pretrained("llava"), picture, "what ?", answer="a dog")
    return [list(map(list, shown.heads)), shown.heads_from]

found["before"] = lens()
def merge(revision):
    content = json.load(open("heads.json")) | {{"atlas": {{"revision": revision}}}}
    api.upload_file(path_or_fileobj=json.dumps(content).encode(), path_in_repo="{NAME}/heads.json",
                    repo_id="{ATLAS}", repo_type="dataset")
place = api.hf_hub_download("{ATLAS}", "{NAME}/heads.json", repo_type="dataset", revision="refs/pr/1")
found["entry"] = json.load(open(place))["atlas"]["revision"] == revision
merge(revision)
found["merged"] = lens()
merge("0" * 40)
found["other"] = lens()
merge(revision)
api.upload_file(path_or_fileobj="heads.json", path_in_repo="heads.json", repo_id="{NAME}")
given = ["a.png", "what ?", "--model", f"{NAME}@{{revision}}", "--answer", "a dog"]
with contextlib.redirect_stdout(io.StringIO()) as said:
    command.main(given)
found["later"] = said.getvalue()
print(json.dumps(found))
"""


def test_heads_are_published_and_found(loopback_hub, tmp_path):
    save_llava(tmp_path / "llava")
    (tmp_path / "heads.json").write_text(json.dumps(HEADS))
    pixels = np.random.default_rng(0).integers(0, 255, (40, 60, 3), dtype=np.uint8)
    Image.fromarray(pixels).save(tmp_path / "a.png")
    loopback_hub.state.add_user("hf_user", "org")
    environment = loopback_hub.environment(tmp_path / "home", "hf_user")
    done = run_python(SCRIPT, cwd=tmp_path, env={**environment, "PYTHONPATH": str(ROOT), VARIABLE: ATLAS})
    assert done.returncode == 0, done.stderr[-3000:]
    found = json.loads(done.stdout.splitlines()[-1])
    assert found["url"].endswith(f"/datasets/{ATLAS}/discussions/1")
    assert found["entry"], "the entry names the commit that was measured"
    assert f"the atlas {ATLAS} has no heads of {NAME}" in found["before"][1]
    assert found["merged"] == [[[1, 2]], f"{ATLAS}/{NAME}/heads.json"]
    assert "heads of the revision 000" in found["other"][1]
    assert found["merged"][1] in found["later"], "heads.json of a later commit is not the model's"


def test_what_is_no_ranking_is_not_published(tmp_path, monkeypatch):
    monkeypatch.delenv(VARIABLE, raising=False)
    with pytest.raises(ValueError, match=VARIABLE):
        publish_heads(tmp_path, NAME, "main")
    (tmp_path / "heads.json").write_text("{}")
    with pytest.raises(ValueError, match="not a ranking of heads"):
        publish_heads(tmp_path, NAME, "main", ATLAS)
    assert os.environ.get(VARIABLE) is None


def test_the_command_publishes_only_models_of_the_hub(tmp_path, capsys):
    save_llava(tmp_path / "llava")
    given = ["--model", tmp_path / "llava", "--data", "rows.jsonl", "--publish", ATLAS]
    assert heads.main([*map(str, given)]) == 2
    assert "is no model of the Hub" in capsys.readouterr().err
