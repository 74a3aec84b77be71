# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""The audit of vision-language models, whose regions are image tokens, against plain loops over full eager maps."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from grounded_attention.heads.changes import compare
from grounded_attention.heads.examples import AuditExample
from grounded_attention.heads.items import CENTRE
from grounded_attention.heads.measure import audit
from grounded_attention.heads.ranking import rank_heads
from grounded_attention.processing.patch_grounding import PatchGroundingProcessor
from grounded_attention.processing.phrase import Phrase
from tests.helpers.tiny_vlm_examples import examples, pictures
from tests.helpers.tiny_vlm_models import make_pair

COUNT = 4
LAYERS = 2
HEADS = 4
QUESTION = "what is this ?"
BOTH = ("llava", "qwen2_5_vl")


def make(model_type, seed=0):
    model, processor = make_pair(model_type)
    torch.manual_seed(seed)
    with torch.no_grad():
        for name, weights in model.named_parameters():
            if "q_proj" in name or "k_proj" in name:
                weights.normal_(std=0.5)  # heads that differ
    return model.eval(), processor


def with_types(count):
    """Phrases with types; the last one of each text has a second box, and every third none."""
    made = []
    seen = 0
    for example in examples(count):
        phrases = []
        for number, phrase in enumerate(example.phrases):
            seen += 1
            boxes = np.concatenate([phrase.boxes, [[0.45, 0.3, 0.6, 0.5]]]) if number else phrase.boxes
            boxes = boxes[:0] if seen % 5 == 0 else boxes.astype(np.float32)
            phrases.append(replace(phrase, boxes=boxes, types=("animals", "other")[number:]))
        made.append(replace(example, phrases=tuple(phrases)))
    return made


@torch.no_grad()
def brute_force(model, processor, given, word="last", merged=False, instruction=None):
    """(group, image) -> items, right by head, share by head, baseline, chance, reachable; one phrase at a time."""
    grounding = PatchGroundingProcessor(processor)
    images = pictures(COUNT)
    sums = {}
    model.set_attn_implementation("eager")
    for example in given:
        for phrase in example.phrases:
            if not len(phrase.boxes):
                continue
            boxes = phrase.boxes
            if merged:
                boxes = np.concatenate([boxes[:, :2].min(0), boxes[:, 2:].max(0)])[None]
            span = {"sentence": int(instruction is not None), "start": phrase.start, "end": phrase.end}
            said = (example.caption, None) if instruction is None else (instruction, example.caption)
            batch = grounding(*said, images=images[example.image_id], phrases=[span])
            maps = model(**grounding.model_inputs(batch), output_attentions=True).attentions
            tokens = [int(p) for p in batch["text_positions"][0][batch["phrase_mask"][0, 0]]]
            rows = {"last": tokens[-1:], "first": tokens[:1], "mean": tokens}[word]
            shown = [r for r in range(batch["region_positions"].shape[1]) if batch["region_candidate_mask"][0, r]]
            columns = [int(batch["region_positions"][0, r]) for r in shown]
            patches = [batch["region_boxes"][0, r].tolist() for r in shown]
            gold = gold_patches(patches, boxes.tolist())
            middles = [((x1 + x2) / 2 - 0.5, (y1 + y2) / 2 - 0.5) for x1, y1, x2, y2 in patches]
            centre = min(range(len(shown)), key=lambda r: round(np.hypot(*middles[r]), 6))
            right = np.zeros((LAYERS, HEADS), int)
            share = np.zeros((LAYERS, HEADS))
            for layer in range(LAYERS):
                for head in range(HEADS):
                    values = [np.mean([float(maps[layer][0, head, row, c]) for row in rows]) for c in columns]
                    right[layer, head] = int(np.argmax(values)) in gold
                    share[layer, head] = sum(values)
            found = [1, right, share, int(centre in gold), len(gold) / len(shown), int(bool(gold))]
            for group in ("all", *phrase.types):
                known = sums.get((group, example.image_id))
                sums[group, example.image_id] = (
                    found if known is None else [a + b for a, b in zip(known, found, strict=True)]
                )
    model.set_attn_implementation("sdpa")
    return sums


def gold_patches(patches, boxes):
    """The patches of which a box covers at least half; for a box without any, the one of which it covers most."""
    gold = set()
    for box in boxes:
        covered = []
        for patch in patches:
            width, height = (min(box[i + 2], patch[i + 2]) - max(box[i], patch[i]) for i in (0, 1))
            covered.append(max(width, 0) * max(height, 0) / ((patch[2] - patch[0]) * (patch[3] - patch[1])))
        enough = {number for number, share in enumerate(covered) if share >= 0.5 - 1e-4}
        gold |= enough or ({int(np.argmax(covered))} if max(covered) > 0 else set())
    return gold


def check(groups, expected):
    assert {(group, image) for group, counts in groups.items() for image in counts.image_ids} == set(expected)
    for group, counts in groups.items():
        for number, image in enumerate(counts.image_ids):
            items, right, share, baseline, chance, reachable = expected[group, image]
            assert counts.items[number] == items
            assert counts.baseline[number] == baseline
            assert (counts.correct[number] == right).all()
            np.testing.assert_allclose(counts.share[number], share, atol=1e-5)
            assert counts.chance[number] == pytest.approx(chance)
            assert counts.reachable[number] == reachable


