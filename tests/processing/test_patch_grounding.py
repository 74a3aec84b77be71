# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""`PatchGroundingProcessor`: words and image tokens of phrases, found by decoding tokens and by loops over boxes."""

import re
from dataclasses import replace

import numpy as np
import pytest
import torch
from PIL import Image, ImageFilter

from grounded_attention.heads.examples import AuditExample, PromptSettings, make_batch
from grounded_attention.processing import patch_grounding
from grounded_attention.processing.grounded_batch import DroppedPhrase
from grounded_attention.processing.image_tokens import IMAGE_TOKEN_FAMILIES, Token, locate_image_tokens
from grounded_attention.processing.patch_grounding import GROUNDING_KEYS, PatchGroundingProcessor, match_coverage
from grounded_attention.processing.phrase import Phrase
from tests.helpers.tiny_vlm_processors import PROCESSORS, make_processor, placeholder, type_of

FIRST = "a dog runs after the small cat ."
SECOND = "two red balls"
SIZES = [[(53, 37)], [(31, 64), (90, 20)]]


def picture(width, height):
    return np.random.default_rng(width).integers(0, 255, (height, width, 3), dtype=np.uint8)


IMAGES = [[picture(*size) for size in sizes] for sizes in SIZES]


def phrase(text, words, which=0, **other):
    start = text.index(words)
    return {"sentence": which, "start": start, "end": start + len(words), **other}


def words_of(processor, batch, example, row):
    """The words of the sequence at the positions that a phrase marks."""
    positions = batch["text_positions"][example][batch["phrase_mask"][example, row]]
    assert (positions >= 0).all()
    return processor.tokenizer.convert_ids_to_tokens(batch["input_ids"][example][positions])


def gold_by_hand(tokens, boxes, image, threshold):
    marks = [False] * len(tokens.positions)
    for x1, y1, x2, y2 in boxes:
        shares = [0.0] * len(marks)
        for index, (left, top, right, bottom) in enumerate(tokens.boxes.tolist()):
            if tokens.has_box[index] and tokens.images[index] == image:
                shared = max(0.0, min(right, x2) - max(left, x1)) * max(0.0, min(bottom, y2) - max(top, y1))
                shares[index] = shared / ((right - left) * (bottom - top))
        enough = [share >= threshold for share in shares]
        if not any(enough) and max(shares) > 0:
            enough[shares.index(max(shares))] = True
        marks = [mark or more for mark, more in zip(marks, enough, strict=True)]
    return marks


@pytest.mark.parametrize("padding_side", ["right", "left"])
@pytest.mark.parametrize("model_type", PROCESSORS)
def test_words_and_image_tokens_of_phrases(model_type, padding_side):
    processor = make_processor(model_type, padding_side)
    boxes = [[[0.2, 0.1, 0.9, 0.7]], [[0.4, 0.45, 0.43, 0.5], [0.0, 0.6, 0.3, 1.0]], [[0.1, 0.2, 0.6, 0.9]]]
    phrases = [
        [phrase(FIRST, "a dog", boxes=boxes[0]), phrase(FIRST, "small cat", boxes=boxes[1]), phrase(FIRST, "runs")],
        [phrase(SECOND, "red balls", boxes=boxes[2], image=1), phrase(SECOND, "two", regions=[0, 3])],
    ]
    grounding = PatchGroundingProcessor(processor, coverage_threshold=0.59)
    batch = grounding([FIRST, SECOND], images=IMAGES, phrases=phrases, phrase_pairs=[[[0, 2]], None])
    first, second = locate_image_tokens(processor, batch["input_ids"], SIZES)
    assert words_of(processor, batch, 0, 0) == ["a", "dog"]
    assert words_of(processor, batch, 0, 1) == ["small", "cat"]
    assert words_of(processor, batch, 0, 2) == ["runs"]
    assert words_of(processor, batch, 1, 0) == ["red", "balls"]
    regions = batch["phrase_regions"]
    for row in range(2):
        assert regions[0, row, : len(first.positions)].tolist() == gold_by_hand(first, boxes[row], 0, 0.59)
        assert regions[0, row].any()
    assert regions[1, 0, : len(second.positions)].tolist() == gold_by_hand(second, boxes[2], 1, 0.59)
    assert not regions[0, 2].any()
    assert regions[1, 1].nonzero().flatten().tolist() == [0, 3]
    for example, tokens in enumerate((first, second)):
        count = len(tokens.positions)
        assert batch["region_positions"][example].tolist() == [
            *tokens.positions.tolist(),
            *[-1] * (regions.shape[2] - count),
        ]
        assert batch["region_attention_mask"][example].sum() == count
        assert batch["region_candidate_mask"][example, :count].tolist() == tokens.has_box.tolist()
        assert not batch["region_candidate_mask"][example, count:].any()
        np.testing.assert_array_equal(batch["region_boxes"][example, :count], np.nan_to_num(tokens.boxes))
        assert batch["region_image"][example, :count].tolist() == tokens.images.tolist()
    # The text columns are all words of the texts, in order, wherever the template and the padding put them.
    for example, text in enumerate((FIRST, SECOND)):
        positions = batch["text_positions"][example]
        ids = batch["input_ids"][example][positions[positions >= 0]]
        assert processor.tokenizer.convert_ids_to_tokens(ids) == text.split()
    assert batch["phrase_pairs"].tolist() == [[[0, 2]], [[-1, -1]]]


