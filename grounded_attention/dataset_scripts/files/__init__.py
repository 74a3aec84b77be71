# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""Reading of users' files: errors with file and line, streaming, pickles that run no code."""
