# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""Manifests and rows that name files outside their folder: nothing there is read, written or deleted."""

import json
import shutil

import pytest
from safetensors.torch import load_file

from grounded_attention.dataset_scripts.regions.table import RegionTable
from grounded_attention.heads.table import HeadTable
from grounded_attention.labelling.labels import PseudoLabels
from grounded_attention.training.experiments.models import load_model
from grounded_attention.training.loop.checkpoint import MANIFEST, is_complete, seal
from grounded_attention.training.recipes.adapters import base_of
from grounded_attention.training.recipes.model_family import head_class
from grounded_attention.training.recipes.recipe import Model
from tests.helpers.region_samples import write_table
from tests.helpers.stub_grounder import label, many_texts, rows_of, save_images
from tests.helpers.tiny_checkpoint import save_checkpoint
from tests.helpers.tiny_scenes import tiny_scenes


def move_out(folder, manifest, name, outside):
    """Moves a file out of its folder, and lets the manifest name its new place."""
    shutil.move(folder / name, outside / name)
    content = (folder / manifest).read_text()
    assert f'"{name}"' in content
    (folder / manifest).write_text(content.replace(f'"{name}"', f'"../{outside.name}/{name}"'))


@pytest.fixture
def outside(tmp_path):
    (tmp_path / "outside").mkdir()
    return tmp_path / "outside"


def test_a_region_table_with_a_shard_elsewhere(tmp_path, outside):
    write_table(tmp_path / "regions", ["a", "b"])
    move_out(tmp_path / "regions", "regions.json", "regions-00000.arrow", outside)
    with pytest.raises(ValueError, match="outside"):
        table = RegionTable.open(tmp_path / "regions")
        table.verify()
        table["a"]


def test_pseudo_labels_with_a_part_elsewhere(tmp_path, outside):
    rows = rows_of(many_texts(7))
    label(rows, save_images(tmp_path / "images", rows), tmp_path / "labels")
    move_out(tmp_path / "labels", "pseudo_labels.json", "pseudo_labels.parquet", outside)
    with pytest.raises(ValueError, match="outside"):
        PseudoLabels(tmp_path / "labels")


def test_an_audit_with_counts_elsewhere(tmp_path, outside):
    (outside / "counts.npz").write_bytes(b"secret")
    (tmp_path / "audited").mkdir()
    counts = '{"file": "../outside/counts.npz", "sha256": ""}'
    content = f'{{"format": 2, "counts": {counts}, "layers": [], "heads": 1}}'
    (tmp_path / "audited" / "heads.json").write_text(content)
    with pytest.raises(ValueError, match=r"cannot read the audit .*outside"):
        HeadTable.load(tmp_path / "audited")


def test_a_checkpoint_whose_manifest_names_other_files(tmp_path, outside):
    folder = tmp_path / "checkpoint"
    folder.mkdir()
    (folder / "model.safetensors").write_bytes(b"weights")
    seal(folder)
    assert is_complete(folder)
    move_out(folder, MANIFEST, "model.safetensors", outside)
    assert not is_complete(folder)


@pytest.fixture
def sharded(tmp_path, outside):
    """A checkpoint without weights, and what an index says that names all weights of another folder."""
    folder = save_checkpoint(tiny_scenes(tmp_path / "scenes"), tmp_path / "model")
    names = load_file(folder / "model.safetensors")
    shutil.move(folder / "model.safetensors", outside / "model.safetensors")
    return folder, json.dumps({"metadata": {}, "weight_map": dict.fromkeys(names, "../outside/model.safetensors")})


def load(folder):
    model = Model(source=str(folder))
    return load_model(head_class("vgp", model), model)


def load_adapter(folder):
    """Loads an adapter whose base model is in the folder."""
    adapter = folder.with_name("adapter")
    adapter.mkdir()
    (adapter / "adapter_config.json").write_text(json.dumps({"base_model_name_or_path": str(folder)}))
    shutil.copy(folder / "config.json", adapter)
    return load(adapter)


def load_base(folder):
    return base_of(str(folder))


@pytest.mark.parametrize("name", ["model.safetensors", "model.fp16.safetensors", "pytorch_model.bin"])
@pytest.mark.parametrize("read", [load, load_adapter, load_base])
def test_a_sharded_checkpoint_whose_index_names_other_files(sharded, name, read):
    """transformers itself would load the weights of the other folder."""
    folder, index = sharded
    (folder / f"{name}.index.json").write_text(index)
    with pytest.raises(ValueError, match="outside"):
        read(folder)
