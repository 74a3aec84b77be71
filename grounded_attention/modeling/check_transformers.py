# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""Raises an error if transformers is too old, before the import of names that an old version lacks."""

import transformers
from packaging import version

# The oldest version that the models support (the test suite passes with it).
OLDEST_TRANSFORMERS = "5.4.0"

if version.parse(transformers.__version__) < version.parse(OLDEST_TRANSFORMERS):
    raise ImportError(
        f"This model needs transformers >= {OLDEST_TRANSFORMERS}, but {transformers.__version__} is installed. "
        f'Run: pip install -U "transformers>={OLDEST_TRANSFORMERS}"'
    )