@pytest.mark.parametrize("model_type", PROCESSORS)
def test_the_model_reads_what_its_own_processor_makes(model_type):
    processor = make_processor(model_type, "left")
    batch = PatchGroundingProcessor(processor)([FIRST, SECOND], images=IMAGES)
    image = placeholder(processor)
    if processor.chat_template is None:
        prompts = [image + FIRST, image * 2 + SECOND]
    else:
        prompts = [
            processor.apply_chat_template(
                [{"role": "user", "content": [{"type": "image"}] * count + [{"type": "text", "text": text}]}],
                add_generation_prompt=True,
            )
            for text, count in ((FIRST, 1), (SECOND, 2))
        ]
    family = IMAGE_TOKEN_FAMILIES[type_of(model_type)]
    expected = processor(
        text=prompts, images=family.arrange(IMAGES), padding=True, return_tensors="pt", **family.arguments
    )
    expected.pop("labels", None)
    found = PatchGroundingProcessor.model_inputs(batch)
    assert found.keys() == dict(expected).keys()
    for key, value in expected.items():
        assert torch.equal(torch.as_tensor(found[key]), torch.as_tensor(value)), key


@pytest.mark.parametrize("model_type", ["llava", "gemma3", "smolvlm", "internvl"])
def test_conversations_and_answers(model_type):
    """The same words stand in the question and in the answer; spans count in the text that they name."""
    processor = make_processor(model_type)
    grounding = PatchGroundingProcessor(
        processor, image_settings={"do_pan_and_scan": True} if model_type == "gemma3" else {}
    )
    question = "  what is a dog ? \n"
    answer = "a dog is a dog"
    phrases = [phrase(question, "a dog"), {"sentence": 1, "start": 9, "end": 14, "boxes": [[0.0, 0.0, 1.0, 1.0]]}]
    batch = grounding(question, answer, images=IMAGES[0], phrases=phrases)
    ids = processor.tokenizer.convert_ids_to_tokens(batch["input_ids"][0])
    places = [batch["text_positions"][0][mask].tolist() for mask in batch["phrase_mask"][0]]
    dogs = [index for index, word in enumerate(ids) if word == "dog"]
    assert places == [[dogs[0] - 1, dogs[0]], [dogs[2] - 1, dogs[2]]]
    conversation = [
        {"role": "user", "content": [{"type": "image"}, {"type": "text", "text": question}]},
        {"role": "assistant", "content": [{"type": "text", "text": answer}]},
    ]
    same = grounding(conversation, images=IMAGES[0], phrases=phrases)
    assert all(torch.equal(batch[key], same[key]) for key in ("input_ids", *GROUNDING_KEYS) if key in batch)
    assert torch.equal(batch["phrase_regions"][0, 1], batch["region_candidate_mask"][0])


