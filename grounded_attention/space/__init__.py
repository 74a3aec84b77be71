# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""The Space: a web page on which a visitor sees where the words of a caption look in an image."""
