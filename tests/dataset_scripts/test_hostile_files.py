# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""Files made to hang a reader, to fill the memory or to end it with a traceback: each is one error, at once."""

import gzip
import json
import multiprocessing
import os
import pickle
import resource
import signal
import struct
import time
import tracemalloc
import zipfile
import zlib
from contextlib import contextmanager, suppress
from functools import partial
from itertools import pairwise

import h5py
import lmdb
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from PIL import Image
from tokenizers import Regex, Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import Split

from grounded_attention.commands.command_line import make_parser, run
from grounded_attention.commands.key_values import settings
from grounded_attention.conversion.file import read_checkpoint, read_overrides
from grounded_attention.dataset_scripts.builders.conceptual_captions import _parse_json
from grounded_attention.dataset_scripts.builders.flickr30k_entities import parse_annotation, parse_unrelated
from grounded_attention.dataset_scripts.builders.nlvr2 import _records
from grounded_attention.dataset_scripts.builders.refcoco import read_refs
from grounded_attention.dataset_scripts.builders.vcr import read_objects
from grounded_attention.dataset_scripts.builders.vgp_pairs import KINDS, read_pairs
from grounded_attention.dataset_scripts.files.errors import DataError
from grounded_attention.dataset_scripts.files.safe_pickle import load_pickle, loads
from grounded_attention.dataset_scripts.files.streaming import json_elements, json_members, text_lines
from grounded_attention.dataset_scripts.regions.boxes import read_boxes
from grounded_attention.dataset_scripts.regions.files import KIND as REGION_TABLE
from grounded_attention.dataset_scripts.regions.readers import READERS, read_regions
from grounded_attention.dataset_scripts.rows import sources
from grounded_attention.dataset_scripts.rows.box_texts import asked_for, find_mentions
from grounded_attention.dataset_scripts.rows.raw import RowError
from grounded_attention.dataset_scripts.rows.reader import grounded_rows
from grounded_attention.tasks.answer_lists import read_answers
from grounded_attention.training.recipes.recipe import RecipeError, apply_override, read_yaml
from grounded_attention.utils.bounded_files import MAX_CONFIG_BYTES, FileError, read_text
from grounded_attention.utils.open_images import MAX_PIXELS, open_image
from grounded_attention.utils.safe_paths import check_weight_index
from tests.helpers.warm_python import ROOT, run_python

SECONDS = 60
HINT = "get it again"
JSON_READERS = {
    "answers": lambda path: read_answers(str(path), []),
    "boxes": read_boxes,
    "config fields": read_overrides,
    "elements": lambda path: list(json_elements(path, HINT)),
    "members": lambda path: list(json_members(path, HINT)),
    "nlvr2": lambda path: list(_records(path)),
    "objects": read_objects,
    "refs": lambda path: list(read_refs(path)),
    "region manifest": REGION_TABLE.read,
}
READERS_OF_FILES = {
    **JSON_READERS,
    "annotation": parse_annotation,
    "checkpoint": read_checkpoint,
    "lines": lambda path: list(text_lines(path, HINT)),
    "pairs": lambda path: read_pairs(path, KINDS["binary"]),
    "pickle": load_pickle,
    "recipe": read_yaml,
    "unrelated": parse_unrelated,
    **{f"regions, {name}": lambda path, name=name: list(read_regions(path, name, 8)) for name in (*READERS, "auto")},
}


@contextmanager
def at_once():
    """Fails after some seconds, also if a system call waits."""

    def stop(*_):
        raise AssertionError("the reader hangs")

    before = signal.signal(signal.SIGALRM, stop)
    signal.alarm(SECONDS)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


@pytest.mark.parametrize("content", ["[" * 100_000, '{"a":' * 100_000, '[{"a": ' * 50_000])
@pytest.mark.parametrize("name", JSON_READERS)
def test_nested_json(tmp_path, name, content):
    path = tmp_path / "refs.json"
    path.write_text(content)
    with at_once(), pytest.raises(ValueError, match=r"refs\.json") as caught:
        JSON_READERS[name](path)
    assert not isinstance(caught.value, json.JSONDecodeError)
    assert len(str(caught.value)) < 1000


