# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""Which files a saved processor needs."""

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def needed_files(name: str) -> set[str]:
    """The file and whatever it imports from its folder, and so on."""
    imported = re.findall(r"^from \.(\w+) import", (ROOT / "processing" / name).read_text(), flags=re.MULTILINE)
    return {name}.union(*(needed_files(f"{module}.py") for module in imported))
