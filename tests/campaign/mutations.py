# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""Seeded damage to the bytes of a file."""

import random
import re

HUGE = (b"9" * 5000, b"1e999", b"-1", b"NaN", b"99999999999999999999", b"-0.0", b"1e-999", b"0")


def flip(content, rng):
    """One to eight flipped bits."""
    changed = bytearray(content)
    for _ in range(rng.randint(1, 8)):
        changed[rng.randrange(len(changed))] ^= 1 << rng.randrange(8)
    return bytes(changed)


def cut(content, rng):
    """The file ends early."""
    return content[: rng.randrange(len(content))]


def swap(content, rng):
    """Two pieces have changed places."""
    a, b, c, d = sorted(rng.randrange(len(content) + 1) for _ in range(4))
    return content[:a] + content[c:d] + content[b:c] + content[a:b] + content[d:]


def insert(content, rng):
    """Random bytes in between."""
    place = rng.randrange(len(content) + 1)
    return content[:place] + rng.randbytes(rng.randint(1, 64)) + content[place:]


def nul(content, rng):
    """A NUL in between, or a block of them, as a file system leaves after a power failure."""
    place = rng.randrange(len(content) + 1)
    length = rng.choice((1, 1, 512))
    return content[:place] + bytes(length) + content[place + (length if length > 1 else 0) :]


def mark(content, rng):
    """A byte order mark at the start."""
    return rng.choice((b"\xef\xbb\xbf", b"\xff\xfe", b"\xfe\xff")) + content


def nest(content, rng):
    """Thousands of brackets at the place of a value."""
    deep = rng.choice((b"[", b'{"a":', b"- ", b"(", b"<a>")) * rng.choice((200, 100_000))
    places = [found.end() for found in re.finditer(rb"[:,\[\t]", content[:100_000])] or [0]
    place = rng.choice(places)
    return content[:place] + deep + content[place:]


def number(content, rng):
    """A number that is huge, negative or none."""
    places = list(re.finditer(rb"-?\d+(\.\d+)?", content[:200_000]))
    if not places:
        return insert(content, rng)
    found = rng.choice(places)
    return content[: found.start()] + rng.choice(HUGE) + content[found.end() :]


MUTATIONS = {damage.__name__: damage for damage in (flip, cut, swap, insert, nul, mark, nest, number)}


def mutate(kind, content, seed):
    """The damaged content; the same seed gives the same damage."""
    return MUTATIONS[kind](content, random.Random(seed))
