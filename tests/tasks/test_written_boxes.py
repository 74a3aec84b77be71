# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""Boxes in texts: every spelling of one box is read alike, on the scale of the family and on no other one."""

import json

import numpy as np
import pytest
from PIL import Image

from grounded_attention.processing.patch_grounding import PatchGroundingProcessor
from grounded_attention.tasks.written_boxes import BoxSpelling, box_spelling
from tests.helpers.tiny_vlm_processors import PROCESSORS, make_processor

BOX = [0.105, 0.301, 0.232, 0.48]
ITEM = {"bbox_2d": [105, 301, 232, 480], "label": "dog 2"}
SPELLINGS = {
    "json": json.dumps([ITEM]),
    "json of another order": '{"label": "Picture 1", "bbox_2d": [105, 301, 232, 480]}',
    "fence": f"```json\n{json.dumps([ITEM], indent=2)}\n```",
    "two boxes": json.dumps([ITEM, {"bbox_2d": [1, 2, 3, 4]}]),
    "cut after the box": '```json\n[\n\t{"bbox_2d": [105, 301, 232, 480], "lab',
    "cut in the second": json.dumps([ITEM])[:-1] + ', {"bbox_2d": [1, 2',
    "cut before the bracket": '[{"bbox_2d": [105, 301, 232, 480',
    "size of the image first": '{"image_size": [0, 0, 640, 480], "bbox": [105, 301, 232, 480]}',
    "a point too": '{"point_2d": [170, 390], "bbox_2d": [105, 301, 232, 480]}',
    "decimals": "[105.0, 301.2, 231.9, 480.0]",
    "numbered list": "1. dog: [105, 301, 232, 480]\n2. cat: [1, 2, 3, 4]",
    "numbered list without brackets": "1. 105, 301, 232, 480",
    "words": "The 2 dogs in Picture 1 are at 105, 301, 232, 480.",
    "label with a digit": "dog 2 105 301 232 480",
    "label before a comma": "Picture 1, 105, 301, 232, 480",
    "qwen2_vl": "<|object_ref_start|>dog 2<|object_ref_end|><|box_start|>(105,301),(232,480)<|box_end|><|im_end|>",
    "its special tokens removed": "dog 2(105,301),(232,480)",
    "internvl": "<ref>dog 2</ref><box>[[105, 301, 232, 480], [1, 2, 3, 4]]</box>",
    "minicpm": "<ref>dog 2</ref><box>105 301 232 480</box>",
    "glm": "<|begin_of_box|>[[105,301,232,480]]<|end_of_box|>",
    "corners": "[[105, 301], [232, 480]]",
    "corners in words": "from (105, 301) to (232, 480)",
    "corners exchanged": "[232, 480, 105, 301]",
    "numbers in quotes": '{"bbox_2d": ["105", "301", "232", "480"]}',
    "comma at the end": "[105, 301, 232, 480,]",
    "keys with numbers in quotes": '<box x1="105" y1="301" x2="232" y2="480"/>',
    "keys": '{"x1": 105, "y1": 301, "x2": 232, "y2": 480}',
    "keys without quotes": "x_min=105, y_min=301, x_max=232, y_max=480",
    "keys, y first": "**ymin**: 301, **xmin**: 105, **ymax**: 480, **xmax**: 232",
    "thoughts": "<think>Maybe [1, 2, 3, 4]?</think>\n[105, 301, 232, 480]",
    "thoughts without their first tag": "Maybe [1, 2, 3, 4]?</think>[105, 301, 232, 480]",
    "paligemma": "<loc0308><loc0108><loc0492><loc0238> dog",
    "florence": "dog<loc_105><loc_301><loc_232><loc_480>",
}
NO_BOXES = {
    "nothing": "",
    "words": "The dog is behind bbox_2d of Picture 1.",
    "three numbers": '{"bbox_2d": [105, 301, 232',
    "point": '{"point_2d": [105, 301], "label": "dog 2"}',
    "points": '[{"point_2d": [105, 301]}, {"point_2d": [232, 480]}]',
    "tag of points": '<points x1="10.5" y1="30.1" x2="23.2" y2="48.0" alt="dogs">dogs</points>',
    "polygon": "[105, 301, 232, 301, 232, 480, 105, 480]",
    "thoughts that do not end": "<think>Maybe [105, 301, 232, 480]",
    "no area": "[105, 301, 105, 480]",
}


@pytest.mark.parametrize("name", SPELLINGS)
def test_every_spelling_is_read(name):
    assert BoxSpelling().read(SPELLINGS[name]) == pytest.approx(BOX, abs=2e-3)


@pytest.mark.parametrize("name", NO_BOXES)
def test_other_texts_have_no_box(name):
    assert BoxSpelling().read(NO_BOXES[name]) is None


@pytest.mark.parametrize(
    ("limits", "numbers"),
    [((1000, 1000), "105, 301, 232, 1001"), ((640, 480), "641, 0, 3, 4"), ((640, 480), "0, 0, 500, 500"),
     ((1, 1), "105, 301, 232, 480"), ((1000, 1000), "0.1, 0.3, 0.2, 0.5"), ((1000, 1000), "-3, 1, 10, 20")],
)  # fmt: skip
def test_another_scale_is_named_and_not_tried(limits, numbers):
    with pytest.raises(ValueError, match=f"{limits[0]:g}.*{limits[1]:g}") as error:
        BoxSpelling(limits).read(f"[{numbers}]")
    assert numbers in str(error.value)


@pytest.mark.parametrize("size", [(64, 48), (120, 40), (40, 41)])
@pytest.mark.parametrize("model_type", PROCESSORS)
def test_what_is_written_is_read_again(model_type, size):
    """Every family reads what it writes; Qwen2.5-VL within the pixel of its small picture."""
    spelling = box_spelling(PatchGroundingProcessor(make_processor(model_type)), Image.new("RGB", size))
    box = [0.2, 0.25, 0.77, 0.875]
    error = 0.5 / min(spelling.limits) if spelling.limits != (1, 1) else 2e-3
    assert spelling.read(spelling.write(box)) == pytest.approx(box, abs=error)
    assert spelling.read(spelling.write([-1.0, 0.0, 1.0, 2.0])) == pytest.approx([0, 0, 1, 1], abs=1e-3)


def test_scales_of_families():
    image, box = Image.new("RGB", (60, 40)), [0.25, 0.5, 0.75, 1.0]
    written = {
        name: box_spelling(PatchGroundingProcessor(make_processor(name, byte_pairs=True)), image).write(box)
        for name in PROCESSORS
    }
    for name in ("qwen2_vl", "qwen3_vl", "internvl", "idefics3"):
        assert written[name] == "[250, 500, 750, 1000]"
    assert written["llava"] == written["llava_next"] == "[0.25, 0.5, 0.75, 1.0]"
    assert written["paligemma"] == "<loc0512><loc0256><loc1023><loc0768>"
    # The square has a margin of a sixth above and below the picture.
    assert np.allclose(json.loads(written["llava_padded"]), [0.25, 0.5, 0.75, 5 / 6], atol=1e-3)
