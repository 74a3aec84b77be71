# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""Extracts the regions of many images into one region table, with any number of processes and after any interruption.

Each process writes shards of its own into the folder of the table, and at the end the first one finishes the table
with all of them. An image is done when a shard holds it. A run distributes the images that are not done, so it may use
another number of processes than the run before.
"""

import hashlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from datetime import timedelta
from pathlib import Path
from typing import Any, Protocol

import pyarrow as pa
import torch
from accelerate import PartialState
from accelerate.utils import gather_object
from tqdm import tqdm

from grounded_attention.dataset_scripts.files.errors import DataError
from grounded_attention.dataset_scripts.files.image_files import ImageFile
from grounded_attention.dataset_scripts.files.jobs import Job
from grounded_attention.utils.named_types import AnyPath, Fields, Row
from grounded_attention.utils.open_images import open_image
from grounded_attention.utils.plain_text import check_one_of
from grounded_attention.utils.progress import is_quiet

from .rows import ARRAY_TYPES, HEAD_TYPES, Regions
from .shards import SHARDS, read_manifest
from .writer import MAX_PROBLEMS, RegionTableWriter, ShardWriter, finished_table, skip_or_refuse

# An extractor computes images of the same size together; several batches at once contain more of these.
BATCHES_PER_GROUP = 4
# The default of ten minutes is too short for a long list of images.
PROCESS_TIMEOUT = timedelta(days=7)
ON_ERROR = ("refuse", "skip")


Group = list[tuple[Row, "Future[Any]"]]


class Extractor(Protocol):
    """Finds the regions of images, for example `grounded_attention.processing.region_extraction.RegionExtractor`."""

    provenance: Fields
    batch_size: int

    def extract(self, images: Sequence[Any], image_ids: Sequence[str] | None = None) -> list[Any]:
        """Finds the regions of images."""


def extract_table(
    images: Sequence[ImageFile],
    extractor: Extractor,
    output: AnyPath,
    open_image: Callable[[Path], Any],
    *,
    source: str = "",
    on_error: str = "refuse",
    workers: int = 4,
    progress: bool = True,
) -> Fields | None:
    """Writes the regions of images into a region table. The same call continues an interrupted run."""
    job = ExtractRegions(lambda: extractor, open_image, on_error, workers)
    state = join_processes()
    folder = Path(output)
    provenance = _provenance(images, extractor, source)
    finished = finished_table(folder, provenance)
    if finished is not None:
        if state.process_index == 0:
            return finished
        return None
    table = RegionTableWriter(folder, provenance, resume=True) if state.process_index == 0 else None
    state.wait_for_everyone()
    writer = ShardWriter(folder, state.process_index) if table is None else table
    pending = [image for image in images if image.image_id not in writer.written]
    done = len(writer.written)
    state.wait_for_everyone()  # until all know what is done
    problems: list[str] = []
    hint = "run again with --on-error skip; finished images are kept"
    try:
        mine = pending[state.process_index :: state.num_processes]
        rows = [{"image_id": image.image_id, "image": image.path} for image in mine]
        with tqdm(total=len(mine), unit="image", disable=not progress or table is None or is_quiet()) as bar:
            bar.set_description(_describe(state.num_processes, done))
            for row, found in zip(rows, job.find(rows), strict=True):
                try:
                    _write(writer, found)
                except DataError as error:
                    skip_or_refuse(_problem(row, error), on_error, problems, hint)
                bar.update()
                bar.set_postfix(skipped=len(problems), refresh=False)
        writer.flush()
        problems = gather_object(problems)
    except BaseException:
        writer.flush() if table is None else table.close()
        raise
    if table is None:
        return None
    with table:
        if not any(folder.glob(SHARDS)):
            first = next(iter(problems), "there are none")
            raise DataError("no usable image", file=folder, hint=f"the first problem: {first}")
        counts = {"given": len(images), "images": len(images) - len(problems), "skipped": len(problems)}
        table.summary = {**counts, "problems": problems[:MAX_PROBLEMS]}
    return read_manifest(folder)


def _write(writer: ShardWriter, found: Regions | DataError) -> None:
    if isinstance(found, DataError):
        raise found
    writer.write(found)


def join_processes(cpu: bool = False) -> PartialState:
    """Joins the processes of a launch (accelerate, torchrun); without a launch, this process is the only one."""
    return PartialState(cpu=cpu or not torch.cuda.is_available(), timeout=PROCESS_TIMEOUT)


def _describe(processes: int, done: int) -> str:
    names = [f"process 1 of {processes}"] if processes > 1 else []
    names += [f"{done:,} done before"] if done else []
    if names:
        return f"regions ({', '.join(names)})"
    return "regions"


def _provenance(images: Sequence[ImageFile], extractor: Extractor, source: str) -> Fields:
    digest = hashlib.blake2b(digest_size=16)
    for image_id in sorted(image.image_id for image in images):
        digest.update(image_id.encode() + b"\0")
    listed = {"source": source, "count": len(images), "ids": digest.hexdigest()}
    return {"format": "images", "images": listed, **extractor.provenance}


class ExtractRegions(Job):
    """Finds the regions of pictures: the job of [`extract_table`], for any engine.

    In: `image_id` (a text) and `image` (a path, bytes, a picture, or what `datasets` stores). Out: the same number of
    rows, each with `image_id`, the size `width` and `height` in pixels and the arrays of [`Regions`] as lists, `boxes`
    (n, 4) in [0, 1], or with the `problem` of a picture that cannot be used. [`Regions.from_row`] reads one again.

    Args:
        load (`Callable[[], Extractor]`): makes the detector in a process, such as a `RegionExtractor`.
        open_image (`Callable`, *optional*): opens an `image` as a picture in RGB.
        on_error (`str`, *optional*, defaults to `"refuse"`): `"skip"` gives a picture that cannot be used a row with
            its `problem`, `"refuse"` raises it.
        workers (`int`, *optional*, defaults to 4): threads that open pictures.
    """

    texts = ("image_id",)
    schema = pa.schema({**HEAD_TYPES, **ARRAY_TYPES, "problem": pa.string()})

    def __init__(
        self,
        load: Callable[[], Extractor],
        open_image: Callable[[Any], Any] = open_image,
        on_error: str = "refuse",
        workers: int = 4,
    ) -> None:
        super().__init__(load)
        check_one_of(on_error, ON_ERROR, "on_error=")
        self.open_image = open_image
        self.on_error = on_error
        self.workers = workers

    def find(self, rows: Sequence[Row]) -> Iterator[Regions | DataError]:
        """Yields the regions of each picture, or why it cannot be used; the next ones are read meanwhile."""
        size = self.made.batch_size * BATCHES_PER_GROUP
        with ThreadPoolExecutor(max_workers=max(1, self.workers)) as pool:
            reading: Group = []
            for start in range(0, len(rows) + size, size):
                group = reading
                reading = [(row, pool.submit(self.open_image, row.get("image"))) for row in rows[start : start + size]]
                yield from self._find(group)

    def work(self, rows: Sequence[Row]) -> Iterator[Iterable[Row]]:
        for row, found in zip(rows, self.find(rows), strict=True):
            if isinstance(found, Regions):
                yield [found.to_row()]
            elif self.on_error == "refuse":
                raise found
            else:
                yield [{"image_id": row["image_id"], "problem": str(found)}]

    def _find(self, group: Group) -> Iterator[Regions | DataError]:
        pictures = [self._picture(row, reading) for row, reading in group]
        usable = []
        for (row, _), picture in zip(group, pictures, strict=True):
            if not isinstance(picture, DataError):
                usable.append((row, picture))
        try:
            several = iter(self._extract(usable))
        except ValueError:  # one by one, to find the picture at fault
            several = map(self._find_one, usable)
        for picture in pictures:
            yield picture if isinstance(picture, DataError) else next(several)

    def _picture(self, row: Row, reading: "Future[Any]") -> Any:
        try:
            return reading.result()
        except ValueError as error:
            return _problem(row, error)

    def _find_one(self, usable: tuple[Row, Any]) -> Regions | DataError:
        try:
            [found] = self._extract([usable])
        except ValueError as error:
            return _problem(usable[0], error)
        return found

    def _extract(self, usable: Sequence[tuple[Row, Any]]) -> list[Regions | DataError]:
        if not usable:
            return []
        ids = [row["image_id"] for row, _ in usable]
        regions: list[Regions | DataError] = []
        for image_id, found in zip(ids, self.made.extract([picture for _, picture in usable], ids), strict=True):
            arrays = {name: getattr(found, name) for name in ("boxes", "features", "classes", "scores", "class_probs")}
            regions.append(Regions(image_id, found.width, found.height, **arrays))
        return regions


def _problem(row: Row, error: ValueError) -> DataError:
    image = row.get("image")
    if not isinstance(image, (str, Path)):
        return DataError(str(error), where=f"image {row['image_id']}")
    return DataError(str(error), file=None if str(image) in str(error) else image)
