# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""NLVR2: statements about two images that are true or false, and the official file of predictions."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Literal

from datasets import List, Value

from grounded_attention.dataset_scripts.files.errors import refuse_if
from grounded_attention.dataset_scripts.files.records import Record, json_lines, listed
from grounded_attention.dataset_scripts.licences import ALLOWED, Licence
from grounded_attention.utils.bounded_files import open_data, read_text
from grounded_attention.utils.named_types import Fields
from grounded_attention.utils.whole_files import write_text

from .local_builder import BuildReport, LocalBuilder, LocalConfig, named_splits, texts

HOMEPAGE = "https://lil.nlp.cornell.edu/nlvr/"
HINT = "get train.json, dev.json, test1.json (and test2.json) from nlvr2/data of https://github.com/lil-lab/nlvr"
LICENCE = Licence(
    "cc-by-4.0",
    ALLOWED,
    "The statements are CC BY 4.0; the images belong to others, are available by form only, and are not included.",
    HOMEPAGE,
)
CITATION = """Alane Suhr, Stephanie Zhou, Ally Zhang, Iris Zhang, Huajun Bai, Yoav Artzi. A Corpus for Reasoning about
Natural Language Grounded in Photographs. ACL 2019."""
FEATURES = {
    **texts("example_id", "image_id"),
    "image_ids": List(Value("string"), length=2),
    "text": Value("string"),
    "label": Value("int32"),
}
LABELS = {"true": 1, "false": 0, "1": 1, "0": 0}
PARTS = 4


@dataclass
class NLVR2Config(LocalConfig):
    """Options of [`NLVR2`]."""

    LICENCE = LICENCE
    WHERE = HINT
    SPLIT_NAMES = named_splits("train", "val", "test", "test2")
    REQUIRED = ("train", "val")
    # The official name, and LXMERT's.
    FILES = {
        "train": [("train.json",)],
        "val": [("dev.json", "valid.json")],
        "test": [("test1.json", "test.json")],
        "test2": [("test2.json",)],
    }
    FOLDERS = ("", "nlvr2/data", "nlvr2", "data")
    image_id_format: Literal["identifier", "url_stem"] = "identifier"


class NLVR2(LocalBuilder):
    """One row a statement about two images: `{example_id, image_id, image_ids, text, label}`.

    `example_id` is the official identifier `<split>-<set>-<pair>-<sentence>`. `image_ids` are those of the left and
    the right image, `<split>-<set>-<pair>-img0` and `-img1` (the files' names without `.png`), and `image_id` is their
    common part. `label` is 1 for true, 0 for false, -1 if it is not published. Splits are train, validation (dev), and
    test (test1) and test2 if their files exist; each is the official JSON lines, or LXMERT's JSON list.
    """

    config: NLVR2Config
    BUILDER_CONFIG_CLASS = NLVR2Config
    BUILDER_CONFIGS = [NLVR2Config(name="default")]

    INFO = ("Statements about two images that are true or false.", FEATURES, HOMEPAGE, CITATION)

    def _generate_rows(self, split: str, report: BuildReport) -> Iterator[Fields]:
        [path] = self.config.needed_files(split)
        for row in read_statements(path, self.config.image_id_format):
            report.add("statements")
            report.add({1: "true", 0: "false", -1: "without label"}[row["label"]])
            yield row


def read_statements(path: Path, image_id_format: str = "identifier") -> Iterator[Fields]:
    """Reads a file of statements: the official JSON lines, or LXMERT's list, whose fields have names of their own."""
    ids: set[str] = set()
    for record in _records(path):
        identifier = record.non_empty_text("identifier")
        parts = identifier.split("-")
        if len(parts) != PARTS or not parts[0] or not all(part.isdecimal() for part in parts[1:]):
            expected = "<split>-<set>-<pair>-<sentence>, such as dev-850-0-1"
            raise record.error("bad identifier", found=identifier, expected=expected)
        pair = "-".join(parts[:-1])
        record.add_once(identifier, ids, "the example occurs twice", "unique identifiers")
        label = record.values.get("label")
        if label is not None and str(label).lower() not in LABELS:
            raise record.error(f"bad label of {identifier}", found=label, expected="True or False, 1 or 0")
        lxmert = "sent" in record.values
        image_ids = [f"{pair}-img0", f"{pair}-img1"]
        if image_id_format == "url_stem":
            image_ids = [PurePosixPath(record.non_empty_text(f"{side}_url")).stem for side in ("left", "right")]
        elif lxmert:
            image_ids = [record.non_empty_text(name) for name in ("img0", "img1")]
        yield {
            "example_id": identifier,
            "image_id": pair,
            "image_ids": image_ids,
            "text": record.non_empty_text("sent" if lxmert else "sentence"),
            "label": -1 if label is None else LABELS[str(label).lower()],
        }
    refuse_if(not ids, "no statements", file=path, expected="a JSON object a line", hint=HINT)


def _records(path: Path) -> Iterator[Record]:
    with open_data(path) as file:
        is_list = file.read(64).decode("utf-8-sig", "replace").lstrip().startswith("[")
    if is_list:
        return listed(path, HINT)
    return json_lines(path, HINT)


def write_predictions(path: Path, answers: Mapping[str, bool]) -> None:
    """Writes predictions in the official format: lines `<identifier>,True` or `<identifier>,False`."""
    write_text(path, "".join(f"{key},{bool(value)}\n" for key, value in answers.items()))


def read_predictions(path: Path) -> dict[str, str]:
    """Reads the predictions of such a file, True or False in any case."""
    answers: dict[str, str] = {}
    for number, line in enumerate(read_text(path).splitlines(), 1):
        identifier, _, answer = (part.strip() for part in line.partition(","))
        about: Fields = {"file": path, "where": f"line {number}", "found": line}
        expected = "an identifier, a comma, and True or False"
        refuse_if(answer.lower() not in ("true", "false"), "bad prediction", **about, expected=expected)
        refuse_if(identifier in answers, "the statement has two predictions", **about, expected="one")
        answers[identifier] = answer.capitalize()
    return answers
