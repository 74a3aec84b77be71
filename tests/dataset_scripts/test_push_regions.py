# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""Region tables go to a Hub over HTTP and are read there whole, by `datasets`, and by a recipe."""

import hashlib
import json
import re
from pathlib import Path

import numpy as np
import pytest
import yaml

from grounded_attention.commands.push import main
from grounded_attention.commands.push_tables import push_regions
from grounded_attention.dataset_scripts.files.errors import DataError
from grounded_attention.dataset_scripts.regions.table import Regions, RegionTable, RegionTableWriter
from tests.helpers.loopback_hub import LoopbackHub
from tests.helpers.warm_python import run_python

ROOT = Path(__file__).parents[2]
NAME = "org/regions"
PUSH = "import sys; from grounded_attention.commands.push import main; sys.exit(main(sys.argv[1:]))"
# Every row three ways.
READ_BACK = """
import sys
import numpy as np
from datasets import load_dataset
from grounded_attention.dataset_scripts.regions.table import RegionTable

def same(one, other):
    a, b = one.arrays(), other.arrays()
    sizes = [(each.image_id, each.width, each.height) for each in (one, other)]
    return list(a) == list(b) and sizes[0] == sizes[1] and all(
        a[n].dtype == b[n].dtype and np.array_equal(a[n], b[n]) for n in a
    )

place, local = "hub://" + sys.argv[1], RegionTable.open(sys.argv[2])
whole = RegionTable.open(place)
assert all(same(whole[i], local[i]) for i in local) and len(whole) == len(local)
rows = load_dataset(sys.argv[1], split="train")
for each in (rows, load_dataset(sys.argv[1], split="train", streaming=True)):
    assert str(each.features["features"].feature.feature.dtype) == "float16"
    for row, image_id in zip(each, local, strict=True):
        assert row["image_id"] == image_id
        assert np.array_equal(np.array(row["features"], dtype=np.float16), local[image_id].features)
        assert np.array_equal(np.array(row["boxes"], dtype=np.float32), local[image_id].boxes)
print("equal", len(local))
"""
OPEN = """
import sys
from grounded_attention.commands.command_line import one_line
from grounded_attention.dataset_scripts.regions.table import RegionTable
try:
    table = RegionTable.open(sys.argv[1])
    print([table[image_id].image_id for image_id in table])
except (ValueError, OSError) as error:
    print("error:", one_line(error))
"""


@pytest.fixture(scope="module")
def table(tmp_path_factory):
    """Fifteen images in shards of at least 20 kB; widths and numbers of regions differ."""
    rng = np.random.default_rng(7)
    folder = tmp_path_factory.mktemp("tables") / "regions"
    with RegionTableWriter(folder, {"detector": "drawn", "files": list(range(30))}, shard_bytes=20_000) as writer:
        for number in range(15):
            corners = np.sort(rng.random((number % 5 + 1, 2, 2), dtype=np.float32), axis=1)
            boxes = corners.reshape(-1, 4)
            features = rng.normal(size=(len(boxes), 1024)).astype(np.float16)
            classes = rng.integers(0, 9, len(boxes)).astype(np.int32)
            writer.write(Regions(f"COCO_{number}", 640 + number, 480, boxes, features, classes=classes))
    return folder


def python(hub, home, code, *arguments, folder=ROOT, **environment):
    environment = {**hub.environment(home), "PYTHONPATH": str(ROOT), **environment}
    return run_python(code, arguments, cwd=folder, env=environment)


@pytest.fixture(scope="module")
def pushed(table, tmp_path_factory):
    """A Hub with the table, and what the push printed."""
    folder = tmp_path_factory.mktemp("hub")
    with LoopbackHub(folder / "state") as hub:
        done = python(hub, folder / "home", PUSH, table, NAME, "--licence", "mit", "--json")
        assert done.returncode == 0, done.stderr
        yield hub, json.loads(done.stdout)


