# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""Reader of LMDB files of region features: ViLBERT, VOLTA and MMF."""

import os
import subprocess
import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from grounded_attention.dataset_scripts.files.errors import DataError, damaged
from grounded_attention.dataset_scripts.files.records import id_text
from grounded_attention.dataset_scripts.files.safe_pickle import loads

from .reader_records import SourceRecord, check_length, import_library

KEYS = b"keys"


def read_lmdb(path: Path) -> Iterator[SourceRecord]:
    """Reads an LMDB folder (data.mdb) or file; keys are image ids, values are pickled dicts of one image.

    It reads ViLBERT's files (beta: base64 text, multi-task: arrays), both kinds of VOLTA's (base64 or arrays, with the
    fields of LXMERT) and MMF's (the key is the path of the image without suffix). The type of each value distinguishes
    base64 from arrays. Boxes are pixels of the original image. The entry `keys`, a list of the image ids, sets the
    order. `safe_pickle` reads the values.
    """
    lmdb = import_library("lmdb")
    # Every entry is visited in another process first, which a damaged file may crash.
    done = subprocess.run([sys.executable, "-c", _CHECK, os.fspath(path)], capture_output=True, text=True)
    if done.returncode:
        lines = done.stderr.strip().splitlines()
        if lines:
            found = lines[-1]
        else:
            found = f"reading it ends with signal {-done.returncode}"
        raise DataError("damaged LMDB file", file=path, found=found[:200], hint="copy it again")
    with damaged("damaged LMDB file", lmdb.Error, file=path, hint="copy it again"):
        options = {"subdir": path.is_dir(), "readonly": True, "lock": False, "readahead": False, "meminit": False}
        with lmdb.open(str(path), max_readers=1, **options) as environment, environment.begin() as transaction:
            yield from _records(path, environment, transaction)


# The LMDB library trusts the pages of a file: in a damaged one it reads beyond the file, which ends the process.
_CHECK = """
import os, sys, lmdb
path = sys.argv[1]
data = os.path.join(path, "data.mdb") if os.path.isdir(path) else path
options = dict(subdir=os.path.isdir(path), readonly=True, lock=False, readahead=False, meminit=False, max_readers=1)
with lmdb.open(path, **options) as environment:
    pages = (environment.info()["last_pgno"] + 1) * environment.stat()["psize"]
    if pages > os.path.getsize(data):
        sys.exit(f"found {os.path.getsize(data)} bytes, expected {pages}")
    entries = environment.stat()["entries"]
    if entries > os.path.getsize(data) // 8:
        sys.exit(f"found {os.path.getsize(data)} bytes for {entries} entries")
    with environment.begin(buffers=True) as transaction:
        for number, key in enumerate(transaction.cursor().iternext(values=False)):
            if number == entries:
                sys.exit("the pages form a circle")
            value = transaction.get(bytes(key))
            bytes(value[:1]), bytes(value[-1:])
"""


def _records(path: Path, environment: Any, transaction: Any) -> Iterator[SourceRecord]:
    # Sparse files are larger than their content; the progress counts the bytes that are read.
    size = environment.stat()["psize"] * (environment.info()["last_pgno"] + 1)
    keys = _keys(path, transaction)
    for row, key in enumerate(keys, start=1):
        name = id_text(key.decode("utf-8", errors="replace"))
        decode = partial(_read, transaction, key)
        yield SourceRecord(path, row, name, size // len(keys), decode, f"key {name}")


def _keys(path: Path, transaction: Any) -> list[bytes]:
    listed = transaction.get(KEYS)
    if listed is None:
        return [bytes(key) for key in transaction.cursor().iternext(values=False)]
    keys = loads(bytes(listed), file=path, where="key keys")
    if isinstance(keys, np.ndarray):
        keys = keys.tolist()
    if not isinstance(keys, (list, tuple)):
        raise DataError("not a list of image ids", file=path, where="key keys", found=type(keys).__name__)
    return [_key(path, key.item() if isinstance(key, np.generic) else key) for key in keys]


def _key(path: Path, key: Any) -> bytes:
    if isinstance(key, bytes):
        return key
    try:  # Python 2 wrote bytes that are read as text now
        if isinstance(key, str):
            return key.encode("latin1")
        return id_text(key).encode()
    except (DataError, RecursionError, UnicodeEncodeError):
        found = type(key).__name__
        raise DataError("not an image id", file=path, where="key keys", found=found) from None


def _read(transaction: Any, key: bytes) -> Any:
    with damaged("damaged entry", import_library("lmdb").Error):  # also for an empty key
        value = transaction.get(key)
    if value is None:
        raise DataError("the entry keys lists this image, but it has no record", hint="the file is incomplete")
    check_length(value)
    return loads(value)
