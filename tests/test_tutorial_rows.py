# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""The tutorial "Your own data set" as a reader follows it: rows, `data show`, `heads`, a training."""

import io
import json
import re
import shlex
import sys

import datasets
import pytest

from grounded_attention.commands.main import main
from tests.helpers.own_rows import BALL, draw
from tests.helpers.project_files import ROOT
from tests.helpers.tiny_scenes import tiny_scenes
from tests.helpers.tiny_vlm_recipes import SIZES, save_llava

PAGE = (ROOT / "docs" / "tutorials" / "your_own_data_set.md").read_text(encoding="utf-8")
pytestmark = pytest.mark.drawn_figures


def test_rows_page_heads_and_training(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setitem(sys.modules, "__main__", sys.modules[__name__])
    tiny_scenes(tmp_path / "scenes")
    save_llava(tmp_path / "scenes" / "vocab.txt", tmp_path / "runs" / "vlm_scenes" / "direct")
    first, second = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)[:2]
    show, heads, train = re.findall(r"```bash\ngrounded-attention (.*?)\n```", PAGE, re.DOTALL)[:3]
    exec(compile(first, "rows", "exec"), {})
    assert main(shlex.split(show)) == 0
    assert "xyxy pixels" in capsys.readouterr().out
    assert (tmp_path / "data_show.html").is_file()
    heads = heads.replace("Qwen/Qwen2.5-VL-3B-Instruct", "runs/vlm_scenes/direct")
    assert main([*shlex.split(heads), "--ablate", "0"]) == 0
    assert (tmp_path / "runs" / "own_heads" / "heads.json").is_file()
    made = {"__name__": __name__}
    exec(compile(second, "training", "exec"), made)
    assert made["trainer"].state.global_step == 2
    assert made["rows"].report.phrases == 20
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")
    small = [f"model.config={json.dumps(SIZES)}"]
    words = shlex.split(train.replace("\\\n", " "))
    assert main([*words, *small, "training.max_steps=2", "training.use_cpu=true"]) == 0
    results = json.loads((tmp_path / "runs" / "referring" / "results.json").read_text())
    figures = results["methods"]["none"]["figures"]["validation"]
    assert figures["expressions_upper_bound"] == 1
    assert figures["expressions_chance"] == 0.5
    assert len(json.loads((tmp_path / "runs" / "referring" / "split.json").read_text())["validation"]) == 1


def test_from_rows_of_refcoco_to_a_taught_model(tmp_path, monkeypatch, capsys):
    """The second page, with rows of its set's form on this disk, and a tiny model."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")
    tiny_scenes(tmp_path / "scenes")
    save_llava(tmp_path / "scenes" / "vocab.txt", tmp_path / "model")
    (tmp_path / "rows").mkdir()
    for split, count in (("val", 6), ("testA", 4)):
        rows = []
        for number in range(count):
            content = io.BytesIO()
            draw(number).save(content, "PNG")
            picture = {"bytes": content.getvalue(), "path": None}
            about = {"question_id": f"{split}{number}", "iscrowd": 0, "file_name": f"{split}{number}.png"}
            box = [float(BALL[0] + number), float(BALL[1] + number), 40.0, 40.0]
            rows.append({"image": picture, "answer": ["a red ball", "ball"], "bbox": box, **about})
        datasets.Dataset.from_list(rows).to_parquet(tmp_path / "rows" / f"{split}-00000.parquet")
    page = (ROOT / "docs" / "tutorials" / "hub_data_to_qwen_vl.md").read_text(encoding="utf-8")
    page = page.replace("lmms-lab/RefCOCO", "rows").replace("Qwen/Qwen2.5-VL-3B-Instruct", "model")
    commands = re.findall(r"```bash\ngrounded-attention (.*?)\n```", page, re.DOTALL)
    show, before, train, after = (shlex.split(each.replace("\\\n", " ")) for each in commands)
    assert main(show) == 0
    assert "xywh pixels" in capsys.readouterr().out
    assert main([*before, "--ablate", "0"]) == 0
    small = ["model.source=model", "training.max_steps=2", "training.use_cpu=true", "training.bf16=false"]
    small += ["training.gradient_checkpointing=false", "training.dataloader_num_workers=0", "options.generate=4"]
    assert main([*train, *small]) == 0, capsys.readouterr().err
    assert main([*after, "--ablate", "0"]) == 0
    assert (tmp_path / "runs" / "heads_after" / "heads.png").is_file()
    results = json.loads((tmp_path / "runs" / "vlm_referring" / "results.json").read_text())["methods"]
    assert set(results) == {"none", "direct"}
    assert "validation" in results["direct"]["figures"]
