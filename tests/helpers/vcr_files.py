# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""Files of VCR in the official format."""

import json

OBJECTS = ["person", "car", "person"]
CLIP = "film/film_00.01@0"


def question(number, split="train", objects=OBJECTS, clip=CLIP, **changes):
    record = {
        "annot_id": f"{split}-{number}",
        "img_id": f"{split}-{number // 2}",
        "img_fn": f"{clip}.jpg",
        "metadata_fn": f"{clip}.json",
        "objects": objects,
        "question": ["Why", "do", [0, 2], "like", [1], "?"],
        "answer_choices": [["No", "."], [[2], "'s", "hungry", "."], [[1]], ["Yes", "."]],
        "rationale_choices": [[[0], "smiles", "."], ["a", "."], ["b", "."], [[0, 1, 2]]],
        "answer_label": 1,
        "rationale_label": 3,
        "match_fold": f"{split}-0",
    }
    if split == "test":
        del record["answer_label"], record["rationale_label"]
    return {key: value for key, value in {**record, **changes}.items() if value is not None}


def metadata(**changes):
    boxes = [[20.0, 10.0, 100.0, 50.0, 0.99], [0.0, 60.0, 201.0, 90.0, 0.9], [150.0, 0.0, 200.0, 100.0, 0.8]]
    fields = {"boxes": boxes, "segms": [[], [], []], "names": OBJECTS, "width": 200, "height": 100}
    return {key: value for key, value in {**fields, **changes}.items() if value is not None}


def write(folder, split, records):
    path = folder / "vcr1annots" / f"{split}.jsonl"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(record) + "\n" for record in records))


def write_image(folder, clip=CLIP, **changes):
    path = folder / "vcr1images" / f"{clip}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(metadata(**changes)))
    return path
