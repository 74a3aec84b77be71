# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""The audit of attention heads: which of them look at the right region."""
