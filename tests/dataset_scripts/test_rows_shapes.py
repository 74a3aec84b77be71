# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""Each shape of rows, made from the documented columns: one box of a picture of 400 x 300, written in each way."""

import json
import random
import re
from itertools import chain

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

# Shapes that have no boxes at all.
WITHOUT_BOXES = [{"image": "p.png", "caption": "a red kite"}]
VERDICT = [{"question_id": 1, "image": "p.png", "text": "Is there a kite in the image?", "label": "yes"}]
SIZE = (400, 300)
BOX = [0.1, 0.2, 0.6, 0.9]
XYXY = [40, 60, 240, 270]
XYWH = [40, 60, 200, 210]
# Read as corners it is inverted, and so it cannot be taken for x, y, width, height.
INVERTED = [300, 200, 80, 60]
WORDS = "the red kite"


def talk(question, answer, **more):
    turns = [{"from": "human", "value": f"<image>\n{question}"}, {"from": "gpt", "value": answer}]
    return {"image": "p.png", "conversations": turns, **more}


def messages(question, answer, **more):
    turns = [{"role": "user", "content": question}, {"role": "assistant", "content": answer}]
    return {"messages": turns, "images": ["p.png"], **more}


ASKED = f"Please provide the bounding box coordinate of the region this sentence describes: {WORDS}."
MASK = {"counts": [40 * 300 + 60, *([210, 90] * 199), 210, 30 + 160 * 300], "size": [300, 400]}
POLYGON = [[40, 60, 240, 60, 240, 270, 40, 270]]
IN_PIXELS = "xyxy pixels"
IN_SHARES = "xyxy 0..1"
# Name -> a row, or several, and the convention that must be found.
CASES = {
    "lmms-lab/RefCOCO": (
        {"question_id": "1", "image": "p.png", "question": "Describe it.", "answer": [WORDS], "bbox": XYWH,
         "segmentation": POLYGON[0], "iscrowd": 0, "file_name": "p.png"},
        "xywh pixels",
    ),
    "jxu124/refcoco": (
        {"sentences": [{"raw": WORDS, "sent": WORDS}], "captions": [WORDS], "ref_id": 1, "bbox": XYXY,
         "raw_anns": json.dumps({"bbox": XYWH}), "raw_image_info": json.dumps({"width": 400, "height": 300}),
         "image_path": "p.png"},
        IN_PIXELS,
    ),
    "jxu124/refcoco without captions": (
        {"sentences": json.dumps([{"sent": WORDS}]), "ref_id": 1, "bbox": XYXY, "image_path": "p.png",
         "raw_anns": json.dumps({"bbox": XYWH})},
        IN_PIXELS,
    ),
    "Ref-L4": (
        {"id": 1, "caption": WORDS, "bbox": XYWH, "bbox_area": 42000, "bbox_id": 5, "ori_category_id": "3",
         "image_id": 9, "height": 300, "width": 400, "file_name": "p.png", "is_rewrite": False, "split": "val"},
        "xywh pixels",
    ),
    "refcoco-m": (
        {"image": "p.png", "image_id": 3,
         "samples": [{"id": 1, "sentences": [WORDS], "bbox": XYWH, "mask": MASK, "label": "kite"}]},
        "xywh pixels",
    ),
    "OpenRef": ({"image": "p.png", "caption": WORDS, "proposal": [0.1, 0.2, 0.5, 0.7], "original_size": [400, 300]},
                "xywh 0..1"),
    "Visual-CoT expressions": (
        {"img_path": "p.png", "expression": WORDS, "bbox": XYXY, "dataset_name": "refcoco", "height": 300,
         "width": 400, "image_id": 3, "sent_id": 4, "split": "val"},
        IN_PIXELS,
    ),
    "text and box, by the counts": (
        [{"image": "p.png", "text": WORDS, "bbox": XYWH}, {"image": "p.png", "text": "sun", "bbox": INVERTED}],
        "xywh pixels",
    ),
    "by the area": ({"image": "p.png", "text": WORDS, "bbox": XYWH, "area": 42000.0}, "xywh pixels"),
    "by the mask": ({"image": "p.png", "text": WORDS, "bbox": XYXY, "mask": MASK}, IN_PIXELS),
    "by a polygon": ({"image": "p.png", "text": WORDS, "bbox": XYXY, "segmentation": POLYGON}, IN_PIXELS),
    "a mask alone": ({"image": "p.png", "text": WORDS, "mask": MASK}, IN_PIXELS),
    "named sides": ({"image": "p.png", "text": WORDS, "bbox": {"xmin": 40, "ymin": 60, "xmax": 240, "ymax": 270}},
                    IN_PIXELS),
    "four columns": ({"image": "p.png", "text": WORDS, "x1": 40, "y1": 60, "x2": 240, "y2": 270}, IN_PIXELS),
    "Visual Genome": (
        {"image": "p.png", "id": 4, "regions": [{"phrase": WORDS, "x": 40, "y": 60, "width": 200, "height": 210}]},
        "xywh pixels",
    ),
    "Visual Genome, objects": (
        {"image": "p.png", "objects": [{"object_id": 3, "synsets": ["kite.n.01"], "names": [WORDS], "x": 40, "y": 60,
                                        "w": 200, "h": 210}]},
        "xywh pixels",
    ),
    "GRIT": ({"caption": f"{WORDS} flies", "noun_chunks": [[0.0, 12.0, *BOX, 0.9]], "ref_exps": [], "image": "p.png"},
             IN_SHARES),
    "ODVG": ({"filename": "p.png", "width": 400, "height": 300,
              "grounding": {"caption": f"{WORDS} flies", "regions": [{"phrase": WORDS, "bbox": XYXY}]}}, IN_PIXELS),
    "marks of Entities": (
        {"image": "p.png", "caption": f"[/EN#7/other {WORDS}] flies", "boxes": {"7": [XYXY]}}, IN_PIXELS,
    ),
    "own rows": ({"image": "p.png", "caption": f"{WORDS} flies", "phrases": [{"text": WORDS, "boxes": [BOX]}]},
                 IN_SHARES),
    "boxes with names": (
        [{"image": "p.png", "boxes": [{"label": WORDS, "xmin": 40, "ymin": 60, "xmax": 240, "ymax": 270}]},
         {"image": "p.png", "boxes": []}],
        IN_PIXELS,
    ),
    "boxes with numbers of classes, and names": (
        {"image": "p.png", "boxes": [{"class": 7, "xmin": 40, "ymin": 60, "xmax": 240, "ymax": 270}],
         "labels": [WORDS]},
        IN_PIXELS,
    ),
    "list of objects": ({"image": "p.png", "objects": [{"bbox": XYWH, "category": WORDS, "area": 42000}]},
                        "xywh pixels"),
    "fashionpedia": (
        {"image": "p.png", "objects": {"bbox_id": [1], "category": [WORDS], "bbox": [XYXY], "area": [42000]}},
        IN_PIXELS,
    ),
    "moondream/car_part_damage": (
        {"image": "p.png", "annotations": [{"id": 1, "category": WORDS, "bbox": XYXY, "segmentation": POLYGON}]},
        IN_PIXELS,
    ),
    "boxes and labels": (
        {"image": "p.png", "boxes": [BOX, [0.6, 0.6, 0.7, 0.7]], "labels": [WORDS, "sun"]}, IN_SHARES),
    "objects as a text": ({"image": "p.png", "objects": json.dumps([{"bbox": XYXY, "label": WORDS, "bbox_id": 1}])},
                          IN_PIXELS),
    "FiftyOne": (
        {"filepath": "p.png",
         "ground_truth": {"detections": [{"label": WORDS, "bounding_box": [0.1, 0.2, 0.5, 0.7]}]}},
        "xywh 0..1",
    ),
    "CreateML": (
        {"image": "p.png",
         "annotations": [{"label": WORDS, "coordinates": {"x": 140, "y": 165, "width": 200, "height": 210}}]},
        "cxcywh pixels",
    ),
    "Visual-CoT, a part of the picture": (
        {"image": ["p.png", "p.png###[40, 60, 240, 270]"], "conversations": [
            {"from": "human", "value": f"<image>\nWhere is {WORDS}?"}, {"from": "gpt", "value": "[0.1,0.2,0.6,0.9]"},
            {"from": "human", "value": "<image>"}, {"from": "gpt", "value": "There."}]},
        IN_SHARES,
    ),
    "a text with boxes": ({"image": "p.png", "text": WORDS, "boxes": {"x": 0.1, "y": 0.2, "w": 0.5, "h": 0.7}},
                          "xywh 0..1"),
    "TreeBench": ({"image": "p.png", "question": WORDS, "multi-choice options": "A", "answer": "A",
                   "target_instances": str([XYXY])}, IN_PIXELS),
    "V*": ({"image": "p.png", "target_object": [WORDS], "bbox": [XYWH], "question": f"What colour is {WORDS}?",
            "options": ["red", "blue"]}, "xywh pixels"),
    "Saliency-R1": ({"image": "p.png", "question": WORDS, "answer": "x", "bbox": "[0.1, 0.2, 0.6, 0.9]"}, IN_SHARES),
    "Visual-CoT": (
        [{"image": "p.png", "question": WORDS, "answer": "x", "bboxs": [XYXY], "width": 400, "height": 300},
         {"image": "p.png", "question": "sun", "answer": "x", "bboxs": [[290, 250, 390, 290]], "width": 400,
          "height": 300}],
        IN_PIXELS,
    ),
    "ScreenSpot": ({"image": "p.png", "instruction": WORDS, "bbox": BOX, "data_type": "icon", "data_source": "ios"},
                   IN_SHARES),
    "ScreenSpot v2": (
        {"img_filename": "p.png", "instruction": WORDS, "bbox": XYWH, "data_type": "icon", "data_source": "ios"},
        "xywh pixels",
    ),
    "ScreenSpot v2 of GUI-Actor": (
        {"img_filename": "p.png", "bbox": XYXY, "instruction": WORDS, "img_size": [400, 300], "platform": "shop",
         "ui_type": "text", "group": "web"},
        IN_PIXELS,
    ),
    "ScreenSpot-Pro of TIGER-Lab": (
        {"id": "c1", "img_filename": "p.png", "img_size": "[400, 300]", "bbox": str(XYXY), "instruction": WORDS,
         "instruction_cn": "x", "application": "cad", "ui_type": "icon", "group": "CAD"},
        IN_PIXELS,
    ),
    "OSWorld-G": ({"image_path": "p.png", "image_size": [400, 300], "instruction": WORDS, "box_type": "bbox",
                   "box_coordinates": XYWH}, "xywh pixels"),
    "OSWorld-G, polygon": ({"image_path": "p.png", "image_size": [400, 300], "instruction": WORDS,
                            "box_type": "polygon", "box_coordinates": POLYGON[0]}, IN_PIXELS),
    "OS-Atlas": ({"img_filename": "p.png", "instruction": WORDS, "bbox": BOX}, IN_SHARES),
    "OS-Atlas, elements": ({"img_filename": "p.png", "elements": [{"instruction": WORDS, "bbox": BOX}]}, IN_SHARES),
    "GUI-Actor": (
        {"image": "p.png", "conversations": [
            {"from": "system", "value": "You act."}, {"from": "human", "value": f"<image>{WORDS}"},
            {"from": "gpt", "value": "pyautogui.click(x=0.35, y=0.55)", "recipient": "os", "end_turn": True,
             "bbox_gt": BOX}]},
        IN_SHARES,
    ),
    "UGround": (
        {"image": "p.png", "conversations": json.dumps([{"from": "human", "value": f"<image>\n{WORDS}"},
                                                        {"from": "gpt", "value": "(350, 549)"}])},
        "points 0..999",
    ),
    "PixMo-Points": ({"image": "p.png", "points": [{"x": 35.0, "y": 55.0}], "count": 1, "label": WORDS,
                      "collection_method": "pointing"}, "points 0..100"),
    "Molmo": (messages("Point.", f'<point x="35.0" y="55.0" alt="{WORDS}">{WORDS}</point>'), "points 0..100"),
    "Molmo 2": (messages("Point.", f'<points coords="1 1 350 550">{WORDS}</points>'), "points 0..1000"),
    "a click": (messages(f"Click on {WORDS}.", "pyautogui.click(x=0.35, y=0.55)"), "points 0..1"),
    "LLaVA": (talk(ASKED, "[0.10, 0.275, 0.60, 0.80]"), "xyxy 0..1 padded"),
    "Shikra": (messages(f"Where is {WORDS}?", "[0.100,0.200,0.600,0.900]"), IN_SHARES),
    "Qwen-VL": (messages("Describe.", f"<ref>{WORDS}</ref><box>(100,200),(600,900)</box>"), "xyxy 0..1000"),
    "Qwen2-VL, box alone": (
        messages(f"Find {WORDS}.", "<|box_start|>(100,200),(600,900)<|box_end|>"), "xyxy 0..1000"),
    "Qwen2.5-VL": (
        [messages(f"Locate {WORDS}.", f'```json\n[{{"bbox_2d": {XYXY}, "label": "{WORDS}"}}]\n```'),
         messages("Locate the sun.", '[{"bbox_2d": [350, 20, 390, 60], "label": "the sun"}]')],
        "ask or xyxy pixels",
    ),
    "Qwen3-VL": (
        talk(f"Locate {WORDS} in this image and output the bbox coordinates in JSON format.",
             f'[{{"bbox_2d": [100, 200, 600, 900], "label": "{WORDS}"}}]'),
        "xyxy 0..1000",
    ),
    "Kimi-VL": (messages(f"Locate {WORDS}.", f'{{"bbox_2d": {BOX}, "label": "{WORDS}"}}'), IN_SHARES),
    "Gemma 4": (messages("Detect.", f'[{{"box_2d": [200, 100, 900, 600], "label": "{WORDS}"}}]'), "yxyx 0..1000"),
    "GLM": (messages(f"Please pinpoint the bounding box as per the given description. {WORDS}",
                     "<|begin_of_box|>[[100, 200, 600, 900]]<|end_of_box|>"), "xyxy 0..1000"),
    "InternVL": (
        talk(f"Please provide the bounding box coordinate of the region this sentence describes: <ref>{WORDS}</ref>",
             f"<ref>{WORDS}</ref><box>[[100, 200, 600, 900]]</box>", width=400, height=300),
        "xyxy 0..1000",
    ),
    "InternVL, old": (messages("x", f"<ref>{WORDS}</ref><box>[[0.1, 0.2, 0.6, 0.9]]</box>"), IN_SHARES),
    "MiniCPM-V": (messages("Describe.", f"<ref>{WORDS}</ref><box>100 200 600 900</box>"), "xyxy 0..1000"),
    "Ovis": (messages("Describe.", f"<ref>{WORDS}</ref><box>(0.1,0.2),(0.6,0.9)</box>"), IN_SHARES),
    "DeepSeek-VL2": (
        messages(f"<|ref|>{WORDS}<|/ref|>", f"<|ref|>{WORDS}<|/ref|><|det|>[[100, 200, 599, 899]]<|/det|>"),
        "xyxy 0..999",
    ),
    "Rex-Omni": (
        messages("Detect.", f"<|object_ref_start|>{WORDS}<|object_ref_end|><|box_start|><100><200><599><899>"
                            "<|box_end|>"),
        "xyxy 0..999",
    ),
    "marked words without a box before it": (
        messages("Describe.", f"<ref>A man</ref> holds <ref>{WORDS}</ref><box>(100,200),(600,900)</box>."),
        "xyxy 0..1000",
    ),
    "JSON with braces and texts of numbers": (
        messages("Locate.", json.dumps({"objects": [
            {"bbox_2d": ["100", "200", "600", "900"], "about": {"colour": "{red}"}, "label": WORDS}]})),
        "xyxy 0..1000",
    ),
    "CogVLM": (messages(f"Where is {WORDS}?", "[[100,200,600,900;012,020,030,040]]"), "xyxy 0..1000", 2),
    "PaliGemma": (
        {"image": "p.png", "prefix": f"detect {WORDS}", "suffix": f"<loc0205><loc0102><loc0922><loc0614> {WORDS}"},
        "yxyx 0..1024",
    ),
    "Florence-2": (messages("<OD>", f"{WORDS}<loc_100><loc_200><loc_600><loc_900>"), "xyxy 0..1000"),
    "Kosmos-2": (
        messages("<grounding>", f"<phrase> {WORDS}</phrase><object><patch_index_0195><patch_index_0915></object>"),
        IN_SHARES,
    ),
    "marks in a caption": (
        {"image": "p.png", "caption": f"See <ref>{WORDS}</ref><box>(100,200),(600,900)</box> fly."}, "xyxy 0..1000",
    ),
    "ms-swift, shares": (
        messages("<image>Where is <ref-object>?", "<bbox>",
                 objects={"ref": [WORDS], "bbox": [BOX], "bbox_type": "norm1"}),
        IN_SHARES,
    ),
    "query and response": ({"image": "p.png", "query": f"Find {WORDS}", "response": "<box>(100,200),(600,900)</box>"},
                           "xyxy 0..1000"),
    "TRL": ({"image": "p.png", "prompt": f"Find {WORDS}", "completion": "<box>(100,200),(600,900)</box>"},
            "xyxy 0..1000"),
    "VLM-R1": (
        {"image": "p.png", "problem": f'Give the box of "{WORDS}".', "solution": "<box>(100,200),(600,900)</box>"},
        "xyxy 0..1000",
    ),
    "alpaca": ({"images": ["p.png"], "instruction": f"<image>Find {WORDS}.", "input": "",
                "output": "<|box_start|>(100,200),(600,900)<|box_end|>"}, "xyxy 0..1000"),
    "pictures inside of messages": (
        {"messages": [{"role": "user", "content": [{"type": "image", "image": "p.png"},
                                                   {"type": "text", "text": f"Find {WORDS}."}]},
                      {"role": "assistant", "content": [{"type": "text", "text": "<box>(100,200),(600,900)</box>"}]}]},
        "xyxy 0..1000",
    ),
    "OpenAI's messages": (
        {"messages": json.dumps([{"role": "user", "content": [
            {"type": "image_url", "image_url": {"url": "p.png"}}, {"type": "text", "text": f"Find {WORDS}."}]},
            {"role": "assistant", "content": "<box>(100,200),(600,900)</box>"}])},
        "xyxy 0..1000",
    ),
    "a box beside a conversation": (messages(f"Where is {WORDS}?", "On the left.", bbox=BOX), IN_SHARES),
    "own phrases beside messages": (
        messages("Where?", f"See {WORDS}.", phrases=[{"text": WORDS, "sentence": 1, "boxes": [BOX]}]), IN_SHARES),
}  # fmt: skip


