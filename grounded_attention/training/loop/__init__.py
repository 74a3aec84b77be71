# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""The Trainer, its batches and what it adds to a step."""
