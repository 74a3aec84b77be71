# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""Pickles that run code when they are loaded, in every file that may hold one: refused in one line, nothing runs."""

import os
import pickle
import zipfile

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


REGIONS = ["--feature-size", str(SIZE), "--output", "out"]


def index_of_features(folder, payload):
    path = write_hengyuan(folder, [sample("1"), sample("2")])
    (folder / "train36_imgid2idx.pkl").write_bytes(payload)
    return import_regions.main([str(path), "--format", "h5", *REGIONS])


def lmdb_of(folder, **values):
    with lmdb.open(str(folder / "a.lmdb"), map_size=1 << 20) as environment, environment.begin(write=True) as writer:
        for key, value in values.items():
            writer.put(key.encode(), value)
    return import_regions.main([str(folder / "a.lmdb"), "--format", "lmdb", *REGIONS])


def record_of_lmdb(folder, payload):
    return lmdb_of(folder, image=payload, keys=pickle.dumps([b"image"]))


def keys_of_lmdb(folder, payload):
    return lmdb_of(folder, image=payload, keys=payload)


def references(folder, payload):
    (folder / "refcoco").mkdir()
    (folder / "refcoco" / "refs(unc).p").write_bytes(payload)
    (folder / "refcoco" / "instances.json").write_text('{"images": [], "annotations": [], "categories": []}')
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


ATTACKS = [index_of_features, record_of_lmdb, keys_of_lmdb, references, old_checkpoint, new_checkpoint]


@pytest.mark.parametrize("protocol", [0, 4])
@pytest.mark.parametrize("attack", ATTACKS)
def test_nothing_runs(tmp_path, monkeypatch, capsys, attack, protocol):
    monkeypatch.chdir(tmp_path)
    folder = tmp_path / "files"
    folder.mkdir()
    assert attack(folder, pickle.dumps(Code(tmp_path / "pwned"), protocol)) == 2
    printed = capsys.readouterr().err
    assert printed.count("error: ") == 1
    assert "Traceback" not in printed
    assert not (tmp_path / "pwned").exists()


def test_the_payload_would_run(tmp_path):
    """What the tests above are worth."""
    pickle.loads(pickle.dumps(Code(tmp_path / "pwned")))
    assert (tmp_path / "pwned").is_dir()
