# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""The audit of vision-language models, whose regions are image tokens, against plain loops over full eager maps."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from numpy.testing import assert_allclose, assert_array_equal

from grounded_attention.heads.examples import AuditExample
from grounded_attention.heads.items import CENTRE
from grounded_attention.heads.measure import audit
from grounded_attention.processing.patch_grounding import PatchGroundingProcessor
from grounded_attention.processing.phrase import Phrase
from tests.helpers.tiny_vlm_examples import examples, pictures
from tests.helpers.tiny_vlm_models import make_pair

COUNT = 4
LAYERS = 2
HEADS = 4
QUESTION = "what is this ?"
BOTH = ("llava", "qwen2_5_vl")


def make(model_type):
    model, processor = make_pair(model_type)
    torch.manual_seed(0)
    with torch.no_grad():
        for name, weights in model.named_parameters():
            if "q_proj" in name or "k_proj" in name:
                weights.normal_(std=0.5)  # heads that differ
    return model.eval(), processor


def with_types(count):
    """Phrases with types; the last one of each text has a second box, and the fifth none."""
    found = []
    for number, example in enumerate(examples(count)):
        first, last = example.phrases
        boxes = np.concatenate([last.boxes, [[0.45, 0.3, 0.6, 0.5]]]).astype(np.float32)
        first = replace(first, boxes=first.boxes[: number != 2], types=("animals", "other"))
        found.append(replace(example, phrases=(first, replace(last, boxes=boxes, types=("other",)))))
    return found


@torch.no_grad()
def brute_force(model, processor, given, word="last", merged=False, instruction=None):
    """(group, image) -> items, right by head, share by head, baseline, chance, reachable; one phrase at a time."""
    grounding = PatchGroundingProcessor(processor)
    images = pictures(COUNT)
    sums = {}
    model.set_attn_implementation("eager")
    for image, caption, phrase in [(e.image_id, e.caption, phrase) for e in given for phrase in e.phrases]:
        boxes = phrase.boxes
        if not len(boxes):
            continue
        if merged:
            boxes = np.concatenate([boxes[:, :2].min(0), boxes[:, 2:].max(0)])[None]
        span = {"sentence": int(instruction is not None), "start": phrase.start, "end": phrase.end}
        sentences = (caption, None) if instruction is None else (instruction, caption)
        batch = grounding(*sentences, images=images[image], phrases=[span])
        maps = model(**grounding.model_inputs(batch), output_attentions=True).attentions
        tokens = batch["text_positions"][0][batch["phrase_mask"][0, 0]]
        rows = {"last": tokens[-1:], "first": tokens[:1], "mean": tokens}[word]
        shown = batch["region_candidate_mask"][0]
        columns = batch["region_positions"][0][shown]
        patches = batch["region_boxes"][0][shown].numpy()
        gold = gold_patches(patches, boxes)
        middles = (patches[:, :2] + patches[:, 2:]) / 2 - 0.5
        centre = np.hypot(*middles.T).round(6).argmin()
        values = torch.cat(maps)[:, :, rows][..., columns].mean(2).numpy()  # (layers, heads, columns)
        found = [1, gold[values.argmax(-1)], values.sum(-1), gold[centre], gold.mean(), gold.any()]
        for group in ("all", *phrase.types):
            known = sums.get((group, image), [0] * 6)
            sums[group, image] = [a + b for a, b in zip(known, found, strict=True)]
    model.set_attn_implementation("sdpa")
    return sums


def gold_patches(patches, boxes):
    """Which patches a box covers by half at least; for a box without any, the one of which it covers most."""
    gold = np.zeros(len(patches), dtype=bool)
    left, top, right, bottom = patches.T
    for x1, y1, x2, y2 in boxes:
        width = np.clip(np.minimum(x2, right) - np.maximum(x1, left), 0, None)
        height = np.clip(np.minimum(y2, bottom) - np.maximum(y1, top), 0, None)
        covered = width * height / ((right - left) * (bottom - top))
        enough = covered >= 0.5 - 1e-4
        if not enough.any() and covered.any():
            enough[covered.argmax()] = True
        gold |= enough
    return gold


def check(groups, expected):
    compared = 0
    for group, counts in groups.items():
        for number, image in enumerate(counts.image_ids):
            items, right, share, baseline, chance, reachable = expected[group, image]
            assert counts.items[number] == items
            assert counts.baseline[number] == baseline
            assert counts.reachable[number] == reachable
            assert counts.chance[number] == pytest.approx(chance)
            assert_array_equal(counts.correct[number], right)
            assert_allclose(counts.share[number], share, rtol=1e-5, atol=1e-5)
            compared += 1
    assert compared == len(expected)


