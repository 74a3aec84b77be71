# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""Grounders: tiny detectors of transformers against one question at a time, the simulated one, our own model."""

import numpy as np
import pytest
import torch
from numpy.testing import assert_allclose
from PIL import Image

from grounded_attention.dataset_scripts.regions.table import Regions, RegionTable, RegionTableWriter
from grounded_attention.labelling.grounder import AttentionGrounder, Candidates, Example, Selection, SimulatedGrounder
from grounded_attention.labelling.zero_shot import (
    TASK,
    FlorenceGrounder,
    ZeroShotGrounder,
    clean,
    load_zero_shot,
    written_probability,
)
from grounded_attention.modeling.grounding_items import find_phrases
from grounded_attention.processing.phrase import Phrase
from grounded_attention.utils.boxes import box_iou
from tests.helpers.tiny_detectors import save_detector, tiny_owlv2
from tests.helpers.tiny_pipeline import BOXES, CAPTION, features, load
from tests.helpers.tiny_vgp import tiny_model, tiny_processor
from tests.labelling.tiny_florence import let_write, tiny_florence

CAPTIONS = {"a red ball and a dog": ["a red ball", "a dog"], "A cat.": ["A cat"], "dog dog": ["dog", "dog"]}


def sides(example):
    return np.tile([example.width, example.height], 2)


def assert_same(found, expected):
    for one, other in zip(found, expected, strict=True):
        assert_allclose(one.boxes, other.boxes, atol=1e-3)
        assert_allclose(one.scores, other.scores, atol=1e-5)


def example(caption, phrases, seed=0, size=(80, 64), **content):
    rng = np.random.default_rng(seed)
    image = Image.fromarray(rng.integers(0, 256, (size[1], size[0], 3), dtype=np.uint8))
    found, _ = find_phrases(caption, phrases)
    return Example(f"c{seed}", f"i{seed}", caption, found, *size, image, **content)


@pytest.fixture
def examples():
    return [example(caption, phrases, seed) for seed, (caption, phrases) in enumerate(CAPTIONS.items())]


@pytest.fixture(scope="module")
def dino(tmp_path_factory):
    folder = save_detector("grounding_dino", tmp_path_factory.mktemp("dino"))
    grounder = load_zero_shot(str(folder))
    # Logits of random weights are so large that the sigmoid of most is 1.
    with torch.no_grad():
        for name, weight in grounder.model.named_parameters():
            if "class_embed" in name or "text_projection" in name:
                weight.mul_(0.05)
    return grounder


@torch.no_grad()
def reference_of_dino(grounder, example, text, words):
    """Boxes and scores of a phrase, token by token: `words` are its tokens in the text, in order."""
    inputs = grounder.processor(images=example.image, text=text, return_tensors="pt")
    outputs = grounder.model(**inputs)
    tokens = grounder.processor.tokenizer.convert_ids_to_tokens(inputs["input_ids"][0])
    start = 0
    while tokens[start : start + len(words)] != words:
        start += 1
    scores = []
    for logits in outputs.logits[0].numpy():
        highest = max(logits[start : start + len(words)])
        scores.append(1 / (1 + np.exp(-highest)))
    x, y, w, h = outputs.pred_boxes[0].T.numpy()
    boxes = np.stack([x - w / 2, y - h / 2, x + w / 2, y + h / 2], axis=1)
    return Candidates(boxes * sides(example), np.array(scores))


@pytest.mark.parametrize(
    "prompt, texts",
    [
        ("phrases", ["a red ball. a dog.", "a cat.", "dog."]),
        ("caption", ["a red ball and a dog.", "a cat.", "dog dog."]),
    ],
)
def test_grounding_dino_against_single_questions(dino, examples, prompt, texts):
    grounder = ZeroShotGrounder(dino.model, dino.processor, prompt=prompt)
    scores = set()
    for example, found, text in zip(examples, grounder.ground(examples), texts, strict=True):
        expected = [reference_of_dino(dino, example, text, clean(phrase.text).split()) for phrase in example.phrases]
        assert_same(found, expected)
        for candidates in found:
            scores |= set(candidates.scores.round(4))
    assert len(scores) > 20, "the scores hardly differ"


def test_grounding_dino_is_the_same_in_any_batch(dino, examples):
    for example, found in zip(examples, dino.ground(examples), strict=True):
        assert_same(dino.ground([example])[0], found)


