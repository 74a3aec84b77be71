# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""What every fixture-hungry test shares: an offline Hub and, where present, the folder of real excerpts."""

import os
from pathlib import Path

import pytest

os.environ["HF_HUB_OFFLINE"] = "1"


@pytest.fixture(scope="session")
def shared() -> Path:
    """The `shared` folder beside the checkout (real excerpts, reference tensors); the test is skipped without it."""
    folder = Path(__file__).resolve().parents[2] / "shared"
    if not folder.is_dir():
        pytest.skip(f"needs {folder}, which is not part of the project")
    return folder
