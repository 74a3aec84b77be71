# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""The audit of attention heads: how often each head attends most to the right region."""
