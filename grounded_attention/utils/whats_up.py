# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""What'sUp: the relations of two objects, in the names of its pictures, each with its opposite; the last are those of
drawn scenes."""

OPPOSITES = (("left", "right"), ("on", "under"), ("in-front", "behind"), ("above", "below"))
RELATIONS = tuple(relation for pair in OPPOSITES for relation in pair)
