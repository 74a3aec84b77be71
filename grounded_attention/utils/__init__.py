# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""What every room may use: boxes, files written whole, paths of the package."""
