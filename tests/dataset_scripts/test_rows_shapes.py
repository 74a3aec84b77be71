# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""Each shape of rows, made from the documented columns: one box of a picture of 400 x 300, written in each way."""

import json
import random
import re

import numpy as np
import pytest
from PIL import Image

from grounded_attention import grounded_rows, read_phrase
from grounded_attention.dataset_scripts.files.errors import DataError
from grounded_attention.dataset_scripts.rows import raw
from grounded_attention.dataset_scripts.rows.readings import UnclearBoxes
from grounded_attention.dataset_scripts.rows.shapes import SHAPES
from tests.dataset_scripts.expected_rows import texts_of
from tests.dataset_scripts.probe_rows import PROBES
from tests.helpers.project_files import ROOT

SIZE = (400, 300)
BOX = [0.1, 0.2, 0.6, 0.9]
XYXY = [40, 60, 240, 270]
# The box as COCO's run lengths, by columns: MASK in a row.
RUNS = [40 * 300 + 60, *([210, 90] * 199), 210, 30 + 160 * 300]
MASK = json.dumps({"counts": RUNS, "size": [300, 400]})
# The convention that must be found -> a name, and rows as JSON.
CASES = {
    "xywh pixels": {
        "lmms-lab/RefCOCO": """[{"question_id": "1", "image": "p.png", "question": "Describe it.",
        "answer": ["the red kite"], "bbox": [40, 60, 200, 210], "segmentation": [40, 60, 240, 60, 240, 270, 40, 270],
        "iscrowd": 0, "file_name": "p.png"}]""",
        "Ref-L4": """[{"id": 1, "caption": "the red kite", "bbox": [40, 60, 200, 210], "bbox_area": 42000,
        "bbox_id": 5, "ori_category_id": "3", "image_id": 9, "height": 300, "width": 400, "file_name": "p.png",
        "is_rewrite": false, "split": "val"}]""",
        "refcoco-m": """[{"image": "p.png", "image_id": 3, "samples": [{"id": 1,
        "sentences": ["the red kite"], "bbox": [40, 60, 200, 210], "mask": MASK, "label": "kite"}]}]""",
        "text and box, by the counts": """[{"image": "p.png", "text": "the red kite",
        "bbox": [40, 60, 200, 210]}, {"image": "p.png", "text": "sun", "bbox": [300, 200, 80, 60]}]""",
        "by the area": """[{"image": "p.png", "text": "the red kite", "bbox": [40, 60, 200, 210],
        "area": 42000.0}]""",
        "Visual Genome": """[{"image": "p.png", "id": 4, "regions": [{"phrase": "the red kite", "x": 40,
        "y": 60, "width": 200, "height": 210}]}]""",
        "Visual Genome, objects": """[{"image": "p.png", "objects": [{"object_id": 3,
        "synsets": ["kite.n.01"], "names": ["the red kite"], "x": 40, "y": 60, "w": 200, "h": 210}]}]""",
        "list of objects": """[{"image": "p.png", "objects": [{"bbox": [40, 60, 200, 210],
        "category": "the red kite", "area": 42000}]}]""",
        "V*": """[{"image": "p.png", "target_object": ["the red kite"], "bbox": [[40, 60, 200, 210]],
        "question": "What colour is the red kite?", "options": ["red", "blue"]}]""",
        "ScreenSpot v2": """[{"img_filename": "p.png", "instruction": "the red kite",
        "bbox": [40, 60, 200, 210], "data_type": "icon", "data_source": "ios"}]""",
        "OSWorld-G": """[{"image_path": "p.png", "image_size": [400, 300], "instruction": "the red kite",
        "box_type": "bbox", "box_coordinates": [40, 60, 200, 210]}]""",
    },
    "xyxy pixels": {
        "jxu124/refcoco": r"""[{"sentences": [{"raw": "the red kite", "sent": "the red kite"}],
        "captions": ["the red kite"], "ref_id": 1, "bbox": [40, 60, 240, 270],
        "raw_anns": "{\"bbox\": [40, 60, 200, 210]}", "raw_image_info": "{\"width\": 400, \"height\": 300}",
        "image_path": "p.png"}]""",
        "jxu124/refcoco without captions": r"""[{"sentences": "[{\"sent\": \"the red kite\"}]",
        "ref_id": 1, "bbox": [40, 60, 240, 270], "image_path": "p.png",
        "raw_anns": "{\"bbox\": [40, 60, 200, 210]}"}]""",
        "Visual-CoT expressions": """[{"img_path": "p.png", "expression": "the red kite",
        "bbox": [40, 60, 240, 270], "dataset_name": "refcoco", "height": 300, "width": 400, "image_id": 3,
        "sent_id": 4, "split": "val"}]""",
        "by the mask": """[{"image": "p.png", "text": "the red kite", "bbox": [40, 60, 240, 270],
        "mask": MASK}]""",
        "by a polygon": """[{"image": "p.png", "text": "the red kite", "bbox": [40, 60, 240, 270],
        "segmentation": [[40, 60, 240, 60, 240, 270, 40, 270]]}]""",
        "a mask alone": '[{"image": "p.png", "text": "the red kite", "mask": MASK}]',
        "named sides": """[{"image": "p.png", "text": "the red kite", "bbox": {"xmin": 40, "ymin": 60,
        "xmax": 240, "ymax": 270}}]""",
        "four columns": """[{"image": "p.png", "text": "the red kite", "x1": 40, "y1": 60, "x2": 240,
        "y2": 270}]""",
        "ODVG": """[{"filename": "p.png", "width": 400, "height": 300,
        "grounding": {"caption": "the red kite flies", "regions": [{"phrase": "the red kite",
        "bbox": [40, 60, 240, 270]}]}}]""",
        "marks of Entities": """[{"image": "p.png", "caption": "[/EN#7/other the red kite] flies",
        "boxes": {"7": [[40, 60, 240, 270]]}}]""",
        "boxes with names": """[{"image": "p.png", "boxes": [{"label": "the red kite", "xmin": 40,
        "ymin": 60, "xmax": 240, "ymax": 270}]}, {"image": "p.png", "boxes": []}]""",
        "boxes with numbers of classes, and names": """[{"image": "p.png", "boxes": [{"class": 7,
        "xmin": 40, "ymin": 60, "xmax": 240, "ymax": 270}], "labels": ["the red kite"]}]""",
        "fashionpedia": """[{"image": "p.png", "objects": {"bbox_id": [1], "category": ["the red kite"],
        "bbox": [[40, 60, 240, 270]], "area": [42000]}}]""",
        "moondream/car_part_damage": """[{"image": "p.png", "annotations": [{"id": 1,
        "category": "the red kite", "bbox": [40, 60, 240, 270],
        "segmentation": [[40, 60, 240, 60, 240, 270, 40, 270]]}]}]""",
        "objects as a text": r"""[{"image": "p.png",
        "objects": "[{\"bbox\": [40, 60, 240, 270], \"label\": \"the red kite\", \"bbox_id\": 1}]"}]""",
        "TreeBench": """[{"image": "p.png", "question": "the red kite", "multi-choice options": "A",
        "answer": "A", "target_instances": "[[40, 60, 240, 270]]"}]""",
        "Visual-CoT": """[{"image": "p.png", "question": "the red kite", "answer": "x",
        "bboxs": [[40, 60, 240, 270]], "width": 400, "height": 300}, {"image": "p.png", "question": "sun",
        "answer": "x", "bboxs": [[290, 250, 390, 290]], "width": 400, "height": 300}]""",
        "ScreenSpot v2 of GUI-Actor": """[{"img_filename": "p.png", "bbox": [40, 60, 240, 270],
        "instruction": "the red kite", "img_size": [400, 300], "platform": "shop", "ui_type": "text",
        "group": "web"}]""",
        "ScreenSpot-Pro of TIGER-Lab": """[{"id": "c1", "img_filename": "p.png", "img_size": "[400, 300]",
        "bbox": "[40, 60, 240, 270]", "instruction": "the red kite", "instruction_cn": "x", "application": "cad",
        "ui_type": "icon", "group": "CAD"}]""",
        "OSWorld-G, polygon": """[{"image_path": "p.png", "image_size": [400, 300],
        "instruction": "the red kite", "box_type": "polygon",
        "box_coordinates": [40, 60, 240, 60, 240, 270, 40, 270]}]""",
        "Qwen2.5-VL": r"""[{"messages": [{"role": "user", "content": "Locate the red kite."},
        {"role": "assistant",
        "content": "```json\n[{\"bbox_2d\": [40, 60, 240, 270], \"label\": \"the red kite\"}]\n```"}],
        "images": ["p.png"]}, {"messages": [{"role": "user", "content": "Locate the sun."}, {"role": "assistant",
        "content": "[{\"bbox_2d\": [350, 20, 390, 60], \"label\": \"the sun\"}]"}], "images": ["p.png"]}]""",
    },
    "xywh 0..1": {
        "OpenRef": """[{"image": "p.png", "caption": "the red kite", "proposal": [0.1, 0.2, 0.5, 0.7],
        "original_size": [400, 300]}]""",
        "FiftyOne": """[{"filepath": "p.png", "ground_truth": {"detections": [{"label": "the red kite",
        "bounding_box": [0.1, 0.2, 0.5, 0.7]}]}}]""",
        "a text with boxes": """[{"image": "p.png", "text": "the red kite", "boxes": {"x": 0.1, "y": 0.2,
        "w": 0.5, "h": 0.7}}]""",
    },
    "xyxy 0..1": {
        "GRIT": """[{"caption": "the red kite flies", "noun_chunks": [[0.0, 12.0, 0.1, 0.2, 0.6, 0.9, 0.9]],
        "ref_exps": [], "image": "p.png"}]""",
        "own rows": """[{"image": "p.png", "caption": "the red kite flies",
        "phrases": [{"text": "the red kite", "boxes": [[0.1, 0.2, 0.6, 0.9]]}]}]""",
        "boxes and labels": """[{"image": "p.png", "boxes": [[0.1, 0.2, 0.6, 0.9], [0.6, 0.6, 0.7, 0.7]],
        "labels": ["the red kite", "sun"]}]""",
        "Visual-CoT, a part of the picture": r"""[{"image": ["p.png", "p.png###[40, 60, 240, 270]"],
        "conversations": [{"from": "human", "value": "<image>\nWhere is the red kite?"}, {"from": "gpt",
        "value": "[0.1,0.2,0.6,0.9]"}, {"from": "human", "value": "<image>"}, {"from": "gpt",
        "value": "There."}]}]""",
        "Saliency-R1": """[{"image": "p.png", "question": "the red kite", "answer": "x",
        "bbox": "[0.1, 0.2, 0.6, 0.9]"}]""",
        "ScreenSpot": """[{"image": "p.png", "instruction": "the red kite", "bbox": [0.1, 0.2, 0.6, 0.9],
        "data_type": "icon", "data_source": "ios"}]""",
        "OS-Atlas": """[{"img_filename": "p.png", "instruction": "the red kite",
        "bbox": [0.1, 0.2, 0.6, 0.9]}]""",
        "OS-Atlas, elements": """[{"img_filename": "p.png", "elements": [{"instruction": "the red kite",
        "bbox": [0.1, 0.2, 0.6, 0.9]}]}]""",
        "GUI-Actor": """[{"image": "p.png", "conversations": [{"from": "system", "value": "You act."},
        {"from": "human", "value": "<image>the red kite"}, {"from": "gpt", "value": "pyautogui.click(x=0.35, y=0.55)",
        "recipient": "os", "end_turn": true, "bbox_gt": [0.1, 0.2, 0.6, 0.9]}]}]""",
        "ms-swift, shares": """[{"messages": [{"role": "user", "content": "<image>Where is <ref-object>?"},
        {"role": "assistant", "content": "<bbox>"}], "images": ["p.png"], "objects": {"ref": ["the red kite"],
        "bbox": [[0.1, 0.2, 0.6, 0.9]], "bbox_type": "norm1"}}]""",
        "a box beside a conversation": """[{"messages": [{"role": "user",
        "content": "Where is the red kite?"}, {"role": "assistant", "content": "On the left."}], "images": ["p.png"],
        "bbox": [0.1, 0.2, 0.6, 0.9]}]""",
        "own phrases beside messages": """[{"messages": [{"role": "user", "content": "Where?"},
        {"role": "assistant", "content": "See the red kite."}], "images": ["p.png"],
        "phrases": [{"text": "the red kite", "sentence": 1, "boxes": [[0.1, 0.2, 0.6, 0.9]]}]}]""",
    },
    "cxcywh pixels": {
        "CreateML": """[{"image": "p.png", "annotations": [{"label": "the red kite",
        "coordinates": {"x": 140, "y": 165, "width": 200, "height": 210}}]}]""",
    },
    "points 0..999": {
        "UGround": r'[{"image": "p.png", "conversations": "[{\"from\": \"human\", '
        r'\"value\": \"<image>\\nthe red kite\"}, {\"from\": \"gpt\", \"value\": \"(350, 549)\"}]"}]',
    },
    "points 0..100": {
        "PixMo-Points": """[{"image": "p.png", "points": [{"x": 35.0, "y": 55.0}], "count": 1,
        "label": "the red kite", "collection_method": "pointing"}]""",
    },
    "xyxy 0..1 padded": {
        "LLaVA": r'[{"image": "p.png", "conversations": [{"from": "human", "value": "<image>\nPlease '
        r'provide the bounding box coordinate of the region this sentence describes: the red kite."}, '
        r'{"from": "gpt", "value": "[0.10, 0.275, 0.60, 0.80]"}]}]',
    },
    "xyxy 0..1000": {
        "Qwen3-VL": r"""[{"image": "p.png", "conversations": [{"from": "human",
        "value": "<image>\nLocate the red kite in this image and output the bbox coordinates in JSON format."},
        {"from": "gpt", "value": "[{\"bbox_2d\": [100, 200, 600, 900], \"label\": \"the red kite\"}]"}]}]""",
        "InternVL": r'[{"image": "p.png", "width": 400, "height": 300, "conversations": [{"from": '
        r'"human", "value": "<image>\nPlease '
        r'provide the bounding box coordinate of the region this sentence describes: '
        r'<ref>the red kite</ref>"}, {"from": "gpt", '
        r'"value": "<ref>the red kite</ref><box>[[100, 200, 600, 900]]</box>"}]}]',
        "marks in a caption": """[{"image": "p.png",
        "caption": "See <ref>the red kite</ref><box>(100,200),(600,900)</box> fly."}]""",
        "query and response": """[{"image": "p.png", "query": "Find the red kite",
        "response": "<box>(100,200),(600,900)</box>"}]""",
        "TRL": """[{"image": "p.png", "prompt": "Find the red kite",
        "completion": "<box>(100,200),(600,900)</box>"}]""",
        "VLM-R1": r"""[{"image": "p.png", "problem": "Give the box of \"the red kite\".",
        "solution": "<box>(100,200),(600,900)</box>"}]""",
        "alpaca": """[{"images": ["p.png"], "instruction": "<image>Find the red kite.", "input": "",
        "output": "<|box_start|>(100,200),(600,900)<|box_end|>"}]""",
        "pictures inside of messages": """[{"messages": [{"role": "user", "content": [{"type": "image",
        "image": "p.png"}, {"type": "text", "text": "Find the red kite."}]}, {"role": "assistant",
        "content": [{"type": "text", "text": "<box>(100,200),(600,900)</box>"}]}]}]""",
        "OpenAI's messages": r'[{"messages": "[{\"role\": \"user\", \"content\": [{'
        r'\"type\": \"image_url\", \"image_url\": {\"url\": \"p.png\"}}, {\"type\": \"text\", \"text\": '
        r'\"Find the red kite.\"}]}, {\"role\": \"assistant\", \"content\": \"<box>(100,200),(600,900)</box>\"}]"}]',
    },
    "yxyx 0..1024": {
        "PaliGemma": """[{"image": "p.png", "prefix": "detect the red kite",
        "suffix": "<loc0205><loc0102><loc0922><loc0614> the red kite"}]""",
    },
}  # fmt: skip
# Name -> the convention, what a user asks about the picture, and the answer.
ANSWERS = {
    "Molmo": ("points 0..100", "Point.", '<point x="35.0" y="55.0" alt="the red kite">the red kite</point>'),
    "Molmo 2": ("points 0..1000", "Point.", '<points coords="1 1 350 550">the red kite</points>'),
    "a click": ("points 0..1", "Click on the red kite.", "pyautogui.click(x=0.35, y=0.55)"),
    "Shikra": ("xyxy 0..1", "Where is the red kite?", "[0.100,0.200,0.600,0.900]"),
    "Qwen-VL": ("xyxy 0..1000", "Describe.", "<ref>the red kite</ref><box>(100,200),(600,900)</box>"),
    "Qwen2-VL, box alone": ("xyxy 0..1000", "Find the red kite.", "<|box_start|>(100,200),(600,900)<|box_end|>"),
    "Kimi-VL": ("xyxy 0..1", "Locate the red kite.", '{"bbox_2d": [0.1, 0.2, 0.6, 0.9], "label": "the red kite"}'),
    "Gemma 4": ("yxyx 0..1000", "Detect.", '[{"box_2d": [200, 100, 900, 600], "label": "the red kite"}]'),
    "GLM": ("xyxy 0..1000", "Please pinpoint the bounding box as per the given description. the red kite",
        "<|begin_of_box|>[[100, 200, 600, 900]]<|end_of_box|>"),
    "InternVL, old": ("xyxy 0..1", "x", "<ref>the red kite</ref><box>[[0.1, 0.2, 0.6, 0.9]]</box>"),
    "MiniCPM-V": ("xyxy 0..1000", "Describe.", "<ref>the red kite</ref><box>100 200 600 900</box>"),
    "Ovis": ("xyxy 0..1", "Describe.", "<ref>the red kite</ref><box>(0.1,0.2),(0.6,0.9)</box>"),
    "DeepSeek-VL2": ("xyxy 0..999", "<|ref|>the red kite<|/ref|>",
        "<|ref|>the red kite<|/ref|><|det|>[[100, 200, 599, 899]]<|/det|>"),
    "Rex-Omni": ("xyxy 0..999", "Detect.",
        "<|object_ref_start|>the red kite<|object_ref_end|><|box_start|><100><200><599><899><|box_end|>"),
    "marked words without a box before it": ("xyxy 0..1000", "Describe.",
        "<ref>A man</ref> holds <ref>the red kite</ref><box>(100,200),(600,900)</box>."),
    "JSON with braces and texts of numbers": ("xyxy 0..1000", "Locate.",
        '{"objects": [{"bbox_2d": ["100", "200", "600", "900"], "about": {"a": "{red}"}, "label": "the red kite"}]}'),
    "Florence-2": ("xyxy 0..1000", "<OD>", "the red kite<loc_100><loc_200><loc_600><loc_900>"),
    "Kosmos-2": ("xyxy 0..1", "<grounding>",
        "<phrase> the red kite</phrase><object><patch_index_0195><patch_index_0915></object>"),
    "CogVLM": ("xyxy 0..1000", "Where is the red kite?", "[[100,200,600,900;012,020,030,040]]"),
}  # fmt: skip
NEEDS_CONVENTION = "Qwen2.5-VL"  # its pixels may be thousandths
# Files that have no box at all.
WITHOUT_BOXES = [
    '[{"image": "p.png", "caption": "a red kite"}]',
    '[{"question_id": 1, "image": "p.png", "text": "Is there a kite in the image?", "label": "yes"}]',
    '{"image": "p.png", "annotations": null}',
]


