# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""What trained models are worth: metrics, where their attention looks, figures and tables."""
