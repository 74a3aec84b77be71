# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""Image tokens that a user's function finds give the batches of known types, and what it gives is checked."""

import numpy as np
import pytest
import torch
from PIL import Image

from grounded_attention import response_batch
from grounded_attention.processing.image_tokens import locate_image_tokens
from grounded_attention.processing.patch_grounding import PatchGroundingProcessor
from tests.helpers.hub_code import COLUMN_END, PATCH, SeerProcessor, find_columns
from tests.helpers.tiny_vlm_processors import PROCESSORS, make_processor, make_tokenizer, type_of

TEXTS = ["a dog runs\n\nafter the small cat .", "two red balls"]
SIZES = [[(53, 37)], [(31, 64), (90, 20)]]
PHRASES = [
    [{"text": "small cat", "boxes": [[0.2, 0.2, 0.6, 0.7]]}, {"text": "a dog"}],
    [{"text": "red balls", "boxes": [[0.1, 0.2, 0.3, 0.9]], "image": 1}],
]
# GOT-OCR 2 takes one list of the images of all texts; the image of Mllama has no tokens in the sequence.
NESTED = [name for name in PROCESSORS if name not in ("got_ocr2", "mllama")]


def picture(width, height):
    return Image.fromarray(np.random.default_rng(width).integers(0, 255, (height, width, 3), dtype=np.uint8))


IMAGES = [[picture(*size) for size in sizes] for sizes in SIZES]


@pytest.mark.parametrize("padding_side, examples", [("right", [1]), ("right", [0, 1]), ("left", [0, 1])])
@pytest.mark.parametrize("model_type", NESTED)
def test_a_function_that_knows_a_type_makes_its_batches(model_type, padding_side, examples):
    processor = make_processor(model_type, padding_side, byte_pairs=True)
    known = PatchGroundingProcessor(processor, type_of(model_type))

    def find(ids, inputs, sizes):
        assert inputs["input_ids"].tolist() == [ids.tolist()]
        [tokens] = locate_image_tokens(processor, ids[None], [sizes], type_of(model_type), known.image_settings)
        of_image = [tokens.images == image for image in range(len(sizes))]
        return [(tokens.positions[each], tokens.boxes[each]) for each in of_image]

    settings = {**known.family.settings, **known.family.arguments}
    given = PatchGroundingProcessor(processor, image_tokens=find, image_settings=settings)
    texts = [TEXTS[number] for number in examples]
    images = [IMAGES[number] for number in examples]
    phrases = [PHRASES[number] for number in examples]
    expected = known(texts, images=images, phrases=phrases)
    batch = given(texts, images=images, phrases=phrases)
    assert batch.keys() == expected.keys()
    for name, values in expected.items():
        if isinstance(values, torch.Tensor):
            assert torch.equal(values, batch[name]), name
    assert batch.dropped_phrases == expected.dropped_phrases


def test_the_tokens_of_answers_are_learned_as_those_of_a_known_type():
    processor = make_processor("qwen2_5_vl", byte_pairs=True)
    known = PatchGroundingProcessor(processor)

    def find(ids, inputs, sizes):
        [tokens] = locate_image_tokens(processor, ids[None], [sizes])
        return [(tokens.positions, tokens.boxes)]

    given = PatchGroundingProcessor(processor, image_tokens=find)
    answers = ["a cat\nand a dog\n\nnear two balls", "user: what is this"]
    asked = {"images": [IMAGES[0], IMAGES[0]], "labels": True}
    expected = known(["what is this", "user"], answers, **asked)["labels"]
    assert torch.equal(given(["what is this", "user"], answers, **asked)["labels"], expected)
    assert (expected >= 0).any(1).all()


# Code that nobody knows


def seer(**options):
    return PatchGroundingProcessor(SeerProcessor(make_tokenizer(byte_pairs=True)), **options)


