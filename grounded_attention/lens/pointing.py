# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""`point`: where in an image a vision-language model looks for what a text asks for."""

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from PIL import Image

from grounded_attention.heads.maps import TokenGrid
from grounded_attention.heads.points import WHOLE, Point, map_points, zoom_box
from grounded_attention.heads.reading import inputs_on
from grounded_attention.modeling.finite_numbers import finite_scores
from grounded_attention.processing.patch_grounding import PatchGroundingProcessor
from grounded_attention.supervision.actor import HEAD, Actor
from grounded_attention.supervision.registry import get_method
from grounded_attention.supervision.soft_attention import POINTER
from grounded_attention.supervision.supervise import find_encoder, model_device, supervise, unwrap_model
from grounded_attention.utils.named_types import Corners, Fields
from grounded_attention.utils.open_images import open_image

from .exchanges import GivenHeads, ready
from .look import look

ANCHOR = "<point>"
# how many times a crop is enlarged; points of a result
ENLARGED = 2
MOST_POINTS = 3


@dataclass(frozen=True, eq=False)
class Pointed:
    """Where a model points.

    Args:
        point (`tuple[float, float]`): x and y in [0, 1] of the image, after all zooms.
        points (`tuple[tuple[float, float], ...]`): the best points, the best first.
        scores (`tuple[float, ...]`): the attention of each, 1 in sum over the map.
        cells (`np.ndarray`): (Y, X) float32, the last map.
        frame (`tuple[float, ...]`): the part of the image that it covers: x1, y1, x2, y2 in [0, 1].
        crops (`tuple[tuple[int, ...], ...]`): the crops that were looked at, x1, y1, x2, y2 in pixels.
        source (`str`): whose attention it is.
    """

    point: Point
    points: tuple[Point, ...]
    scores: tuple[float, ...]
    cells: np.ndarray
    frame: Corners
    crops: tuple[tuple[int, int, int, int], ...]
    source: str

    @property
    def reach(self) -> Point:
        """Half of a cell of the map, in x and y."""
        rows, columns = self.cells.shape
        return (self.frame[2] - self.frame[0]) / columns / 2, (self.frame[3] - self.frame[1]) / rows / 2

    def to_dict(self) -> Fields:
        """Points, scores and crops as plain values."""
        points = [[round(x, 5), round(y, 5)] for x, y in self.points]
        crops = [list(crop) for crop in self.crops]
        return {"point": points[0], "points": points, "scores": list(self.scores), "crops": crops, "from": self.source}


