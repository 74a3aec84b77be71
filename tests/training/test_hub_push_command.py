# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""`grounded-attention push`: a directory that is there, with a processor made for it, over HTTP."""

import json
import shutil

from peft import LoraConfig, get_peft_model

from grounded_attention.modeling import VLBertForVGP
from tests.helpers.own_rows import python
from tests.helpers.tiny_vgp import FEATURE_SIZE, WORDS, tiny_model
from tests.training.runs import assert_ran

CALLS = """import json, sys
from grounded_attention.commands.push import main
print(json.dumps([main(a.split()) for a in sys.argv[1:]]))
"""


def test_a_directory_is_pushed_with_its_processor(loopback_hub, tmp_path):
    directory = tmp_path / "converted"
    vocab = tmp_path / "vocab.txt"
    tiny_model().save_pretrained(directory)
    vocab.write_text("\n".join(WORDS))
    (tmp_path / "empty").mkdir()
    calls = [
        f"{tmp_path / 'empty'} org/converted",
        f"{directory} org/converted",
        f"{directory} org/converted --tokenizer {vocab} --private --json",
        f"{directory} others/converted",
    ]
    done = python(loopback_hub, tmp_path / "home", CALLS, *calls)
    assert_ran(done)
    address, codes = done.stdout.splitlines()
    assert json.loads(codes) == [2, 2, 0, 2]
    errors = [line for line in done.stderr.splitlines() if line.startswith("error: ")]
    for line, words in zip(errors, ("contains no model", "contains no processor", "403 Forbidden"), strict=True):
        assert words in line
    pushed = loopback_hub.commits("org/converted")[0]
    assert json.loads(address)["commit_url"].endswith(pushed["id"])
    assert loopback_hub.state.repo("models", "org/converted")["private"]
    assert set(pushed["files"]) >= {"model.safetensors", "config.json", "modeling_vl_bert.py", "tokenizer.json"}
    processor = json.loads(loopback_hub.read("org/converted", "processor_config.json"))
    assert processor["region_feature_size"] == FEATURE_SIZE


def test_an_adapter_of_a_local_model_is_pushed_with_a_warning_and_no_path(loopback_hub, tmp_path):
    """In the card that this package writes, and in one of PEFT that its user has begun."""
    base = tmp_path / "base"
    adapter = tmp_path / "adapter"
    tiny_model().save_pretrained(base)
    model = get_peft_model(VLBertForVGP.from_pretrained(base), LoraConfig(r=2, target_modules=r".*encoder.*query"))
    model.save_pretrained(adapter)
    shutil.copytree(adapter, tmp_path / "begun")
    begun = tmp_path / "begun/README.md"
    begun.write_text(begun.read_text().replace("Model Card for Model ID", "Mine"))
    calls = [f"{adapter} org/adapter-of-folder", f"{tmp_path / 'begun'} org/begun-adapter"]
    done = python(loopback_hub, tmp_path / "home", CALLS, *calls)
    assert_ran(done)
    assert json.loads(done.stdout.splitlines()[-1]) == [0, 0]
    warnings = [line for line in done.stderr.splitlines() if line.startswith("warning: ")]
    assert len(warnings) == 2
    assert all(str(base) in line for line in warnings)
    for name in ("org/adapter-of-folder", "org/begun-adapter"):
        assert str(tmp_path) not in loopback_hub.read(name, "README.md").decode()
    assert str(base) not in (adapter / "README.md").read_text()