def picture():
    return Image.linear_gradient("L").resize(SIZE).convert("RGB")


@pytest.fixture
def folder(tmp_path):
    picture().save(tmp_path / "p.png")
    return tmp_path


def write(folder, rows):
    path = folder / "rows.jsonl"
    path.write_text("".join(json.dumps(each) + "\n" for each in rows))
    return path


def phrases_of(rows):
    return {
        phrase["text"]: phrase["boxes"]
        for row in rows
        for phrase in row["phrases"]
        if read_phrase(phrase, texts_of(row), "phrase", grounded=True)
    }


@pytest.mark.parametrize("case", CASES, ids=str)
def test_a_shape(case, folder):
    given, convention, *count = CASES[case]
    source = write(folder, given if isinstance(given, list) else [given])
    if convention.startswith("ask or "):
        convention = convention.removeprefix("ask or ")
        with pytest.raises(UnclearBoxes, match="boxes="):
            grounded_rows(source)
        rows = grounded_rows(source, boxes=convention)
    else:
        rows = grounded_rows(source)
    assert rows.report.convention == convention, rows.report
    boxes = next(boxes for text, boxes in phrases_of(rows).items() if text.rstrip(".") == WORDS)
    assert len(boxes) == (count[0] if count else 1)
    wanted = [0.35, 0.55, 0.35, 0.55] if "points" in convention else BOX
    near = 0.03 if case == "Kosmos-2" else 0.002
    assert np.abs(np.array(boxes[0]) - wanted).max() < near, boxes
    assert rows.report.complete
    assert rows.report.boxes >= 1