def test_a_table_comes_back_equal(pushed, table, tmp_path):
    hub, printed = pushed
    assert len(RegionTable(table).info["shards"]) > 2, "the table has too few shards to test them"
    assert printed["commit_url"].endswith(hub.commits(NAME, kind="datasets")[0]["id"])
    assert len(hub.commits(NAME, kind="datasets")) == 2  # the Hub's own, and one with everything
    done = python(hub, tmp_path / "other", READ_BACK, NAME, table)
    assert done.returncode == 0, done.stderr
    assert done.stdout == "equal 15\n", done.stderr
    text = hub.read(NAME, "README.md", kind="datasets").decode()
    metadata = yaml.safe_load(text.split("---")[1])
    assert metadata["license"] == "mit"
    assert "drawn" in text
    assert "and 21 more" in text
    shards = RegionTable(table).info["shards"]
    for shard in shards:
        assert hashlib.sha256((table / shard["file"]).read_bytes()).hexdigest() in text
    snippets = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    done = python(hub, tmp_path / "third", "\n".join(snippets), folder=tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("(1, 1024)\n")
    assert done.stdout.endswith("COCO_0 (1, 1024)\n")


def test_a_torn_shard_is_refused(pushed, table, tmp_path):
    hub, _ = pushed
    shard = RegionTable(table).info["shards"][1]["file"]
    content = (table / shard).read_bytes()
    damaged = bytearray(content)
    damaged[len(damaged) // 2] ^= 1
    stored = next(path for path in (hub.state.folder / "lfs").iterdir() if path.read_bytes() == content)
    stored.write_bytes(damaged)
    done = python(hub, tmp_path / "other", OPEN, f"hub://{NAME}")
    assert done.stdout.startswith("error: "), done.stderr
    assert "damaged row" in done.stdout, done.stderr
    assert NAME in done.stdout
    assert "image COCO_" in done.stdout
    assert "push" in done.stdout
    stored.write_bytes(content)


def test_an_interrupted_download_continues_and_works_offline_afterwards(pushed, table, tmp_path):
    hub, _ = pushed
    hub.inject("cut", r"GET .*/regions-00000\.arrow", after=5000)
    done = python(hub, tmp_path / "other", OPEN, f"hub://{NAME}@main")
    assert done.stdout.startswith(f"error: {NAME}: the download")
    assert "run the command again" in done.stdout
    for offline in ({}, {"HF_HUB_OFFLINE": "1", "HF_ENDPOINT": "http://127.0.0.1:9"}):
        done = python(hub, tmp_path / "other", OPEN, f"hub://{NAME}@main", **offline)
        assert done.stdout.strip() == str(RegionTable(table).ids), done.stderr
    assert hub.pending_faults() == 0


@pytest.mark.parametrize(
    "place, message",
    {
        f"hub://{NAME}@nowhere": "Revision Not Found",
        "hub://org/nothing": "Repository Not Found",
        "hub://org": "not a place on the Hub",
        "hub://org/rows": "no region table in this repository",
    }.items(),
)
def test_errors_of_opening_are_one_line(loopback_hub, table, tmp_path, place, message):
    for name in (NAME, "org/rows"):
        loopback_hub.state.create("datasets", name, False)
    done = python(loopback_hub, tmp_path / "other", OPEN, place)
    assert done.stdout.startswith("error: "), done.stderr
    assert message in done.stdout, done.stderr


def test_a_recipe_reads_rows_and_regions_from_the_hub(loopback_hub, tmp_path):
    code = """
import dataclasses
from pathlib import Path
from grounded_attention.commands import build_data, push
from grounded_attention.dataset_scripts.files.errors import DataError
from tests.helpers.tiny_scenes import tiny_scenes
from grounded_attention.training.recipes.recipe import Data, Recipe
from grounded_attention.training.experiments.prepared_data import prepare_data

scenes = tiny_scenes(Path("scenes"))
folders = ["--data-dir", "scenes", "--output", "built"]
assert build_data.main(["vgp", *folders, "regions=scenes/regions", "seed=5", "--push", "org/rows"]) == 0
assert push.main(["scenes/regions", "org/regions"]) == 0
options = {"config_name": "typology", "seed": 5}
local = Recipe(seed=1, data=Data(data_dir="scenes", regions="scenes/regions", options=options, limit={"train": 9}))
places = {"data_dir": "hub://org/rows", "regions": "hub://org/regions"}
far = dataclasses.replace(local, data=dataclasses.replace(local.data, **places))
one, other = prepare_data(local), prepare_data(far)
assert set(one.splits) == set(other.splits) and len(other.splits["train"]) == 9
assert all(list(one.splits[n]) == list(other.splits[n]) for n in one.splits)
assert all((one.regions[i].features == other.regions[i].features).all() for i in one.regions)
for change in ({"options": {"seed": 6}}, {"options": {"config_name": "binary"}}, {"builder": "coco_captions"}):
    try:
        prepare_data(dataclasses.replace(far, data=dataclasses.replace(far.data, **change)))
    except DataError as error:
        print("error:", error)
"""
    done = python(loopback_hub, tmp_path / "home", code, folder=tmp_path)
    assert done.returncode == 0, done.stderr
    errors = [line for line in done.stdout.splitlines() if line.startswith("error:")]
    assert len(errors) == 3
    assert "built with seed=5: found 6" in errors[0]
    assert "no such configuration: found 'binary', expected typology" in errors[1]
    assert "the rows belong to another data set: found 'vgp', expected coco_captions" in errors[2]


def test_features_are_not_pushed_without_permission(table, tmp_path, capsys):
    assert main([str(table), "org/x"]) == 2
    line = capsys.readouterr().err
    assert line.startswith("error: cannot push the region table")
    assert "--permission TEXT" in line
    with pytest.raises(DataError, match="no region table here"):
        push_regions(tmp_path, "org/x", licence="mit")
