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
from tests.helpers.tiny_vlm_processors import PROCESSORS, VIDEO_PROCESSORS, add_videos, make_processor, type_of
from tests.helpers.tiny_vlm_relatives import PATCH, SIGLIP

TYPES = [name for name in PROCESSORS if type_of(name) == name]
FAMILIES = [name for name in TYPES if IMAGE_TOKEN_FAMILIES[name].frames is not None]
# Whose processors stack the frames of all videos, which must be as many.
STACKED = [name for name in ("internvl", "llava_next_video", "llava_onevision", "video_llava") if name in FAMILIES]
ALONE = [name for name in FAMILIES if not IMAGE_TOKEN_FAMILIES[name].frames_and_images]
COUNT = 5


def make_frames(count=COUNT, seed=0, size=(53, 37)):
    return np.random.default_rng(seed).integers(0, 120, (count, *size[::-1], 3), dtype=np.uint8)


def as_video(frames, fps=2.0):
    return open_video([*frames], fps)


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


@pytest.mark.parametrize("first, size", [("image", (53, 37)), ("video", (30, 71))])
@pytest.mark.parametrize("family", FAMILIES)
def test_pixels_of_a_frame_change_its_tokens(family, first, size):
    """An image, or another video, stands before the video; nothing where the model does not read both."""
    processor = add_videos(make_processor(family, resample=0), family)
    model = make_model(family, processor.tokenizer)
    unmix_patches(model)
    patches = PatchGroundingProcessor(processor, family)
    frames = make_frames(size=size)
    other = as_video(make_frames(COUNT if family in STACKED else 3, seed=9))
    start = [Image.fromarray(make_frames(1, 9)[0])] if first == "image" else [other]
    if first == "image" and family in ALONE:
        start = []
    before, batch = embedded(model, patches, [*start, as_video(frames)])
    positions = batch["region_positions"][0].numpy()
    of = batch["region_image"][0].numpy()
    boxes = batch["region_boxes"][0].numpy().astype(float) * ([*size] * 2)
    steps = [step for step, _ in patches.frame_steps(as_video(frames))]
    earlier = len(start) if first == "image" else len(patches.frame_steps(other))
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


def test_an_odd_number_of_patches_is_halved_as_the_model_does_it(monkeypatch):
    """LLaVA-OneVision has 27 x 27 patches, which it interpolates to 14 x 14 tokens; here 5 x 5, and 3 x 3."""
    family = "llava_onevision"
    square = {"height": 20, "width": 20}
    image_class, settings, own = PROCESSORS[family]
    monkeypatch.setitem(SIGLIP, "image_size", 20)
    monkeypatch.setitem(
        PROCESSORS, family, (image_class, {**settings, "size": square}, {**own, "num_image_tokens": 25})
    )
    monkeypatch.setitem(VIDEO_PROCESSORS, family, (VIDEO_PROCESSORS[family][0], {"size": square}))
    test_pixels_of_a_frame_change_its_tokens(family, "video", (53, 37))


@pytest.mark.parametrize("family", FAMILIES)
def test_videos_of_a_batch_are_read_as_alone(family):
    """With their times, which are words of bytes here."""
    patches = PatchGroundingProcessor(add_videos(make_processor(family, byte_pairs=True), family), family)
    videos = [as_video(make_frames(COUNT, 1), 0.01), as_video(make_frames(COUNT if family in STACKED else 2, 2), 3.0)]
    batch = patches(["what is here ?"] * 2, images=[[video] for video in videos])
    for row, video in enumerate(videos):
        single = patches("what is here ?", images=[video])
        assert len(patches.frame_steps(video)) == single["region_image"].max() + 1
        count = single["region_positions"].shape[1]
        for name in ("region_boxes", "region_image", "region_candidate_mask"):
            assert batch[name][row, :count].equal(single[name][0]), name
        ids = batch["input_ids"][row][batch["region_positions"][row, :count]]
        assert ids.equal(single["input_ids"][0][single["region_positions"][0]])
        for name in single.keys() & {"video_second_per_grid", "second_per_grid_ts"}:
            assert single[name].item() == pytest.approx(2 / video.fps)
            assert batch[name][row] == single[name]


def test_tokens_of_pixels_that_stay_are_left_out():
    patches = PatchGroundingProcessor(add_videos(make_processor("video_llama_3"), "video_llama_3"))
    frames = make_frames(4)
    frames[2] = frames[1]
    frames[3, :, 30:] = frames[2, :, 30:]
    batch = patches("what ?", images=[as_video(make_frames(3, 5)), as_video(frames)])
    boxes = [batch["region_boxes"][0][batch["region_image"][0] == step] for step in range(3, 7)]
    assert boxes[0].equal(boxes[1])
    assert len(boxes[2]) == 1  # the processor leaves one of each frame
    assert boxes[3].equal(boxes[0][boxes[0][:, 0] < 30 / 53])


@pytest.mark.parametrize("family", ALONE)
def test_images_beside_frames_are_refused_where_their_tokens_are_the_same(family):
    patches = PatchGroundingProcessor(add_videos(make_processor(family), family), family)
    with pytest.raises(ValueError, match="images or videos"):
        patches("what ?", images=[Image.fromarray(make_frames(1)[0]), as_video(make_frames())])


@pytest.mark.parametrize("family", STACKED)
def test_videos_that_cannot_be_stacked_are_refused(family):
    patches = PatchGroundingProcessor(add_videos(make_processor(family), family), family)
    with pytest.raises(ValueError, match="as many frames of each"):
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
