# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""Words and defaults of options whose home imports torch or `datasets`, so that `--help` need not import it.

tests/commands/test_choices.py holds each of them equal to its home.
"""

# heads
SAME_SPLIT = "same_split"
VALIDATION, TEST = "validation", "test"
REGIONS = "regions"  # default folder of the region table inside --data-dir
WORDS, DEFAULT_WORD = ("mean", "last", "first", "prompt"), "last"
CORRECTIONS = ("holm", "benjamini_hochberg")
HEAD_RANKS = ("pointing", "lift", "localization")
HEADS_ABLATED = 64
HEADS_LIMIT = 1000  # Localization Heads chooses on this many examples.
HEADS_FILE = "heads.json"
LOOK_FORMS = ("plain", "relative", "sinks", "rollout")
BESIDE_MODEL = ""  # `--evaluate` without a file
# analysis/relevancy.py, analysis/perturbation_curves.py
MAPS = ("raw_last", "raw_mean", "rollout", "relevancy")
STEPS = 10
# commands/convert.py
CONVERTERS = ("fast_rcnn", "lxmert", "vilbert", "visualbert", "vl_bert")
# conversion/export_folder.py
EXPORT_FORMATS = ("onnx", "torch")
# dataset_scripts/builders: coco_captions.py, refcoco.py, vcr.py
COCO_IMAGE_IDS = ("file_stem", "number")
REFCOCO_SETS = ("refcoco", "refcoco+", "refcocog")
VCR_IMAGE_IDS = ("file_stem", "img_id", "number")
# dataset_scripts/scenes
MIN_IMAGES = 5
SCENES = "scenes"  # their detector and features
# labelling
PHRASE_SOURCES = ("textblob", "spacy", "words", "given")
PROMPTS = ("phrases", "caption")
FLORENCE = "florence2"
SHEET = "contact_sheet.png"
SPACY_MODEL = "en_core_web_sm"
BOXES_PER_PHRASE, THRESHOLD, NMS = 1, 0.0, 0.7
# reports/bertviz_export.py
VIEWS = ("head", "model")
# The splits that heads are chosen and reported on.
USUAL_SPLITS = ("train", "validation")
