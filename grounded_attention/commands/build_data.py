# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""Builds a data set from its official files into Parquet files; with --push it also pushes them to the Hub.

Options of a builder are written as key=value. A push is one commit with the rows, a card and the build options. Data
whose licence does not clearly allow a push need --permission.

examples:
  grounded-attention data build flickr30k_entities --data-dir data --output data/built/entities
  grounded-attention data build vgp --data-dir data --output data/built/vgp regions=data/regions seed=1
  grounded-attention data build vgp --config binary --split test --data-dir data --output out negatives=random

  # to the Hub, then in Python: datasets.load_dataset("me/visual-genome")
  grounded-attention data build visual_genome_regions --data-dir vg --output out --push me/visual-genome

  # in Python, from the disk
  datasets.load_dataset("parquet", data_dir="data/built/vgp")
"""

from __future__ import annotations

import json
import tempfile
from dataclasses import dataclass
from fnmatch import fnmatch
from pathlib import Path
from typing import Annotated, Any

from grounded_attention.dataset_scripts.builders import BUILDERS
from grounded_attention.dataset_scripts.files.errors import DataError, refuse_if
from grounded_attention.utils.bounded_files import read_json

from .command_line import Program, Result, refuse_given

INFO_FILE = "dataset_info.json"  # `datasets` writes it for every data set


@dataclass(frozen=True)
class PushOptions:
    """What is pushed, and how.

    Args:
        push (ORG/NAME): push the rows to this data set repository, in one commit
        private: make a new repository private
        push_as (NAME): name of the configuration on the Hub (default: the name in the builder)
        permission (TEXT): push although the licence does not clearly allow it; TEXT is your reason, the card shows it
        licence (ID): licence of your own texts, as a Hub identifier, for example cc0-1.0
    """

    push: str | None = None
    private: bool = False
    push_as: str | None = None
    permission: str | None = None
    licence: str | None = None


def build(
    name: Annotated[str, BUILDERS],
    options: list[str] = [],  # noqa: B006
    *,
    data_dir: Path,
    output: Path,
    config: str | None = None,
    split: list[str] | None = None,
    pushing: PushOptions,
) -> Result:
    """Builds a data set, and pushes it.

    Args:
        name: the data set
        options (key=value): options of the builder; a wrong key names those that it has
        data_dir (DIR): folder of the downloaded files
        output (DIR): folder for the Parquet files; an earlier build of the same data set is replaced
        config (NAME): configuration of the builder, for example typology or binary
        split (NAME): splits to build: train, validation, test (default: all)
    """
    from grounded_attention.dataset_scripts.hub.push_rows import plan_push

    from .rows_options import parse_options

    _check_replaceable(output, name)
    given = parse_options(BUILDERS[name], options)
    terms = {key: value for key, value in vars(pushing).items() if key != "push"}
    if pushing.push is None:
        refuse_given(pushing, [*terms], "needs --push; give the repository: --push ORG/NAME")
    with tempfile.TemporaryDirectory() as cache:
        places = {"cache_dir": cache, "data_dir": str(data_dir), "config_name": config, "splits": split}
        builder = BUILDERS[name](**places, **given)
        if pushing.push is None:
            push = None
        else:
            push = plan_push(builder, name, pushing.push, name=terms.pop("push_as"), **terms)
        builder.download_and_prepare(str(output), file_format="parquet", download_mode="force_redownload")
    rows = {str(split): info.num_examples for split, info in builder.info.splits.items()}
    result = {"output": str(output), "rows": rows, "report": builder.report}
    lines = [f"{split}: {count} rows in {output}" for split, count in rows.items()]
    if builder.report:
        lines.append(json.dumps(builder.report, indent=2, ensure_ascii=False))
    if push:
        result["commit"] = push.run(builder, output, given, split)
        lines.append(f"pushed to {pushing.push}, configuration {push.name}: {result['commit']}")
    return result, "\n".join(lines)


def _check_replaceable(output: Path, name: str) -> None:
    """The build replaces two folders, so each must be new, empty, or an earlier build of the same data set."""
    refuse_if(
        output.is_symlink(),
        "the output folder is a symbolic link",
        file=output,
        hint="give the folder that it leads to",
    )
    # The second is where `datasets` builds; a build that was killed leaves it.
    for folder, finished in ((output, True), (output.with_name(f"{output.name}.incomplete"), False)):
        if folder.exists() and (other := _other_file(folder, name, finished)):
            raise DataError(
                "the folder contains other files, which the build would delete",
                file=folder,
                found=other.name,
                hint="give --output a new or empty folder",
            )


def _other_file(folder: Path, name: str, finished: bool) -> Path | None:
    """A file in the folder that no build of this data set wrote."""
    from grounded_attention.dataset_scripts.builders.local_builder import REPORT_FILE

    if not folder.is_dir():
        return folder
    built = (INFO_FILE, REPORT_FILE, f"{name}-*.parquet")
    inside = sorted(folder.iterdir())
    other = next((path for path in inside if not any(fnmatch(path.name, pattern) for pattern in built)), None)
    if other is None and inside and finished and _builder_name(folder) != name:
        return inside[0]
    return other


def _builder_name(folder: Path) -> Any:
    try:
        return read_json(folder / INFO_FILE).get("builder_name")
    except (OSError, ValueError, AttributeError):
        return None


main = Program("data build", build)
