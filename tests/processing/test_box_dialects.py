# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""Boxes in texts: every spelling of one box is read alike, on the scale of the family and on no other one."""

import json

import numpy as np
import pytest
from PIL import Image

from grounded_attention.processing.box_dialects import BOX_DIALECTS, BoxDialect, fit_dialect
from grounded_attention.processing.image_tokens import IMAGE_TOKEN_FAMILIES
from grounded_attention.processing.patch_grounding import PatchGroundingProcessor
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
    assert BoxDialect().read(SPELLINGS[name]) == pytest.approx(BOX, abs=2e-3)


@pytest.mark.parametrize("name", NO_BOXES)
def test_other_texts_have_no_box(name):
    assert BoxDialect().read(NO_BOXES[name]) is None


@pytest.mark.parametrize(
    "numbers, limits",
    {"105, 301, 232, 1001": (1000, 1000), "641, 0, 3, 4": (640, 480), "0, 0, 500, 500": (640, 480),
     "105, 301, 232, 480": (1, 1), "0.1, 0.3, 0.2, 0.5": (1000, 1000), "-3, 1, 10, 20": (1000, 1000)}.items(),
)  # fmt: skip
def test_another_scale_is_named_and_not_tried(numbers, limits):
    with pytest.raises(ValueError, match=f"{limits[0]:g}.*{limits[1]:g}") as error:
        BoxDialect(limits=limits).read(f"[{numbers}]")
    assert numbers in str(error.value)


@pytest.mark.parametrize("size", [(64, 48), (120, 40), (40, 41)])
@pytest.mark.parametrize("model_type", PROCESSORS)
def test_what_is_written_is_read_again(model_type, size):
    """Every family reads what it writes; Qwen2.5-VL within the pixel of its small picture."""
    dialect = PatchGroundingProcessor(make_processor(model_type)).box_dialect(Image.new("RGB", size))
    boxes = [[0.2, 0.25, 0.77, 0.875], [0.5, 0.0, 1.0, 0.5]]
    if model_type == "molmo2":
        assert dialect.read_point(dialect.write(boxes, "dog")) == pytest.approx([0.485, 0.5625], abs=1e-3)
        return
    error = 1 / min(dialect.bounds) if dialect.bounds != (1, 1) else 2e-3
    assert np.allclose(dialect.read_all(dialect.write(boxes, 'dog 2 "Rex"')), boxes, atol=error)
    assert dialect.read(dialect.write([[-1.0, 0.0, 1.0, 2.0]])) == pytest.approx([0, 0, 1, 1], abs=1e-3)


@pytest.mark.parametrize("name", BOX_DIALECTS)
def test_every_dialect_reads_what_it_writes(name):
    dialect = fit_dialect(BOX_DIALECTS[name], None)
    box = [0.2, 0.25, 0.77, 0.875]
    written = dialect.write([box], "the dog 2")
    error = {"kosmos2": 1 / 32}.get(name, 2e-3)
    assert dialect.prompt.count("{text}") == 1
    assert dialect.read_point(written) == pytest.approx([0.485, 0.5625], abs=error)
    # Molmo points, and a point is no box.
    assert dialect.read(written) == (None if "molmo" in name else pytest.approx(box, abs=error))


