# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""The files that a saved processor needs."""

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def needed_files(name: str) -> set[str]:
    """Returns the file and all files in its folder that it imports, directly or indirectly."""
    imported = re.findall(r"^from \.(\w+) import", (ROOT / "processing" / name).read_text(), flags=re.MULTILINE)
    return {name}.union(*(needed_files(f"{module}.py") for module in imported))