@pytest.mark.parametrize("name", JSON_READERS)
def test_numbers_with_too_many_digits(tmp_path, name):
    path = tmp_path / "refs.json"
    path.write_text(f'[{{"a": {"9" * 5000}}}]' if name not in ("members", "objects") else f'{{"a": {"9" * 5000}}}')
    with pytest.raises(ValueError, match=r"refs\.json.*digits") as caught:
        JSON_READERS[name](path)
    assert len(str(caught.value)) < 1000


ROWS = (
    '"phrases": [{"text": "a", "boxes": [[0, 0, 1, 1], [%s, 0, 1, 1]]}]',
    '"phrases": [{"text": "a", "boxes": [[0, 0, 1, 1]], "start": %s, "end": 1}]',
    '"phrases": [{"text": "a", "boxes": [[0, 0, 1, 1]], "weight": %s}]',
    '"phrases": [{"text": "a", "boxes": [[0, 0, 1, 1]]}], "width": %s, "height": 4',
    '"objects": {"bbox": [[%s, 1, 1, 2]], "category": [1]}',
    '"bbox": [%s, 1, 2, 3], "label": "a"',
    '"mask": {"counts": [%s, 3], "size": [4, 4]}',
    '"mask": {"counts": [4, 12], "size": [%s, 4]}',
)


@pytest.mark.parametrize("number", ["9" * 4000, "-" + "9" * 4000, "1e999"])
@pytest.mark.parametrize("row", ROWS)
def test_rows_with_numbers_beyond_those_of_floats(tmp_path, row, number):
    Image.new("RGB", (4, 4)).save(tmp_path / "a.png")
    (tmp_path / "rows.jsonl").write_text(f'{{"image": "a.png", "caption": "a", {row % number}}}\n')
    with pytest.raises(ValueError, match=r"rows\.jsonl, line 1") as caught:
        list(grounded_rows(tmp_path / "rows.jsonl"))
    assert len(str(caught.value)) < 10_000


TEXTS = {
    "gzip": (gzip.compress(b'{"a": 1}'), "compressed with gzip"),
    "utf-16": ('{"a": 1}'.encode("utf-16"), "UTF-16"),
    "nul": (b'{"a":\n "b\0c"}', "line 2: a NUL byte"),
    "latin1": (b'{"a":\n\n "\xe9"}', "line 3: not valid UTF-8"),
}


@pytest.mark.parametrize("kind", TEXTS)
def test_files_that_are_no_utf8_text(tmp_path, kind):
    content, message = TEXTS[kind]
    path = tmp_path / "data.json"
    path.write_bytes(content)
    with pytest.raises(FileError, match=message):
        read_text(path)
    for name, read in READERS_OF_FILES.items():
        if (kind != "gzip" and name in ("pickle", "checkpoint", "annotation")) or name.startswith("regions"):
            continue
        with pytest.raises(ValueError, match=r"data\.json") as caught:
            read(path)
        assert "\0" not in str(caught.value), name
        if kind == "gzip" and name != "checkpoint":
            assert "gzip" in str(caught.value), name


def test_a_byte_order_mark_is_skipped_everywhere(tmp_path):
    path = tmp_path / "data.json"
    mark = b"\xef\xbb\xbf"
    path.write_bytes(mark + b'["yes", "no"]')
    assert read_answers(str(path), []) == ["yes", "no"]
    assert [element for *_, element in json_elements(path, HINT)] == ["yes", "no"]
    path.write_bytes(mark + b'{"hidden_size": 8}')
    assert read_overrides(path) == {"hidden_size": 8} == dict(json_members(path, HINT)) == read_yaml(path)
    path.write_bytes(mark + b"a")
    assert list(text_lines(path, HINT)) == [(1, "a")]


@pytest.mark.parametrize("before", [0, 1, 3000, 70_000])
def test_a_bad_byte_names_its_place(tmp_path, before):
    """Also far behind the start, and where the reader is pieces ahead."""
    path = tmp_path / "large.json"
    elements = [json.dumps({"id": number, "text": "größe" * 5}, ensure_ascii=False) for number in range(before)]
    content = ("[" + "".join(f"{element}, " for element in elements) + '{"id": "').encode()
    path.write_bytes(content + b'\xff"}, {"id": 7}]')
    with pytest.raises(DataError, match=rf"byte {len(content)}\b.*not valid UTF-8"):
        list(json_elements(path, HINT))


