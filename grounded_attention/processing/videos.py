# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""Videos as frames: a list of images, a folder of them, or a file, where a library that decodes it is installed."""

import os
import re
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any, cast

from PIL import Image

from ..utils.open_images import open_image

FPS = 2.0  # frames in a second that Qwen's processors take
SUFFIXES = (".mp4", ".m4v", ".mov", ".mkv", ".webm", ".avi", ".mpg", ".mpeg")
# Package -> its name as a backend of transformers' `load_video`.
_DECODERS = {"torchcodec": "torchcodec", "av": "pyav", "cv2": "opencv", "decord": "decord"}


@dataclass(frozen=True, eq=False)
class Video:
    """Frames of a video, as [`open_video`] reads them.

    Args:
        frames (`tuple[PIL.Image.Image, ...]`): pictures of one size, in order; a model sees all of them.
        fps (`float`, *optional*, defaults to 2.0): how many frames a second has, from which models know their times.
    """

    frames: tuple[Image.Image, ...]
    fps: float = FPS

    def steps(self, span: int) -> list[tuple[range, float]]:
        """The frames that a model reads together, `span` at a time, and the seconds in their middle."""
        numbers = range(len(self.frames))
        parts = [numbers[start : start + span] for start in numbers[::span]]
        return [(part, (part[0] / self.fps + part[-1] / self.fps) / 2) for part in parts]


def is_video_file(path: Any) -> bool:
    """Whether a path is that of a folder, or has the suffix of a video."""
    return isinstance(path, str | os.PathLike) and (Path(path).is_dir() or Path(path).suffix.lower() in SUFFIXES)


def open_video(source: Any, fps: float = FPS, name: str = "video") -> Video:
    """Opens a video.

    Args:
        source (`Video`, list of images, or path): the frames, each as for [`open_image`]; a folder, whose files are
            frames, in the order of their names with numbers counted; or a video file, of which `fps` frames in a
            second are read.
        fps (`float`, *optional*, defaults to 2.0): frames in a second, above 0; a `Video` has its own.
        name (`str`, *optional*, defaults to `"video"`): what messages call it.

    Returns:
        [`Video`]: its frames.

    Raises:
        ValueError: if there are fewer than two frames, they have several sizes, one cannot be read, or no library
            decodes the file.
    """
    if isinstance(source, Video):
        return source
    if not fps > 0:
        raise ValueError(f"{name}: fps={fps}, expected frames in a second, above 0")
    if isinstance(source, str | os.PathLike):
        name = f"{name} ({source})"
        if Path(source).is_dir():
            source = _files(Path(source))
        else:
            source, fps = _decode(Path(source), fps, name)
    if not isinstance(source, Sequence) or len(source) < 2:
        raise ValueError(f"{name}: expected at least two frames: a list of images, a folder of them, or a video file")
    frames = tuple(open_image(frame, f"{name}, frame {number}") for number, frame in enumerate(source))
    if len(sizes := {frame.size for frame in frames}) > 1:
        raise ValueError(f"{name}: frames of several sizes, {', '.join(map(str, sorted(sizes)))}; resize them to one")
    return Video(frames, float(fps))


def _files(folder: Path) -> list[Path]:
    def key(path: Path) -> list[Any]:
        return [int(part) if part.isdecimal() else part for part in re.split(r"(\d+)", path.name)]

    return sorted((path for path in folder.iterdir() if path.is_file() and not path.name.startswith(".")), key=key)


def _decode(path: Path, fps: float, name: str) -> tuple[list[Any], float]:
    """Frames of a file, and how many of them a second really has."""
    if not path.is_file():
        raise ValueError(f"{name}: no such file or folder")
    backend = next((_DECODERS[package] for package in _DECODERS if find_spec(package)), None)
    if backend is None:
        raise ValueError(
            f"{name}: none of the packages {', '.join(_DECODERS)} is installed, which decode videos; install one, or "
            f"give a folder of frames: ffmpeg -i {path.name} -vf fps={fps:g} frames/%04d.png"
        )
    from transformers import video_utils

    try:
        frames, about = cast(Any, video_utils.load_video)(str(path), fps=fps, backend=backend)
    except Exception as error:  # decoders raise any type
        raise ValueError(f"{name}: {backend} cannot decode it ({' '.join(str(error).split())})") from error
    return list(frames), about.sampled_fps
