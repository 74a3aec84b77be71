# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
import json
import re

from benchmarks import row_tables
from grounded_attention.dataset_scripts.builders.vqa_v2 import VQAv2


def test_one_line_for_each_builder(capsys, monkeypatch):
    monkeypatch.setattr(row_tables, "NAMES", ("vqa_v2",))
    assert row_tables.main(["--images", "20", "--rounds", "1"]) == 0
    assert re.fullmatch(r"vqa_v2 +\d\.\d\d of row by row \(\d\.\d\d to \d\.\d\d\)\n", capsys.readouterr().out)
    assert row_tables.main(["--images", "20", "--rounds", "2", "--json"]) == 0
    (ratios,) = json.loads(capsys.readouterr().out).values()
    assert len(ratios) == 2 and all(ratio > 0 for ratio in ratios)


def test_other_rows_are_told(monkeypatch, capsys):
    rows = VQAv2._generate_rows
    monkeypatch.setattr(
        VQAv2, "_generate_rows", lambda self, split: ({**row, "question": f"{id(row)}"} for row in rows(self, split))
    )
    monkeypatch.setattr(row_tables, "NAMES", ("vqa_v2",))
    assert row_tables.main(["--images", "20", "--rounds", "1"]) == 2
    assert "vqa_v2: the rows of" in capsys.readouterr().err
