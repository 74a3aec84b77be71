# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""Families that cut a large image into tiles or crops, and show the whole image too."""

import math
from dataclasses import replace
from datetime import timedelta

import numpy as np
import torch
from transformers.image_processing_utils import get_patch_output_size, select_best_resolution

from .image_layouts import (
    NO_BOX,
    ImageFrame,
    ImageLayout,
    ImageSettings,
    VideoSettings,
    class_tokens,
    clock,
    ended_rows,
    lines,
    pad_to_square,
    pooled_intervals,
    window_intervals,
)

# Pixels on a side of the patches of all released Llama 3.2 Vision; its processor does not say it.
MLLAMA_PATCH = 14


def _unpadded(settings: ImageSettings, rows: int, columns: int) -> tuple[slice, slice]:
    """The rows and columns of patches that stay when the model removes the padding of a canvas."""
    width = settings.width
    height = settings.height
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
    shape = np.broadcast_to(np.uint8(0), (*size, 3))  # the function reads the shape alone
    down, across = get_patch_output_size(shape, (height, width), "channels_last")
    canvas = settings.frame.resize(across, down)
    canvas = canvas.crop(-((width - across) // 2), -((height - down) // 2), width, height)
    rows = height // tile * side
    columns = width // tile * side
    in_rows, in_columns = _unpadded(settings, rows, columns)
    kept = [window_intervals(rows, queries)[in_rows], window_intervals(columns, queries)[in_columns]]
    ratio = 0.0
    if most_tiles is not None:
        ratio = math.sqrt(len(kept[0]) * len(kept[1]) / (most_tiles * side**2))
    if ratio > 1.1:  # as LLaVA-OneVision, which then interpolates the patches
        kept = [pooled_intervals(intervals, int(len(intervals) // ratio)) for intervals in kept]
    return ended_rows(canvas.cells(*kept), len(kept[0]))


def llava_next(settings: ImageSettings) -> ImageLayout:
    tile = {**settings.edges("size"), **settings.edges("crop_size")}
    tile_size = tile.get("height") or tile["shortest_edge"]
    # Queries of a window of patches and patches of this window, on each axis
    rate = getattr(settings.processor, "downsample_rate", None) or "1/1"
    queries, window = map(int, rate.split("/"))
    side = tile_size // settings.processor.patch_size * queries // window
    cells = window_intervals(side, queries)
    base = np.concatenate([class_tokens(settings), settings.frame.cells(cells, cells)])
    return [base, _any_resolution(settings, tile_size, side, queries=queries)]


def llava_onevision(settings: ImageSettings) -> ImageLayout:
    side = settings.square(settings.processor.num_image_tokens)
    if not settings.alone:
        return [np.concatenate([pad_to_square(settings.frame).grid(side, side), NO_BOX])]
    most_tiles = int(settings.processor.vision_aspect_ratio.removeprefix("anyres_max_"))
    canvas = _any_resolution(settings, settings.edges("size")["height"], side, most_tiles)
    return [settings.frame.grid(side, side), canvas]


_ROW_COLUMN = "<row_{row}_col_{column}>"


def _tiles(
    frame: ImageFrame,
    rows: int,
    columns: int,
    side: int | tuple[int, int],
    before: str = "",
    after: str = "",
    row_end: str = "",
) -> ImageLayout:
    """Tiles row by row, of equal sizes; the picture was resized to fill them.

    The text before a tile may have the fields row, column and number, counted from 1; `row_end` comes after the last
    tile of a row, `after` after the others.
    """
    layout: ImageLayout = []
    height, width = side if isinstance(side, tuple) else (side, side)
    tiles = frame.resize(columns, rows).tiles(rows, columns) if rows else []
    for number, tile in enumerate(tiles, 1):
        row, column = divmod(number - 1, columns)
        start = before.format(row=row + 1, column=column + 1, number=number)
        end = row_end if column + 1 == columns else after
        layout += [start, tile.grid(height, width), end]
    return layout


def _idefics3_tiles(settings: ImageSettings) -> tuple[int, int]:
    """Rows and columns of tiles, (0, 0) for an image that is not split."""
    if not settings.get("do_image_splitting"):
        return 0, 0
    height = settings.height
    width = settings.width
    tile = settings.edges("max_image_size")["longest_edge"]
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
    if max(rows, columns) > 1:
        return (rows, columns)
    return (0, 0)


def idefics3(settings: ImageSettings) -> ImageLayout:
    processor = settings.processor
    side = settings.square(processor.image_seq_len)
    around = processor.fake_image_token
    whole = getattr(processor, "global_image_tag", None) or processor.global_image_token
    rows, columns = _idefics3_tiles(settings)
    tiles = _tiles(settings.frame, rows, columns, side, around + _ROW_COLUMN, "", "\n")
    start = "\n" if rows else ""
    return [*tiles, f"{start}{around}{whole}", settings.frame.grid(side, side), around]


def smolvlm_frames(settings: VideoSettings) -> list[ImageLayout]:
    frame = idefics3(settings)
    steps: list[ImageLayout] = []
    for time in settings.times:
        steps.append([settings.upstream("FRAME_TIMESTAMP_MESSAGE").format(timestamp=clock(time)), *frame])
    longest = settings.upstream("num2words")(settings.inputs["pixel_values"].shape[1])  # of the videos of the batch
    duration = timedelta(seconds=int(settings.times[-1]))
    intro = settings.upstream("DEFAULT_VIDEO_INTRO").format(frame_count=longest, video_duration=duration)
    steps[0].insert(0, intro)
    steps[-1].append(settings.upstream("DEFAULT_MEDIA_OUTTRO"))
    return steps


def granite_docling(settings: ImageSettings) -> ImageLayout:
    processor = settings.processor
    around = settings.processor.fake_image_token
    side = settings.square(processor.image_seq_len * (4 if settings.get("fine_route") else 1))
    rows, columns = processor.image_processor.get_tile_grid(settings.height, settings.width, dict(settings.given))
    whole = [f"\n{around}{processor.global_image_tag}", settings.frame.grid(side, side), around]
    tiles = _tiles(settings.frame, rows, columns, side, around + _ROW_COLUMN, "", "\n")
    return [*tiles, *(whole if rows * columns > 1 else [])]


def _pan_and_scan(settings: ImageSettings) -> list[ImageFrame]:
    """The crops of a long image (Gemma 3)."""
    frame = settings.frame
    smallest = settings.get("pan_and_scan_min_crop_size")
    long = max(frame.width, frame.height)
    short = min(frame.width, frame.height)
    if not settings.get("do_pan_and_scan") or long / short < settings.get("pan_and_scan_min_ratio_to_activate"):
        return []
    count = min(math.floor(long / smallest), math.floor(long / short + 0.5))
    count = min(settings.get("pan_and_scan_max_num_crops"), max(2, count))
    step = math.ceil(long / count)
    if min(step, short) < smallest:
        return []
    crops = []
    for start in range(0, step * count, step):
        length = min(step, long - start)
        if frame.width >= frame.height:
            crops.append(frame.crop(start, 0, length, short))
        else:
            crops.append(frame.crop(0, start, short, length))
    return crops


def gemma3(settings: ImageSettings) -> ImageLayout:
    tokenizer = settings.processor.tokenizer
    side = settings.square(settings.processor.image_seq_length)

    def picture(frame: ImageFrame) -> ImageLayout:
        return [f"\n\n{tokenizer.boi_token}", frame.grid(side, side), f"{tokenizer.eoi_token}\n\n"]

    crops = _pan_and_scan(settings)
    if not crops:
        return picture(settings.frame)
    layout: ImageLayout = ["Here is the original image ", *picture(settings.frame)]
    before = " and here are some crops to help you see better "
    for crop in crops:
        layout += [before, *picture(crop)]
        before = " "
    return layout


def _optimal_tiles(settings: ImageSettings) -> tuple[int, int]:
    """Rows and columns of tiles that fit the shape of the image best, (0, 0) if one tile is enough."""
    size = settings.edges("size")
    shape = (settings.height, settings.width)
    most = settings.get("max_patches")
    if not settings.get("crop_to_patches") or most <= 1:
        return 0, 0
    if settings.get("use_covering_area_grid"):  # Ovis 2
        rule = settings.upstream("get_min_tile_covering_grid")
        columns, rows = rule(shape, size["height"], most, covering_threshold=0.9)
    else:
        rule = settings.upstream("get_optimal_tiled_canvas")
        columns, rows = rule(shape, (size["height"], size["width"]), settings.get("min_patches"), most)
    if rows * columns > 1:
        return (rows, columns)
    return (0, 0)


def internvl(settings: ImageSettings) -> ImageLayout:
    processor = settings.processor  # that of GOT-OCR 2 has another name for it
    side = settings.square(getattr(processor, "num_image_tokens", 0) or processor.image_seq_length)
    return [*_tiles(settings.frame, *_optimal_tiles(settings), side), settings.frame.grid(side, side)]


def unlimited_ocr(settings: ImageSettings) -> ImageLayout:
    processor = settings.processor
    frame = settings.frame
    cropped = settings.get("crop_to_patches")
    tile = settings.get("tile_size")
    size = max(settings.edges("size").values())
    inner = math.ceil(tile // processor.patch_size / processor.downsample_ratio)
    side = math.ceil(size // processor.patch_size / processor.downsample_ratio)
    layout: ImageLayout = []
    if cropped and max(frame.width, frame.height) > tile:
        limits = (settings.get("min_patches"), settings.get("max_patches"))
        shape = ((frame.height, frame.width), (tile, tile))
        columns, rows = settings.upstream("get_optimal_tiled_canvas")(*shape, *limits)
        layout = [ended_rows(frame.grid(rows * inner, columns * inner), rows * inner)]
    if cropped or size > settings.get("maximum_pad_value"):
        scale = size / max(frame.width, frame.height)
        frame = pad_to_square(frame.resize(round(frame.width * scale), round(frame.height * scale)))
    return [*layout, np.concatenate([ended_rows(frame.grid(side, side), side), NO_BOX])]


def aya_vision(settings: ImageSettings) -> ImageLayout:
    processor = settings.processor
    side = processor.img_size // processor.patch_size
    tiles = _tiles(settings.frame, *_optimal_tiles(settings), side, f"{processor.tile_token}_{{number}}")
    return [*tiles, processor.tile_global_token, settings.frame.grid(side, side)]


def cohere2_vision(settings: ImageSettings) -> ImageLayout:
    side = settings.processor.patch_size
    end = settings.processor.img_line_break_token
    tiles = _tiles(settings.frame, *_optimal_tiles(settings), side, "", end, end)
    return [*tiles, settings.frame.grid(side, side), end]


def ovis2(settings: ImageSettings) -> ImageLayout:
    side = settings.square(settings.processor.image_seq_length)
    tiles = _tiles(settings.frame, *_optimal_tiles(settings), side, "", "<IMG_COL>", "<IMG_ROW>")
    return ["<IMG_START>", settings.frame.grid(side, side), "<IMG_GRID>", *tiles[:-1], "<IMG_END>"]


def llama4(settings: ImageSettings) -> ImageLayout:
    size = settings.get("size")
    whole = bool(settings.get("resize_to_max_canvas"))
    tile = settings.edges("size")["height"]
    shape = (settings.height, settings.width)
    patch = settings.processor.patch_size
    ratio = settings.processor.downsample_ratio
    side = settings.square((tile // patch) ** 2 // ratio)
    known = settings.upstream("find_supported_resolutions")(
        max_num_chunks=settings.get("max_patches"), patch_size=size
    )
    best = settings.upstream("get_best_fit")(shape, torch.as_tensor(known), resize_to_max_canvas=whole)
    height, width = (int(edge) for edge in best)
    if whole:
        most = (height, width)
    else:
        most = (min(max(shape[0], tile), height), min(max(shape[1], tile), width))
    resized = settings.upstream("get_max_res_without_distortion")(shape, most)
    down, across = (max(int(edge), 1) for edge in resized)
    frame = settings.frame.resize(across, down).crop(0, 0, width, height)
    rows = height // tile
    columns = width // tile
    tiles: ImageLayout = []
    if rows * columns > 1:
        tiles = _tiles(frame, rows, columns, side, "", "<|tile_x_separator|>", "<|tile_y_separator|>")
        frame = settings.frame
    return ["<|image_start|>", *tiles, "<|image|>", frame.grid(side, side), "<|image_end|>"]


def perception_lm(settings: ImageSettings) -> ImageLayout:
    processor = settings.processor
    tile = settings.get("tile_size")
    side = tile // processor.patch_size // processor.pooling_ratio
    shape = (settings.width, settings.height, tile)
    tiles: ImageLayout = []
    if settings.get("vision_input_type") == "thumb+tile":
        images = processor.image_processor
        columns, rows = images._fit_image_to_canvas(*shape) or images._find_closest_aspect_ratio(*shape)
        tiles = _tiles(settings.frame, rows, columns, side)
    return [settings.frame.grid(side, side), *tiles]


def lfm2_vl(settings: ImageSettings) -> ImageLayout:
    processor = settings.processor
    images = settings.processor.image_processor
    tile = settings.get("tile_size")
    patch = settings.get("encoder_patch_size")
    merge = settings.get("downsample_factor")
    shape = {"height": settings.height, "width": settings.width}
    limits = settings.named("encoder_patch_size", "downsample_factor", "max_image_tokens")
    width, height = images.smart_resize(**shape, **limits, **settings.named("min_image_tokens"))
    whole = settings.frame.grid(math.ceil(height // patch / merge), math.ceil(width // patch / merge))
    rows = columns = 1
    limits |= settings.named("max_pixels_tolerance")
    if settings.get("do_image_splitting") and images._is_image_too_large(**shape, **limits):
        columns, rows = images._get_grid_layout(**shape, **settings.named("min_tiles", "max_tiles", "tile_size"))[:2]
    layout: ImageLayout = [whole]
    if rows * columns > 1:
        side = math.ceil(tile // patch / merge)
        layout = _tiles(settings.frame, rows, columns, side, "<|img_row_{row}_col_{column}|>")
        layout += [processor.image_thumbnail_token, whole] if settings.get("use_thumbnail") else []
    return [processor.image_start_token, *layout, processor.image_end_token]


def minicpmv(settings: ImageSettings) -> ImageLayout:
    processor = settings.processor
    images = getattr(processor, settings.part)
    resolution = settings.get("scale_resolution")
    shape = (settings.height, settings.width)
    rule = settings.named("patch_size", "downsample_mode")
    token = rule["patch_size"] * (2 if rule["downsample_mode"] == "4x" else 4)
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
        start = processor.slice_start_token
        end = processor.slice_end_token
        layout += [*_tiles(settings.frame, rows, columns, side, start, end, f"{end}\n")[:-1], end]
    return layout


def minicpmv_frames(settings: VideoSettings) -> list[ImageLayout]:
    processor = settings.processor
    frame = minicpmv(replace(settings, given={"use_image_id": False}))
    number = ""
    if processor.default_use_image_id:  # before each video, of some versions
        token = processor.video_token
        earlier = settings.number + 1
        number = processor._prepend_local_ids([token * earlier], [""] * earlier, token)[-1]
    return [[number, *frame], *[frame] * (settings.count - 1)]


def mllama(settings: ImageSettings) -> ImageLayout:
    """What its vision tower gives: of each tile a class token and its patches; missing tiles have no place."""
    most = settings.get("max_image_tiles")
    tile = settings.edges("size")["height"]
    side = tile // settings.get("patch_size", MLLAMA_PATCH)
    shape = (settings.height, settings.width)
    canvas = settings.upstream("get_optimal_tiled_canvas")(*shape, most, tile)
    height, width = map(int, canvas)
    resized = settings.upstream("get_image_size_fit_to_canvas")(*shape, height, width, tile)
    down, across = map(int, resized)
    frame = settings.frame.resize(across, down).crop(0, 0, width, height)
    layout: ImageLayout = []
    for part in frame.tiles(height // tile, width // tile):
        layout.append(np.concatenate([NO_BOX, part.grid(side, side)]))
    missing = NO_BOX.repeat(side**2 + 1, axis=0)
    return [*layout, *[missing] * (most - len(layout))]


def molmo2(settings: ImageSettings) -> ImageLayout:
    """The whole image, then crops that overlap; a token reads a window of patches, which are fewer at the border."""
    processor = settings.processor
    patch = settings.get("patch_size")
    pool = settings.get("pooling_size")
    crop = settings.edges("size")["height"]
    rule = settings.upstream("compute_crop_geometry")
    limits = settings.named("max_crops", "overlap_margins", "patch_size")
    canvas = rule(settings.height, settings.width, **limits, crop_size=crop)[2:]
    low = processor.use_single_crop_col_tokens
    high = processor.image_use_col_tokens
    ends = []
    for used in (high if low is None else low, high):
        ends.append("<im_col>" if used else "")
    starts = ("<low_res_im_start>" if processor.use_single_crop_start_token else "<im_start>", "<im_start>")
    layout: ImageLayout = []
    for start, (height, width), end in zip(starts, ((crop, crop), canvas), ends, strict=True):
        down = height // patch
        across = width // patch
        rows = math.ceil(down / pool[0])
        columns = math.ceil(across / pool[1])
        top = -down % pool[0] // 2 * patch
        left = -across % pool[1] // 2 * patch
        frame = settings.frame.resize(width, height)
        frame = frame.crop(-left, -top, columns * pool[1] * patch, rows * pool[0] * patch)
        layout += [start, lines(frame.grid(rows, columns), rows, end, end), "<im_end>"]
    return layout


def step3p7(settings: ImageSettings) -> ImageLayout:
    """Tiles row by row, then the whole image; convolutions make a token of 4 x 4 patches."""
    images = settings.processor.image_processor
    size = settings.edges("size")["height"]
    tile = settings.get("patch_size")
    shape = (settings.width, settings.height)
    frame = settings.frame
    _, (width, height), window, columns, _, padded = images._plan_patches(*shape, size, tile)
    if padded:
        frame = frame.crop(0, 0, max(shape), max(shape))
    whole = size // (images.vision_patch_size * images.downsampler_stride)
    side = tile // (images.vision_patch_size * images.downsampler_stride)
    layout: ImageLayout = []
    corners = []
    if window:
        corners = [(x, y) for y in range(0, height, window) for x in range(0, width, window)]
    for number, (x, y) in enumerate(corners):
        part = frame.resize(width, height).crop(x, y, min(window, width - x), min(window, height - y))
        layout += ["<patch_newline>"] if number and not number % columns else []
        layout += ["<patch_start>", part.grid(side, side), "<patch_end>"]
    return [*layout, "<im_start>", frame.grid(whole, whole), "<im_end>"]