# The same boxes are refused, or a question is asked, when a convention is said that is not theirs.
WRONG = {
    "xyxy pixels": "xyxy 0..1",
    "xywh pixels": "xywh 0..1",
    "cxcywh pixels": "cxcywh 0..1",
    "xyxy 0..1": "xyxy pixels",
    "xywh 0..1": "xywh pixels",
}


@pytest.mark.parametrize("case", CASES, ids=str)
def test_a_wrong_convention_is_caught(case, folder):
    given, convention, *_ = CASES[case]
    source = write(folder, given if isinstance(given, list) else [given])
    found = convention.removeprefix("ask or ")
    wrong = WRONG.get(found, "points 0..1" if "points" in found else "xyxy 0..1")
    if found == "points 0..1":
        wrong = "points 0..1000"
    if "padded" in found:
        wrong = "xyxy 0..1000"
    with pytest.raises(UnclearBoxes) as error:
        grounded_rows(source, boxes=wrong)
    assert wrong in str(error.value)
    assert str(source) in str(error.value)


EXACT = {
    "Kosmos-2, centres of cells": ("<phrase> kite</phrase><object><patch_index_0044><patch_index_0863></object>",
                                   [[12.5 / 32, 1.5 / 32, 31.5 / 32, 26.5 / 32]]),
    "Kosmos-2, edges of one row": ("<phrase> kite</phrase><object><patch_index_0033><patch_index_0035></object>",
                                   [[1 / 32, 1 / 32, 4 / 32, 2 / 32]]),
    "Florence-2, the middle of steps": ("kite<loc_100><loc_200><loc_600><loc_900>",
                                        [[0.1005, 0.2005, 0.6005, 0.9005]]),
    "after the thoughts": ("<think>a kite <box>(1,2),(3,4)</box></think><ref>kite</ref><box>(100,200),(600,900)</box>",
                           [BOX]),
}  # fmt: skip


