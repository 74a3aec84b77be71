# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""What is handed to bertviz, and the page that it draws where it is installed."""

import sys
from dataclasses import replace

import numpy as np
import pytest
from PIL import Image

from grounded_attention.heads.example_attention import ExampleAttention
from grounded_attention.reports.bertviz_export import bertviz_inputs, write_bertviz

LAYERS, HEADS, WORDS, REGIONS = 2, 3, 2, 4


@pytest.fixture
def example():
    rng = np.random.default_rng(0)
    boxes = np.tile([0.0, 0.0, 1.0, 1.0], (REGIONS, 1))
    there = rng.dirichlet(np.ones(REGIONS + 1), (LAYERS, HEADS, WORDS))[..., :-1]
    back = rng.dirichlet(np.ones(WORDS + 1), (LAYERS, HEADS, REGIONS))[..., :-1]
    labels = ("dog", "", "</script>", "ball")
    spans = ((0, 1), (2, 5))
    return ExampleAttention(Image.new("RGB", (4, 3)), "a dog", spans, boxes, there, ("0", "1"), back, labels)


def test_words_and_regions_are_in_one_sequence(example):
    inputs = bertviz_inputs(example)
    assert inputs.tokens == ["a", "dog", "[0] dog", "[1]", "[2] </script>", "[3] ball"]
    assert inputs.sentence_b_start == WORDS and len(inputs.attention) == LAYERS
    assert all(tuple(layer.shape) == (1, HEADS, 6, 6) for layer in inputs.attention)
    for layer, head, word, region in np.ndindex(LAYERS, HEADS, WORDS, REGIONS):
        found = inputs.attention[layer][0, head]
        assert found[word, WORDS + region] == np.float32(example.attention[layer, head, word, region])
        assert found[WORDS + region, word] == np.float32(example.back[layer, head, region, word])
    assert sum(layer[..., :WORDS, :WORDS].sum() + layer[..., WORDS:, WORDS:].sum() for layer in inputs.attention) == 0


def test_regions_that_were_not_captured_have_no_attention(example):
    inputs = bertviz_inputs(replace(example, back=None))
    assert all((layer[:, :, WORDS:] == 0).all() for layer in inputs.attention)


def test_another_view_and_a_missing_package_are_errors(example, tmp_path, monkeypatch):
    with pytest.raises(ValueError, match="view 'neuron'; expected one of head, model"):
        write_bertviz(example, tmp_path / "a.html", "neuron")
    monkeypatch.setitem(sys.modules, "bertviz", None)
    with pytest.raises(ImportError, match="pip install bertviz"):
        write_bertviz(example, tmp_path / "a.html")


@pytest.mark.parametrize("view", ["head", "model"])
def test_bertviz_draws_it(example, tmp_path, view):
    pytest.importorskip("bertviz", reason="bertviz is not installed (an extra for notebooks)")
    page = write_bertviz(example, tmp_path / "pages" / "a.html", view).read_text(encoding="utf-8")
    assert "[3] ball" in page and "Sentence A -> Sentence B" in page
    assert "[2] </script>" not in page
