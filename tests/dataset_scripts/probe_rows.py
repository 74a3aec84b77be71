# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""Files of probes, each with the columns of its own, of the pictures p.png and q.png."""

TRUE = "a dog chases a cat"
FALSE = "a cat chases a dog"
VALSE = {"dataset": "coco", "linguistic_phenomena": "actant swap", "image_file": "p.png", "caption": TRUE,
         "foil": FALSE, "mturk": {"caption": 2, "foil": 1, "other": 0}}  # fmt: skip
# Probe -> the content of its file, and captions, label and group of its rows.
PROBES = {
    "VALSE": ({"v1": VALSE, "v2": {**VALSE, "mturk": {"caption": 1, "foil": 2, "other": 0}}},
              [([TRUE, FALSE], 1, "actant swap")]),
    "SugarCrepe": ({"0": {"filename": "p.png", "caption": TRUE, "negative_caption": FALSE}}, [([TRUE, FALSE], 1, "")]),
    "What'sUp": ([{"image_path": "p.png", "caption_options": [TRUE, FALSE, "a dog"]}],
                 [([TRUE, FALSE, "a dog"], 1, "")]),
    "VSR": ([{"image": "p.png", "image_link": "http://x/p.png", "caption": TRUE, "label": label, "relation": "under"}
             for label in (0, 1, True)], [([TRUE], 0, "under"), ([TRUE], 1, "under"), ([TRUE], 1, "under")]),
    "Winoground": ([{"id": 7, "image_0": "p.png", "image_1": "q.png", "caption_0": TRUE, "caption_1": FALSE,
                     "collapsed_tag": "Object"}],
                   [([TRUE, FALSE], 1, "Object"), ([FALSE, TRUE], 1, "Object")]),
}  # fmt: skip