@pytest.mark.parametrize("case", EXACT, ids=str)
def test_marks_are_read_to_the_last_digit(case, folder):
    answer, boxes = EXACT[case]
    (row,) = grounded_rows(write(folder, [messages("Describe.", answer)]))
    assert np.allclose([box for phrase in row["phrases"] for box in phrase["boxes"]], boxes, atol=1e-9)


# A question, an answer, and the phrases with the corners of the first box in thousandths; None: refused.
EXACT_OR_REFUSED = {
    "prose before a bare box": ("Describe it.", "There is a kite[0.100,0.200,0.600,0.900] in the air.", None),
    "other words between marked words and a box": ("?", "<ref>A man</ref> holds <box>(100,200),(600,900)</box>", None),
    "marked words before bare numbers": ("Describe.", "<ref>a kite</ref>(0.1,0.2),(0.6,0.9) flies",
                                        {"a kite": [100, 200]}),
    "tuples": ("Find free space. List tuples.", "[(0.1, 0.2), (0.3, 0.4), (0.5, 0.5)]", {"free space": [100, 200]}),
    "tuples for an unknown question": ("Plan.", "[(0.1, 0.2), (0.3, 0.4), (0.5, 0.5)]", None),
    "a point of it": ("Point to it. Answer with x, y.", "(0.1, 0.2)", None),
    "two tuples": ("Where is it free?", "[(0.1, 0.2), (0.3, 0.4)]", None),
    "an action": ("open the menu", "Thought: look.\nAction: click(start_box='<|box_start|>(100,200)<|box_end|>')",
                  {"open the menu": [100, 200]}),
    "a call of a tool": (
        "open the menu",
        '<tool_call>{"name": "computer_use", "arguments": {"action": "left_click", "coordinate": [0.1, 0.2]}}'
        "</tool_call>",
        {"open the menu": [100, 200]}),
    "an escaped label": ("Find it.", json.dumps([{"bbox_2d": BOX, "label": "\u72d7"}]), {"\\u72d7": [100, 200]}),
    "JSON that is cut": ("Find it.", '[{"bbox_2d": [0.1, 0.2, 0.6, 0.9], "label": "a', None),
    "a turned box": ("Find it.", json.dumps({"bbox_2d": BOX, "angle": 30, "label": "a kite"}), None),
    "three corners": ("Find it.", "<box>(100,200),(600,900),(1,2)</box>", None),
    "a mark that is not closed": ("Find it.", "<ref>a kite</ref><box>(100,200),(600", None),
    "points of an action in Python": ("open the menu", "{'action': 'CLICK', 'position': [0.1, 0.2]}",
                                      {"open the menu": [100, 200]}),
    "thoughts before an action": ("open the menu", "I click.\nThought: up.\npyautogui.click(x=0.1, y=0.2)",
                                  {"open the menu": [100, 200]}),
    "a tag before words": ("<REFERRING_EXPRESSION_SEGMENTATION>a kite", "<loc_100><loc_200><loc_600><loc_900>",
                           {"a kite": [100.5, 200.5]}),
    "Gemini's point, y first": ("Point.", json.dumps([{"point": [200, 100], "label": "a kite"}]), None),
    "a label that is no text": ("Find all kites.", json.dumps([{"bbox_2d": BOX, "label": ["a kite"]}]), None),
    "another sentence behind what is asked": ("Find the kite. Then the sun.", "[0.1,0.2,0.6,0.9]", None),
    "a click in marks of nobody": ("open the menu", "<click>100, 200</click>", None),
    "boxes of the question that the answer names": (
        "Name it: <box>(100,200),(600,900)</box>", "<ref>a kite</ref><box>(100,200),(600,900)</box>",
        {"a kite": [100, 200]}),
}  # fmt: skip


