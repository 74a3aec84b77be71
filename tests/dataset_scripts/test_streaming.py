# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""Files read piece by piece give what a reader of whole files gives, and every damage its own clear error."""

import json
import random
import tracemalloc

import pytest

from grounded_attention.dataset_scripts.builders.conceptual_captions import caption_rows
from grounded_attention.dataset_scripts.builders.gqa import read_questions
from grounded_attention.dataset_scripts.builders.lxmert_pretraining import image_rows
from grounded_attention.dataset_scripts.builders.text_corpus import join_lines
from grounded_attention.dataset_scripts.files import records
from grounded_attention.dataset_scripts.files.errors import DataError, MissingFileError
from grounded_attention.dataset_scripts.files.records import json_elements, json_members, listed, text_lines

HINT = "get it again"


def random_value(rng, depth=0):
    kinds = ["number", "text", "literal"] + (["list", "object"] if depth < 3 else [])
    kind = rng.choice(kinds)
    if kind == "number":
        return rng.choice([0, -1, 3.5e-7, 12345678901234567890, -0.25, 1e22])
    if kind == "text":
        return "".join(rng.choice('ab"\\ \n\t]},é😀') for _ in range(rng.randrange(12)))
    if kind == "literal":
        return rng.choice([True, False, None])
    if kind == "list":
        return [random_value(rng, depth + 1) for _ in range(rng.randrange(4))]
    return {f"k{n}": random_value(rng, depth + 1) for n in range(rng.randrange(4))}


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize("chunk", [1, 7, 64])
def test_elements_are_those_of_the_whole_file(tmp_path, monkeypatch, seed, chunk):
    monkeypatch.setattr(records, "_CHUNK", chunk)
    rng = random.Random(seed)
    path = tmp_path / "x.json"
    elements = [random_value(rng) for _ in range(30)]
    options = {"ensure_ascii": bool(seed % 2), "indent": [None, 2][seed // 2 % 2]}
    path.write_text(json.dumps(elements, **options), encoding="utf-8")
    assert list(json_elements(path, HINT)) == [(None, index, value) for index, value in enumerate(elements)]
    members = {"info": {"a": [1]}, "first": elements[:9], "year": 12.5, "empty": [], "last": elements[9:]}
    path.write_text(json.dumps(members, **options), encoding="utf-8")
    assert list(json_members(path, HINT)) == list(members.items())
    found = {"first": [], "last": []}
    for name, index, value in json_elements(path, HINT):
        assert index == len(found[name])
        found[name].append(value)
    assert found == {"first": members["first"], "last": members["last"]}


@pytest.mark.parametrize(
    "text, message",
    {
        "": "the file ends too early",
        '[{"a": 1}, {"b"': "element 2: .*the file ends too early",
        '[{"a": 1}, {"b": "x': "element 2: the file ends too early",
        '[{"a": 1}': "the file ends too early",
        '{"images": [1, 2': "ends too early",
        "[1, 2] x": "unexpected content after the end",
        "[1 2]": "element 1: not JSON: found '2]', expected ,",
        '[{"a": }]': "element 1: Expecting value",
        "[1, NaN]": "element 2: NaN is not JSON",
        "[1, -1e999]": "element 2: -1e999 is too large for a number",
        '{"a": [1], "a": [2]}': "repeated name",
        "17": "not a list or an object",
        "[" * 100_000: "nested too deeply",
    }.items(),
)
def test_damaged_json_is_an_error(tmp_path, text, message):
    path = tmp_path / "x.json"
    path.write_text(text)
    with pytest.raises(DataError, match=message) as caught:
        list(json_elements(path, HINT))
    assert str(caught.value).startswith(str(path))
    assert str(caught.value).endswith(HINT)


def test_a_member_with_half_a_surrogate_pair_in_its_name_is_an_error(tmp_path):
    path = tmp_path / "x.json"
    path.write_text(json.dumps({"a": [1], "\ud800": [2]}))
    for read in (json_elements, json_members):
        with pytest.raises(DataError, match=r"x\.json, member '.ud800': bad name of a member: .*unpaired surrogates"):
            list(read(path, HINT))


def test_damage_early_in_a_long_file_does_not_read_all_of_it(tmp_path, monkeypatch):
    monkeypatch.setattr(records, "_CHUNK", 256)
    path = tmp_path / "x.json"
    path.write_text('[{"a": tru}, ' + "1, " * 100_000 + "1]")
    tracemalloc.start()
    with pytest.raises(DataError, match="element 1"):
        list(json_elements(path, HINT))
    assert tracemalloc.get_traced_memory()[1] < 100_000
    tracemalloc.stop()


WORDS = "some words " * 1000
GQA_RECORD = """"NUMBER": {"semanticStr": "WORDS", "imageId": "1", "isBalanced": true, "question": "a", "answer": "a",
    "fullAnswer": "a", "entailed": [], "equivalent": [], "groups": {"global": null, "local": null},
    "types": {"structural": "a", "semantic": "a", "detailed": "a"}}"""
LXMERT_RECORD = '{"img_id": "NUMBER", "labelf": {}, "sentf": {"vg": ["WORDS"]}}'


def read_lxmert(path):
    for number, record in enumerate(listed(path, "")):
        yield from image_rows(str(number), record)


# The text of a thousand elements, what is around and between them, and their reader.
LARGE = {
    "elements": ('"WORDS"', "[{}]", ", ", lambda path: json_elements(path, HINT)),
    "gqa": (GQA_RECORD, "{{{}}}", ", ", read_questions),
    "lxmert": (LXMERT_RECORD, "[{}]", ", ", read_lxmert),
    "captions": ("WORDS\thttp://x.org/1.jpg", "{}\n", "\n", lambda path: caption_rows(path, "tsv", "crc32")),
    "corpus": ("WORDS", "{}\n", "\n", lambda path: join_lines(text_lines(path, ""), 0)),
}


@pytest.mark.parametrize("name", LARGE)
def test_memory_is_that_of_an_element(tmp_path, name):
    path = tmp_path / "x.json"
    element, around, between, read = LARGE[name]
    element = element.replace("WORDS", WORDS)
    path.write_text(around.format(between.join(element.replace("NUMBER", str(n)) for n in range(1000))))
    tracemalloc.start()
    assert sum(1 for _ in read(path)) == 1000
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert path.stat().st_size > 8_000_000 > peak


def test_json_that_is_not_utf8_or_missing(tmp_path):
    path = tmp_path / "x.json"
    path.write_bytes(b'["a", "\xff"]')
    with pytest.raises(DataError, match="not valid UTF-8"):
        list(json_elements(path, HINT))
    with pytest.raises(MissingFileError, match=r"gone\.json: the file is missing; get it again"):
        list(json_elements(tmp_path / "gone.json", HINT))


def test_lines_end_at_line_feeds_only(tmp_path):
    path = tmp_path / "x.txt"
    path.write_bytes("\ufeffone\u2028two\x85\rthree\r\n\nfour".encode())
    assert list(text_lines(path, HINT)) == [(1, "one\u2028two\x85\rthree"), (2, ""), (3, "four")]


def test_bad_lines_are_named(tmp_path, monkeypatch):
    path = tmp_path / "x.txt"
    path.write_bytes(b"one\ntwo \xe9\n")
    with pytest.raises(DataError, match=r"x\.txt, line 2: not valid UTF-8: found b'\\xe9'.*get it again"):
        list(text_lines(path, HINT))
    monkeypatch.setattr(records, "MAX_LINE_BYTES", 10)
    path.write_bytes(b"one\n" + b"x" * 1000)
    with pytest.raises(DataError, match=r"line 2: the line is too long"):
        list(text_lines(path, HINT))
    with pytest.raises(MissingFileError, match="the file is missing"):
        list(text_lines(tmp_path / "gone", HINT))
