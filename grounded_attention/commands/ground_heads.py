"""`grounded-attention ground` for vision-language models: boxes from the attention of a few heads."""

import argparse
import json
from typing import Any

from PIL import Image
from transformers.utils import logging

from grounded_attention.heads.pipeline import PatchGroundingPipeline
from grounded_attention.heads.ranking import ChosenHeads, name_heads
from grounded_attention.reports.patch_pictures import PatchAttention, patch_figure

from .vlm_options import load_vlm

# What only models of this project read.
NOT_READ = ("detector", "boxes", "regions", "features", "queries", "layer", "head")


def ground_with_heads(options: argparse.Namespace, image: Image.Image) -> str:
    """Grounds the caption of an image, or phrases of it, and returns the text to print."""
    logging.set_verbosity_error()
    given = [f"--{name}" for name in NOT_READ if getattr(options, name) is not None]
    if given:
        raise ValueError(
            f"{', '.join(given)}: --model {options.model} finds boxes from its image tokens; remove these options, "
            "and choose heads with --heads"
        )
    model, processor = load_vlm(options, with_language_head=False)
    # By the name that was given: an adapter has heads of its own.
    heads = options.heads or ChosenHeads.of_model(options.model, options.revision)
    pipe: Any = PatchGroundingPipeline(
        model, processor=processor.processor, heads=heads, device=model.device, task="visual-grounding"
    )
    pipe.patches = processor
    outputs = pipe.forward(pipe.preprocess({"image": image, "caption": options.caption, "phrases": options.phrases}))
    grounding = pipe.postprocess(outputs)
    if options.output is not None:
        maps = [
            PatchAttention(one["text"], found.map, found.frame, found.box, found.share)
            for one, found in zip(grounding, outputs["items"][0]["boxes"], strict=True)
        ]
        patch_figure(image, maps, options.output)
    if options.json:
        pairs = [list(pair) for pair in pipe.chosen.heads]
        return json.dumps({"caption": options.caption, "heads": pairs, "warnings": [], "grounding": grounding})
    width = max(len(one["text"]) for one in grounding)
    lines = [
        f"{one['text']:{width}}  box {', '.join(f'{value:g}' for value in one['box'].values())}  {one['score']:.0%}"
        for one in grounding
    ]
    return "\n".join([f"attention of {name_heads(pipe.chosen.heads)}", *lines])
