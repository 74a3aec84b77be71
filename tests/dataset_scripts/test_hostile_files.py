# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""Files made to hang a reader, to fill the memory or to end it with a traceback: each is one error, at once."""

import gzip
import json
import os
import pickle
import re
import resource
import signal
import struct
import time
import tracemalloc
import zipfile
import zlib
from contextlib import contextmanager, suppress
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
from grounded_attention.commands.rows_options import settings
from grounded_attention.conversion.file import read_checkpoint, read_overrides
from grounded_attention.dataset_scripts.builders.conceptual_captions import caption_rows
from grounded_attention.dataset_scripts.builders.flickr30k_entities import parse_annotation, parse_unrelated
from grounded_attention.dataset_scripts.builders.nlvr2 import _records
from grounded_attention.dataset_scripts.builders.refcoco import read_refs
from grounded_attention.dataset_scripts.builders.vcr import read_objects
from grounded_attention.dataset_scripts.builders.vgp_pairs import KINDS, read_pairs
from grounded_attention.dataset_scripts.files.errors import DataError
from grounded_attention.dataset_scripts.files.records import json_elements, json_members, text_lines
from grounded_attention.dataset_scripts.files.safe_pickle import load_pickle, loads
from grounded_attention.dataset_scripts.regions.boxes import read_boxes
from grounded_attention.dataset_scripts.regions.readers import read_regions
from grounded_attention.dataset_scripts.regions.shards import KIND as REGION_TABLE
from grounded_attention.dataset_scripts.rows import sources
from grounded_attention.dataset_scripts.rows.box_texts import asked_for, find_mentions
from grounded_attention.dataset_scripts.rows.raw import RowError
from grounded_attention.dataset_scripts.rows.reader import grounded_rows
from grounded_attention.tasks.answering import read_answers
from grounded_attention.training.recipes.recipe import RecipeError, apply_override, read_yaml
from grounded_attention.utils.bounded_files import MAX_CONFIG_BYTES, FileError, read_text
from grounded_attention.utils.open_images import MAX_PIXELS, open_image
from grounded_attention.utils.safe_paths import check_weight_index
from tests.campaign.sandbox import run_apart
from tests.helpers.warm_python import ROOT, run_python

