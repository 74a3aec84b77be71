# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""Card of a pushed data set, written from the records of its configurations."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from datasets import DatasetInfo
from datasets.info import DatasetInfosDict
from datasets.utils.metadata import MetadataConfigs
from huggingface_hub import DatasetCard, DatasetCardData

from grounded_attention.dataset_scripts.licences import Licence, scenes_command
from grounded_attention.utils.plain_text import markdown_code, markdown_table, markdown_text, printable

Record = Mapping[str, Any]
_WARNINGS = {
    "forbidden": "**These terms forbid redistribution of the data.**",
    "unclear": "**These terms do not clearly allow redistribution of the data.**",
}
_STRICTNESS = ("allowed", "unclear", "forbidden")
_SIZES = ((1_000, "n<1K"), (10_000, "1K<n<10K"), (100_000, "10K<n<100K"), (1_000_000, "100K<n<1M"))


def write_card(repository: str, records: Mapping[str, Record]) -> str:
    """Writes the content of README.md."""
    first = next(iter(records.values()))
    parts = [
        f"# {repository.split('/')[-1]}",
        first["description"],
        "" if has_pictures(first) else "Images are not included; `image_id` identifies them.",
        "## Rows",
        table(
            ("configuration", "split", "rows"),
            [
                (markdown_code(name), markdown_text(split), f"{facts['num_examples']:,}")
                for name, record in records.items()
                for split, facts in record["info"]["splits"].items()
            ],
        ),
        *_column_sections(records),
        "## Use",
        _snippet(repository, records),
        "## Licence",
        *dict.fromkeys(licence_text(record) for record in records.values()),
        "## Source and citation",
        _source_section(first),
        "## How it was built",
        *(_build_section(name, record) for name, record in records.items()),
    ]
    body = "\n\n".join(part.strip() for part in parts if part.strip())
    return str(DatasetCard(f"---\n{_metadata(repository, records).to_yaml()}\n---\n\n{body}\n"))


def table_card(
    repository: str, parts: Sequence[str], tags: Sequence[str], rows: int, licence: Licence, shards: str
) -> str:
    """The card of a table of ours, whose files `shards` the Hub reads as one split: title, then `parts`."""
    title = repository.split("/")[-1]
    data = DatasetCardData(
        pretty_name=title,
        tags=["grounded-attention", *tags],
        size_categories=[size_category(rows)],
        **licence_metadata(asdict(licence)),
    )
    MetadataConfigs({"default": {"data_files": [{"split": "train", "path": shards}]}}).to_dataset_card_data(data)
    return str(DatasetCard(f"---\n{data.to_yaml()}\n---\n\n" + "\n\n".join([f"# {title}", *parts]) + "\n"))


def licence_metadata(licence: Mapping[str, str]) -> dict[str, Any]:
    """Returns the metadata keys with which the Hub names a licence."""
    named: dict[str, Any] = {"license": licence["identifier"]}
    if licence["identifier"] == "other":
        named |= {"license_name": "see-card"}
        if licence["source"]:
            named |= {"license_link": licence["source"]}
    return named


def licence_text(record: Record) -> str:
    """Returns the terms, a warning where needed, and the reason why the data were pushed nevertheless."""
    licence = record["licence"]
    lines = [f"`{licence['identifier']}`: {licence['terms']}"]
    if licence["source"]:
        lines.append(f"See {licence['source']}.")
    if warning := _WARNINGS.get(licence["redistribution"]):
        lines.append(warning)
        lines.append(f"The person who pushed them gave this reason: {markdown_text(str(record['permission']), 2000)}")
    return " ".join(lines)


def size_category(rows: int) -> str:
    """Returns the Hub's category for a number of rows."""
    return next((name for most, name in _SIZES if rows < most), "1M<n<10M" if rows < 10_000_000 else "n>10M")


def table(head: tuple[str, ...], rows: Sequence[tuple[str, ...]]) -> str:
    """Formats a Markdown table."""
    return markdown_table(head, [[re.sub(r"(?<!\\)\|", r"\|", cell) for cell in row] for row in rows], len(head))