def messages(question, answer, **more):
    turns = [{"role": "user", "content": question}, {"role": "assistant", "content": answer}]
    return {"messages": turns, "images": ["p.png"], **more}


ROWS = {}
CONVENTIONS = {}
for convention, texts in CASES.items():
    for name, text in texts.items():
        ROWS[name] = json.loads(text.replace("MASK", MASK))
        CONVENTIONS[name] = convention
for name, (convention, question, answer) in ANSWERS.items():
    ROWS[name] = [messages(question, answer)]
    CONVENTIONS[name] = convention


def picture():
    return Image.linear_gradient("L").resize(SIZE).convert("RGB")


@pytest.fixture
def folder(tmp_path):
    picture().save(tmp_path / "p.png")
    return tmp_path


def write(folder, rows):
    path = folder / "rows.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def read_case(name, folder, *more_rows):
    """The rows of a case and more, in the case's convention where it has to be given."""
    boxes = CONVENTIONS[name] if name == NEEDS_CONVENTION else None
    return grounded_rows(write(folder, [*ROWS[name], *more_rows]), boxes=boxes)


def phrases_of(rows):
    found = {}
    for row in rows:
        for phrase in row["phrases"]:
            read_phrase(phrase, texts_of(row), "phrase", grounded=True)
            found[phrase["text"].rstrip(".")] = phrase["boxes"]
    return found


