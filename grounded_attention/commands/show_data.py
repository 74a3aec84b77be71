# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""Shows any data with boxes on one page: rows with their phrases, how boxes are written, counts, what is left out.

SOURCE is a name on the Hub, a .jsonl, .json, .parquet or .csv file, or a folder: images with metadata, COCO, YOLO or
Pascal VOC (docs/data.md has a table). How boxes are written is said by --boxes, known from the columns, or counted. If
several readings hold, the page has the two most likely ones side by side, and the command asks for --boxes.

examples:
  grounded-attention data show lmms-lab/RefCOCO --split testA
  grounded-attention data show my_rows.jsonl --images photographs
  grounded-attention data show answers.csv --columns image=file text=says boxes=where --boxes "xyxy pixels"
"""

import argparse
import json
from itertools import islice
from pathlib import Path
from typing import Any

from .command_line import make_main, make_parser
from .number_options import not_negative
from .rows_options import add_rows_options, open_rows

COUNTED = 1000  # rows
ASKED = 4  # rows under each reading


def build_parser() -> argparse.ArgumentParser:
    parser = make_parser("grounded-attention data show", __doc__)
    add = parser.add_argument
    add("source", metavar="SOURCE", help="ORG/NAME on the Hub (also ORG/NAME:CONFIG@REVISION), a file, or a folder")
    add("--split", metavar="NAME", help="split to show; all by default")
    add("--images", metavar="DIR", help="folder of the pictures that rows name")
    add_rows_options(add)
    add("--rows", type=not_negative, default=12, metavar="N", help="rows to draw (default: %(default)s)")
    add("--output", type=Path, default=Path("data_show.html"), metavar="FILE", help="the page (default: %(default)s)")
    add("--json", action="store_true", help="print the counts as JSON")
    return parser


def _work(options: argparse.Namespace) -> str:
    from grounded_attention.dataset_scripts.rows.readings import UnclearBoxes
    from grounded_attention.pages.rows_page import row_card, rows_page
    from grounded_attention.utils.whole_files import write_text

    try:
        rows = open_rows(options.source, options, split=options.split)
    except UnclearBoxes as error:
        sides, report = {}, None
        for reading in error.readings[:2] if len(error.readings) > 1 else ():
            options.boxes = str(reading)
            read = open_rows(options.source, options, split=options.split, max_rows=ASKED)
            sides[f"{reading}?"], report = list(map(row_card, read)), read.report
        if report is None:
            raise
        write_text(options.output, rows_page(Path(options.source).name, [("question", str(error))], sides, [], []))
        raise ValueError(f"{error}; {options.output} shows both side by side") from error
    shown = list(map(row_card, islice(rows, options.rows)))
    rows = rows.first(COUNTED)
    for _ in rows.decode(False):
        pass
    report = rows.report
    about = [
        ("rows", f"{report.rows:,} counted{'' if report.complete else ' (the first ones)'}, shape: {report.shape}"),
        ("boxes", f"{report.convention or 'none'}: {report.known_by}" if report.convention else "none"),
        ("phrases", f"{report.phrases:,} with {report.boxes:,} boxes"),
    ]
    about += [("licence", licence)] if (licence := _licence(options)) else []
    about += [("missing pictures", ", ".join(report.missing))] if report.missing else []
    counts: list[tuple[str, Any]] = [
        ("boxes per phrase", report.boxes_per_phrase),
        ("sizes of pictures", report.sizes),
        ("splits", report.splits),
    ]
    dropped = [(why, number, "; ".join(report.examples.get(why, ()))) for why, number in report.dropped.items()]
    write_text(options.output, rows_page(Path(options.source).name, about, {"Rows": shown}, counts, dropped))
    if options.json:
        return json.dumps({"page": str(options.output), **report.to_dict()}, ensure_ascii=False)
    return f"{report}\n{options.output} shows {len(shown)} rows"


def _licence(options: argparse.Namespace) -> str:
    """What the card of a data set on the Hub says; nothing for files."""
    from grounded_attention.dataset_scripts.builders.rows import find_files
    from grounded_attention.dataset_scripts.rows.opening import hub_name

    if find_files(options.source):
        return ""
    from huggingface_hub import DatasetCard, hf_hub_download
    from huggingface_hub.errors import EntryNotFoundError

    name, _, revision = hub_name(options.source)
    try:
        path = hf_hub_download(name, "README.md", repo_type="dataset", revision=revision)
        card = DatasetCard(Path(path).read_text(encoding="utf-8")).data
    except EntryNotFoundError:
        return "no card says one: ask its authors"
    licence = card.get("license_name") or card.get("license")
    return ", ".join(licence) if isinstance(licence, list) else licence or "the card says none: ask its authors"


main = make_main(build_parser, _work)