@pytest.mark.parametrize("model_type", BOTH)
@pytest.mark.parametrize(
    ("word", "merged", "instruction"), [("last", False, None), ("mean", True, QUESTION), ("first", False, QUESTION)]
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


@pytest.mark.parametrize("model_type", BOTH)
def test_words_of_relations_go_the_same_way(model_type):
    model, processor = make(model_type)
    words = []
    for example in examples(COUNT):
        start = example.caption.index(" ") + 1
        phrase = Phrase("", start, example.caption.index(" ", start), boxes=example.phrases[0].boxes, types=("nsubj",))
        words.append(replace(example, phrases=(phrase,)))
    result = audit(model, processor, examples(2), images=pictures(COUNT), relations=words, progress=False)
    expected = brute_force(model, processor, words)
    check(result.relations, {place: sums for place, sums in expected.items() if place[0] == "nsubj"})


@pytest.mark.parametrize("model_type", BOTH)
def test_accuracy_is_the_pointing_game_of_the_ranking(model_type):
    model, processor = make(model_type)
    given = {"images": pictures(COUNT)}
    result = audit(model, processor, examples(COUNT), word="mean", progress=False, **given)
    ranked = rank_heads(model, processor, examples(COUNT), pictures(COUNT), ablate=0, count=1)
    counts = result.entities["text_to_region"]["all"]
    np.testing.assert_allclose(counts.accuracy, ranked.reported_on.counts.accuracy)
    np.testing.assert_allclose(counts.mean_share, ranked.reported_on.counts.mean_share, atol=1e-6)


def test_two_models_are_compared_and_the_card_speaks_of_image_tokens():
    results = []
    for seed in (0, 1):
        model, processor = make("llava", seed)
        about = {"model": str(seed), "data": "d", "split": "test"}
        results.append(audit(model, processor, with_types(COUNT), images=pictures(COUNT), about=about, progress=False))
    changes = compare(*results)
    before, after = (result.entities["text_to_region"]["all"].accuracy for result in results)
    np.testing.assert_allclose(changes.comparisons["text_to_region"].difference, after - before)
    text = results[0].to_card_section()
    assert "image token" in text
    assert "IoU" not in text
    assert "END" not in text
    assert "most confident" not in text
    assert "at least 50% of it" in text
    assert CENTRE in text


def test_a_layer_that_sees_no_image_token_is_never_right():
    model, processor = make_pair("gemma3")
    for module in model.modules():  # two tokens: the words after the image see nothing of it
        if getattr(module, "sliding_window", None):
            module.sliding_window = 2
    model.config.get_text_config().sliding_window = 2
    everywhere = np.array([[0, 0, 1, 1]], dtype=np.float32)  # any answer would be right
    late = [
        AuditExample(one.image_id, "what is this here a dog", (Phrase("a dog", 18, 23, boxes=everywhere),))
        for one in examples(COUNT)
    ]
    result = audit(model, processor, late, images=pictures(COUNT), progress=False)
    counts = result.entities["text_to_region"]["all"]
    ranked = rank_heads(model, processor, late, pictures(COUNT), ablate=0, count=1, words="last")
    assert ranked.reported_on.counts.blind_layers == (0,)
    assert (counts.correct[:, 0] == 0).all()
    assert not counts.active[0].any()
    assert (counts.accuracy[1] == 1).all()
    np.testing.assert_allclose(counts.accuracy, ranked.reported_on.counts.accuracy)


def test_where_image_tokens_see_the_words_both_directions_are_counted():
    model, processor = make_pair("paligemma")
    result = audit(model, processor, examples(COUNT), images=pictures(COUNT), progress=False)
    assert set(result.entities) == {"text_to_region", "region_to_text"}
    check(
        {"all": result.entities["text_to_region"]["all"]},
        brute_force(model, processor, examples(COUNT)),
    )
    counts = result.entities["region_to_text"]["all"]
    grounding = PatchGroundingProcessor(processor)
    images = pictures(COUNT)
    model.set_attn_implementation("eager")
    for number, example in enumerate(examples(COUNT)):
        spans = [{"sentence": 0, "start": p.start, "end": p.end, "boxes": p.boxes} for p in example.phrases]
        batch = grounding(example.caption, images=images[example.image_id], phrases=spans)
        with torch.no_grad():
            maps = model(**grounding.model_inputs(batch), output_attentions=True).attentions
        words = [int(p) for p in batch["text_positions"][0]]
        right = np.zeros((LAYERS, HEADS), int)
        queried = np.flatnonzero(batch["phrase_regions"][0].any(0))
        for region in queried:
            named = batch["phrase_mask"][0][batch["phrase_regions"][0][:, region].bool()].any(0)
            for layer in range(LAYERS):
                row = maps[layer][0][:, int(batch["region_positions"][0, region]), words]
                right[layer] += named[row.argmax(-1)].numpy()
        assert counts.items[number] == len(queried)
        assert (counts.correct[number] == right).all()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"images": None}, "give images"),
        ({"iou_threshold": 0.3}, "see coverage_threshold"),
        ({"directions": ["region_to_text"]}, "is causal: images do not see later words"),
        ({"directions": ["words"]}, "expected some of"),
        ({"images": {}}, "images has no picture of it"),
        ({"regions": {}, "instruction": "say it"}, "only for a vision-language model"),
    ],
)
def test_what_is_refused(options, message):
    model, processor = make("llava")
    with pytest.raises(ValueError, match=message):
        audit(model, processor, examples(1), progress=False, **{"images": pictures(1), **options})


def test_a_family_without_known_image_tokens_is_refused():
    model, processor = make("llava")
    with pytest.raises(ValueError, match="known"):
        audit(model, processor.tokenizer, examples(1), images=pictures(1), progress=False)
