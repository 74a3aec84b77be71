# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""HDF5 features and rows whose values are in other files: refused, or private bytes would enter a pushed table."""

import datasets
import h5py
import pytest
from numpy.testing import assert_array_equal

from grounded_attention.commands import import_regions
from grounded_attention.dataset_scripts.files.errors import DataError
from grounded_attention.dataset_scripts.hub.tables import RemoteRows, pull_rows
from tests.helpers.legacy_region_files import write_adaptive, write_gqa, write_hengyuan, write_volta_h5
from tests.helpers.region_samples import SIZE, sample

WRITERS = {"fixed": write_hengyuan, "adaptive": write_adaptive, "gqa": write_gqa, "volta": write_volta_h5}


def external_storage(parent, name, array, private):
    private.write_bytes(array.tobytes())
    parent.create_dataset(name, array.shape, array.dtype, external=[(str(private), 0, array.nbytes)])


def write_elsewhere(array, private):
    with h5py.File(private, "w") as other:
        other["values"] = array


def external_link(parent, name, array, private):
    write_elsewhere(array, private)
    parent[name] = h5py.ExternalLink(str(private), "values")


def soft_link_through_an_external_one(parent, name, array, private):
    external_link(parent.file.require_group("way"), name, array, private)
    parent[name] = h5py.SoftLink(f"/way/{name}")


def virtual_dataset(parent, name, array, private):
    write_elsewhere(array, private)
    layout = h5py.VirtualLayout(array.shape, array.dtype)
    layout[...] = h5py.VirtualSource(str(private), "values", array.shape)
    parent.create_virtual_dataset(name, layout)


KINDS = {
    "external storage": external_storage,
    "ExternalLink": external_link,
    "SoftLink": soft_link_through_an_external_one,
    "a virtual dataset": virtual_dataset,
}


def import_file(source):
    options = ["--format", "h5", "--feature-size", str(SIZE), "--output", "out"]
    return import_regions.main([str(source), *options])


@pytest.fixture(params=WRITERS)
def source(tmp_path, monkeypatch, request):
    monkeypatch.chdir(tmp_path)
    return WRITERS[request.param](tmp_path, [sample("1", 3), sample("2", 3)])


@pytest.mark.parametrize("kind", KINDS)
def test_values_of_another_file_are_not_read(source, capsys, kind):
    with h5py.File(source, "r+") as file:
        parent = file["2"] if "2" in file else file  # VOLTA has a group for each image
        name = "image_features" if "image_features" in file else "features"
        path = parent[name].name
        array = parent[name][()]
        del parent[name]
        KINDS[kind](parent, name, array, source.with_name("private"))
    with h5py.File(source, "r") as file:  # h5py itself follows it
        assert_array_equal(file[path][()], array)
    assert import_file(source) == 2
    printed = capsys.readouterr().err
    assert printed.count("error: ") == 1
    assert source.name in printed
    assert f"{name} may be in another file" in printed
    assert f"found '{kind}'" in printed or f"found {kind}" in printed


def test_a_whole_image_of_another_file_is_not_read(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "other").mkdir()
    other = write_volta_h5(tmp_path / "other", [sample("2")])
    source = write_volta_h5(tmp_path, [sample("1")])
    with h5py.File(source, "r+") as file:
        file["2"] = h5py.ExternalLink(str(other), "2")
    assert import_file(source) == 2
    assert "2 may be in another file" in capsys.readouterr().err


@pytest.mark.parametrize("feature", [datasets.Image(), datasets.List(datasets.Image()), {"deep": datasets.Image()}])
def test_rows_of_the_hub_with_pictures_are_refused(tmp_path, monkeypatch, feature):
    """`datasets` would decode them at each look at a row, whatever file they are in, and EPS by Ghostscript."""
    features = datasets.Features({"caption": datasets.Value("string"), "extra": feature})
    splits = datasets.DatasetDict(test=datasets.Dataset.from_dict({"caption": [], "extra": []}, features))
    monkeypatch.setattr(datasets, "load_dataset", lambda *given, **options: splits)
    with pytest.raises(DataError, match=r"org/rows.*'extra'"):
        pull_rows(RemoteRows("org/rows", "0" * 40, "default", {"empty_splits": []}))
