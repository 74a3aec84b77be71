# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""Metrics on boxes against counting pixels, and the protocols against each other."""

import numpy as np
import pytest

from grounded_attention.tasks.phrase_grounding import PhraseRecall, first_hit
from grounded_attention.tasks.referring_expressions import is_right
from grounded_attention.utils.boxes import box_iou, enclosing_box

GRID = 24


def random_boxes(count, seed=0):
    rng = np.random.default_rng(seed)
    corners = np.sort(rng.integers(0, GRID, (count, 2, 2)), axis=1)
    return corners.reshape(count, 4)


def painted(box, plus_one):
    """The pixels of a box, one by one."""
    x1, y1, x2, y2 = box
    pixels = np.zeros((GRID + 1, GRID + 1), dtype=bool)
    pixels[y1 : y2 + plus_one, x1 : x2 + plus_one] = True
    return pixels


@pytest.mark.parametrize("plus_one", [False, True])
def test_overlap_equals_counted_pixels(plus_one):
    boxes = random_boxes(12)
    others = random_boxes(9, seed=1)
    found = box_iou(boxes, others, plus_one)
    for row, box in zip(found, boxes, strict=True):
        for value, other in zip(row, others, strict=True):
            first = painted(box, plus_one)
            second = painted(other, plus_one)
            union = (first | second).sum()
            assert value == pytest.approx((first & second).sum() / union if union else 0.0)


def test_the_enclosing_box_holds_all_and_nothing_beyond():
    boxes = random_boxes(5)
    around = enclosing_box(boxes)
    assert (around[:2] <= boxes[:, :2]).all()
    assert (around[2:] >= boxes[:, 2:]).all()
    assert all(around[side] in boxes[:, side] for side in range(4))


def test_conventions_differ_as_documented():
    # Half of the area as lengths; as pixels 6 x 11 of 11 x 11.
    half = [0, 0, 5, 10]
    whole = [0, 0, 10, 10]
    assert is_right(half, whole, "continuous")
    assert not is_right(half, whole, "continuous_strict")
    assert is_right(half, whole, "vl_bert_label")
    # 5 x 10 of 10 x 10 pixels: exactly one half.
    half = [0, 0, 4, 9]
    whole = [0, 0, 9, 9]
    assert is_right(half, whole, "vl_bert")
    assert not is_right(half, whole, "vl_bert_label")
    assert not is_right(half, whole, "continuous")


def test_images_without_detections_are_misses():
    gold = [10.0, 10.0, 30.0, 30.0]
    assert [is_right(box, gold) for box in (gold, [], None, [0.0, 0.0, 5.0, 5.0])] == [True, False, False, False]


def test_expressions_with_real_detections(shared):
    import json

    path = shared / "real" / "refcoco" / "clip_refcoco_testA_refcoco_unc_dets.json"
    rows = json.loads(path.read_text(encoding="utf-8"))

    def corners(box):
        x, y, width, height = box
        return [x, y, x + width, y + height]

    for row in rows:
        gold = corners(row["gt_box"])
        candidates = [corners(box) for box in row["pred_boxes"]]
        right = [is_right(box, gold, "continuous") for box in candidates]
        assert right == (box_iou(candidates, [gold])[:, 0] >= 0.5).tolist()
        assert is_right(gold, gold)


def test_first_hit_is_the_first_right_box():
    ranked = random_boxes(20)
    gold = random_boxes(3, seed=4)
    overlap = box_iou(ranked, gold).max(axis=1)
    expected = next((rank for rank, value in enumerate(overlap, start=1) if value >= 0.5), None)
    assert first_hit(ranked, gold) == expected
    assert first_hit(gold[::-1], gold) == 1


def test_protocols_part_where_a_phrase_has_several_boxes():
    gold = [[0, 0, 10, 10], [90, 0, 100, 10]]
    one = gold[:1]
    around = [[0, 0, 100, 10]]
    assert first_hit(one, gold, "any_box") == 1
    assert first_hit(one, gold, "merged_box") is None
    assert first_hit(around, gold, "merged_box") == 1
    assert first_hit(around, gold, "any_box") is None
    assert first_hit([], gold, "proposal") is None


def test_an_unknown_protocol_is_refused():
    with pytest.raises(ValueError, match="any_boxes"):
        PhraseRecall("any_boxes")
