# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""Labels many captions with any number of processes and after any interruption; one batch is in memory at a time.

`dataset_scripts/pseudo_labels/writing.py` describes the files.
"""

import json
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import datasets
from PIL import Image
from tqdm import tqdm

from grounded_attention.dataset_scripts.files.errors import DataError
from grounded_attention.dataset_scripts.pseudo_labels.files import MANIFEST
from grounded_attention.dataset_scripts.pseudo_labels.rows import CaptionLabels
from grounded_attention.dataset_scripts.pseudo_labels.writing import PseudoLabelWriter, finished_manifest, part_bounds
from grounded_attention.dataset_scripts.regions.extraction_run import join_processes
from grounded_attention.utils.open_images import open_image

from .grounder import Candidates, Example, Grounder, Selection
from .phrases import PhraseSource

Row = Mapping[str, Any]
ImagePath = Callable[[Row], Path]
# A kill costs at most this many captions of each process.
CAPTIONS_PER_PART = 256


def label_captions(
    rows: datasets.Dataset,
    phrases: PhraseSource,
    grounder: Grounder,
    output: str | os.PathLike[str],
    image_path: ImagePath,
    *,
    source: Mapping[str, Any],
    selection: Selection | None = None,
    batch_size: int = 8,
    part_size: int = CAPTIONS_PER_PART,
    on_error: str = "refuse",
    progress: bool = True,
) -> dict[str, Any] | None:
    """Labels captions and writes the table. The same call continues an interrupted run."""
    state, folder, selection = join_processes(), Path(output), selection or Selection()
    # Batches are cut inside parts, and padding may change a score in its last digits.
    provenance = json.loads(
        json.dumps(
            {
                "captions": dict(source),
                "phrases": phrases.provenance,
                "grounder": grounder.provenance,
                "selection": vars(selection),
                "parts": {"captions": part_size, "batch": batch_size, "on_error": on_error},
            }
        )
    )
    finished = finished_manifest(folder, provenance) if state.process_index == 0 else None
    writer = PseudoLabelWriter(folder, provenance)
    if state.process_index == 0 and finished is None:
        writer.begin()
    state.wait_for_everyone()
    if (folder / MANIFEST).exists():
        return finished
    bounds = list(part_bounds(len(rows), part_size))
    pending = [number for number in range(len(bounds)) if not writer.is_done(number)]
    state.wait_for_everyone()  # every process has seen the same parts
    mine = pending[state.process_index :: state.num_processes]
    labeller = _Labeller(phrases, grounder, image_path, selection, batch_size, on_error)
    total = sum(end - start for start, end in (bounds[number] for number in mine))
    with tqdm(total=total, unit="caption", disable=not progress or state.process_index > 0) as bar:
        bar.set_description(_describe(state.num_processes, len(bounds) - len(pending), len(bounds)))
        for number in mine:
            part = rows.select(range(*bounds[number]))
            writer.write_part(number, list(labeller.label(part, bar)), part["text"])
    state.wait_for_everyone()
    if state.process_index > 0:
        return None
    return writer.finish(bounds)


def _describe(processes: int, done: int, parts: int) -> str:
    names = [f"process 1 of {processes}"] if processes > 1 else []
    names += [f"{done:,} of {parts:,} parts done before"] if done else []
    return f"pseudo-labels ({', '.join(names)})" if names else "pseudo-labels"


class _Labeller:
    """Labels the captions of a part, a batch at a time; the pictures of the next batch are read meanwhile."""

    def __init__(
        self,
        phrases: PhraseSource,
        grounder: Grounder,
        image_path: ImagePath,
        selection: Selection,
        batch_size: int,
        on_error: str,
    ) -> None:
        self.phrases, self.grounder, self.image_path = phrases, grounder, image_path
        self.selection, self.batch_size, self.on_error = selection, batch_size, on_error

    def label(self, rows: datasets.Dataset, bar: tqdm) -> Iterator[CaptionLabels]:
        """Yields the labels of the rows in their order."""
        for batch, pictures in self._batches(rows):
            yield from self._label(batch, pictures)
            bar.update(len(batch))

    def _batches(self, rows: datasets.Dataset) -> Iterator[tuple[list[Row], list["Future[Any] | None"]]]:
        with ThreadPoolExecutor(max_workers=2) as pool:
            waiting: tuple[list[Row], list[Future[Any] | None]] | None = None
            for start in range(0, len(rows), self.batch_size):
                batch = rows.select(range(start, min(start + self.batch_size, len(rows)))).to_list()
                ready, waiting = waiting, (batch, self._read(batch, pool))
                if ready is not None:
                    yield ready
            if waiting is not None:
                yield waiting

    def _read(self, batch: Sequence[Row], pool: ThreadPoolExecutor) -> list["Future[Any] | None"]:
        """Starts to read the pictures; captions of one image share it."""
        if not self.grounder.reads_images:
            return [None] * len(batch)
        reading: dict[Path, Future[Any]] = {}
        paths = [self.image_path(row) for row in batch]
        for path in paths:
            if path not in reading:
                reading[path] = pool.submit(open_image, path)
        return [reading[path] for path in paths]

    def _label(self, batch: Sequence[Row], pictures: Sequence["Future[Any] | None"]) -> list[CaptionLabels]:
        phrases_of_rows = self.phrases.find(batch)
        labels: list[CaptionLabels] = []
        examples: list[tuple[CaptionLabels, Example]] = []
        for row, picture, (phrases, not_found) in zip(batch, pictures, phrases_of_rows, strict=True):
            try:
                image = None if picture is None else picture.result()
                width, height = _size(row, image)
            except ValueError as error:
                labels.append(self._skip(row, error))
                continue
            labels.append(CaptionLabels(row["caption_id"], row["image_id"], width, height, [], not_found))
            if phrases:
                gold = None if row.get("phrases") is None else _gold(row, phrases)
                example = Example(row["caption_id"], row["image_id"], row["text"], list(phrases), width, height, image)
                example.gold, example.objects = gold, row.get("objects")
                examples.append((labels[-1], example))
        self._ground(examples)
        return labels

    def _ground(self, examples: list[tuple[CaptionLabels, Example]]) -> None:
        """Grounds a batch at once, or caption by caption if the batch is refused, to find the caption at fault."""
        if not examples:
            return
        try:
            grounded = self.grounder.ground([example for _, example in examples])
            for (labels, example), candidates in zip(examples, grounded, strict=True):
                labels.phrases = self._select(example, candidates)
        except ValueError as error:
            if len(examples) > 1:
                for single in examples:
                    self._ground([single])
                return
            labels, example = examples[0]
            skipped = self._skip(vars(example), error)
            labels.phrases, labels.width, labels.height = [], skipped.width, skipped.height

    def _select(self, example: Example, candidates: Sequence[Candidates]) -> list[dict[str, Any]]:
        return [
            self.selection.select(each, example, phrase)
            for phrase, each in zip(example.phrases, candidates, strict=True)
        ]

    def _skip(self, row: Mapping[str, Any], error: Exception) -> CaptionLabels:
        if self.on_error == "refuse":
            where = None if f"caption {row['caption_id']}" in str(error) else f"caption {row['caption_id']}"
            hint = "to leave such captions without labels, run again with --on-error skip; finished parts are kept"
            raise DataError(str(error), where=where, hint=hint) from error
        return CaptionLabels(row["caption_id"], row["image_id"], 0, 0)


def _size(row: Row, image: Image.Image | None) -> tuple[int, int]:
    """The size of the image, from the picture or the row, which must agree."""
    written = (row.get("width"), row.get("height"))
    if image is None:
        if None in written:
            raise DataError("the rows do not have the size of the image", where=f"caption {row['caption_id']}")
        return row["width"], row["height"]
    if None not in written and written != image.size:
        found, expected = f"{image.width} x {image.height}", f"{written[0]} x {written[1]} (of the annotation)"
        where = f"caption {row['caption_id']}, image {row['image_id']}"
        hint = "give the folder of the original images"
        raise DataError("the image has another size", where=where, found=found, expected=expected, hint=hint)
    return image.size


def _gold(row: Row, phrases: Sequence[Any]) -> list[Any] | None:
    """The annotated boxes of each phrase; None if the phrases are not the annotated ones."""
    boxes = {(phrase["start"], phrase["end"]): phrase["boxes"] for phrase in row["phrases"]}
    spans = [(phrase.start, phrase.end) for phrase in phrases]
    return [boxes[span] for span in spans] if all(span in boxes for span in spans) else None
