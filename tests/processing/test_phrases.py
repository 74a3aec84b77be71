# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
import copy
import json
import pickle
import random

import numpy as np
import pytest
import torch

from grounded_attention.processing import DroppedPhrase
from tests.helpers.plain_overlap import plain_iou
from tests.helpers.processing_helpers import FEATURE_SIZE, make_processor, make_tokenizer, span

BOXES = np.array(
    [[0.0, 0.0, 0.5, 0.5], [0.1, 0.0, 0.6, 0.5], [0.5, 0.5, 1.0, 1.0], [0.0, 0.0, 1.0, 1.0]], dtype=np.float32
)
REGIONS = {"region_features": np.ones((4, FEATURE_SIZE), dtype=np.float16), "region_boxes": BOXES}
TEXT = "A man in a red shirt"
PAIR = "two men's umbrellas , running"


def words_of(inputs, phrase, example=0):
    ids = inputs["input_ids"][example][inputs["phrase_mask"][example, phrase]]
    return make_tokenizer().convert_ids_to_tokens(ids)


def test_spans_become_the_pieces_they_touch():
    phrases = [span(TEXT, words) for words in ("A man", " red ", "hir")]
    phrases += [span(PAIR, words, of=1) for words in ("men's umbrellas", "ning")]
    inputs = make_processor()(TEXT, PAIR, phrases=phrases)
    assert inputs["phrase_mask"].shape == (1, 5, inputs["input_ids"].shape[1])
    assert inputs["phrase_mask"].dtype == torch.bool
    expected = [["a", "man"], ["red"], ["shirt"], ["men", "'", "[UNK]", "umbrella", "##s"], ["##ning"]]
    assert [words_of(inputs, index) for index in range(5)] == expected
    # Text-only inputs have no regions, and so no region masks.
    assert "phrase_regions" not in inputs


def test_masks_equal_the_tokenizers_character_map():
    """Random spans in texts with accents, wide characters and unknown words, against `char_to_token`."""
    source = random.Random(0)
    alphabet = ["café", "naïve", "日本", "dogs", "  ", "red", "\u00a0", "😀", "man,", "[MASK]"]
    texts = [[" ".join(source.choices(alphabet, k=9)) for _ in range(20)] for _ in range(2)]
    phrases = []
    for pair in zip(*texts, strict=True):
        spans = []
        for of in source.choices([0, 1], k=6):
            start = source.randrange(len(pair[of]))
            spans.append({"sentence": of, "start": start, "end": source.randint(start, len(pair[of]))})
        phrases.append(spans)
    inputs = make_processor()(*texts, phrases=phrases)
    encoding = make_tokenizer()(*texts, split_special_tokens=True, padding=True, return_tensors="pt")
    assert torch.equal(inputs["input_ids"], encoding["input_ids"])
    for example, spans in enumerate(phrases):
        dropped = {record.phrase: record.reason for record in inputs.dropped_phrases[example]}
        for row, phrase in enumerate(spans):
            characters = range(phrase["start"], phrase["end"])
            tokens = {encoding.char_to_token(example, at, phrase["sentence"]) for at in characters} - {None}
            found = inputs["phrase_mask"][example, row].nonzero().flatten()
            assert found.tolist() == sorted(tokens)
            assert dropped.get(row) == (None if tokens else "no token")


def random_boxes(rng, count):
    return np.sort(rng.random((count, 2, 2)), axis=1).reshape(-1, 4).astype(np.float32)


@pytest.mark.parametrize("threshold", [0.2, 0.5, 0.8])
def test_gold_boxes_take_the_regions_that_overlap_enough(threshold):
    rng = np.random.default_rng(3)
    boxes = random_boxes(rng, 7)
    gold = [random_boxes(rng, number % 3) for number in range(6)]
    gold[1] = boxes[[2]]
    phrases = [span(TEXT, "man", boxes=of_phrase.tolist()) for of_phrase in gold]
    features = np.ones((7, FEATURE_SIZE))
    processor = make_processor(iou_threshold=threshold)
    found = processor(TEXT, region_features=features, region_boxes=boxes, phrases=phrases)["phrase_regions"][0]
    assert found.shape == (6, 8)
    for row, of_phrase in zip(found[:, 1:].tolist(), gold, strict=True):
        assert row == [any(plain_iou(box, other) >= threshold for other in of_phrase) for box in boxes]
    assert found[1, 3]


