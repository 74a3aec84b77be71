# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""Grounders: tiny detectors of transformers against one question at a time, the simulated one, our own model."""

import numpy as np
import pytest
import torch
from PIL import Image

from grounded_attention.dataset_scripts.regions.table import Regions, RegionTable, RegionTableWriter
from grounded_attention.labelling.grounder import AttentionGrounder, Example, Selection, SimulatedGrounder
from grounded_attention.labelling.zero_shot import (
    TASK,
    FlorenceGrounder,
    ZeroShotGrounder,
    clean,
    load_zero_shot,
    written_probability,
)
from grounded_attention.modeling.caption_phrases import find_phrases
from grounded_attention.processing.phrase import Phrase
from grounded_attention.utils.boxes import box_iou
from tests.helpers.tiny_detectors import save_detector, tiny_owlv2
from tests.helpers.tiny_pipeline import BOXES, CAPTION, features, load
from tests.helpers.tiny_vgp import tiny_model, tiny_processor
from tests.labelling.tiny_florence import let_write, tiny_florence

CAPTIONS = {"a red ball and a dog": ["a red ball", "a dog"], "A cat.": ["A cat"], "dog dog": ["dog", "dog"]}


def example(caption, phrases, seed=0, size=(80, 64), **content):
    rng = np.random.default_rng(seed)
    image = Image.fromarray(rng.integers(0, 256, (size[1], size[0], 3), dtype=np.uint8))
    found, _ = find_phrases(caption, phrases)
    return Example(f"c{seed}", f"i{seed}", caption, found, *size, image, **content)


@pytest.fixture
def examples():
    return [example(caption, phrases, seed) for seed, (caption, phrases) in enumerate(CAPTIONS.items())]


def best(found, each, phrase):
    """The stored box in pixels and its score."""
    stored = Selection().select(found, each, phrase)
    return np.array(stored["boxes"][0]) * np.tile([each.width, each.height], 2), stored["scores"][0]


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


def reference_of_dino(grounder, each, text, words):
    """Boxes and scores of a phrase, token by token: `words` are its tokens in the text, in order."""
    inputs = grounder.processor(images=each.image, text=text, return_tensors="pt")
    with torch.no_grad():
        outputs = grounder.model(**inputs)
    tokens = grounder.processor.tokenizer.convert_ids_to_tokens(inputs["input_ids"][0])
    start = next(i for i in range(len(tokens)) if tokens[i : i + len(words)] == words)
    scores = np.zeros(outputs.logits.shape[1])
    for box in range(len(scores)):
        for token in range(start, start + len(words)):
            scores[box] = max(scores[box], 1 / (1 + np.exp(-float(outputs.logits[0, box, token]))))
    x, y, w, h = outputs.pred_boxes[0].T.numpy()
    boxes = np.stack([x - w / 2, y - h / 2, x + w / 2, y + h / 2], axis=1)
    return boxes * np.tile([each.width, each.height], 2), scores


@pytest.mark.parametrize("prompt", ["phrases", "caption"])
def test_grounding_dino_against_single_questions(dino, examples, prompt):
    grounder = ZeroShotGrounder(dino.model, dino.processor, prompt=prompt)
    texts = ["a red ball. a dog.", "a cat.", "dog."]
    if prompt != "phrases":
        texts = ["a red ball and a dog.", "a cat.", "dog dog."]
    scores_seen = set()
    for each, found, text in zip(examples, grounder.ground(examples), texts, strict=True):
        assert len(found) == len(each.phrases)
        for phrase, candidates in zip(each.phrases, found, strict=True):
            boxes, scores = reference_of_dino(grounder, each, text, clean(phrase.text).split())
            assert len(candidates.scores) == len(scores)
            assert np.allclose(candidates.boxes, boxes, atol=1e-3)
            assert np.allclose(candidates.scores, scores, atol=1e-5)
            scores_seen |= set(np.round(candidates.scores, 4))
    assert len(scores_seen) > 20, "the scores hardly differ"


