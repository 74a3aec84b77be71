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

from itertools import islice
from pathlib import Path
from typing import Any

from grounded_attention.commands.command_line import Count

from .command_line import Program, Result
from .rows_options import RowSource

COUNTED = 1000  # rows
ASKED = 4  # rows under each reading


def show(
    source: str,
    *,
    split: str | None = None,
    images: str | None = None,
    columns: tuple[str, ...] | None = None,
    boxes: str | None = None,
    rows: Count = 12,
    output: Path = Path("data_show.html"),
) -> Result:
    """Writes the page.

    Args:
        source (SOURCE): ORG/NAME on the Hub (also ORG/NAME:CONFIG@REVISION), a file, or a folder
        split (NAME): split to show; all by default
        images (DIR): folder of the pictures that rows name
        columns (WHAT=COLUMN): what columns are: text=answer boxes=bbox
        boxes (HOW): how boxes are written, such as "xywh pixels", if the data do not tell
        rows (N): rows to draw
        output (FILE): the page
    """
    from grounded_attention.dataset_scripts.rows.readings import UnclearBoxes
    from grounded_attention.pages.rows_page import row_card, rows_page
    from grounded_attention.utils.whole_files import write_text

    name = Path(source).name
    try:
        read = RowSource(source, split, images, columns, boxes).open()
    except UnclearBoxes as error:
        sides = {}
        report = None
        for reading in error.readings[:2] if len(error.readings) > 1 else ():
            part = RowSource(source, split, images, columns, str(reading), ASKED).open()
            sides[f"{reading}?"], report = list(map(row_card, part)), part.report
        if report is None:
            raise
        write_text(output, rows_page(name, [("question", str(error))], sides, [], []))
        raise ValueError(f"{error}; {output} shows both side by side") from error
    shown = list(map(row_card, islice(read, rows)))
    read = read.first(COUNTED)
    for _ in read.decode(False):
        pass
    report = read.report
    counted = f"{report.rows:,} counted" if report.complete else f"{report.rows:,} counted (the first ones)"
    about = [
        ("rows", f"{counted}, shape: {report.shape}"),
        ("boxes", f"{report.convention}: {report.known_by}" if report.convention else "none"),
        ("phrases", f"{report.phrases:,} with {report.boxes:,} boxes"),
    ]
    about += [("missing pictures", ", ".join(report.missing))] if report.missing else []
    counts: list[tuple[str, Any]] = [
        ("boxes per phrase", report.boxes_per_phrase),
        ("sizes of pictures", report.sizes),
        ("splits", report.splits),
    ]
    dropped = [(why, number, "; ".join(report.examples.get(why, ()))) for why, number in report.dropped.items()]
    write_text(output, rows_page(name, about, {"Rows": shown}, counts, dropped))
    return {"page": str(output), **report.to_dict()}, f"{report}\n{output} shows {len(shown)} rows"


main = Program("data show", show)