@pytest.mark.parametrize("model_type", PROCESSORS)
def test_a_prompt_with_image_tokens_is_used_as_it_is(model_type):
    processor = make_processor(model_type)
    image = placeholder(processor)
    text = f"two {image} balls near a dog {image} runs"
    phrases = [phrase(text, "balls near"), phrase(text, "runs"), phrase(text, "two")]
    batch = PatchGroundingProcessor(processor)([text], images=[IMAGES[1]], phrases=[phrases])
    assert [words_of(processor, batch, 0, row) for row in range(3)] == [["balls", "near"], ["runs"], ["two"]]
    tokens = batch["region_positions"][0]
    between = batch["text_positions"][0][batch["phrase_mask"][0, 0]]
    assert (tokens[batch["region_image"][0] == 0] < between[0]).all()
    assert (tokens[batch["region_image"][0] == 1] > between[0]).all()


def test_examples_without_an_image():
    batch = PatchGroundingProcessor(make_processor("qwen2_5_vl"))([FIRST, SECOND], images=[IMAGES[0], None])
    assert batch["region_attention_mask"].sum(1).tolist()[1] == 0
    assert "image_grid_thw" in batch
    batch = PatchGroundingProcessor(make_processor("llava"))(FIRST, phrases=[phrase(FIRST, "a dog")])
    assert "pixel_values" not in batch
    assert batch["region_positions"].tolist() == [[-1]]
    assert batch["phrase_mask"].sum() == 2


def test_a_mask_of_the_whole_sequence_is_never_as_long_as_the_text():
    """`attention_mask` (B, N) is told from a mask of T tokens by its length."""
    processor = make_processor("llava")
    processor.chat_template = None
    batch = PatchGroundingProcessor(processor)(["a dog runs", "cat"])
    assert batch["text_positions"].tolist() == [[0, 1, 2, -1], [0, -1, -1, -1]]


def test_a_box_outside_of_what_the_model_sees_is_reported(caplog):
    """LLaVA crops the centre of a wide image."""
    processor = PatchGroundingProcessor(make_processor("llava"))
    phrases = [
        phrase(FIRST, "a dog", boxes=[[0.0, 0.0, 0.1, 1.0]]),
        phrase(FIRST, "cat", boxes=[[0.45, 0.0, 0.5, 1.0]]),
        {"sentence": 0, "start": 5, "end": 6, "boxes": [[0.45, 0.0, 0.5, 1.0]]},
    ]
    batch = processor(FIRST, images=picture(90, 20), phrases=phrases)
    assert batch.dropped_phrases == [[DroppedPhrase(0, "a dog", "regions cut"), DroppedPhrase(2, " ", "no token")]]
    assert batch["phrase_regions"].any(-1).tolist() == [[False, True, False]]
    assert batch["phrase_mask"].any(-1).tolist() == [[True, True, False]]


@pytest.mark.parametrize("model_type", ["llava", "qwen2_5_vl"])
def test_a_very_large_picture_is_read_smaller_and_keeps_its_boxes(model_type, monkeypatch):
    processor = PatchGroundingProcessor(make_processor(model_type))
    seen = []
    image = Image.fromarray(picture(300, 200)).filter(ImageFilter.GaussianBlur(20))
    arguments = {"images": image, "phrases": [phrase(FIRST, "a dog", boxes=[[0.1, 0.4, 0.3, 0.7]])]}
    whole = processor(FIRST, **arguments)
    monkeypatch.setattr(patch_grounding, "ENOUGH", 150 * 100)
    run = processor._run
    monkeypatch.setattr(processor, "_run", lambda *given: seen.append(given[1][0][0].size) or run(*given))
    small = processor(FIRST, **arguments)
    assert seen == [(150, 100)]
    assert image.size == (300, 200)
    for key in ("phrase_regions", "phrase_boxes", "region_boxes", "region_positions"):
        assert torch.equal(small[key], whole[key]), key
    torch.testing.assert_close(small["pixel_values"], whole["pixel_values"], atol=0.05, rtol=0)