def test_a_detector_whose_configuration_asks_for_tuples(dino, examples, monkeypatch):
    [named] = dino.ground(examples[:1])
    monkeypatch.setattr(dino.model.config, "return_dict", False)
    [found] = dino.ground(examples[:1])
    assert_same(found, named)


def test_a_phrase_behind_the_longest_text_has_no_box(dino, examples, monkeypatch):
    monkeypatch.setattr(dino.model.config, "max_text_len", 5)
    first, second = dino.ground(examples[:1])[0]
    assert len(first.boxes)
    assert not len(second.boxes)


@torch.no_grad()
def reference_of_owlv2(model, processor, example, phrase):
    """Boxes that touch the image, and their scores."""
    inputs = processor(text=[[clean(phrase.text)]], images=example.image, return_tensors="pt")
    sizes = [(example.height, example.width)]
    [result] = processor.post_process_grounded_object_detection(model(**inputs), threshold=-1, target_sizes=sizes)
    boxes = result["boxes"].numpy()
    inside = (boxes[:, :2] < sides(example)[:2]).all(1) & (boxes[:, 2:] > 0).all(1)
    return Candidates(boxes[inside], result["scores"].numpy()[inside])


def test_owlv2_against_single_questions(examples):
    model, processor = tiny_owlv2()
    examples.append(example("a dog by a red ball", ["a dog", "a red ball"], 7, (96, 40)))
    best = set()
    for given, found in zip(examples, ZeroShotGrounder(model, processor).ground(examples), strict=True):
        assert_same(found, [reference_of_owlv2(model, processor, given, phrase) for phrase in given.phrases])
        for phrase, candidates in zip(given.phrases, found, strict=True):
            stored = Selection().select(candidates, given, phrase)
            assert 0 <= min(stored["boxes"][0])
            assert max(stored["boxes"][0]) <= 1
            assert 0 < stored["scores"][0] < 1
            best.add((given.caption_id, candidates.scores.argmax()))
    assert len(best) > 3


def test_zero_shot_grounders_that_are_refused(tmp_path, dino):
    model, processor = tiny_owlv2()
    with pytest.raises(ValueError, match="--prompt caption needs Grounding DINO: a model of type owlv2"):
        ZeroShotGrounder(model, processor, prompt="caption")
    folder = save_detector("detr", tmp_path / "detr")
    with pytest.raises(ValueError, match=r"a model of type detr; expected one of grounding-dino.*Florence-2"):
        load_zero_shot(str(folder))
    with pytest.raises(ValueError, match=r"--grounder .*nowhere: cannot be used"):
        load_zero_shot(str(tmp_path / "nowhere"))


# Florence-2


def test_written_probability_by_hand():
    logits = torch.randn(3, 2, 5, generator=torch.Generator().manual_seed(0))  # steps, captions, vocabulary
    sequences = torch.tensor([[2, 1, 3, 0], [2, 4, 0, 0]])  # starts with a token that was not written; 0 is padding
    found = written_probability(sequences, list(logits), 0)
    p = logits.softmax(-1)
    assert found[0] == pytest.approx(float((p[0, 0, 1] * p[1, 0, 3]) ** 0.5))
    assert found[1] == pytest.approx(float(p[0, 1, 4]))


@torch.no_grad()
def test_what_a_tiny_florence_writes_becomes_boxes(examples):
    model, processor = tiny_florence()
    # The last box is inverted, and left out.
    boxes = (
        "<loc_100> <loc_200> <loc_500> <loc_900> <loc_0> <loc_0> <loc_999> <loc_999> <loc_9> <loc_9> <loc_3> <loc_3>"
    )
    tokens = let_write(model, f"a dog {boxes} </s>")
    [found] = FlorenceGrounder(model, processor).ground(examples[:1])
    # A place is the middle of one of 1000 steps; the picture has 80 x 64 pixels.
    places = np.array([[100, 200, 500, 900], [0, 0, 999, 999]])
    expected = (places + 0.5) / 1000 * sides(examples[0])
    for candidates, phrase in zip(found, ("a red ball", "a dog"), strict=True):
        assert_allclose(candidates.boxes, expected, atol=1e-3)
        inputs = processor(text=[TASK + phrase], images=[examples[0].image], return_tensors="pt")
        logits = model(**inputs, decoder_input_ids=torch.tensor([[2, *tokens[:-1]]])).logits[0]
        chosen = logits.log_softmax(-1)[range(len(tokens)), tokens]
        assert candidates.scores.tolist() == pytest.approx([chosen.mean().exp().item()] * 2, rel=1e-3)


