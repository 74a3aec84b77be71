"""`grounded-attention doctor`: facts of this machine, without the Hub."""

import importlib.metadata
import json
import shutil
import tomllib
from pathlib import Path

import torch

from grounded_attention.commands import doctor


def test_the_report_has_the_facts_of_this_machine(capsys, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    assert doctor.main(["--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["transformers"] == importlib.metadata.version("transformers")
    assert f"uses {torch.get_num_threads()} threads" in found["CPUs"]
    assert (found["GPU"] != "none") == torch.accelerator.is_available()
    assert found["Hub"].endswith("not asked")
    free = shutil.disk_usage(tmp_path).free / 2**30
    assert abs(float(found[f"free in {tmp_path}"].split()[0].replace(",", "")) - free) < 1
    assert {f"extra {name}" for name in doctor.EXTRAS} <= set(found)


def test_every_extra_of_the_package_is_looked_for():
    project = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())["project"]
    assert set(project["optional-dependencies"]) - {"dev", "all"} == set(doctor.EXTRAS)


def test_what_is_missing_is_said(capsys, monkeypatch):
    monkeypatch.setattr(doctor, "_hub", lambda: "a, not reached: E")
    monkeypatch.setattr(doctor, "_torch", lambda: {"note": "torch cannot be imported"})
    monkeypatch.setitem(doctor.EXTRAS, "spacy", ("no_module_of_this_name",))
    assert doctor.main([]) == 0
    printed = capsys.readouterr().out
    assert "a, not reached: E" in printed
    assert "torch cannot be imported" in printed
    assert "not: pip install 'grounded-attention[spacy]'" in printed