@pytest.mark.parametrize("model_type", BOTH)
@pytest.mark.parametrize(
    "word, merged, instruction", [("last", False, None), ("mean", True, QUESTION), ("first", False, QUESTION)]
)
def test_counts_equal_loops_over_eager_maps(model_type, word, merged, instruction):
    model, processor = make(model_type)
    options = {"word": word, "instruction": instruction}
    given = with_types(COUNT)
    result = audit(
        model, processor, given, images=pictures(COUNT), merged_box=merged, batch_size=3, progress=False, **options
    )
    assert list(result.entities) == ["text_to_region"]  # image tokens cannot see the words after them
    check(result.entities["text_to_region"], brute_force(model, processor, given, merged=merged, **options))
    assert result.layers == ("0", "1")
    assert result.heads == HEADS
    assert result.about["baseline"] == CENTRE
    assert result.about["phrases"]["without_boxes"] == 1
    assert model.config._attn_implementation == "sdpa"


def test_the_card_speaks_of_image_tokens():
    given = {"images": pictures(COUNT), "about": {"data": "d", "split": "test"}, "progress": False}
    text = audit(*make("llava"), with_types(COUNT), **given).to_card_section()
    for words in ("image token", "at least 50% of it", CENTRE):
        assert words in text
    for words in ("IoU", "END", "most confident"):
        assert words not in text


def test_a_layer_that_sees_no_image_token_is_never_right():
    model, processor = make_pair("gemma3")
    for module in model.modules():  # two tokens: the words after the image see nothing of it
        if getattr(module, "sliding_window", None):
            module.sliding_window = 2
    model.config.get_text_config().sliding_window = 2
    everywhere = np.array([[0, 0, 1, 1]], dtype=np.float32)  # any answer would be right
    phrase = Phrase("a dog", 18, 23, boxes=everywhere)
    late = [AuditExample(f"image {number}", "what is this here a dog", (phrase,)) for number in range(COUNT)]
    counts = audit(model, processor, late, images=pictures(COUNT), progress=False).counts
    assert not counts.active[0].any()
    assert counts.accuracy.tolist() == [[0] * HEADS, [1] * HEADS]


def test_where_image_tokens_see_the_words_both_directions_are_counted():
    model, processor = make_pair("paligemma")
    given = examples(COUNT)
    images = pictures(COUNT)
    result = audit(model, processor, given, images=images, progress=False)
    check(result.entities["text_to_region"], brute_force(model, processor, given))
    counts = result.entities["region_to_text"]["all"]
    grounding = PatchGroundingProcessor(processor)
    model.set_attn_implementation("eager")
    for number, example in enumerate(given):
        spans = [{"sentence": 0, "start": p.start, "end": p.end, "boxes": p.boxes} for p in example.phrases]
        batch = grounding(example.caption, images=images[example.image_id], phrases=spans)
        with torch.no_grad():
            maps = torch.cat(model(**grounding.model_inputs(batch), output_attentions=True).attentions)
        right = np.zeros((LAYERS, HEADS), int)
        phrases = batch["phrase_regions"][0].bool()
        regions = phrases.any(0).nonzero()[:, 0]
        for region in regions:
            named = batch["phrase_mask"][0][phrases[:, region]].any(0)
            row = maps[:, :, batch["region_positions"][0, region], batch["text_positions"][0]]
            right += named[row.argmax(-1)].numpy()
        assert counts.items[number] == len(regions)
        assert_array_equal(counts.correct[number], right)


@pytest.mark.parametrize(
    "options, message",
    [
        ({"images": None}, "give images"),
        ({"iou_threshold": 0.3}, "see coverage_threshold"),
        ({"directions": ["region_to_text"]}, "is causal: images do not see later words"),
        ({"directions": ["words"]}, "expected some of"),
        ({"images": {}}, "images has no picture of it"),
        ({"regions": {}, "instruction": "say it"}, "only for a vision-language model"),
        ({"processor": object()}, "known"),
    ],
)
def test_what_is_refused(options, message):
    model, processor = make("llava")
    given = {"processor": processor, "images": pictures(1), **options}
    with pytest.raises(ValueError, match=message):
        audit(model, examples=examples(1), progress=False, **given)