def test_boxes_without_area_and_at_the_border_get_the_patch_around_them():
    patches = np.array([[[0.0, 0.0, 0.5, 1.0], [0.5, 0.0, 1.0, 1.0], [0.0, 0.0, 0.0, 0.0]]] * 4)
    gold = np.array([[0.2, 0.3, 0.2, 0.3], [1.0, 0.0, 1.0, 1.0], [0.0, 0.0, 0.3, 1.0], [0.1, 0.0, 0.8, 0.1]])
    marks = match_coverage(gold, patches, 0.5)
    assert marks.tolist() == [[True, False, False], [False, True, False], [True, False, False], [True, False, False]]


def test_a_share_that_is_the_threshold_is_enough():
    """Sixths are not exact in float32."""
    patches = np.array([[[1 / 6, 0.0, 1 / 3, 1.0], [1 / 3, 0.0, 0.5, 1.0]]], dtype=np.float32)
    gold = np.array([[0.25, 0.0, 0.5, 1.0]], dtype=np.float32)
    assert match_coverage(gold, patches, 0.5).tolist() == [[True, True]]


def test_settings_of_images_reach_the_processor():
    settings = {"do_pan_and_scan": True, "pan_and_scan_min_crop_size": 10}
    grounding = PatchGroundingProcessor(make_processor("gemma3"), image_settings=settings)
    batch = grounding(FIRST, images=Image.new("RGB", (90, 20)), phrases=[phrase(FIRST, "cat", boxes=[[0, 0, 0.2, 1]])])
    assert batch["pixel_values"].shape[0] == 5
    assert batch["region_attention_mask"].sum() == 20
    assert words_of(grounding, batch, 0, 0) == ["cat"]
    # The left patches of the first crop, which ends at a quarter, and nothing of the whole image.
    assert batch["phrase_regions"][0, 0].nonzero().flatten().tolist() == [4, 5, 6, 7]


def call(model_type="llava", **arguments):
    defaults = {"text": [FIRST], "images": [IMAGES[0]]}
    return PatchGroundingProcessor(make_processor(model_type))(**{**defaults, **arguments})


def test_wrong_arguments_are_named():
    box = [[0.1, 0.1, 0.2, 0.2]]
    with pytest.raises(ValueError, match="Example 0: 0 images"):
        call(text=["a <image> dog"], images=None)
    with pytest.raises(ValueError, match=r"Example 0, image 0 \(missing.png\): no such file"):
        call(images=["missing.png"])
    with pytest.raises(ValueError, match="phrases has 2 entries, but `text` has 1"):
        call(phrases=[[], []])
    with pytest.raises(ValueError, match="Example 0, phrase 0: image is None"):
        call(images=[IMAGES[1]], phrases=[[phrase(FIRST, "dog", boxes=box)]])
    with pytest.raises(ValueError, match="Example 0, phrase 0: image is 1"):
        call(phrases=[[phrase(FIRST, "dog", boxes=box, image=1)]])
    with pytest.raises(ValueError, match=r"Example 0, phrase 0: regions \[36\]"):
        call(phrases=[[phrase(FIRST, "dog", regions=[36])]])
    with pytest.raises(ValueError, match="Example 0, phrase 0: sentence is 1"):
        call(phrases=[[phrase(FIRST, "dog", which=1)]])
    with pytest.raises(ValueError, match="phrase_pairs are given without phrases"):
        call(phrase_pairs=[[]])
    with pytest.raises(ValueError, match="Example 0: text_pair is given with a conversation"):
        call(text=[[{"role": "user", "content": FIRST}]], images=None, text_pair=["a"])
    with pytest.raises(ValueError, match="Example 0: text_pair needs a chat template"):
        call("paligemma", text_pair=["a"])
    with pytest.raises(ValueError, match="must be a str, or a list of str"):
        call(text=3)
    with pytest.raises(ValueError, match="coverage_threshold=0"):
        PatchGroundingProcessor(make_processor("llava"), coverage_threshold=0)