def point(
    model: Any,
    processor: Any,
    image: Any,
    text: str,
    *,
    heads: GivenHeads = "auto",
    anchor: str = ANCHOR,
    zoom: int = 0,
) -> Pointed:
    """Points at what a text asks for, by the attention of the model.

    A model with the anchor token has the anchor put after the text: its map counts, read as the method that taught it
    does, with its options (the tokenizer keeps them): by default `pointer`, over all heads weighted by the text; or
    that of a head of its own, if the method `actor` gave it one. Any other model points with the mean attention of the
    words of the text, in the heads of `heads`.

    Args:
        model (`PreTrainedModel`): a vision-language model, with or without a PEFT adapter; it is set to evaluation
            mode.
        processor (`ProcessorMixin` or `PatchGroundingProcessor`): its processor.
        image (image): as for [`open_image`].
        text (`str`): what to point at, such as "open the cart".
        heads (*optional*, defaults to `"auto"`): as for [`look`]; not read if the model has the anchor.
        anchor (`str`, *optional*, defaults to `"<point>"`): the anchor token.
        zoom (`int`, *optional*, defaults to 0): how often to crop the image at the point, enlarge it and look again.

    Returns:
        [`Pointed`]: the points.

    Raises:
        ValueError: if the text is empty, the model's image tokens are not known, nothing in the image is attended,
            `anchor` is given and no token of the model, or the head of the method `actor` was not loaded with it.
    """
    if not text.strip():
        raise ValueError("point needs a text: say what to point at")
    model, patches = ready(model, processor)
    picture = open_image(image, "image")
    anchored = anchor in patches.tokenizer.get_added_vocab()
    if not anchored and anchor != ANCHOR:
        raise ValueError(f"anchor {anchor!r} is no token that was added to the model")
    crops: list[tuple[int, int, int, int]] = []
    shown = picture
    window = WHOLE
    for step in range(zoom + 1):
        score = "max"
        if anchored:
            cells, part, method = _anchor_map(model, patches, shown, text, anchor)
            source = f"the token {anchor}" + " and its head" * isinstance(method, Actor)
            score = "max"
            if isinstance(method, Actor) and method.options["target"] != "fitts":
                score = "mean"
        else:
            lens = look(model, patches, shown, text, answer="", heads=heads, form="plain")
            words = lens[text]
            cells = words.cells
            part = words.frame
            source = lens.heads_from
        sides = (window[2] - window[0], window[3] - window[1])
        x1, y1, x2, y2 = (window[n % 2] + edge * sides[n % 2] for n, edge in enumerate(part))
        ranked = map_points(cells, (x1, y1, x2, y2), score=score)
        if not ranked:
            raise ValueError(f"{text!r}: nothing in the image is attended, so there is no point")
        if step < zoom:
            crop = zoom_box(picture.size, ranked[0][0])
            crops.append(crop)
            shown = picture.crop(crop).resize(((crop[2] - crop[0]) * ENLARGED,) * 2, Image.Resampling.BICUBIC)
            left, top_edge, right, bottom = (at / size for at, size in zip(crop, picture.size * 2, strict=True))
            window = (left, top_edge, right, bottom)
    points, scores = zip(*ranked[:MOST_POINTS], strict=True)
    return Pointed(points[0], points, scores, cells, (x1, y1, x2, y2), tuple(crops), source)


@torch.no_grad()
def _anchor_map(
    model: Any, patches: PatchGroundingProcessor, picture: Image.Image, text: str, anchor: str
) -> tuple[np.ndarray, Corners, Any]:
    """The map (Y, X) of the anchor that answers a text, the part of the image that it covers, and the method."""
    answers = bool(getattr(patches.processor, "chat_template", None) or patches.tokenizer.chat_template)
    start = 0 if answers else len(text) + 1  # the text may have the anchor too
    place = {"start": start, "end": start + len(anchor), "sentence": int(answers)}
    phrases = [[{"text": anchor, "boxes": [WHOLE], **place}]]
    if answers:
        encoded = patches([text], [anchor], images=[picture], phrases=phrases)
    else:
        encoded = patches([f"{text} {anchor}"], images=[picture], phrases=phrases)
    inner = unwrap_model(model)
    head: Any = getattr(inner, HEAD, None)
    settings = patches.tokenizer.init_kwargs.get(POINTER) or {"name": "pointer" if head is None else "actor"}
    method: Any = get_method(**settings)
    if isinstance(method, Actor) and head is None:
        raise ValueError("the head of the method actor is not loaded: use `grounded-attention point --model`")
    batch = encoded.to(model_device(inner))
    prepared = {**batch, **method.prepare_batch(batch)}
    with supervise(inner):
        base = find_encoder(inner)
        inputs = inputs_on(patches.model_inputs(batch), model)
        outputs = base(**inputs, **method.forward_kwargs(prepared), use_cache=False)
    if isinstance(method, Actor):
        logs = method.head_map(head, outputs.hidden_states, prepared)
    else:
        logs = method.attention_map(outputs, prepared)
    attention = finite_scores(logs[0, 0].exp().cpu())
    grid = TokenGrid.of_tokens(batch["region_boxes"][0].cpu(), batch["region_candidate_mask"][0].cpu())
    return grid.maps(attention * batch["region_candidate_mask"][0].cpu()).numpy(), grid.frame, method
