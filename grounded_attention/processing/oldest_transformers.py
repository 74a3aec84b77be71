# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""Refuses a transformers version that is too old, before any import that the version may lack."""

import transformers
from packaging import version

# The oldest version that models and processors support (the test suite passes with it).
OLDEST_TRANSFORMERS = "5.4.0"

if version.parse(transformers.__version__) < version.parse(OLDEST_TRANSFORMERS):
    raise ImportError(
        f"This checkpoint needs transformers >= {OLDEST_TRANSFORMERS}, but {transformers.__version__} is installed. "
        f'Run: pip install -U "transformers>={OLDEST_TRANSFORMERS}"'
    )
