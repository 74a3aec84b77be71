# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""Rows of any form go to a Hub and come back equal, streamed too; `datasets` alone opens them."""

import json

from tests.helpers.own_rows import card_of, draw, python, write_rows

NAME = "org/own-rows"
PUSH = """
import json, sys
from grounded_attention.commands.push_rows import main
raise SystemExit(main(json.loads(sys.argv[1])))
"""
READ_BACK = """
import json, sys
import numpy as np
from grounded_attention import grounded_rows

def known(rows):
    found = []
    for row in rows:
        pictures = row.pop("images", None) or [row.pop("image")]
        row.pop("split", None)
        found.append((json.dumps(row, sort_keys=True), [np.asarray(each).tobytes() for each in pictures]))
    return found

source, options = sys.argv[1], json.loads(sys.argv[2])
given = known(grounded_rows(source, **options))
assert given == known(grounded_rows(sys.argv[3])), "downloaded"
streamed = grounded_rows(sys.argv[3], streaming=True)
assert given == known(streamed) == known(streamed), "streamed"
print(len(given), streamed.report.convention, streamed.splits)
"""
SHOW = """
import sys
from grounded_attention.commands.show_data import main
raise SystemExit(main(sys.argv[1:]))
"""
ALONE = """
import sys
sys.modules["grounded_attention"] = None
import datasets
row = datasets.load_dataset(sys.argv[1], split="train")[0]
print(row["image"].size, row["text"], row["phrases"][1]["boxes"])
"""


def conversations(folder):
    """Two pictures in one row, turned by EXIF, and a phrase in each turn."""
    for name, turn in (("a", 1), ("b", 6)):
        picture = draw(0)
        exif = picture.getexif()
        exif[0x0112] = turn
        picture.save(folder / f"{name}.jpg", exif=exif)
    row = """{"images": ["a.jpg", "b.jpg"], "level": 3,
        "messages": [{"role": "user", "content": "Which is the red ball?"},
        {"role": "assistant", "content": "The left one, no cube."}],
        "phrases": [{"text": "red ball", "sentence": 0, "image": 0, "boxes": [[0.1, 0.2, 0.3, 0.7]], "weight": 0.5},
        {"text": "cube", "sentence": 1, "image": 1, "boxes": []}]}"""
    (folder / "talk.jsonl").write_text(row.replace("\n", " ") + "\n")
    return folder / "talk.jsonl"


def push_and_read_back(hub, folder, source, name, **options):
    """What the rows are that come back, after they were compared with those that were pushed."""
    command = [str(source), name, "--licence", "cc0-1.0"]
    for option, value in options.items():
        command += [f"--{option}", value]
    pushed = python(hub, folder / "home", PUSH, json.dumps(command))
    assert pushed.returncode == 0, pushed.stderr
    back = python(hub, folder / "other", READ_BACK, str(source), json.dumps(options), name)
    assert back.returncode == 0, back.stderr
    metadata, body = card_of(hub, name)
    assert metadata["license"] == "cc0-1.0"
    assert str(folder) not in body
    assert f"data.source: {name}" in body
    shown = python(hub, folder / "other", SHOW, name, folder=folder)
    assert shown.returncode == 0, shown.stderr
    return back.stdout


def test_rows_come_back_equal(loopback_hub, tmp_path):
    source = write_rows(tmp_path, 4, answer="two")
    name = f"{NAME}-texts"
    found = push_and_read_back(loopback_hub, tmp_path, source, name, boxes="xyxy pixels")
    assert found == "4 xyxy 0..1 ['train']\n"
    alone = python(loopback_hub, tmp_path / "third", ALONE, name, folder=tmp_path)
    assert alone.returncode == 0, alone.stderr
    assert alone.stdout.startswith("(120, 90) a red ball and a blue cube [[0.5, 0.333333")


def test_conversations_come_back_equal(loopback_hub, tmp_path):
    source = conversations(tmp_path)
    found = push_and_read_back(loopback_hub, tmp_path, source, f"{NAME}-conversations")
    assert found == "1 xyxy 0..1 ['train']\n"


def test_rows_without_a_licence_are_not_pushed(loopback_hub, tmp_path):
    command = json.dumps([str(conversations(tmp_path)), f"{NAME}-unlicensed"])
    refused = python(loopback_hub, tmp_path / "home", PUSH, command)
    assert refused.returncode == 2
    assert "--licence" in refused.stderr


