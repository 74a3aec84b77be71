# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""The page of a run on own rows shows own pictures, before the training and after it."""

import pytest

from grounded_attention.commands.train import main
from tests.helpers.own_rows import write_rows

WORDS = "[PAD] [UNK] [CLS] [SEP] [MASK] a red ball and blue cube"
SMALL = """
data.regions.detector=scenes data.regions.features=scenes model.bert=null training.max_steps=1 training.use_cpu=true
workers=1
"""


@pytest.mark.parametrize("recipe", ["grounding", "referring"])
def test_pictures_of_own_rows_are_on_the_page(tmp_path, monkeypatch, recipe):
    monkeypatch.setenv("HF_DATASETS_CACHE", str(tmp_path / "cache"))
    rows = write_rows(tmp_path / "own")
    (tmp_path / "vocab.txt").write_text(WORDS.replace(" ", "\n"))
    common = [recipe, f"data.source={rows}", "data.boxes=xyxy pixels", *SMALL.split()]
    config = "{hidden_size: 16, num_hidden_layers: 1, num_attention_heads: 2, intermediate_size: 16}"
    new = [f"model.tokenizer={tmp_path}/vocab.txt", f"model.config={config}", f"output_dir={tmp_path}/first"]
    assert main([*common, *new]) == 0
    again = [f"model.source={tmp_path}/first/none", f"output_dir={tmp_path}/second", "pictures=1"]
    assert main([*common, *again]) == 0
    page = (tmp_path / "second/run.html").read_text()
    assert 'id="examples"' in page
    assert "before training" in page
    assert 'id="examples"' not in (tmp_path / "first/run.html").read_text()