# An answer as each family's authors or users print it; where the box is, and how exactly the numbers say it.
ANSWERS = {
    "qwen_vl": "<ref>the dog</ref><box>(105,301),(232,480)</box>",
    "qwen2_vl": "<|object_ref_start|>the dog<|object_ref_end|><|box_start|>(105,301),(232,480)<|box_end|>",
    "qwen3_vl": '```json\n[\n\t{"bbox_2d": [105, 301, 232, 480], "label": "the dog"}\n]\n```',
    "internvl": "<ref>the dog</ref><box>[[105, 301, 232, 480]]</box>",
    "minicpm": "<ref>the dog</ref><box>105 301 232 480</box>",
    "paligemma": "<loc0308><loc0108><loc0492><loc0238> dog ; <loc0000><loc0000><loc0010><loc0010> cat",
    "gemma4": '```json\n[{"box_2d": [301, 105, 480, 232], "label": "dog"}]\n```',
    "llava": "[0.105, 0.301, 0.232, 0.48]",
    "shikra": "[0.105,0.301,0.232,0.480];[0.100,0.100,0.200,0.200]",
    "ferret": "The dog [105, 301, 232, 480] sits.",
    "glm4v": "<think>[[1,2,3,4]]</think><answer>It is at <|begin_of_box|>[[105,301,232,480]]<|end_of_box|></answer>",
    "kimi_vl": '{"bbox_2d": [0.105, 0.301, 0.232, 0.480]}',
    "deepseek_vl2": "<|ref|>the dog<|/ref|><|det|>[[105, 301, 232, 480]]<|/det|>",
    "deepseek_ocr": "<|ref|>the dog<|/ref|><|det|>[[105, 301, 232, 480]]<|/det|>",
    "granite_docling": "<doctag><text><loc_53><loc_151><loc_116><loc_240>the dog</text></doctag>",
    "paddleocr_vl": "the dog<|LOC_BEGIN|><|LOC_105|><|LOC_301|><|LOC_232|><|LOC_303|><|LOC_230|>"
    "<|LOC_480|><|LOC_107|><|LOC_478|><|LOC_END|>",
    "florence2": "the dog<loc_105><loc_301><loc_232><loc_480>",
    "kosmos2": "<phrase> the dog</phrase><object><patch_index_0291><patch_index_0487></object>",
    "ernie": '[{"bbox_2d": [105, 301, 232, 480], "label": "dog"}]',
    "lfm2_vl": '[{"image_id": 0, "bbox_2d": [105, 301, 232, 480], "label": "dog"}]',
    "rex_omni": "<|object_ref_start|>dog<|object_ref_end|><|box_start|><105><301><232><480>,<1><2><3><4><|box_end|>",
    "cogvlm": "[[105,301,232,480;012,020,030,040]]".replace(";", "],["),
    "internlm_xcomposer2": "[105, 301, 232, 480]",
    "ovis2_5": "<ref>the dog</ref><box>(0.105,0.301),(0.232,0.480)</box>",
}


@pytest.mark.parametrize("name", ANSWERS)
def test_a_perfect_answer_of_every_family_is_read(name):
    answer = ANSWERS[name]
    dialect = fit_dialect(BOX_DIALECTS[name], None)
    expected = pytest.approx(BOX, abs=1 / 32 if name == "kosmos2" else 2e-3)
    assert dialect.read(answer) == expected
    assert dialect.read_all(answer, own=True) == dialect.read_all(answer)
    assert dialect.read_all(dialect.write([BOX], "dog"), own=True) == [expected]
    third = "480" if name == "gemma4" else "232"
    if third in answer:  # cut within the numbers
        assert dialect.read(answer.split(third)[0] + third) is None


BARE = [
    "Buses 120, 150, 700, 850", "The lines are 1, 2, 3 and 4.", "120 150 700 850", "1. 120, 150, 700, 850",
    "x1: 1, y1: 2, x2: 3, y2: 4", "from 1, 2 to 3, 4", "(1, 2, 3, 4, 5)", "[1990, 1995, 2000]",
    "scores 3:1, 2:0, 4:4, 1:1", "<|box_start|>120, 150, 700, 850",
]  # fmt: skip


@pytest.mark.parametrize("text", BARE)
def test_numbers_alone_are_in_no_form_of_a_family(text):
    for dialect in BOX_DIALECTS.values():
        assert fit_dialect(dialect, None).read_all(text, own=True) == []


