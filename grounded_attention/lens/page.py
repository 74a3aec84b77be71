# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""The page of `look`: pictures, the words of prompt and answer, and the map of the word that is chosen.

The page is one file with one script of ours (lens.js) and needs no network. Maps are stored as bytes, see `pack`.
"""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from grounded_attention.heads.maps import TokenGrid
from grounded_attention.pages.colours import scale_colours
from grounded_attention.pages.explorer import pack
from grounded_attention.pages.overlay import css_gradient
from grounded_attention.pages.page import embedded_json, html_page
from grounded_attention.pages.report_pictures import embed

if TYPE_CHECKING:
    from .word_maps import Lens

LONGEST, LONGEST_FRAME = 768, 320  # pixels, longer side of a picture, and of a frame of a video
# Cells along an edge, and bytes of all maps of a page; with more words the grids are coarser.
CELLS, MOST_BYTES = 32, 400_000
HINT = (
    "Point at a word, or click it to keep it; arrow keys go from word to word. Colours show where the model looked "
    "when it read the word, light is much. The frame is the box of that place; dashed frames are boxes "
    "that the answer says."
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
        shown.append((name, lens))
        if lens.second is not None:
            shown[-1] = (f"{name} first answer".strip(), lens)
            shown.append((f"{name} asked again with a crop".strip(), lens.second))
    data = {
        "colours": scale_colours(np.linspace(0, 1, 11)).tolist(),
        "lenses": [_lens(name, lens, MOST_BYTES // len(shown)) for name, lens in shown],
    }
    folder = Path(__file__).parent
    body = (
        f'<p class="hint">{escape(HINT)} Attention: none <i style="background:{css_gradient()}"></i> the most.</p>'
        '<div class="lenses" id="lenses"></div><noscript><p>This page needs JavaScript; its script is in the page.'
        "</p></noscript>" + embedded_json("lens-data", data)
    )
    style, script = (folder.joinpath(f"lens.{kind}").read_text(encoding="utf-8") for kind in ("css", "js"))
    return html_page(title, body, style, script)


def _lens(name: str, lens: Lens, most_bytes: int) -> dict[str, Any]:
    heads = len(lens.heads) if len(lens.heads) > 1 else 0
    maps = max(1, (heads + 1) * len(lens.words) * len(lens.images))
    cells = int(np.clip(np.sqrt(most_bytes / maps), 8, CELLS))
    grids = []
    for image in range(len(lens.images)):
        shown = torch.from_numpy(lens.token_images == image)
        grids.append((shown, TokenGrid.of_tokens(torch.from_numpy(lens.token_boxes), shown, cells)))
    attention = torch.from_numpy(lens.attention)
    layers = [attention.mean(0), *(attention if heads else ())]
    return {
        "name": name,
        "frames": any(each.startswith("frame") for each in lens.names),
        "answer": lens.answer,
        "boxes": [[round(edge, 4) for edge in box] for box in lens.boxes],
        "about": f"{', '.join(lens.form)}; {_heads(lens)}",
        "texts": list(lens.texts),
        "images": [_picture(image, name) for image, name in zip(lens.images, lens.names, strict=True)],
        "grids": [{"rows": grid.rows, "columns": grid.columns, "frame": list(grid.frame)} for _, grid in grids],
        "choices": ["mean" if heads else "", *(f"{layer}-{head}" for layer, head in lens.heads if heads)],
        "words": [
            {
                "span": [word.start, word.end, word.sentence],
                "answer": word.answer,
                "image": one.image,
                "share": [round(float(share), 4) for share in shares],
                "box": [round(edge, 4) for edge in one.box],
            }
            for word, one, shares in zip(lens.words, lens, lens.share, strict=True)
        ],
        # Of each image: choice, word, cell.
        "maps": [
            pack(torch.stack([grid.maps(layer * shown).flatten(1) for layer in layers]).numpy())
            for shown, grid in grids
        ],
    }


def _picture(image: Any, name: str) -> dict[str, Any]:
    picture = embed(image, min(LONGEST_FRAME if name.startswith("frame") else LONGEST, max(image.size)))
    return {"width": picture.width, "height": picture.height, "source": picture.source, "label": name}


def _heads(lens: Lens) -> str:
    if not lens.heads:
        return lens.heads_from
    named = ", ".join(f"{layer}-{head}" for layer, head in lens.heads[:12]) + ("…" if len(lens.heads) > 12 else "")
    count = "1 head" if len(lens.heads) == 1 else f"{len(lens.heads)} heads"
    return f"{count} (layer-head) {named}: {lens.heads_from}"