def test_a_template_that_changes_a_text_is_refused():
    processor = make_processor("llava")
    processor.chat_template = processor.chat_template.replace("| trim", "| upper")
    with pytest.raises(
        ValueError, match="Example 0: the chat template of LlavaProcessorOfImages changes or leaves out"
    ):
        PatchGroundingProcessor(processor)(FIRST, images=IMAGES[0])


@pytest.mark.parametrize(
    "template", ["{% for", "{{ 1 + 'a' }}", "{{ ''.__class__.__mro__ }}", "{% for i in range(10**9) %}{% endfor %}"]
)
def test_a_template_that_fails_is_refused(template):
    """A damaged one, or one that tries to reach Python: Jinja's sandbox stops it."""
    processor = make_processor("llava")
    processor.chat_template = template
    with pytest.raises(ValueError, match=r"Example 0: the chat template of LlavaProcessorOfImages fails \(\w+Error"):
        PatchGroundingProcessor(processor)(FIRST, images=IMAGES[0])


@pytest.mark.parametrize("way", ["conversation", "answer", "audit"])
@pytest.mark.parametrize("model_type", PROCESSORS)
def test_an_image_token_in_the_words_of_a_user_is_refused(model_type, way):
    processor = make_processor(model_type)
    grounding = PatchGroundingProcessor(processor)
    picture = Image.new("RGB", (40, 30))
    if way == "conversation" and not processor.chat_template:
        pytest.skip("no chat template")
    for token in {placeholder(processor), grounding.family.image_token(processor)}:
        text = f"a {token} dog"
        with pytest.raises(ValueError, match=f"Example 0: a text has {re.escape(repr(token))}"):
            if way == "conversation":
                parts = [{"type": "image"}, {"type": "text", "text": text}]
                grounding([{"role": "user", "content": parts}], images=picture)
            elif way == "answer":
                grounding("what is this ?", text, images=picture)
            else:
                phrase = Phrase("", 0, 1, boxes=np.array([[0, 0, 1, 1]], dtype=np.float32))
                examples = [AuditExample("1", text, (phrase,))]
                make_batch(grounding, examples, {"1": picture}, PromptSettings())


def test_another_layout_of_image_tokens_is_refused():
    """As if another version of transformers left a word out."""
    grounding = PatchGroundingProcessor(make_processor("internvl"))
    grounding.family = replace(grounding.family, prompt_end=Token(" cat"))
    with pytest.raises(
        ValueError, match=r"Example 0: InternVLProcessorOfImages makes \d+ tokens that are not the \d+"
    ):
        grounding(FIRST, images=IMAGES[0])


@pytest.mark.parametrize("model_type", ["llava", "gemma3", "smolvlm"])
def test_words_of_several_pieces(model_type):
    """Byte pairs: pieces begin with a blank, and some cross the ends of a text."""
    processor = make_processor(model_type, "left", byte_pairs=True)
    text = "a doghouse runs; the catty"
    phrases = [[phrase(text, "doghouse"), phrase(text, "the catty")], []]
    batch = PatchGroundingProcessor(processor)([text, SECOND * 3], images=IMAGES, phrases=phrases)
    for row, expected in enumerate(["doghouse", "the catty"]):
        positions = batch["text_positions"][0][batch["phrase_mask"][0, row]]
        assert len(positions) >= 2
        assert processor.tokenizer.decode(batch["input_ids"][0][positions]).strip() == expected
    positions = batch["text_positions"][0]
    assert processor.tokenizer.decode(batch["input_ids"][0][positions[positions >= 0]]).strip() == text


def test_a_model_that_is_not_known_is_refused():
    with pytest.raises(ValueError, match="no known processor"):
        PatchGroundingProcessor(make_processor("llava").tokenizer)
