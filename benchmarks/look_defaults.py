# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""Where the object words of generated answers look: which heads and which form of `look` point at their objects.

The model of `make vlm` describes images of its test split. An object word is a noun of the captions, with the
attributes before it; its objects are the entities of the image that captions call by this noun, and of these the ones
with the most of the attributes. It points right if the image token with the most attention is one of its objects' (the
pointing game). Chance is any image token.

examples:
  python -m benchmarks.look_defaults runs/vlm_scenes/direct --images 100
  python -m benchmarks.look_defaults grounded_attention/space/models/vlm/direct --captions --images 24
"""

import argparse
import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from tqdm.auto import tqdm

from grounded_attention.commands.command_line import make_parser, run
from grounded_attention.commands.number_options import positive
from grounded_attention.dataset_scripts.builders.flickr30k_entities import Flickr30kEntities
from grounded_attention.heads.heads_file import ChosenHeads
from grounded_attention.heads.statistics import ratio_intervals
from grounded_attention.lens.look import look
from grounded_attention.lens.word_maps import Lens
from grounded_attention.processing.patch_grounding import match_coverage
from grounded_attention.training.experiments.pretrained import load_vlm
from grounded_attention.utils.open_images import open_image

QUESTION = "Describe the image."
FORMS = ("plain", "relative", "sinks", "sinks,relative")
RULE = "Localization Heads"


def object_words(row: Mapping[str, Any]) -> dict[str, tuple[set[str], np.ndarray]]:
    """Entity -> the words that captions say of it, and its boxes."""
    words_of: dict[str, tuple[set[str], np.ndarray]] = {}
    boxes = {entity["entity_id"]: np.array(entity["boxes"]) for entity in row["entities"] if entity["boxes"]}
    for caption in row["captions"]:
        for phrase in caption["phrases"]:
            if phrase["entity_id"] in boxes:
                words = words_of.setdefault(phrase["entity_id"], (set(), boxes[phrase["entity_id"]]))[0]
                words.update(phrase["text"].lower().split())
    return words_of


def vocabulary(rows: Sequence[Mapping[str, Any]]) -> tuple[set[str], set[str]]:
    """The nouns of phrases, and the words before them without the first, which is an article or a number."""
    parts = [
        phrase["text"].lower().partition(" with ")[0].split()
        for row in rows
        for caption in row["captions"]
        for phrase in caption["phrases"]
        if any(each["entity_id"] == phrase["entity_id"] and each["boxes"] for each in row["entities"])
    ]
    return {part[-1] for part in parts}, {word for part in parts for word in part[1:-1]}


def grounded_words(lens: Lens, row: Mapping[str, Any], words: tuple[set[str], set[str]]) -> Iterator[tuple[int, Any]]:
    """The object words of an answer, by their number, each with the boxes of its objects; empty if there are none."""
    nouns, attributes = words
    answered = [(number, word.text.lower()) for number, word in enumerate(lens.words) if word.answer]
    entities = object_words(row).values()
    for place, (number, text) in enumerate(answered):
        if text in nouns:
            said, before = {text}, place - 1
            while before >= 0 and answered[before][1] in attributes:
                said.add(answered[before][1])
                before -= 1
            alike = [(len(said & known), boxes) for known, boxes in entities if text in known]
            most = max((shared for shared, _ in alike), default=0)
            yield number, [box for shared, boxes in alike if shared == most for box in boxes]


def looks(
    model: Any, processor: Any, image: Any, chosen: ChosenHeads, answer: str | None, rows: str
) -> dict[tuple[str, str], Lens]:
    """(heads, form) -> the look; an answer is generated once, unless it is given."""
    every = look(model, processor, image, QUESTION, answer=answer, heads="all", rows=rows)
    asked = {"text": QUESTION, "answer": every.answer, "rows": rows}
    # Without labels, as for a model without heads.json.
    unnamed = look(model, processor, image, **asked, heads="auto")
    sets = {"all": every.heads, "heads.json": chosen.heads, RULE: unnamed.heads}
    named = {
        (name, form): look(model, processor, image, **asked, heads=heads, form=form)
        for name, heads in sets.items()
        for form in FORMS
    }
    return {**named, ("all", "rollout"): look(model, processor, image, **asked, form="rollout")}


def measure(options: argparse.Namespace) -> str:
    """Runs the command and returns the text to print."""
    model, processor = load_vlm(options.model)
    chosen = ChosenHeads.of_model(model)
    model.config.name_or_path = model.name_or_path = ""  # so that `auto` finds no heads.json
    builder = Flickr30kEntities(data_dir=str(options.scenes))
    builder.download_and_prepare()
    rows = builder.as_dataset("test").select(range(options.images))
    words = vocabulary(rows)
    right: dict[tuple[str, str], list[float]] = {}
    counts, chance, wrong = [], [], 0
    for row in tqdm(rows, disable=None, leave=False):
        image = open_image(options.scenes / f"flickr30k-images/{row['image_id']}.jpg")
        lenses = looks(
            model, processor, image, chosen, row["captions"][0]["text"] if options.captions else None, options.rows
        )
        lens = next(iter(lenses.values()))
        shown = lens.token_images == 0
        said = list(grounded_words(lens, row, words))
        wrong += sum(not boxes for _, boxes in said)
        places = lens.token_boxes
        gold = {
            number: match_coverage(np.array(boxes), np.broadcast_to(places, (len(boxes), *places.shape)), 0.5).any(0)
            for number, boxes in said
            if boxes
        }
        counts.append(len(gold))
        chance.append(sum(each[shown].mean() for each in gold.values()))
        for name, one in lenses.items():
            pointed = one.attention.mean(0)
            hits = [each[np.where(shown, pointed[number], -1).argmax()] for number, each in gold.items()]
            right.setdefault(name, []).append(float(sum(hits)))
    names = list(right)
    sums, total = np.array([right[name] for name in names]).T, sum(counts)
    low, high = ratio_intervals(sums, np.array(counts))
    base = sum(chance) / total
    order = np.argsort(-sums.sum(0), kind="stable")
    if options.json:
        ways = [
            {
                "heads": names[n][0],
                "form": names[n][1],
                "pointing": sums[:, n].sum() / total,
                "interval": [low[n], high[n]],
            }
            for n in order.tolist()
        ]
        return json.dumps({"words": total, "chance": float(base), "ways": ways})
    lines = ["| heads | form | pointing | 95 % | times chance |", "|---|---|--:|--:|--:|"]
    for place in order:
        part = sums[:, place].sum() / total
        interval = f"{low[place]:.1%} to {high[place]:.1%}"
        lines.append(f"| {names[place][0]} | {names[place][1]} | {part:.1%} | {interval} | {part / base:.1f} |")
    about = (
        f"{total} object words of {len(rows)} answers; {wrong} others name nothing in their image. Chance {base:.1%}."
    )
    return "\n".join([*lines, "", about])


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the command and returns its exit status."""
    parser = make_parser("python -m benchmarks.look_defaults", __doc__)
    parser.add_argument("model", help="a model of `make vlm` with heads.json, such as runs/vlm_scenes/direct")
    parser.add_argument("--scenes", type=Path, default=Path("data/scenes"), help="default: %(default)s")
    parser.add_argument("--images", type=positive, default=100, help="images of the test split (default: %(default)s)")
    parser.add_argument("--captions", action="store_true", help="read the first caption instead of generating answers")
    parser.add_argument(
        "--rows", choices=("own", "before"), default="own", help="of the words, as for look (default: own)"
    )
    parser.add_argument("--json", action="store_true", help="print the numbers as JSON")
    return run(parser, measure, arguments)


if __name__ == "__main__":
    sys.exit(main())
