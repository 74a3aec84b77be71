# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""Rows with grounded phrases from data as people have them.

`opening.py` opens a source, `shapes.py` lists the shapes of rows, the files that it imports read them, `readings.py`
finds how boxes are written, `reader.py` makes rows.
"""