def test_a_processor_without_parts_and_template():
    batch = seer(image_tokens=find_columns)(TEXTS, images=IMAGES, phrases=PHRASES)
    for example, sizes in enumerate(SIZES):
        positions = batch["region_positions"][example][batch["region_attention_mask"][example] > 0]
        ids = batch["input_ids"][example, positions]
        has_box = batch["region_candidate_mask"][example, : len(positions)]
        assert {*ids[has_box].tolist()} == {PATCH}
        assert {*ids[~has_box].tolist()} == {COLUMN_END}
        boxes = batch["region_boxes"][example, : len(positions)][has_box]
        assert (boxes[:, 2:] - boxes[:, :2]).prod(1).sum() == pytest.approx(len(sizes))
    words = batch["input_ids"][1][batch["text_positions"][1][batch["phrase_mask"][1, 0]]]
    assert make_tokenizer(byte_pairs=True).decode(words).strip() == "red balls"


def cells(*boxes):
    return np.array(boxes or [[0, 0, 1, 1]], dtype=np.float64)


WRONG = {
    "of each of 1 images": lambda ids: [],
    "each of 1": lambda ids: [([1], cells()), ([2], cells())],
    "positions .n,.": lambda ids: [([1, 2], cells())],
    "boxes .n, 4.": lambda ids: [([1], [[0, 0, 1]])],
    "image_tokens gives None": lambda ids: None,
    "position 99": lambda ids: [([99], cells())],
    "position -1": lambda ids: [([-1], cells())],
    "position 1.5": lambda ids: [([1.5], cells())],
    "position 3": lambda ids: [([3, 2, 3], cells(*[[0, 0, 1, 1]] * 3))],
    "outside the image": lambda ids: [([1], cells([0, 0, 40, 30]))],
    "inverted": lambda ids: [([1], cells([0.5, 0, 0.2, 1]))],
    "four NaN": lambda ids: [([1], cells([0, 0, np.nan, 1]))],
}


@pytest.mark.parametrize("message", WRONG)
def test_what_a_function_gives_is_checked(message):
    grounding = seer(image_tokens=lambda ids, inputs, sizes: WRONG[message](ids))
    with pytest.raises(ValueError, match=message) as error:
        grounding("a dog", images=[IMAGES[0][0]])
    assert "Example 0" in str(error.value)
    assert "\n" not in str(error.value)


def test_words_that_are_not_in_the_tokens_are_an_error():
    class Lower(SeerProcessor):
        def __call__(self, text, **options):
            return super().__call__([each.lower() for each in text], **options)

    grounding = PatchGroundingProcessor(Lower(make_tokenizer(byte_pairs=True)), image_tokens=find_columns)
    with pytest.raises(ValueError, match="'A dog'"):
        grounding("A dog", images=[IMAGES[0][0]])


def test_a_processor_that_cannot_be_called_or_makes_no_batch():
    class Fixed(SeerProcessor):
        def __call__(self, text, images):
            return {}

    class Single(SeerProcessor):
        def __call__(self, text, **options):
            made = super().__call__(text, **options)
            return {name: value[0] for name, value in made.items()}

    tokenizer = make_tokenizer(byte_pairs=True)
    with pytest.raises(ValueError, match="Fixed cannot be called with text, images"):
        PatchGroundingProcessor(Fixed(tokenizer), image_tokens=find_columns)("a dog", images=[IMAGES[0][0]])
    with pytest.raises(ValueError, match="Single makes input_ids"):
        PatchGroundingProcessor(Single(tokenizer), image_tokens=find_columns)("a dog", images=[IMAGES[0][0]])


def test_responses_and_videos_are_refused():
    row = {"image": IMAGES[0][0], "phrases": [{"boxes": [[0, 0, 1, 1]]}]}
    ids = torch.ones(1, 4, dtype=torch.long)
    with pytest.raises(ValueError, match="image_tokens="):
        response_batch(seer(image_tokens=find_columns), {"input_ids": ids, "labels": ids}, [row])