def assert_pixels(rows, expected):
    """The only phrase has these boxes, in pixels."""
    [boxes] = phrases_of(rows).values()
    np.testing.assert_allclose(np.array(boxes) * [*SIZE, *SIZE], expected)


@pytest.mark.parametrize("case", ROWS)
def test_a_shape(case, folder):
    rows = read_case(case, folder)
    convention = CONVENTIONS[case]
    assert rows.report.convention == convention, rows.report
    boxes = phrases_of(rows)["the red kite"]
    assert len(boxes) == (2 if case == "CogVLM" else 1)
    expected = [0.35, 0.55, 0.35, 0.55] if "points" in convention else BOX
    tolerance = 0.03 if case == "Kosmos-2" else 0.002
    assert boxes[0] == pytest.approx(expected, abs=tolerance)
    assert rows.report.complete
    assert rows.report.boxes >= 1


def wrong_convention(convention):
    if "points" in convention:
        return "points 0..1000" if convention == "points 0..1" else "points 0..1"
    if "padded" in convention:
        return "xyxy 0..1000"
    order, scale = convention.split()
    if scale == "pixels":
        return f"{order} 0..1"
    return f"{order} pixels" if scale == "0..1" else "xyxy 0..1"


@pytest.mark.parametrize("case", ROWS)
def test_a_wrong_convention_is_caught(case, folder):
    source = write(folder, ROWS[case])
    wrong = wrong_convention(CONVENTIONS[case])
    with pytest.raises(UnclearBoxes) as error:
        grounded_rows(source, boxes=wrong)
    assert wrong in str(error.value)
    assert str(source) in str(error.value)


