# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""Families whose image is one grid of tokens.

`<family>_frames` is for a video: one layout for each step of its frames.
"""

import inspect
import math

import numpy as np

from .image_layouts import (
    NO_BOX,
    ImageFrame,
    ImageLayout,
    ImageSettings,
    VideoSettings,
    center_crop,
    class_tokens,
    clock,
    ended_rows,
    even_intervals,
    lines,
    pad_to_square,
    pooled_intervals,
)


def _llava_frame(settings: ImageSettings) -> tuple[ImageFrame, int, int]:
    """What the vision tower of LLaVA sees, and its rows and columns of patches."""
    frame = settings.frame
    patch = settings.processor.patch_size
    if settings.get("do_pad") and hasattr(settings.processor.image_processor, "pad_to_square"):
        frame = pad_to_square(frame)
    frame = center_crop(settings, frame)
    rows = frame.height // patch
    columns = frame.width // patch
    return frame.crop(0, 0, columns * patch, rows * patch), rows, columns


def llava(settings: ImageSettings) -> ImageLayout:
    if hasattr(settings.processor, "image_break_token"):  # Pixtral, whose model type is that of LLaVA
        return pixtral(settings)
    frame, rows, columns = _llava_frame(settings)
    return [np.concatenate([class_tokens(settings), frame.grid(rows, columns)])]


def llava_frames(settings: VideoSettings) -> list[ImageLayout]:
    frame, rows, columns = _llava_frame(settings)
    return [[frame.grid(rows // 2, columns // 2)]] * settings.count  # the model takes means of 2 x 2 patches


def llava_onevision_frames(settings: VideoSettings) -> list[ImageLayout]:
    side = settings.square(settings.processor.num_image_tokens)
    pooled = pooled_intervals(even_intervals(side), math.ceil(side / 2))
    grid = center_crop(settings, settings.frame).cells(pooled, pooled)
    steps: list[ImageLayout] = [[grid]] * settings.count
    steps[-1] = [[grid, NO_BOX]]
    return steps


def _around(starts: list[str], layouts: list[ImageLayout], end: str = "", between: str = "") -> list[ImageLayout]:
    """Steps with their texts before and after, and a text between them."""
    later = [between + start for start in starts[1:]]
    return [[start, *layout, end] for start, layout in zip([starts[0], *later], layouts, strict=True)]


def internvl_frames(settings: VideoSettings) -> list[ImageLayout]:
    processor = settings.processor
    side = settings.square(processor.image_seq_length)
    grid = center_crop(settings, settings.frame).grid(side, side)
    starts = [f"Frame{number}: {processor.start_image_token}" for number in range(1, settings.count + 1)]
    return _around(starts, [[grid]] * settings.count, processor.end_image_token, "\n")


def video_llava_frames(settings: VideoSettings) -> list[ImageLayout]:
    frame, rows, columns = _llava_frame(settings)
    before = NO_BOX.repeat(settings.processor.num_additional_image_tokens, axis=0)
    return [[np.concatenate([before, frame.grid(rows, columns)])]] * settings.count


def florence2(settings: ImageSettings) -> ImageLayout:
    """The mean of all cells, which has no place, then the cells."""
    side = settings.square(settings.processor.num_image_tokens - 1)
    return [np.concatenate([NO_BOX, center_crop(settings, settings.frame).grid(side, side)])]


def square(settings: ImageSettings) -> ImageLayout:
    side = settings.square(settings.processor.image_seq_length)
    return [center_crop(settings, settings.frame).grid(side, side)]


def qwen_size(settings: ImageSettings) -> tuple[int, int]:
    """Height and width of the image after its resize to full patches."""
    height = settings.height
    width = settings.width
    size = settings.edges("size")
    if settings.get("do_resize"):
        factor = settings.get("patch_size") * settings.get("merge_size")
        frames = settings.get("temporal_patch_size")
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


def qwen_vl(settings: ImageSettings) -> ImageLayout:
    factor = settings.get("patch_size") * settings.get("merge_size")
    height, width = qwen_size(settings)
    return [settings.frame.grid(height // factor, width // factor)]


def glm5_next(settings: ImageSettings) -> ImageLayout:
    """Resized without change of its shape, and padded to full patches at the right and below."""
    factor, (height, width) = settings.get("patch_size") * settings.get("merge_size"), qwen_size(settings)
    scale = min(height / settings.height, width / settings.width)
    if settings.height * settings.width >= factor**2 * settings.get("min_image_tokens"):
        scale = min(1.0, scale)
    edges = []
    for most, edge in ((width, settings.width), (height, settings.height)):
        edges.append(max(1, min(most, math.floor(edge * scale))))
    frame = settings.frame.resize(*edges).crop(0, 0, width, height)
    return [frame.grid(height // factor, width // factor)]


def qwen_frames(settings: VideoSettings) -> list[ImageLayout]:
    merge = settings.get("merge_size")
    steps, rows, columns = settings.inputs["video_grid_thw"][settings.place].tolist()
    return [[settings.frame.grid(rows // merge, columns // merge)]] * steps


def qwen3_frames(settings: VideoSettings) -> list[ImageLayout]:
    processor = settings.processor
    starts = [f"<{time:.1f} seconds>{processor.vision_start_token}" for time in settings.times]
    return _around(starts, qwen_frames(settings), processor.vision_end_token)


def glm4v_frames(settings: VideoSettings) -> list[ImageLayout]:
    processor = settings.processor
    rate = settings.video.fps / settings.get("temporal_patch_size")
    steps: list[ImageLayout] = []
    for number, layout in enumerate(qwen_frames(settings)):
        before, after = processor.replace_frame_token_id(number / rate).split(processor.image_token)
        steps.append([before, *layout, after])
    return steps


def video_llama_3_frames(settings: VideoSettings) -> list[ImageLayout]:
    """Tokens whose pixels are those of the frame before are left out."""
    counts = settings.inputs["video_grid_thw"].prod(-1) // settings.get("merge_size") ** 2
    shown = settings.inputs["video_compression_mask"].split(counts.tolist())[settings.place]
    (grid,) = qwen_frames(settings)[0]
    layouts: list[ImageLayout] = [[np.asarray(grid)[kept]] for kept in shown.reshape(settings.count, -1).numpy()]
    return _around([f"Time {time:.1f}s:" for time in settings.times], layouts, between=",")


def hunyuan_vl(settings: ImageSettings) -> ImageLayout:
    (grid,), (height, _) = qwen_vl(settings), qwen_size(settings)
    rows = height // (settings.get("patch_size") * settings.get("merge_size"))
    ends = [NO_BOX] if getattr(settings.processor, "cat_extra_token", False) else []  # not of HY 4
    return [np.concatenate([*ends, ended_rows(np.asarray(grid), rows), *ends])]


def emu3(settings: ImageSettings) -> ImageLayout:
    processor = settings.processor
    images = settings.processor.image_processor
    size = (images.spatial_factor, images.min_pixels, images.max_pixels)
    height, width = settings.upstream("smart_resize")(settings.height, settings.width, *size)
    rows = height // processor.downsample_ratio
    columns = width // processor.downsample_ratio
    start = f"{processor.image_start_token}{rows}*{columns}{processor.fake_token_around_image}"
    grid = ended_rows(settings.frame.grid(rows, columns), rows)
    return [start, grid, f"{processor.eof_token}{processor.image_end_token}"]


def apertus(settings: ImageSettings) -> ImageLayout:
    processor = settings.processor
    factor = settings.get("spatial_factor")
    size = settings.get("size")
    height = settings.height
    width = settings.width
    if settings.get("do_resize"):
        limits = (size["min_pixels"], size["max_pixels"])
        height, width = settings.upstream("smart_resize")(height, width, factor, *limits)
    rows = height // factor
    columns = width // factor
    start = f"{processor.boi_token}{rows}*{columns}{processor.image_wrapper_token}"
    return [start, lines(settings.frame.grid(rows, columns), rows, processor.eol_token, processor.eoi_token)]


def pp_chart2table(settings: ImageSettings) -> ImageLayout:
    side = settings.edges("size")["height"] // 64  # patches of 16 pixels, 4 x 4 of which convolutions merge
    return [settings.frame.grid(side, side)]


def pixtral(settings: ImageSettings) -> ImageLayout:
    processor = settings.processor
    patch = processor.patch_size * processor.spatial_merge_size
    longest = settings.edges("size")["longest_edge"]
    resize = settings.upstream("get_resize_output_image_size")
    shape = np.broadcast_to(np.uint8(0), (settings.height, settings.width, 3))  # the function reads the shape alone
    alone = hasattr(processor, "effective_patch_size")  # LightOnOCR, which may cut patches that are not merged
    unit = settings.get("patch_size") if alone else patch
    height, width = resize(shape, size=(longest, longest), patch_size=(unit, unit))
    rows = height // patch
    columns = width // patch
    grid = settings.frame.resize(width, height).crop(0, 0, columns * patch, rows * patch).grid(rows, columns)
    if alone:
        return [grid]
    return [lines(grid, rows, processor.image_break_token, processor.image_end_token)]


def gemma4(settings: ImageSettings) -> ImageLayout:
    patch = settings.get("patch_size")
    pool = settings.get("pooling_kernel_size")
    limits = {"max_patches": settings.get("max_soft_tokens") * pool**2, "pooling_kernel_size": pool}
    resize = settings.upstream("get_aspect_ratio_preserving_size")
    height, width = resize(settings.height, settings.width, patch_size=patch, **limits)
    return [settings.frame.grid(height // (patch * pool), width // (patch * pool))]


def gemma4_frames(settings: VideoSettings) -> list[ImageLayout]:
    processor = settings.processor
    starts = [f"{clock(time)} {processor.boi_token}" for time in settings.times]
    return _around(starts, [gemma4(settings)] * settings.count, processor.eoi_token, " ")


def deepseek_vl(settings: ImageSettings) -> ImageLayout:
    side = settings.square(settings.processor.num_image_tokens)
    frame = settings.frame
    if settings.get("do_resize"):
        size = settings.edges("high_res_size") or settings.edges("size")  # the smaller one is made from the larger
        scale = size["height"] / max(frame.width, frame.height)
        edges = (max(round(edge * scale), settings.get("min_size")) for edge in (frame.width, frame.height))
        frame = frame.resize(*edges)
    if settings.get("do_pad", True):
        frame = pad_to_square(frame)
    return [frame.grid(side, side)]


def kimi_k25(settings: ImageSettings) -> ImageLayout:
    patch = settings.get("patch_size")
    merge = settings.get("merge_size")
    names = {"max_patches": settings.get("max_patches"), "max_size_per_side": settings.get("size")["max_height"]}
    resize = settings.upstream("navit_resize")
    resized, padded = resize(settings.height, settings.width, patch_size=patch, merge_kernel_size=merge, **names)
    frame = settings.frame.resize(resized[1], resized[0]).crop(0, 0, padded[1], padded[0])
    return [frame.grid(padded[0] // (patch * merge), padded[1] // (patch * merge))]


def nemotron_h_omni(settings: ImageSettings) -> ImageLayout:
    patch = settings.get("patch_size")
    merge = round(1 / settings.get("downsample_ratio"))
    least = settings.get("min_num_patches")
    most = settings.get("max_num_patches")
    room = (settings.get("max_model_len") - 4) * merge**2
    limits = (least, max(least, min(room, most or room)))
    shape = (settings.height, settings.width)
    rows, columns = settings.upstream("get_patch_grid_size")(*shape, patch, merge, *limits)
    return [settings.frame.grid(rows // merge, columns // merge)]


def inkling(settings: ImageSettings) -> ImageLayout:
    """Tokens of equal squares of pixels, the last ones padded at the right and below."""
    size = settings.edges("size")
    frame = settings.frame
    factor = settings.get("rescale_image_frac")
    if factor is not None:
        long = max(frame.width, frame.height)
        most = max(long, settings.get("rescale_image_max_upscaled_long_edge", math.inf))
        ratio = min(long * factor, most) / long
        frame = frame.resize(*(math.floor(edge * ratio + 0.5) for edge in (frame.width, frame.height)))
    # The first version has one more column, without pixels, where the width is full.
    full = hasattr(settings.processor.image_processor, "rescale_image_frac")
    rows = math.ceil(frame.height / size["height"])
    columns = math.ceil((frame.width + full) / size["width"])
    return [frame.crop(0, 0, columns * size["width"], rows * size["height"]).grid(rows, columns)]
