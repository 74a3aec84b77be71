# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""Extracts the regions of many images into one region table, with any number of processes and after any interruption.

Each process writes shards of its own into the folder of the table, and at the end the first one finishes the table
with all of them. An image is done when a shard holds it. A run distributes the images that are not done, so it may use
another number of processes than the run before.
"""

import hashlib
from collections.abc import Callable, Iterator, Sequence
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
from grounded_attention.utils.named_types import AnyPath, Fields
from grounded_attention.utils.progress import is_quiet

from .rows import Regions
from .shards import SHARDS, read_manifest
from .writer import MAX_PROBLEMS, RegionTableWriter, ShardWriter, finished_table, skip_or_refuse

# An extractor computes images of the same size together; several batches at once contain more of these.
BATCHES_PER_GROUP = 4
# The default of ten minutes is too short for a long list of images.
PROCESS_TIMEOUT = timedelta(days=7)


Group = list[tuple[ImageFile, "Future[Any]"]]


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
    try:
        mine = pending[state.process_index :: state.num_processes]
        worker = _Worker(extractor, writer, on_error)
        with tqdm(total=len(mine), unit="image", disable=not progress or table is None or is_quiet()) as bar:
            bar.set_description(_describe(state.num_processes, done))
            for group in _read_ahead(mine, open_image, extractor.batch_size * BATCHES_PER_GROUP, workers):
                worker.work(group)
                bar.update(len(group))
                bar.set_postfix(skipped=len(worker.problems), refresh=False)
        writer.flush()
        problems = gather_object(worker.problems)
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


def _read_ahead(
    images: Sequence[ImageFile], open_image: Callable[[Path], Any], size: int, workers: int
) -> Iterator[Group]:
    """Yields groups of images; the next group is read during the computation."""
    with ThreadPoolExecutor(max_workers=max(1, workers)) as pool:
        reading: Group = []
        for start in range(0, len(images) + size, size):
            group = reading
            reading = [(image, pool.submit(open_image, image.path)) for image in images[start : start + size]]
            if group:
                yield group


class _Worker:
    """Extracts and writes the images of one process."""

    def __init__(self, extractor: Extractor, writer: ShardWriter, on_error: str) -> None:
        self.extractor = extractor
        self.writer = writer
        self.on_error = on_error
        self.problems: list[str] = []

    def work(self, group: Group) -> None:
        opened = []
        for image, future in group:
            try:
                opened.append((image, future.result()))
            except ValueError as error:
                self._skip(image, error)
        self._extract(opened)

    def _extract(self, images: list[tuple[ImageFile, Any]]) -> None:
        """Extracts a group at once, or image by image if the group is refused, to find the broken image."""
        if not images:
            return
        try:
            extracted = self.extractor.extract([picture for _, picture in images], [i.image_id for i, _ in images])
        except ValueError as error:
            if len(images) == 1:
                return self._skip(images[0][0], error)
            for single in images:
                self._extract([single])
            return
        for (image, _), found in zip(images, extracted, strict=True):
            arrays = {name: getattr(found, name) for name in ("boxes", "features", "classes", "scores", "class_probs")}
            try:
                self.writer.write(Regions(image.image_id, found.width, found.height, **arrays))
            except DataError as error:
                self._skip(image, error)

    def _skip(self, image: ImageFile, error: Exception) -> None:
        problem = DataError(str(error), file=None if str(image.path) in str(error) else image.path)
        skip_or_refuse(
            problem, self.on_error, self.problems, "run again with --on-error skip; finished images are kept"
        )
