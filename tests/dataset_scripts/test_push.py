# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""Rows go to a Hub over HTTP and come back equal, in separate processes."""

import json
import re
import subprocess
from pathlib import Path

import datasets
import pytest
import yaml

from grounded_attention.commands.build_data import main
from grounded_attention.dataset_scripts.builders import BUILDERS
from grounded_attention.dataset_scripts.files.errors import DataError
from grounded_attention.dataset_scripts.hub.dataset_card import write_card
from grounded_attention.dataset_scripts.licences import (
    ALLOWED,
    SCENES,
    UNDECLARED,
    USER_TEXTS,
    apply_user_licence,
    check_redistribution,
    generated_scenes,
)
from grounded_attention.dataset_scripts.scenes.dataset import write_scenes
from tests.helpers.entities_files import write_vgp
from tests.helpers.warm_python import run_python

ROOT = Path(__file__).parents[2]
NAME = "org/scenes-vgp"
# Several commands in one process: to import `datasets` takes longer than they do.
COMMANDS = """
import contextlib, io, json, sys
from grounded_attention.commands.build_data import main
done = []
for arguments in json.loads(sys.argv[1]):
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        code = main(arguments)
    done.append((code, out.getvalue(), err.getvalue()))
print(json.dumps(done))
"""
READ_BACK = """
import json, sys
import datasets
name, configs = sys.argv[1], json.loads(sys.argv[2])
for config, folder in configs.items():
    local = datasets.load_dataset("parquet", data_dir=folder)
    pulled = datasets.load_dataset(name, config)
    streamed = datasets.load_dataset(name, config, streaming=True)
    assert set(pulled) == set(streamed) == set(local)
    for split in local:
        assert pulled[split].features == streamed[split].features == local[split].features
        assert list(pulled[split]) == list(streamed[split]) == list(local[split]) and len(local[split])
    print(config, pulled["train"].features["identification_label"].names)
"""


PULL = """
import datasets
from grounded_attention.dataset_scripts.hub.pull_rows import find_rows, pull_rows
from grounded_attention.dataset_scripts.builders.refcoco import RefCOCO
print(list(datasets.load_dataset("org/refcoco", "refcoco+")), end=" ")
splits = pull_rows(find_rows("hub://org/refcoco", "refcoco", RefCOCO, {}))
print(len(splits["testB"]), splits["testB"].features == splits["train"].features)
"""


@pytest.fixture(scope="module")
def scenes(tmp_path_factory):
    folder = tmp_path_factory.mktemp("scenes")
    write_scenes(folder, images=8, seed=3)
    return folder


def python(hub, home, code, *arguments, token="hf_loopback", folder=ROOT):
    environment = {**hub.environment(home, token), "PYTHONPATH": str(ROOT)}
    return run_python(code, arguments, cwd=folder, env=environment)


def run(hub, home, *commands, token="hf_loopback"):
    """(exit code, stdout, last line of stderr) of each `grounded_attention.commands.build_data` command."""
    done = python(hub, home, COMMANDS, json.dumps(commands), token=token)
    assert done.returncode == 0, done.stderr[-2000:]
    return [(code, out, (err.splitlines() or [""])[-1]) for code, out, err in json.loads(done.stdout.splitlines()[-1])]


def vgp(scenes, output, *options):
    folders = ["--data-dir", str(scenes), "--output", str(output)]
    return ["vgp", *folders, "--push", NAME, *options]


def card_of(hub, name):
    text = hub.read(name, "README.md", kind="datasets").decode()
    _, metadata, body = re.split(r"^---$", text, maxsplit=2, flags=re.MULTILINE)
    return yaml.safe_load(metadata), body


