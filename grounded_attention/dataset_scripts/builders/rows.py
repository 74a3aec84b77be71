# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""Builds the rows of a task from data as people have them: everything that `grounded_rows` reads."""

import glob
import hashlib
import logging
import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any

import datasets

from grounded_attention.dataset_scripts.files.errors import DataError
from grounded_attention.dataset_scripts.hub.push_commit import hub_errors
from grounded_attention.dataset_scripts.licences import USER_TEXTS
from grounded_attention.dataset_scripts.rows.opening import hub_name
from grounded_attention.dataset_scripts.rows.pictures import picture_digest
from grounded_attention.dataset_scripts.rows.reader import WITHOUT_BOXES, GroundedRows, grounded_rows
from grounded_attention.dataset_scripts.rows.sources import split_name
from grounded_attention.utils.named_types import Columns, Fields
from grounded_attention.utils.safe_paths import is_inside
from grounded_attention.utils.whole_files import write_bytes

from .local_builder import BuildReport, LocalBuilder, LocalConfig, fingerprint
from .row_forms import ALL_FORMS, FORMS, OWN, PICTURES, SEEN, own_features, own_row

logger = logging.getLogger(__name__)

ROWS = "rows"  # what the report counts them by
# Folder beside the rows, of pictures that the source has inside of its rows; in the report, the state of all others.
KEPT = "pictures"
NAMED = 3  # pictures from outside in a refusal
_UNREAD = ("left out: the picture is missing", "left out: the picture cannot be read")  # perhaps it can now


@dataclass
class RowsConfig(LocalConfig):
    """Options of [`Rows`]."""

    LICENCE = USER_TEXTS
    WHERE = "docs/data.md has the sources and shapes that are read"

    form: str = "flickr30k_entities"
    columns: Columns = field(default_factory=dict)
    boxes: str | None = None
    images: str | None = None
    named_splits: Columns = field(default_factory=dict)
    max_rows: int | None = None
    outside_pictures: bool = False

    def sources(self) -> list[Path]:
        return find_files(self.data_dir or "")

    def create_config_id(self, config_kwargs: Fields, custom_features: datasets.Features | None = None) -> str:
        """Adds the commit of a data set on the Hub, of which no file is here."""
        if self.data_dir and not self.sources():
            config_kwargs = {**config_kwargs, "commit": _commit(self.data_dir)}
        return super().create_config_id(config_kwargs, custom_features)

    def check(self) -> None:
        super().check()
        if self.form not in (OWN, *ALL_FORMS):
            raise DataError(
                "data of this form are not made of rows", found=self.form, expected=f"one of {', '.join(FORMS)}"
            )


def find_files(source: str) -> list[Path]:
    """The files or folders of a source; none for a name on the Hub."""
    path = Path(source)
    if source and path.exists():
        return [path]
    return [Path(match) for match in sorted(glob.glob(source, recursive=True))]


def _commit(name: str) -> str:
    from huggingface_hub import HfApi

    repository, _, revision = hub_name(name)
    with hub_errors("finding the data set", repository, "check the name, and log in for a gated one"):
        return str(HfApi().dataset_info(repository, revision=revision).sha)