def test_the_form_is_that_of_the_family():
    bracket = "[105, 301, 232, 480]"
    key = '{"bbox_2d": [105, 301, 232, 480]}'
    qwen = BOX_DIALECTS["qwen3_vl"]
    assert qwen.read_all(bracket, own=True) == []
    assert qwen.read_all(f"{bracket} {key}", own=True) == qwen.read_all(key)
    assert BOX_DIALECTS["minicpm"].read_all(bracket, own=True) == []
    assert len(BOX_DIALECTS["plain"].read_all(f"The bus {bracket}.", own=True)) == 1


@pytest.mark.parametrize("name, flipped", {"plain": True, "qwen3_vl": True, "gemma4": True, "glm4v": False}.items())
def test_a_key_of_gemini_has_y_first(name, flipped):
    found = BOX_DIALECTS[name].read('{"box_2d": [301, 105, 480, 232]}')
    assert found == pytest.approx(BOX if flipped else [BOX[at] for at in (1, 0, 3, 2)])


def test_points_of_molmo2_are_numbered():
    dialect = BOX_DIALECTS[IMAGE_TOKEN_FAMILIES["molmo2"].boxes]
    written = dialect.write([[0.1, 0.2, 0.3, 0.4], [0.5, 0.6, 0.7, 0.8]], "dogs")
    assert written == '<points coords="1 1 200 300 2 600 700">dogs</points>'


@pytest.mark.parametrize(
    "name, answer, box",
    [
        ("florence2", "dog<loc_105><loc_301><loc_232><loc_480>", [0.1055, 0.3015, 0.2325, 0.4805]),
        ("kosmos2", "<patch_index_0044><patch_index_0863>", [0.390625, 0.046875, 0.984375, 0.828125]),
        ("kosmos2", "<patch_index_0044><patch_index_0046>", [0.375, 0.03125, 0.46875, 0.0625]),
    ],
)
def test_the_truth_of_florence_and_kosmos(name, answer, box):
    """Equal to `post_process_generation` of transformers: middles of bins, and of cells that are not in one row."""
    assert BOX_DIALECTS[name].read(answer) == pytest.approx(box)


SEVERAL = {
    "shikra": "Two dogs [0.105,0.301,0.232,0.480;0.500,0.600,0.700,0.800].",
    "cogvlm": "[[105,301,232,480;500,600,700,800]]",
    "qwen3_vl": '[{"x1": 105, "y1": 301, "x2": 232, "y2": 480}, {"x1": 500, "y1": 600, "x2": 700, "y2": 800}]',
    "internvl": "<ref>row [1, 2, 3, 4]</ref><box>[[105, 301, 232, 480], [500, 600, 700, 800]]</box>",
    "plain": '[{"bbox": [105, 301, 232, 480], "label": "(1, 2, 3, 4)"}, {"bbox": [500, 600, 700, 800], "label": "[5',
}


@pytest.mark.parametrize("name", SEVERAL)
def test_all_boxes_of_an_answer_and_no_number_of_its_labels(name):
    assert np.allclose(BOX_DIALECTS[name].read_all(SEVERAL[name]), [BOX, [0.5, 0.6, 0.7, 0.8]])


POINTS = {
    "qwen3_vl": '[{"point_2d": [105, 301], "label": "dog 2"}]',
    "minicpm": "<point>105 301</point>",
    "glm4v": "<think>[[1,2]]</think><|begin_of_box|>[105,301]<|end_of_box|>",
    "kimi_vl": "pyautogui.click(x=0.105, y=0.301)",
    "molmo": '<point x="10.5" y="30.1" alt="dog">dog</point>',
    "molmo2": '<points coords="1 1 105 301 2 470 600">dogs</points>',
    "ovis2_5": "<point>(0.105,0.301)</point>",
    "plain_1": "click(x=0.105, y=0.301)",
    "plain_100": '<points x1="10.5" y1="30.1" x2="23.2" y2="48.0" alt="dogs">dogs</points>',
}