@pytest.mark.parametrize("case", EXACT_OR_REFUSED, ids=str)
def test_words_of_a_box_are_what_the_form_says_or_it_is_refused(case, folder):
    question, answer, wanted = EXACT_OR_REFUSED[case]
    source = write(folder, [messages(question, answer)])
    if wanted is None:
        with pytest.raises(DataError):
            grounded_rows(source)
        return
    found = phrases_of(grounded_rows(source))
    assert found.keys() == wanted.keys()
    for words, corner in wanted.items():
        assert found[words][0][:2] == pytest.approx([side / 1000 for side in corner])


# Answers whose numbers may be anything: the row is kept without a phrase, and the report says it.
@pytest.mark.parametrize(
    ("question", "answer"),
    [
        ("Read the chart.", "The values are [1, 2, 3, 4] in 2020."),
        ("Sort these numbers.", "[11, 12, 13, 14]"),
        ("open the menu", "Action: type(content='[1, 2, 3, 4]')"),
        ("Find the kite.", "[10%, 20%, 60%, 90%]"),
        ("open the menu", json.dumps({"action": "click", "x": 100, "y": 200})),
    ],
)
def test_numbers_that_may_be_anything_are_counted(question, answer, folder):
    rows = grounded_rows(write(folder, [messages(question, answer)]))
    assert sum(rows.report.dropped.values()) == rows.report.bare == 1


