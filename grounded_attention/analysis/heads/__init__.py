# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""Which attention heads of a vision-language model ground phrases, and grounding with them."""
