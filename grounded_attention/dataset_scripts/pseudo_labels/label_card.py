# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""Card of pseudo-labels on the Hub."""

import dataclasses
import json
from collections.abc import Mapping
from typing import Any

from grounded_attention.dataset_scripts.hub.dataset_card import licence_text, table, table_card
from grounded_attention.dataset_scripts.licences import Licence

from .files import SHARDS
from .statistics import describe

_COLUMNS = (
    ("caption_id", "id of the caption"),
    ("image_id", "id of its image"),
    ("width, height", "size of the image in pixels; 0 if it could not be used"),
    (
        "phrases",
        "a list: `text`, `start` and `end` (characters of the caption), `boxes` (x1, y1, x2, y2 divided by the "
        "image's width and height, best first) and `scores`",
    ),
    ("not_found", "noun phrases that could not be found in the caption again"),
)


def write_label_card(
    repository: str, info: Mapping[str, Any], licence: Licence, permission: str | None, example: str
) -> str:
    """Writes the content of README.md."""
    counts = info["statistics"]
    statistics = "\n".join(describe(counts))
    parts = [
        "Phrases of captions, with the boxes and scores that a model gave them. Nobody checked them. The captions and "
        "images are not included.",
        f"```\n{statistics}\n```",
        "## Columns",
        table(("column", "content"), [(f"`{name}`", content) for name, content in _COLUMNS]),
        "## Use",
        _snippet(repository, example),
        "## Licence",
        licence_text({"licence": dataclasses.asdict(licence), "permission": permission}),
        "The terms of the captions decide whether their phrases may be redistributed.",
        "## How they were made",
        f"```json\n{json.dumps(info['provenance'], indent=2, ensure_ascii=False)}\n```",
    ]
    return table_card(repository, parts, ["pseudo-labels", "visual-grounding"], counts["captions"], licence, SHARDS)


def _snippet(repository: str, example: str) -> str:
    return f"""From a clone of grounded-attention:

```python
from grounded_attention.dataset_scripts.pseudo_labels.table import PseudoLabelTable

labels = PseudoLabelTable.open("hub://{repository}")  # downloads and checks them
print(labels[{json.dumps(example)}].phrases)
```

Without it:

```python
from datasets import load_dataset

print(load_dataset("{repository}", split="train")[0])
```

In a recipe: `data.pseudo_labels: hub://{repository}`."""