@pytest.mark.parametrize("label", [False, "false", 0])
def test_boxes_of_a_wrong_answer_are_counted(label, folder):
    answer = "<box>(100,200),(600,900)</box>"
    rows = grounded_rows(write(folder, [messages(f"Find {WORDS}.", answer, label=label)]))
    assert sum(rows.report.dropped.values()) == rows.report.bare == 1


def test_several_texts_mean_one_box_or_one_each(folder):
    row = {"image": "p.png", "caption": ["the kite", "a sun", "it"], "bbox": [XYXY, [1, 1, 9, 9]]}
    with pytest.raises(DataError):
        grounded_rows(write(folder, [row]), boxes="xyxy pixels")
    found = phrases_of(grounded_rows(write(folder, [{**row, "caption": row["caption"][:2]}]), boxes="xyxy pixels"))
    assert found["the kite"] == [BOX]
    assert found.keys() == {"the kite", "a sun"}


def test_a_rejected_answer_is_not_gold_and_an_older_form_of_objects_is_filled(folder):
    objects = {"ref": [WORDS], "bbox": [XYXY, [1, 1, 9, 9]], "bbox_type": "real"}
    row = messages("<image>Find <ref-object>", "<bbox>", objects=objects)
    assert phrases_of(grounded_rows(write(folder, [{**row, "rejected_response": "<bbox>"}]))) == {WORDS: [BOX]}
    with pytest.raises(DataError, match="without a place"):
        grounded_rows(write(folder, [row]))
    older = json.dumps([{"caption": WORDS, "bbox": XYXY, "bbox_type": "real", "image": 0}])
    row = {"query": "Find <ref-object>", "response": "<bbox>", "images": ["p.png"], "objects": older}
    assert phrases_of(grounded_rows(write(folder, [row]))) == {WORDS: [BOX]}


def test_a_page_of_words_gives_the_boxes_of_the_answer(folder):
    places = [[10, 10, 20, 20], [30, 10, 40, 20], [50, 10, 60, 20]]
    row = {
        "image": "p.png",
        "words": ["Total:", "12", "EUR"],
        "bboxes": places,
        "answers": ["12 EUR"],
    }
    for name in ("question", "query"):
        source = write(folder, [{**row, name: "Total?"}])
        boxes = phrases_of(grounded_rows(source, boxes="xyxy pixels"))["Total?"]
        assert np.allclose(np.array(boxes) * [*SIZE, *SIZE], places[1:])
    with pytest.raises(DataError):  # tags of words are no names
        grounded_rows(write(folder, [{**row, "labels": ["O", "B", "I"]}]), boxes="xyxy pixels")
    with pytest.raises(DataError, match="once"):
        grounded_rows(
            write(folder, [{**row, "question": "?", "words": ["12", "12", "EUR"], "answers": ["12"]}]),
            boxes="xyxy pixels",
        )


def test_a_few_wrong_boxes_among_many_do_not_hide_the_convention_but_many_do(folder):
    rows = [{"image": "p.png", "text": f"kite {n}", "bbox": INVERTED} for n in range(200)]
    rows[7]["bbox"] = [390, 200, 80, 60]
    assert grounded_rows(write(folder, rows)).report.convention == "xywh pixels"
    for number in range(20):
        rows[number] = {**rows[number], "bbox": [390, 200, 80, 60]}
    with pytest.raises(UnclearBoxes):
        grounded_rows(write(folder, rows))


def test_a_column_of_very_many_boxes_is_refused(folder, monkeypatch):
    monkeypatch.setattr(raw, "MOST_BOXES", 4)
    row = {"image": "p.png", "text": WORDS, "boxes": [XYXY] * 4}
    assert len(phrases_of(grounded_rows(write(folder, [row])))[WORDS]) == 4
    with pytest.raises(DataError, match="at most 4 boxes"):
        grounded_rows(write(folder, [{**row, "boxes": [XYXY] * 5}]))


def test_every_shape_of_the_table_in_docs_is_tried(folder):
    page = (ROOT / "docs" / "data.md").read_text(encoding="utf-8")
    (table,) = re.findall(r"\n\| shape \|.*?\n\n", page, re.DOTALL)
    _, *named = re.findall(r"^\| ([^|]+?) \|", table, re.MULTILINE)
    named = [name for names in named for name in names.split("; ")]
    assert sorted(named) == sorted(shape.name for shape in SHAPES)
    tried = set()
    for given, convention, *_ in CASES.values():
        said = {"boxes": convention.removeprefix("ask or ")} if convention.startswith("ask or ") else {}
        tried.add(grounded_rows(write(folder, given if isinstance(given, list) else [given]), **said).report.shape)
    picture().save(folder / "q.png")
    for content in [*(content for content, _ in PROBES.values()), WITHOUT_BOXES, VERDICT, BACKGROUND]:
        (folder / "probe.json").write_text(json.dumps(content))
        tried.add(grounded_rows(folder / "probe.json").report.shape)
    assert tried == {*named}