YAML = {
    "nested lists": "a: " + "[" * 500,
    "nested sections": "a: " + "{a: " * 500,
    "digits": "seed: " + "9" * 5000,
    "code": "seed: !!python/object/apply:os.system [echo]",
    "unknown tag": "seed: !mine 3",
    "date": "seed: !!timestamp 2020-01-02",
    "bytes": "seed: !!binary AHg=",
    "set": "seed: !!set {a}",
    "no number": "seed: !!int soon",
    "no truth": "seed: !!bool soon",
    "long": "seed: " + "x" * (MAX_CONFIG_BYTES + 1),
}


@pytest.mark.parametrize("name", YAML)
def test_hostile_yaml(tmp_path, name):
    path = tmp_path / "recipe.yaml"
    path.write_text(YAML[name])
    with at_once(), pytest.raises(RecipeError, match=r"recipe\.yaml") as caught:
        read_yaml(path)
    assert len(str(caught.value)) < 1000
    value = YAML[name].partition(": ")[2]
    if "\n" not in YAML[name]:
        with at_once(), pytest.raises(RecipeError, match="override seed"):
            apply_override({}, f"seed={value}")
        with at_once(), pytest.raises(FileError, match=r"--set options\.seed"):
            settings([f"options.seed={value}"])


DEEP = "[" * 900 + "1" + "]" * 900  # JSON reads it, a function of Python that calls itself does not
ROW_FILES = {
    "deep.jsonl": f'{{"image": "a.png", "caption": "a", "boxes": {DEEP}}}\n',
    "deep.csv": f'image,caption,boxes\na.png,a,"{DEEP}"\n',
    "deeper.csv": f'image,caption,boxes\na.png,a,"{DEEP * 99}"\n'.replace("][", "]*99+["),
    "many.jsonl": f'{{"image": "a.png", "caption": "a", "boxes": {[[1, 2, 3, 4]] * 70_000}}}\n',
    "nul.csv": "image,caption\na.png,a\0\n",
    "twice.csv": "image,caption,caption\na.png,a,b\n",
}


@pytest.mark.parametrize("name", ROW_FILES)
def test_rows_that_are_deep_or_ambiguous(tmp_path, name):
    (tmp_path / name).write_text(ROW_FILES[name])
    Image.new("RGB", (5, 4)).save(tmp_path / "a.png")
    with pytest.raises(DataError, match=rf"{name}.*(line 1|line 2|twice: found 'caption')"):
        list(grounded_rows(tmp_path / name, boxes="xyxy pixels"))


def test_columns_that_are_twice_in_parquet(tmp_path):
    pq.write_table(pa.Table.from_arrays([pa.array(["a"])] * 2, names=["text", "text"]), tmp_path / "a.parquet")
    with pytest.raises(DataError, match="a column is there twice: found 'text'"):
        grounded_rows(tmp_path / "a.parquet")


@pytest.mark.parametrize(
    "meta", ["[" * 100_000, '{"info": {"features": {"text": {"_type": "ClassLabel", "names": 5}}}}']
)
def test_features_of_a_parquet_file_that_say_nothing(tmp_path, meta):
    table = pa.table({"image": ["a.png"], "text": ["a"]}).replace_schema_metadata({"huggingface": meta})
    pq.write_table(table, tmp_path / "a.parquet")
    Image.new("RGB", (5, 4)).save(tmp_path / "a.png")
    assert [row["text"] for row in grounded_rows(tmp_path / "a.parquet")] == ["a"]


@pytest.mark.parametrize("kind", ["jsonl", "json", "csv", "parquet"])
def test_a_pipe_is_no_file_of_rows(tmp_path, kind):
    os.mkfifo(tmp_path / f"rows.{kind}")
    with at_once(), pytest.raises((DataError, FileError), match="not a regular file"):
        list(grounded_rows(tmp_path / f"rows.{kind}"))


