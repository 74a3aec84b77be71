# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""Archives with hostile members. No reader unpacks one to the disk; members of a zip are read in memory."""

import stat
import zipfile

import pytest

from grounded_attention.commands import import_regions
from tests.helpers.legacy_region_files import write_zip
from tests.helpers.region_samples import SIZE, sample

PLACES = ("../../{}", "/tmp/{}", "C:\\\\{}", "train/../../{}")


def import_members(folder, members, monkeypatch):
    """Imports a zip of these members in a folder of its own; returns the exit status."""
    with zipfile.ZipFile(folder / "frcnn.zip", "w") as archive:
        for member, content in members:
            archive.writestr(member, content)
    (folder / "work").mkdir()
    monkeypatch.chdir(folder / "work")
    options = ["--format", "vl_bert_zip", "--feature-size", str(SIZE), "--output", "regions"]
    return import_regions.main([str(folder / "frcnn.zip"), *options])


@pytest.fixture
def members(tmp_path):
    (tmp_path / "sound").mkdir()
    source = write_zip(tmp_path / "sound", [sample("11", seed=1), sample("12", seed=2)])
    with zipfile.ZipFile(source) as archive:
        return [(name, archive.read(name)) for name in archive.namelist() if not name.endswith("/")]


@pytest.mark.parametrize("place", PLACES)
def test_names_outside_the_folder_are_only_names(tmp_path, monkeypatch, members, place):
    changed = [(place.format(name.split("/")[-1]), content) for name, content in members]
    assert import_members(tmp_path, changed, monkeypatch) == 0
    files = {path for path in tmp_path.rglob("*") if path.is_file()}
    assert files - {*tmp_path.glob("work/regions/*"), *tmp_path.glob("sound/*")} == {tmp_path / "frcnn.zip"}


def special(name, kind):
    """A member of a zip that is no plain file."""
    info = zipfile.ZipInfo(name)
    info.create_system = 3
    info.external_attr = (kind | 0o777) << 16
    return info


@pytest.mark.parametrize("kind, content", [(stat.S_IFLNK, "/etc/passwd"), (stat.S_IFCHR, "")], ids=["link", "device"])
def test_members_that_are_no_files_are_refused(tmp_path, monkeypatch, capsys, members, kind, content):
    (first, _), second = members
    assert import_members(tmp_path, [(special(first, kind), content), second], monkeypatch) == 2
    printed = capsys.readouterr().err
    assert printed.count("error: ") == 1
    assert "not JSON" in printed
    assert "root:" not in printed


def test_names_that_differ_in_case_alone_clash(tmp_path, monkeypatch, capsys, members):
    name, content = members[0]
    clash = (name.replace("train", "TRAIN"), content)
    assert import_members(tmp_path, [*members, clash], monkeypatch) == 2
    assert "image id occurs twice" in capsys.readouterr().err