def _metadata(repository: str, records: Mapping[str, Record]) -> DatasetCardData:
    first = next(iter(records.values()))
    # The metadata have one licence for all configurations.
    strictest = max(records.values(), key=lambda record: _STRICTNESS.index(record["licence"]["redistribution"]))
    infos = {name: DatasetInfo.from_dict({**record["info"], "config_name": name}) for name, record in records.items()}
    rows = sum(facts["num_examples"] for record in records.values() for facts in record["info"]["splits"].values())
    data = DatasetCardData(
        pretty_name=repository.split("/")[-1],
        tags=["grounded-attention", first["builder"]],
        language=["en"],
        size_categories=[size_category(rows)],
        **licence_metadata(strictest["licence"]),
    )
    DatasetInfosDict(infos).to_dataset_card_data(data)
    MetadataConfigs(
        {
            name: {"data_files": [{"split": split, "path": f"{name}/{split}-*"} for split in record["info"]["splits"]]}
            for name, record in records.items()
        }
    ).to_dataset_card_data(data)
    return data


def _column_sections(records: Mapping[str, Record]) -> list[str]:
    """Describes the columns; configurations with the same columns share a section."""
    names_by_text: dict[str, list[str]] = {}
    for name, record in records.items():
        features = [
            (markdown_code(column), markdown_code(_format_type(kind), 4000))
            for column, kind in record["info"]["features"].items()
        ]
        names_by_text.setdefault(f"{record['columns']}\n\n{table(('column', 'type'), features)}", []).append(
            f"`{name}`"
        )
    return [f"### Columns of {', '.join(names)}\n\n{text}" for text, names in names_by_text.items()]


def _source_section(record: Record) -> str:
    if not record["scenes"]:
        return f"{record['homepage'] or ''}\n\n{record['citation'] or ''}"
    scenes = record["scenes"]
    return (
        f"Drawn and described by a program, version {scenes['version']} of grounded-attention's scenes; it contains "
        f"no photographs and no texts by people:\n\n```bash\n{scenes_command(scenes, 'DIR')}\n```\n\n"
        f"Only its format is that of the data set at {record['homepage'] or 'its builder'}."
    )


def _format_type(feature: Any) -> str:
    """Formats the type of a column."""
    kind = feature.get("_type") if isinstance(feature, Mapping) else None
    if kind == "Value":
        return str(feature["dtype"])
    if kind == "ClassLabel":
        return f"class of {', '.join(printable(str(name), 100) for name in feature['names'])}"
    if isinstance(kind, str) and "feature" in feature:
        length = feature.get("length", -1)
        return f"list{'' if length == -1 else f' of {length}'} of {_format_type(feature['feature'])}"
    if isinstance(feature, Mapping):
        return (
            "{" + ", ".join(f"{name}: {_format_type(each)}" for name, each in feature.items() if name != "_type") + "}"
        )
    return str(feature)


def _snippet(repository: str, records: Mapping[str, Record]) -> str:
    name, record = next(iter(records.items()))
    split = next(iter(record["info"]["splits"]))
    return f"""```python
from datasets import load_dataset

rows = load_dataset("{repository}", "{name}", split="{split}")
print(rows[0])

# without downloading all of it
streamed = load_dataset("{repository}", "{name}", split="{split}", streaming=True)
print(next(iter(streamed)))
```

In a recipe of grounded-attention: {_recipe_keys(repository, name, record)}."""


def _recipe_keys(repository: str, name: str, record: Record) -> str:
    if has_pictures(record):
        return f"`data.source: {repository}`"
    return f"`data.data_dir: hub://{repository}`, `data.options: {{config_name: {name}}}`"


def has_pictures(record: Record) -> bool:
    """Whether the pictures are in the rows."""
    return bool({"image", "images"} & record["info"]["features"].keys())


def _build_section(name: str, record: Record) -> str:
    versions = ", ".join(f"{program} {version}" for program, version in record["versions"].items())
    sources = [
        (
            markdown_code(each["file"]),
            f"{each['files']:,}",
            f"{each['bytes']:,}",
            f"`{each.get('sha256') or each['table']}`",
        )
        for each in record["sources"]
    ]
    return "\n\n".join(
        [
            f"### `{name}`",
            f"```bash\n{record['command']}\n```",
            f"Versions: {versions}. Sources:",
            table(("source", "files", "bytes", "checksum"), sources),
            f"Counts of rows found and skipped, and more: `{name}/build.json`.",
        ]
    )