def test_pixels_that_may_be_thousandths_are_asked_about(folder):
    with pytest.raises(UnclearBoxes, match="boxes="):
        grounded_rows(write(folder, ROWS[NEEDS_CONVENTION]))


@pytest.mark.parametrize(
    "answer, box",
    [
        # Centres of the cells; the edges of one row.
        ("<phrase> kite</phrase><object><patch_index_0044><patch_index_0863></object>", [12.5, 1.5, 31.5, 26.5]),
        ("<phrase> kite</phrase><object><patch_index_0033><patch_index_0035></object>", [1, 1, 4, 2]),
    ],
)
def test_cells_of_kosmos_are_read_to_the_last_digit(answer, box, folder):
    boxes = phrases_of(grounded_rows(write(folder, [messages("Describe.", answer)])))["kite"]
    np.testing.assert_allclose(boxes, [np.divide(box, 32)], atol=1e-9)


def test_steps_of_florence_are_read_in_their_middle(folder):
    source = write(folder, [messages("Describe.", "kite<loc_100><loc_200><loc_600><loc_900>")])
    np.testing.assert_allclose(phrases_of(grounded_rows(source))["kite"], [[0.1005, 0.2005, 0.6005, 0.9005]])


# A question, an answer, and the words of the box, or point, at 0.1, 0.2.
READ = {
    "after the thoughts": ("Describe.",
        "<think>a sun <box>(1,2),(3,4)</box></think><ref>kite</ref><box>(100,200),(600,900)</box>", "kite"),
    "marked words before bare numbers": ("Describe.", "<ref>a kite</ref>(0.1,0.2),(0.6,0.9) flies", "a kite"),
    "tuples": ("Find free space. List tuples.", "[(0.1, 0.2), (0.3, 0.4), (0.5, 0.5)]", "free space"),
    "an action": ("open the menu", "Thought: look.\nAction: click(start_box='<|box_start|>(100,200)<|box_end|>')",
        "open the menu"),
    "a call of a tool": ("open the menu", '<tool_call>{"name": "computer_use", "arguments": {"action": "left_click", '
        '"coordinate": [0.1, 0.2]}}</tool_call>', "open the menu"),
    "an escaped label": ("Find it.", r'[{"bbox_2d": [0.1, 0.2, 0.6, 0.9], "label": "\u72d7"}]', r"\u72d7"),
    "points of an action in Python": ("open the menu", "{'action': 'CLICK', 'position': [0.1, 0.2]}", "open the menu"),
    "thoughts before an action": ("open the menu", "I click.\nThought: up.\npyautogui.click(x=0.1, y=0.2)",
        "open the menu"),
    "a tag before words": ("<REFERRING_EXPRESSION_SEGMENTATION>a kite", "<loc_100><loc_200><loc_600><loc_900>",
        "a kite"),
    "boxes of the question that the answer names": ("Name it: <box>(100,200),(600,900)</box>",
        "<ref>a kite</ref><box>(100,200),(600,900)</box>", "a kite"),
}  # fmt: skip


