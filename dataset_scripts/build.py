# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""Command that builds a data set: `python -m dataset_scripts.build NAME --data-dir DIR --output DIR`, to Parquet."""

import argparse
import dataclasses
import json
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import yaml

from dataset_scripts.builders import BUILDERS
from dataset_scripts.errors import DataError
from dataset_scripts.local_builder import LocalBuilder

EXAMPLES = """examples:
  python -m dataset_scripts.build flickr30k_entities --data-dir data --output data/built/entities --num-proc 4
  python -m dataset_scripts.build vgp --data-dir data --output data/built/vgp regions=data/regions seed=1
  python -m dataset_scripts.build vgp --config binary --split test --data-dir data --output out negatives=random

then, in Python: datasets.load_dataset("parquet", data_dir="data/built/vgp")
"""


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the command.

    Returns:
        The exit code: 0, or 2 after an error the user can mend, which is printed as one line.
    """
    options = _parser().parse_intermixed_args(arguments)
    try:
        _build(options)
    except (ValueError, KeyError, OSError) as error:
        # A KeyError shows its message in quotes.
        message = error.args[0] if isinstance(error, KeyError) and error.args else error
        print("error:", " ".join(str(message).split()), file=sys.stderr)
        return 2
    return 0


def _parser() -> argparse.ArgumentParser:
    options = "\n".join(f"  {name}: {', '.join(_options_of(builder))}" for name, builder in BUILDERS.items())
    parser = argparse.ArgumentParser(
        prog="python -m dataset_scripts.build",
        description="Build a data set from its official files on disk into Parquet files.",
        epilog=f"options (key=value) of the builders:\n{options}\n\n{EXAMPLES}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("name", choices=BUILDERS, help="the data set")
    parser.add_argument("options", nargs="*", metavar="key=value", help="options of the builder, see below")
    parser.add_argument("--data-dir", required=True, type=Path, help="folder of the downloaded files")
    parser.add_argument(
        "--output", required=True, type=Path, help="folder for the Parquet files; replaced if built before"
    )
    parser.add_argument("--config", help="configuration of the builder, for example typology or binary")
    parser.add_argument("--num-proc", type=int, help="number of processes; the rows do not depend on it")
    parser.add_argument(
        "--split", action="append", help="split to build (train, validation or test), may be repeated; default: all"
    )
    parser.add_argument("--json", action="store_true", help="print rows and report as one line of JSON")
    return parser


def _options_of(builder: type[LocalBuilder]) -> dict[str, dataclasses.Field]:
    """The options of a builder that are its own, not those of every `datasets` builder."""
    general = {"name", "version", "data_dir", "data_files", "description", "splits"}
    fields = dataclasses.fields(builder.BUILDER_CONFIG_CLASS)
    return {field.name: field for field in fields if field.name not in general}


def parse_options(builder: type[LocalBuilder], pairs: Sequence[str]) -> dict[str, Any]:
    """Turns `key=value` texts into the builder's options; values are read as YAML unless the option is a text.

    Raises:
        DataError: A text is not of that form, the builder has no such option, or its values are of another type.
    """
    known = _options_of(builder)
    options = {}
    for pair in pairs:
        key, equals, value = pair.partition("=")
        if not equals or key not in known:
            raise DataError("unknown option", found=pair, expected=f"key=value with key of {', '.join(known)}")
        options[key] = _value(key, value, known[key].type)
    return options


def _value(key: str, text: str, kind: Any) -> Any:
    if "str" in str(kind):
        return text
    try:
        value = yaml.safe_load(text)
    except yaml.YAMLError:
        value = None
    # Not isinstance: to Python a bool is an int.
    if type(value) is not kind:
        expected = {bool: "true or false", int: "a whole number"}.get(kind, str(kind))
        raise DataError(f"bad option {key}", found=text, expected=expected)
    return value


def _build(options: argparse.Namespace) -> None:
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
        builder.download_and_prepare(
            str(output), file_format="parquet", num_proc=options.num_proc, download_mode="force_redownload"
        )
    rows = {str(split): info.num_examples for split, info in builder.info.splits.items()}
    if options.json:
        print(json.dumps({"output": str(output), "rows": rows, "report": builder.report}, ensure_ascii=False))
        return
    for split, count in rows.items():
        print(f"{split}: {count} rows in {output}")
    if builder.report:
        print(json.dumps(builder.report, indent=2, ensure_ascii=False))


def _check_replaceable(output: Path, name: str) -> None:
    """Preparing replaces the folder, so it must be new, empty, or an earlier build of the same data set."""
    if not output.exists() or (output.is_dir() and not any(output.iterdir())):
        return
    try:
        # `datasets` writes this file for every data set, whoever made it.
        built = json.loads((output / "dataset_info.json").read_text(encoding="utf-8")).get("builder_name")
    except (OSError, ValueError, AttributeError):
        built = None
    if built != name:
        raise DataError("the output folder holds other files", file=output, hint="give a new or empty folder")


if __name__ == "__main__":
    sys.exit(main())
