# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""What runs transformers' own tests: safe unpacking, clear errors, the table of skips; and the oldest version."""

import io
import json
import re
import subprocess
import sys
import tarfile
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from grounded_attention.modeling import OLDEST_TRANSFORMERS
from tests.conformance import newest, oldest
from tests.conformance.report import Outcome, count_table, simplify_reason, skip_table
from tests.conformance.second_environment import SetupError, newest_version, shared_constraints
from tests.conformance.upstream import MISSING_MODULES, PACKAGE, UpstreamError, fetch_source, unpack_tests

ROOT = Path(__file__).resolve().parents[2]


def make_archive(path: Path, files: dict[str, str], link: str = "") -> Path:
    with tarfile.open(path, "w:gz") as archive:
        for name, text in files.items():
            member = tarfile.TarInfo(name)
            member.size = len(text)
            archive.addfile(member, io.BytesIO(text.encode()))
        if link:
            member = tarfile.TarInfo(link)
            member.type, member.linkname = tarfile.SYMTYPE, "/etc/passwd"
            archive.addfile(member)
    return path


def test_only_the_tests_are_unpacked(tmp_path):
    files = {"t-1/setup.py": "raise SystemExit", "t-1/tests/test_a.py": "a = 1", "t-1/src/tests/b.py": "b = 1"}
    archive = make_archive(tmp_path / "t.tar.gz", files, link="t-1/tests/link.py")
    folder = tmp_path / "out"
    unpack_tests(archive, folder)
    found = {path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()}
    assert found == {f"{PACKAGE}/test_a.py", *MISSING_MODULES}


def test_what_the_distribution_has_is_not_replaced(tmp_path):
    archive = make_archive(tmp_path / "t.tar.gz", {"t-1/tests/generation/test_utils.py": "real = True"})
    unpack_tests(archive, tmp_path / "out")
    assert (tmp_path / "out" / PACKAGE / "generation" / "test_utils.py").read_text() == "real = True"


def test_an_earlier_unpacking_leaves_nothing(tmp_path):
    archive = make_archive(tmp_path / "t.tar.gz", {"t-1/tests/test_a.py": ""})
    (tmp_path / "out" / PACKAGE).mkdir(parents=True)
    (tmp_path / "out" / PACKAGE / "old.py").write_text("")
    unpack_tests(archive, tmp_path / "out")
    assert not (tmp_path / "out" / PACKAGE / "old.py").exists()


@pytest.mark.parametrize("name", ["t-1/tests/../../../evil.py", "t-1/tests/a/../../../evil.py"])
def test_a_path_outside_is_refused(tmp_path, name):
    archive = make_archive(tmp_path / "t.tar.gz", {"t-1/tests/test_a.py": "", name: "evil"})
    with pytest.raises(UpstreamError, match="outside"):
        unpack_tests(archive, tmp_path / "deep" / "out")
    assert not list(tmp_path.rglob("evil.py"))


