# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""Checkpoints of all families as the transformers of this Python saves them, and what they compute there.

`python -m tests.conformance.older_checkpoints FOLDER`
"""

import json
import sys
from pathlib import Path

import torch
import transformers

from grounded_attention.families import FAMILIES
from grounded_attention.modeling import VisualGroundingPipeline
from tests.helpers.hub_models import FAMILY_SIZES, SIZES
from tests.helpers.tiny_trainer import logged, make_trainer
from tests.helpers.tiny_vgp import FEATURE_SIZE, tiny_processor

STEPS = 10
KNOWN = {
    "caption": "a b c",
    "phrases": ["b"],
    "boxes": [[0, 0, 40, 30], [20, 15, 80, 60], [40, 0, 80, 30]],
    "features": torch.rand(3, FEATURE_SIZE, generator=torch.Generator().manual_seed(0)).tolist(),
    "image_size": [80, 60],
}


def scores(pipe):
    """The attention of the phrase on each region."""
    return [one["score"] for one in pipe(KNOWN, top_k=None)]


def ten_steps(folder):
    """The losses of ten supervised steps of a small model."""
    trainer = make_trainer(folder, max_steps=STEPS, per_device_train_batch_size=4)
    trainer.train()
    return [entry["loss"] for entry in logged(trainer)]


def save_all(folder):
    """Saves a model and a processor of each family, and `made.json` with what they compute."""
    made = {"transformers": transformers.__version__, "scores": {}, "losses": ten_steps(folder / "run")}
    for name, family in FAMILIES.items():
        torch.manual_seed(0)
        config = family.config_class(**SIZES, **FAMILY_SIZES.get(name, {}))
        model = family.heads["vgp"](config).eval()
        processor = family.processor_class(tiny_processor().tokenizer, region_feature_size=FEATURE_SIZE)
        for part in (model, processor):
            part.save_pretrained(folder / name)
        made["scores"][name] = scores(VisualGroundingPipeline(model, processor=processor, device="cpu"))
    (folder / "made.json").write_text(json.dumps(made))


if __name__ == "__main__":
    save_all(Path(sys.argv[1]))
