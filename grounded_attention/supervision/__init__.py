# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""Methods that supervise attention with visual grounding; `registry.py` has them by name, `__init__.pyi` all names."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