def test_configurations_come_back_equal_and_the_card_shows_how_they_were_made(loopback_hub, scenes, tmp_path):
    near, drawn, home = tmp_path / "near", tmp_path / "drawn", tmp_path / "home"
    nearest = vgp(scenes, near, "--push-as", "nearest", "--num-proc", "2", f"regions={scenes}/regions", "seed=4")
    done = run(loopback_hub, home, nearest, vgp(scenes, drawn, "--json", "negatives=random", "negatives_per_image=3"))
    assert [code for code, *_ in done] == [0, 0], done
    files = loopback_hub.files(NAME, kind="datasets")
    assert {f"nearest/train-0000{i}-of-00002.parquet" for i in range(2)} < set(files)
    assert len(loopback_hub.commits(NAME, kind="datasets")) == 3  # one a push, after the Hub's own
    commit = loopback_hub.commits(NAME, kind="datasets")[0]["id"]
    assert json.loads(done[1][1])["commit"].endswith(commit)

    configs = json.dumps({"nearest": str(near), "typology": str(drawn)})
    pulled = python(loopback_hub, tmp_path / "other", READ_BACK, NAME, configs, folder=tmp_path)
    assert pulled.returncode == 0, pulled.stderr[-2000:]
    assert pulled.stdout.split("\n")[:2] == [f"{config} ['both', 'first', 'second']" for config in json.loads(configs)]

    metadata, body = card_of(loopback_hub, NAME)
    assert metadata["license"] == "cc0-1.0" and "Generated by grounded-attention" in body
    assert [config["config_name"] for config in metadata["configs"]] == ["nearest", "typology"]
    assert "vgp --config typology --data-dir DIR --output OUT regions=regions seed=4" in body
    assert "grounded-attention data scenes --output DIR --images 8 --seed 3" in body
    assert str(scenes) not in body and str(tmp_path) not in body
    record = json.loads(loopback_hub.read(NAME, "nearest/build.json", kind="datasets"))
    assert str(scenes) not in json.dumps(record)
    for place, part in ((f"vgp/{split}_data.csv", record) for split in ("train", "val", "test")):
        source = next(source for source in part["sources"] if source["file"] == place)
        shown = subprocess.run(["sha256sum", scenes / place], capture_output=True, text=True, check=True).stdout
        assert source["sha256"] == shown.split()[0] and source["bytes"] == (scenes / place).stat().st_size
    (snippet,) = re.findall(r"```python\n(.*?)```", body, re.DOTALL)
    shown = python(loopback_hub, tmp_path / "third", snippet, folder=tmp_path)
    assert shown.returncode == 0, shown.stderr[-2000:]
    first = datasets.load_dataset("parquet", data_dir=str(near), cache_dir=str(tmp_path / "cache"))["train"][0]
    assert shown.stdout == f"{first}\n{first}\n"


def test_splits_without_rows_are_omitted(loopback_hub, tmp_path):
    image = {"id": 1, "file_name": "COCO_train2014_000000000001.jpg", "width": 10, "height": 10}
    annotation = {"id": 5, "image_id": 1, "bbox": [1, 1, 5, 5], "category_id": 1}
    (tmp_path / "instances.json").write_text(json.dumps({"images": [image], "annotations": [annotation]}))
    refs = [
        {
            "ref_id": i,
            "ann_id": 5,
            "image_id": 1,
            "split": split,
            "sentences": [{"sent_id": i, "tokens": ["a", "dog"]}],
        }
        for i, split in enumerate(("train", "val", "testA"))
    ]
    (tmp_path / "refs(unc).json").write_text(json.dumps(refs))
    arguments = ["refcoco", "--data-dir", str(tmp_path), "--output", str(tmp_path / "built"), "--push", "org/refcoco"]
    ((code, printed, _),) = run(loopback_hub, tmp_path / "home", [*arguments, "--permission", "made up"])
    assert code == 0 and "testB: 0 rows" in printed
    assert not [path for path in loopback_hub.files("org/refcoco", kind="datasets") if "testB" in path]
    done = python(loopback_hub, tmp_path / "other", PULL, folder=tmp_path)
    assert done.returncode == 0 and done.stdout.startswith("['train', 'validation', 'testA'] "), done.stderr[-2000:]
    assert done.stdout.endswith(" 0 True\n")


