# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""The ready cards of published checkpoints: metadata, the files they name, and their snippets on tiny stand-ins."""

import re

import pytest
from huggingface_hub import ModelCard
from transformers import BertTokenizer

from grounded_attention.modeling import VLBertConfig, VLBertForPreTraining, VLBertForVGP
from grounded_attention.processing import VLBertProcessor
from tests.helpers.project_files import ROOT
from tests.helpers.run_elsewhere import run_elsewhere
from tests.training.runs import assert_ran

TEMPLATES = ("trained", "trained_vlm", "in_progress", "rows", "regions", "pseudo_labels", "score")
CARDS = sorted(path for path in (ROOT / "model_cards").glob("*.md") if path.stem not in TEMPLATES)
SECTIONS = ("Use", "How it was made", "Results", "Controls", "Intended use", "Limits", "Licence", "Citation")
WORDS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "a", "dog", "runs", "after", "red", "ball"]


def test_the_expected_checkpoints_have_cards():
    assert [path.stem for path in CARDS] == [
        "vl-bert-base",
        "vl-bert-large",
        "vl-bert-vgp-direct",
        "vl-bert-vgp-indirect",
        "vl-bert-vgp-none",
        "vl-bert-vgp-semi-direct",
    ]


@pytest.mark.parametrize("path", CARDS, ids=lambda path: path.stem)
def test_metadata_sections_and_named_files(path):
    card = ModelCard.load(path)
    assert card.data.library_name == "transformers"
    assert "grounded-attention" in card.data.tags
    assert [line[3:] for line in card.text.splitlines() if line.startswith("## ")] == list(SECTIONS)
    for name in re.findall(r"\b(?:recipes|model_cards)/[\w.-]+\.\w+", card.text):
        assert (ROOT / name).is_file(), f"{path.name} names {name}"
    for module in re.findall(r"python -m ([\w.]+)", card.text):
        place = ROOT / module.replace(".", "/")
        found = place.with_suffix(".py").is_file() or (place / "__main__.py").is_file()
        assert found, f"{path.name} names python -m {module}"


def test_snippets_run_where_the_project_is_not(tmp_path):
    sizes = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 32}
    processor = VLBertProcessor(BertTokenizer(vocab={word: index for index, word in enumerate(WORDS)}))
    script = ""
    for path in CARDS:
        cls = VLBertForVGP if "vgp" in path.stem else VLBertForPreTraining
        stand_in = tmp_path / "elsewhere/grounded-attention" / path.stem
        cls(VLBertConfig(vocab_size=len(WORDS), **sizes)).save_pretrained(stand_in)
        processor.save_pretrained(stand_in)
        blocks = re.findall(r"^```python\n(.*?)^```$", path.read_text(), re.DOTALL | re.MULTILINE)
        assert len(blocks) == 2
        script += "\n".join([*blocks, f"assert type(model).__name__ == '{cls.__name__}'\n"])
    done = run_elsewhere(script, tmp_path)
    assert_ran(done)
    assert done.stdout.count("xmin") == 2 * len(CARDS)
    assert done.stdout.count("both captions describe the image: ") == 4  # each forward call says what came out
    assert done.stdout.count("in the place of 'ball': ") == 2
