# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""Regions of many images into one region table, by any number of processes, whatever interrupts them.

While it runs, the folder of the table looks so:

    regions.partial.json    provenance of the table; locked by the first process
    parts/00000/ ...        an unfinished region table for each process; every row is on its way to the disk at once
    regions-*.arrow         shards of parts, moved here when all images are done, just before the table is finished

An image is done when a whole row of it stands in a shard, wherever that is. A run begins by collecting what is done
and deals the rest out anew, so it may have another number of processes than the run before it. Shards are moved,
never copied, so a row is in one place at every moment.
"""

import hashlib
import os
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import asdict, dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Any, Protocol

import torch
from accelerate import PartialState
from accelerate.utils import gather_object
from tqdm import tqdm

from grounded_attention.dataset_scripts.files.errors import DataError
from grounded_attention.dataset_scripts.files.image_files import ImageFile
from grounded_attention.utils.whole_files import synchronise_folder

from .files import MANIFEST, PARTIAL, SHARDS, read_json, shard_name
from .table import Regions, RegionTableWriter

PARTS = "parts"
# Images of one size are computed together, so an extractor gets several batches at once to find them in.
BATCHES_AT_ONCE = 4
# The usual ten minutes are short for a long list of images.
PATIENCE = timedelta(days=7)
# A summary is read by people; the count of images left out is exact, the list ends here.
LISTED = 1000


class Extractor(Protocol):
    """What finds the regions, for example `grounded_attention.processing.region_extraction.RegionExtractor`."""

    provenance: dict[str, Any]
    batch_size: int

    def extract(self, images: Sequence[Any], image_ids: Sequence[str] | None = None) -> list[Any]:
        """An object an image with `width`, `height`, `boxes`, `features`, `classes`, `scores`, `class_probs`.

        Raises:
            ValueError: an image that cannot be used.
        """


@dataclass
class ExtractionSummary:
    """What a run did: images given, images in the table, images left out, and up to 1,000 messages about those."""

    given: int = 0
    images: int = 0
    skipped: int = 0
    problems: list[str] = field(default_factory=list)


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
    """Writes the regions of images into a region table; the same call goes on with an interrupted one.

    Every process of a launch makes the same call. A finished table of the same provenance is left as it is.

    Args:
        images: The images; ids are distinct.
        extractor: Finds boxes and features; the same in every process.
        output: Folder of the table, seen by all processes.
        open_image: Reads an image; its ValueErrors are those of a broken one.
        source: Name of the folder or list of the images, for the provenance.
        on_error: "refuse" ends at the first broken image, "skip" leaves such images out. Those that an interrupted
            run left out are tried again.
        workers: Threads that read images ahead.
        progress: Show a progress bar on standard error.

    Returns:
        The manifest of the table (`RegionTable.info`) in the first process, None in the others; its "summary" counts
        and lists the images left out.

    Raises:
        DataError: a broken image (with "refuse"), no usable image, or a folder that holds a table of other images,
            another detector, feature model or other options.
    """
    state, folder = join_processes(), Path(output)
    provenance = _provenance(images, extractor, source)
    finished = _finished(folder, provenance)
    if finished is not None:
        return finished if state.process_index == 0 else None
    table = _begin(folder, provenance) if state.process_index == 0 else None
    state.wait_for_everyone()
    try:
        with _Part(folder, provenance, state) as part:
            done = set(gather_object([*part.done, *(table.written if table else ())]))
            pending = [(row, image) for row, image in enumerate(images, start=1) if image.image_id not in done]
            mine = pending[state.process_index :: state.num_processes]
            worker = _Worker(extractor, part.writer, open_image, on_error, workers)
            with tqdm(total=len(mine), unit="image", disable=not progress or table is None) as bar:
                bar.set_description(_describe(state.num_processes, len(done)))
                worker.work(mine, bar)
        problems = gather_object(worker.problems)
    finally:
        if table is not None:
            table.close()
    if table is None:
        return None
    summary = ExtractionSummary(len(images), len(images) - len(problems), len(problems), problems[:LISTED])
    return _finish(folder, provenance, summary)


def join_processes(cpu: bool = False) -> PartialState:
    """The processes of a launch (accelerate, torchrun), which wait for the slowest however long; or this one alone.

    The first call decides whether they compute on the CPU; without a GPU they do.
    """
    return PartialState(cpu=cpu or not torch.cuda.is_available(), timeout=PATIENCE)


def _describe(processes: int, done: int) -> str:
    names = [f"process 1 of {processes}"] if processes > 1 else []
    names += [f"{done:,} done before"] if done else []
    return f"regions ({', '.join(names)})" if names else "regions"


def _provenance(images: Sequence[ImageFile], extractor: Extractor, source: str) -> dict[str, Any]:
    digest = hashlib.blake2b(digest_size=16)
    for image_id in sorted(image.image_id for image in images):
        digest.update(image_id.encode() + b"\0")
    given = {"source": source, "count": len(images), "ids": digest.hexdigest()}
    return {"format": "images", "images": given, **extractor.provenance}


def _finished(folder: Path, provenance: Mapping[str, Any]) -> dict[str, Any] | None:
    """The manifest of a finished table of this provenance; None where there is no finished table."""
    manifest = folder / MANIFEST
    if not manifest.exists():
        return None
    found = read_json(manifest)
    if found["provenance"] != provenance:
        hint = "name another folder, or remove this one"
        raise DataError(f"a finished {_other(found, provenance)}", file=folder, hint=hint)
    shutil.rmtree(folder / PARTS, ignore_errors=True)
    return found


def _other(manifest: Mapping[str, Any], provenance: Mapping[str, Any]) -> str:
    """Says in which fields a provenance differs, with both values: what the user changed."""
    found, wanted = _flat(manifest["provenance"]), _flat(provenance)
    keys = [key for key in {**found, **wanted} if found.get(key) != wanted.get(key)]
    changes = ", ".join(f"{key} ({found.get(key)!r:.60}, now {wanted.get(key)!r:.60})" for key in keys[:4])
    return f"region table of another source stands here, which differs in {changes}"


def _flat(value: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for key, item in value.items():
        flat.update(_flat(item, f"{prefix}{key}.") if isinstance(item, Mapping) else {prefix + key: item})
    return flat


def _begin(folder: Path, provenance: dict[str, Any]) -> RegionTableWriter:
    """The table's own writer, which only holds the lock and knows the rows of shards moved already."""
    partial = folder / PARTIAL
    if partial.exists() and (begun := read_json(partial))["provenance"] != provenance:
        if any(folder.rglob(SHARDS)):
            hint = "go on with the same images and options, or remove the folder"
            raise DataError(f"an unfinished {_other(begun, provenance)}", file=folder, hint=hint)
        # Nothing is lost: no image was done.
        shutil.rmtree(folder / PARTS, ignore_errors=True)
        partial.unlink()
    return RegionTableWriter(folder, provenance, resume=True)