def test_grounding_dino_is_the_same_in_any_batch(dino, examples):
    together = dino.ground(examples)
    for each, found in zip(examples, together, strict=True):
        for alone, one in zip(dino.ground([each])[0], found, strict=True):
            assert np.allclose(alone.boxes, one.boxes, atol=1e-3)
            assert np.allclose(alone.scores, one.scores, atol=1e-5)


def test_a_detector_whose_configuration_asks_for_tuples(dino, examples, monkeypatch):
    named = dino.ground(examples)
    monkeypatch.setattr(dino.model.config, "return_dict", False)
    for found, expected in zip(dino.ground(examples), named, strict=True):
        for one, other in zip(found, expected, strict=True):
            np.testing.assert_array_equal(one.boxes, other.boxes)
            np.testing.assert_array_equal(one.scores, other.scores)


def test_a_phrase_behind_the_longest_text_has_no_box(dino, examples, monkeypatch):
    monkeypatch.setattr(dino.model.config, "max_text_len", 5)
    first, second = dino.ground(examples[:1])[0]
    assert len(first.boxes)
    assert not len(second.boxes)


def test_owlv2_against_single_questions(examples):
    model, processor = tiny_owlv2()
    grounder = ZeroShotGrounder(model, processor)
    wide = example("a dog by a red ball", ["a dog", "a red ball"], 7, (96, 40))
    given = [*examples, wide]
    different = set()
    for each, found in zip(given, grounder.ground(given), strict=True):
        for phrase, candidates in zip(each.phrases, found, strict=True):
            inputs = processor(text=[[clean(phrase.text)]], images=each.image, return_tensors="pt")
            with torch.no_grad():
                outputs = model(**inputs)
            sizes = [(each.height, each.width)]
            [result] = processor.post_process_grounded_object_detection(outputs, threshold=-1, target_sizes=sizes)
            boxes = result["boxes"].numpy()
            scores = result["scores"].numpy()
            inside = [i for i in range(len(boxes)) if boxes[i, 0] < each.width and boxes[i, 1] < each.height]
            inside = [i for i in inside if boxes[i, 2] > 0 and boxes[i, 3] > 0]
            assert np.allclose(candidates.boxes, boxes[inside], atol=1e-3)
            assert np.allclose(candidates.scores, scores[inside], atol=1e-5)
            box, score = best(candidates, each, phrase)
            assert (box >= 0).all()
            assert (box <= np.tile([each.width, each.height], 2) + 1e-4).all()
            assert 0 < score < 1
            different.add((each.caption_id, int(candidates.scores.argmax())))
    assert len(different) > 3


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


def test_what_a_tiny_florence_writes_becomes_boxes(examples):
    model, processor = tiny_florence()
    # The last box is inverted, and left out.
    boxes = (
        "<loc_100> <loc_200> <loc_500> <loc_900> <loc_0> <loc_0> <loc_999> <loc_999> <loc_9> <loc_9> <loc_3> <loc_3>"
    )
    tokens = let_write(model, f"a dog {boxes} </s>")
    [[first, second]] = FlorenceGrounder(model, processor).ground(examples[:1])
    # A place is the middle of one of 1000 steps; the picture has 80 x 64 pixels.
    wanted = [[100, 200, 500, 900], [0, 0, 999, 999]]
    wanted = [[(place + 0.5) * side / 1000 for place, side in zip(box, (80, 64) * 2, strict=True)] for box in wanted]
    for found, phrase in ((first, "a red ball"), (second, "a dog")):
        assert np.allclose(found.boxes, wanted, atol=1e-3)
        inputs = processor(text=[TASK + phrase], images=[examples[0].image], return_tensors="pt")
        written = torch.tensor([[2, *tokens]])
        with torch.no_grad():
            logits = model(**inputs, decoder_input_ids=written[:, :-1]).logits[0]
        chosen = [float(logits[step].log_softmax(-1)[token]) for step, token in enumerate(tokens)]
        assert found.scores.tolist() == pytest.approx([np.exp(np.mean(chosen))] * 2, rel=1e-3)


