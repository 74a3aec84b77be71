# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""Tables, figures and HTML pages."""
