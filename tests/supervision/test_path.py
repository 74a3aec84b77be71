# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""The way of `phrase_regions` from a batch to the loss: as CONTRIBUTING says, and through few files."""

import re
import sys
import traceback
from itertools import groupby

import pytest
import torch
from torch.testing import assert_close

from grounded_attention.supervision import get_method
from grounded_attention.supervision.method import TARGET_LOSSES, uniform_rows
from grounded_attention.tasks import TASKS
from grounded_attention.tasks.pretraining import stack_batches
from tests.helpers.exported import MAKERS, SIZES, draw_inputs, model_inputs
from tests.helpers.exported import tiny_model as tiny_model_of
from tests.helpers.project_files import PACKAGE, ROOT
from tests.helpers.tiny_trainer import Collator, make_trainer
from tests.helpers.tiny_vgp import tiny_model, tiny_processor, tiny_rows, tiny_table

MOST_FILES = 10


def files_called(function):
    """The files of `supervision/` that a call enters, in the order in which it enters them first."""
    folder = str(ROOT / PACKAGE / "supervision")
    found = {}

    def note(frame, event, argument):
        path = frame.f_code.co_filename
        if event == "call" and path.startswith(folder):
            found.setdefault(path.rpartition("/")[2])

    sys.setprofile(note)
    try:
        function()
    finally:
        sys.setprofile(None)
    return list(found)


def test_the_path_of_phrase_regions_is_short_and_as_contributing_says():
    table = tiny_table(4)
    method = get_method("direct")
    model = tiny_model(**method.model_config)
    method.prepare(model)
    batch = Collator(TASKS["vgp"], tiny_processor(), table)(list(tiny_rows(table))[:3])

    def step():
        prepared = {**batch, **method.prepare_batch(batch)}
        inputs = {name: prepared[name] for name in TASKS["vgp"].model_inputs if name in prepared}
        method.losses(model(**inputs, **method.forward_kwargs(prepared)), prepared)

    files = files_called(step)
    assert len(files) <= MOST_FILES, files
    text = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8").partition("## From a box in a file to the loss")[2]
    named = set(re.findall(r"\w+\.py", text.partition("\n## ")[0])) | {"direct.py"}  # as `<method>.py`
    assert set(files) <= named


def test_from_compute_loss_to_the_rows_each_file_is_entered_once(tmp_path, monkeypatch):
    inside = []

    def note(log_alpha, gold):
        for frame, _ in traceback.walk_stack(sys._getframe(1)):
            folder, _, name = frame.f_code.co_filename.rpartition("/")
            if f"/{PACKAGE}/" in folder:
                inside.append(name)
        monkeypatch.setitem(TARGET_LOSSES, "uniform", uniform_rows)  # the first call is enough
        return uniform_rows(log_alpha, gold)

    monkeypatch.setitem(TARGET_LOSSES, "uniform", note)
    trainer = make_trainer(tmp_path)
    batch = trainer.data_collator(list(tiny_rows(tiny_table(8)))[:3])
    trainer.compute_loss(trainer.model, batch)
    files = [name for name, _ in groupby(reversed(inside))]
    assert files == ["trainer.py", "trainer_mixin.py", "method.py", "layer_losses.py"]
    assert len(inside) <= 7


QUESTIONS = [
    "where the loss of direct is computed",
    "where pixels become token indices",
    "who chooses the head",
    "where options become a recipe",
    "add a divergence",
]


@pytest.mark.parametrize("question", QUESTIONS)
def test_a_stranger_s_question_is_answered_in_three_files(question):
    """A name in brackets behind a file is defined in that file."""
    text = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    (answer,) = re.findall(rf"^\| {question} \| (.*) \|$", text, re.MULTILINE)
    named = re.findall(r"`([\w/]+/\w+\.py)`(?: \(([^)]*)\))?", answer)
    assert 1 <= len(named) <= 3
    for path, names in named:
        source = (ROOT / PACKAGE / path).read_text(encoding="utf-8")
        for name in re.findall(r"`(\w+)`", names):
            assert re.search(rf"^ *(def |class )?{name}\b( *[:=(])", source, re.MULTILINE), (path, name)


@pytest.mark.parametrize("family", MAKERS)
def test_positions_report_what_indices_report(family):
    """The batch of a processor has positions, one made by hand has not: the same losses, for any family."""
    model = tiny_model_of(family, "vgp")
    method = get_method("direct")
    method.prepare(model)
    inputs = {**draw_inputs(model_inputs(model), SIZES[0])}
    words = inputs["input_ids"].shape[1]
    regions = inputs["region_features"].shape[1]
    gold = torch.rand(3, 3, regions, generator=torch.Generator().manual_seed(1)) < 0.5
    batch = {**inputs, "phrase_regions": gold}
    start = 0 if family in ("vilbert", "lxmert") else words
    placed = {
        **batch,
        "text_positions": torch.arange(words).where(batch["attention_mask"] > 0, -1),
        "region_positions": torch.arange(start, start + regions).where(batch["region_attention_mask"] > 0, -1),
    }
    found = []
    for given in (batch, placed):
        arguments = method.forward_kwargs(given)
        assert ("attention_queries" in arguments) == (given is placed)
        found.append(method.losses(model(**inputs, **arguments), given))
    assert found[0].keys() == {"text_to_region", "region_to_text"}
    assert all(total > 0 for total, _ in found[0].values())
    assert_close(*found, rtol=0, atol=0)


@pytest.mark.parametrize("start", [3, 0], ids=["one sequence", "two streams"])
def test_rows_of_longer_texts_move_the_regions_behind_the_text(start):
    images = dict.fromkeys(("attention_mask", "input_ids"), torch.ones(1, 3).long())
    images["text_positions"] = torch.tensor([[0, 1, -1]])
    images["region_positions"] = torch.tensor([[start, start + 1, -1]])
    texts = dict.fromkeys(("attention_mask", "input_ids"), torch.ones(1, 5).long())
    texts["text_positions"] = torch.arange(5)[None]
    found = stack_batches(images, texts, 0)
    assert found["text_positions"].tolist() == [[0, 1, -1, -1, -1], [0, 1, 2, 3, 4]]
    moved = 5 if start else 0
    assert found["region_positions"].tolist() == [[moved, moved + 1, -1], [-1, -1, -1]]
