# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""Tokens of videos: changed pixels of a frame change the tokens of this frame whose boxes have these pixels."""

import numpy as np
import pytest
import torch
from PIL import Image
from transformers import video_utils

from grounded_attention.processing import videos
from grounded_attention.processing.image_tokens import IMAGE_TOKEN_FAMILIES
from grounded_attention.processing.patch_grounding import PatchGroundingProcessor
from grounded_attention.processing.videos import open_video
from grounded_attention.supervision.supervise import find_language_model
from tests.helpers.tiny_vlm_models import make_model, unmix_patches
from tests.helpers.tiny_vlm_processors import add_videos, make_processor
from tests.helpers.tiny_vlm_relatives import PATCH

FAMILIES = [name for name, family in IMAGE_TOKEN_FAMILIES.items() if family.frames is not None]
# Whose processors stack the frames of all videos, which must be as many.
STACKED = [name for name in ("internvl", "llava_next_video", "llava_onevision") if name in FAMILIES]
COUNT = 5


def make_frames(count=COUNT, seed=0, size=(53, 37)):
    return np.random.default_rng(seed).integers(0, 120, (count, *size[::-1], 3), dtype=np.uint8)


def as_video(frames, fps=2.0):
    return open_video([*frames], fps)


def pair(processor, family):
    """A model whose tower does not mix patches, and the processor of its image tokens."""
    model = make_model(family, processor.tokenizer)
    unmix_patches(model)
    return model, PatchGroundingProcessor(processor, family)


def embedded(model, patches, pictures):
    """What the language model reads, (N, D), and the batch."""
    batch = patches("what is here ?", images=pictures)
    seen = []
    hook = find_language_model(model).register_forward_pre_hook(
        lambda module, args, kwargs: seen.append(kwargs["inputs_embeds"][0]), with_kwargs=True
    )
    with torch.no_grad(), hook:
        model(**patches.model_inputs(batch))
    return seen[0], batch


@pytest.mark.parametrize("size", [(53, 37), (30, 71)])
@pytest.mark.parametrize("first", ["image", "video"])
@pytest.mark.parametrize("family", FAMILIES)
def test_pixels_of_a_frame_change_its_tokens(family, first, size):
    """An image, or another video, stands before the video."""
    model, patches = pair(add_videos(make_processor(family, resample=0), family), family)
    frames = make_frames(size=size)
    other = as_video(make_frames(COUNT if family in STACKED else 3, seed=9))
    start = [Image.fromarray(make_frames(1, 9)[0])] if first == "image" else [other]
    before, batch = embedded(model, patches, [*start, as_video(frames)])
    positions = batch["region_positions"][0].numpy()
    of = batch["region_image"][0].numpy()
    boxes = batch["region_boxes"][0].numpy().astype(float) * ([*size] * 2)
    steps = [step for step, _ in patches.frame_steps(as_video(frames))]
    earlier = 1 if first == "image" else len(patches.frame_steps(other))
    assert {*of.tolist()} == {*range(earlier + len(steps))}
    generator = np.random.default_rng(3)
    required_count = 0
    for number, step in enumerate(steps, earlier):
        of_step = (of == number) & batch["region_candidate_mask"][0].numpy()
        sides = (boxes[of_step, 2:] - boxes[of_step, :2]).max(0) / (PATCH * 2)  # of two merged patches
        for frame in step:
            token = generator.choice(np.flatnonzero(of_step))
            x1, y1 = np.ceil(boxes[token, :2] - 1e-4).astype(int)
            x2, y2 = np.floor(boxes[token, 2:] + 1e-4).astype(int)
            changed = frames.copy()
            changed[frame, y1:y2, x1:x2] = 255 - changed[frame, y1:y2, x1:x2]
            after, _ = embedded(model, patches, [*start, as_video(changed)])
            differs = ((after - before).abs().amax(-1) > 1e-5).numpy()
            assert not np.delete(differs, positions).any()
            row = differs[positions]
            shared = np.minimum(boxes[:, 2:], [x2, y2]) - np.maximum(boxes[:, :2], [x1, y1])
            required = of_step & (shared > sides + 1e-3).all(1)
            allowed = of_step & (shared > 1e-3).all(1)
            assert row[required].all()
            assert allowed[row].all()
            required_count += required.sum()
    assert required_count >= COUNT


@pytest.mark.parametrize("family", STACKED)
def test_videos_that_cannot_be_stacked_are_refused(family):
    _, patches = pair(add_videos(make_processor(family), family), family)
    with pytest.raises(ValueError, match=r"videos of \[3, 5\] frames"):
        patches("what ?", images=[as_video(make_frames(3)), as_video(make_frames(5))])


def test_what_is_no_video_is_refused(tmp_path):
    (tmp_path / "clip.mp4").write_bytes(b"no video")
    (tmp_path / "frames").mkdir()
    for wrong in ([], make_frames(1), "nothing", tmp_path / "clip.mp4", tmp_path / "frames", 7):
        with pytest.raises(ValueError, match=r"^video"):
            open_video(wrong)
    with pytest.raises(ValueError, match="fps=0"):
        open_video([*make_frames()], 0)


def test_a_file_is_decoded_by_an_installed_library(tmp_path, monkeypatch):
    (tmp_path / "clip.mp4").write_bytes(b"a video")
    about = video_utils.VideoMetadata(total_num_frames=10, fps=8.0, frames_indices=[0, 5])
    monkeypatch.setattr(videos, "find_spec", lambda name: name == "av")
    monkeypatch.setattr(video_utils, "load_video", lambda path, fps, backend: (make_frames(2), about))
    video = open_video(tmp_path / "clip.mp4", 2)
    assert len(video.frames) == 2
    assert video.fps == pytest.approx(1.6)
    monkeypatch.setattr(video_utils, "load_video", lambda *given, **named: 1 / 0)
    with pytest.raises(ValueError, match=r"clip\.mp4.*pyav"):
        open_video(tmp_path / "clip.mp4")
