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
    made = {str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*") if path.is_file()}
    assert {name for name in made if not name.startswith(("work/regions/", "sound/"))} == {"frcnn.zip"}


def hostile(name, members):
    (first, content), second = members
    link = zipfile.ZipInfo(first)
    link.create_system = 3
    link.external_attr = (stat.S_IFLNK | 0o777) << 16
    device = zipfile.ZipInfo(first)
    device.create_system = 3
    device.external_attr = (stat.S_IFCHR | 0o666) << 16
    return {
        "link": [(link, "/etc/passwd"), second],
        "device": [(device, ""), second],
        "other case": [*members, (f"TRAIN/{first.split('/')[-1]}", content)],
    }[name]


@pytest.mark.parametrize(
    ("name", "words"), [("link", "not JSON"), ("device", "not JSON"), ("other case", "image id occurs twice")]
)
def test_members_that_are_no_files_or_clash_are_refused(tmp_path, monkeypatch, capsys, members, name, words):
    assert import_members(tmp_path, hostile(name, members), monkeypatch) == 2
    printed = capsys.readouterr().err
    assert printed.count("error: ") == 1
    assert words in printed
    assert "root:" not in printed
