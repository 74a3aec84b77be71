# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""Tests of the page need gradio, which `make space` installs in an environment of its own."""

import importlib.util

collect_ignore = (
    []
    if importlib.util.find_spec("gradio")
    else ["test_checkpoints.py", "test_page.py", "test_publish.py", "test_visitors.py"]
)
