# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""Rows of a user with their pictures, and what a Hub has of a data set."""

import json
import re
from pathlib import Path

import yaml
from PIL import Image, ImageDraw

from tests.helpers.warm_python import run_python

ROOT = Path(__file__).parents[2]
BALL = (10, 20, 50, 60)
CUBE = (60, 30, 90, 60)


def draw(place):
    picture = Image.new("RGB", (120 + place, 90), (224, 208, 170))
    ImageDraw.Draw(picture).ellipse(tuple(side + place for side in BALL), fill=(205, 38, 38))
    ImageDraw.Draw(picture).rectangle(CUBE, fill=(38, 88, 210))
    return picture


def write_rows(folder, count=12, **more):
    """Rows with two phrases in pixels, and the pictures beside them."""
    folder.mkdir(parents=True, exist_ok=True)
    with open(folder / "rows.jsonl", "w") as file:
        for number in range(count):
            draw(number).save(folder / f"{number}.png")
            ball = [side + number for side in BALL]
            phrases = [{"text": "red ball", "boxes": [ball]}, {"text": "blue cube", "boxes": [CUBE]}]
            row = {"image": f"{number}.png", "text": "a red ball and a blue cube", "phrases": phrases, **more}
            file.write(json.dumps(row) + "\n")
    return folder / "rows.jsonl"


def python(hub, home, code, *arguments, token="hf_loopback", folder=ROOT):
    environment = {**hub.environment(home, token), "PYTHONPATH": str(ROOT)}
    return run_python(code, arguments, cwd=folder, env=environment)


def card_of(hub, name):
    text = hub.read(name, "README.md", kind="datasets").decode()
    _, metadata, body = re.split(r"^---$", text, maxsplit=2, flags=re.MULTILINE)
    return yaml.safe_load(metadata), body