BACKGROUND = {"image": "p.png", "annotations": None}
OBJECT = {"bbox": XYXY, "label": "a kite"}
# Rows with a thing, and a picture without one as people write it.
EMPTY = {
    "null": ({"annotations": [OBJECT]}, {"annotations": None}),
    "an empty object": ({"annotations": [OBJECT]}, {"annotations": {}}),
    "an empty list": ({"objects": [OBJECT]}, {"objects": []}),
    "lists that are empty": ({"objects": [OBJECT]}, {"objects": {"bbox": [], "label": []}}),
    "null lists": ({"boxes": [XYXY], "labels": ["a kite"]}, {"boxes": None, "labels": None}),
    "a null box": ({"bbox": XYXY, "label": "a kite"}, {"bbox": None, "label": None}),
    "null sides": (dict(zip(("x1", "y1", "x2", "y2"), XYXY, strict=True)) | {"label": "a kite"},
                   dict.fromkeys(("x1", "y1", "x2", "y2", "label"))),
    "no region": ({"regions": [{"phrase": "a kite", "bbox": XYXY}]}, {"regions": []}),
}  # fmt: skip


@pytest.mark.parametrize("case", EMPTY, ids=str)
@pytest.mark.parametrize("first", [False, True])
def test_a_picture_without_a_thing(case, first, folder):
    full, empty = ({"image": "p.png", **each} for each in EMPTY[case])
    rows = grounded_rows(write(folder, [empty, empty, full] if first else [full, empty, empty]), boxes="xyxy pixels")
    read = list(rows)
    assert sorted(len(row["phrases"]) for row in read) == [0, 0, 1]
    assert not rows.report.dropped
    assert {phrase["text"] for row in read for phrase in row["phrases"]} == {"a kite"}


CORNERS = [[100, 60], [200, 70], [210, 150], [90, 140]]
AROUND = [90, 60, 210, 150]
OUTLINES = {
    "four corners": {"text": "a sign", "bbox": CORNERS},
    "eight numbers": {"text": "a sign", "bbox": [*chain(*CORNERS)]},
    "five corners": {"text": "a sign", "bbox": [*CORNERS, [95, 90]]},
    "corners of each": {"text": "a sign", "bboxes": [CORNERS]},
    "quad": {"text": "a sign", "quad": CORNERS},
    "named corners": {
        "text": "a sign",
        "bbox": dict(zip(("x1", "y1", "x2", "y2", "x3", "y3", "x4", "y4"), chain(*CORNERS), strict=True)),
    },
    "polygon": {"text": "a sign", "polygon": [*chain(*CORNERS)]},
    "an object": {"objects": [{"label": "a sign", "bbox": CORNERS}]},
    "lists": {"objects": {"bbox": [CORNERS], "label": ["a sign"]}},
}


@pytest.mark.parametrize("case", OUTLINES, ids=str)
def test_corners_are_the_box_around_them(case, folder):
    ((box,),) = phrases_of(grounded_rows(write(folder, [{"image": "p.png", **OUTLINES[case]}]))).values()
    assert np.allclose(np.array(box) * [*SIZE, *SIZE], AROUND)


# Keys beside a box: one that turns it is refused, one that says more of it is counted.
@pytest.mark.parametrize("key", ["angle", "rotation", "track_id", "rejected"])
@pytest.mark.parametrize("row", [{"objects": [OBJECT]}, {"text": "a kite", "bbox": XYXY}], ids=["object", "row"])
def test_what_stands_beside_a_box(key, row, folder):
    row = json.loads(json.dumps({"image": "p.png", **row}))
    (row["objects"][0] if "objects" in row else row)[key] = 30
    path = write(folder, [row])
    if key in ("angle", "rotation"):
        with pytest.raises(DataError, match=key):
            grounded_rows(path, boxes="xyxy pixels")
    else:
        rows = grounded_rows(path, boxes="xyxy pixels")
        assert len(list(rows)) == 1
        assert any(reason.startswith(key) for reason in rows.report.dropped)


@pytest.mark.parametrize("side", [1, 2])
def test_a_box_in_a_picture_of_few_pixels(side, folder):
    Image.new("RGB", (side, side)).save(folder / "few.png")
    path = write(folder, [{"image": "few.png", "text": "a kite", "bbox": [0, 0, 1, 1]}])
    assert phrases_of(grounded_rows(path, boxes="xyxy pixels"))["a kite"] == [[0, 0, 1 / side, 1 / side]]
    with pytest.raises(UnclearBoxes):
        grounded_rows(path)


def test_the_order_of_four_numbers_says_nothing_of_corners(folder):
    path = write(folder, [{"image": "p.png", "text": "a sign", "bbox": CORNERS}])
    ((box,),) = phrases_of(grounded_rows(path, boxes="xywh pixels")).values()
    assert np.allclose(np.array(box) * [*SIZE, *SIZE], AROUND)


# Rows that say where something is, in a way that is not read; the column that is named.
UNREAD = {
    "a file of a mask": ({"text": "a dog", "mask": "m.png"}, "mask"),
    "files of masks": ({"text": "a dog", "masks": ["m.png", "n.png"]}, "masks"),
    "a file of a mask under another name": ({"text": "a dog", "gt": "m.png"}, "gt"),
    "a path of a mouse": ({"text": "a dog", "traces": [[{"x": 0.1, "y": 0.2, "t": 1.0}]]}, "traces"),
    "turned boxes": ({"text": "a dog", "rbox": [100, 60, 40, 30, 12.5]}, "rbox"),
    "key points of an object": ({"objects": [{"label": "a dog", "keypoints": [100, 60, 2]}]}, "objects.keypoints"),
    "marks": ({"objects": [{"label": "a dog", "where": "<loc0320><loc0064><loc0960><loc0384>"}]}, "objects.where"),
}


