# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""A small share of the campaign, and the campaign itself: its faults are seen, its damage is seeded."""

import itertools
import os
import random
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.campaign.damage import Case, damaged_file
from tests.campaign.fingerprint import differences, fingerprint
from tests.campaign.fuzz import leaves, place_in
from tests.campaign.lanes import Result, Unit, run_lanes, table
from tests.campaign.mutations import MUTATIONS, mutate
from tests.campaign.sandbox import SOURCE, Limits, run_apart

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.skipif(shutil.which("cc") is None, reason="needs a C compiler")
def test_a_share_of_the_campaign(tmp_path):
    options = ["--folder", str(tmp_path), "--faults", "4", "--damages", "12", "--only", "import"]
    command = [sys.executable, "-m", "tests.campaign.run", *options]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=900)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    assert "16 cases, 0 failed" in done.stdout


FILES = """
import os
from pathlib import Path
from tests.campaign.sandbox import Fault, run_apart

def work():
    Path("a").write_bytes(b"12345678")
    os.replace("a", "b")

def left(kind, at):
    folder = Path(os.environ["FOLDER"], f"{kind}{at}")
    ended = run_apart(work, folder, Fault(kind, at) if at else None)
    return ended, {path.name: path.read_bytes() for path in folder.iterdir()}

ended, files = left("none", 0)
assert [line.split()[1] for line in ended.operations] == ["open", "write", "rename"], ended.operations
assert ended.status == 0 and files == {"b": b"12345678"}
expected = {("before", 1): {}, ("after", 1): {"a": b""}, ("before", 2): {"a": b""}, ("half", 2): {"a": b"1234"},
            ("after", 2): {"a": b"12345678"}, ("before", 3): {"a": b"12345678"}, ("after", 3): {"b": b"12345678"}}
for (kind, at), wanted in expected.items():
    ended, files = left(kind, at)
    assert ended.killed and ended.fired and files == wanted, (kind, at, files)
for kind, name in (("full", "No space left"), ("broken", "Input/output error")):
    ended, files = left(kind, 2)
    assert ended.status == 1 and name in ended.err and files == {"a": b"1234" if kind == "full" else b""}, files
assert left("before", 9)[0].status == 0
print("all faults seen")
"""


@pytest.mark.skipif(shutil.which("cc") is None, reason="needs a C compiler")
def test_every_fault_leaves_what_a_real_one_would(tmp_path):
    library = tmp_path / "faults.so"
    subprocess.run(["cc", "-shared", "-fPIC", "-o", library, SOURCE, "-ldl"], check=True)
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "FOLDER": str(tmp_path / "work")}
    environment |= {"LD_PRELOAD": str(library), "FAULTS_LIBRARY": str(library)}
    done = subprocess.run([sys.executable, "-c", FILES], env=environment, capture_output=True, text=True)
    assert done.stdout == "all faults seen\n", done.stderr


@pytest.mark.parametrize("kind", MUTATIONS)
def test_damage_is_seeded_and_damages(kind):
    content = bytes(range(256)) * 4 + b'{"a": [1, 2.5], "b": "x"}'
    assert mutate(kind, content, "1") == mutate(kind, content, "1") != content
    assert len({mutate(kind, content, str(seed)) for seed in range(20)}) > 2
    random.seed(0)  # the global generator plays no part
    first = mutate(kind, content, "2")
    random.seed(1)
    assert mutate(kind, content, "2") == first


def test_each_case_damages_one_file(tmp_path):
    for name in ("a.json", "b.json", "c.txt"):
        (tmp_path / name).write_text("1, 2, 3")
    cases = [Case("recipe", "cut", number, 3) for number in range(30)]
    chosen = [damaged_file(case, tmp_path) for case in cases]
    assert chosen == [damaged_file(case, tmp_path) for case in cases]
    assert {path.name for path, _ in chosen} == {"a.json", "b.json", "c.txt"}


def test_a_process_that_hangs_and_one_that_dies(tmp_path):
    assert run_apart(lambda: 3, tmp_path / "a").status == 3
    died = run_apart(os.abort, tmp_path / "b")
    assert died.status == -6
    assert "Fatal Python error: Aborted" in died.err  # and not in the log of the tests
    assert run_apart(lambda: [1][2], tmp_path / "c").status == 1
    assert run_apart(lambda: time.sleep(60), tmp_path / "d", seconds=0.2).status is None
    ended = run_apart(lambda: print("error: a") or 2, tmp_path / "e")
    assert ended.out == "error: a\n"
    assert not ended.refused()


def test_fingerprints_leave_out_times_and_drafts(tmp_path):
    one = tmp_path / "one"
    two = tmp_path / "two"
    for folder, seconds in ((one, 1.5), (two, 2.5)):
        folder.mkdir()
        (folder / "a.json").write_text(f'{{"loss": 0.5, "train_seconds": {seconds}}}')
        (folder / f"b.{seconds}.partial").write_text("draft")
    first = fingerprint(one)
    assert list(first) == ["a.json"]
    assert fingerprint(two) == first
    (two / "a.json").write_text('{"loss": 0.25}')
    (two / "c").write_text("new")
    assert differences(first, fingerprint(two)) == ["c: not in the run without a fault", "a.json: other content"]


def test_results_of_several_processes_and_of_units_that_fail(tmp_path):
    def unit(name):
        def work(folder):
            if name == "fails":
                raise ValueError(name)
            yield Result(name, "kind", "refused", name == "b")

        return Unit([name], work)

    reported = []
    results = run_lanes(list(map(unit, ("a", "fails", "b", "c"))), tmp_path, 2, reported.append)
    assert results == reported
    assert sorted(result.name for result in results) == ["a", "b", "c"]
    assert "3 cases    1 failed   3 refused" in table(results)


def test_a_process_beyond_its_limits(tmp_path):
    limits = Limits(memory=1 << 27, file=1 << 16, cpu=1)
    assert run_apart(lambda: len(bytearray(1 << 28)), tmp_path / "a", limits=limits).status == 1
    written = run_apart(lambda: Path("a").write_bytes(bytes(1 << 17)), tmp_path / "b", limits=limits)
    assert written.status == 1
    assert "File too large" in written.err

    assert run_apart(lambda: sum(itertools.repeat(0)), tmp_path / "c", limits=limits).status == -24  # SIGXCPU


def test_the_places_of_wrong_values():
    content = {"a": 1, "b": {"c.d": [{"e": None}]}, "f": []}
    places = list(leaves(content))
    assert places == ["a", "b", "b.c%2Ed", "b.c%2Ed.0", "b.c%2Ed.0.e", "f"]
    section, key = place_in(content, "b.c%2Ed.0.e")
    section[key] = 7
    assert content["b"]["c.d"][0]["e"] == 7
