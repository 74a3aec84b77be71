# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""What'sUp: the relations of two objects, in the names of its pictures, each with its opposite."""

OPPOSITES = (("left", "right"), ("on", "under"), ("in-front", "behind"))
RELATIONS = tuple(relation for pair in OPPOSITES for relation in pair)
