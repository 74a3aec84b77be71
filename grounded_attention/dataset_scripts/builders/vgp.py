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
from typing import Any, ClassVar

import datasets
from datasets import ClassLabel, List, Value

from grounded_attention.dataset_scripts.files.errors import DataError
from grounded_attention.dataset_scripts.licences import UNCLEAR, Licence
from grounded_attention.dataset_scripts.regions.table import RegionTable, local_folder

from .flickr30k_entities import CITATION as ENTITIES_CITATION
from .flickr30k_entities import EntitiesFiles, Flickr30kEntitiesConfig
from .flickr30k_parsing import parse_annotation
from .local_builder import SPLITS, BuildReport, LocalBuilder, caption_columns, logger, phrase_column, texts
from .vgp_pairs import (
    KINDS,
    Mention,
    MentionPairs,
    PairKind,
    PairRow,
    clean_pairs,
    draw_negatives,
    find_pair_file,
    join_pairs,
    nearest_negatives,
    random_negatives,
    read_pairs,
    seeded,
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

    LICENCE: ClassVar[Licence] = LICENCE

    negatives: str = "nearest"
    negatives_per_image: int = 10
    regions: str | None = None
    seed: int = 0

    def pair_folders(self) -> list[Path]:
        """Returns the folders that may hold the pair files, in the order of the search."""
        folder = Path(self.data_dir or ".")
        return [folder / "vgp", folder, folder.resolve().parent / "vgp"]

    def sources(self) -> list[Path]:
        names = [name.format(split=split) for kind in KINDS.values() for name in kind.files for split in SPLITS]
        pairs = [folder / name for folder in self.pair_folders() for name in names]
        return [*super().sources(), *pairs, *([local_folder(self.regions)] if self.regions else [])]

    def kind(self) -> PairKind:
        """Returns the family of pair files that `name` selects."""
        return KINDS[self.name]

    def check(self) -> None:
        if self.negatives not in ("nearest", "random"):
            raise DataError("unknown option negatives", found=self.negatives, expected="nearest or random")
        for option in ("negatives_per_image", "captions_per_image", "seed"):
            value = getattr(self, option)
            if not isinstance(value, int) or value < 0:
                raise DataError(f"bad option {option}", found=value, expected="a whole number from 0")
        if self.negatives == "nearest" and self.negatives_per_image and self.regions is None:
            raise DataError(
                'negatives="nearest" compares images by region features, but regions is missing',
                hint="pass regions=FOLDER (made by grounded-attention regions import), or negatives=random",
            )


@dataclass(frozen=True)
class ImageJob:
    """The input of one image's examples."""

    image_id: str
    rows: tuple[PairRow, ...]
    negative_id: str | None


class VGP(LocalBuilder):
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
    dropped rows by reason. The same files, options and seed give the same rows in the same order, for any `num_proc`.
    """

    config: VGPConfig
    BUILDER_CONFIG_CLASS = VGPConfig
    BUILDER_CONFIGS = [VGPConfig(name=name) for name in KINDS]
    DEFAULT_CONFIG_NAME = "typology"
    # An audit skips captions of other images, so it need not search for the nearest ones.
    AUDIT_OPTIONS: ClassVar[dict[str, Any]] = {"negatives": "random", "negatives_per_image": 0}

    def _info(self) -> datasets.DatasetInfo:
        return datasets.DatasetInfo(
            description="Pairs of captions of an image with labelled pairs of phrases that may mean the same object.",
            features=vgp_features(self.config.kind()),
            homepage="https://github.com/felixgiov/VGP-Typology",
            citation=CITATION,
        )

    def _split_generators(self, dl_manager: Any) -> list[datasets.SplitGenerator]:
        self.config.check()
        files = EntitiesFiles.locate(self.config.data_dir)
        files.unrelated()
        requested = self.config.requested_splits()
        pair_files = {name: find_pair_file(self.config.pair_folders(), self.config.kind(), name) for name in requested}
        # All three lists, whichever splits are built: they show which rows leak between splits.
        images = files.split_images(list(SPLITS))
        for name in requested:
            files.check(name, images[name], self.config.splits is not None)
        return [
            datasets.SplitGenerator(
                name=SPLITS[name],
                gen_kwargs={"jobs": self._plan(files, name, images, pair_files[name]), "split": name},
            )
            for name in requested
        ]

    def _plan(
        self, files: EntitiesFiles, split: str, images: Mapping[str, list[str]], pair_file: Path
    ) -> list[ImageJob]:
        """Makes the jobs of a split and its report, in the parent process, so that the report covers every row."""
        report = BuildReport()
        other_split_images = {image_id for other in images if other != split for image_id in images[other]}
        rows = read_pairs(pair_file, self.config.name)
        clean = clean_pairs(rows, self.config.kind(), set(images[split]), other_split_images, report)
        with_pairs = self._count_joins(files, split, clean, report)
        report.add("images", count=len(images[split]))
        report.add("images_with_phrase_pairs", count=len(with_pairs))
        negatives = self._negatives(images[split])
        self.report[str(SPLITS[split])] = report.as_dict()
        # Only problems have examples; a file without rows may be cut after its header.
        level = logging.WARNING if report.examples or not rows else logging.INFO
        logger.log(level, "VGP %s: %s", split, ", ".join(f"{name} {count}" for name, count in report.counts.items()))
        return [ImageJob(image, tuple(clean.get(image, ())), negatives.get(image)) for image in images[split]]

    def _count_joins(
        self, files: EntitiesFiles, split: str, clean: Mapping[str, list[PairRow]], report: BuildReport
    ) -> set[str]:
        unrelated = files.unrelated()
        with_pairs = set()
        for image_id, rows in clean.items():
            captions = self._captions(files, split, image_id, unrelated)
            if any(join_pairs(rows, captions, self.config.kind(), report).values()):
                with_pairs.add(image_id)
        return with_pairs

    def _negatives(self, image_ids: list[str]) -> dict[str, str]:
        if not self.config.negatives_per_image:
            return {}
        if self.config.negatives == "random" or self.config.regions is None:  # check() refuses nearest without regions
            return random_negatives(image_ids, self.config.seed)
        return nearest_negatives(image_ids, RegionTable.open(self.config.regions))

    def _captions(
        self, files: EntitiesFiles, split: str, image_id: str, unrelated: set[tuple[str, int]]
    ) -> list[dict[str, Any]]:
        captions = files.captions(split, image_id, unrelated, self.config.captions_per_image)
        return [caption for caption in captions if caption["related"]]

    def _generate_rows(self, jobs: list[ImageJob], split: str, report: BuildReport) -> Iterator[dict[str, Any]]:
        files = EntitiesFiles.locate(self.config.data_dir)
        unrelated = files.unrelated()
        for job in jobs:
            captions = self._captions(files, split, job.image_id, unrelated)
            _, _, entities = parse_annotation(files.annotation(job.image_id))
            boxes = {entity["entity_id"]: entity["boxes"] for entity in entities}
            joined = join_pairs(job.rows, captions, self.config.kind(), BuildReport())
            for i, j in combinations(range(len(captions)), 2):
                yield example(job.image_id, captions[i], captions[j], "both", boxes, joined.get((i, j), []))
            if job.negative_id is not None:
                others = self._captions(files, split, job.negative_id, unrelated)
                rng = seeded(self.config.seed, "captions", job.image_id)
                for drawn in draw_negatives(captions, others, self.config.negatives_per_image, rng):
                    yield example(job.image_id, *drawn, boxes, [])


def vgp_features(kind: PairKind) -> datasets.Features:
    """Returns the columns of [`VGP`]; only the classes of phrase pairs differ between its configurations."""
    pair = {"phrase1": Value("int32"), "phrase2": Value("int32"), "label": ClassLabel(names=list(kind.labels))}
    return datasets.Features(
        {
            **texts("example_id", "image_id"),
            **caption_columns(),
            "identification_label": ClassLabel(names=list(IDENTIFICATION_LABELS)),
            "phrases": phrase_column(entity=Value("string")),
            "phrase_pairs": List(pair),
        }
    )


def example(
    image_id: str,
    caption1: Mapping[str, Any],
    caption2: Mapping[str, Any],
    label: str,
    boxes: Mapping[str, list[list[float]]],
    pairs: MentionPairs,
) -> dict[str, Any]:
    """Makes a row of [`VGP`] with the phrases of the captions that describe the image according to `label`."""
    matching = {"both": (0, 1), "first": (0,), "second": (1,)}[label]
    captions = (caption1, caption2)
    # The phrases as (caption, mention), in reading order; a pair may add phrases without a tag.
    mentions = [
        (index, Mention(phrase["start"], phrase["end"], phrase["text"], phrase["entity_id"]))
        for index in matching
        for phrase in captions[index]["phrases"]
    ]
    mentions += [side for first, second, _ in pairs for side in ((0, first), (1, second))]
    positions = {mention: number for number, mention in enumerate(dict.fromkeys(mentions))}
    return {
        "example_id": f"{image_id}:{caption1['caption_id']}:{caption2['caption_id']}",
        "image_id": image_id,
        "captions": [caption1["text"], caption2["text"]],
        "caption_ids": [caption1["caption_id"], caption2["caption_id"]],
        "related": [number in matching for number in range(2)],
        "identification_label": label,
        "phrases": [
            {
                "sentence": index,
                "start": mention.start,
                "end": mention.end,
                "text": mention.text,
                "entity": mention.entity_id,
                "boxes": boxes.get(mention.entity_id, []),
            }
            for index, mention in positions
        ],
        "phrase_pairs": [
            {"phrase1": positions[0, first], "phrase2": positions[1, second], "label": label_number}
            for first, second, label_number in pairs
        ],
    }
