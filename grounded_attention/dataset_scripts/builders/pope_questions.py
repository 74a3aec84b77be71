# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""Questions about objects that are or are not in an image (POPE, Li et al., 2023): which objects to ask for."""

from collections import Counter
from collections.abc import Iterable, Mapping, Set
from dataclasses import dataclass
from itertools import permutations

import numpy as np

SAMPLINGS = ("random", "popular", "adversarial")


@dataclass(frozen=True)
class ObjectCounts:
    """How often objects are in the images of a data set."""

    images: Counter
    together: Counter

    @classmethod
    def of(cls, images: Iterable[Set[str]]) -> "ObjectCounts":
        """Counts the objects of images; each image is the set of its objects."""
        single: Counter[str] = Counter()
        together: Counter[tuple[str, str]] = Counter()
        for objects in images:
            single.update(objects)
            together.update(permutations(sorted(objects), 2))
        return cls(single, together)


def choose_objects(
    present: Set[str], counts: ObjectCounts, questions: int, rng: np.random.Generator
) -> Mapping[str, tuple[list[str], list[str]]]:
    """Chooses the objects to ask for in one image: as many that are in it as that are not."""
    absent = sorted(set(counts.images) - present)
    number = min(questions // 2, len(present), len(absent))
    shown = [str(name) for name in rng.permutation(sorted(present))[:number]]
    drawn = [str(name) for name in rng.permutation(absent)[:number]]
    popular = sorted(absent, key=lambda name: (-counts.images[name], name))[:number]
    beside = {name: sum(counts.together[name, other] for other in present) for name in absent}
    adversarial = sorted(absent, key=lambda name: (-beside[name], name))[:number]
    return {name: (shown, found) for name, found in zip(SAMPLINGS, (drawn, popular, adversarial), strict=True)}


def object_question(name: str) -> str:
    """The question for an object (the words of POPE)."""
    article = "an" if name[:1].lower() in "aeiou" else "a"
    return f"Is there {article} {name} in the image?"
