# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""The library changes nothing of its user's process: no limit, timer, signal handler, limit of PIL; no copy of it."""

import ast
import io
import json
import os
import resource
import signal
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import numpy as np
import pytest
from PIL import Image
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from transformers import PreTrainedTokenizerFast

from grounded_attention.dataset_scripts.files.safe_pickle import load_pickle
from grounded_attention.dataset_scripts.rows.reader import grounded_rows
from grounded_attention.processing import open_image
from grounded_attention.processing.sequence_layouts import check_tokenizer
from grounded_attention.utils.bounded_files import read_json
from tests.helpers.warm_python import ROOT

LIMITS = [getattr(resource, name) for name in dir(resource) if name.startswith("RLIMIT_")]
TIMERS = (signal.ITIMER_REAL, signal.ITIMER_VIRTUAL, signal.ITIMER_PROF)
CHANGES = {"setrlimit", "prlimit", "setitimer", "alarm", "PyThreadState_SetAsyncExc", "fork", "register_at_fork"}


def state():
    limits = [resource.getrlimit(each) for each in LIMITS]
    handlers = [signal.getsignal(each) for each in sorted(signal.valid_signals())]
    return limits, [signal.getitimer(each) for each in TIMERS], handlers, Image.MAX_IMAGE_PIXELS


@contextmanager
def watched():
    """Another thread looks at the state of the process all the time."""
    before = state()
    seen = []
    begun = threading.Event()
    ended = threading.Event()

    def look():
        while not ended.wait(0.0005):
            seen.append(state())
            begun.set()

    thread = threading.Thread(target=look)
    thread.start()
    begun.wait()
    try:
        yield
    finally:
        ended.set()
        thread.join()
    assert seen
    assert all(each == before for each in (*seen, state()))


def photograph(size=(1500, 1000), kind="JPEG"):
    content = io.BytesIO()
    Image.fromarray(np.random.default_rng(0).integers(0, 256, (size[1], size[0], 3), np.uint8)).save(content, kind)
    return content.getvalue()


def pictures_of(folder):
    for kind in ("JPEG", "TIFF", "WEBP"):
        given = photograph(kind=kind)
        yield lambda given=given: open_image(given, least=2**18)


def rows_of(folder):
    (folder / "a.jpg").write_bytes(photograph((60, 40)))
    row = {"image": "a.jpg", "caption": "a dog", "phrases": [{"text": "dog", "boxes": [[1, 2, 30, 20]]}]}
    (folder / "rows.jsonl").write_text((json.dumps(row) + "\n") * 200)
    yield lambda: list(grounded_rows(folder / "rows.jsonl", boxes="xyxy pixels"))


def files_of(folder):
    (folder / "a.json").write_text(json.dumps([list(range(99))] * 3000))
    yield lambda: read_json(folder / "a.json")
    (folder / "a.p").write_bytes(b"(lp0\nI5\na.")
    yield lambda: load_pickle(folder / "a.p")
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=Tokenizer(WordLevel({"a": 0, "?": 1}, unk_token="?")))
    tokenizer.save_pretrained(folder)
    yield lambda: check_tokenizer(PreTrainedTokenizerFast.from_pretrained(folder))


@pytest.mark.parametrize("make", [pictures_of, rows_of, files_of])
def test_nothing_of_the_process_changes(tmp_path, monkeypatch, make):
    monkeypatch.setattr(os, "fork", lambda: pytest.fail("a copy of the user's process"))
    for read in make(tmp_path):
        with watched():
            for _ in range(3):
                read()


def test_a_large_array_beside_threads_that_open_pictures():
    """Its pages are not touched: a limit of the process is one of addresses too."""
    given = photograph((4000, 3000))
    ended = threading.Event()

    def work():
        opened = 0
        while not ended.is_set():
            opened += open_image(given).size == (4000, 3000)
        return opened

    with ThreadPoolExecutor(2) as threads:
        working = [threads.submit(work) for _ in range(2)]
        try:
            for _ in range(2000):
                assert np.empty(2**31, np.uint8).size == 2**31
                ended.wait(0.0005)
        finally:
            ended.set()
        assert all(each.result() for each in working)


def test_no_code_of_the_library_changes_its_process():
    """Commands and training may end well after a signal."""
    for path in (ROOT / "grounded_attention").rglob("*.py"):
        names = {node.attr for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.Attribute)}
        assert not names & CHANGES, path
        if not {"commands", "training"} & set(path.parts):
            calls = (node.func for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.Call))
            assert "signal.signal" not in map(ast.unparse, calls), path
