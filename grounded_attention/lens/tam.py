# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""Token activation maps (TAM, Li et al., arXiv 2506.23270): what the image tokens themselves would say for a word.

The hidden states of the image tokens are read by the unembedding, as those of the text are. The logit of a word's
token, less what earlier tokens explain, is its map, which a filter of ranks makes smooth.

Shape letters: T tokens of the text in their order, R image tokens, J texts beside a map, Y and X rows and columns.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from grounded_attention.heads.maps import TokenGrid

from .contributions import read_path, word_weights
from .sequences import Sequenced

FLOOR = 1e-8  # is added to a sum of weights
LEAST = 1e-12
FLAT = 1e-6  # a spread that gives a window's middle value all the weight


def find_interference(activation: Tensor, scores: Tensor, ids: Tensor) -> Tensor:
    """What earlier tokens of the text explain of each map.

    Args:
        activation (`Tensor`): (T, R), the logit of token t at each image token, not below 0.
        scores (`Tensor`): (T, T), `[i, j]` the logit of token i where token j is read, not below 0.
        ids (`Tensor`): (T,) int64, the tokens; a token does not explain itself.

    Returns:
        `Tensor`: (T, R), the mean of the earlier tokens' activation, weighted by their scores; 0 where no earlier
            token differs.
    """
    differs = (ids[:, None] != ids).tril(-1)
    weights = scores * differs
    weights = weights / (weights.sum(-1, keepdim=True) + FLOOR)
    return weights @ activation


def remove_interference(activation: Tensor, interference: Tensor) -> Tensor:
    """Activation (T, R) less the multiple of the interference (T, R) that is nearest to it, and not below 0."""
    energy = interference.square().sum(-1, keepdim=True)
    shared = (activation * interference).sum(-1, keepdim=True)
    scale = shared / energy.clamp(min=LEAST)
    return (activation - scale * interference).clamp(min=0)


def normalise(cleaned: Tensor, scores: Tensor, beside: Tensor) -> Tensor:
    """Divides each map by the range of its values and of the scores beside it, from 0 to 1.

    Args:
        cleaned (`Tensor`): (T, R) maps; all images of a prompt share one range.
        scores (`Tensor`): (T, J) scores of the same tokens in the text.
        beside (`Tensor`): (T, J) bool, which of them are in the range.

    Returns:
        `Tensor`: (T, R) in [0, 1]; 0 for a map whose range is empty.
    """
    ranged = torch.cat([cleaned, torch.where(beside, scores, cleaned[:, :1])], 1)
    low, high = ranged.aminmax(dim=-1, keepdim=True)
    return (cleaned - low) / (high - low).clamp(min=LEAST)


def filter_ranks(maps: Tensor) -> Tensor:
    """Smooths maps by the ranks of the nine values around each cell, which leaves out what stands alone.

    The values of a window are sorted and weighted by a Gaussian around their middle, whose width is their standard
    deviation divided by their mean; a flat window gives its median.

    Args:
        maps (`Tensor`): (T, Y, X) on the CPU, not negative; beyond the edge they are mirrored, the edge itself once.

    Returns:
        `Tensor`: (T, Y, X), 0 where the mean of a window is 0.
    """
    padded = torch.from_numpy(np.pad(maps.numpy(), [(0, 0), (1, 1), (1, 1)], mode="reflect"))
    windows = padded.unfold(1, 3, 1).unfold(2, 3, 1).flatten(-2).sort(-1).values
    mean = windows.mean(-1, keepdim=True)
    spread = windows.std(-1, correction=0, keepdim=True) / mean.clamp(min=LEAST)
    ranks = torch.arange(9) - 4  # from the middle
    weights = torch.exp(-0.5 * (ranks / spread.clamp(min=FLAT)) ** 2)
    weights = weights / weights.sum(-1, keepdim=True)
    return (weights * windows).sum(-1)


def filter_tokens(values: Tensor, grid: TokenGrid) -> Tensor:
    """[`filter_ranks`] of values of image tokens (T, R) on the grid of an image; 0 for tokens that are not in it.

    A cell has the mean of the tokens that show it, and a token of several cells the mean of what they become.
    """
    shown = grid.maps(torch.ones_like(values[:1])).clamp(min=LEAST)
    cells = filter_ranks(grid.maps(values) / shown).flatten(-2)
    parts = cells[:, grid.cells] * grid.weights
    return torch.zeros_like(values).index_add_(-1, grid.tokens, parts)


def token_maps(activation: Tensor, scores: Tensor, ids: Tensor, grids: Sequence[TokenGrid]) -> Tensor:
    """The maps of the tokens of a text on its images (arXiv 2506.23270).

    The authors divide the map of a word of the prompt by a range in which later words are too; here only earlier
    words are. Numbers are not cut to 8 bits, and a scale is not searched but computed.

    Args:
        activation (`Tensor`): (T, R) float32, the logit of token t at each image token, not below 0.
        scores (`Tensor`): (T, T) float32, `[i, j]` the logit of token i where token j is read, not below 0: of a
            token of the prompt its own position, of one of the answer the position before.
        ids (`Tensor`): (T,) int64, the tokens.
        grids (`Sequence[TokenGrid]`): of each image, or step of a video, where its tokens are.

    Returns:
        `Tensor`: (T, R) float32 in [0, 1].
    """
    cleaned = remove_interference(activation, find_interference(activation, scores, ids))
    earlier = torch.ones_like(scores, dtype=torch.bool).tril(-1)
    normalised = normalise(cleaned, scores, earlier)
    return torch.stack([filter_tokens(normalised, grid) for grid in grids]).sum(0)


@torch.no_grad()
def word_activations(model: Any, whole: Sequenced) -> Tensor:
    """The maps of words, (W, R) float32 in [0, 1]: each the mean of those of its tokens; 0 at tokens without a place.

    Tokens of the prompt are those of its words, read where they are; of the answer all, read before they are said. As
    the authors do, the first token of the prompt is explained by what the model would say after it. A pass reads the
    states of all.

    Args:
        model (`PreTrainedModel`): the decoder.
        whole ([`Sequenced`]): the prompt with its answer, with W words whose rows are those of their own tokens.
    """
    ids = whole.inputs["input_ids"][0]
    columns = whole.batch["region_positions"][0]
    placed = whole.token_images >= 0
    image_rows = columns[placed].tolist()
    start = whole.prompt_length
    asked = sorted({row for word in whole.words if not word.answer for row in word.rows})
    reader = read_path(model, whole.inputs, start, [*asked, *image_rows], columns, layers=())
    unembedding = reader.unembedding(model)
    places = [*asked, *range(start, len(ids))]
    classes = ids[places]
    if asked:
        classes[0] = unembedding.logits(reader.states(asked[:1])).argmax()
    read = unembedding.of_tokens(classes)
    activation = read.logits(reader.states(image_rows)).T.clamp(min=0).cpu()
    scores = read.logits(reader.states([*asked, *range(start - 1, len(ids) - 1)])).T.clamp(min=0).cpu()
    images = whole.token_images[placed]
    boxes = whole.batch["region_boxes"][0, placed]
    grids = [TokenGrid.of_tokens(boxes, images == image) for image in images.unique()]
    maps = torch.zeros(len(places), len(columns))
    maps[:, placed] = token_maps(activation, scores, ids[places], grids)
    return word_weights(whole.words, places) @ maps
