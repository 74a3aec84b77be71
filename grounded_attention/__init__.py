# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""Vision-and-language Transformers whose attention is supervised with visual grounding.

    from grounded_attention import VLBertForVGP, get_method, audit, supervise

`__init__.pyi` lists the names. Each is imported when it is first used: `import grounded_attention` loads neither torch
nor transformers. The first model, configuration or processor also registers all models and processors with
transformers' Auto classes.
"""

import sys
from importlib import import_module
from typing import Any

import lazy_loader

__version__ = "0.1.0"
_get, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)


def __getattr__(name: str) -> Any:
    try:
        value = _get(name)
    except ModuleNotFoundError as error:
        from .utils.project import explain_missing_extra

        missing = explain_missing_extra(error)
        if missing:
            raise ImportError(f"{name}: {missing}", name=error.name) from error
        raise
    # Each package registers its own classes, and a user of one Auto class expects the others to work.
    shipped = ("modeling", "processing.processor_registration")
    if any(f"{__name__}.{name}" in sys.modules for name in shipped):
        for package in (*shipped, "heads.pipeline"):
            import_module(f".{package}", __name__)
    return value