def test_whole_image_is_never_gold():
    inputs = make_processor()(TEXT, **REGIONS, phrases=[span(TEXT, "man", boxes=[[0, 0, 1, 1]])])
    assert inputs["phrase_regions"].tolist() == [[[False, False, False, False, True]]]


def test_indices_and_no_grounding():
    phrases = [
        span(TEXT, "man", entity="7"),
        span(TEXT, "A", regions=[3, 0]),
        span(TEXT, "in"),
        span(TEXT, "in", boxes=[]),
        span(TEXT, "in", boxes=[[0, 0, 1, 1]], regions=[0]),
    ]
    inputs = make_processor()(TEXT, **REGIONS, phrases=phrases)
    found = [row.nonzero().flatten().tolist() for row in inputs["phrase_regions"][0]]
    assert found == [[], [1, 4], [], [], [1]]
    assert inputs["phrase_mask"].any(dim=2).all()
    assert inputs.dropped_phrases == [[]]


def test_truncation_reports_and_keeps_every_place():
    phrases = [span(TEXT, "A man", regions=[0]), span(TEXT, "a red shirt", regions=[1]), span(TEXT, "in", regions=[2])]
    inputs = make_processor()(
        [TEXT, "a"],
        region_features=[REGIONS["region_features"]] * 2,
        region_boxes=[BOXES] * 2,
        phrases=[phrases, None],
        phrase_pairs=[[[0, 2], [1, 2], [0, 1]], None],
        max_length=7,
    )
    assert inputs["input_ids"].shape == (2, 7)
    assert words_of(inputs, 0) == ["a", "man"]
    assert words_of(inputs, 2) == ["in"]
    assert not inputs["phrase_mask"][0, 1].any()
    assert not inputs["phrase_regions"][0, 1].any()
    lost = [-1, -1]
    assert inputs["phrase_pairs"].tolist() == [[[0, 2], lost, lost], [lost, lost, lost]]
    assert inputs.dropped_phrases == [[DroppedPhrase(1, "a red shirt", "truncated")], []]
    assert "dropped_phrases" not in inputs


def test_dropped_phrases_are_logged(monkeypatch):
    from grounded_attention.processing import phrase_arrays

    lines: list[str] = []
    monkeypatch.setattr(phrase_arrays.logger, "warning", lines.append)
    make_processor()(TEXT, phrases=[span(TEXT, "shirt"), span(TEXT, "A")], max_length=4)
    assert lines == ["1 of 2 phrases lost their label: example 0, phrase 0 ('shirt'): truncated (`dropped_phrases`)."]
    make_processor()(TEXT, phrases=[span(TEXT, "shirt")])
    assert len(lines) == 1


def test_a_phrase_whose_regions_are_all_cut_stays_as_ungrounded():
    phrases = [span(TEXT, "man", regions=[1, 3]), span(TEXT, "red", regions=[2]), span(TEXT, "shirt")]
    inputs = make_processor(max_regions=2)(TEXT, **REGIONS, phrases=phrases, phrase_pairs=[[0, 1]])
    assert [row.nonzero().flatten().tolist() for row in inputs["phrase_regions"][0]] == [[2], [], []]
    assert inputs["phrase_mask"].any(dim=2).all()
    assert inputs["phrase_pairs"].tolist() == [[[0, 1]]]
    assert inputs.dropped_phrases == [[DroppedPhrase(1, "red", "regions cut")]]


def test_indices_follow_their_regions_when_scores_choose():
    phrases = [span(TEXT, "man", regions=[0, 3])]
    inputs = make_processor(max_regions=2)(TEXT, **REGIONS, region_scores=[0.1, 0.2, 0.9, 0.8], phrases=phrases)
    assert inputs["phrase_regions"].tolist() == [[[0, 0, 1]]]