# What agents and others write as well.
MORE_POINTS = {
    '[{"point": [301, 105], "label": "dog"}]': "gemma4",
    "click(x=105, y=301)": "gemma4",
    '<points x1=" 10.5" y1=" 30.1" x2="23.2" y2="48.0" alt="2 (3, 4)">dogs</points>': "molmo",
    '<tracks coords="0.0 1 105 301;0.5 1 470 600">dog</tracks>': "molmo2",
    "<|box_start|><105><301><|box_end|>": "plain_999",
    '{"label": "dog (1, 2)", "point_2d": [105, 301], "bbox_2d": [1, 2, 3, 4]}': "qwen3_vl",
    '{"point_2d": {"x": 105, "y": 301}}': "qwen3_vl",
    '{"name": "computer_use", "arguments": {"action": "left_click", "coordinate": [105, 301]}}': "qwen3_vl",
    "Action: drag(start_box='(105,301)', end_box='<|box_start|>(300,400)<|box_end|>')": "qwen2_vl",
    "105, 301": "plain",
}


@pytest.mark.parametrize("answer, name", MORE_POINTS.items())
def test_points_of_agents(answer, name):
    scale = 0.001 if name != "plain_999" else 1 / 999
    assert BOX_DIALECTS[name].read_point(answer) == pytest.approx([105 * scale, 301 * scale])
    assert BOX_DIALECTS[name].read(answer) == ([0.001, 0.002, 0.003, 0.004] if "bbox" in answer else None)


@pytest.mark.parametrize("name", POINTS)
def test_points_of_families(name):
    dialect = BOX_DIALECTS[name]
    assert dialect.read_point(POINTS[name]) == pytest.approx([0.105, 0.301], abs=1e-6)
    assert dialect.read(POINTS[name]) is None
    assert dialect.read_point("no point, and 2 dogs") is None


def test_pixels_are_those_of_the_resized_image():
    """The answer of Qwen2.5-VL is of the size that the model saw: 28 * 2 by 28 * 3 pixels of an odd picture."""
    dialect = fit_dialect(BOX_DIALECTS["qwen2_5_vl"], None)
    assert dialect.bounds == (1000, 1000)  # without a picture
    with pytest.raises(ValueError, match="need the image"):
        BOX_DIALECTS["qwen2_5_vl"].read("[1, 2, 3, 4]")
    processor = PatchGroundingProcessor(make_processor("qwen2_5_vl"))
    picture = Image.new("RGB", (61, 43))
    batch = processor(f"{processor.placeholder} dog", images=[picture])
    _, rows, columns = batch["image_grid_thw"][0].tolist()
    patch = processor.processor.image_processor.patch_size
    assert processor.box_dialect(picture).bounds == (columns * patch, rows * patch) != (61, 43)


def test_every_family_has_a_dialect():
    assert {family.boxes for family in IMAGE_TOKEN_FAMILIES.values()} <= set(BOX_DIALECTS)


WRITTEN = {
    "qwen3_vl": "[250, 500, 750, 1000]",
    "internvl": "[250, 500, 750, 1000]",
    "idefics3": "[250, 500, 750, 1000]",
    "qwen2_vl": "<|box_start|>(250,500),(750,1000)<|box_end|>",
    "llava": "[0.25, 0.5, 0.75, 1.0]",
    "llava_next": "[0.25, 0.5, 0.75, 1.0]",
    "paligemma": "<loc0512><loc0256><loc1023><loc0768>",
}


def write_box(name):
    processor = PatchGroundingProcessor(make_processor(name, byte_pairs=True))
    return processor.box_dialect(Image.new("RGB", (60, 40))).write_box([0.25, 0.5, 0.75, 1.0])


@pytest.mark.parametrize("name, written", WRITTEN.items())
def test_scales_of_families(name, written):
    assert write_box(name) == written


def test_the_scale_of_a_padded_picture():
    """The square has a margin of a sixth above and below the picture."""
    assert np.allclose(json.loads(write_box("llava_padded")), [0.25, 0.5, 0.75, 5 / 6], atol=1e-3)