SECONDS = 60
HINT = "get it again"
JSON_READERS = {
    "answers": lambda path: read_answers(str(path), []),
    "boxes": read_boxes,
    "captions": lambda path: list(caption_rows(path, "json_lines", "row")),
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


def assert_refused(read, path, content, words="", error=ValueError):
    """Writes a file; its reader must refuse it at once, in few words that name it."""
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    with at_once(), pytest.raises(error, match=rf"{path.name}.*{words}") as caught:
        read(path)
    assert not isinstance(caught.value, json.JSONDecodeError)
    assert "\0" not in str(caught.value)
    assert len(str(caught.value)) < 5000


@pytest.fixture
def folder(tmp_path):
    """A folder with a picture."""
    Image.new("RGB", (4, 4)).save(tmp_path / "a.png")
    return tmp_path


@pytest.mark.parametrize("content", ["[" * 100_000, '{"a":' * 100_000, '[{"a": ' * 50_000])
@pytest.mark.parametrize("name", JSON_READERS)
def test_nested_json(tmp_path, name, content):
    assert_refused(JSON_READERS[name], tmp_path / "refs.json", content)


@pytest.mark.parametrize("name", JSON_READERS)
def test_numbers_with_too_many_digits(tmp_path, name):
    record = f'{{"a": {"9" * 5000}}}'
    content = record if name in ("members", "objects", "captions") else f"[{record}]"
    assert_refused(JSON_READERS[name], tmp_path / "refs.json", content, "digits")


def read_rows(path):
    return list(grounded_rows(path, boxes="xyxy pixels"))


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
def test_rows_with_numbers_beyond_those_of_floats(folder, row, number):
    content = f'{{"image": "a.png", "caption": "a", {row % number}}}\n'
    assert_refused(lambda path: list(grounded_rows(path)), folder / "rows.jsonl", content, "line 1")


TEXTS = {
    "utf-16": ('{"a": 1}'.encode("utf-16"), "UTF-16"),
    "nul": (b'{"a":\n "b\0c"}', "line 2: a NUL byte"),
    "latin1": (b'{"a":\n\n "\xe9"}', "line 3: not valid UTF-8"),
}
BINARY = {"pickle", "checkpoint", "annotation"}


@pytest.mark.parametrize("content, words", TEXTS.values(), ids=TEXTS)
def test_files_that_are_no_utf8_text(tmp_path, content, words):
    assert_refused(read_text, tmp_path / "data.json", content, words)
    for name in READERS_OF_FILES.keys() - BINARY:
        assert_refused(READERS_OF_FILES[name], tmp_path / "data.json", content)


@pytest.mark.parametrize("name", sorted(READERS_OF_FILES.keys() - {"checkpoint"}))
def test_a_compressed_file_is_called_so(tmp_path, name):
    assert_refused(READERS_OF_FILES[name], tmp_path / "data.json", gzip.compress(b'{"a": 1}'), "gzip")


def test_a_byte_order_mark_is_skipped_everywhere(tmp_path):
    path = tmp_path / "data.json"
    path.write_text('["yes", "no"]', encoding="utf-8-sig")
    assert read_answers(str(path), []) == ["yes", "no"]
    assert [element for *_, element in json_elements(path, HINT)] == ["yes", "no"]
    path.write_text('{"hidden_size": 8}', encoding="utf-8-sig")
    for read in (read_overrides, read_yaml, lambda path: dict(json_members(path, HINT))):
        assert read(path) == {"hidden_size": 8}
    path.write_text("a", encoding="utf-8-sig")
    assert list(text_lines(path, HINT)) == [(1, "a")]


@pytest.mark.parametrize("before", [0, 1, 3000, 70_000])
def test_a_bad_byte_names_its_place(tmp_path, before):
    """Also far behind the start, and where the reader is pieces ahead."""
    content = ("[" + '{"id": 7, "text": "größegrößegrößegrößegröße"}, ' * before + '{"id": "').encode()
    words = rf"byte {len(content)}\b.*not valid UTF-8"
    damaged = content + b'\xff"}, {"id": 7}]'
    assert_refused(lambda path: list(json_elements(path, HINT)), tmp_path / "large.json", damaged, words)


VALUES = {
    "nested lists": "[" * 500,
    "nested sections": "{a: " * 500,
    "digits": "9" * 5000,
    "code": "!!python/object/apply:os.system [echo]",
    "unknown tag": "!mine 3",
    "date": "!!timestamp 2020-01-02",
    "bytes": "!!binary AHg=",
    "set": "!!set {a}",
    "no number": "!!int soon",
    "no truth": "!!bool soon",
    "long": "x" * (MAX_CONFIG_BYTES + 1),
}


@pytest.mark.parametrize("value", VALUES.values(), ids=VALUES)
def test_hostile_yaml(tmp_path, value):
    assert_refused(read_yaml, tmp_path / "recipe.yaml", f"seed: {value}", error=RecipeError)
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
def test_rows_that_are_deep_or_ambiguous(folder, name):
    assert_refused(read_rows, folder / name, ROW_FILES[name], "(line 1|line 2|twice: found 'caption')", DataError)


def test_columns_that_are_twice_in_parquet(tmp_path):
    pq.write_table(pa.Table.from_arrays([pa.array(["a"])] * 2, names=["text", "text"]), tmp_path / "a.parquet")
    with pytest.raises(DataError, match="a column is there twice: found 'text'"):
        grounded_rows(tmp_path / "a.parquet")


@pytest.mark.parametrize(
    "meta", ["[" * 100_000, '{"info": {"features": {"text": {"_type": "ClassLabel", "names": 5}}}}']
)
def test_features_of_a_parquet_file_that_say_nothing(folder, meta):
    table = pa.table({"image": ["a.png"], "text": ["a"]}).replace_schema_metadata({"huggingface": meta})
    pq.write_table(table, folder / "a.parquet")
    assert [row["text"] for row in grounded_rows(folder / "a.parquet")] == ["a"]


@pytest.mark.parametrize("kind", ["jsonl", "json", "csv", "parquet"])
def test_a_pipe_is_no_file_of_rows(tmp_path, kind):
    os.mkfifo(tmp_path / f"rows.{kind}")
    with at_once(), pytest.raises((DataError, FileError), match="not a regular file"):
        list(grounded_rows(tmp_path / f"rows.{kind}"))


def test_csv_errors_name_the_line(tmp_path):
    content = 'image,original_phrase1,original_phrase2,ytrue\n1.jpg,a,b,True\n1.jpg,"a"b,c,True\n'
    assert_refused(READERS_OF_FILES["pairs"], tmp_path / "x.csv", content, "line 3: not readable as CSV")


def peak_memory():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def cost_of(read, folder):
    """The error of a read in a process of its own, the bytes of memory that it adds, and seconds of computing."""

    def work():
        before = peak_memory()
        try:
            read()
        except ValueError as error:
            print(error)
        print(peak_memory() - before)

    begin = os.times().children_user
    ended = run_apart(work, folder)
    error, _, peak = ended.out.strip().rpartition("\n")
    return error, int(peak), os.times().children_user - begin


def fan_of(folder):
    """Eight pages whose entries all lead to the next one: 10^13 ways, in 20 MB."""
    with lmdb.open(str(folder), map_size=2**28) as environment, environment.begin(write=True) as transaction:
        for number in range(40_000):
            transaction.put(b"%08d" % number * 8, b"x" * 300)
    content = bytearray((folder / "data.mdb").read_bytes())

    def entries(page):
        size = struct.unpack_from("<H", content, page + 12)[0] - 16
        return [page + offset for offset in struct.unpack_from(f"<{size // 2}H", content, page + 16)]

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
    counts = "o" * 2**20
    path.write_text(f'{{"image": "a.png", "caption": "a", "mask": {{"counts": "{counts}", "size": [4, 5]}}}}')
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
    """Name of a file -> what reading it costs."""
    sources.LONGEST_ROW = 2**22
    return {name: cost_of(make(folder / name), folder / "work") for name, make in FILES.items()}


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


REFUSED = re.compile("damaged|nested|not a NumPy array|no end|header of|too long|too large|unpacks")


@pytest.mark.parametrize("name", FILES)
def test_a_file_that_would_fill_the_memory(costs, name):
    """Whatever library reads it: at most this much memory and computing above what the process had."""
    error, peak, seconds = costs[name]
    assert REFUSED.search(error), error
    assert peak < 1.4 * 2**27
    assert seconds < 8


def test_a_regular_expression_without_end_is_one_line(capsys):
    tokenizer = Tokenizer(WordLevel({"a": 0, "?": 1}, unk_token="?"))
    tokenizer.pre_tokenizer = Split(Regex("(a+)+$"), "removed", invert=True)
    parser = make_parser("read", "examples:\n  none")
    with at_once():
        assert run(parser, lambda options: tokenizer.encode("a" * 60 + "!"), []) == 2
    assert "error: a text cannot be read" in capsys.readouterr().err


MARKS = ("[", "0.1, ", " ", "<object>", "<points", "<|begin_of_box|>", '{"bbox_2d": [', '{"', "<ref>", "“")


@pytest.mark.parametrize("mark", [*MARKS, "<|vision_start|>"])
def test_a_text_of_many_marks_takes_no_quadratic_time(mark):
    """Marks of boxes without their ends, each of which could be looked for from the next one on again."""
    begin = time.process_time()
    for find in (find_mentions, asked_for):
        with suppress(RowError):  # of a form that is nested too deeply
            find(mark * (100_000 // len(mark)))
    assert time.process_time() - begin < 10


def test_usual_pickles_are_far_below_the_bounds():
    sentences = [{"tokens": ["two", "dogs"], "sent": "two dogs", "sent_id": number} for number in range(3)]
    rows = [{"ref_id": number, "file": f"COCO_{number}.jpg", "sentences": sentences} for number in range(20_000)]
    assert loads(pickle.dumps(rows)) == rows
    arrays = [np.full((36, 64), number, np.float32) for number in range(50)]
    np.testing.assert_array_equal(loads(pickle.dumps(arrays)), arrays)


def png(width, height):
    """A picture whose header claims a size."""
    size = struct.pack(">II", width, height)
    chunks = {b"IHDR": size + b"\x08\x06\0\0\0", b"IDAT": zlib.compress(b""), b"IEND": b""}
    content = b"\x89PNG\r\n\x1a\n"
    for kind, body in chunks.items():
        content += struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))
    return content


def test_a_picture_that_claims_many_pixels(tmp_path):
    path = tmp_path / "large.png"
    path.write_bytes(png(14_200, 14_100))  # PIL itself refuses less
    assert 14_200 * 14_100 > MAX_PIXELS
    Image.init()  # the readers of PIL are imported once
    tracemalloc.start()
    with pytest.raises(ValueError, match=r"large\.png.*14200 x 14100 are more than"):
        open_image(path)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 1 << 20
