# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""Reading users' files: errors that name the place, streaming, pickles without code."""
