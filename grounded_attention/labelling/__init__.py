# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""Makes pseudo-labels: finds the noun phrases of captions, grounds them with any model, and writes the boxes."""
