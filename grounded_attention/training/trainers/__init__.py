# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""Attention supervision inside of trainers of others: ms-swift and LLaMA-Factory."""