class _Part:
    """The part of the table that this process writes, and the ids in all parts that fall to it to look through."""

    def __init__(self, folder: Path, provenance: dict[str, Any], state: PartialState) -> None:
        self.done: list[str] = []
        own = folder / PARTS / f"{state.process_index:05d}"
        # Parts of an earlier run with more processes are dealt out, each to one process.
        numbered = [path for path in sorted((folder / PARTS).glob("*")) if path.name.isdigit()]
        left = [path for path in numbered if int(path.name) >= state.num_processes]
        for path in left[state.process_index :: state.num_processes]:
            writer = RegionTableWriter(path, provenance, resume=True)
            self.done += writer.written
            writer.close()
        self.writer = RegionTableWriter(own, provenance, resume=True)
        self.done += self.writer.written

    def __enter__(self) -> "_Part":
        return self

    def __exit__(self, *error: object) -> None:
        self.writer.close()  # without `finish`: a part stays unfinished, its rows go into the table


class _Worker:
    """Reads, extracts and writes the images of one process."""

    def __init__(
        self,
        extractor: Extractor,
        writer: RegionTableWriter,
        open_image: Callable[[Path], Any],
        on_error: str,
        workers: int,
    ) -> None:
        self.extractor, self.writer, self.open_image = extractor, writer, open_image
        self.on_error, self.workers = on_error, workers
        self.problems: list[str] = []

    def work(self, images: Sequence[tuple[int, ImageFile]], bar: tqdm) -> None:
        """Does the images, given with their rows, in groups; while one is computed the next is read."""
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
        size = self.extractor.batch_size * BATCHES_AT_ONCE
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
            self._leave_out(image, error)
            return None

    def _extract(self, images: list[tuple[int, ImageFile, Any]]) -> None:
        """Extracts a group at once, or one by one where an image of it is refused, to know which."""
        if not images:
            return
        try:
            found = self.extractor.extract([picture for *_, picture in images], [i.image_id for _, i, _ in images])
        except ValueError as error:
            if len(images) == 1:
                self._leave_out(images[0][1], error)
            else:
                for single in images:
                    self._extract([single])
            return
        for (row, image, _), regions in zip(images, found, strict=True):
            self._write(row, image, regions)

    def _write(self, row: int, image: ImageFile, found: Any) -> None:
        arrays = {name: getattr(found, name) for name in ("boxes", "features", "classes", "scores", "class_probs")}
        try:
            self.writer.write(Regions(image.image_id, found.width, found.height, **arrays), source_row=row)
        except DataError as error:
            self._leave_out(image, error)

    def _leave_out(self, image: ImageFile, error: Exception) -> None:
        problem = DataError(str(error), file=None if str(image.path) in str(error) else image.path)
        if self.on_error == "refuse":
            hint = "to leave such images out, run again with --on-error skip; what is done stays done"
            raise DataError(str(problem), hint=hint) from error
        self.problems.append(str(problem))


def _finish(folder: Path, provenance: dict[str, Any], summary: ExtractionSummary) -> dict[str, Any]:
    """Moves the shards of all parts into the table and finishes it, which reads every row once more."""
    numbers = [int(shard.stem.split("-")[1]) for shard in folder.glob(SHARDS)]
    number = max(numbers, default=-1) + 1
    for shard in sorted((folder / PARTS).glob(f"*/{SHARDS}")):
        os.rename(shard, folder / shard_name(number))
        number += 1
    synchronise_folder(folder)
    writer = RegionTableWriter(folder, provenance, resume=True)
    if not writer.written:
        writer.close()
        first = next(iter(summary.problems), "there are none")
        raise DataError("no usable image", file=folder, hint=f"the first problem: {first}")
    with writer:
        writer.summary = asdict(summary)
    shutil.rmtree(folder / PARTS, ignore_errors=True)
    return read_json(folder / MANIFEST)
