# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""VGP: visually grounded paraphrases in pairs of captions of Flickr30K Entities.

Reads Flickr30K Entities (see `flickr30k_entities`) and the pair files: either the typology (five classes,
`{train,val,test}_data.csv` of https://github.com/felixgiov/VGP-Typology, or `full_data_type_phrase_pair_*.csv`, the
same file under the name in the attention-supervision paper's code) or the binary pairs of 2018
(`phrase_pair_remove_trivial_match_*.csv`). Source of the construction: "Attention supervision" paper, section 2.2, and
its public code, without that code's known faults (labels are swapped with their phrases; the result depends neither on
the order of a folder listing nor on an unseeded generator).
"""

import logging
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path
from typing import Annotated, ClassVar, Literal

from annotated_types import Ge
from datasets import ClassLabel, List, Value

from grounded_attention.dataset_scripts.files.errors import DataError
from grounded_attention.dataset_scripts.licences import UNCLEAR, Licence
from grounded_attention.dataset_scripts.regions.table import RegionTable, local_folder
from grounded_attention.utils.named_types import Columns, Fields

from .flickr30k_entities import CITATION as ENTITIES_CITATION
from .flickr30k_entities import WHERE_TO_GET, Flickr30kEntities, Flickr30kEntitiesConfig, parse_annotation
from .local_builder import SPLITS, BuildReport, caption_columns, logger, phrase_column, texts
from .vgp_pairs import (
    KINDS,
    MentionPairs,
    PairKind,
    clean_pairs,
    draw_negatives,
    join_pairs,
    nearest_negatives,
    random_negatives,
    read_pairs,
    seeded,
    tagged_mentions,
)

LICENCE = Licence(
    "unknown",
    UNCLEAR,
    "The pairs of the typology are GPL-3.0; for the binary pairs see their web page. The captions and boxes are from "
    "Flickr30K Entities, which has no licence. Ask the authors of both. Images are not included.",
    "https://github.com/felixgiov/VGP-Typology",
)
CITATION = f"""Chenhui Chu, Mayu Otani, Yuta Nakashima. iParaphrasing: Extracting Visually Grounded Paraphrases via an
Image. COLING 2018. The five classes: https://github.com/felixgiov/VGP-Typology. Captions, phrases and boxes:
{ENTITIES_CITATION}"""
IDENTIFICATION_LABELS = ("both", "first", "second")


@dataclass
class VGPConfig(Flickr30kEntitiesConfig):
    """Options of [`VGP`]."""

    LICENCE = LICENCE

    negatives: Literal["nearest", "random"] = "nearest"
    negatives_per_image: Annotated[int, Ge(0)] = 10
    regions: str | None = None
    seed: Annotated[int, Ge(0)] = 0

    def needed_files(self, split: str) -> list[Path]:
        names = [name.format(split=split) for name in self.kind().files]
        beside = self.root.resolve().parent / "vgp"
        return [*super().needed_files(split), self.find(*names, folders=("vgp", "", str(beside)))]

    def where_to_get(self) -> str:
        return f"{WHERE_TO_GET}; {self.kind().where_to_get}"

    def sources(self) -> list[Path]:
        if not self.data_dir:
            return []
        pairs = [self.needed_files(split)[-1] for split in SPLITS]
        return [*super().sources(), *pairs, *([local_folder(self.regions)] if self.regions else [])]

    def kind(self) -> PairKind:
        """Returns the family of pair files that `name` selects."""
        return KINDS[self.name]

    def check(self) -> None:
        super().check()
        if self.negatives == "nearest" and self.negatives_per_image and self.regions is None:
            raise DataError(
                'negatives="nearest" compares images by region features, but regions is missing',
                hint="pass regions=FOLDER (made by grounded-attention regions import), or negatives=random",
            )


def _features(name: str) -> Fields:
    pair = {"phrase1": Value("int32"), "phrase2": Value("int32"), "label": ClassLabel(names=list(KINDS[name].labels))}
    return {
        **texts("example_id", "image_id"),
        **caption_columns(),
        "identification_label": ClassLabel(names=list(IDENTIFICATION_LABELS)),
        "phrases": phrase_column(entity=Value("string")),
        "phrase_pairs": List(pair),
    }


class VGP(Flickr30kEntities):
    """One row an image and a pair of captions, of which at least one describes the image.

    `data_dir` holds `flickr30k_entities/` and `vgp/`, or is the official Entities folder (pair files in it or in a
    folder `vgp` next to it), or has the layout of the paper's code (`{train,val,test}_captions/`, `Annotations/` and
    the pair files). A row is `{example_id, image_id, captions, caption_ids, related, identification_label,
    phrases, phrase_pairs}`, with two texts as `captions`, of which `related` says whether they describe the image:

    - every pair of an image's captions once, the earlier caption first (10 of 5 captions), label `both`; captions
      listed in UNRELATED_CAPTIONS are never used;
    - `negatives_per_image` pairs with a caption of another image of the split, label `first` or `second`: the one that
      describes the image;
    - `phrases`: all tagged phrases of the captions that describe the image, `{sentence: 0 or 1, start, end, text,
      entity, boxes}`; `entity` is `"0"` for phrases that describe nothing visible and `""` for a phrase without
      a tag; `boxes` (x1, y1, x2, y2) in [0, 1] may be empty;
    - `phrase_pairs`: `{phrase1, phrase2, label}` with indices into `phrases`, `phrase1` in the first caption; only
      under `both`.

    [`join_pairs`] describes how phrases are found. `builder.report`, stored with the data as `report.json`, counts
    dropped rows by reason. The same files, options and seed give the same rows in the same order.
    """

    config: VGPConfig
    BUILDER_CONFIG_CLASS = VGPConfig
    BUILDER_CONFIGS = [VGPConfig(name=name) for name in KINDS]
    DEFAULT_CONFIG_NAME = "typology"
    INFO = (
        "Pairs of captions of an image with labelled pairs of phrases that may mean the same object.",
        _features,
        "https://github.com/felixgiov/VGP-Typology",
        CITATION,
    )
    # An audit skips captions of other images, so it need not search for the nearest ones.
    AUDIT_OPTIONS: ClassVar[Fields] = {"negatives": "random", "negatives_per_image": 0}

    def _generate_rows(self, split: str, report: BuildReport) -> Iterator[Fields]:
        config = self.config
        kind = config.kind()
        # All three lists, whichever splits are built: they show which rows leak between splits.
        images = self.files.split_images(list(SPLITS))
        elsewhere = {image_id for other in images if other != split for image_id in images[other]}
        rows = read_pairs(config.needed_files(split)[-1], kind)
        clean = clean_pairs(rows, kind, set(images[split]), elsewhere, report)
        negatives = self._negatives(images[split])
        for image_id in images[split]:
            captions = self._related(split, image_id)
            _, _, boxes = parse_annotation(self.files.annotation(image_id))
            joined = join_pairs(clean.get(image_id, ()), captions, kind, report)
            report.add("images")
            report.add("images_with_phrase_pairs", count=any(joined.values()))
            for i, j in combinations(range(len(captions)), 2):
                yield example(image_id, captions[i], captions[j], "both", boxes, joined.get((i, j), []))
            if image_id in negatives:
                others = self._related(split, negatives[image_id])
                rng = seeded(config.seed, "captions", image_id)
                for drawn in draw_negatives(captions, others, config.negatives_per_image, rng):
                    yield example(image_id, *drawn, boxes, [])
        # Only problems have examples; a file without rows may be cut after its header.
        if report.examples or not rows:
            level = logging.WARNING
        else:
            level = logging.INFO
        logger.log(level, "VGP %s: %s", split, ", ".join(f"{name} {count}" for name, count in report.counts.items()))

    def _negatives(self, image_ids: list[str]) -> dict[str, str]:
        if not self.config.negatives_per_image:
            return {}
        if self.config.negatives == "random" or self.config.regions is None:  # check() refuses nearest without regions
            return random_negatives(image_ids, self.config.seed)
        return nearest_negatives(image_ids, RegionTable.open(self.config.regions))

    def _related(self, split: str, image_id: str) -> list[Fields]:
        """The captions that describe the image."""
        captions = self.files.captions(split, image_id, self.config.captions_per_image)
        return [caption for caption in captions if caption["related"]]


def example(
    image_id: str,
    caption1: Columns,
    caption2: Columns,
    label: str,
    boxes: Mapping[str, list[list[float]]],
    pairs: MentionPairs,
) -> Fields:
    """Makes a row of [`VGP`] with the phrases of the captions that describe the image according to `label`."""
    matching = {"both": (0, 1), "first": (0,), "second": (1,)}[label]
    captions = (caption1, caption2)
    # The phrases as (caption, mention), in reading order; a pair may add phrases without a tag.
    mentions = []
    for index in matching:
        for mention in tagged_mentions(captions[index]):
            mentions.append((index, mention))
    mentions += [side for first, second, _ in pairs for side in ((0, first), (1, second))]
    positions = {mention: number for number, mention in enumerate(dict.fromkeys(mentions))}
    phrases = []
    for index, mention in positions:
        phrases.append({**mention._asdict(), "sentence": index, "boxes": boxes.get(mention.entity, [])})
    phrase_pairs = []
    for first, second, label_number in pairs:
        pair = {"phrase1": positions[0, first], "phrase2": positions[1, second], "label": label_number}
        phrase_pairs.append(pair)
    return {
        "example_id": f"{image_id}:{caption1['caption_id']}:{caption2['caption_id']}",
        "image_id": image_id,
        "captions": [caption1["text"], caption2["text"]],
        "caption_ids": [caption1["caption_id"], caption2["caption_id"]],
        "related": [number in matching for number in range(2)],
        "identification_label": label,
        "phrases": phrases,
        "phrase_pairs": phrase_pairs,
    }
