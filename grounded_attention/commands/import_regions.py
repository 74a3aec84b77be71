# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""Converts legacy region-feature files into a region table.

Formats: tsv of bottom-up attention and LXMERT, VL-BERT's zip of JSON, HDF5 (bottom-up attention in PyTorch, BAN, GQA,
VOLTA) and LMDB (ViLBERT, VOLTA, MMF). Code in a pickle is never executed. HDF5 and LMDB need:
pip install "grounded-attention[legacy]".

Memory use is one image at a time plus the list of image ids. --resume continues an interrupted import. These rows are
damaged: an incomplete or duplicate row, an array of a wrong length, a NaN, an inverted box, a box more than one pixel
outside the image. By default a damaged row ends the import with its file and row; with --on-error skip it is skipped,
counted and listed.

examples:
  # features of the bottom-up-attention authors, 36 boxes an image
  grounded-attention regions import trainval_36.tsv --format butd_tsv --output data/regions

  # several files into one table, without damaged rows
  grounded-attention regions import karpathy_train.tsv.0 karpathy_train.tsv.1 --format butd_tsv \\
      --output data/regions --on-error skip

  # continue after an interruption
  grounded-attention regions import train2014_obj36.tsv --format lxmert_tsv --output data/regions --resume

  # the format is recognised: an LMDB folder, HDF5, VL-BERT's zip (or a folder inside one)
  grounded-attention regions import features/detectron.lmdb --output data/regions
  grounded-attention regions import train_frcnn.zip@/train --output data/regions

  # in Python
  from grounded_attention.dataset_scripts.regions.table import RegionTable
  RegionTable.open("data/regions")["COCO_train2014_000000132417"].features
"""

import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Annotated, Any

from tqdm import tqdm

from grounded_attention.commands.command_line import Positive
from grounded_attention.dataset_scripts.files.errors import DataError, refuse_if
from grounded_attention.dataset_scripts.regions.readers import (
    FEATURE_SIZE,
    READERS,
    SourceRecord,
    existing_source,
    recognise,
    source_records,
    source_size,
)
from grounded_attention.dataset_scripts.regions.shards import read_manifest
from grounded_attention.dataset_scripts.regions.writer import (
    MAX_PROBLEMS,
    RegionTableWriter,
    finished_table,
    skip_or_refuse,
)
from grounded_attention.utils.named_types import AnyPath, Fields
from grounded_attention.utils.progress import is_quiet

from .command_line import Program, Result

FORMATS = ("auto", *sorted(READERS))


def import_regions(
    sources: Sequence[AnyPath],
    format: str,
    output: AnyPath,
    *,
    on_error: str = "refuse",
    resume: bool = False,
    feature_size: int = FEATURE_SIZE,
    detector: str | None = None,
    progress: bool = True,
) -> Fields:
    """Writes the regions of legacy feature files into a region table."""
    if feature_size < 1:
        raise ValueError(f"feature_size: found {feature_size}, expected 1 or more")
    if format == "auto":
        format, _ = recognise(sources[0])
    provenance = _provenance(sources, format, feature_size, detector)
    folder = Path(output)
    if resume and (finished := finished_table(folder, provenance)) is not None:
        return finished
    records = (record for source in sources for record in source_records(source, format))
    with RegionTableWriter(output, provenance, resume=resume) as writer:
        total = sum(source["bytes"] for source in provenance["sources"])
        with tqdm(total=total, unit="B", unit_scale=True, disable=not progress or is_quiet(), desc="regions") as bar:
            writer.summary = _copy(records, writer, feature_size, on_error, bar)
        if not writer.written:
            first = next(iter(writer.summary["problems"]), "the files are empty")
            raise DataError("no usable row", expected=f"the format {format}", hint=f"the first problem: {first}")
    return read_manifest(folder)


def _provenance(sources: Sequence[Any], format: str, feature_size: int, detector: str | None) -> Fields:
    for source in sources:
        existing_source(source, format)
    files = [{"file": Path(source).name, "bytes": source_size(source)} for source in sources]
    return {"sources": files, "format": format, "feature_size": feature_size, "detector": detector}


def _copy(
    records: Iterable[SourceRecord], writer: RegionTableWriter, feature_size: int, on_error: str, bar: tqdm
) -> Fields:
    """Writes the records that the table does not contain yet; rows skipped before an interruption are read again."""
    before = set(writer.written)
    problems: list[str] = []
    rows = 0
    for record in records:
        rows += 1
        if record.image_id in before:
            before.remove(record.image_id)  # a second row of this image is refused as in one go
        else:
            try:
                regions = record.read(feature_size)
                with record.located():
                    writer.write(regions)
            except DataError as error:
                hint = "run again with --on-error skip (and --resume if rows were written)"
                skip_or_refuse(error, on_error, problems, hint)
        bar.update(record.size)
        bar.set_postfix(images=len(writer.written), skipped=len(problems), refresh=False)
    hint = "remove the unfinished table and run the import again"
    refuse_if(
        before, "the source changed since the import began: it lacks images of the table", found=before, hint=hint
    )
    counts = {"rows": rows, "images": len(writer.written), "skipped": len(problems)}
    return {**counts, "problems": problems[:MAX_PROBLEMS]}


def _chosen_format(source: str, format: str) -> str:
    """The format of --format; with "auto" the recognised format, which is also printed."""
    if format != "auto":
        return format
    format, contents = recognise(source)
    print(f"{source}: {contents}, read as {format}", file=sys.stderr)
    return format


def _report(info: Fields, output: str) -> str:
    summary = info["summary"]
    lines = [
        f"{info['images']:,} images with {info['regions']:,} regions, {summary['rows']:,} rows read, "
        f"{summary['skipped']:,} left out: {output}",
        *(f"  left out: {problem}" for problem in summary["problems"]),
    ]
    return "\n".join(lines)


def regions(
    sources: list[str],
    *,
    format: Annotated[str, FORMATS] = "auto",
    output: str,
    on_error: Annotated[str, ("refuse", "skip")] = "refuse",
    resume: bool = False,
    feature_size: Positive = FEATURE_SIZE,
) -> Result:
    """Imports files.

    Args:
        sources (SOURCE): feature file or folder; several are joined
        format: format of the files
        output (DIR): folder of the region table
        on_error: what to do at a damaged row
        resume: continue an interrupted import
        feature_size (D): feature values per region
    """
    how: Fields = {"on_error": on_error, "resume": resume, "feature_size": feature_size}
    info = import_regions(sources, _chosen_format(sources[0], format), output, **how)
    return info, _report(info, output)


main = Program("regions import", regions, resumable="run the same command with --resume to continue")
