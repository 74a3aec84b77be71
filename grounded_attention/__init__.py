# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""Vision-and-language Transformers whose attention is supervised with visual grounding.

    from grounded_attention import VLBertForVGP, get_method, audit, supervise

`__init__.pyi` lists the names. Each is imported when it is first used: `import grounded_attention` loads neither torch
nor transformers. The first model, configuration or processor also registers all families with transformers' Auto
classes.
"""

import lazy_loader

__version__ = "0.1.0"
__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
