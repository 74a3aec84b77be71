# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""`grounded-attention data show`: one page of rows, how boxes are written, and a question where it is not known."""

import json

import pytest
from PIL import Image

from grounded_attention.commands.main import main


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Image.new("RGB", (400, 300)).save(tmp_path / "p.png")
    return tmp_path


def write(folder, *boxes):
    lines = [{"image": "p.png", "text": f"dog <{n}>", "bbox": box} for n, box in enumerate(boxes)]
    (folder / "rows.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))


def test_rows_are_shown(folder, capsys):
    write(folder, [300, 200, 80, 60], [10, 20, 30, 40], None)
    assert main("data show rows.jsonl --rows 2 --json".split()) == 0
    counts = json.loads(capsys.readouterr().out)
    page = (folder / counts["page"]).read_text()
    assert counts["rows"] == 3
    assert counts["phrases"] == 3
    assert counts["boxes"] == 2
    assert counts["convention"] == "xywh pixels"
    assert "xywh pixels" in page
    assert page.count("<svg") == 2
    assert "dog &lt;0&gt;" in page
    assert "400 x 300" in page
    assert "left out" in page
    assert "src=" not in page
    assert "http:" not in page.replace("http://www.w3.org", "")


def test_two_readings_stand_side_by_side(folder, capsys):
    write(folder, [10, 20, 80, 100])
    assert main("data show rows.jsonl --output page.html".split()) == 2
    said = capsys.readouterr().err
    assert all(word in said for word in ("boxes", "xywh", "xyxy", "page.html"))
    page = (folder / "page.html").read_text()
    assert "xyxy pixels?" in page
    assert "xywh pixels?" in page
    assert page.count("<svg") == 2
    assert main(["data", "show", "rows.jsonl", "--boxes", "xywh pixels"]) == 0


def test_columns_are_named(folder, capsys):
    (folder / "rows.csv").write_text("pic,says,l,t,r,b\np.png,a dog,10,20,80,100\n")
    columns = "--columns image=pic text=says boxes=l,t,r,b".split()
    assert main(["data", "show", "rows.csv", *columns, "--boxes", "xyxy pixels"]) == 0
    assert main(["data", "show", "rows.csv", "--columns", "image"]) == 2
