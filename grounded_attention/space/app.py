# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""Starts the page, as `python space/app.py` and on Hugging Face Spaces; `space.json` beside it has the settings."""

import json
from pathlib import Path

from grounded_attention.space.page import build_page, launch_page
from grounded_attention.space.settings import SpaceSettings

SETTINGS = Path(__file__).with_name("space.json")


def read_settings(path: Path) -> SpaceSettings:
    """The settings that `grounded-attention space push` wrote, or the default."""
    if path.is_file():
        return SpaceSettings(**json.loads(path.read_text(encoding="utf-8")))
    return SpaceSettings()


if __name__ == "__main__":
    launch_page(build_page(read_settings(SETTINGS)))