class Rows(LocalBuilder):
    """The rows of another builder (`form`: `flickr30k_entities`, `refcoco`, `vqa_v2` or `llava_instruct`), or
    `pictures` with their boxes alone, made of data that `grounded_rows` reads.

    `data_dir` is the source: a file, pattern or folder, or `ORG/NAME:CONFIG@REVISION` on the Hub. `columns`, `boxes`,
    `images` and `max_rows` (of each split) are those of `grounded_rows`. `named_splits` maps train, validation, test
    ... to splits of the source; by default all are read, under their own names; `splits` are those to build.
    `file_name` of a row is the path of its picture without its root; pictures inside of rows are written once into a
    folder beside the built rows. The form `own` takes the content of pictures, to be pushed: those that are not below
    the folder of the source or `images`, after links, are refused unless `outside_pictures` is True.
    """

    config: RowsConfig
    BUILDER_CONFIG_CLASS = RowsConfig
    BUILDER_CONFIGS = [RowsConfig(name="default")]

    def download_and_prepare(self, *args: Any, **kwargs: Any) -> None:
        """As of any builder; kept rows are built again if a picture has changed since, or could not be read then."""
        self._states: dict[str, str] = {}  # split -> the state of its pictures, as it is built
        super().download_and_prepare(*args, **kwargs)
        kept = {split: report for split, report in self.report.items() if split not in self._states}
        # The first process of a launch does it, before the others read the rows.
        if os.environ.get("RANK", "0") == "0" and any(self._is_stale(*item) for item in kept.items()):
            # Other pictures may give another number of rows.
            again = {"download_mode": "force_redownload", "verification_mode": "no_checks"}
            super().download_and_prepare(*args, **{**kwargs, **again})

    def _download_and_prepare(self, dl_manager: Any, verification_mode: Any, **kwargs: Any) -> None:
        """Before the rows are complete, and could be pushed."""
        self._outside: dict[str, None] = {}  # files of pictures, in their order
        self._roots = [path if path.is_dir() else path.parent for path in self.config.sources()]
        if self.config.images:
            self._roots.append(Path(self.config.images))
        super()._download_and_prepare(dl_manager, verification_mode, **kwargs)
        if self._outside and not self.config.outside_pictures:
            named = [*islice(self._outside, NAMED)]
            if len(self._outside) > NAMED:
                named.append("...")
            problem = f"{len(self._outside)} pictures from outside of the folder of the rows would be pushed"
            raise DataError(
                f"{problem}: {', '.join(named)}",
                file=self.config.data_dir,
                hint="move them there, name their folder with --images, or say yes with --outside-pictures "
                "(outside_pictures=True)",
            )

    def told(self) -> list[str]:
        """How the rows of each split were read, and what was left out: a line for each."""
        lines = []
        for split, report in self.report.items():
            left_out = []
            for what, count in report.items():
                if isinstance(count, int) and what != ROWS:
                    left_out.append(f"{count} {what}")
            lines.append(f"{split}: {'; '.join([*report['read'], f'{report[ROWS]} {ROWS}', *left_out])}")
        return lines

    def _is_stale(self, split: str, report: Columns) -> bool:
        if KEPT not in report:
            return False
        files = {os.sep + name for name in self.as_dataset(split).unique("file_name")}
        return bool({*_UNREAD} & {*report}) or report[KEPT] != self._state_of(files)

    def _state_of(self, files: Iterable[str]) -> str:
        """Of pictures with files of their own."""
        inside = os.path.join(self._place(), KEPT)
        return fingerprint(Path(file) for file in sorted({*files}) if not file.startswith(inside))

    def _place(self) -> str:
        """The folder of the built rows; while they are built it has another name."""
        return os.path.abspath(self._output_dir.removesuffix(".incomplete"))

    def _info(self) -> datasets.DatasetInfo:
        self.config.check()
        if self.config.form == OWN:  # its columns are those of the source
            return datasets.DatasetInfo("Pictures with texts, and phrases of the texts with boxes in [0, 1].")
        features = ALL_FORMS[self.config.form][0]
        return datasets.DatasetInfo("Rows of a data set of any form.", features=datasets.Features(features))

    def _split_generators(self, dl_manager: Any) -> list[datasets.SplitGenerator]:
        config = self.config
        on_hub: Fields = {} if config.sources() else {"streaming": True}
        rows = grounded_rows(
            config.data_dir, config.columns, config.boxes, images=config.images, max_rows=config.max_rows, **on_hub
        )
        if config.form == OWN:
            self.info.features = own_features(islice(rows.decode(False), SEEN))
        self._ids: dict[str, str] = {}  # of a picture -> its file
        # One without splits is all for training.
        named = {split_name(name): name for name in rows.splits} or {"train": ""}
        names = config.named_splits or named
        if config.splits is not None:
            asked = [config.splits] if isinstance(config.splits, str) else config.splits
            names = {split_name(each): names.get(split_name(each), each) for each in asked}
        elif "train" not in names and config.form not in (OWN, PICTURES):
            raise DataError(
                "no split to train on",
                found=", ".join(names),
                expected="train",
                hint="say which: data.splits={train: NAME, validation: NAME}",
            )
        generators = []
        for name, split in names.items():
            of_split = rows.of_split(split) if split else rows
            arguments = {"rows": of_split, "split": name, "key": split_name(split) or name}
            generators.append(datasets.SplitGenerator(name=datasets.NamedSplit(name), gen_kwargs=arguments))
        return generators

    def _generate_rows(self, rows: GroundedRows, split: str, key: str, report: BuildReport) -> Iterator[Fields]:
        """Ids begin with `key`, the split in the source, so that they are the same under any name of it."""
        if self.config.form == OWN:
            for number, row in enumerate(rows.decode(False)):
                report.add(ROWS)
                for picture in row.get("images") or [row.get("image")]:
                    if isinstance(picture, str) and not is_inside(Path(picture), self._roots):
                        self._outside[picture] = None
                yield own_row(row, self.info.features, f"split {split}, row {number}")
            report.about["read"] = str(rows.report).splitlines()[:2]
            return
        convert = ALL_FORMS[self.config.form][1]
        files: set[str] = set()
        for number, row in enumerate(rows.decode(False)):
            pictures = row.get("images") or ([row["image"]] if "image" in row else [])
            if len(pictures) != 1:
                problem = "rows with several pictures" if pictures else "rows without a picture"
                report.add(problem, str(number))
                continue
            path = self._file_of(pictures[0])
            files.add(path)
            file_name = os.path.splitdrive(path)[1].lstrip("/\\")
            about: Fields = {"image_id": self._id_of(row["image_id"], path), "file_name": file_name}
            about |= {name: row.get(name) for name in ("width", "height")}
            masks = sum("mask" in phrase for phrase in row["phrases"])
            if masks:
                report.add("masks, of which this task reads the box", f"{key}-{number}", masks)
            for fields in convert(row, f"{key}-{number}", report):
                report.add(ROWS)
                values = {**about, **fields}
                yield {name: values[name] for name in self.info.features}
        for reason, count in rows.report.dropped.items():
            if reason != WITHOUT_BOXES:
                report.counts.update({f"left out: {reason}": count})
        self._states[split] = self._state_of(files)
        report.about = {"read": str(rows.report).splitlines()[:2], KEPT: self._states[split]}
        if not report.counts[ROWS]:
            reasons = ", ".join(f"{count} {reason}" for reason, count in report.counts.items() if count)
            raise DataError(
                f"no row of the form of {self.config.form}",
                file=self.config.data_dir,
                where=f"split {split}",
                found=reasons or "no rows",
                expected=ALL_FORMS[self.config.form][2],
            )

    def _file_of(self, picture: Any) -> str:
        """The file of a picture; one inside of a row becomes a file, once."""
        if isinstance(picture, str):
            return os.path.abspath(picture)
        content = picture if isinstance(picture, bytes) else picture["bytes"]
        name = str(picture_digest(content))
        folder = Path(self._output_dir, KEPT)
        if not (folder / name).exists():
            write_bytes(folder / name, content)
        return os.path.join(self._place(), KEPT, name)

    def _id_of(self, image_id: str, path: str) -> str:
        """The id of a row's picture; if another picture has it already, one of its own."""
        if self._ids.setdefault(image_id, path) == path:
            return image_id
        return f"{image_id}#{hashlib.sha256(path.encode()).hexdigest()[:8]}"
