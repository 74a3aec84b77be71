# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""`grounded-attention push`: a directory that is there, with a processor made for it, over HTTP."""

import json
from pathlib import Path

from tests.helpers.tiny_vgp import FEATURE_SIZE, WORDS, tiny_model
from tests.helpers.warm_python import run_python

ROOT = Path(__file__).resolve().parents[2]
CALLS = """import json, sys
from grounded_attention.commands.push import main
print(json.dumps([main(a.split()) for a in sys.argv[1:]]))
"""


def test_a_directory_is_pushed_with_its_processor(loopback_hub, tmp_path):
    directory, vocab = tmp_path / "converted", tmp_path / "vocab.txt"
    tiny_model().save_pretrained(directory)
    vocab.write_text("\n".join(WORDS))
    (tmp_path / "empty").mkdir()
    calls = [
        f"{tmp_path / 'empty'} org/converted",
        f"{directory} org/converted",
        f"{directory} org/converted --tokenizer {vocab} --private --revision try --json",
        f"{directory} others/converted",
    ]
    environment = {**loopback_hub.environment(tmp_path / "home"), "PYTHONPATH": str(ROOT)}
    done = run_python(CALLS, calls, env=environment, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    address, codes = done.stdout.splitlines()
    assert json.loads(codes) == [2, 2, 0, 2]
    errors = [line for line in done.stderr.splitlines() if line.startswith("error: ")]
    for line, words in zip(errors, ("contains no model", "contains no processor", "may not write there"), strict=True):
        assert words in line
    pushed = loopback_hub.commits("org/converted", "try")[0]
    assert json.loads(address)["commit_url"].endswith(pushed["id"])
    assert loopback_hub.state.repo("models", "org/converted")["private"]
    assert loopback_hub.files("org/converted") == [".gitattributes"]
    assert set(pushed["files"]) >= {"model.safetensors", "config.json", "modeling_vl_bert.py", "tokenizer.json"}
    processor = json.loads(loopback_hub.read("org/converted", "processor_config.json", "try"))
    assert processor["region_feature_size"] == FEATURE_SIZE
