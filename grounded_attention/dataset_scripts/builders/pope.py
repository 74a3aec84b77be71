# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""Object hallucination: yes-or-no questions made from COCO's instances, in the three samplings of POPE."""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Set
from dataclasses import dataclass
from itertools import permutations
from pathlib import Path
from typing import Annotated

import numpy as np
from annotated_types import Ge, Interval, MultipleOf

from grounded_attention.dataset_scripts.files.errors import DataError
from grounded_attention.dataset_scripts.files.image_files import ImageLists
from grounded_attention.utils.bounded_files import MAX_SEED
from grounded_attention.utils.named_types import Fields

from .coco_captions import LICENCE as COCO_LICENCE
from .coco_captions import ImageIdFormat
from .local_builder import TEXTS, BuildReport, LocalBuilder, LocalConfig, named_splits, texts
from .refcoco import read_instances

HINT = "get annotations_trainval2014.zip from https://cocodataset.org/#download and unpack it in the data folder"
CITATION = """@inproceedings{li2023pope,
  title = {Evaluating Object Hallucination in Large Vision-Language Models},
  author = {Li, Yifan and Du, Yifan and Zhou, Kun and Wang, Jinpeng and Zhao, Wayne Xin and Wen, Ji-Rong},
  booktitle = {Empirical Methods in Natural Language Processing},
  year = {2023},
}"""
FEATURES = {
    **texts("example_id", "image_id", "file_name", "text"),
    "answers": TEXTS,
    **texts("sampling"),
}


@dataclass
class PopeConfig(LocalConfig):
    """Options of [`Pope`]."""

    LICENCE = COCO_LICENCE
    WHERE = HINT
    SPLIT_NAMES = named_splits("test")
    instances: str = "annotations/instances_val2014.json"
    image_list: str | None = None
    images: Annotated[int, Ge(1)] = 500
    least_objects: Annotated[int, Ge(1)] = 3
    questions: Annotated[int, Ge(2), MultipleOf(2)] = 6
    seed: Annotated[int, Interval(ge=0, le=MAX_SEED)] = 0
    image_id_format: ImageIdFormat = "number"

    def needed_files(self, split: str) -> list[Path]:
        if self.image_list is None:
            names = [self.instances]
        else:
            names = [self.instances, self.image_list]
        return [self.root / name for name in names]


class Pope(LocalBuilder):
    """One row a question: `{example_id, image_id, file_name, text, answers, sampling}`.

    `answers` is `["yes"]` or `["no"]`. Absent objects are chosen in three ways (`sampling`), see [`choose_objects`].
    Every sampling asks for the same objects that are in the image. The questions are made as the paper describes; they
    are not the published files, whose draws cannot be repeated.
    """

    config: PopeConfig
    BUILDER_CONFIG_CLASS = PopeConfig

    INFO = (
        "Yes-or-no questions about objects that are or are not in an image.",
        FEATURES,
        "https://cocodataset.org",
        CITATION,
    )

    def _generate_rows(self, split: str, report: BuildReport) -> Iterator[Fields]:
        config = self.config
        path, *lists = config.needed_files(split)
        images = read_objects(path, config.image_id_format == "file_stem")
        listed = ImageLists(lists)
        wanted = [name for name in images if not lists or name in listed or images[name][0] in listed]
        listed.check_found()
        enough = [name for name in wanted if len(images[name][1]) >= config.least_objects]
        if not enough:
            hint = "give a smaller least_objects, or another image_list"
            raise DataError(f"no image has {config.least_objects} different objects", file=path, hint=hint)
        counts = ObjectCounts.of(inside for _, inside in images.values())
        rng = np.random.default_rng(config.seed)
        for image_id in [enough[place] for place in rng.permutation(len(enough))[: config.images]]:
            file_name, present = images[image_id]
            report.add("images")
            for sampling, (shown, absent) in choose_objects(present, counts, config.questions, rng).items():
                for name in (*shown, *absent):
                    report.add("questions")
                    yield {
                        "example_id": f"{image_id}:{sampling}:{name}",
                        "image_id": image_id,
                        "file_name": file_name,
                        "text": object_question(name),
                        "answers": ["yes" if name in present else "no"],
                        "sampling": sampling,
                    }


def read_objects(path: Path, by_stem: bool) -> dict[str, tuple[str, set[str]]]:
    """Reads the objects of each image."""
    images, objects, categories = read_instances(path, by_stem, HINT)
    by_image: dict[str, tuple[str, set[str]]] = {}
    for image in images.values():
        by_image[image["image_id"]] = (image["file_name"], set())
    for ann_id, item in objects.items():
        if item["category"] not in categories:
            where = f"annotation {ann_id}"
            raise DataError("the object is of an unknown category", file=path, where=where, found=item["category"])
        by_image[item["image_id"]][1].add(categories[item["category"]])
    return by_image


SAMPLINGS = ("random", "popular", "adversarial")


@dataclass(frozen=True)
class ObjectCounts:
    """How often objects are in the images of a data set."""

    images: Counter
    together: Counter

    @classmethod
    def of(cls, images: Iterable[Set[str]]) -> "ObjectCounts":
        """Counts the objects of images; each image is the set of its objects."""
        single: Counter[str] = Counter()
        together: Counter[tuple[str, str]] = Counter()
        for objects in images:
            single.update(objects)
            together.update(permutations(sorted(objects), 2))
        return cls(single, together)


def choose_objects(
    present: Set[str], counts: ObjectCounts, questions: int, rng: np.random.Generator
) -> Mapping[str, tuple[list[str], list[str]]]:
    """Chooses the objects to ask for in one image: as many that are in it as that are not."""
    absent = sorted(set(counts.images) - present)
    number = min(questions // 2, len(present), len(absent))
    shown = [str(name) for name in rng.permutation(sorted(present))[:number]]
    drawn = [str(name) for name in rng.permutation(absent)[:number]]
    popular = sorted(absent, key=lambda name: (-counts.images[name], name))[:number]
    beside = {name: sum(counts.together[name, other] for other in present) for name in absent}
    adversarial = sorted(absent, key=lambda name: (-beside[name], name))[:number]
    return {name: (shown, not_shown) for name, not_shown in zip(SAMPLINGS, (drawn, popular, adversarial), strict=True)}


def object_question(name: str) -> str:
    """The question for an object (the words of POPE)."""
    article = "an" if name[:1].lower() in "aeiou" else "a"
    return f"Is there {article} {name} in the image?"