@pytest.mark.parametrize("case", READ)
def test_words_of_a_box_are_what_the_form_says(case, folder):
    question, answer, words = READ[case]
    phrases = phrases_of(grounded_rows(write(folder, [messages(question, answer)])))
    assert list(phrases) == [words]
    corner = [0.1005, 0.2005] if "<loc_" in answer else [0.1, 0.2]  # of Florence's steps the middle
    assert phrases[words][0][:2] == pytest.approx(corner)


# A question, an answer, and words of the refusal.
REFUSED = {
    "prose before a bare box": ("Describe it.", "There is a kite[0.100,0.200,0.600,0.900] in the air.",
        "without words: found '[0.100"),
    "other words before a box": ("?", "<ref>A man</ref> holds <box>(100,200),(600,900)</box>",
        "without words: found '<box>"),
    "tuples for an unknown question": ("Plan.", "[(0.1, 0.2), (0.3, 0.4), (0.5, 0.5)]", "without words: found '[(0.1"),
    "a point of it": ("Point to it. Answer with x, y.", "(0.1, 0.2)", "without words: found '(0.1"),
    "another sentence behind what is asked": ("Find the kite. Then the sun.", "[0.1,0.2,0.6,0.9]", "without words"),
    "two tuples": ("Where is it free?", "[(0.1, 0.2), (0.3, 0.4)]", "two pairs"),
    "JSON that is cut": ("Find it.", '[{"bbox_2d": [0.1, 0.2, 0.6, 0.9], "label": "a', "whole JSON"),
    "a turned box": ("Find it.", '{"bbox_2d": [0.1, 0.2, 0.6, 0.9], "angle": 30, "label": "a kite"}', "angle"),
    "three corners": ("Find it.", "<box>(100,200),(600,900),(1,2)</box>", "x1, y1, x2, y2"),
    "a mark that is not closed": ("Find it.", "<ref>a kite</ref><box>(100,200),(600", "whole marks"),
    "Gemini's point, y first": ("Point.", '[{"point": [200, 100], "label": "a kite"}]', "x or y first"),
    "a label that is no text": ("Find all kites.", '[{"bbox_2d": [0.1, 0.2, 0.6, 0.9], "label": ["a kite"]}]',
        "label is no text"),
    "a click in marks of nobody": ("open the menu", "<click>100, 200</click>", "whole marks"),
}  # fmt: skip