def test_a_failed_push_changes_nothing_and_the_next_continues(loopback_hub, scenes, tmp_path):
    output, home = tmp_path / "built", tmp_path / "home"
    command = vgp(scenes, output, "negatives=random")
    loopback_hub.inject("status", rf"POST .*{NAME}/commit/", status=500, times=50)
    ((code, _, line),) = run(loopback_hub, home, command)
    assert code == 2 and line.startswith(f"error: {NAME}: the push failed") and "run the same command again" in line
    assert loopback_hub.files(NAME, kind="datasets") == [".gitattributes"]
    loopback_hub.state.write("faults.json", [])
    # Everything was uploaded before the commit: a second upload would meet this.
    loopback_hub.inject("status", r"PUT /lfs", status=403)
    assert run(loopback_hub, home, command)[0][0] == 0
    assert loopback_hub.pending_faults() == 1 and "README.md" in loopback_hub.files(NAME, kind="datasets")
    loopback_hub.state.write("faults.json", [])

    before = loopback_hub.files(NAME, kind="datasets")
    loopback_hub.inject("status", r"PUT /lfs", status=403)
    fewer = vgp(scenes, output, "negatives=random", "negatives_per_image=1", "--split", "train")
    failed, again = run(loopback_hub, home, fewer, fewer)
    assert failed[0] == 2 and failed[2].startswith("error: ") and again[0] == 0
    files = loopback_hub.files(NAME, kind="datasets")
    assert set(before) - set(files) == {f"typology/{split}-00000-of-00001.parquet" for split in ("validation", "test")}


def test_refused_pushes_give_one_line(loopback_hub, scenes, tmp_path):
    output, home = str(tmp_path / "built"), tmp_path / "home"
    coco = ["coco_captions", "--data-dir", str(scenes), "--output", output, "--push"]
    drawn = vgp(scenes, tmp_path / "vgp", "negatives=random")
    done = run(
        loopback_hub,
        home,
        [*coco, "org/coco"],
        [*coco, "org/coco", "--private"],
        [*coco, "org/secret", "--private", "--revision", "next"],
        [*coco, "coco"],
        [*drawn[:5], "--push", "org/coco", "negatives=random"],
        [*coco, "others/coco"],
        [*coco, "org/coco", "--push-as", "a/b"],
        [*coco, "org/coco", "--licence", "mit"],
    )
    assert [code for code, *_ in done] == [0, 2, 0, 2, 2, 2, 2, 2]
    messages = [line for code, _, line in done if code]
    assert all(line.startswith("error: ") for line in messages)
    for message, part in zip(
        messages,
        (
            "org/coco: the repository is public",
            "not a repository id: found 'coco', expected ORG/NAME",
            "the repository holds another data set: found 'coco_captions'",
            "others/coco: the push failed: the token may not write there",
            "not a valid name of a configuration: found 'a/b'",
            "this data set already has a licence",
        ),
        strict=True,
    ):
        assert part in message
    assert loopback_hub.state.repo("datasets", "org/secret")["private"]
    assert loopback_hub.files("org/secret", kind="datasets") == [".gitattributes"]
    assert "official/build.json" in loopback_hub.files("org/secret", "next", kind="datasets")
    ((code, _, line),) = run(loopback_hub, home, [*coco, "org/new"], token="hf_wrong")
    assert code == 2 and "the token was rejected" in line


