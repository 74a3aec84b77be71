# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""Heads are those of the commit of the model that is loaded from the Hub."""

import json

import numpy as np
from PIL import Image

from tests.helpers.project_files import ROOT
from tests.helpers.tiny_vlm_files import save_llava
from tests.helpers.warm_python import run_python

NAME = "org/model"
HEADS = {
    "format": 2,
    "layers": ["0", "1"],
    "heads": 4,
    "about": {"word": "mean"},
    "chosen": [{"layer": 1, "head": 2}],
}
SCRIPT = f"""
from huggingface_hub import HfApi
from grounded_attention.commands import look as command

api = HfApi()
api.create_repo("{NAME}")
first = api.upload_folder(repo_id="{NAME}", folder_path="llava").oid
last = api.upload_file(path_or_fileobj="heads.json", path_in_repo="heads.json", repo_id="{NAME}").oid
for revision in (first, last):
    command.main(["a.png", "what ?", "--model", f"{NAME}@{{revision}}", "--answer", "a dog", "--form", "plain"])
"""


def test_heads_of_a_later_commit_are_not_the_models(loopback_hub, tmp_path):
    save_llava(tmp_path / "llava")
    (tmp_path / "heads.json").write_text(json.dumps(HEADS))
    pixels = np.random.default_rng(0).integers(0, 255, (40, 60, 3), dtype=np.uint8)
    Image.fromarray(pixels).save(tmp_path / "a.png")
    loopback_hub.state.add_user("hf_user", "org")
    environment = loopback_hub.environment(tmp_path / "home", "hf_user")
    done = run_python(SCRIPT, cwd=tmp_path, env={**environment, "PYTHONPATH": str(ROOT)})
    assert done.returncode == 0, done.stderr[-3000:]
    first, last = [line for line in done.stdout.splitlines() if line.startswith("heads: ")]
    assert "without labels" in first
    assert last == f"heads: 1-2 ({NAME}/heads.json)"
