# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""`TQDM_DISABLE=1` hides every bar: tqdm reads it when it is imported, so each bar asks for itself."""

import ast

from tests.helpers.project_files import FILES, ROOT


def test_every_bar_can_be_hidden():
    bars = []
    for path in [*FILES.values(), *(ROOT / "benchmarks").glob("*.py")]:
        calls = [node for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.Call)]
        found = [call for call in calls if isinstance(call.func, ast.Name) and call.func.id == "tqdm"]
        bars += [(f"{path.relative_to(ROOT)}:{call.lineno}", {word.arg for word in call.keywords}) for call in found]
    assert len(bars) > 3, "the scan finds hardly any bar"
    assert [place for place, words in bars if "disable" not in words] == []
