# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""Short names of checkpoints for tables and pages."""

from collections.abc import Sequence
from pathlib import Path


def short_names(paths: Sequence[str], parts: int = 1) -> list[str]:
    """
    Names checkpoints by the last parts of their paths: as few as possible, and no two names are equal.

    A path that is given twice gets a number: `direct`, `direct (2)`.

    Example:

    ```python
    >>> short_names(["runs/a/direct", "runs/b/direct", "runs/b/none"])
    ['a/direct', 'b/direct', 'none']
    ```
    """
    distinct = list(dict.fromkeys(Path(path).parts for path in paths))
    names: list[str] = []
    for path in paths:
        own = Path(path).parts
        others = [other for other in distinct if other != own]
        length = next(
            (number for number in range(parts, len(own)) if all(own[-number:] != each[-number:] for each in others)),
            max(parts, len(own)),
        )
        names.append(str(Path(*own[-length:])))
    return [
        name if (number := names[: index + 1].count(name)) == 1 else f"{name} ({number})"
        for index, name in enumerate(names)
    ]