# The simulated grounder


OBJECTS = [[0.0, 0.0, 0.2, 0.2], [0.02, 0.0, 0.2, 0.2], [0.5, 0.5, 0.7, 0.9], [0.8, 0.1, 0.9, 0.3]]


def simulated(wrong, seed=0, count=300):
    """(wrong phrases, boxes) of captions with two phrases about the first and the third object."""
    gold = [[OBJECTS[0]], [OBJECTS[2], OBJECTS[3]]]
    phrases = [Phrase("a", 0, 1, boxes=gold[0]), Phrase("b", 2, 3, boxes=gold[1])]
    cases = [Example(f"c{n}", f"i{n}", "a b", phrases, 100, 50, objects=OBJECTS) for n in range(count)]
    boxes = {}
    for each, found in zip(cases, SimulatedGrounder(wrong, seed).ground(cases), strict=True):
        for place, candidates in enumerate(found):
            boxes[each.caption_id, place] = candidates.boxes / [100, 50, 100, 50]
    wanted = {key: np.array(gold[key[1]]) for key in boxes}
    right = {k for k, found in boxes.items() if found.shape == wanted[k].shape and np.allclose(found, wanted[k])}
    return set(boxes) - right, boxes


def test_the_share_of_wrong_boxes():
    assert simulated(0.0)[0] == set()
    wrong, boxes = simulated(0.2)
    assert 0.2 * 600 - 40 < len(wrong) < 0.2 * 600 + 40  # four standard deviations
    for caption, place in wrong:
        [box] = boxes[caption, place]
        gold = [[OBJECTS[0]], [OBJECTS[2], OBJECTS[3]]][place]
        assert any(np.allclose(box, other) for other in OBJECTS)
        assert (box_iou([box], gold) < 0.5).all()
    assert simulated(1.0)[0] == set(boxes)
    others = {tuple(np.round(boxes[key][0], 2)) for key in wrong if key[1] == 0}
    assert others == {tuple(OBJECTS[2]), tuple(OBJECTS[3])}


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
    tiny_model().save_pretrained(tmp_path / "model")
    tiny_processor().save_pretrained(tmp_path / "model")
    boxes = np.array(BOXES, np.float32) / [80, 60, 80, 60]
    with RegionTableWriter(tmp_path / "table", {}) as writer:
        for name in ("i0", "i1"):
            writer.write(Regions(name, 80, 60, boxes, features(seed=len(name)).astype("f2")))
    table = RegionTable.open(tmp_path / "table")
    # The second phrase stands before the first, the third is the first again; the image is twice the table's copy.
    phrases = [Phrase("c", 12, 13), Phrase("a b", 0, 3), Phrase("c", 12, 13)]
    cases = [Example(f"c{n}", f"i{n}", CAPTION, phrases, 160, 120) for n in range(2)]
    pipe = load(tmp_path / "model")
    grounder = AttentionGrounder(pipe, str(tmp_path / "model"), table, layer=1, head=0)
    assert not grounder.reads_images
    assert grounder.provenance["name"] == "model"
    assert grounder.provenance["head"] == 0
    for each, found in zip(cases, grounder.ground(cases), strict=True):
        for phrase, candidates in zip(phrases, found, strict=True):
            given = {"caption": CAPTION, "phrases": [phrase.text], "regions": table[each.image_id]}
            alone = pipe(given, layer=1, head=0, top_k=None)
            assert candidates.scores.tolist() == pytest.approx([one["score"] for one in alone], abs=1e-5)
            wanted = [[2 * value for value in one["box"].values()] for one in alone]
            assert np.allclose(candidates.boxes, wanted)
            assert sum(candidates.scores) == pytest.approx(1, abs=1e-4)
