# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""Builds a data set from its official files into Parquet files; with --push it also pushes them to the Hub.

Options of a builder are written as key=value. A push is one commit with the rows, a card and the build options. Data
whose licence does not clearly allow a push need --permission.

examples:
  grounded-attention data build flickr30k_entities --data-dir data --output data/built/entities --num-proc 4
  grounded-attention data build vgp --data-dir data --output data/built/vgp regions=data/regions seed=1
  grounded-attention data build vgp --config binary --split test --data-dir data --output out negatives=random

  # to the Hub, then in Python: datasets.load_dataset("me/visual-genome")
  grounded-attention data build visual_genome_regions --data-dir vg --output out --push me/visual-genome

  # in Python, from the disk
  datasets.load_dataset("parquet", data_dir="data/built/vgp")
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections.abc import Sequence
from fnmatch import fnmatch
from pathlib import Path
from typing import TYPE_CHECKING, Any

from grounded_attention.dataset_scripts.builders import BUILDERS
from grounded_attention.dataset_scripts.files.errors import DataError
from grounded_attention.utils.bounded_files import read_json

from .builder_options import builder_options_help
from .command_line import make_parser, run
from .number_options import processes

if TYPE_CHECKING:
    from grounded_attention.dataset_scripts.builders.local_builder import LocalBuilder
    from grounded_attention.dataset_scripts.hub.push_rows import RowsPush

INFO_FILE = "dataset_info.json"  # `datasets` writes it for every data set


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the command; returns 0, or 2 after a user error, which is one line on standard error."""
    words = sys.argv[1:] if arguments is None else arguments
    return run(build_parser(words), _build, arguments, intermixed=True)


def build_parser(arguments: Sequence[str] = ()) -> argparse.ArgumentParser:
    parser = make_parser("grounded-attention data build", __doc__)
    parser.epilog = f"{builder_options_help(arguments)}\n\n{parser.epilog}"
    parser.add_argument("name", choices=list(BUILDERS), help="the data set")
    parser.add_argument("options", nargs="*", metavar="key=value", help="options of the builder, see below")
    parser.add_argument("--data-dir", required=True, type=Path, help="folder of the downloaded files")
    parser.add_argument(
        "--output",
        required=True,
        type=Path,
        help="folder for the Parquet files; an earlier build of the same data set is replaced",
    )
    parser.add_argument("--config", help="configuration of the builder, for example typology or binary")
    parser.add_argument("--num-proc", type=processes, help="number of processes; all give the same rows")
    parser.add_argument(
        "--split", action="append", help="split to build (train, validation or test); may be repeated; default: all"
    )
    parser.add_argument("--json", action="store_true", help="print rows and report as one line of JSON")
    _add_push_options(parser.add_argument_group("pushing to the Hub"))
    return parser


def _add_push_options(group: argparse._ArgumentGroup) -> None:
    group.add_argument("--push", metavar="ORG/NAME", help="push the rows to this data set repository, in one commit")
    group.add_argument("--private", action="store_true", help="make a new repository private")
    group.add_argument("--revision", metavar="BRANCH", help="branch to push to; created if missing; default: main")
    group.add_argument(
        "--push-as", metavar="NAME", help="name of the configuration on the Hub; default: the name in the builder"
    )
    group.add_argument(
        "--permission",
        metavar="TEXT",
        help="push although the licence does not clearly allow it; TEXT is your reason, the card shows it",
    )
    group.add_argument(
        "--licence", metavar="ID", help="licence of your own texts, as a Hub identifier, for example cc0-1.0"
    )


def _build(options: argparse.Namespace) -> str:
    from .builder_options import parse_options

    output: Path = options.output
    _check_replaceable(output, options.name)
    builder_class = BUILDERS[options.name]
    builder_options = parse_options(builder_class, options.options)
    with tempfile.TemporaryDirectory() as cache:
        builder = builder_class(
            cache_dir=cache,
            data_dir=str(options.data_dir),
            config_name=options.config,
            splits=options.split,
            **builder_options,
        )
        push = _plan_push(builder, options)
        builder.download_and_prepare(
            str(output), file_format="parquet", num_proc=options.num_proc, download_mode="force_redownload"
        )
    commit = push.run(builder, output, builder_options, options.split) if push else None
    rows = {str(split): info.num_examples for split, info in builder.info.splits.items()}
    if options.json:
        printed = {
            "output": str(output),
            "rows": rows,
            "report": builder.report,
            **({"commit": commit} if push else {}),
        }
        return json.dumps(printed, ensure_ascii=False)
    lines = [f"{split}: {count} rows in {output}" for split, count in rows.items()]
    if builder.report:
        lines.append(json.dumps(builder.report, indent=2, ensure_ascii=False))
    if push:
        lines.append(f"pushed to {options.push}, configuration {push.name}: {commit}")
    return "\n".join(lines)


def _plan_push(builder: LocalBuilder, options: argparse.Namespace) -> RowsPush | None:
    from grounded_attention.dataset_scripts.hub.push_rows import plan_push

    if options.push is None:
        of_a_push = {"--private": options.private, "--revision": options.revision, "--push-as": options.push_as}
        of_a_push |= {"--permission": options.permission, "--licence": options.licence}
        if alone := [name for name, value in of_a_push.items() if value]:
            raise DataError(f"{alone[0]} needs --push", hint="give the repository: --push ORG/NAME")
        return None
    return plan_push(
        builder,
        options.name,
        options.push,
        name=options.push_as,
        revision=options.revision,
        private=options.private,
        permission=options.permission,
        licence=options.licence,
    )


def _check_replaceable(output: Path, name: str) -> None:
    """The build replaces two folders, so each must be new, empty, or an earlier build of the same data set."""
    if output.is_symlink():
        raise DataError("the output folder is a symbolic link", file=output, hint="give the folder that it leads to")
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
