# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""What runs transformers' own tests: nothing is unpacked outside; the versions of the oldest and the newest."""

import io
import re
import sys
import tarfile
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from grounded_attention.modeling import OLDEST_TRANSFORMERS
from tests.conformance import newest, oldest
from tests.conformance.second_environment import shared_constraints
from tests.conformance.upstream import UpstreamError, unpack_tests

ROOT = Path(__file__).resolve().parents[2]


def make_archive(path, files):
    with tarfile.open(path, "w:gz") as archive:
        for name, text in files.items():
            member = tarfile.TarInfo(name)
            member.size = len(text)
            archive.addfile(member, io.BytesIO(text.encode()))
    return path


@pytest.mark.parametrize("name", ["t-1/tests/../../../evil.py", "t-1/tests/a/../../../evil.py"])
def test_a_path_outside_is_refused(tmp_path, name):
    archive = make_archive(tmp_path / "t.tar.gz", {"t-1/tests/test_a.py": "", name: "evil"})
    with pytest.raises(UpstreamError, match="outside"):
        unpack_tests(archive, tmp_path / "deep" / "out")
    assert not list(tmp_path.rglob("evil.py"))


def test_the_distribution_asks_for_the_oldest_version():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    bounds = {Requirement(line).name: Requirement(line).specifier for line in project["dependencies"]}
    assert f">={OLDEST_TRANSFORMERS}" in map(str, bounds["transformers"])
    pinned = re.search(r"^transformers==(.*)$", (ROOT / "constraints.txt").read_text(), re.MULTILINE)[1]
    assert pinned in bounds["transformers"]
    assert "6.0" not in bounds["transformers"]


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
    assert all((ROOT / path.partition("::")[0]).is_file() for path in environment.TESTS)


def test_versions_of_another_environment_are_compared(tmp_path):
    other = tmp_path / "python"
    other.write_text("#!/bin/sh\necho 5.4.0 1.0 0.22 0.4\n")
    other.chmod(0o755)
    assert newest.same_versions(sys.executable)
    assert not newest.same_versions(other)
