"""What grounded_boxes.yaml calls: our reader of rows, our reader of a model's boxes, our rule of a right box.

The variable BOXES names how the model writes boxes, one of `BOX_DIALECTS`; `plain` (0 to 1000) by default.
"""

import os

import numpy as np
from datasets import Dataset

from grounded_attention.dataset_scripts.rows.reader import grounded_rows
from grounded_attention.heads.boxes import fits_box
from grounded_attention.processing.box_dialects import BOX_DIALECTS, fit_dialect
from grounded_attention.utils.open_images import open_image

DIALECT = fit_dialect(BOX_DIALECTS[os.environ.get("BOXES", "plain")], None)


def read_docs(dataset):
    """A document for each phrase with boxes."""
    docs = []
    for row in grounded_rows(dataset).decode(False):
        for phrase in row["phrases"]:
            if phrase["boxes"]:
                docs.append({"image": row["image"], "text": phrase["text"], "boxes": phrase["boxes"]})
    return Dataset.from_list(docs)


def pictures(doc):
    return [open_image(doc["image"], doc["text"])]


def question(doc, lmms_eval_specific_kwargs=None):
    return DIALECT.prompt.replace("{text}", doc["text"])


def score(doc, results):
    """1 if the first box of the answer fits, 0 without a box."""
    box = DIALECT.read(results[0])
    return {"box_accuracy": 0.0 if box is None else fits_box(box, np.array(doc["boxes"]))}