def test_an_archive_without_tests_or_a_damaged_one_is_named(tmp_path):
    empty = make_archive(tmp_path / "empty.tar.gz", {"t-1/setup.py": ""})
    with pytest.raises(UpstreamError, match=r"empty\.tar\.gz: holds no tests"):
        unpack_tests(empty, tmp_path / "out")
    whole = make_archive(tmp_path / "whole.tar.gz", {"t-1/tests/test_a.py": "x = 0\n" * 5000}).read_bytes()
    (tmp_path / "torn.tar.gz").write_bytes(whole[: len(whole) // 2])
    with pytest.raises(UpstreamError, match=r"torn\.tar\.gz: .* Delete the file"):
        unpack_tests(tmp_path / "torn.tar.gz", tmp_path / "out")


def test_a_failed_download_is_one_clear_error(tmp_path, monkeypatch):
    def fail(command, **options):
        return subprocess.CompletedProcess(command, 1, "", "WARNING: no route\nERROR: No matching distribution found")

    monkeypatch.setattr(subprocess, "run", fail)
    with pytest.raises(UpstreamError, match=r"transformers-9\.9\.tar\.gz could not .* ERROR: No matching") as caught:
        fetch_source("9.9", tmp_path / "cache")
    assert "\n" not in str(caught.value)
    assert list((tmp_path / "cache").iterdir()) == []


def test_a_downloaded_archive_is_used_again(tmp_path, monkeypatch):
    calls = []

    def save(command, **options):
        calls.append(command)
        (Path(command[command.index("--dest") + 1]) / "transformers-9.9.tar.gz").write_text("archive")
        return subprocess.CompletedProcess(command, 0, "", "")

    monkeypatch.setattr(subprocess, "run", save)
    assert fetch_source("9.9", tmp_path) == fetch_source("9.9", tmp_path) == tmp_path / "transformers-9.9.tar.gz"
    assert len(calls) == 1
    assert calls[0][:4] == [sys.executable, "-m", "pip", "download"]


OUTCOMES = [
    Outcome("ATest", "test_x", "passed"),
    Outcome("ATest", "test_y", "skipped", "needs a GPU"),
    Outcome("BTest", "test_y", "skipped", "needs a GPU"),
    Outcome("BTest", "test_z", "skipped", "not composite"),
    Outcome("BTest", "test_x", "failed"),
]


def test_counts_are_by_class():
    lines = [line.split() for line in count_table(OUTCOMES).splitlines()]
    assert lines == [["passed", "skipped", "failed"], ["ATest", "1", "1", "0"], ["BTest", "0", "2", "1"]]


def test_skips_are_grouped_by_reason_and_none_is_lost():
    lines = [" ".join(line.split()) for line in skip_table(OUTCOMES).splitlines()]
    assert lines == ["2 needs a GPU", "test_y (2x)", "1 not composite", "test_z"]


def test_reasons_of_two_classes_become_one():
    reasons = {
        simplify_reason("Skipped: No conversion found for <class 'modeling.a.VLBertModel'>", "VLBertModelTest"),
        simplify_reason("Skipped: No conversion\n found for VLBertForVGP", "VLBertForVGPTest_grounding"),
    }
    assert reasons == {"No conversion found for the class"}


def test_the_distribution_asks_for_the_oldest_version():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    bounds = {Requirement(line).name: Requirement(line).specifier for line in project["dependencies"]}
    assert f">={OLDEST_TRANSFORMERS}" in map(str, bounds["transformers"])
    pinned = re.search(r"^transformers==(.*)$", (ROOT / "constraints.txt").read_text(), re.MULTILINE)[1]
    assert pinned in bounds["transformers"] and "6.0" not in bounds["transformers"]


@pytest.mark.parametrize("environment", [oldest, newest])
def test_another_environment_shares_every_other_constraint(environment):
    text = (ROOT / "constraints.txt").read_text()
    shared = shared_constraints(text, environment.OWN_CONSTRAINTS.read_text(), "transformers==1")
    gone = set(text.splitlines()) - set(shared.splitlines())
    expected = {"transformers", "huggingface_hub", "tokenizers"} | (
        {"safetensors"} if environment is newest else set()
    )
    assert {line.partition("==")[0] for line in gone} == expected


@pytest.mark.parametrize("environment", [oldest, newest])
def test_the_listed_tests_exist(environment):
    assert all((ROOT / path).is_file() for path in environment.TESTS)


def test_the_newest_version_is_that_of_the_index(monkeypatch):
    report = {"install": [{"metadata": {"name": "transformers", "version": "9.9.1"}}]}
    answers = iter([(0, json.dumps(report), ""), (1, "", "ERROR: no route\nERROR: No matching distribution found")])
    monkeypatch.setattr(subprocess, "run", lambda command, **_: subprocess.CompletedProcess(command, *next(answers)))
    assert newest_version("transformers") == "9.9.1"
    with pytest.raises(SetupError, match="No matching distribution"):
        newest_version("transformers")
