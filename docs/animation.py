# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""Draws docs/images/two_models.gif: where the two small checkpoints of the package look for the same phrases.

`python docs/animation.py` in a clone; 20 seconds, five phrases of two scenes that neither model has seen.
"""

import json
import tempfile
from pathlib import Path

from PIL import Image, ImageDraw, ImageFont

from grounded_attention.commands.ground import main

ROOT = Path(__file__).parents[1]
SPACE = ROOT / "grounded_attention" / "space"
TITLES = {"none": "not taught where to look", "direct": "taught where to look"}
PHRASES = {
    "10074.jpg": ("a large azure heart", "a little red plus with stripes", "a medium funnel"),
    "11313.jpg": ("a red cross", "a small pink hoop"),
}
WIDTH, TITLE, SECONDS = 400, 30, 20


def draw() -> None:
    """Writes the frames, one phrase each: left the model without supervision, right the supervised one."""
    captions = json.loads((SPACE / "scenes" / "captions.json").read_text())
    font, frames = ImageFont.load_default(size=16), []
    with tempfile.TemporaryDirectory() as folder:
        for scene, phrases in PHRASES.items():
            for phrase in phrases:
                sides = []
                for name, title in TITLES.items():
                    path = f"{folder}/{name}.png"
                    options = ["--model", str(SPACE / "models" / name), "--detector", "scenes", "--features", "scenes"]
                    picture = str(SPACE / "scenes" / scene)
                    if main([picture, captions[scene], "--phrases", phrase, *options, "--output", path]):
                        raise SystemExit(1)
                    drawn = Image.open(path).convert("RGB")
                    drawn = drawn.resize((WIDTH, round(drawn.height * WIDTH / drawn.width)), Image.Resampling.LANCZOS)
                    side = Image.new("RGB", (WIDTH, drawn.height + TITLE), "white")
                    side.paste(drawn, (0, TITLE))
                    ImageDraw.Draw(side).text((WIDTH / 2, TITLE / 2), title, "black", font, anchor="mm")
                    sides.append(side)
                frame = Image.new("RGB", (2 * WIDTH, max(side.height for side in sides)), "white")
                for number, side in enumerate(sides):
                    frame.paste(side, (number * WIDTH, 0))
                frames.append(frame)
    size = (2 * WIDTH, max(frame.height for frame in frames))
    even = [Image.new("RGB", size, "white") for _ in frames]
    for blank, frame in zip(even, frames, strict=True):
        blank.paste(frame, (0, 0))
    first, *rest = (frame.quantize(200, dither=Image.Dither.NONE) for frame in even)
    target = ROOT / "docs" / "images" / "two_models.gif"
    first.save(target, save_all=True, append_images=rest, duration=1000 * SECONDS // len(frames), loop=0)


if __name__ == "__main__":
    draw()
