# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""Extracts the regions of many images into one region table, with any number of processes and after any interruption.

Each process writes shards of its own into the folder of the table, and at the end the first one finishes the table
with all of them. An image is done when a shard holds it. A run distributes the images that are not done, so it may use
another number of processes than the run before.
"""

import hashlib
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from datetime import timedelta
from pathlib import Path
from typing import Any, Protocol

import torch
from accelerate import PartialState
from accelerate.utils import gather_object
from tqdm import tqdm

from grounded_attention.dataset_scripts.files.errors import DataError
from grounded_attention.dataset_scripts.files.image_files import ImageFile
from grounded_attention.dataset_scripts.files.manifests import describe_changes

from .files import KIND, MANIFEST, PARTIAL, SHARDS, read_manifest
from .rows import Regions
from .writer import RegionTableWriter, ShardWriter

# An extractor computes images of the same size together; several batches at once contain more of these.
BATCHES_PER_GROUP = 4
# The default of ten minutes is too short for a long list of images.
PROCESS_TIMEOUT = timedelta(days=7)
# People read the summary: the count of skipped images is exact, the list has at most this many.
MAX_PROBLEMS = 1000


class Extractor(Protocol):
    """Finds the regions of images, for example `grounded_attention.processing.region_extraction.RegionExtractor`."""

    provenance: dict[str, Any]
    batch_size: int

    def extract(self, images: Sequence[Any], image_ids: Sequence[str] | None = None) -> list[Any]:
        """Finds the regions of images."""


def extract_table(
    images: Sequence[ImageFile],
    extractor: Extractor,
    output: str | os.PathLike[str],
    open_image: Callable[[Path], Any],
    *,
    source: str = "",
    on_error: str = "refuse",
    workers: int = 4,
    progress: bool = True,
) -> dict[str, Any] | None:
    """Writes the regions of images into a region table. The same call continues an interrupted run."""
    state, folder = join_processes(), Path(output)
    provenance = _provenance(images, extractor, source)
    finished = _finished_manifest(folder, provenance)
    if finished is not None:
        return finished if state.process_index == 0 else None
    table = _begin(folder, provenance) if state.process_index == 0 else None
    state.wait_for_everyone()
    writer = ShardWriter(folder, state.process_index) if table is None else table
    pending = [(row, image) for row, image in enumerate(images, start=1) if image.image_id not in writer.written]
    done = len(writer.written)
    state.wait_for_everyone()  # until all know what is done
    try:
        mine = pending[state.process_index :: state.num_processes]
        worker = _Worker(extractor, writer, open_image, on_error, workers)
        with tqdm(total=len(mine), unit="image", disable=not progress or table is None) as bar:
            bar.set_description(_describe(state.num_processes, done))
            worker.work(mine, bar)
        writer.flush()
        problems = gather_object(worker.problems)
    except BaseException:
        writer.flush() if table is None else table.close()
        raise
    if table is None:
        return None
    counts = {"given": len(images), "images": len(images) - len(problems), "skipped": len(problems)}
    return _finish(table, {**counts, "problems": problems[:MAX_PROBLEMS]})


def join_processes(cpu: bool = False) -> PartialState:
    """Joins the processes of a launch (accelerate, torchrun); without a launch, this process is the only one."""
    return PartialState(cpu=cpu or not torch.cuda.is_available(), timeout=PROCESS_TIMEOUT)


def _describe(processes: int, done: int) -> str:
    names = [f"process 1 of {processes}"] if processes > 1 else []
    names += [f"{done:,} done before"] if done else []
    return f"regions ({', '.join(names)})" if names else "regions"


def _provenance(images: Sequence[ImageFile], extractor: Extractor, source: str) -> dict[str, Any]:
    digest = hashlib.blake2b(digest_size=16)
    for image_id in sorted(image.image_id for image in images):
        digest.update(image_id.encode() + b"\0")
    listed = {"source": source, "count": len(images), "ids": digest.hexdigest()}
    return {"format": "images", "images": listed, **extractor.provenance}


def _finished_manifest(folder: Path, provenance: Mapping[str, Any]) -> dict[str, Any] | None:
    """Returns the manifest of a finished table with this provenance, or None if there is no finished table."""
    if not (folder / MANIFEST).exists():
        return None
    manifest = read_manifest(folder)
    if manifest["provenance"] != provenance:
        hint = "choose another folder, or remove this one"
        raise DataError(f"a finished {_describe_changes(manifest, provenance)}", file=folder, hint=hint)
    return manifest


def _describe_changes(manifest: Mapping[str, Any], provenance: Mapping[str, Any]) -> str:
    changes = describe_changes(manifest["provenance"], provenance)
    return f"region table of another source is in this folder; it differs in {changes}"


def _begin(folder: Path, provenance: dict[str, Any]) -> RegionTableWriter:
    """Opens the writer of the table itself. It holds the lock and knows the rows of all shards."""
    partial = folder / PARTIAL
    if partial.exists() and (begun := KIND.read(partial))["provenance"] != provenance:
        if any(folder.glob(SHARDS)):
            hint = "use the same images and options, or remove the folder"
            raise DataError(f"an unfinished {_describe_changes(begun, provenance)}", file=folder, hint=hint)
        # No image is done yet, so nothing is lost.
        partial.unlink()
    return RegionTableWriter(folder, provenance, resume=True)


class _Worker:
    """Reads, extracts and writes the images of one process."""

    def __init__(
        self,
        extractor: Extractor,
        writer: ShardWriter,
        open_image: Callable[[Path], Any],
        on_error: str,
        workers: int,
    ) -> None:
        self.extractor, self.writer, self.open_image = extractor, writer, open_image
        self.on_error, self.workers = on_error, workers
        self.problems: list[str] = []

    def work(self, images: Sequence[tuple[int, ImageFile]], bar: tqdm) -> None:
        """Processes images in groups; the next group is read during the computation."""
        for group in self._groups(images):
            opened = [
                (row, image, picture)
                for row, image, future in group
                if (picture := self._read(image, future)) is not None
            ]
            self._extract(opened)
            bar.update(len(group))
            bar.set_postfix(skipped=len(self.problems), refresh=False)

    def _groups(self, images: Sequence[tuple[int, ImageFile]]) -> Iterator[list[tuple[int, ImageFile, "Future[Any]"]]]:
        size = self.extractor.batch_size * BATCHES_PER_GROUP
        with ThreadPoolExecutor(max_workers=max(1, self.workers)) as pool:
            reading: list[tuple[int, ImageFile, Future[Any]]] = []
            for start in range(0, len(images) + size, size):
                group = reading
                reading = [(row, i, pool.submit(self.open_image, i.path)) for row, i in images[start : start + size]]
                if group:
                    yield group

    def _read(self, image: ImageFile, future: "Future[Any]") -> Any:
        try:
            return future.result()
        except ValueError as error:
            self._skip(image, error)
            return None

    def _extract(self, images: list[tuple[int, ImageFile, Any]]) -> None:
        """Extracts a group at once, or image by image if the group is refused, to find the broken image."""
        if not images:
            return
        try:
            extracted = self.extractor.extract([picture for *_, picture in images], [i.image_id for _, i, _ in images])
        except ValueError as error:
            if len(images) == 1:
                self._skip(images[0][1], error)
            else:
                for single in images:
                    self._extract([single])
            return
        for (row, image, _), regions in zip(images, extracted, strict=True):
            self._write(row, image, regions)

    def _write(self, row: int, image: ImageFile, regions: Any) -> None:
        arrays = {name: getattr(regions, name) for name in ("boxes", "features", "classes", "scores", "class_probs")}
        try:
            self.writer.write(Regions(image.image_id, regions.width, regions.height, **arrays), source_row=row)
        except DataError as error:
            self._skip(image, error)

    def _skip(self, image: ImageFile, error: Exception) -> None:
        problem = DataError(str(error), file=None if str(image.path) in str(error) else image.path)
        if self.on_error == "refuse":
            hint = "to skip such images, run again with --on-error skip; finished images are kept"
            raise DataError(str(problem), hint=hint) from error
        self.problems.append(str(problem))


def _finish(table: RegionTableWriter, summary: dict[str, Any]) -> dict[str, Any]:
    with table:
        if not any(table.path.glob(SHARDS)):
            first = next(iter(summary["problems"]), "there are none")
            raise DataError("no usable image", file=table.path, hint=f"the first problem: {first}")
        table.summary = summary
    return read_manifest(table.path)
