# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""The page of `look`: pictures, the words of prompt and answer, and the map of the word that is chosen."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
import torch

from grounded_attention.heads.maps import TokenGrid
from grounded_attention.pages.explorer import explorer_body, opening_word, pack, picture
from grounded_attention.pages.page import html_page
from grounded_attention.utils.named_types import Fields

if TYPE_CHECKING:
    from .word_maps import Lens

# pixels, longer side of a picture, and of a frame of a video
LONGEST = 768
LONGEST_FRAME = 320
# Cells along an edge, and bytes of all maps of a page; with more words the grids are coarser.
CELLS = 32
MOST_BYTES = 400_000
HINT = (
    "Point at a word, or click it to keep it; arrow keys go from word to word. Colours show where the model looked "
    "for the word, or what adds to its logit; light is much. The frame is the box of that place; dashed frames are "
    "boxes that the answer says."
)


def lens_page(lenses: Sequence[Lens], names: Sequence[str] = (), title: str = "Where did the model look?") -> str:
    """Builds the page of a look, or of several side by side: two models, or two prompts.

    Args:
        lenses (`Sequence[Lens]`): the looks; one that asked again has its second look beside it.
        names (`Sequence[str]`, *optional*): a heading for each.
        title (`str`, *optional*): the title of the page.

    Returns:
        `str`: the HTML.

    Raises:
        ValueError: if there is no look, or the number of names is another one.
    """
    if not lenses or len(names) not in (0, len(lenses)):
        raise ValueError(f"{len(names)} names for {len(lenses)} looks; give one for each, and at least one look")
    shown: list[tuple[str, Lens]] = []
    for name, lens in zip(names or [""] * len(lenses), lenses, strict=True):
        if lens.second is None:
            shown.append((name, lens))
        else:
            shown.append((f"{name} first answer".strip(), lens))
            shown.append((f"{name} asked again with a crop".strip(), lens.second))
    return html_page(title, explorer_body([_explorer(*each, MOST_BYTES // len(shown)) for each in shown], HINT))


def _explorer(name: str, lens: Lens, most_bytes: int) -> Fields:
    """The data of an explorer whose heads have one layer without a name."""
    attention = torch.from_numpy(lens.attention)  # (K, W, R)
    maps_in_all = attention[..., 0].numel() * len(lens.images)
    bytes_of_one = most_bytes / max(1, maps_in_all)
    cells = int(np.clip(np.sqrt(bytes_of_one), 8, CELLS))
    pictures = []
    maps = []
    for number, (image, label) in enumerate(zip(lens.images, lens.names, strict=True)):
        here = torch.from_numpy(lens.token_images == number)
        grid = TokenGrid.of_tokens(torch.from_numpy(lens.token_boxes), here, cells)
        longest = LONGEST_FRAME if label.startswith("frame") else LONGEST
        place = {"rows": grid.rows, "columns": grid.columns, "frame": grid.frame}
        pictures.append(picture(image, grid.cell_boxes(), longest, label) | {"grid": place})
        maps.append(pack(grid.maps(attention * here).flatten(2).numpy()))
    words = [(word.start, word.end, word.sentence) for word in lens.words]
    example = {
        "texts": lens.texts,
        "roles": ["prompt"] * (len(lens.texts) - 1) + ["answer"],
        "words": words,
        "first": opening_word(lens.texts, words),
        "pictures": pictures,
        "frames": any(each.startswith("frame") for each in lens.names),
        "what": lens.what,
        "shares": lens.share.round(4).tolist(),
        "doubts": lens.doubts,
        "attended": [(one.image, np.round(one.box, 4).tolist()) for one in lens],
        "said": np.round(lens.boxes, 4).tolist(),
        "to": [maps],
        "back": [None],
    }
    return {
        "title": name,
        "models": [""],
        "layers": [""],
        "heads": [f"{layer}-{head}" for layer, head in lens.heads] or [""],
        "about": f"{', '.join(lens.form)}; {_heads(lens)}",
        "examples": [example],
    }


def _heads(lens: Lens) -> str:
    if not lens.heads:
        return lens.heads_from
    named = ", ".join(f"{layer}-{head}" for layer, head in lens.heads[:12])
    if len(lens.heads) > 12:
        named += "…"
    count = "1 head"
    if len(lens.heads) != 1:
        count = f"{len(lens.heads)} heads"
    return f"{count} (layer-head) {named}: {lens.heads_from}"