@pytest.mark.parametrize("case", REFUSED)
def test_boxes_without_clear_words_are_refused(case, folder):
    question, answer, problem = REFUSED[case]
    with pytest.raises(DataError, match=re.escape(problem)):
        grounded_rows(write(folder, [messages(question, answer)]))


# Questions, and answers whose numbers may be anything: the row is kept without a phrase, and the report says it.
WITHOUT_BOX = {
    "Read the chart.": "The values are [1, 2, 3, 4] in 2020.",
    "Sort these numbers.": "[11, 12, 13, 14]",
    "open the menu": "Action: type(content='[1, 2, 3, 4]')",
    "Find the kite.": "[10%, 20%, 60%, 90%]",
    "open the file": '{"action": "click", "x": 100, "y": 200}',
}


@pytest.mark.parametrize("question, answer", WITHOUT_BOX.items())
def test_numbers_that_are_no_boxes_are_counted(question, answer, folder):
    rows = grounded_rows(write(folder, [messages(question, answer)]))
    assert sum(rows.report.dropped.values()) == rows.report.bare == 1


@pytest.mark.parametrize("label", [False, "false", 0])
def test_boxes_of_answers_that_are_marked_wrong_are_counted(label, folder):
    rows = grounded_rows(write(folder, [messages("Find it.", "<box>(100,200),(600,900)</box>", label=label)]))
    assert sum(rows.report.dropped.values()) == rows.report.bare == 1


def test_several_texts_mean_one_box_or_one_each(folder):
    row = {"image": "p.png", "caption": ["the kite", "a sun"], "bbox": [XYXY, [1, 1, 9, 9]]}
    found = phrases_of(grounded_rows(write(folder, [row]), boxes="xyxy pixels"))
    assert found["the kite"] == [BOX]
    assert found.keys() == {"the kite", "a sun"}
    row["caption"].append("it")
    with pytest.raises(DataError, match="line 1"):
        grounded_rows(write(folder, [row]), boxes="xyxy pixels")


def test_a_rejected_answer_is_not_gold(folder):
    objects = {"ref": ["a kite"], "bbox": [XYXY, [1, 1, 9, 9]], "bbox_type": "real"}
    row = messages("<image>Find <ref-object>", "<bbox>", objects=objects)
    assert phrases_of(grounded_rows(write(folder, [{**row, "rejected_response": "<bbox>"}]))) == {"a kite": [BOX]}
    with pytest.raises(DataError, match="without a place"):
        grounded_rows(write(folder, [row]))


def test_an_older_form_of_objects_is_filled(folder):
    objects = '[{"caption": "a kite", "bbox": [40, 60, 240, 270], "bbox_type": "real", "image": 0}]'
    row = {"query": "Find <ref-object>", "response": "<bbox>", "images": ["p.png"], "objects": objects}
    assert phrases_of(grounded_rows(write(folder, [row]))) == {"a kite": [BOX]}


PAGE = """{"image": "p.png", "words": ["Total:", "12", "EUR"], "answers": ["12 EUR"],
    "bboxes": [[10, 10, 20, 20], [30, 10, 40, 20], [50, 10, 60, 20]]}"""


@pytest.mark.parametrize("column", ["question", "query"])
def test_a_page_of_words_gives_the_boxes_of_the_answer(column, folder):
    rows = grounded_rows(write(folder, [{**json.loads(PAGE), column: "Total?"}]), boxes="xyxy pixels")
    assert_pixels(rows, [[30, 10, 40, 20], [50, 10, 60, 20]])


@pytest.mark.parametrize(
    "change, problem",
    [
        ('{"labels": ["O", "B", "I"]}', "labels"),  # tags of words are no names
        ('{"query": "Total?", "words": ["12", "12", "EUR"], "answers": ["12"]}', "once"),
    ],
)
def test_words_of_a_page_that_are_not_the_answer_are_refused(change, problem, folder):
    with pytest.raises(DataError, match=problem):
        grounded_rows(write(folder, [json.loads(PAGE) | json.loads(change)]), boxes="xyxy pixels")


def test_a_few_wrong_boxes_among_many_do_not_hide_the_convention_but_many_do(folder):
    # Read as corners the box is inverted.
    rows = [{"image": "p.png", "text": f"kite {n}", "bbox": [300, 200, 80, 60]} for n in range(200)]
    rows[7]["bbox"] = [390, 200, 80, 60]
    assert grounded_rows(write(folder, rows)).report.convention == "xywh pixels"
    for row in rows[:20]:
        row["bbox"] = [390, 200, 80, 60]
    with pytest.raises(UnclearBoxes):
        grounded_rows(write(folder, rows))


def test_a_column_of_very_many_boxes_is_refused(folder, monkeypatch):
    monkeypatch.setattr(raw, "MOST_BOXES", 4)
    row = {"image": "p.png", "text": "a kite", "boxes": [XYXY] * 4}
    assert len(phrases_of(grounded_rows(write(folder, [row])))["a kite"]) == 4
    row["boxes"].append(XYXY)
    with pytest.raises(DataError, match="at most 4 boxes"):
        grounded_rows(write(folder, [row]))


def test_every_shape_of_the_table_in_docs_is_tried(folder):
    page = (ROOT / "docs" / "data.md").read_text(encoding="utf-8")
    (table,) = re.findall(r"\n\| shape \|.*?\n\n", page, re.DOTALL)
    _, *cells = re.findall(r"^\| ([^|]+?) \|", table, re.MULTILINE)
    documented = "; ".join(cells).split("; ")
    assert sorted(documented) == sorted(shape.name for shape in SHAPES)
    picture().save(folder / "q.png")
    tried = {read_case(name, folder).report.shape for name in ROWS}
    for text in [*WITHOUT_BOXES, *(text for text, _ in PROBES.values())]:
        (folder / "probe.json").write_text(text)
        tried.add(grounded_rows(folder / "probe.json").report.shape)
    assert tried == set(documented)


