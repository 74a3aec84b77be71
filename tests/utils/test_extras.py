# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""Without extras: models, processors, `look` and the one loss work; what is missing is named in one line."""

import json
import os
import subprocess
import sys
import tomllib

import pytest
from PIL import Image

from grounded_attention.utils.project import EXTRAS, explain_missing_extra
from tests.helpers.project_files import ROOT
from tests.helpers.tiny_vlm_files import save_llava

MISSING = {
    "train": ["train", "scenes_vgp"],
    "heads": ["heads", "--model", "m", "--data", "refcoco", "--data-dir", ".", "--images", "."],
    "serve": ["serve", "--model", "llava", "--port", "0"],
    "picture": ["look", "a.png", "what ?", "--model", "llava", "--answer", "a dog", "--output", "lens.png"],
}
PAGE = ["look", "a.png", "what ?", "--model", "llava", "--answer", "a dog", "--output", "lens.html"]
# Python itself does not find what only extras install, and pandas, which comes with datasets.
HIDDEN = sorted({"pandas", *(name for names in EXTRAS.values() for name in names)})
SCRIPT = f"""
import contextlib, importlib.machinery, io, json, pkgutil
from importlib import import_module
real, hidden = importlib.machinery.PathFinder.find_spec, {HIDDEN!r}
def find(name, path=None, target=None):
    return None if name.partition(".")[0] in hidden else real(name, path, target)
importlib.machinery.PathFinder.find_spec = staticmethod(find)

from grounded_attention import VLBertForVGP, LXMERTProcessor, look, mask_heads, steer_heads, supervise
for package in ("modeling", "processing", "supervision", "lens", "families"):
    folder = import_module(f"grounded_attention.{{package}}")
    for each in pkgutil.iter_modules(folder.__path__, folder.__name__ + "."):
        if each.name.rpartition(".")[2] not in ("server", "lens_table"):  # of the extras serve, train
            import_module(each.name)
from grounded_attention.commands.main import main
found = {{}}
for name, arguments in {{"page": {PAGE!r}, **{MISSING!r}}}.items():
    said = io.StringIO()
    with contextlib.redirect_stderr(said), contextlib.redirect_stdout(io.StringIO()):
        status = main(arguments)
    found[name] = (status, said.getvalue())

import torch
from PIL import Image
from transformers import AutoModelForImageTextToText, AutoProcessor, Trainer, TrainingArguments
from grounded_attention import GroundingCollator, GroundingTrainerMixin, get_method, read_phrase
from grounded_attention import grounding_loss, rank_heads, response_batch
class Supervised(GroundingTrainerMixin, Trainer):
    pass
messages = [{{"role": "user", "content": "what is this ?"}}, {{"role": "assistant", "content": "a dog runs ."}}]
row = {{"image": Image.open("a.png"), "phrases": [{{"text": "a dog", "boxes": [[0.1, 0.1, 0.9, 0.8]]}}]}}
rows = [{{**row, "messages": messages}}, {{**row, "messages": json.dumps(messages)}}]
model, method = AutoModelForImageTextToText.from_pretrained("llava"), get_method("direct")
collator = GroundingCollator(AutoProcessor.from_pretrained("llava"), method)
options = {{"max_steps": 1, "use_cpu": True, "save_strategy": "no", "logging_steps": 1, "report_to": "none"}}
arguments = TrainingArguments("out", remove_unused_columns=False, per_device_train_batch_size=2, **options)
trainer = Supervised(model, arguments, data_collator=collator, train_dataset=rows, method=method)
before = {{name: value.clone() for name, value in model.named_parameters()}}
trainer.train()
found["step"] = [each for log in trainer.state.log_history for name, each in log.items() if name.startswith("loss_")]
found["moved"] = any(not torch.equal(before[name], value) for name, value in model.named_parameters())
batch = collator(rows)
found["same"] = bool((batch["input_ids"][0] == batch["input_ids"][1]).all())
found["words"] = read_phrase(row["phrases"][0], ["a dog runs ."], "phrase", grounded=True).end
try:
    from grounded_attention import RegionTable
except ImportError as error:
    found["table"] = (2, str(error))
print(json.dumps(found))
"""


@pytest.fixture(scope="module")
def found(tmp_path_factory):
    """What happens without extras: name -> status and error of a command, in one process."""
    folder = tmp_path_factory.mktemp("alone")
    save_llava(folder / "llava")
    Image.new("RGB", (60, 40), "white").save(folder / "a.png")
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT], cwd=folder, env=environment, capture_output=True, text=True, timeout=600
    )
    assert done.returncode == 0, done.stderr[-3000:]
    assert (folder / "lens.html").stat().st_size > 10_000
    return json.loads(done.stdout.splitlines()[-1])


def test_models_and_look_need_no_extra(found):
    assert found["page"][0] == 0, found["page"][1]


def test_the_one_loss_needs_no_extra(found):
    """A Trainer with the mixin takes a step on rows in memory; one row has its messages as a text of JSON."""
    (attention,) = found["step"]
    assert 0 < attention < 20
    assert found["moved"]
    assert found["same"]
    assert found["words"] == 5


@pytest.mark.parametrize(
    "name, extra",
    [("train", "train"), ("heads", "train"), ("serve", "serve"), ("picture", "plots"), ("table", "train")],
)
def test_a_missing_extra_is_named_in_one_line(found, name, extra):
    status, error = found[name]
    assert status == 2
    assert error.strip().count("\n") == 0, error
    assert f"pip install 'grounded-attention[{extra}]'" in error


def test_every_extra_is_declared():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert set(EXTRAS) <= set(project["optional-dependencies"])
    alone = " ".join(project["dependencies"])
    assert not any(f"{module.replace('_', '-')}>" in alone for names in EXTRAS.values() for module in names)
    assert explain_missing_extra(ModuleNotFoundError("no", name="numpy")) is None
