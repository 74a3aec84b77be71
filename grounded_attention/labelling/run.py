# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""Labels many captions in parts of a fixed number of captions (`files/manifests.py`); one batch at a time."""

import hashlib
import json
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import nullcontext
from itertools import pairwise
from pathlib import Path

import datasets
import pyarrow as pa
from PIL import Image
from tqdm import tqdm

from grounded_attention.dataset_scripts.files.errors import DataError, refuse_if
from grounded_attention.dataset_scripts.files.jobs import Job
from grounded_attention.dataset_scripts.files.manifests import (
    join_parts,
    make_parts,
    refuse_changes,
    refuse_strays,
    sha256,
)
from grounded_attention.dataset_scripts.regions.extraction_run import ON_ERROR, join_processes
from grounded_attention.tasks.caption_rows import KEPT, to_rows
from grounded_attention.utils.named_types import AnyPath, Columns, Fields, Row, Size
from grounded_attention.utils.open_images import open_image
from grounded_attention.utils.plain_text import check_one_of
from grounded_attention.utils.processes import folder_lock
from grounded_attention.utils.whole_files import delete_folder, make_folder

from . import MANIFEST
from .grounder import Example, Grounder, Selection
from .labels import FILE, KIND, SCHEMA, PseudoLabels
from .phrases import PhraseSource

ImagePath = Callable[[Row], Path]
PARTS = "parts"
# A kill costs at most this many captions of each process.
CAPTIONS_PER_PART = 256
BATCH = 8  # captions grounded together


def caption_rows(splits: Mapping[str, datasets.Dataset], limit: int | None = None) -> datasets.Dataset:
    """Makes one row per caption of all splits, the first `limit`, in their order."""
    rows = datasets.concatenate_datasets(
        [to_rows(split, grounded=True, kept=(*KEPT, "objects")) for split in splits.values()]
    )
    if limit is not None:
        rows = rows.select(range(min(limit, len(rows))))
    refuse_if(not len(rows), "the splits have no captions", found=list(splits))
    caption_id, times = Counter(rows["caption_id"]).most_common(1)[0]
    refuse_if(
        times > 1, "two captions have the same id", found=caption_id, hint="label the splits in different folders"
    )
    return rows


def captions_digest(rows: datasets.Dataset) -> str:
    """Computes a hash of ids, images and texts of all captions."""
    digest = hashlib.blake2b(digest_size=16)
    for batch in rows.select_columns(["caption_id", "image_id", "text"]).iter(batch_size=1000):
        for values in zip(*batch.values(), strict=True):
            digest.update("\0".join(values).encode() + b"\n")
    return digest.hexdigest()


def label_captions(
    rows: datasets.Dataset,
    phrases: PhraseSource,
    grounder: Grounder,
    output: AnyPath,
    image_path: ImagePath,
    *,
    source: Columns,
    selection: Selection | None = None,
    batch_size: int = BATCH,
    part_size: int = CAPTIONS_PER_PART,
    on_error: str = "refuse",
    progress: bool = True,
) -> PseudoLabels | None:
    """Labels captions and writes the rows, which the first process returns. The same call continues an interrupted
    run.
    """
    state = join_processes()
    folder = Path(output)
    selection = selection or Selection()
    first = state.process_index == 0
    settings = {
        "captions": dict(source),
        "phrases": phrases.provenance,
        "grounder": grounder.provenance,
        "selection": vars(selection),
        # Batches are cut inside parts, and padding may change a score in its last digits.
        "parts": {"captions": part_size, "batch": batch_size, "on_error": on_error},
    }
    provenance = json.loads(json.dumps(settings))
    make_folder(folder)
    with folder_lock(folder, doing="labels captions here", hint="wait for it") if first else nullcontext():
        if first:
            _begin(folder, provenance)
        state.wait_for_everyone()
        if not (folder / MANIFEST).exists():
            job = LabelCaptions(lambda: grounder, phrases, image_path, selection, batch_size, on_error)

            def label(places: range, bar: tqdm) -> pa.Table:
                return job.table(rows.select(places).to_list(), bar.update)

            named = {"title": "pseudo-labels", "unit": "caption"}
            parts = make_parts(folder / PARTS, len(rows), part_size, label, state, **named, progress=progress)
            if first:
                _join_parts(folder, parts, provenance)
        if first:
            (folder / KIND.partial).unlink(missing_ok=True)
            delete_folder(folder / PARTS)
    if first:
        return PseudoLabels(folder)
    return None


def _begin(folder: Path, provenance: Fields) -> None:
    """Begins labels in a folder, or continues those that are there, if they are of the same source."""
    partial = folder / KIND.partial
    if (folder / MANIFEST).exists():
        state = "finished"
        begun = PseudoLabels(folder).info
    elif any(folder.glob(f"{PARTS}/*.parquet")):
        state = "unfinished"
        begun = KIND.read(partial)
    else:  # nothing is lost
        refuse_strays([] if partial.exists() else folder.glob(FILE))
        make_folder(folder / PARTS)
        KIND.write(partial, {"provenance": provenance})
        return
    what = f"the folder holds {state} pseudo-labels"
    refuse_changes(begun["provenance"], provenance, folder, what, "choose another folder, or remove this one")


def _join_parts(folder: Path, parts: Mapping[Path, range], provenance: Fields) -> None:
    """Joins the parts, and writes the manifest."""
    path = folder / FILE
    join_parts(path, parts, SCHEMA, row_each=True)
    shard = {"file": FILE, "bytes": path.stat().st_size, "sha256": sha256(path)}
    KIND.write(folder / MANIFEST, {"provenance": provenance, "shards": [shard]})


