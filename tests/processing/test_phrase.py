# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""The one phrase: what a mapping may say, what is refused, and the same row for a region model and a decoder."""

import json
import re

import numpy as np
import pytest
from PIL import Image
from torch.testing import assert_close

from grounded_attention import PatchGroundingProcessor
from grounded_attention.modeling.grounding_items import find_phrases
from grounded_attention.processing import VisualBERTProcessor
from grounded_attention.processing.phrase import Phrase, read_phrase
from tests.helpers.processing_helpers import FEATURE_SIZE, make_tokenizer
from tests.helpers.tiny_vlm_processors import make_processor as make_decoder_processor

TEXTS = ["a man in a red shirt", "the man runs"]


def read(**values):
    return read_phrase(values, TEXTS, "row 3, phrase 1", False)


def test_words_are_found_in_any_text_and_checked_against_a_span():
    assert read(text="red shirt") == Phrase("red shirt", 11, 20)
    assert read(text="man", sentence=1) == read(start=4, end=7, sentence=1) == Phrase("man", 4, 7, 1)
    assert read(text="man", start=2, end=5) == Phrase("man", 2, 5)
    (phrase,), _ = find_phrases(TEXTS[0], ["red shirt"])
    assert read_phrase(phrase, TEXTS, "x") == phrase == find_phrases(TEXTS[0], [{"text": "red shirt"}])[0][0]


def test_keys_of_earlier_versions_are_read():
    assert read(text=1, start=4, end=7) == read(words="man", message=1) == read(caption=1, text="man")
    assert read(text="runs", entity_id="5", types=None).entity == "5"
    assert read(text="runs", region=2).regions == [2]


WRONG = {
    '{"text": "runs", "bbox": [0, 0, 1, 1]}': "'bbox'.*did you mean 'boxes'",
    '{"text": "runs", "bboxes": []}': "'bboxes'.*did you mean 'boxes'",
    '{"txt": "runs", "boxes": []}': "'txt'.*did you mean 'text'",
    '{"text": "runs", "boxes": [], "colour": 1}': "'colour'.*known: text, start",
    '{"text": "man", "boxes": []}': "'man'.*2 times.*sentence, start and end",
    '{"text": "shir", "boxes": []}': "'shir'.*not in the texts",
    '{"text": "", "boxes": []}': "start and end are None",
    '{"text": "man", "start": 3, "end": 6, "boxes": []}': "'man'.*3 to 6.*'an '",
    '{"text": "man", "sentence": 2, "boxes": []}': "sentence is 2.*2 text",
    '{"text": "runs", "words": "man", "boxes": []}': "'words'.*once more.*'text'",
    '{"text": "runs", "entities": "5", "boxes": []}': "'entities'.*did you mean 'entity'",
    '{"text": "runs"}': r"neither boxes nor regions.*'boxes': \[\]",
}


@pytest.mark.parametrize("phrase, message", WRONG.items())
def test_what_is_wrong_is_named(phrase, message):
    with pytest.raises(ValueError, match=f"row 3, phrase 1.*{message}"):
        read_phrase(json.loads(phrase), TEXTS, "row 3, phrase 1", True)


SHARED = "region_boxes region_attention_mask region_candidate_mask region_image phrase_regions phrase_pairs".split()


def test_one_row_for_a_region_model_and_for_a_decoder():
    """The same phrases by the same call: batches that are equal key by key; tokens are compared by their words."""
    decoder = PatchGroundingProcessor(make_decoder_processor("qwen2_5_vl", byte_pairs=True))
    processor = VisualBERTProcessor(make_tokenizer(), region_feature_size=FEATURE_SIZE)
    image = Image.new("RGB", (48, 32))
    text = "a man in a red shirt"
    (patches,) = decoder(text, images=image)["region_boxes"].numpy()
    phrases = [
        {"text": "a man", "boxes": patches[[1]]},
        {"text": "shirt", "boxes": patches[[0, 3]], "entity": "7"},
        {"text": "red", "boxes": []},
    ]
    given = {"phrases": phrases, "phrase_pairs": [[0, 1]]}
    of_tokens = decoder(text, images=image, **given)
    features = np.ones((len(patches), FEATURE_SIZE))
    of_regions = processor(text, region_boxes=patches, region_features=features, **given)
    for key in SHARED:
        assert_close(of_tokens[key], of_regions[key], rtol=0, atol=0)
    assert of_tokens["phrase_regions"][0].nonzero().tolist() == [[0, 1], [1, 0], [1, 3]]
    assert of_tokens.dropped_phrases == of_regions.dropped_phrases == [[]]
    for batch, tokenizer in ((of_tokens, decoder.tokenizer), (of_regions, processor.tokenizer)):
        words = batch["text_positions"][0]
        positions = [place for place in [*words, *batch["region_positions"][0]] if place >= 0]
        assert len({*map(int, positions)}) == len(positions)  # of one sequence
        for mask, phrase in zip(batch["phrase_mask"][0], phrases, strict=True):
            spelled = tokenizer.decode(batch["input_ids"][0][words[mask]])
            assert re.sub(r"\W", "", spelled) == phrase["text"].replace(" ", "")


def test_a_phrase_names_the_image_of_its_boxes():
    """Regions of two images at the same place: only those of the phrase's image are its own."""
    box = [[0.1, 0.2, 0.4, 0.9]]
    seen = {"region_boxes": box * 2, "region_features": np.ones((2, FEATURE_SIZE)), "region_image_indices": [0, 1]}
    processor = VisualBERTProcessor(make_tokenizer(), region_feature_size=FEATURE_SIZE)
    for image, marks in ((0, [1, 0]), (1, [0, 1]), (None, [1, 1])):
        batch = processor("a man", phrases=[{"text": "man", "boxes": box, "image": image}], **seen)
        assert batch["phrase_regions"].tolist() == [[marks]]
    for image in (2, "x"):
        with pytest.raises(ValueError, match="Example 0, phrase 0: image is"):
            processor("a man", phrases=[{"text": "man", "boxes": box, "image": image}], **seen)
