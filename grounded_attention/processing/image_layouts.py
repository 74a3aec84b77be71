# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""How each family of vision-language models lays out one image: its pictures, and the grid of tokens of each one.

Every function `layout_<family>` makes the text that stands for an image in the prompt, as the processor of
transformers makes it, with the boxes of its tokens. `frames_<family>` does it for a video: one layout for each step of
its frames, with what the processor reports of the video (its grid of steps, rows and columns of patches).
"""

import inspect
import math
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from transformers.image_processing_utils import select_best_resolution

from .image_frames import ImageFrame, pooled_intervals, window_intervals
from .videos import Video

# The text of a prompt that stands for one image: strings, and for each picture the boxes (n, 4) of its n tokens, or a
# list of such parts where the picture has other tokens between its rows.
ImageLayout = list[str | np.ndarray | list[str | np.ndarray]]

# A token without a place in the image: a newline, a class token.
NO_BOX = np.full((1, 4), np.nan)


@dataclass(frozen=True)
class ImageSettings:
    """What the layout of one image depends on."""

    processor: Any
    given: Mapping[str, Any]  # Settings of this call, which replace those of the image processor
    width: int  # Width of the image in pixels
    height: int  # Height of the image in pixels
    alone: bool  # Whether the example has no other image
    number: int = 0  # The place of the image among those of the example
    part: str = "image_processor"  # The part of the processor that reads it

    @property
    def frame(self) -> ImageFrame:
        """The original image."""
        return ImageFrame(self.width, self.height)

    def get(self, name: str, default: Any = None) -> Any:
        """Returns a setting of the image processor (None counts as missing)."""
        value = self.given.get(name)
        value = getattr(getattr(self.processor, self.part), name, None) if value is None else value
        return default if value is None else value

    def edges(self, name: str) -> dict[str, int]:
        """Returns a size setting as a plain dictionary of its edges (`dict[str, int]`)."""
        size = self.get(name, {})
        names = ("height", "width", "shortest_edge", "longest_edge")
        return {edge: int(size[edge]) for edge in names if edge in size and size[edge] is not None}

    def upstream(self, name: str) -> Callable:
        """Finds a function of the file that defines the image processor."""
        for cls in type(self.processor.image_processor).__mro__:
            function = getattr(sys.modules.get(cls.__module__), name, None)
            if function is not None:
                return function
        raise ValueError(f"{type(self.processor.image_processor).__name__}: its file has no function {name}.")

    def square(self, tokens: int) -> int:
        """Returns the side of a square grid of tokens (`int`)."""
        side = math.isqrt(tokens)
        if side * side != tokens:
            raise ValueError(f"{type(self.processor).__name__}: {tokens} image tokens do not form a square grid.")
        return side


def layout_text(layout: ImageLayout, token: str) -> str:
    """The text of a layout, in which `token` stands for each image token."""
    flat = [part for piece in layout for part in (piece if isinstance(piece, list) else [piece])]
    return "".join(part if isinstance(part, str) else token * len(part) for part in flat)


def picture_boxes(layout: ImageLayout) -> list[np.ndarray]:
    """The boxes (n, 4) of the tokens of each picture of a layout."""
    pictures = [piece if isinstance(piece, list) else [piece] for piece in layout if not isinstance(piece, str)]
    return [np.concatenate([part for part in each if not isinstance(part, str)]) for each in pictures]


def _lines(grid: np.ndarray, rows: int, end: str, last: str) -> list[str | np.ndarray]:
    """A picture whose rows of tokens end with a token, the last one with another."""
    return [*[part for row in np.split(grid, rows) for part in (row, end)][:-1], last]


def _ended_rows(cells: np.ndarray, rows: int) -> np.ndarray:
    """The cells of a picture, with a newline at the end of each row."""
    grid = cells.reshape(rows, len(cells) // max(rows, 1), 4)  # a very long image has none on its canvas
    return np.concatenate([grid, NO_BOX[None].repeat(rows, axis=0)], axis=1).reshape(-1, 4)


def _pad_to_square(frame: ImageFrame) -> ImageFrame:
    side = max(frame.width, frame.height)
    # The first side gets the smaller part of an odd padding.
    return frame.crop(-((side - frame.width) // 2), -((side - frame.height) // 2), side, side)


def _resize(frame: ImageFrame, size: Mapping[str, int]) -> ImageFrame:
    if set(size) == {"shortest_edge"}:
        short = min(frame.width, frame.height)
        long = int(size["shortest_edge"] * max(frame.width, frame.height) / short)
        landscape = frame.width > frame.height
        return frame.resize(*(long, size["shortest_edge"]) if landscape else (size["shortest_edge"], long))
    if set(size) == {"height", "width"}:
        return frame.resize(size["width"], size["height"])
    raise ValueError(f"Images are resized to {dict(size)}; expected a shortest_edge, or a height and a width.")


def _class_tokens(settings: ImageSettings) -> np.ndarray:
    """Tokens of the vision tower before the patches, (n, 4) NaN; the strategy "default" removes the first."""
    processor = settings.processor
    count = int(getattr(processor, "num_additional_image_tokens", 0) or 0)
    return NO_BOX.repeat(max(0, count - (processor.vision_feature_select_strategy == "default")), axis=0)


def _center_crop(settings: ImageSettings, frame: ImageFrame) -> ImageFrame:
    if settings.get("do_resize"):
        frame = _resize(frame, settings.edges("size"))
    if settings.get("do_center_crop"):
        crop = settings.edges("crop_size")
        frame = frame.center_crop(crop["width"], crop["height"])
    return frame


def _llava_frame(settings: ImageSettings) -> tuple[ImageFrame, int, int]:
    """What the vision tower of LLaVA sees, and its rows and columns of patches."""
    frame, patch = settings.frame, settings.processor.patch_size
    if settings.get("do_pad") and hasattr(settings.processor.image_processor, "pad_to_square"):
        frame = _pad_to_square(frame)
    frame = _center_crop(settings, frame)
    rows, columns = frame.height // patch, frame.width // patch
    return frame.crop(0, 0, columns * patch, rows * patch), rows, columns


def layout_llava(settings: ImageSettings) -> ImageLayout:
    if hasattr(settings.processor, "image_break_token"):  # Pixtral, whose model type is that of LLaVA
        return layout_pixtral(settings)
    frame, rows, columns = _llava_frame(settings)
    return [np.concatenate([_class_tokens(settings), frame.grid(rows, columns)])]


def frames_llava_next(settings: ImageSettings, video: Video, grid: Any) -> list[ImageLayout]:
    frame, rows, columns = _llava_frame(settings)
    return [[frame.grid(rows // 2, columns // 2)] for _ in video.frames]  # the model takes means of 2 x 2 patches


def _unpadded(settings: ImageSettings, rows: int, columns: int) -> tuple[slice, slice]:
    """The rows and columns of patches that stay when the model removes the padding of a canvas."""
    width, height = settings.width, settings.height
    if width / height > columns / rows:
        cut = (rows - int(round(height * (columns / width), 7))) // 2
        return slice(cut, rows - cut), slice(0, columns)
    cut = (columns - int(round(width * (rows / height), 7))) // 2
    return slice(0, rows), slice(cut, columns - cut)


def _any_resolution(
    settings: ImageSettings, tile: int, side: int, most_tiles: int | None = None, queries: int = 1
) -> np.ndarray:
    """Tokens of an image on a canvas of tiles, each of side x side patches; a newline ends each row of patches."""
    size = (settings.height, settings.width)
    height, width = select_best_resolution(size, settings.get("image_grid_pinpoints"))
    scale = (width / settings.width, height / settings.height)
    resized = (width, min(math.ceil(settings.height * scale[0]), height))
    if scale[0] >= scale[1]:
        resized = (min(math.ceil(settings.width * scale[1]), width), height)
    canvas = settings.frame.resize(*resized)
    canvas = canvas.crop(-((width - resized[0]) // 2), -((height - resized[1]) // 2), width, height)
    counts = (height // tile * side, width // tile * side)
    parts = zip(counts, _unpadded(settings, *counts), strict=True)
    kept = [window_intervals(count, queries)[part] for count, part in parts]
    ratio = 0.0 if most_tiles is None else math.sqrt(len(kept[0]) * len(kept[1]) / (most_tiles * side**2))
    if ratio > 1.1:  # as LLaVA-OneVision, which then interpolates the patches
        pooled = [pooled_intervals(len(each), int(len(each) // ratio)) for each in kept]
        kept = [
            np.stack([each[first[:, 0], 0], each[first[:, 1] - 1, 1]], axis=1)
            for each, first in zip(kept, pooled, strict=True)
        ]
    return _ended_rows(canvas.cells(*kept), len(kept[0]))


def layout_llava_next(settings: ImageSettings) -> ImageLayout:
    tile = {**settings.edges("size"), **settings.edges("crop_size")}
    tile_size = tile.get("height") or tile["shortest_edge"]
    # Queries of a window of patches and patches of this window, on each axis
    queries, window = map(int, (getattr(settings.processor, "downsample_rate", None) or "1/1").split("/"))
    side = tile_size // settings.processor.patch_size * queries // window
    cells = window_intervals(side, queries)
    base = np.concatenate([_class_tokens(settings), settings.frame.cells(cells, cells)])
    return [base, _any_resolution(settings, tile_size, side, queries=queries)]


def layout_llava_onevision(settings: ImageSettings) -> ImageLayout:
    side = settings.square(settings.processor.num_image_tokens)
    if not settings.alone:
        return [np.concatenate([_pad_to_square(settings.frame).grid(side, side), NO_BOX])]
    most_tiles = int(settings.processor.vision_aspect_ratio.removeprefix("anyres_max_"))
    canvas = _any_resolution(settings, settings.edges("size")["height"], side, most_tiles)
    return [settings.frame.grid(side, side), canvas]


def qwen_size(settings: ImageSettings) -> tuple[int, int]:
    """Height and width of the image after its resize to full patches."""
    height, width, size = settings.height, settings.width, settings.edges("size")
    if settings.get("do_resize"):
        factor, frames = settings.get("patch_size") * settings.get("merge_size"), settings.get("temporal_patch_size")
        resize = settings.upstream("smart_resize")
        known = {
            "factor": factor,
            "patch_size": factor,
            "min_pixels": settings.get("min_image_tokens", size.get("shortest_edge")),
            "max_pixels": settings.get("max_image_tokens", size.get("longest_edge")),
            "max_tokens": settings.get("max_image_tokens"),
            "num_frames": frames,
            "temporal_factor": frames,
        }
        names = inspect.signature(resize).parameters
        height, width = resize(height=height, width=width, **{name: known[name] for name in known if name in names})
    return height, width


def layout_qwen_vl(settings: ImageSettings) -> ImageLayout:
    factor = settings.get("patch_size") * settings.get("merge_size")
    height, width = qwen_size(settings)
    return [settings.frame.grid(height // factor, width // factor)]


def layout_glm5_next(settings: ImageSettings) -> ImageLayout:
    """Resized without change of its shape, and padded to full patches at the right and below."""
    factor, (height, width) = settings.get("patch_size") * settings.get("merge_size"), qwen_size(settings)
    scale = min(height / settings.height, width / settings.width)
    if settings.height * settings.width >= factor**2 * settings.get("min_image_tokens"):
        scale = min(1.0, scale)
    edges = [
        max(1, min(most, math.floor(edge * scale)))
        for most, edge in ((width, settings.width), (height, settings.height))
    ]
    frame = settings.frame.resize(*edges).crop(0, 0, width, height)
    return [frame.grid(height // factor, width // factor)]


def frames_qwen_vl(settings: ImageSettings, video: Video, grid: Any) -> list[ImageLayout]:
    (steps, rows, columns), merge = grid, settings.get("merge_size")
    return [[settings.frame.grid(rows // merge, columns // merge)] for _ in range(steps)]


def frames_qwen3_vl(settings: ImageSettings, video: Video, grid: Any) -> list[ImageLayout]:
    processor = settings.processor
    start, end = processor.vision_start_token, processor.vision_end_token
    steps = zip(video.steps(settings.get("temporal_patch_size")), frames_qwen_vl(settings, video, grid), strict=True)
    return [[f"<{time:.1f} seconds>{start}", *layout, end] for (_, time), layout in steps]


def _idefics3_tiles(settings: ImageSettings) -> tuple[int, int]:
    """Rows and columns of tiles, (0, 0) for an image that is not split."""
    if not settings.get("do_image_splitting"):
        return 0, 0
    height, width, tile = settings.height, settings.width, settings.edges("max_image_size")["longest_edge"]
    if settings.get("do_resize"):
        shape = np.broadcast_to(np.uint8(0), (3, height, width))  # the function reads the shape alone
        longest = settings.edges("size")["longest_edge"]
        height, width = settings.upstream("get_resize_output_image_size")(shape, resolution_max_side=longest)
    aspect = width / height
    if width >= height:
        columns = math.ceil(width / tile)
        rows = math.ceil(int(columns * tile / aspect) / tile)
    else:
        rows = math.ceil(height / tile)
        columns = math.ceil(int(rows * tile * aspect) / tile)
    return (rows, columns) if max(rows, columns) > 1 else (0, 0)


def layout_idefics3(settings: ImageSettings) -> ImageLayout:
    processor = settings.processor
    side = settings.square(processor.image_seq_len)
    around = processor.fake_image_token
    whole = getattr(processor, "global_image_tag", None) or processor.global_image_token
    rows, columns = _idefics3_tiles(settings)
    tiles = [*_numbered_tiles(settings, rows, columns, side), "\n"] if rows else []
    return [*tiles, f"{around}{whole}", settings.frame.grid(side, side), around]


def _numbered_tiles(settings: ImageSettings, rows: int, columns: int, side: int) -> ImageLayout:
    """Tiles row by row, of equal sizes; the picture was resized to fill them."""
    layout: ImageLayout = []
    for index, tile in enumerate(settings.frame.resize(columns, rows).tiles(rows, columns)):
        row, column = divmod(index, columns)
        layout += [f"{settings.processor.fake_image_token}<row_{row + 1}_col_{column + 1}>", tile.grid(side, side)]
        layout += ["\n"] if column + 1 == columns else []
    return layout


def layout_granite_docling(settings: ImageSettings) -> ImageLayout:
    processor = settings.processor
    side = settings.square(processor.image_seq_len * (4 if settings.get("fine_route") else 1))
    rows, columns = processor.image_processor.get_tile_grid(settings.height, settings.width, dict(settings.given))
    tiles, around = _numbered_tiles(settings, rows, columns, side), processor.fake_image_token
    whole = [f"\n{around}{processor.global_image_tag}", settings.frame.grid(side, side), around]
    return [*tiles, *(whole if rows * columns > 1 else [])]


def layout_paligemma(settings: ImageSettings) -> ImageLayout:
    side = settings.square(settings.processor.image_seq_length)
    return [settings.frame.grid(side, side)]


def _pan_and_scan(settings: ImageSettings) -> list[ImageFrame]:
    """The crops of a long image (Gemma 3)."""
    frame, smallest = settings.frame, settings.get("pan_and_scan_min_crop_size")
    long, short = max(frame.width, frame.height), min(frame.width, frame.height)
    if not settings.get("do_pan_and_scan") or long / short < settings.get("pan_and_scan_min_ratio_to_activate"):
        return []
    count = min(math.floor(long / smallest), math.floor(long / short + 0.5))
    count = min(settings.get("pan_and_scan_max_num_crops"), max(2, count))
    step = math.ceil(long / count)
    if min(step, short) < smallest:
        return []
    if frame.width >= frame.height:
        return [frame.crop(x, 0, min(step, long - x), short) for x in range(0, step * count, step)]
    return [frame.crop(0, y, short, min(step, long - y)) for y in range(0, step * count, step)]


def layout_gemma3(settings: ImageSettings) -> ImageLayout:
    tokenizer = settings.processor.tokenizer
    side = settings.square(settings.processor.image_seq_length)

    def picture(frame: ImageFrame) -> ImageLayout:
        return [f"\n\n{tokenizer.boi_token}", frame.grid(side, side), f"{tokenizer.eoi_token}\n\n"]

    crops = _pan_and_scan(settings)
    if not crops:
        return picture(settings.frame)
    layout = ["Here is the original image ", *picture(settings.frame)]
    layout += [" and here are some crops to help you see better ", *picture(crops[0])]
    return [*layout, *(piece for crop in crops[1:] for piece in [" ", *picture(crop)])]


def _optimal_tiles(settings: ImageSettings) -> list[ImageFrame]:
    """Tiles of one size row by row, then the whole image; only this if one tile is enough."""
    if not settings.get("crop_to_patches") or settings.get("max_patches") <= 1:
        return [settings.frame]
    size, limits = settings.edges("size"), (settings.get("min_patches"), settings.get("max_patches"))
    shapes = ((settings.height, settings.width), (size["height"], size["width"]))
    columns, rows = settings.upstream("get_optimal_tiled_canvas")(*shapes, *limits)
    tiles = settings.frame.resize(columns, rows).tiles(rows, columns) if rows * columns > 1 else []
    return [*tiles, settings.frame]


def layout_internvl(settings: ImageSettings) -> ImageLayout:
    processor = settings.processor  # that of GOT-OCR 2 has another name for it
    side = settings.square(getattr(processor, "num_image_tokens", 0) or processor.image_seq_length)
    return [picture.grid(side, side) for picture in _optimal_tiles(settings)]


def layout_chameleon(settings: ImageSettings) -> ImageLayout:
    side = settings.square(settings.processor.image_seq_length)
    return [_center_crop(settings, settings.frame).grid(side, side)]


def layout_emu3(settings: ImageSettings) -> ImageLayout:
    processor, images = settings.processor, settings.processor.image_processor
    size = (images.spatial_factor, images.min_pixels, images.max_pixels)
    height, width = settings.upstream("smart_resize")(settings.height, settings.width, *size)
    rows, columns = height // processor.downsample_ratio, width // processor.downsample_ratio
    start = f"{processor.image_start_token}{rows}*{columns}{processor.fake_token_around_image}"
    grid = _ended_rows(settings.frame.grid(rows, columns), rows)
    return [start, grid, f"{processor.eof_token}{processor.image_end_token}"]


def layout_unlimited_ocr(settings: ImageSettings) -> ImageLayout:
    processor, frame, cropped = settings.processor, settings.frame, settings.get("crop_to_patches")
    tile, size = settings.get("tile_size"), max(settings.edges("size").values())
    inner, side = (math.ceil(edge // processor.patch_size / processor.downsample_ratio) for edge in (tile, size))
    layout: ImageLayout = []
    if cropped and max(frame.width, frame.height) > tile:
        limits = (settings.get("min_patches"), settings.get("max_patches"))
        shape = ((frame.height, frame.width), (tile, tile))
        columns, rows = settings.upstream("get_optimal_tiled_canvas")(*shape, *limits)
        layout = [_ended_rows(frame.grid(rows * inner, columns * inner), rows * inner)]
    if cropped or size > settings.get("maximum_pad_value"):
        scale = size / max(frame.width, frame.height)
        frame = _pad_to_square(frame.resize(round(frame.width * scale), round(frame.height * scale)))
    return [*layout, np.concatenate([_ended_rows(frame.grid(side, side), side), NO_BOX])]


def layout_pp_chart2table(settings: ImageSettings) -> ImageLayout:
    side = settings.edges("size")["height"] // 64  # patches of 16 pixels, 4 x 4 of which convolutions merge
    return [settings.frame.grid(side, side)]


def layout_aya_vision(settings: ImageSettings) -> ImageLayout:
    processor = settings.processor
    side = processor.img_size // processor.patch_size
    *tiles, whole = (picture.grid(side, side) for picture in _optimal_tiles(settings))
    numbered: list[Any] = [(f"{processor.tile_token}_{number}", tile) for number, tile in enumerate(tiles, 1)]
    return [*(part for pair in numbered for part in pair), processor.tile_global_token, whole]


def layout_cohere2_vision(settings: ImageSettings) -> ImageLayout:
    side, end = settings.processor.patch_size, settings.processor.img_line_break_token
    return [part for picture in _optimal_tiles(settings) for part in (picture.grid(side, side), end)]


def layout_ovis2(settings: ImageSettings) -> ImageLayout:
    side = settings.square(settings.processor.image_seq_length)
    rows = columns = 1
    if settings.get("crop_to_patches") and settings.get("max_patches") > 1:
        size, shape = settings.edges("size"), (settings.height, settings.width)
        if settings.get("use_covering_area_grid"):
            rule = settings.upstream("get_min_tile_covering_grid")
            columns, rows = rule(shape, size["height"], settings.get("max_patches"), covering_threshold=0.9)
        else:
            limits = (settings.get("min_patches"), settings.get("max_patches"))
            columns, rows = settings.upstream("get_optimal_tiled_canvas")(
                shape, (size["height"], size["width"]), *limits
            )
    layout: ImageLayout = ["<IMG_START>", settings.frame.grid(side, side), "<IMG_GRID>"]
    if rows * columns > 1:
        for index, tile in enumerate(settings.frame.resize(columns, rows).tiles(rows, columns)):
            layout += [tile.grid(side, side), "<IMG_COL>" if (index + 1) % columns else "<IMG_ROW>"]
        layout.pop()
    return [*layout, "<IMG_END>"]


def layout_pixtral(settings: ImageSettings) -> ImageLayout:
    processor = settings.processor
    patch = processor.patch_size * processor.spatial_merge_size
    longest, resize = settings.edges("size")["longest_edge"], settings.upstream("get_resize_output_image_size")
    shape = np.broadcast_to(np.uint8(0), (settings.height, settings.width, 3))  # the function reads the shape alone
    alone = hasattr(processor, "effective_patch_size")  # LightOnOCR, which may cut patches that are not merged
    unit = settings.get("patch_size") if alone else patch
    height, width = resize(shape, size=(longest, longest), patch_size=(unit, unit))
    rows, columns = height // patch, width // patch
    grid = settings.frame.resize(width, height).crop(0, 0, columns * patch, rows * patch).grid(rows, columns)
    if alone:
        return [grid]
    return [_lines(grid, rows, processor.image_break_token, processor.image_end_token)]


def layout_gemma4(settings: ImageSettings) -> ImageLayout:
    patch, pool = settings.get("patch_size"), settings.get("pooling_kernel_size")
    limits = {"max_patches": settings.get("max_soft_tokens") * pool**2, "pooling_kernel_size": pool}
    resize = settings.upstream("get_aspect_ratio_preserving_size")
    height, width = resize(settings.height, settings.width, patch_size=patch, **limits)
    return [settings.frame.grid(height // (patch * pool), width // (patch * pool))]


def layout_deepseek_vl(settings: ImageSettings) -> ImageLayout:
    side, frame = settings.square(settings.processor.num_image_tokens), settings.frame
    if settings.get("do_resize"):
        size = settings.edges("high_res_size") or settings.edges("size")  # the smaller one is made from the larger
        scale = size["height"] / max(frame.width, frame.height)
        edges = (max(round(edge * scale), settings.get("min_size")) for edge in (frame.width, frame.height))
        frame = frame.resize(*edges)
    frame = _pad_to_square(frame) if settings.get("do_pad", True) else frame
    return [frame.grid(side, side)]


def layout_llama4(settings: ImageSettings) -> ImageLayout:
    size, whole = settings.get("size"), bool(settings.get("resize_to_max_canvas"))
    tile, shape = settings.edges("size")["height"], (settings.height, settings.width)
    patch, ratio = settings.processor.patch_size, settings.processor.downsample_ratio
    side = settings.square((tile // patch) ** 2 // ratio)
    known = settings.upstream("find_supported_resolutions")(
        max_num_chunks=settings.get("max_patches"), patch_size=size
    )
    best = settings.upstream("get_best_fit")(shape, torch.as_tensor(known), resize_to_max_canvas=whole)
    height, width = (int(edge) for edge in best)
    most = (height, width) if whole else (min(max(shape[0], tile), height), min(max(shape[1], tile), width))
    resized = settings.upstream("get_max_res_without_distortion")(shape, most)
    frame = settings.frame.resize(max(int(resized[1]), 1), max(int(resized[0]), 1)).crop(0, 0, width, height)
    rows, columns = height // tile, width // tile
    layout: ImageLayout = ["<|image_start|>"]
    if rows * columns > 1:
        for index, part in enumerate(frame.tiles(rows, columns)):
            end = "<|tile_x_separator|>" if (index + 1) % columns else "<|tile_y_separator|>"
            layout += [part.grid(side, side), end]
        frame = settings.frame
    return [*layout, "<|image|>", frame.grid(side, side), "<|image_end|>"]


def layout_perception_lm(settings: ImageSettings) -> ImageLayout:
    processor, tile = settings.processor, settings.get("tile_size")
    side, shape = tile // processor.patch_size // processor.pooling_ratio, (settings.width, settings.height, tile)
    frames = [settings.frame]
    if settings.get("vision_input_type") == "thumb+tile":
        images = processor.image_processor
        columns, rows = images._fit_image_to_canvas(*shape) or images._find_closest_aspect_ratio(*shape)
        frames += settings.frame.resize(columns, rows).tiles(rows, columns)
    return [frame.grid(side, side) for frame in frames]


def layout_lfm2_vl(settings: ImageSettings) -> ImageLayout:
    processor, images = settings.processor, settings.processor.image_processor
    tile, patch, merge = (settings.get(name) for name in ("tile_size", "encoder_patch_size", "downsample_factor"))
    shape = {"height": settings.height, "width": settings.width}
    limits = {
        "encoder_patch_size": patch,
        "downsample_factor": merge,
        "max_image_tokens": settings.get("max_image_tokens"),
    }
    width, height = images.smart_resize(**shape, **limits, min_image_tokens=settings.get("min_image_tokens"))
    whole = settings.frame.grid(math.ceil(height // patch / merge), math.ceil(width // patch / merge))
    rows = columns = 1
    tolerance = settings.get("max_pixels_tolerance")
    if settings.get("do_image_splitting") and images._is_image_too_large(
        **shape, **limits, max_pixels_tolerance=tolerance
    ):
        tiles = {"min_tiles": settings.get("min_tiles"), "max_tiles": settings.get("max_tiles"), "tile_size": tile}
        columns, rows = images._get_grid_layout(**shape, **tiles)[:2]
    layout: ImageLayout = [processor.image_start_token]
    if rows * columns > 1:
        side = math.ceil(tile // patch / merge)
        for index, part in enumerate(settings.frame.resize(columns, rows).tiles(rows, columns)):
            layout += [f"<|img_row_{index // columns + 1}_col_{index % columns + 1}|>", part.grid(side, side)]
        layout += [processor.image_thumbnail_token, whole] if settings.get("use_thumbnail") else []
    else:
        layout += [whole]
    return [*layout, processor.image_end_token]


def layout_kimi_k25(settings: ImageSettings) -> ImageLayout:
    patch, merge = settings.get("patch_size"), settings.get("merge_size")
    names = {"max_patches": settings.get("max_patches"), "max_size_per_side": settings.get("size")["max_height"]}
    resize = settings.upstream("navit_resize")
    resized, padded = resize(settings.height, settings.width, patch_size=patch, merge_kernel_size=merge, **names)
    frame = settings.frame.resize(resized[1], resized[0]).crop(0, 0, padded[1], padded[0])
    return [frame.grid(padded[0] // (patch * merge), padded[1] // (patch * merge))]


def layout_hunyuan_vl(settings: ImageSettings) -> ImageLayout:
    (grid,), (height, _) = layout_qwen_vl(settings), qwen_size(settings)
    rows = height // (settings.get("patch_size") * settings.get("merge_size"))
    ends = [NO_BOX] if settings.processor.cat_extra_token else []
    return [np.concatenate([*ends, _ended_rows(np.asarray(grid), rows), *ends])]


def layout_minicpmv(settings: ImageSettings) -> ImageLayout:
    processor, images = settings.processor, settings.processor.image_processor
    resolution, mode = settings.get("scale_resolution"), settings.get("downsample_mode")
    shape, rule = (
        (settings.height, settings.width),
        {"patch_size": settings.get("patch_size"), "downsample_mode": mode},
    )
    token = rule["patch_size"] * (2 if mode == "4x" else 4)
    grid = None
    if settings.get("slice_mode"):
        grid = images.get_sliced_grid(shape, settings.get("max_slice_nums"), resolution)
    height, width = images.find_best_resize(shape, resolution, allow_upscale=grid is None, **rule)
    layout: ImageLayout = []
    if settings.get("use_image_id"):
        layout = [f"{processor.image_id_start_token}{settings.number}{processor.image_id_end_token}"]
    whole = settings.frame.grid(height // token, width // token)
    layout += [processor.image_start_token, whole, processor.image_end_token]
    if grid is not None:
        rows, columns = grid
        height, width = images.get_refine_size(shape, grid, resolution, allow_upscale=True, **rule)
        side = (height // rows // token, width // columns // token)
        for index, tile in enumerate(settings.frame.resize(columns, rows).tiles(rows, columns)):
            layout += ["\n"] if index and not index % columns else []
            layout += [processor.slice_start_token, tile.grid(*side), processor.slice_end_token]
    return layout


def layout_molmo2(settings: ImageSettings) -> ImageLayout:
    """The whole image, then crops that overlap; a token reads a window of patches, which are fewer at the border."""
    processor, patch, pool = settings.processor, settings.get("patch_size"), settings.get("pooling_size")
    crop, rule = settings.edges("size")["height"], settings.upstream("compute_crop_geometry")
    limits = {name: settings.get(name) for name in ("max_crops", "overlap_margins")}
    canvas = rule(settings.height, settings.width, **limits, crop_size=crop, patch_size=patch)[2:]
    low, high = processor.use_single_crop_col_tokens, processor.image_use_col_tokens
    ends = ["<im_col>" if used else "" for used in (high if low is None else low, high)]
    starts = ("<low_res_im_start>" if processor.use_single_crop_start_token else "<im_start>", "<im_start>")
    layout: ImageLayout = []
    for start, (height, width), end in zip(starts, ((crop, crop), canvas), ends, strict=True):
        counts = [edge // patch for edge in (height, width)]
        rows, columns = (-(-count // size) for count, size in zip(counts, pool, strict=True))
        top, left = ((-count % size) // 2 * patch for count, size in zip(counts, pool, strict=True))
        frame = settings.frame.resize(width, height)
        frame = frame.crop(-left, -top, columns * pool[1] * patch, rows * pool[0] * patch)
        layout += [start, _lines(frame.grid(rows, columns), rows, end, end), "<im_end>"]
    return layout


def layout_nemotron_h_omni(settings: ImageSettings) -> ImageLayout:
    patch, merge = settings.get("patch_size"), round(1 / settings.get("downsample_ratio"))
    least, most = settings.get("min_num_patches"), settings.get("max_num_patches")
    room = (settings.get("max_model_len") - 4) * merge**2
    limits = (least, max(least, min(room, most or room)))
    shape = (settings.height, settings.width)
    rows, columns = settings.upstream("get_patch_grid_size")(*shape, patch, merge, *limits)
    return [settings.frame.grid(rows // merge, columns // merge)]


def layout_step3p7(settings: ImageSettings) -> ImageLayout:
    """Tiles row by row, then the whole image; convolutions make a token of 4 x 4 patches."""
    images, size, tile = (
        settings.processor.image_processor,
        settings.edges("size")["height"],
        settings.get("patch_size"),
    )
    shape, frame = (settings.width, settings.height), settings.frame
    _, (width, height), window, columns, _, padded = images._plan_patches(*shape, size, tile)
    frame = frame.crop(0, 0, max(shape), max(shape)) if padded else frame
    whole, side = (edge // (images.vision_patch_size * images.downsampler_stride) for edge in (size, tile))
    layout: ImageLayout = []
    corners = [(x, y) for y in range(0, height, window) for x in range(0, width, window)] if window else []
    for number, (x, y) in enumerate(corners):
        part = frame.resize(width, height).crop(x, y, min(window, width - x), min(window, height - y))
        layout += ["<patch_newline>"] if number and not number % columns else []
        layout += ["<patch_start>", part.grid(side, side), "<patch_end>"]
    return [*layout, "<im_start>", frame.grid(whole, whole), "<im_end>"]


def layout_inkling(settings: ImageSettings) -> ImageLayout:
    """Tokens of equal squares of pixels, the last ones padded at the right and below."""
    size, frame, factor = settings.edges("size"), settings.frame, settings.get("rescale_image_frac")
    if factor is not None:
        long = max(frame.width, frame.height)
        most = max(long, settings.get("rescale_image_max_upscaled_long_edge", math.inf))
        ratio = min(long * factor, most) / long
        frame = frame.resize(*(math.floor(edge * ratio + 0.5) for edge in (frame.width, frame.height)))
    # The first version has one more column, without pixels, where the width is full.
    full = hasattr(settings.processor.image_processor, "rescale_image_frac")
    rows, columns = math.ceil(frame.height / size["height"]), math.ceil((frame.width + full) / size["width"])
    return [frame.crop(0, 0, columns * size["width"], rows * size["height"]).grid(rows, columns)]