CONFIGURED = """
import sys
import datasets
from PIL import Image

for name, revision, word in (("a", None, "first"), ("b", None, "second"), ("b", "later", "third")):
    row = {"image": Image.new("RGB", (40, 30)), "text": word, "bbox": [0.1, 0.2, 0.5, 0.6]}
    rows = datasets.Dataset.from_list([row, row]).cast_column("image", datasets.Image())
    rows.push_to_hub(sys.argv[1], config_name=name, revision=revision, split="train")
"""
READ_CONFIGURED = """
import sys
from types import SimpleNamespace
from grounded_attention import grounded_rows
from grounded_attention.commands.rows_options import open_rows
from grounded_attention.training.experiments.prepared_data import prepare_data
from grounded_attention.training.recipes.recipe import Data, Recipe

name, revision = sys.argv[1], "later"
places = {"first": f"{name}:a", "second": f"{name}:b", "third": f"{name}:b@{revision}"}
for word, place in places.items():
    options = SimpleNamespace(columns=[], boxes="xyxy 0..1")
    (text,) = {row["text"] for row in open_rows(place, options)}
    given = dict(zip(("config", "revision"), place[len(name) + 1 :].split("@")))
    (same,) = {row["text"] for row in grounded_rows(name, boxes="xyxy 0..1", **given)}
    data = Data(source=place, boxes="xyxy 0..1", builder="refcoco", splits={"train": "train", "validation": "train"})
    (trained,) = prepare_data(Recipe(task="grounded_generation", data=data)).splits["train"].unique("text")
    print(word == text == same == trained)
"""


def test_configurations_and_revisions_are_named_in_the_source(loopback_hub, tmp_path):
    name = f"{NAME}-configured"
    home = tmp_path / "home"
    pushed = python(loopback_hub, home, CONFIGURED, name)
    assert pushed.returncode == 0, pushed.stderr
    read = python(loopback_hub, tmp_path / "other", READ_CONFIGURED, name)
    assert read.returncode == 0, read.stderr
    assert read.stdout.split().count("True") == 3, read.stdout


# How a row names a picture, in any column that has one.
OUTSIDE = {
    "a path up": '{"text": "a ball", "phrases": [], "image": "../private/x.png"}',
    "a path down and up": '{"text": "a ball", "phrases": [], "image": "sub/../../private/x.png"}',
    "an absolute path": '{"text": "a ball", "phrases": [], "image": "PRIVATE/x.png"}',
    "an address": '{"text": "a ball", "phrases": [], "image": "file://PRIVATE/x.png"}',
    "a link": '{"text": "a ball", "phrases": [], "image": "link.png"}',
    "a link of a link": '{"text": "a ball", "phrases": [], "image": "second.png"}',
    "a folder that is a link": '{"text": "a ball", "phrases": [], "image": "linked/x.png"}',
    "one of several": '{"text": "a ball", "phrases": [], "images": ["0.png", "../private/x.png"]}',
    "a mapping": '{"text": "a ball", "phrases": [], "image": {"path": "../private/x.png", "bytes": null}}',
    "a part of a message": """{"phrases": [], "messages": [
        {"role": "user", "content": [{"type": "image", "image": "../private/x.png"}, {"type": "text", "text": "a"}]},
        {"role": "assistant", "content": [{"type": "text", "text": "a ball"}]}]}""",
}  # fmt: skip
REFUSE_AND_PUSH = """
import json, sys
from grounded_attention.commands.push_rows import main
sources, name = json.loads(sys.argv[1]), sys.argv[2]
for source in sources:
    print("refused", main([source, name, "--licence", "cc0-1.0"]))
raise SystemExit(main([sources[0], name, "--licence", "cc0-1.0", "--outside-pictures"]))
"""


def test_pictures_from_outside_need_a_yes(loopback_hub, tmp_path):
    """Refused before anything is uploaded, and each is named; those in the folder and in `--images` need nothing."""
    own = tmp_path / "own"
    private = tmp_path / "private"
    write_rows(own, 1)
    private.mkdir()
    draw(7).save(private / "x.png")
    (own / "sub").mkdir()
    (own / "link.png").symlink_to(private / "x.png")
    (own / "second.png").symlink_to(own / "link.png")
    (own / "linked").symlink_to(private)
    sources = []
    for number, row in enumerate(OUTSIDE.values()):
        source = own / f"outside{number}.jsonl"
        source.write_text(row.replace("PRIVATE", str(private)).replace("\n", " ") + "\n")
        sources.append(str(source))
    name = f"{NAME}-outside"
    done = python(loopback_hub, tmp_path / "home", REFUSE_AND_PUSH, json.dumps(sources), name)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split().count("2") == len(sources), (done.stdout, done.stderr)
    errors = [line for line in done.stderr.splitlines() if line.startswith("error: ")]
    assert len(errors) == len(sources)
    for error in errors:
        assert "--outside-pictures" in error
        assert error.count(".png") == 1
    assert len(loopback_hub.commits(name, kind="datasets")) == 2  # that of the new repository, and the last push
