# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""Files of probes, each with the columns of its own, of the pictures p.png and q.png."""

TRUE = "a dog chases a cat"
FALSE = "a cat chases a dog"
# Probe -> its file, and captions, label and group of its rows.
PROBES = {
    "VALSE": (
        """{"v1": {"dataset": "coco", "linguistic_phenomena": "actant swap", "image_file": "p.png",
        "caption": "a dog chases a cat", "foil": "a cat chases a dog", "mturk": {"caption": 2, "foil": 1, "other": 0}},
        "v2": {"dataset": "coco", "linguistic_phenomena": "actant swap", "image_file": "p.png",
        "caption": "a dog chases a cat", "foil": "a cat chases a dog",
        "mturk": {"caption": 1, "foil": 2, "other": 0}}}""",
        [([TRUE, FALSE], 1, "actant swap")],
    ),
    "SugarCrepe": (
        """{"0": {"filename": "p.png", "caption": "a dog chases a cat", "negative_caption": "a cat chases a dog"}}""",
        [([TRUE, FALSE], 1, "")],
    ),
    "What'sUp": (
        """[{"image_path": "p.png", "caption_options": ["a dog chases a cat", "a cat chases a dog", "a dog"]}]""",
        [([TRUE, FALSE, "a dog"], 1, "")],
    ),
    "VSR": (
        """[{"image": "p.png", "image_link": "x", "caption": "a dog chases a cat", "label": 0, "relation": "under"},
        {"image": "p.png", "image_link": "x", "caption": "a dog chases a cat", "label": 1, "relation": "under"},
        {"image": "p.png", "image_link": "x", "caption": "a dog chases a cat", "label": true, "relation": "under"}]""",
        [([TRUE], 0, "under"), ([TRUE], 1, "under"), ([TRUE], 1, "under")],
    ),
    "Winoground": (
        """[{"id": 7, "image_0": "p.png", "image_1": "q.png", "caption_0": "a dog chases a cat",
        "caption_1": "a cat chases a dog", "collapsed_tag": "Object"}]""",
        [([TRUE, FALSE], 1, "Object"), ([FALSE, TRUE], 1, "Object")],
    ),
}
