# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""LLaVA's instruction data: conversations about images, and, if they have them, phrases with boxes.

An element of the JSON list is `{"id", "image", "conversations": [{"from": "human" or "gpt", "value"}, ...]}`; the
first human text contains `<image>`. Elements may also have `"phrases": [{"message", "start", "end", "boxes"}]`: the
index of a message, a span of characters of its text without `<image>` and the white space around it, and boxes (x1,
y1, x2, y2) divided by width and height of the image. The public files have no phrases.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from datasets import List

from grounded_attention.dataset_scripts.files.errors import DataError
from grounded_attention.dataset_scripts.files.records import Record, are_numbers, listed
from grounded_attention.dataset_scripts.licences import UNCLEAR, Licence
from grounded_attention.processing.phrase import read_phrase
from grounded_attention.utils.named_types import Fields

from .local_builder import BuildReport, LocalBuilder, LocalConfig, phrase_column, texts

EXPECTED = "a list with one object for each conversation, some with image"
DEFAULT = "default"
QUESTIONS = "questions"
IMAGE_MARK = "<image>"
ROLES = {"human": "user", "gpt": "assistant"}
HOMEPAGE = "https://huggingface.co/datasets/liuhaotian/LLaVA-Instruct-150K"
HINT = f"get llava_v1_5_mix665k.json or llava_instruct_150k.json from {HOMEPAGE}, or write train.json in its format"
LICENCE = Licence(
    "unknown",
    UNCLEAR,
    "LLaVA-Instruct-150K is CC BY 4.0 and subject to the terms of use of OpenAI; the other parts of the mix have "
    "terms of their own. The images are not included.",
    HOMEPAGE,
)
CITATION = """Haotian Liu, Chunyuan Li, Qingyang Wu, Yong Jae Lee. Visual Instruction Tuning. NeurIPS 2023."""
FEATURES = {
    **texts("example_id", "image_id", "file_name"),
    "messages": List(texts("role", "content")),
    "phrases": phrase_column(),
}


@dataclass
class LlavaInstructConfig(LocalConfig):
    """All conversations, or those of scenes with boxes for questions; see [`LlavaInstruct`]."""

    LICENCE = LICENCE
    WHERE = HINT
    REQUIRED = ("train",)
    FILES = {
        "train": [("train.json", "llava_v1_5_mix665k.json", "llava_instruct_150k.json")],
        "val": [("val.json",)],
        "test": [("test.json",)],
    }
    FOLDERS = ("", "llava")

    def needed_files(self, split: str) -> list[Path]:
        if self.name == DEFAULT:
            return super().needed_files(split)
        return [self.find(f"{split}_{self.name}.json", folders=self.FOLDERS)]


class LlavaInstruct(LocalBuilder):
    """One row a conversation about an image: `{example_id, image_id, file_name, messages, phrases}`.

    `messages` have a `role`, user or assistant in turns, and a text as `content`, without the mark of the image. A
    phrase has the index of its message as `sentence`, a span of characters of its text, and boxes in [0, 1].
    `image_id` is the name of the image file without folder and suffix. `example_id` is the id of the element and its
    number in the file, since ids occur twice in the public mix. Conversations without an image are left out unread
    and counted, those with an empty answer too. If the assistant begins, its first message is left out, as LLaVA's own
    loader does.

    The configurations are `default` and `questions`: the files `{split}_questions.json`, which scenes have.
    """

    config: LlavaInstructConfig
    BUILDER_CONFIG_CLASS = LlavaInstructConfig
    BUILDER_CONFIGS = [LlavaInstructConfig(name=name) for name in (DEFAULT, QUESTIONS)]
    DEFAULT_CONFIG_NAME = DEFAULT

    INFO = ("Conversations about images.", FEATURES, HOMEPAGE, CITATION)

    def _generate_rows(self, split: str, report: BuildReport) -> Iterator[Fields]:
        [path] = self.config.needed_files(split)
        for index, record in enumerate(listed(path, HINT)):
            row = read_conversation(record, index)
            silent = row is not None and not all(message["content"] for message in row["messages"][1::2])
            report.add("without image" if row is None else "with an empty answer" if silent else "conversations")
            if row is not None and not silent:
                yield row
        if not report.counts["conversations"]:
            found = f"{report.counts['without image']} without image"
            raise DataError("no conversations about images", file=path, found=found, expected=EXPECTED, hint=HINT)


def read_conversation(record: Record, index: int) -> Fields | None:
    """Reads an element of the file."""
    if isinstance(record.values, Mapping) and record.values.get("image") is None:
        return None
    turns = record.items("conversations")
    speakers = []
    for each in turns:
        speakers.append(each.get("from") if isinstance(each, Mapping) else None)
    first = int(speakers[:2] == ["gpt", "human"])
    spoken = [*record.records("conversations", "message")][first:]
    messages = []
    for number, message in enumerate(spoken):
        speaker = message.text("from")
        wanted = list(ROLES)[number % 2]
        message.refuse_if(speaker != wanted, "bad from", found=speaker, expected=wanted)
        content = message.text("value").replace(IMAGE_MARK, "").strip()
        messages.append({"role": ROLES[speaker], "content": content})
    if not messages or len(messages) % 2:
        expected = "a text of human and a text of gpt, in turns"
        raise record.error("bad conversations", found=f"{len(messages)} messages", expected=expected)
    file_name = record.non_empty_text("image")
    identifier = record.values.get("id")
    phrases = record.records("phrases", "phrase") if "phrases" in record.values else ()
    return {
        "example_id": f"{identifier}#{index}",
        "image_id": PurePosixPath(file_name).stem,
        "file_name": file_name,
        "messages": messages,
        "phrases": [_read_phrase(each, messages, first) for each in phrases],
    }


def _read_phrase(record: Record, messages: list[dict[str, str]], first: int) -> Fields:
    unknown = sorted(record.values.keys() - {"message", "start", "end", "boxes", "text"})
    if unknown:
        raise record.error("unknown key of a phrase", found=unknown[0], expected="message, start, end, boxes, text")
    texts = [""] * first + [message["content"] for message in messages]
    try:
        phrase = read_phrase(record.values, texts, "the phrase (its sentence is its message)")
    except ValueError as error:
        raise record.error(str(error)) from None
    record.refuse_if(not phrase.text, "no words", found=(phrase.start, phrase.end), expected="start before end")
    boxes = []
    for box in record.items("boxes"):
        if not are_numbers(box, 4) or not (0 <= box[0] < box[2] <= 1 and 0 <= box[1] < box[3] <= 1):
            expected = "x1 < x2, y1 < y2 in [0, 1]: divided by width and height of the image"
            raise record.error("bad box", found=box, expected=expected)
        boxes.append([float(number) for number in box])
    place = {"sentence": phrase.sentence - first, "start": phrase.start, "end": phrase.end}
    return {"text": phrase.text, **place, "boxes": boxes}
