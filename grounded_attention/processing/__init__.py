# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""Processors that convert words and image regions to model inputs. These files are shipped with a checkpoint.

`__init__.pyi` lists the names, each of which is imported when it is first used: rows and pages need the phrase, and no
torch. The first processor also makes `AutoProcessor` find all of them without `trust_remote_code`, as the models do.
"""

import sys
from importlib import import_module
from typing import Any

import lazy_loader

_get, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)


def __getattr__(name: str) -> Any:
    value = _get(name)
    if "transformers" in sys.modules and name in __all__:
        import_module(".processor_registration", __name__).register_processors()
    return value
