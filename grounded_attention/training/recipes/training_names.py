# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""The names of training arguments, read from their source: a typing error is found before torch is imported."""

import ast
import importlib.util
from functools import cache
from pathlib import Path

OWN_ARGUMENTS = ("learning_rate_mapping", "skip_nonfinite_batches", "refuse_long_texts")


@cache
def training_names() -> frozenset[str]:
    """The fields of transformers' `TrainingArguments` and this package's; empty if its source looks different."""
    spec = importlib.util.find_spec("transformers")
    path = Path(spec.origin or "").with_name("training_args.py") if spec else Path()
    if not path.is_file():
        return frozenset()
    names = {
        line.target.id
        for node in ast.parse(path.read_text(encoding="utf-8")).body
        if isinstance(node, ast.ClassDef) and node.name == "TrainingArguments"
        for line in node.body
        if isinstance(line, ast.AnnAssign) and isinstance(line.target, ast.Name)
    }
    return frozenset(names.union(OWN_ARGUMENTS)) if names else frozenset()