def test_the_card_quotes_the_permission_of_a_push(loopback_hub, tmp_path):
    data = write_vgp(tmp_path / "data", [("1", "A man", "An old man", 2)])
    entities = [
        "flickr30k_entities",
        "--data-dir",
        str(data),
        "--output",
        str(tmp_path / "built"),
        "--push",
        "org/own",
    ]
    corpus = tmp_path / "corpus.txt"
    corpus.write_text("one sentence .\nanother sentence .\n")
    texts = ["text_corpus", "--data-dir", str(corpus), "--output", str(tmp_path / "texts"), "--push", "org/texts"]
    done = run(
        loopback_hub,
        tmp_path / "home",
        [*entities, "--permission", "permission of the authors\nin 2026"],
        [*texts, "--licence", "mit"],
        texts,
    )
    assert [code for code, *_ in done] == [0, 0, 2] and "--permission TEXT" in done[2][2]
    metadata, body = card_of(loopback_hub, "org/own")
    assert metadata["license"] == "unknown"
    assert "do not clearly allow" in body and "this reason: permission of the authors in 2026" in body
    assert card_of(loopback_hub, "org/texts")[0]["license"] == "mit"


@pytest.mark.parametrize("name", ["flickr30k_entities", "refcoco", "vcr", "vgp"])
def test_data_without_permission_are_refused_before_anything_is_read(name, tmp_path, capsys):
    arguments = [name, "--data-dir", str(tmp_path), "--output", str(tmp_path / "built"), "--push", "org/x"]
    assert main(arguments) == 2
    *_, line = capsys.readouterr().err.splitlines()
    assert line.startswith(f"error: cannot push {name}: its licence ") and "--permission TEXT" in line
    assert "ask" in line.lower() and not (tmp_path / "built").exists()


def test_options_of_a_push_need_one(tmp_path, capsys):
    arguments = ["vcr", "--data-dir", str(tmp_path), "--output", str(tmp_path / "built"), "--private"]
    assert main(arguments) == 2 and "--private needs --push" in capsys.readouterr().err


def test_every_builder_declares_its_terms():
    for name, builder in BUILDERS.items():
        for config in builder.BUILDER_CONFIGS or [builder.BUILDER_CONFIG_CLASS(name="default")]:
            assert config.licence() != UNDECLARED, f"{name} declares no licence"
            assert config.licence().redistribution != ALLOWED or config.licence().source.startswith("https://")


def test_scenes_are_recognised_by_their_sources(scenes, tmp_path):
    inside, outside = scenes / "vgp" / "train_data.csv", tmp_path / "train_data.csv"
    outside.write_text("x")
    assert generated_scenes(scenes, [inside, scenes / "not there"]) and generated_scenes(
        scenes / "corpus.txt", [inside]
    )
    assert not generated_scenes(scenes, [inside, outside]) and not generated_scenes(tmp_path, [outside])


def test_terms_are_checked():
    check_redistribution(SCENES, "scenes", None)
    with pytest.raises(DataError, match="does not clearly allow"):
        check_redistribution(UNDECLARED, "x", "  ")
    assert (
        apply_user_licence(USER_TEXTS, "mit").identifier == "mit"
        and apply_user_licence(USER_TEXTS, None) == USER_TEXTS
    )
    with pytest.raises(DataError, match="--licence is for your own data only"):
        apply_user_licence(SCENES, "mit")


def test_the_card_names_the_strictest_licence():
    def record(identifier, redistribution):
        licence = {"identifier": identifier, "redistribution": redistribution, "terms": "T.", "source": "S"}
        info = {"features": {"x": {"dtype": "string", "_type": "Value"}}, "dataset_size": 1, "download_size": 1}
        info["splits"] = {"train": {"name": "train", "num_bytes": 1, "num_examples": 5}}
        texts = dict.fromkeys(("description", "columns", "homepage", "citation", "command", "builder"), "d")
        return {
            **texts,
            "licence": licence,
            "permission": "p",
            "info": info,
            "sources": [],
            "versions": {},
            "scenes": None,
        }

    text = write_card("a/b", {"one": record("mit", "allowed"), "two": record("other", "forbidden")})
    metadata = yaml.safe_load(text.split("---")[1])
    assert metadata["license"] == "other" and metadata["license_link"] == "S"
    assert "`mit`" in text and "**These terms forbid redistribution of the data.**" in text
