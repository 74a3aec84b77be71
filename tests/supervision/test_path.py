# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""The way of `phrase_regions` from a batch to the loss: as CONTRIBUTING says, and through few files."""

import re
import sys

from grounded_attention.supervision import get_method
from grounded_attention.tasks import TASKS
from tests.helpers.project_files import PACKAGE, ROOT
from tests.helpers.tiny_trainer import Collator
from tests.helpers.tiny_vgp import tiny_model, tiny_processor, tiny_rows, tiny_table

MOST_FILES = 10


def files_called(function) -> list[str]:
    """The files of `supervision/` that a call enters, in the order in which it enters them first."""
    folder, found = str(ROOT / PACKAGE / "supervision"), {}

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
    table, method = tiny_table(4), get_method("direct")
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
