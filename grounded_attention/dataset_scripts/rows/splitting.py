# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""Splits rows that have no split of their own: by image, so that no picture is on both sides."""

import hashlib

# The part of the images that is held out where rows are trained on.
HELD_OUT = 0.1


def image_order(image_id: str, seed: int = 0) -> int:
    """A number below 2**64 that looks random, by which images are shuffled."""
    digest = hashlib.sha256(f"{seed}\0{image_id}".encode("utf-8", "surrogatepass")).digest()
    return int.from_bytes(digest[:8], "big")
