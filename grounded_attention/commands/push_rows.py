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

import tempfile
from pathlib import Path

from grounded_attention.utils.named_types import Fields

from .command_line import Program, Result
from .rows_options import read_columns


def push(
    source: str,
    to: str,
    *,
    images: str | None = None,
    columns: tuple[str, ...] | None = None,
    boxes: str | None = None,
    outside_pictures: bool = False,
    private: bool = False,
    licence: str | None = None,
    permission: str | None = None,
) -> Result:
    """Pushes rows.

    Args:
        source (SOURCE): a file, a folder, or ORG/NAME on the Hub
        to (ORG/NAME): the repository of the data set
        images (DIR): folder of the pictures that rows name
        columns (WHAT=COLUMN): what columns are: text=answer boxes=bbox
        boxes (HOW): how boxes are written, such as "xywh pixels", if the data do not tell
        outside_pictures: also push pictures from other folders
        private: make a new repository private
        licence (ID): licence of your own data, as a Hub identifier, for example cc0-1.0
        permission (TEXT): push without a licence; TEXT is your reason, the card shows it
    """
    from grounded_attention.dataset_scripts.builders.row_forms import OWN
    from grounded_attention.dataset_scripts.builders.rows import Rows
    from grounded_attention.dataset_scripts.hub.push_rows import plan_push

    options: Fields = {
        "boxes": boxes,
        "images": images,
        "outside_pictures": outside_pictures,
        "columns": read_columns(columns),
    }
    given = {name: value for name, value in options.items() if value}
    with tempfile.TemporaryDirectory() as cache:
        builder = Rows(cache_dir=cache, data_dir=source, form=OWN, **given)
        terms = {"permission": permission, "licence": licence}
        plan = plan_push(builder, "rows", to, private=private, **terms)
        output = Path(cache, "rows")
        builder.download_and_prepare(str(output), file_format="parquet")
        commit = plan.run(builder, output, given, None)
    rows = {str(split): info.num_examples for split, info in builder.info.splits.items()}
    counted = ", ".join(f"{split}: {number}" for split, number in rows.items())
    read = []
    for report in builder.report.values():
        read.extend(report["read"])
    text = "\n".join([*dict.fromkeys(read), f"pushed to {to} ({counted}): {commit}"])
    return {"commit_url": commit, "rows": rows}, text


main = Program("data push", push)