def test_a_damaged_record_of_conceptual_captions(tmp_path):
    for line in ("[" * 100_000, "9" * 5000):
        with pytest.raises(DataError, match=r"x\.jsonl, line 3"):
            _parse_json(line, tmp_path / "x.jsonl", "line 3")


def test_csv_errors_name_the_line(tmp_path):
    path = tmp_path / "x.csv"
    path.write_text('image,original_phrase1,original_phrase2,ytrue\n1.jpg,a,b,True\n1.jpg,"a"b,c,True\n')
    with pytest.raises(DataError, match=r"x\.csv, line 3: not readable as CSV"):
        read_pairs(path, KINDS["binary"])


def peak_of(read):
    """What a process of its own that reads has had at most above what it had before, in bytes."""
    receiver, sender = multiprocessing.Pipe(duplex=False)

    def work():
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        try:
            read()
            found = "no error"
        except ValueError as error:
            found = str(error)
        sender.send((found, (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) * 1024))

    process = multiprocessing.get_context("fork").Process(target=work)
    process.start()
    found = receiver.recv()
    process.join()
    return found


def fan_of(folder):
    """Eight pages whose entries all lead to the next one: 10^13 ways, in 20 MB."""
    with lmdb.open(str(folder), map_size=2**28) as environment, environment.begin(write=True) as transaction:
        for number in range(40_000):
            transaction.put(b"%08d" % number * 8, b"x" * 300)
    content = bytearray((folder / "data.mdb").read_bytes())

    def entries(page):
        count = (struct.unpack_from("<H", content, page + 12)[0] - 16) // 2
        return [page + struct.unpack_from("<H", content, page + 16 + 2 * number)[0] for number in range(count)]

    inner = [page for page in range(8192, len(content), 4096) if content[page + 10] & 1]
    chain = sorted(inner, key=lambda page: -len(entries(page)))[:8]
    for page, following in pairwise(chain):
        for entry in entries(page):
            struct.pack_into("<IH", content, entry, following // 4096, 0)
    for head in (16 + 24 + 48, 4096 + 16 + 24 + 48):  # of the two records of the root: entries and its page
        struct.pack_into("<QQ", content, head + 32, 2**40, chain[0] // 4096)
    (folder / "data.mdb").write_bytes(content)
    return lambda: list(read_regions(folder, "lmdb", 8))


def csv_of(path):
    path.write_text("image,caption\na.png," + '"\nb",' * 10_000_000)
    return lambda: list(grounded_rows(path))


def h5_of(path):
    with h5py.File(path, "w") as file:
        for name, width in (("image_features", 8), ("image_bb", 4), ("spatial_features", 6)):
            file.create_dataset(name, (1, 2**37, width), "f4", chunks=(1, 2**16, width))
    path.with_name(f"{path.stem}_imgid2idx.pkl").write_bytes(pickle.dumps({"7": 0}))
    return lambda: [record.read() for record in read_regions(path, "h5", 8)]


def deep_refs_of(path):
    path.write_bytes(b"\x80\x04" + b"]" * 100_000 + b"a" * 99_999 + b".")
    return lambda: list(read_refs(path))


def torch_of(path):
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive, archive.open("x/data.pkl", "w") as file:
        for _ in range(1000):
            file.write(b"N" * 2**20)
    return lambda: read_checkpoint(path)


def run_of(path):
    """A run length of a million digits, which would take quadratic time."""
    path.write_text(json.dumps({"image": "a.png", "caption": "a", "mask": {"counts": "o" * 2**20, "size": [4, 5]}}))
    Image.new("RGB", (5, 4)).save(path.with_name("a.png"))
    return lambda: list(grounded_rows(path))


def safetensors_of(path):
    """A header that claims 100 MB, which its library would take."""
    path.write_bytes((10**8).to_bytes(8, "little") + b"{")
    os.truncate(path, 10**8 + 8)
    return lambda: check_weight_index(path.parent)


FILES = {
    "fan": fan_of,
    "rows.csv": csv_of,
    "h5.h5": h5_of,
    "deep(unc).p": deep_refs_of,
    "model.th": torch_of,
    "runs.jsonl": run_of,
    "model.safetensors": safetensors_of,
}


def measure(folder):
    """Name of a file -> the error of its reader, the peak of memory, and the seconds of computing."""
    sources.LONGEST_ROW = 2**22
    measured = {}
    for name, make in FILES.items():
        begin = os.times().children_user
        measured[name] = (*peak_of(make(folder / name)), os.times().children_user - begin)
    return measured


@pytest.fixture(scope="module")
def costs(tmp_path_factory):
    """`measure` in a new process: memory that tests have left free in this one would be used up first."""
    code = (
        "import json, pathlib, sys, tests.dataset_scripts.test_hostile_files as files\n"
        "print(json.dumps(files.measure(pathlib.Path(sys.argv[1]))))"
    )
    done = run_python(code, [tmp_path_factory.mktemp("files")], cwd=ROOT, env=os.environ)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.mark.parametrize("name", FILES)
def test_a_file_that_would_fill_the_memory(costs, name):
    """Whatever library reads it: at most this much memory and computing above what the process had."""
    found, peak, seconds = costs[name]
    assert any(
        mark in found
        for mark in (
            "damaged",
            "nested",
            "not a NumPy array",
            "no end",
            "header of",
            "too long",
            "too large",
            "unpacks",
        )
    ), found
    assert peak < 1.4 * 2**27
    assert seconds < 8


def test_a_regular_expression_without_end_is_one_line(capsys):
    tokenizer = Tokenizer(WordLevel({"a": 0, "?": 1}, unk_token="?"))
    tokenizer.pre_tokenizer = Split(Regex("(a+)+$"), "removed", invert=True)
    work = partial(tokenizer.encode, "a" * 60 + "!")
    with at_once():
        assert run(make_parser("read", "examples:\n  none"), lambda options: work(), []) == 2
    assert "error: a text cannot be read" in capsys.readouterr().err


MARKS = (
    "[",
    "0.1, ",
    " ",
    "<object>",
    "<points",
    "<|begin_of_box|>",
    '{"bbox_2d": [',
    '{"',
    "<ref>",
    "“",
    "<|vision_start|>",
)


@pytest.mark.parametrize("mark", MARKS)
def test_a_text_of_many_marks_takes_no_quadratic_time(mark):
    """Marks of boxes without their ends, each of which could be looked for from the next one on again."""
    begin = time.process_time()
    for find in (find_mentions, asked_for):
        with suppress(RowError):  # of a form that is nested too deeply
            find(mark * (100_000 // len(mark)))
    assert time.process_time() - begin < 10


def test_usual_pickles_are_far_below_the_bounds():
    row = {"ref_id": 1, "sentences": [{"tokens": ["two", "dogs"], "sent": "two dogs", "sent_id": n} for n in range(3)]}
    rows = [{**row, "ref_id": n, "file": f"COCO_{n}.jpg"} for n in range(20_000)]
    assert loads(pickle.dumps(rows)) == rows
    arrays = [np.full((36, 64), n, np.float32) for n in range(50)]
    assert all((found == array).all() for found, array in zip(loads(pickle.dumps(arrays)), arrays, strict=True))


def png(width, height):
    """A picture whose header claims a size."""

    def chunk(kind, content):
        body = kind + content
        return struct.pack(">I", len(content)) + body + struct.pack(">I", zlib.crc32(body))

    header = struct.pack(">IIBBBBB", width, height, 8, 6, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(b"")) + chunk(b"IEND", b"")


def test_a_picture_that_claims_many_pixels(tmp_path):
    path = tmp_path / "large.png"
    path.write_bytes(png(14_200, 14_100))  # PIL itself refuses less
    assert 14_200 * 14_100 > MAX_PIXELS
    Image.init()  # the readers of PIL are imported once
    tracemalloc.start()
    try:
        with pytest.raises(ValueError, match=r"large\.png.*14200 x 14100 are more than"):
            open_image(path)
        assert tracemalloc.get_traced_memory()[1] < 1 << 20
    finally:
        tracemalloc.stop()
