# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""Pushes any data with boxes to the Hub, in one form: pictures, texts, and phrases with boxes in [0, 1].

SOURCE is what `data show` takes. `datasets.load_dataset` opens what is pushed without this package, and
`grounded_rows` reads it back equal. A push is one commit with Parquet files, a card and the record of the build. It
needs --licence for data of your own, or --permission with your reason. Rows may name pictures anywhere on the disk:
those that are not below the folder of SOURCE or of --images, after links, are refused without --outside-pictures.

examples:
  grounded-attention data push my_rows.jsonl me/my-rows --boxes "xyxy pixels" --licence cc-by-4.0
  grounded-attention data push exports/yolo me/boxes --private --permission "for our group alone"
"""

import argparse
import json
import tempfile
from pathlib import Path

from .command_line import make_main, make_parser
from .number_options import positive
from .rows_options import add_rows_options, read_columns


def build_parser() -> argparse.ArgumentParser:
    parser = make_parser("grounded-attention data push", __doc__)
    add = parser.add_argument
    add("source", metavar="SOURCE", help="a file, a folder, or ORG/NAME on the Hub")
    add("to", metavar="ORG/NAME", help="the repository of the data set")
    add("--images", metavar="DIR", help="folder of the pictures that rows name")
    add_rows_options(add)
    add("--outside-pictures", action="store_true", help="also push pictures from other folders")
    add("--max-rows", type=positive, metavar="N", help="the most rows of each split")
    add("--private", action="store_true", help="make a new repository private")
    add("--revision", metavar="BRANCH", help="branch to push to; created if missing (default: main)")
    add("--licence", metavar="ID", help="licence of your own data, as a Hub identifier, for example cc0-1.0")
    add("--permission", metavar="TEXT", help="push without a licence; TEXT is your reason, the card shows it")
    add("--json", action="store_true", help="print the address of the commit, and the rows, as JSON")
    return parser


def _work(options: argparse.Namespace) -> str:
    from grounded_attention.dataset_scripts.builders.row_forms import OWN
    from grounded_attention.dataset_scripts.builders.rows import Rows
    from grounded_attention.dataset_scripts.hub.push_rows import plan_push

    rows_options = {name: getattr(options, name) for name in ("boxes", "images", "max_rows", "outside_pictures")}
    rows_options = {name: value for name, value in rows_options.items() if value}
    with tempfile.TemporaryDirectory() as cache:
        columns = read_columns(options.columns)
        builder = Rows(cache_dir=cache, data_dir=options.source, form=OWN, columns=columns, **rows_options)
        terms = {"permission": options.permission, "licence": options.licence}
        push = plan_push(builder, "rows", options.to, revision=options.revision, private=options.private, **terms)
        output = Path(cache, "rows")
        builder.download_and_prepare(str(output), file_format="parquet")
        commit = push.run(builder, output, {**rows_options, **({"columns": columns} if columns else {})}, None)
    rows = {str(split): info.num_examples for split, info in builder.info.splits.items()}
    if options.json:
        return json.dumps({"commit_url": commit, "rows": rows})
    counted = ", ".join(f"{split}: {number}" for split, number in rows.items())
    read = [line for report in builder.report.values() for line in report["read"]]
    return "\n".join([*dict.fromkeys(read), f"pushed to {options.to} ({counted}): {commit}"])


main = make_main(build_parser, _work)