@pytest.mark.parametrize("case", UNREAD, ids=str)
def test_places_that_are_not_read_are_named(case, folder):
    row, name = UNREAD[case]
    with pytest.raises(DataError, match=re.escape(name)):
        grounded_rows(write(folder, [{"image": "p.png", **row}]))
    other = {"objects": [OBJECT]} if "objects" in row else {"text": "a kite", "bbox": XYXY}
    rows = grounded_rows(write(folder, [{"image": "p.png", **each} for each in (other, row)]), boxes="xyxy pixels")
    assert len(list(rows)) == 2
    assert any(reason.startswith(f"{name}: ") for reason in rows.report.dropped)


# Damages


def places(value, place=()):
    """Every value in a row, however deep, with its place."""
    for key, each in value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ():
        yield (*place, key), each
        yield from places(each, (*place, key))


def damages(value):
    """What may stand in the place of a value; GONE: nothing."""
    if isinstance(value, str):
        return [GONE, None, "", 7, [], {}, value[: max(1, len(value) // 2)]]
    if isinstance(value, list):
        return [GONE, None, [], "abc", value[:-1], [*value, *value[:1]], [value], {"a": 1}]
    if isinstance(value, dict):
        return [GONE, None, {}, "abc", []]
    return [GONE, None, "abc", float("nan"), 1e9, -5000, [1]]


def damaged(row, place, value):
    row = json.loads(json.dumps(row))
    inner = row
    for key in place[:-1]:
        inner = inner[key]
    if value is GONE:
        del inner[place[-1]]
    else:
        inner[place[-1]] = value
    return row


GONE = object()
EACH = 15  # damages of a shape


@pytest.mark.parametrize("case", CASES, ids=str)
def test_nothing_is_lost_in_silence(case, folder, caplog):
    """A damaged row is an error with its place, has a box all the same, or is counted by the report."""
    given, convention, *_ = CASES[case]
    rows = given if isinstance(given, list) else [given]
    said = {"boxes": convention.removeprefix("ask or ")} if convention.startswith("ask or ") else {}
    before = grounded_rows(write(folder, rows), **said)
    boxes = sum(len(phrase["boxes"]) for row in before for phrase in row["phrases"])
    bare = before.report.bare
    all_of_them = [(place, value) for place, each in places(rows[0]) for value in damages(each)]
    for place, value in random.Random(0).sample(all_of_them, min(EACH, len(all_of_them))):
        caplog.clear()
        try:
            found = grounded_rows(write(folder, [*rows, damaged(rows[0], place, value)]), **said)
            more = sum(len(phrase["boxes"]) for row in found for phrase in row["phrases"]) > boxes
        except DataError as error:
            assert "rows.json" in str(error), (place, value)
        else:
            assert more or found.report.dropped or found.report.bare > bare or caplog.records, (place, value)


# Files of tools; the box of each is BOX in a picture of SIZE.
TOOLS = {
    "COCO": {"images": [{"id": 1, "file_name": "p.png", "width": 400, "height": 300}],
             "annotations": [{"id": 1, "image_id": 1, "category_id": 1, "bbox": XYWH, "iscrowd": 0}],
             "categories": [{"id": 1, "name": "a kite"}]},
    "Label Studio": [{"id": 1, "data": {"image": "p.png"}, "annotations": [{"was_cancelled": False, "result": [
        {"id": "a", "to_name": "image", "original_width": 400, "original_height": 300,
         "value": {"x": 10, "y": 20, "width": 50, "height": 70, "rotation": 0, "rectanglelabels": ["a kite"]}}]}]}],
    "LabelMe": {"imagePath": "p.png", "imageWidth": 400, "imageHeight": 300, "shapes": [
        {"label": "a kite", "points": [[40, 60], [240, 270]], "shape_type": "rectangle"}]},
    "CreateML": [{"image": "p.png", "annotations": [
        {"label": "a kite", "coordinates": {"x": 140, "y": 165, "width": 200, "height": 210}}]}],
    "ODVG": {"filename": "p.png", "width": 400, "height": 300, "grounding": {
        "caption": "a kite", "regions": [{"bbox": XYXY, "phrase": "a kite"}]}},
}  # fmt: skip


@pytest.mark.parametrize("tool", TOOLS, ids=str)
def test_a_damaged_file_of_a_tool_is_read_or_refused(tool, folder):
    """No value of another type ends in an error of Python's insides, or in a box outside of the picture."""
    path = folder / "tool.json"
    path.write_text(json.dumps(TOOLS[tool]))
    ((box,),) = phrases_of(grounded_rows(path)).values()
    assert np.allclose(box, BOX)
    all_of_them = [(place, value) for place, each in places(TOOLS[tool]) for value in damages(each)]
    for place, value in random.Random(0).sample(all_of_them, 2 * EACH):
        path.write_text(json.dumps(damaged(TOOLS[tool], place, value)))
        try:
            found = [box for row in grounded_rows(path) for phrase in row["phrases"] for box in phrase["boxes"]]
        except DataError as error:
            assert str(folder) in str(error), (place, value)
        else:
            assert np.all((np.array(found) >= 0) & (np.array(found) <= 1)), (place, value)