class LabelCaptions(Job):
    """Grounds the phrases of captions: the job of [`label_captions`], for any engine.

    In: `caption_id`, `image_id` and `text`, with the picture as `image` unless there is `image_path`; `width` and
    `height` of the annotation, if they are known. Out: a row for each caption, as [`PseudoLabels`] has them. The
    pictures of the next captions are read meanwhile.

    Args:
        load (`Callable[[], Grounder]`): makes the grounder in a process.
        phrases (`PhraseSource`): finds the phrases.
        image_path (`Callable`, *optional*): the file of the picture of a row.
        selection (`Selection`, *optional*): which boxes are kept.
        batch_size (`int`, *optional*, defaults to 8): captions that are grounded together.
        on_error (`str`, *optional*, defaults to `"refuse"`): `"skip"` leaves a caption that cannot be used without
            labels, `"refuse"` raises it.
    """

    schema = SCHEMA
    texts = ("caption_id", "image_id", "text")

    def __init__(
        self,
        load: Callable[[], Grounder],
        phrases: PhraseSource,
        image_path: ImagePath | None = None,
        selection: Selection | None = None,
        batch_size: int = BATCH,
        on_error: str = "refuse",
    ) -> None:
        super().__init__(load)
        check_one_of(on_error, ON_ERROR, "on_error=")
        if batch_size < 1:
            raise ValueError(f"batch_size={batch_size}: expected 1 or more")
        self.phrases = phrases
        self.image_path = image_path
        self.selection = selection or Selection()
        self.batch_size = batch_size
        self.on_error = on_error

    def work(self, rows: Sequence[Row]) -> Iterator[Iterable[Row]]:
        batches = [rows[start : start + self.batch_size] for start in range(0, len(rows), self.batch_size)]
        with ThreadPoolExecutor(max_workers=2) as pool:
            following = self._read(batches[0], pool) if batches else []
            for batch, next_batch in pairwise([*batches, []]):
                pictures = following
                following = self._read(next_batch, pool)
                for labels in self._label(batch, pictures):
                    yield [labels]

    def _read(self, batch: Sequence[Row], pool: ThreadPoolExecutor) -> list["Future[Image.Image] | None"]:
        """Starts to read the pictures; captions of one image share it."""
        if not self.made.reads_images:
            return [None] * len(batch)
        if self.image_path is None:
            return [pool.submit(open_image, row.get("image")) for row in batch]
        paths = [self.image_path(row) for row in batch]
        reading = {path: pool.submit(open_image, path) for path in dict.fromkeys(paths)}
        return [reading[path] for path in paths]

    def _label(self, batch: Sequence[Row], pictures: Sequence["Future[Image.Image] | None"]) -> list[Fields]:
        labelled: list[Fields] = []
        examples: list[tuple[Fields, Example]] = []
        for row, picture, phrases in zip(batch, pictures, self.phrases.find(batch), strict=True):
            labels = {name: row[name] for name in ("caption_id", "image_id", "text")}
            labels |= {"width": None, "height": None, "phrases": []}
            labelled.append(labels)
            try:
                image = None if picture is None else picture.result()
                width, height = _size(row, image)
            except ValueError as error:
                self._skip(row, error)
                continue
            labels |= {"width": width, "height": height}
            if phrases:
                example = Example(row["caption_id"], row["image_id"], row["text"], phrases, width, height, image)
                example.objects = row.get("objects")
                examples.append((labels, example))
        self._ground(examples)
        return labelled

    def _ground(self, examples: list[tuple[Fields, Example]]) -> None:
        """Grounds a batch at once, or caption by caption if the batch is refused, to find the caption at fault."""
        if not examples:
            return
        try:
            grounded = self.made.ground([example for _, example in examples])
            for (labels, example), candidates in zip(examples, grounded, strict=True):
                pairs = zip(example.phrases, candidates, strict=True)
                labels["phrases"] = [self.selection.select(each, example, phrase) for phrase, each in pairs]
        except ValueError as error:
            if len(examples) > 1:
                for single in examples:
                    self._ground([single])
                return
            [(labels, _)] = examples
            self._skip(labels, error)
            labels |= {"width": None, "height": None, "phrases": []}

    def _skip(self, row: Row, error: ValueError) -> None:
        """Raises the error, unless captions that cannot be used are to stay without labels."""
        if self.on_error == "refuse":
            where = None
            if f"caption {row['caption_id']}" not in str(error):
                where = f"caption {row['caption_id']}"
            hint = "to leave such captions without labels, run again with --on-error skip; finished parts are kept"
            raise DataError(str(error), where=where, hint=hint) from error


def _size(row: Row, image: Image.Image | None) -> Size:
    """The size of the image, from the picture or the row, which must agree."""
    written = (row.get("width"), row.get("height"))
    where = f"caption {row['caption_id']}, image {row['image_id']}"
    if image is None:
        refuse_if(None in written, "the rows do not have the size of the image", where=where)
        return row["width"], row["height"]
    if None not in written and written != image.size:
        found = f"{image.width} x {image.height}"
        expected = f"{written[0]} x {written[1]} (of the annotation)"
        hint = "give the folder of the original images"
        raise DataError("the image has another size", where=where, found=found, expected=expected, hint=hint)
    return image.size
