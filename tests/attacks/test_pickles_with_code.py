# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""Pickles that run code when they are loaded, in every file that may hold one: refused in one line, nothing runs."""

import json
import os
import pickle
import zipfile
from functools import partial

import lmdb
import pytest
import torch

from grounded_attention.commands import build_data, convert, import_regions
from tests.helpers.legacy_region_files import write_hengyuan
from tests.helpers.region_samples import SIZE, sample


class Code:
    """Makes a file when it is unpickled."""

    def __init__(self, path):
        self.path = str(path)

    def __reduce__(self):
        return os.mkdir, (self.path,)


def index_of_features(folder, payload):
    rows = [sample(str(number)) for number in (1, 2)]
    path = write_hengyuan(folder, rows)
    (folder / "train36_imgid2idx.pkl").write_bytes(payload)
    return import_regions.main([str(path), "--format", "h5", "--feature-size", str(SIZE), "--output", "out"])


def record_of_lmdb(folder, payload, listed=False):
    with lmdb.open(str(folder / "a.lmdb"), map_size=1 << 20) as environment, environment.begin(write=True) as writer:
        writer.put(b"1", payload)
        writer.put(b"keys", payload if listed else pickle.dumps([b"1"]))
    source = str(folder / "a.lmdb")
    return import_regions.main([source, "--format", "lmdb", "--feature-size", str(SIZE), "--output", "out"])


def references(folder, payload):
    (folder / "refcoco").mkdir()
    (folder / "refcoco" / "refs(unc).p").write_bytes(payload)
    (folder / "refcoco" / "instances.json").write_text(json.dumps({"images": [], "annotations": [], "categories": []}))
    return build_data.main(["refcoco", "--config", "refcoco", "--data-dir", str(folder), "--output", "out"])


def old_checkpoint(folder, payload):
    (folder / "pytorch_model.bin").write_bytes(payload)
    return convert.main(["vl_bert", "--checkpoint", str(folder / "pytorch_model.bin"), "--output", "out"])


def new_checkpoint(folder, payload):
    torch.save({"a": torch.ones(2)}, folder / "sound.pth")
    with zipfile.ZipFile(folder / "sound.pth") as sound, zipfile.ZipFile(folder / "model.pth", "w") as changed:
        for name in sound.namelist():
            changed.writestr(name, payload if name.endswith("data.pkl") else sound.read(name))
    return convert.main(["vl_bert", "--checkpoint", str(folder / "model.pth"), "--output", "out"])


ATTACKS = {
    "index of HDF5 features": index_of_features,
    "record of LMDB": record_of_lmdb,
    "keys of LMDB": partial(record_of_lmdb, listed=True),
    "references of RefCOCO": references,
    "checkpoint of old PyTorch": old_checkpoint,
    "checkpoint of PyTorch": new_checkpoint,
}


@pytest.mark.parametrize("protocol", [0, 4])
@pytest.mark.parametrize("name", ATTACKS)
def test_nothing_runs(tmp_path, monkeypatch, capsys, name, protocol):
    monkeypatch.chdir(tmp_path)
    folder = tmp_path / "files"
    folder.mkdir()
    assert ATTACKS[name](folder, pickle.dumps(Code(tmp_path / "pwned"), protocol)) == 2
    printed = capsys.readouterr().err
    assert printed.count("error: ") == 1
    assert "Traceback" not in printed
    assert not (tmp_path / "pwned").exists()


def test_the_payload_would_run(tmp_path):
    """What the tests above are worth."""
    pickle.loads(pickle.dumps(Code(tmp_path / "pwned")))
    assert (tmp_path / "pwned").is_dir()
