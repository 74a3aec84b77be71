# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""Cards of pushed data sets: rows, region tables and pseudo-labels, each from its template in `model_cards/`."""

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from datasets import DatasetInfo
from datasets.info import DatasetInfosDict
from datasets.utils.metadata import MetadataConfigs
from huggingface_hub import DatasetCard, DatasetCardData

from grounded_attention.dataset_scripts.licences import Licence, scenes_command
from grounded_attention.utils.named_types import Columns, Fields
from grounded_attention.utils.plain_text import markdown_code, markdown_table, markdown_text
from grounded_attention.utils.project import MODEL_CARDS

Record = Columns
_WARNINGS = {
    "forbidden": "**These terms forbid redistribution of the data.**",
    "unclear": "**These terms do not clearly allow redistribution of the data.**",
}
_STRICTNESS = ("allowed", "unclear", "forbidden")
_MAX_ITEMS = 10  # of a list in the provenance


def data_card(
    template: str,
    repository: str,
    licences: Sequence[Record],
    *,
    tags: Sequence[str],
    files: Mapping[str, Mapping[str, str]],
    infos: Mapping[str, DatasetInfo] | None = None,
    **content: Any,
) -> str:
    """Renders a template; `licences` have `licence` and `permission`, `files` name -> split -> pattern."""
    # The metadata have one licence for all configurations.
    strictest = max((each["licence"] for each in licences), key=lambda one: _STRICTNESS.index(one["redistribution"]))
    title = repository.split("/")[-1]
    named = strictest["identifier"]
    of_other: Fields = {"license_name": "see-card", "license_link": strictest["source"] or None}
    data = DatasetCardData(
        pretty_name=title,
        tags=["grounded-attention", *tags],
        language=["en"] if infos else None,
        license=named,
        **(of_other if named == "other" else {}),
    )
    if infos:
        DatasetInfosDict(infos).to_dataset_card_data(data)
    configs = {}
    for name, splits in files.items():
        configs[name] = {"data_files": [{"split": split, "path": pattern} for split, pattern in splits.items()]}
    MetadataConfigs(configs).to_dataset_card_data(data)
    terms = "\n\n".join(dict.fromkeys(map(licence_text, licences)))
    path = str(MODEL_CARDS / f"{template}.md")
    shown = {"title": title, "repository": repository, "licence": terms}
    return str(DatasetCard.from_template(data, template_path=path, table=table, **shown, **content))


def table_card(
    template: str,
    repository: str,
    info: Record,
    licence: Licence,
    permission: str | None,
    *,
    shards: str,
    **content: Any,
) -> str:
    """The card of a table, whose files `shards` the Hub reads as one split."""
    terms = {"licence": asdict(licence), "permission": permission}
    provenance = json.dumps(_shorten_lists(info["provenance"]), indent=2, ensure_ascii=False)
    files = {"default": {"train": shards}}
    return data_card(template, repository, [terms], files=files, info=info, provenance=provenance, **content)


def write_card(repository: str, records: Mapping[str, Record]) -> str:
    """The card of rows, from the records of their configurations."""
    name, first = next(iter(records.items()))
    infos = {name: DatasetInfo.from_dict({**record["info"], "config_name": name}) for name, record in records.items()}
    counts = {
        (config, split): facts["num_examples"]
        for config, record in records.items()
        for split, facts in record["info"]["splits"].items()
    }
    files: dict[str, dict[str, str]] = {}
    for config, split in counts:
        files.setdefault(config, {})[split] = f"{config}/{split}-*"
    return data_card(
        "rows",
        repository,
        list(records.values()),
        tags=[first["builder"]],
        files=files,
        infos=infos,
        records=records,
        first=first,
        name=name,
        split=next(iter(files[name])),
        pictures=bool({"image", "images"} & first["info"]["features"].keys()),
        splits=[(markdown_code(config), markdown_text(split), f"{n:,}") for (config, split), n in counts.items()],
        columns=_columns(records, infos),
        sources={name: list(map(_source, record["sources"])) for name, record in records.items()},
        scenes_command=scenes_command,
    )


def _columns(records: Mapping[str, Record], infos: Mapping[str, DatasetInfo]) -> dict[str, list[str]]:
    """Description of columns -> the configurations that have them."""
    names: dict[str, list[str]] = {}
    for name, record in records.items():
        features = (infos[name].features or {}).items()
        types = table(
            ("column", "type"), [(markdown_code(n), markdown_code(repr(kind), 4000)) for n, kind in features]
        )
        names.setdefault(f"{record['columns']}\n\n{types}", []).append(f"`{name}`")
    return names


def _source(source: Record) -> tuple[str, ...]:
    checksum = source.get("sha256") or source["table"]
    return markdown_code(source["file"]), f"{source['files']:,}", f"{source['bytes']:,}", f"`{checksum}`"


def licence_text(record: Record) -> str:
    """Returns the terms, a warning where needed, and the reason why the data were pushed nevertheless."""
    licence = record["licence"]
    lines = [f"`{licence['identifier']}`: {licence['terms']}"]
    if licence["source"]:
        lines.append(f"See {licence['source']}.")
    warning = _WARNINGS.get(licence["redistribution"])
    if warning:
        lines.append(warning)
        lines.append(f"The person who pushed them gave this reason: {markdown_text(str(record['permission']), 2000)}")
    return " ".join(lines)


def table(head: tuple[str, ...], rows: Sequence[tuple[str, ...]]) -> str:
    """Formats a Markdown table."""
    return markdown_table(head, [[re.sub(r"(?<!\\)\|", r"\|", cell) for cell in row] for row in rows], len(head))


def _shorten_lists(value: Any) -> Any:
    """Shortens long lists; the manifest has them in full."""
    if isinstance(value, Mapping):
        return {name: _shorten_lists(each) for name, each in value.items()}
    if isinstance(value, list) and len(value) > _MAX_ITEMS:
        return [*map(_shorten_lists, value[: _MAX_ITEMS - 1]), f"and {len(value) - _MAX_ITEMS + 1} more"]
    return value
