# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""The command `point`: points of an image, measures of rows by group, and what it refuses."""

import json

import numpy as np
import pytest
from PIL import Image

from grounded_attention.commands.point import main
from tests.helpers.commands import read_error, read_result
from tests.helpers.tiny_vlm_files import save_llava


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A model, and screens in the columns of ScreenSpot."""
    made = tmp_path_factory.mktemp("screens")
    save_llava(made / "llava")
    rows = []
    for number, (kind, source) in enumerate([("icon", "windows"), ("text", "ios"), ("text", "shop")]):
        noise = np.random.default_rng(number).integers(0, 255, (120, 240, 3), dtype=np.uint8)
        Image.fromarray(noise).save(made / f"{number}.png")
        box = [0.0, 0.0, 1.0, 1.0] if kind == "text" else [0.99, 0.99, 1.0, 1.0]
        row = {"file_name": f"{number}.png", "bbox": box, "instruction": "open the cart"}
        rows.append({**row, "data_type": kind, "data_source": source})
    (made / "metadata.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return made


def run_point(*arguments):
    return main([*map(str, arguments)])


def test_an_image(folder, tmp_path, capsys):
    picture = tmp_path / "point.png"
    given = [folder / "0.png", "open the cart", "--model", folder / "llava", "--zoom", 1, "--output", picture]
    assert run_point(*given, "--json") == 0
    found = read_result(capsys)
    assert len(found["crops"]) == 1
    assert len(found["points"]) <= 3
    assert found["point"] == found["points"][0]
    assert Image.open(picture).size == (240, 120)
    assert run_point(*given) == 0
    x, y = capsys.readouterr().out.partition(" pixels")[0].split(", ")
    assert float(x) == pytest.approx(240 * found["point"][0], abs=0.6)
    assert float(y) == pytest.approx(120 * found["point"][1], abs=0.6)


def test_rows_are_measured_by_the_groups_of_screenspot(folder, capsys):
    given = ["--data", folder, "--model", folder / "llava", "--boxes", "xyxy 0..1"]
    assert run_point(*given, "--json") == 0
    scores = read_result(capsys)
    assert set(scores) == {"all", "desktop icon", "mobile text", "web text", "mean of groups"}
    assert scores["mobile text"] == {"hit": 1.0, "overlap": 1.0, "top": 1.0}  # the whole screen
    assert scores["all"]["hit"] == pytest.approx((2 + scores["desktop icon"]["hit"]) / 3)
    assert run_point(*given, "--max-rows", 1) == 0
    printed = capsys.readouterr().out
    assert "desktop icon" in printed
    assert "web text" not in printed


@pytest.mark.parametrize(
    "arguments, word",
    [
        ("", "--data"),
        ("{}/0.png", "--data"),
        ("{0}/0.png open --data {0}", "--data"),
        ("--data {} --output a.png", "--output"),
        ("{}/0.png open --output a.xyz", "a.xyz"),
        ("{0}/0.png open --output {0}/none/a.png", "none"),
    ],
)
def test_what_is_refused(folder, capsys, arguments, word):
    assert run_point(*arguments.format(folder).split(), "--model", folder / "llava") == 2
    assert word in read_error(capsys)
