# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""The pipeline `visual-grounding` for vision-language models: the boxes that a few attention heads give.

Importing this file registers it for every family whose image tokens are known.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from grounded_attention.modeling.grounding_items import (
    GroundingItem,
    download_image,
    find_phrases,
    is_url,
    read_caption,
)
from grounded_attention.modeling.pipeline_visual_grounding import VisualGroundingPipeline
from grounded_attention.processing.image_tokens import IMAGE_TOKEN_FAMILIES
from grounded_attention.processing.patch_grounding import PatchGroundingProcessor
from grounded_attention.processing.phrase import Phrase
from grounded_attention.utils.named_types import Batch, Fields
from grounded_attention.utils.open_images import open_image

from .boxes import GroundedBox, ground_box
from .examples import AuditExample, make_batch
from .heads_file import ChosenHeads, has_adapter
from .maps import TokenGrid
from .reading import get_observer, read_phrases

_INPUTS = ("image", "caption", "phrases")
_NO_BOX = np.zeros((0, 4), dtype=np.float32)

GivenHeads = ChosenHeads | str | Path | Sequence[tuple[int, int]]


class PatchGroundingPipeline(VisualGroundingPipeline):
    """Finds the box of each phrase in an image, from the attention of a few heads of a vision-language model.

    The attention of the heads is summed over the image tokens, smoothed, cut, and the largest component
    gives the box (see `ground_box`). Nothing is trained. `pipeline("visual-grounding", model="llava-hf/...")` makes
    it.

    Args:
        heads (`ChosenHeads`, `str`, path, or pairs of layer and head, *optional*): the heads; by default those of
            `heads.json` beside the model, in its folder or Hub repository. `grounded-attention heads` finds them. A
            text is a file, a folder with `heads.json`, or the name of a model on the Hub that has one.
        kwargs: arguments of every pipeline: `model`, `processor`, `device`, `dtype`, `batch_size` ...

    Raises:
        ValueError: if there are no heads, or they belong to a model of another size; or without `heads`, if the model
            has an adapter, whose own folder transformers does not keep.
    """

    def __init__(self, *args: Any, heads: GivenHeads | None = None, **kwargs: Any) -> None:
        super(VisualGroundingPipeline, self).__init__(*args, **kwargs)
        self._check_parts()
        self.remarks: list[str] = []
        self.patches = PatchGroundingProcessor(self.processor, self.model.config.model_type)
        self.patches.check_model(self.model.config)
        if heads is None and has_adapter(self.model):
            raise ValueError(
                f"{self.model.name_or_path} has an adapter here, which may change what its heads do: also give heads, "
                "the folder or name of the adapter if heads.json is beside it"
            )
        if heads is not None:
            self.chosen = ChosenHeads.named(heads)
        else:
            self.chosen = ChosenHeads.of_model(self.model)
        self.chosen.check(self.model)

    def _sanitize_parameters(self, **parameters: Any) -> tuple[Fields, Fields, Fields]:
        if parameters:
            raise TypeError(
                f"unknown: {', '.join(sorted(parameters))}; {self.model.config.model_type} takes only heads, and with "
                f"a caption {', '.join(_INPUTS)}"
            )
        return {}, {}, {}

    def preprocess(  # type: ignore[override]
        self, input_: Any, **preprocess_parameters: Any
    ) -> dict[str, list[GroundingItem]]:
        """The checked input as a batch of one. Without `phrases` the whole caption is one phrase."""
        caption = read_caption(input_, _INPUTS)
        named = input_.get("phrases")
        image = input_.get("image")
        if image is None:
            raise ValueError(f"the caption {caption!r} has no image")
        if named is None:
            phrases = [Phrase(caption, 0, len(caption))]
        else:
            phrases = find_phrases(caption, named)[0]
        opened = open_image(download_image(image) if is_url(image) else image)
        return {"items": [GroundingItem(caption, phrases, opened, opened.size)]}

    def _forward(  # type: ignore[override]
        self, input_tensors: dict[str, list[GroundingItem]], **parameters: Any
    ) -> Fields:
        """Where the heads look for each phrase: `boxes`, one `GroundedBox` for each phrase of each item."""
        items = input_tensors["items"]
        prompts: list[AuditExample] = []
        images: Fields = {}
        for number, item in enumerate(items):
            images[str(number)] = item.image
            phrases = tuple(Phrase(phrase.text, phrase.start, phrase.end, boxes=_NO_BOX) for phrase in item.phrases)
            prompts += self.chosen.settings.split(AuditExample(str(number), item.caption, phrases))
        batch = make_batch(self.patches, prompts, images, self.chosen.settings)
        for prompt, mask in zip(prompts, batch["phrase_mask"], strict=True):
            for phrase, tokens in zip(prompt.phrases, mask, strict=False):
                if not tokens.any():
                    raise ValueError(f"phrase {prompt.caption[phrase.start : phrase.end]!r} has no token of its own")
        of_item: list[list[GroundedBox]] = [[] for _ in items]
        for prompt, boxes in zip(prompts, ground_batch(self.model, batch, prompts, self.chosen), strict=True):
            of_item[int(prompt.image_id)] += boxes
        return {"items": [{"item": item, "boxes": boxes} for item, boxes in zip(items, of_item, strict=True)]}

    def postprocess(  # type: ignore[override]
        self, model_outputs: Fields, **parameters: Any
    ) -> list[Fields]:
        """One dictionary for each phrase, in the form of the pipeline of this package's own families.

        `score` is the part of the heads' attention on the image that is in the box; `region` is the image token with
        the most attention, and `label` is None.
        """
        output = model_outputs["items"]
        if isinstance(output, list):
            output = output[0]
        item = output["item"]
        edges = ("xmin", "ymin", "xmax", "ymax")
        sides = np.tile(np.asarray(item.size, dtype=float), 2)
        grounded = []
        for phrase, one in zip(item.phrases, output["boxes"], strict=True):
            grounded.append(
                {
                    "text": phrase.text,
                    "start": phrase.start,
                    "end": phrase.end,
                    "box": {edge: round(float(value), 1) for edge, value in zip(edges, sides * one.box, strict=True)},
                    "score": one.share,
                    "label": None,
                    "region": one.token,
                }
            )
        return grounded


def ground_batch(
    model: Any, batch: Batch, prompts: Sequence[AuditExample], chosen: ChosenHeads
) -> list[list[GroundedBox]]:
    """The box that the chosen heads give each phrase of the prompts of a batch."""
    attention = read_phrases(get_observer(model), batch, chosen.settings.words).cpu()  # (L, B, H, P, R)
    layers, heads = torch.tensor(chosen.heads).T
    places = []
    for index, prompt in enumerate(prompts):
        candidates = batch["region_candidate_mask"][index]
        grid = TokenGrid.of_tokens(batch["region_boxes"][index], candidates)
        maps = attention[layers, index, heads]
        places.append(
            [ground_box(maps[:, number], candidates, grid, chosen.box_rule) for number in range(len(prompt.phrases))]
        )
    return places


VisualGroundingPipeline.others.update(dict.fromkeys(IMAGE_TOKEN_FAMILIES, PatchGroundingPipeline))