# A picture without a thing as people write it, and a row with one.
EMPTY = {
    '{"annotations": null}': '{"annotations": [{"bbox": [40, 60, 240, 270], "label": "a kite"}]}',
    '{"annotations": {}}': '{"annotations": [{"bbox": [40, 60, 240, 270], "label": "a kite"}]}',
    '{"objects": []}': '{"objects": [{"bbox": [40, 60, 240, 270], "label": "a kite"}]}',
    '{"objects": {"bbox": [], "label": []}}': '{"objects": [{"bbox": [40, 60, 240, 270], "label": "a kite"}]}',
    '{"boxes": null, "labels": null}': '{"boxes": [[40, 60, 240, 270]], "labels": ["a kite"]}',
    '{"bbox": null, "label": null}': '{"bbox": [40, 60, 240, 270], "label": "a kite"}',
    '{"x1": null, "y1": null, "x2": null, "y2": null, "label": null}':
        '{"x1": 40, "y1": 60, "x2": 240, "y2": 270, "label": "a kite"}',
    '{"regions": []}': '{"regions": [{"phrase": "a kite", "bbox": [40, 60, 240, 270]}]}',
}  # fmt: skip


@pytest.mark.parametrize("without, with_thing", EMPTY.items())
@pytest.mark.parametrize("first", [False, True])
def test_a_picture_without_a_thing(without, with_thing, first, folder):
    empty = {"image": "p.png", **json.loads(without)}
    full = {"image": "p.png", **json.loads(with_thing)}
    rows = grounded_rows(write(folder, [empty, empty, full] if first else [full, empty, empty]), boxes="xyxy pixels")
    assert sorted(len(row["phrases"]) for row in rows) == [0, 0, 1]
    assert not rows.report.dropped
    assert list(phrases_of(rows)) == ["a kite"]


OUTLINES = {
    "four corners": '{"text": "a sign", "bbox": [[100, 60], [200, 70], [210, 150], [90, 140]]}',
    "eight numbers": '{"text": "a sign", "bbox": [100, 60, 200, 70, 210, 150, 90, 140]}',
    "five corners": '{"text": "a sign", "bbox": [[100, 60], [200, 70], [210, 150], [90, 140], [95, 90]]}',
    "corners of each": '{"text": "a sign", "bboxes": [[[100, 60], [200, 70], [210, 150], [90, 140]]]}',
    "quad": '{"text": "a sign", "quad": [[100, 60], [200, 70], [210, 150], [90, 140]]}',
    "named corners": """{"text": "a sign", "bbox": {"x1": 100, "y1": 60, "x2": 200, "y2": 70, "x3": 210, "y3": 150,
        "x4": 90, "y4": 140}}""",
    "polygon": '{"text": "a sign", "polygon": [100, 60, 200, 70, 210, 150, 90, 140]}',
    "an object": '{"objects": [{"label": "a sign", "bbox": [[100, 60], [200, 70], [210, 150], [90, 140]]}]}',
    "lists": '{"objects": {"bbox": [[[100, 60], [200, 70], [210, 150], [90, 140]]], "label": ["a sign"]}}',
}  # fmt: skip


@pytest.mark.parametrize("case", OUTLINES)
def test_corners_are_the_box_around_them(case, folder):
    row = {"image": "p.png", **json.loads(OUTLINES[case])}
    assert_pixels(grounded_rows(write(folder, [row])), [[90, 60, 210, 150]])


def test_the_order_of_four_numbers_says_nothing_of_corners(folder):
    row = {"image": "p.png", **json.loads(OUTLINES["four corners"])}
    rows = grounded_rows(write(folder, [row]), boxes="xywh pixels")
    assert_pixels(rows, [[90, 60, 210, 150]])


OBJECTS = '{"image": "p.png", "objects": [{"bbox": [40, 60, 240, 270], "label": "a kite", "KEY": 30}]}'
COLUMNS = '{"image": "p.png", "text": "a kite", "bbox": [40, 60, 240, 270], "KEY": 30}'


@pytest.mark.parametrize("key", ["angle", "rotation"])
@pytest.mark.parametrize("row", [OBJECTS, COLUMNS], ids=["object", "row"])
def test_what_turns_a_box_is_refused(key, row, folder):
    with pytest.raises(DataError, match=key):
        grounded_rows(write(folder, [json.loads(row.replace("KEY", key))]), boxes="xyxy pixels")


@pytest.mark.parametrize("key", ["track_id", "rejected"])
@pytest.mark.parametrize("row", [OBJECTS, COLUMNS], ids=["object", "row"])
def test_what_says_more_of_a_box_is_counted(key, row, folder):
    rows = grounded_rows(write(folder, [json.loads(row.replace("KEY", key))]), boxes="xyxy pixels")
    assert len(list(rows)) == 1
    assert any(reason.startswith(key) for reason in rows.report.dropped)


@pytest.mark.parametrize("side", [1, 2])
def test_a_box_in_a_picture_of_few_pixels(side, folder):
    Image.new("RGB", (side, side)).save(folder / "few.png")
    path = write(folder, [{"image": "few.png", "text": "a kite", "bbox": [0, 0, 1, 1]}])
    assert phrases_of(grounded_rows(path, boxes="xyxy pixels"))["a kite"] == [[0, 0, 1 / side, 1 / side]]
    with pytest.raises(UnclearBoxes):
        grounded_rows(path)


