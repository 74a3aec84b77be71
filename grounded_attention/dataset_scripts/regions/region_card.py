# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""Card of a region table on the Hub."""

import dataclasses
import json
from collections.abc import Mapping
from typing import Any

from grounded_attention.dataset_scripts.hub.dataset_card import licence_text, table, table_card
from grounded_attention.dataset_scripts.licences import Licence
from grounded_attention.utils.plain_text import markdown_text

from .files import SHARDS

_COLUMNS = {
    "image_id": "id of the image",
    "width": "width of the image in pixels",
    "height": "height of the image in pixels",
    "source_row": "row of the source file, -1 if the source has no rows",
    "checksum": "BLAKE2b of the row's content, 16 bytes",
    "boxes": "x1, y1, x2, y2 divided by the image's width and height, one a region",
    "features": "float16, one vector a region",
    "classes": "the detector's most likely class, without background",
    "scores": "the probability of that class",
    "attributes": "the detector's most likely attribute",
    "attribute_scores": "the probability of that attribute",
    "class_probs": "float16, the probabilities of all classes",
}
_MAX_ITEMS = 10
_HEAD = ("image_id", "width", "height", "source_row", "checksum")


def write_region_card(
    repository: str,
    info: Mapping[str, Any],
    licence: Licence,
    permission: str | None,
    checksums: Mapping[str, str],
    example: str,
) -> str:
    """Writes the content of README.md."""
    provenance = info["provenance"]
    detector = provenance.get("detector")
    named = markdown_text(detector if isinstance(detector, str) else json.dumps(detector, ensure_ascii=False))
    widths = {name: f", {width} wide" if width else "" for name, width in info["arrays"].items()}
    parts = [
        f"Regions of {info['images']:,} images, {info['regions']:,} in all, each with a box and "
        f"{info['feature_size']:,} feature values of a detector ({named if detector else 'not named'}). The images "
        "are not included.",
        "## Columns",
        "One row an image, Arrow streams:",
        table(
            ("column", "content"),
            [(f"`{name}`", _COLUMNS[name] + widths.get(name, "")) for name in (*_HEAD, *info["arrays"])],
        ),
        "## Use",
        _snippet(repository, example),
        "## Licence",
        licence_text({"licence": dataclasses.asdict(licence), "permission": permission}),
        "The terms of an image decide whether its features may be redistributed.",
        "## How it was made",
        f"```json\n{json.dumps(_shorten_lists(provenance), indent=2, ensure_ascii=False)}\n```",
        f"Checksum of all rows: `{info['checksum']}`. Files:",
        table(
            ("file", "bytes", "SHA-256"),
            [
                (f"`{shard['file']}`", f"{shard['bytes']:,}", f"`{checksums[shard['file']]}`")
                for shard in info["shards"]
            ],
        ),
    ]
    return table_card(repository, parts, ["region-features"], info["images"], licence, SHARDS)


def _shorten_lists(value: Any) -> Any:
    """Shortens long lists; the manifest has them in full."""
    if isinstance(value, Mapping):
        return {name: _shorten_lists(each) for name, each in value.items()}
    if isinstance(value, list) and len(value) > _MAX_ITEMS:
        return [*map(_shorten_lists, value[: _MAX_ITEMS - 1]), f"and {len(value) - _MAX_ITEMS + 1} more"]
    return value


def _snippet(repository: str, example: str) -> str:
    key = json.dumps(example)  # the id of an image may contain quotes and line ends
    return f"""From a clone of grounded-attention:

```python
from grounded_attention.dataset_scripts.regions.table import RegionTable

regions = RegionTable.open("hub://{repository}")  # downloads, checks and maps it
print(regions[{key}].features.shape)
```

Without it:

```python
import numpy
from datasets import load_dataset

for row in load_dataset("{repository}", split="train", streaming=True):
    features = numpy.array(row["features"], dtype="float16")
    print(row["image_id"], features.shape)
    break
```

In a recipe: `data.regions: hub://{repository}`."""
