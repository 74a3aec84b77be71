# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""Conceptual Captions: captions and addresses of images on the web, read one row at a time.

The files are those of https://ai.google.com/research/ConceptualCaptions/download, or the lists of VL-BERT's public
code. Many images no longer exist; `regions` or `image_list` selects those that do.

The download tool determines the image ids. VL-BERT's code uses the row number in the file, from 0, with eight digits.
ViLBERT and VOLTA use the CRC-32 of the address, as a decimal number; with it, some 1,300 pairs among 3.3 million
images have the same id. Such rows are counted and kept, because the files do not show which of the two images exists.
"""

import logging
import re
import zlib
from array import array
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

import numpy as np

from grounded_attention.dataset_scripts.files.errors import DataError, check_folder, data_file, refuse_if
from grounded_attention.dataset_scripts.files.records import Record, text_lines
from grounded_attention.dataset_scripts.licences import ALLOWED, Licence
from grounded_attention.dataset_scripts.regions.table import RegionTable, local_folder
from grounded_attention.utils.bounded_files import parse_json
from grounded_attention.utils.named_types import Fields

from .local_builder import BuildReport, LocalBuilder, LocalConfig, logger, texts

HOMEPAGE = "https://ai.google.com/research/ConceptualCaptions"
WHERE_TO_GET = f"get Conceptual Captions from {HOMEPAGE}/download"
LICENCE = Licence(
    "other",
    ALLOWED,
    "Google permits free use of the data for any purpose, without warranty, and asks for acknowledgement as their "
    "source; the images belong to their web sites and are not included.",
    HOMEPAGE,
)
CITATION = """Piyush Sharma, Nan Ding, Sebastian Goodman, Radu Soricut. Conceptual Captions: A Cleaned, Hypernymed,
Image Alt-text Dataset For Automatic Image Captioning. ACL 2018."""
TSV = "tsv"
LABELLED = "labelled"
JSON_LINES = "json_lines"
FILES: dict[str, dict[str, tuple[str, ...]]] = {
    TSV: {
        "train": ("Train_GCC-training.tsv", "Train-GCC-training.tsv", "GCC-training.tsv"),
        "val": (
            "Validation_GCC-1.1.0-Validation.tsv",
            "Validation-GCC-1.1.0-Validation.tsv",
            "GCC-1.1.0-Validation.tsv",
        ),
    },
    LABELLED: {"train": ("Image_Labels_Subset_Train_GCC-Labels-training.tsv", "GCC-Labels-training.tsv")},
    JSON_LINES: {"train": ("train_frcnn.json",), "val": ("val_frcnn.json",)},
}
COLUMNS = {TSV: ("caption", "url"), LABELLED: ("caption", "url", "labels", "MIDs", "confidences")}
EXTRA = {TSV: "url", LABELLED: "url", JSON_LINES: "image"}  # a column
_ADDRESS = re.compile(r"\s*https?://\S", re.IGNORECASE)
# Names of columns without case and signs.
_ADDRESS_NAME = re.compile(r"(image|img|picture|photo)?(url|uri|link|address|src|source)s?")
_CAPTION_NAME = re.compile(r"(raw|clean|image|alt)?(caption|text|title|description|sentence|alt)s?")


@dataclass
class ConceptualCaptionsConfig(LocalConfig):
    """Options of [`ConceptualCaptions`]."""

    LICENCE = LICENCE
    WHERE = WHERE_TO_GET
    LISTS = "image_list"

    image_id_format: str | None = None
    regions: str | None = None
    image_list: str | Sequence[str] | None = None

    def sources(self) -> list[Path]:
        return [*super().sources(), *([local_folder(self.regions)] if self.regions else [])]

    def id_format(self) -> str:
        """Returns the format of image ids: `row`, `crc32`, or `file` for the paths of `json_lines`."""
        possible = {TSV: ("row", "crc32"), LABELLED: ("crc32",), JSON_LINES: ("file",)}[self.name]
        chosen = self.image_id_format or possible[0]
        if chosen not in possible:
            expected = " or ".join(possible)
            problem = f"image_id_format does not fit the {self.name} files"
            raise DataError(problem, found=chosen, expected=expected)
        return chosen

    def available_splits(self) -> Sequence[str]:
        return tuple(FILES[self.name])

    def needed_files(self, split: str) -> list[Path]:
        names = FILES[self.name].get(split)
        if names:
            return [self.find(*names)]
        return []

    def check(self) -> None:
        self.id_format()
        super().check()
        check_folder(self.data_dir, WHERE_TO_GET)


class ConceptualCaptions(LocalBuilder):
    """One row a caption: `{image_id, caption_id, text}` and further columns that depend on the files.

    `data_dir` holds `Train_GCC-training.tsv` and `Validation_GCC-1.1.0-Validation.tsv`, or
    `Image_Labels_Subset_Train_GCC-Labels-training.tsv`, or VL-BERT's `{train,val}_frcnn.json`. There are no test
    captions. A first line with the names of the columns is skipped, and the address may be before the caption.
    `caption_id` is `<split>-<row number from 0>` in the file. Rows of `tsv` and `labelled` also have `url`, those of
    `json_lines` the unchanged path `image`; their `image_id` is its stem. Captions are unchanged except for white
    space at their ends (`json_lines`: tokens joined by a space); those without words are skipped. `builder.report`
    counts skipped rows. Only one row is in memory, plus 4 bytes a row for `crc32`.
    """

    config: ConceptualCaptionsConfig
    BUILDER_CONFIG_CLASS = ConceptualCaptionsConfig
    BUILDER_CONFIGS = [ConceptualCaptionsConfig(name=name) for name in FILES]
    DEFAULT_CONFIG_NAME = TSV

    INFO = (
        "Images of the web with cleaned alternative texts as captions.",
        lambda name: texts("image_id", "caption_id", "text", EXTRA[name]),
        HOMEPAGE,
        CITATION,
    )

    def _generate_rows(self, split: str, report: BuildReport) -> Iterator[Fields]:
        [path] = self.config.needed_files(split)
        id_format = self.config.id_format()
        table = None
        if self.config.regions:
            table = RegionTable.open(self.config.regions)
        known = [ids for ids in (self.image_lists, table) if ids is not None]
        checksums = array("I")
        for number, row in caption_rows(path, self.config.name, id_format):
            report.add("rows")
            if not row["text"]:
                report.add("rows_without_words", f"row {number}")
            elif not all(row["image_id"] in ids for ids in known):
                report.add("rows_without_image")
            else:
                if id_format == "crc32":
                    checksums.append(int(row["image_id"]))
                yield {"caption_id": f"{split}-{number}", **row}
        refuse_if(not report.counts["rows"], "the file is empty", file=path, hint=WHERE_TO_GET)
        _, times = np.unique(np.array(checksums), return_counts=True)
        shared = int(times[times > 1].sum())
        if shared:
            report.add("rows_that_share_an_image_id", count=shared)
        skipped = report.counts["rows_without_image"]
        if skipped:
            if skipped == report.counts["rows"]:
                level = logging.WARNING
            else:
                level = logging.INFO
            logger.log(level, "%s: %d of %d rows skipped", path, skipped, report.counts["rows"])


def caption_rows(path: Path, kind: str, id_format: str) -> Iterator[tuple[int, Fields]]:
    """Reads the rows of a file of Conceptual Captions, one in memory at a time."""
    header = swapped = False
    for number, line in text_lines(path, WHERE_TO_GET):
        if number == 1 and kind != JSON_LINES:
            header, swapped = _read_order(line)
            if header:
                continue
        where = f"line {number}"
        if kind == JSON_LINES:
            with data_file(path, "one record a line"):
                values = parse_json(line, f"{path}, {where}")
            record = Record(values, path, where)
            text = " ".join(record.texts("caption")).strip()
            image = record.non_empty_text("image")
            row = {"image_id": PurePosixPath(image).stem, "text": text, "image": image}
        else:
            # Quotes are literal in these files, so a CSV reader would change them.
            columns = line.split("\t")
            if swapped:
                columns[:2] = columns[1::-1]
            names = COLUMNS[kind]
            if len(columns) != len(names) or not _ADDRESS.match(columns[1]):
                expected = f"{len(names)} columns separated by tabs: {', '.join(names)}; the url begins with http"
                found = f"{len(columns)} columns: {line}"
                raise DataError(
                    "wrong columns", file=path, where=where, found=found, expected=expected, hint=WHERE_TO_GET
                )
            row = {"text": columns[0].strip(), "url": columns[1]}
        number = number - 1 - header
        if id_format == "row":
            row["image_id"] = f"{number:08d}"
        elif id_format == "crc32":
            row["image_id"] = str(zlib.crc32(row["url"].encode("utf-8")))
        yield number, row


def _read_order(line: str) -> tuple[bool, bool]:
    """Whether a first line has the names of the columns, and whether the address is before the caption."""
    first, second = [*line.split("\t"), ""][:2]
    names = [re.sub(r"[\W_]", "", name).lower() for name in (first, second)]
    for address, other in ((1, 0), (0, 1)):
        if _ADDRESS_NAME.fullmatch(names[address]) and _CAPTION_NAME.fullmatch(names[other]):
            return True, address == 0
    return False, bool(_ADDRESS.match(first)) and not _ADDRESS.match(second)