# The simulated grounder


OBJECTS = [[0.0, 0.0, 0.2, 0.2], [0.02, 0.0, 0.2, 0.2], [0.5, 0.5, 0.7, 0.9], [0.8, 0.1, 0.9, 0.3]]


GOLD = ([OBJECTS[0]], [OBJECTS[2], OBJECTS[3]])


def simulated(wrong, seed=0, count=300):
    """(wrong phrases, boxes) of captions with two phrases about the first and the third object."""
    phrases = [Phrase("a", 0, 1, boxes=GOLD[0]), Phrase("b", 2, 3, boxes=GOLD[1])]
    examples = [Example(f"c{n}", f"i{n}", "a b", phrases, 100, 50, objects=OBJECTS) for n in range(count)]
    boxes = {}
    mistakes = set()
    for given, found in zip(examples, SimulatedGrounder(wrong, seed).ground(examples), strict=True):
        for place, candidates in enumerate(found):
            key = (given.caption_id, place)
            boxes[key] = candidates.boxes / [100, 50, 100, 50]
            gold = GOLD[place]
            if len(boxes[key]) != len(gold) or not np.allclose(boxes[key], gold):
                mistakes.add(key)
    return mistakes, boxes


def test_the_share_of_wrong_boxes():
    assert simulated(0.0)[0] == set()
    wrong, boxes = simulated(0.2)
    assert 0.2 * 600 - 40 < len(wrong) < 0.2 * 600 + 40  # four standard deviations
    others = set()
    for caption, place in wrong:
        [box] = boxes[caption, place]
        assert (box_iou([box], GOLD[place]) < 0.5).all()
        if place == 0:
            others.add(tuple(box.round(2)))
        else:
            assert np.isclose(box, OBJECTS[:2]).all(1).any()
    assert others == {tuple(OBJECTS[2]), tuple(OBJECTS[3])}
    assert simulated(1.0)[0] == set(boxes)


def test_wrong_phrases_stay_wrong_at_a_larger_share_and_follow_the_seed():
    few = simulated(0.2)[0]
    many = simulated(0.5)[0]
    assert few < many
    assert simulated(0.2)[0] == few
    assert simulated(0.2, seed=1)[0] != few


def test_an_image_without_another_object_stays_right():
    each = Example("c", "i", "a", [Phrase("a", 0, 1, boxes=[OBJECTS[0]])], 10, 10, objects=OBJECTS[:2])
    [[found]] = SimulatedGrounder(1.0).ground([each])
    assert np.allclose(found.boxes / 10, [OBJECTS[0]])
    assert 0.5 <= found.scores[0] < 1


# Our own model


def test_attention_of_our_own_model_as_a_grounder(tmp_path):
    model = tmp_path / "model"
    tiny_model().save_pretrained(model)
    tiny_processor().save_pretrained(model)
    boxes = np.array(BOXES, np.float32) / [80, 60, 80, 60]
    with RegionTableWriter(tmp_path / "table", {}) as writer:
        for seed, name in enumerate(("i0", "i1")):
            writer.write(Regions(name, 80, 60, boxes, features(seed=seed).astype("f2")))
    table = RegionTable.open(tmp_path / "table")
    # The second phrase stands before the first, the third is the first again; the image is twice the table's copy.
    phrases = [Phrase("c", 12, 13), Phrase("a b", 0, 3), Phrase("c", 12, 13)]
    examples = [Example(f"c{n}", f"i{n}", CAPTION, phrases, 160, 120) for n in range(2)]
    pipe = load(model)
    grounder = AttentionGrounder(pipe, str(model), table, layer=1, head=0)
    assert not grounder.reads_images
    assert grounder.provenance["name"] == "model"
    assert grounder.provenance["head"] == 0
    for given, found in zip(examples, grounder.ground(examples), strict=True):
        for phrase, candidates in zip(phrases, found, strict=True):
            row = {"caption": CAPTION, "phrases": [phrase.text], "regions": table[given.image_id]}
            alone = pipe(row, layer=1, head=0, top_k=None)
            expected = [list(region["box"].values()) for region in alone]
            assert_allclose(candidates.boxes, 2 * np.array(expected))
            assert_allclose(candidates.scores, [region["score"] for region in alone], atol=1e-5)
            assert sum(candidates.scores) == pytest.approx(1, abs=1e-4)
