# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""Statements about pairs of scenes in the format of NLVR2: a JSON object a line, four examples a statement."""

import json
from collections.abc import Iterable, Mapping

from .statements import Statement

# The names of NLVR2's splits.
NAMES = {"train": "train", "val": "dev", "test": "test1"}


def files(statements: Mapping[str, Iterable[Statement]]) -> dict[str, str | bytes]:
    """Returns path and text of the files of the splits train, val and test."""
    return {f"nlvr2/{NAMES[split]}.json": statements_file(NAMES[split], made) for split, made in statements.items()}


def statements_file(name: str, statements: Iterable[Statement]) -> str:
    """Returns the text of the file of a split.

    An identifier is `<split>-<set>-<pair>-<sentence>`; a set is a statement here. The images have no URL, so the
    fields contain their paths in the data. An image belongs to several sets, so its name does not contain one, unlike
    in NLVR2.
    """
    lines = [
        {
            "sentence": statement.text,
            "left_url": f"flickr30k-images/{left}.jpg",
            "right_url": f"flickr30k-images/{right}.jpg",
            "label": str(label),
            "identifier": f"{name}-{number}-{place}-0",
        }
        for number, statement in enumerate(statements)
        for place, ((left, right), label) in enumerate(zip(statement.pairs, statement.labels, strict=True))
    ]
    return "".join(f"{json.dumps(line)}\n" for line in lines)
