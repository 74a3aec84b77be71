# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""LXMERT's pre-training data: captions and questions of five data sets about images of COCO and Visual Genome."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from datasets import List, Value

from grounded_attention.dataset_scripts.files.errors import refuse_if
from grounded_attention.dataset_scripts.files.records import Record, listed
from grounded_attention.dataset_scripts.licences import UNCLEAR, Licence
from grounded_attention.utils.named_types import Fields

from .local_builder import BuildReport, LocalBuilder, LocalConfig, named_splits, texts

# Split on disk -> its files: the splits of the public code.
FILES = {
    "train": [("mscoco_train.json",), ("mscoco_nominival.json",), ("vgnococo.json",)],
    "val": [("mscoco_minival.json",)],
}
# The files have no image of COCO's test sets. One that occurs nevertheless is left out.
TEST_IMAGES = "COCO_test"
HOMEPAGE = "https://github.com/airsplay/lxmert"
HINT = "get the four files from https://github.com/airsplay/lxmert#pre-training and put them in the folder"
LICENCE = Licence(
    "unknown",
    UNCLEAR,
    "The files state no licence. Their parts: COCO captions, VQA v2 and Visual Genome are CC BY 4.0, the terms of GQA "
    "and of Visual7W are not clear. The images are not included.",
    HOMEPAGE,
)
CITATION = """Hao Tan, Mohit Bansal. LXMERT: Learning Cross-Modality Encoder Representations from Transformers.
EMNLP 2019."""
FEATURES = {
    **texts("image_id", "caption_id", "text", "source"),
    "answers": List({"answer": Value("string"), "score": Value("float32")}),
}


@dataclass
class LXMERTPretrainingConfig(LocalConfig):
    """Options of [`LXMERTPretraining`]."""

    LICENCE = LICENCE
    WHERE = HINT
    SPLIT_NAMES = named_splits(*FILES)
    FILES = FILES
    FOLDERS = ("", "lxmert")
    LISTS = "excluded_images"

    excluded_images: str | Sequence[str] | None = None


class LXMERTPretraining(LocalBuilder):
    """One row a sentence: `{image_id, caption_id, text, source, answers}`.

    `source` is the data set of the sentence, as the files call it: `mscoco` and `vg` (captions), `vqa`, `gqa` and
    `visual7w` (questions). `answers` are the answers to a question, each `{answer, score}`; captions have none.
    `caption_id` is image, source and number of the sentence.

    Splits are those of the public code: train (COCO's train2014 and val2014 without 5,000 images, and the images of
    Visual Genome that are not in COCO) and validation (these 5,000 images, minival). The files contain no test image
    of COCO and so none of VQA and GQA; images named `COCO_test...` are left out in any case. The images of Flickr30K,
    of NLVR2 and of other parts of COCO are not compared; list those to leave out in `excluded_images`.
    """

    config: LXMERTPretrainingConfig
    BUILDER_CONFIG_CLASS = LXMERTPretrainingConfig
    BUILDER_CONFIGS = [LXMERTPretrainingConfig(name="default")]

    INFO = ("Captions and questions about images of COCO and Visual Genome.", FEATURES, HOMEPAGE, CITATION)

    def _generate_rows(self, split: str, report: BuildReport) -> Iterator[Fields]:
        excluded = self.image_lists or ()
        ids: set[str] = set()
        for path in self.config.needed_files(split):
            before = len(ids)
            for record in listed(path, HINT):
                image_id = record.non_empty_text("img_id")
                record.add_once(image_id, ids, "the image occurs twice in the split", "unique images")
                if image_id.startswith(TEST_IMAGES) or image_id in excluded:
                    report.add("excluded_images", image_id)
                    continue
                report.add("images")
                for row in image_rows(image_id, record):
                    if not row["text"]:
                        report.add("sentences_without_words", row["caption_id"])
                        continue
                    report.add("sentences")
                    report.add("sentences_with_answers", count=bool(row["answers"]))
                    yield row
            refuse_if(len(ids) == before, "no images", file=path, expected="a list of images", hint=HINT)


def image_rows(image_id: str, record: Record) -> Iterator[Fields]:
    """Makes one row of each sentence of an image."""
    place = Record(record.values, record.file, f"image {image_id!r}", HINT)
    sentences = place.member("sentf")
    labels = place.member("labelf")
    for source in labels.names():
        if source not in sentences.values:
            raise labels.error("answers without sentences", found=source, expected=f"one of {list(sentences.values)}")
    for source in sentences.names():
        texts = sentences.texts(source)
        if source in labels.values:
            answers = labels.items(source)
        else:
            answers = [{}] * len(texts)
        if len(answers) != len(texts):
            expected = f"{len(texts)}, one for each sentence"
            raise labels.error(f"wrong number of answers in {source}", found=len(answers), expected=expected)
        for number, (text, scores) in enumerate(zip(texts, answers, strict=True)):
            answered = Record(scores, record.file, f"{labels.where}, {source} {number + 1}", HINT)
            yield {
                "image_id": image_id,
                "caption_id": f"{image_id}_{source}_{number:03}",
                "text": text.strip(),
                "source": source,
                "answers": _scored(answered),
            }


def _scored(record: Record) -> list[Fields]:
    """The answers of a sentence, with positive scores."""
    if not isinstance(record.values, dict):
        raise record.error("bad answers", found=record.values, expected="an object {answer: score}")
    scored: list[Fields] = []
    for answer in record.names():
        score = record.number(answer)
        record.refuse_if(score < 0, f"bad score of {answer!r}", found=score, expected="0 or more")
        if score > 0:
            scored.append({"answer": answer, "score": score})
    return scored
