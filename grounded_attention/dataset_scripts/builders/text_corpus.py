# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""A corpus of plain text, one sentence a line, a blank line between documents; read one line at a time.

VL-BERT's public code pre-trains on such files of books and Wikipedia. It starts a row at every line and appends the
following lines up to 64 words, so each sentence is in several rows. With `join_until=64` rows have as many lines, but
each line is in one row only, and a row never crosses the end of a document.
"""

import glob
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from annotated_types import Ge
from datasets import Value
from tokenizers.normalizers import BertNormalizer
from tokenizers.pre_tokenizers import BertPreTokenizer

from grounded_attention.dataset_scripts.files.errors import MissingFileError, refuse_if
from grounded_attention.dataset_scripts.files.records import text_lines
from grounded_attention.dataset_scripts.licences import USER_TEXTS

from .local_builder import BuildReport, LocalBuilder, LocalConfig, named_splits

HINT = "expected UTF-8 text, one sentence a line"
FEATURES = {"text_id": Value("string"), "text": Value("string")}
_NORMALIZER = BertNormalizer()
_SPLITTER = BertPreTokenizer()


@dataclass
class TextCorpusConfig(LocalConfig):
    """Options of [`TextCorpus`]."""

    LICENCE = USER_TEXTS
    WHERE = HINT
    SPLIT_NAMES = named_splits("train")

    join_until: Annotated[int, Ge(0)] = 0

    def sources(self) -> list[Path]:
        if self.data_dir:
            return self.paths()
        return []

    def paths(self) -> list[Path]:
        """Returns the files: `data_dir` itself, `*.txt` in the folder, or what the pattern matches."""
        if self.root.is_file():
            return [self.root]
        if self.root.is_dir():
            return sorted(path for path in self.root.glob("*.txt") if path.is_file())
        return [Path(path) for path in sorted(glob.glob(str(self.root))) if Path(path).is_file()]

    def check(self) -> None:
        super().check()
        if not self.paths():
            expected = "a text file, a folder with *.txt, or a pattern of files"
            raise MissingFileError("no text files", file=self.data_dir, expected=expected, hint=HINT)


class TextCorpus(LocalBuilder):
    """One row a line, or several lines joined: `{text_id, text}`; all rows are in the split `train`.

    `data_dir` is a text file, a folder with `*.txt`, or a pattern of files. `text_id` is `<file name>:<number of the
    row's first line>`. Blank lines end a document and belong to no row. Words are counted as BERT's tokenizer
    splits a text before it makes word pieces. Only one row is in memory.
    """

    config: TextCorpusConfig
    BUILDER_CONFIG_CLASS = TextCorpusConfig
    BUILDER_CONFIGS = [TextCorpusConfig(name="default")]

    INFO = ("Sentences of plain text files.", FEATURES, "", "")

    def _generate_rows(self, split: str, report: BuildReport) -> Iterator[dict[str, str]]:
        for path in self.config.paths():
            report.add("files")
            for number, text in join_lines(_count_lines(text_lines(path, HINT), report), self.config.join_until):
                report.add("rows")
                yield {"text_id": f"{path.name}:{number}", "text": text}
        lines = report.counts["lines"]
        refuse_if(not lines, "no text in the files", file=self.config.data_dir, expected="one sentence a line")


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