def test_ragged_and_empty_batches_of_phrases():
    inputs = make_processor()(["a man", TEXT], phrases=[[span("a man", "man")], []], phrase_pairs=[[], []])
    assert inputs["phrase_mask"].any(dim=2).tolist() == [[True], [False]]
    assert inputs["phrase_pairs"].shape == (2, 0, 2)
    assert make_processor()(TEXT, **REGIONS, phrases=[])["phrase_regions"].shape == (1, 0, 5)


BAD_PHRASES = {
    '{"sentence": 0, "start": 2, "end": 99}': "phrase 1: characters 2 to 99 are outside its text 'A man",
    '{"sentence": 0, "start": -1, "end": 3}': "characters -1 to 3 are outside",
    '{"sentence": 0, "start": 5, "end": 3}': "characters 5 to 3 are outside",
    '{"sentence": 1, "start": 0, "end": 3}': r"sentence is 1, but the example has 1 text\(s\)",
    '{"text": "A man", "start": 0, "end": 3}': "text is 'A man', but characters 0 to 3 are 'A m'",
    '{"start": 0}': "phrase 1: start and end are 0 and None",
    '{"start": 0, "end": 3, "regions": [4]}': r"regions \[4\], but the example has 4 regions",
    '{"start": 0, "end": 3, "regions": [-1]}': r"regions \[-1\]",
    '{"start": 0, "end": 3, "regions": "0"}': "phrase 1, regions: values of type <U1",
    '{"start": 0, "end": 3, "regions": [false, true, false, false]}': "phrase 1: regions .* not integers",
    '{"start": 0, "end": 3, "regions": [0.7]}': "phrase 1: regions .* not integers",
    '{"start": 0, "end": 3, "boxes": [[0, 0, 30, 30]]}': "gold box .* outside .* always normalised",
    '{"start": 0, "end": 3, "boxes": [[0.5, 0, 0.1, 1]]}': "gold box .* is inverted",
    '{"start": 0, "end": 3, "boxes": [[0, 0, 1, 1], [0]]}': "phrase 1, boxes: .* rows of equal length",
    '{"start": 0, "end": 3, "boxes": "abcd"}': "phrase 1, boxes: values of type <U4",
    '{"start": 0, "end": 3, "boxes": 7}': r"expected \[\[x1, y1, x2, y2\], ...\]",
    '{"start": 0, "end": 3, "boxes": [0, 0, 1, 1]}': r"expected \[\[x1, y1, x2, y2\], ...\]",
}


@pytest.mark.parametrize("phrase, message", BAD_PHRASES.items())
def test_bad_phrases_are_named(phrase, message):
    phrases = [[], [span(TEXT, "man"), json.loads(phrase)]]
    batch = {key: [value, value] for key, value in REGIONS.items()}
    with pytest.raises(ValueError, match=f"Example 1, .*{message}"):
        make_processor()([TEXT, TEXT], **batch, phrases=phrases)


@pytest.mark.parametrize("pairs", ["[[0, 2]]", "[[0, 1.6]]", "[[0, 1, 1]]", "[0, 1]"])
def test_bad_pairs_are_named(pairs):
    phrases = [span(TEXT, "man"), span(TEXT, "shirt")]
    with pytest.raises(ValueError, match="Example 0: phrase_pairs"):
        make_processor()(TEXT, phrases=phrases, phrase_pairs=json.loads(pairs))


def test_report_survives_moving_copying_and_pickling():
    inputs = make_processor()(TEXT, phrases=[span(TEXT, "shirt")], max_length=4)
    expected = [[DroppedPhrase(0, "shirt", "truncated")]]
    # Pickled as a loader process hands it over; our own object, not a file's.
    for other in (inputs.to("cpu"), copy.copy(inputs), pickle.loads(pickle.dumps(inputs))):
        assert other.dropped_phrases == expected
        assert torch.equal(other["input_ids"], inputs["input_ids"])


def test_a_batch_needs_a_list_of_phrases_for_each_example():
    with pytest.raises(ValueError, match="Example 0, phrase 0: 'sentence' is not a dictionary"):
        make_processor()([TEXT], phrases=[span(TEXT, "man")])