# Rows that say where something is, in a way that is not read, and the column that is named.
UNREAD = {
    '{"text": "a dog", "mask": "m.png"}': "mask",
    '{"text": "a dog", "masks": ["m.png", "n.png"]}': "masks",
    '{"text": "a dog", "gt": "m.png"}': "gt",
    '{"text": "a dog", "traces": [[{"x": 0.1, "y": 0.2, "t": 1.0}]]}': "traces",
    '{"text": "a dog", "rbox": [100, 60, 40, 30, 12.5]}': "rbox",
    '{"objects": [{"label": "a dog", "keypoints": [100, 60, 2]}]}': "objects.keypoints",
    '{"objects": [{"label": "a dog", "where": "<loc0320><loc0064><loc0960><loc0384>"}]}': "objects.where",
}


@pytest.mark.parametrize("text, name", UNREAD.items())
def test_places_that_are_not_read_are_named(text, name, folder):
    row = {"image": "p.png", **json.loads(text)}
    with pytest.raises(DataError, match=re.escape(name)):
        grounded_rows(write(folder, [row]))
    readable = json.loads(OBJECTS if "objects" in row else COLUMNS)
    rows = grounded_rows(write(folder, [readable, row]), boxes="xyxy pixels")
    assert len(list(rows)) == 2
    assert any(reason.startswith(f"{name}: ") for reason in rows.report.dropped)


# Damages

REMOVED = object()
DAMAGES = {
    str: lambda value: [None, "", 7, [], {}, value[: max(1, len(value) // 2)]],
    list: lambda value: [None, [], "abc", value[:-1], [*value, *value[:1]], [value], {"a": 1}],
    dict: lambda value: [None, {}, "abc", []],
}


def damages(value, place=()):
    """For every value of a row, however deep, its place and what may stand there instead."""
    if place:
        instead = DAMAGES.get(type(value), lambda value: [None, "abc", float("nan"), 1e9, -5000, [1]])
        yield from [(place, other) for other in (REMOVED, *instead(value))]
    keys = value if isinstance(value, dict) else range(len(value) if isinstance(value, list) else 0)
    for key in keys:
        yield from damages(value[key], (*place, key))


def damage_at_random(row, count):
    """Copies of the row, each with one value damaged, and what was done."""
    possible = list(damages(row))
    for place, value in random.Random(0).sample(possible, min(count, len(possible))):
        copy = json.loads(json.dumps(row))
        inner = copy
        for key in place[:-1]:
            inner = inner[key]
        if value is REMOVED:
            del inner[place[-1]]
        else:
            inner[place[-1]] = value
        yield copy, (place, value)


def boxes_of(rows):
    return [box for row in rows for phrase in row["phrases"] for box in phrase["boxes"]]


@pytest.mark.parametrize("case", ROWS)
def test_nothing_is_lost_in_silence(case, folder, caplog):
    """A damaged row is an error with its place, has a box all the same, or is counted by the report."""
    whole = read_case(case, folder)
    count = len(boxes_of(whole))
    for row, damage in damage_at_random(ROWS[case][0], 15):
        caplog.clear()
        try:
            rows = read_case(case, folder, row)
            has_box = len(boxes_of(rows)) > count
        except DataError as error:
            assert "rows.json" in str(error), damage
        else:
            is_counted = rows.report.dropped or rows.report.bare > whole.report.bare
            assert has_box or is_counted or caplog.records, damage


# Files of tools; the box of each is BOX in a picture of SIZE.
TOOLS = {
    "COCO": """{"images": [{"id": 1, "file_name": "p.png", "width": 400, "height": 300}], "annotations": [{"id": 1,
        "image_id": 1, "category_id": 1, "bbox": [40, 60, 200, 210], "iscrowd": 0}], "categories": [{"id": 1,
        "name": "a kite"}]}""",
    "Label Studio": """[{"id": 1, "data": {"image": "p.png"}, "annotations": [{"was_cancelled": false,
        "result": [{"id": "a", "to_name": "image", "original_width": 400, "original_height": 300, "value": {"x": 10,
        "y": 20, "width": 50, "height": 70, "rotation": 0, "rectanglelabels": ["a kite"]}}]}]}]""",
    "LabelMe": """{"imagePath": "p.png", "imageWidth": 400, "imageHeight": 300, "shapes": [{"label": "a kite",
        "points": [[40, 60], [240, 270]], "shape_type": "rectangle"}]}""",
    "CreateML": """[{"image": "p.png", "annotations": [{"label": "a kite", "coordinates": {"x": 140, "y": 165,
        "width": 200, "height": 210}}]}]""",
    "ODVG": """{"filename": "p.png", "width": 400, "height": 300, "grounding": {"caption": "a kite",
        "regions": [{"bbox": [40, 60, 240, 270], "phrase": "a kite"}]}}""",
}  # fmt: skip


@pytest.mark.parametrize("tool", TOOLS)
def test_a_damaged_file_of_a_tool_is_read_or_refused(tool, folder):
    """No value of another type ends in an error of Python's insides, or in a box outside of the picture."""
    path = folder / "tool.json"
    path.write_text(TOOLS[tool])
    np.testing.assert_allclose(boxes_of(grounded_rows(path)), [BOX])
    for content, damage in damage_at_random(json.loads(TOOLS[tool]), 30):
        path.write_text(json.dumps(content))
        try:
            boxes = np.array(boxes_of(grounded_rows(path)))
        except DataError as error:
            assert str(folder) in str(error), damage
        else:
            assert np.all((boxes >= 0) & (boxes <= 1)), damage
