# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""The tutorial "Your own data set" as a reader follows it: rows, `data show`, `heads`, a training."""

import re
import shlex
import sys

import pytest

from grounded_attention.commands.main import main
from tests.helpers.project_files import ROOT
from tests.helpers.tiny_scenes import tiny_scenes
from tests.helpers.tiny_vlm_recipes import save_llava

PAGE = (ROOT / "docs" / "tutorials" / "your_own_data_set.md").read_text(encoding="utf-8")
pytestmark = pytest.mark.drawn_figures


def test_rows_page_heads_and_training(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setitem(sys.modules, "__main__", sys.modules[__name__])
    tiny_scenes(tmp_path / "scenes")
    save_llava(tmp_path / "scenes" / "vocab.txt", tmp_path / "runs" / "vlm_scenes" / "direct")
    first, second = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)[:2]
    show, heads = re.findall(r"```bash\ngrounded-attention (.*?)\n```", PAGE, re.DOTALL)[:2]
    exec(compile(first, "rows", "exec"), {})
    assert main(shlex.split(show)) == 0
    assert "xyxy pixels" in capsys.readouterr().out and (tmp_path / "data_show.html").is_file()
    heads = heads.replace("Qwen/Qwen2.5-VL-3B-Instruct", "runs/vlm_scenes/direct")
    assert main([*shlex.split(heads), "--quiet", "--ablate", "0"]) == 0
    assert (tmp_path / "runs" / "own_heads" / "heads.json").is_file()
    made = {"__name__": __name__}
    exec(compile(second, "training", "exec"), made)
    assert made["trainer"].state.global_step == 2 and made["rows"].report.phrases == 20
