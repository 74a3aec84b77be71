# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""The Trainer, its batches, and the parts that it adds to a training step."""
