# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""A corpus of plain text, one sentence a line, a blank line between documents; read one line at a time.

VL-BERT's public code pre-trains on such files of books and Wikipedia. It starts a row at every line and appends the
following lines up to 64 words, so each sentence is in several rows. With `join_until=64` rows have as many lines, but
each line is in one row only, and a row never crosses the end of a document.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import datasets
from datasets import Value
from tokenizers.normalizers import BertNormalizer
from tokenizers.pre_tokenizers import BertPreTokenizer

from grounded_attention.dataset_scripts.files.errors import DataError, MissingFileError, refuse_if
from grounded_attention.dataset_scripts.files.streaming import text_lines
from grounded_attention.dataset_scripts.licences import USER_TEXTS, Licence

from .local_builder import SPLITS, BuildReport, LocalBuilder, LocalConfig

HINT = "expected UTF-8 text, one sentence a line"
FEATURES = {"text_id": Value("string"), "text": Value("string")}
_NORMALIZER = BertNormalizer()
_SPLITTER = BertPreTokenizer()


@dataclass
class TextCorpusConfig(LocalConfig):
    """Options of [`TextCorpus`]."""

    LICENCE: ClassVar[Licence] = USER_TEXTS

    files: str = "*.txt"
    min_words: int = 1
    join_until: int = 0

    def sources(self) -> list[Path]:
        if self.data_dir:
            return self.paths()
        return []

    def paths(self) -> list[Path]:
        """Returns the files: `data_dir` itself if it is a file, else the files in it that match `files`."""
        place = Path(self.data_dir or ".")
        if place.is_file():
            return [place]
        patterns: Sequence[str] = [pattern.strip() for pattern in self.files.split(",") if pattern.strip()]
        for pattern in patterns:
            if Path(pattern).is_absolute() or ".." in Path(pattern).parts:
                expected = f"names or patterns of files in {place}: no '..', not absolute"
                raise DataError("bad option files", found=pattern, expected=expected)
        files = [path for pattern in patterns for path in sorted(place.glob(pattern)) if path.is_file()]
        return list(dict.fromkeys(files))

    def check(self) -> None:
        if self.data_dir is None:
            raise DataError("data_dir is missing", hint="pass the folder of the text files, or a file, as data_dir")
        for option in ("min_words", "join_until"):
            value = getattr(self, option)
            if type(value) is not int or value < 0:
                raise DataError(f"bad option {option}", found=value, expected="a whole number from 0")
        if not Path(self.data_dir).exists():
            raise MissingFileError("there is no such file or folder", file=self.data_dir, hint=HINT)
        if not self.paths():
            hint = "list the files as files=NAME,NAME, or give one file as data_dir"
            raise MissingFileError(f"no files {self.files} here", file=self.data_dir, hint=hint)


class TextCorpus(LocalBuilder):
    """One row a line, or several lines joined: `{text_id, text}`; all rows are in the split `train`.

    `data_dir` is a text file, or a folder with `*.txt` (or the files of `files`). `text_id` is `<file name>:<number of
    the row's first line>`. Blank lines end a document and belong to no row. Words are counted as BERT's tokenizer
    splits a text before it makes word pieces. Only one row is in memory.
    """

    config: TextCorpusConfig
    BUILDER_CONFIG_CLASS = TextCorpusConfig
    BUILDER_CONFIGS = [TextCorpusConfig(name="default")]

    INFO = ("Sentences of plain text files.", FEATURES, "", "")

    def _split_generators(self, dl_manager: Any) -> list[datasets.SplitGenerator]:
        requested = self.config.requested_splits(("train",))
        self.config.check()
        return [datasets.SplitGenerator(name=SPLITS[split], gen_kwargs={"split": split}) for split in requested]

    def _generate_rows(self, split: str, report: BuildReport) -> Iterator[dict[str, str]]:
        root = Path(self.config.data_dir or ".")
        for path in self.config.paths():
            report.add("files")
            name = path.name if path == root else path.relative_to(root).as_posix()
            for number, text in join_lines(_count_lines(text_lines(path, HINT), report), self.config.join_until):
                text_id = f"{name}:{number}"
                if self.config.min_words > 1 and count_words(text) < self.config.min_words:
                    report.add("rows_too_short", text_id)
                    continue
                report.add("rows")
                yield {"text_id": text_id, "text": text}
        refuse_if(not report.counts["lines"], "no text in the files", file=root, expected="one sentence a line")


def join_lines(lines: Iterable[tuple[int, str]], join_until: int) -> Iterator[tuple[int, str]]:
    """Joins lines with a space until each row has enough words; a blank line ends a row and is part of none."""
    first = 0
    row = list[str]()
    words = 0
    for number, line in lines:
        text = line.strip()
        if text:
            if not row:
                first = number
            row.append(text)
            words += count_words(text) if join_until else 0
        if row and (not text or words >= join_until):
            yield first, " ".join(row)
            row = []
            words = 0
    if row:
        yield first, " ".join(row)


def count_words(text: str) -> int:
    """Counts the words and punctuation marks into which BERT's tokenizer splits a text."""
    return len(_SPLITTER.pre_tokenize_str(_NORMALIZER.normalize_str(text)))


def _count_lines(lines: Iterable[tuple[int, str]], report: BuildReport) -> Iterator[tuple[int, str]]:
    for number, line in lines:
        report.add("lines" if line.strip() else "blank_lines")
        yield number, line
