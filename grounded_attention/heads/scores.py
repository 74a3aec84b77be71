# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""Where every head looks, counted by any engine: `ScoreHeads` counts batches of rows, `read_scores` adds them up."""

import json
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
from transformers.utils import logging

from grounded_attention.dataset_scripts.files.jobs import Job
from grounded_attention.dataset_scripts.rows.chats import row_images
from grounded_attention.dataset_scripts.rows.pictures import picture_digest
from grounded_attention.processing.grounded_batch import describe_cut
from grounded_attention.utils.named_types import Columns, Fields, Row

from .examples import AuditExample, grounded_examples, picture_name
from .items import Rules
from .measure import Counted, Facts, Measurement, Tally, make_table
from .reading import TEXT_TO_REGION
from .table import SUMS, HeadTable

logger = logging.get_logger(__name__)

OF_HEADS = ("correct", "share", "lift", "entropy")  # sums (L, H)
_MATRIX = pa.list_(pa.list_(pa.float64()))


class ScoreHeads(Job):
    """Counts where every head looks from words to regions: the pass of [`rank_heads`], for any engine.

    In: rows with `image_id`, a text, `phrases` and a picture, such as those of [`grounded_rows`]. Out: sums for each
    group and image of a batch, and one row without a group that counts the phrases of the batch. [`read_scores`] adds
    them up.

    Args:
        load (`Callable[[], tuple]`): makes model and processor in a process.
        regions (`Mapping[str, Any]`, *optional*): image id -> regions, for a model that reads regions, see [`audit`].
        words (`str`, *optional*, defaults to `"mean"`): which tokens ask.
        instruction (`str`, *optional*): words of the user, if the texts are answers.
        batch_size (`int`, *optional*): texts that are read together; by default 4, and 32 with `regions`.
        merged_box (`bool`, *optional*, defaults to `False`): which regions are right, see [`audit`].
    """

    texts = ("image_id",)
    schema = pa.schema(
        {
            **dict.fromkeys(("group", "image_id"), pa.string()),
            **{name: _MATRIX if name in OF_HEADS else pa.float64() for name in SUMS},
            "counted": pa.string(),
        }
    )

    def __init__(
        self,
        load: Callable[[], tuple[Any, Any]],
        regions: Columns | None = None,
        words: str = "mean",
        instruction: str | None = None,
        batch_size: int | None = None,
        merged_box: bool = False,
    ) -> None:
        super().__init__(load)
        self.regions = regions
        self.rules = Rules(words, merged=merged_box)
        self.instruction = instruction
        self.batch_size = batch_size

    def make(self) -> tuple[Measurement, Fields]:
        """The passes of the model, and the pictures that they read."""
        pictures: Fields = {}
        model, processor = self.load()
        options = (self.regions, self.rules, self.instruction, self.batch_size)
        return Measurement(model, processor, pictures, *options, for_choice=True), pictures

    def work(self, rows: Sequence[Row]) -> Iterator[Iterable[Row]]:
        measurement, pictures = self.made
        pictures.clear()
        counted = measurement.count(_examples(rows, pictures))
        if counted.cut:
            logger.warning(describe_cut(counted.cut))
        numbers = (dict(counted.phrases), counted.fitted, counted.scored, counted.unscored)
        captions = [f"{row['image_id']}, {name}" for row in rows for name in row.get("caption_ids") or ()]
        found: list[Row] = [{"counted": json.dumps([measurement.facts(), numbers, captions])}]
        for (group, image_id), sums in counted.tallies[TEXT_TO_REGION].sums.items():
            values = {name: sums[name].tolist() for name in SUMS if name in sums}
            found.append({"group": group, "image_id": image_id, **values})
        yield found


def _examples(rows: Sequence[Row], pictures: Fields) -> Iterator[AuditExample]:
    """The examples of rows, of which `pictures` gets the pictures."""
    for row in rows:
        for place, picture in enumerate(row_images(row)):
            name = picture_name(row["image_id"], place)
            known = pictures.setdefault(name, picture)
            if (picture_digest(known) or known) != (picture_digest(picture) or picture):
                raise ValueError(f"image {name}: two rows have other pictures of this id; give each its own")
        yield from grounded_examples([{**row, "image": None, "images": None}])


def read_scores(rows: Iterable[Row]) -> HeadTable:
    """Adds up what [`ScoreHeads`] counted.

    Args:
        rows (`Iterable[Mapping[str, Any]]`): its rows, of all batches in any order; each is read once.

    Returns:
        `HeadTable`: the counts, with images in the order of their ids; those of `rank_heads`.

    Raises:
        ValueError: if no phrase was judged, a caption (by its id) was counted twice, or the batches differ in layers,
            heads or settings. Weights are not compared: the batches have to be of one model.
    """
    entities = Counted({TEXT_TO_REGION: Tally()})
    facts = set()
    captions: Counter[str] = Counter()
    for row in rows:
        if not isinstance(row, Mapping) or not isinstance(row.get("group", 0), str | None):
            raise ValueError(
                "expected the rows of ScoreHeads as dictionaries: table.to_pylist(), or with_format(None)"
            )
        if row["group"] is None:
            about, numbers, read = json.loads(row["counted"])
            facts.add(json.dumps(about))
            entities.add(*numbers)
            captions.update(read)
            continue
        sums: Fields = {"first": 0}
        for name in SUMS:
            if row[name] is not None:
                sums[name] = np.array(row[name])
        entities.tallies[TEXT_TO_REGION].add_sums((row["group"], row["image_id"]), sums)
    if len(facts) != 1:
        raise ValueError(f"scores of {len(facts)} kinds of models or settings; expected those of one")
    [(caption, times)] = captions.most_common(1) or [("", 1)]
    if times > 1:
        raise ValueError(f"a caption was counted {times} times (image, caption: {caption}); give each caption once")
    if not entities.phrases["judged"]:
        raise ValueError(f"no phrase can be judged ({entities.summary()}); expected phrases that have gold boxes")
    return make_table(Facts(*json.loads(facts.pop())), entities, Counted({})).sorted_images()
