# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""What predictions are worth: one file a metric; significance and intervals."""
