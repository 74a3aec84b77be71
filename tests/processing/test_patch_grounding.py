# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""`PatchGroundingProcessor`: words and image tokens of phrases, found by decoding tokens and by loops over boxes."""

import json
import re
from dataclasses import replace
from unittest import mock

import numpy as np
import pytest
import torch
import transformers
from numpy.testing import assert_array_equal
from packaging import version
from PIL import Image, ImageFilter

from grounded_attention.heads.examples import AuditExample, PromptSettings, make_batch
from grounded_attention.processing import patch_grounding
from grounded_attention.processing.grounded_batch import DroppedPhrase
from grounded_attention.processing.image_tokens import (
    IMAGE_TOKEN_FAMILIES,
    NEWEST_TRANSFORMERS,
    Token,
    locate_image_tokens,
)
from grounded_attention.processing.patch_grounding import PatchGroundingProcessor, match_coverage
from grounded_attention.processing.phrase import Phrase
from tests.helpers.closeness import assert_same
from tests.helpers.processing_helpers import span
from tests.helpers.tiny_vlm_models import make_model
from tests.helpers.tiny_vlm_processors import ANSWERERS, PROCESSORS, make_processor, placeholder, type_of, wrap

FIRST = "a dog runs after the small cat ."
SECOND = "two red balls"
TEXTS = [FIRST, SECOND]
BOX = [0.1, 0.1, 0.2, 0.2]
COVERAGE = 0.59
SIZES = [[(53, 37)], [(31, 64), (90, 20)]]


def picture(width, height):
    return np.random.default_rng(width).integers(0, 255, (height, width, 3), dtype=np.uint8)


IMAGES = [[picture(*size) for size in sizes] for sizes in SIZES]


def words_of(processor, batch, example, row):
    """The words of the sequence at the positions that a phrase marks."""
    positions = batch["text_positions"][example][batch["phrase_mask"][example, row]]
    assert (positions >= 0).all()
    return processor.tokenizer.convert_ids_to_tokens(batch["input_ids"][example][positions])


def gold_by_hand(tokens, boxes, image):
    marks = np.zeros(len(tokens.positions), dtype=bool)
    left, top, right, bottom = tokens.boxes.T
    for x1, y1, x2, y2 in boxes:
        width = np.minimum(right, x2) - np.maximum(left, x1)
        height = np.minimum(bottom, y2) - np.maximum(top, y1)
        shares = width * height / ((right - left) * (bottom - top))
        shares[~tokens.has_box | (tokens.images != image) | (width < 0) | (height < 0)] = 0
        enough = shares >= COVERAGE
        if not enough.any() and shares.any():
            enough[shares.argmax()] = True
        marks |= enough
    return marks


@pytest.mark.parametrize("padding_side", ["right", "left"])
@pytest.mark.parametrize("model_type", PROCESSORS)
def test_words_and_image_tokens_of_phrases(model_type, padding_side):
    processor = make_processor(model_type, padding_side)
    of_first = json.loads("""[{"text": "a dog", "boxes": [[0.2, 0.1, 0.9, 0.7]]},
        {"text": "small cat", "boxes": [[0.4, 0.45, 0.43, 0.5], [0.0, 0.6, 0.3, 1.0]]}, {"text": "runs"}]""")
    of_second = json.loads("""[{"text": "red balls", "boxes": [[0.1, 0.2, 0.6, 0.9]], "image": 1},
        {"text": "two", "regions": [0, 3]}]""")
    grounding = PatchGroundingProcessor(processor, coverage_threshold=COVERAGE)
    batch = grounding(TEXTS, images=IMAGES, phrases=[of_first, of_second], phrase_pairs=[[[0, 2]], None])
    for example, phrases in enumerate((of_first, of_second)):
        for row, phrase in enumerate(phrases):
            assert words_of(processor, batch, example, row) == phrase["text"].split()
    first, second = locate_image_tokens(processor, batch["input_ids"], SIZES)
    of_dog, of_cat, of_runs = batch["phrase_regions"][0, :, : len(first.positions)]
    of_balls, of_two, _ = batch["phrase_regions"][1, :, : len(second.positions)]
    assert_array_equal(of_dog, gold_by_hand(first, of_first[0]["boxes"], 0))
    assert_array_equal(of_cat, gold_by_hand(first, of_first[1]["boxes"], 0))
    assert_array_equal(of_balls, gold_by_hand(second, of_second[0]["boxes"], 1))
    assert of_dog.any()
    assert of_cat.any()
    assert not of_runs.any()
    assert of_two.nonzero().flatten().tolist() == [0, 3]
    for example, tokens in enumerate((first, second)):
        count = len(tokens.positions)
        positions = batch["region_positions"][example]
        candidates = batch["region_candidate_mask"][example]
        assert_array_equal(positions[:count], tokens.positions)
        assert (positions[count:] == -1).all()
        assert batch["region_attention_mask"][example].sum() == count
        assert_array_equal(candidates[:count], tokens.has_box)
        assert not candidates[count:].any()
        assert_array_equal(batch["region_boxes"][example, :count], np.nan_to_num(tokens.boxes))
        assert_array_equal(batch["region_image"][example, :count], tokens.images)
        # The text columns are all words of the texts, in order, wherever the template and the padding put them.
        places = batch["text_positions"][example]
        ids = batch["input_ids"][example][places[places >= 0]]
        assert processor.tokenizer.convert_ids_to_tokens(ids) == TEXTS[example].split()
    assert batch["phrase_pairs"].tolist() == [[[0, 2]], [[-1, -1]]]


@pytest.mark.parametrize("model_type", PROCESSORS)
def test_the_model_reads_what_its_own_processor_makes(model_type):
    processor = make_processor(model_type, "left")
    batch = PatchGroundingProcessor(processor)(TEXTS, images=IMAGES)
    prompts = []
    for text, images in zip(TEXTS, IMAGES, strict=True):
        prompt = placeholder(processor) * len(images) + text
        if processor.chat_template is not None:
            content = [{"type": "image"}] * len(images) + [{"type": "text", "text": text}]
            chat = [{"role": "user", "content": content}]
            prompt = processor.apply_chat_template(chat, add_generation_prompt=True)
        prompts.append(prompt)
    family = IMAGE_TOKEN_FAMILIES[type_of(model_type)]
    images = family.arrange(IMAGES)
    expected = processor(text=prompts, images=images, padding=True, return_tensors="pt", **family.arguments)
    expected.pop("labels", None)
    found = PatchGroundingProcessor.model_inputs(batch)
    assert found.keys() == dict(expected).keys()
    for key, value in expected.items():
        assert torch.equal(torch.as_tensor(found[key]), torch.as_tensor(value)), key


@pytest.mark.parametrize("model_type", ["llava", "gemma3", "smolvlm", "internvl"])
def test_conversations_and_answers(model_type):
    """The same words stand in the question and in the answer; spans count in the text that they name."""
    settings = {"do_pan_and_scan": True} if model_type == "gemma3" else {}
    processor = make_processor(model_type)
    grounding = PatchGroundingProcessor(processor, image_settings=settings)
    question = "  what is a dog ? \n"
    answer = "a dog is a dog"
    in_answer = {"sentence": 1, "start": 9, "end": 14, "boxes": [[0.0, 0.0, 1.0, 1.0]]}
    phrases = [span(question, "a dog"), in_answer]
    batch = grounding(question, answer, images=IMAGES[0], phrases=phrases)
    dogs = batch["input_ids"][0] == processor.tokenizer.convert_tokens_to_ids("dog")
    first, _, last = dogs.nonzero().flatten().tolist()
    for mask, dog in zip(batch["phrase_mask"][0], (first, last), strict=True):
        assert batch["text_positions"][0][mask].tolist() == [dog - 1, dog]
    asked = {"role": "user", "content": [{"type": "image"}, {"type": "text", "text": question}]}
    answered = {"role": "assistant", "content": [{"type": "text", "text": answer}]}
    same = grounding([asked, answered], images=IMAGES[0], phrases=phrases)
    assert_same(batch, same)
    assert torch.equal(batch["phrase_regions"][0, 1], batch["region_candidate_mask"][0])


@pytest.mark.parametrize("model_type", PROCESSORS)
def test_a_prompt_with_image_tokens_is_used_as_it_is(model_type):
    processor = make_processor(model_type)
    image = placeholder(processor)
    phrases = [{"text": "balls near"}, {"text": "runs"}, {"text": "two"}]
    prompt = f"two {image} balls near a dog {image} runs"
    batch = PatchGroundingProcessor(processor)([prompt], images=[IMAGES[1]], phrases=[phrases])
    for row, phrase in enumerate(phrases):
        assert words_of(processor, batch, 0, row) == phrase["text"].split()
    tokens = batch["region_positions"][0]
    of = batch["region_image"][0]
    between = batch["text_positions"][0][batch["phrase_mask"][0, 0]]
    if "cross_attention_mask" in batch:  # no positions of the sequence
        assert batch["cross_attention_mask"][0, between].any(-1).tolist() == [[True, False]] * 2
        return
    assert (tokens[of == 0] < between[0]).all()
    assert (tokens[of == 1] > between[0]).all()


def test_examples_without_an_image():
    batch = PatchGroundingProcessor(make_processor("qwen2_5_vl"))(TEXTS, images=[IMAGES[0], None])
    assert not batch["region_attention_mask"][1].any()
    assert "image_grid_thw" in batch
    batch = PatchGroundingProcessor(make_processor("llava"))(FIRST, phrases=[{"text": "a dog"}])
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
    middle = [[0.45, 0.0, 0.5, 1.0]]
    blank = {"sentence": 0, "start": 5, "end": 6, "boxes": middle}
    phrases = [{"text": "a dog", "boxes": [[0.0, 0.0, 0.1, 1.0]]}, {"text": "cat", "boxes": middle}, blank]
    batch = processor(FIRST, images=picture(90, 20), phrases=phrases)
    assert batch.dropped_phrases == [[DroppedPhrase(0, "a dog", "regions cut"), DroppedPhrase(2, " ", "no token")]]
    assert batch["phrase_regions"].any(-1).tolist() == [[False, True, False]]
    assert batch["phrase_mask"].any(-1).tolist() == [[True, True, False]]


@pytest.mark.parametrize("model_type", ["llava", "qwen2_5_vl"])
def test_a_very_large_picture_is_read_smaller_and_keeps_its_boxes(model_type, monkeypatch):
    processor = PatchGroundingProcessor(make_processor(model_type))
    image = Image.fromarray(picture(300, 200)).filter(ImageFilter.GaussianBlur(20))
    phrases = [{"text": "a dog", "boxes": [[0.1, 0.4, 0.3, 0.7]]}]
    whole = processor(FIRST, images=image, phrases=phrases)
    run = mock.Mock(wraps=processor._run)
    monkeypatch.setattr(patch_grounding, "ENOUGH", 150 * 100)
    monkeypatch.setattr(processor, "_run", run)
    small = processor(FIRST, images=image, phrases=phrases)
    (read,) = run.call_args.args[1][0]
    assert read.size == (150, 100)
    assert image.size == (300, 200)
    for key in ("phrase_regions", "phrase_boxes", "region_boxes", "region_positions"):
        assert torch.equal(small[key], whole[key]), key
    torch.testing.assert_close(small["pixel_values"], whole["pixel_values"], atol=0.05, rtol=0)


@pytest.mark.parametrize(
    "box, patch",
    {"[0.2, 0.3, 0.2, 0.3]": 0, "[1, 0, 1, 1]": 1, "[0, 0, 0.3, 1]": 0, "[0.1, 0, 0.8, 0.1]": 0}.items(),
)
def test_boxes_without_area_and_at_the_border_get_the_patch_around_them(box, patch):
    patches = np.array([[[0.0, 0.0, 0.5, 1.0], [0.5, 0.0, 1.0, 1.0], [0.0, 0.0, 0.0, 0.0]]])
    (marks,) = match_coverage(np.array([json.loads(box)]), patches, 0.5)
    assert marks.nonzero()[0].tolist() == [patch]


def test_a_share_that_is_the_threshold_is_enough():
    """Sixths are not exact in float32."""
    patches = np.array([[[1 / 6, 0.0, 1 / 3, 1.0], [1 / 3, 0.0, 0.5, 1.0]]], dtype=np.float32)
    gold = np.array([[0.25, 0.0, 0.5, 1.0]], dtype=np.float32)
    assert match_coverage(gold, patches, 0.5).tolist() == [[True, True]]


def test_settings_of_images_reach_the_processor():
    settings = {"do_pan_and_scan": True, "pan_and_scan_min_crop_size": 10}
    grounding = PatchGroundingProcessor(make_processor("gemma3"), image_settings=settings)
    phrases = [{"text": "cat", "boxes": [[0, 0, 0.2, 1]]}]
    batch = grounding(FIRST, images=Image.new("RGB", (90, 20)), phrases=phrases)
    assert batch["pixel_values"].shape[0] == 5
    assert batch["region_attention_mask"].sum() == 20
    assert words_of(grounding, batch, 0, 0) == ["cat"]
    # The left patches of the first crop, which ends at a quarter, and nothing of the whole image.
    assert batch["phrase_regions"][0, 0].nonzero().flatten().tolist() == [4, 5, 6, 7]


REFUSED = {
    '{"text": "a <image> dog", "images": null}': "Example 0: 0 images",
    '{"images": ["missing.png"]}': r"Example 0, image 0 \(missing.png\): no such file",
    '{"text": ["a dog"], "images": null, "phrases": [[], []]}': "phrases has 2 entries, but `text` has 1",
    '{"phrases": [{"text": "dog", "boxes": [[0, 0, 1, 1]], "image": 1}]}': "Example 0, phrase 0: image is 1",
    '{"phrases": [{"text": "dog", "regions": [36]}]}': r"Example 0, phrase 0: regions \[36\]",
    '{"phrases": [{"text": "dog", "sentence": 1}]}': "Example 0, phrase 0: sentence is 1",
    '{"phrase_pairs": []}': "phrase_pairs are given without phrases",
    '{"text": [[{"role": "user", "content": "a dog"}]], "text_pair": ["a"]}': "text_pair is given with a conversation",
    '{"text": 3}': "must be a str, or a list of str",
}


@pytest.mark.parametrize("arguments, message", REFUSED.items())
def test_wrong_arguments_are_named(arguments, message):
    grounding = PatchGroundingProcessor(make_processor("llava"))
    given = {"text": FIRST, "images": IMAGES[0]} | json.loads(arguments)
    with pytest.raises(ValueError, match=message):
        grounding(**given)


def test_a_box_without_its_image_is_refused_where_there_are_two():
    phrases = [{"text": "dog", "boxes": [BOX]}]
    with pytest.raises(ValueError, match="Example 0, phrase 0: image is None"):
        PatchGroundingProcessor(make_processor("llava"))(FIRST, images=IMAGES[1], phrases=phrases)


def test_wrong_settings_are_named():
    with pytest.raises(ValueError, match="Example 0: text_pair needs a chat template"):
        PatchGroundingProcessor(make_processor("paligemma"))(FIRST, "a", images=IMAGES[0])
    with pytest.raises(ValueError, match="coverage_threshold=0"):
        PatchGroundingProcessor(make_processor("llava"), coverage_threshold=0)
    with pytest.raises(ValueError, match="no known processor"):
        PatchGroundingProcessor(make_processor("llava").tokenizer)


@pytest.mark.parametrize(
    "template, message",
    {
        "{{ messages[0].content[-1].text | upper }}": "changes or leaves out",
        "{% for": r"fails \(\w+Error",
        "{{ 1 + 'a' }}": r"fails \(\w+Error",
        "{{ ''.__class__.__mro__ }}": r"fails \(\w+Error",
        "{% for i in range(10**9) %}{% endfor %}": r"fails \(\w+Error",
    }.items(),
)
def test_a_template_that_changes_a_text_or_fails_is_refused(template, message):
    """A damaged one, or one that tries to reach Python: Jinja's sandbox stops it."""
    processor = make_processor("llava")
    processor.chat_template = template
    with pytest.raises(ValueError, match=f"Example 0: the chat template of LlavaProcessorOfImages {message}"):
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
        content = [{"type": "image"}, {"type": "text", "text": text}]
        phrase = Phrase("", 0, 1, boxes=np.ones((1, 4), np.float32))
        with pytest.raises(ValueError, match=f"Example 0: a text has {re.escape(repr(token))}"):
            if way == "conversation":
                grounding([{"role": "user", "content": content}], images=picture)
            elif way == "answer":
                grounding("what is this ?", text, images=picture)
            else:
                make_batch(grounding, [AuditExample("1", text, (phrase,))], {"1": picture}, PromptSettings())


def test_another_layout_of_image_tokens_is_refused():
    """As if another version of transformers left a word out."""
    grounding = PatchGroundingProcessor(make_processor("internvl"))
    grounding.family = replace(grounding.family, prompt_end=Token(" cat"))
    message = r"Example 0: InternVLProcessorOfImages makes \d+ tokens that are not the \d+"
    with pytest.raises(ValueError, match=message):
        grounding(FIRST, images=IMAGES[0])


@pytest.mark.parametrize("model_type", ["llava", "gemma3", "smolvlm"])
def test_words_of_several_pieces(model_type):
    """Byte pairs: pieces begin with a blank, and some cross the ends of a text."""
    processor = make_processor(model_type, "left", byte_pairs=True)
    text = "a doghouse runs; the catty"
    phrases = [{"text": "doghouse"}, {"text": "the catty"}]
    batch = PatchGroundingProcessor(processor)([text, SECOND * 3], images=IMAGES, phrases=[phrases, []])
    ids = batch["input_ids"][0]
    places = batch["text_positions"][0]
    for phrase, mask in zip(phrases, batch["phrase_mask"][0], strict=True):
        assert mask.sum() >= 2
        assert processor.tokenizer.decode(ids[places[mask]]).strip() == phrase["text"]
    assert processor.tokenizer.decode(ids[places[places >= 0]]).strip() == text


@pytest.mark.parametrize("model_type", ANSWERERS)
def test_words_of_a_decoder_are_those_of_its_answer(model_type):
    """Its inputs are the labels that transformers shifts to the right; the prompt is that of the processor alone."""
    processor = make_processor(model_type, padding_side="left")
    model = make_model(model_type, processor.tokenizer)
    patches = wrap(processor, model_type)
    phrases = [[{"text": "a", "sentence": 0}, {"text": "small cat"}], [{"text": "balls"}]]
    questions = ["what is this near a dog", "what is"]
    answers = ["the small cat", "two red balls near a dog"]
    if version.parse(transformers.__version__) < version.parse(NEWEST_TRANSFORMERS):
        with pytest.raises(ValueError, match="need transformers"):
            patches(questions[0], answers[0], images=IMAGES[0], labels=True)
        return
    batch = patches(questions, answers, images=list(IMAGES[:1]) * 2, phrases=phrases, labels=True)
    assert [[each.words for each in dropped] for dropped in batch.dropped_phrases] == [["a"], []]
    for example, (phrase, words) in enumerate([(1, "small cat"), (0, "balls")]):
        rows = batch["text_positions"][example, batch["phrase_mask"][example, phrase]]
        assert processor.tokenizer.decode(batch["decoder_input_ids"][example, rows]) == words
        chat = [{"role": "user", "content": [{"type": "image"}, {"type": "text", "text": questions[example]}]}]
        chat += [{"role": "assistant", "content": answers[example]}]
        alone = patches(chat, images=IMAGES[0], labels=True)
        assert_same(alone, patches(questions[example], answers[example], images=IMAGES[0], labels=True))
        kept = alone["decoder_attention_mask"].sum()
        known = batch["decoder_input_ids"][example]
        assert known[:kept].tolist() == alone["decoder_input_ids"][0].tolist()
        learned = model(**patches.model_inputs(alone)).loss
        shifted = known[None, 1:kept].masked_fill(alone["labels"][:, :-1] < 0, -100)
        given = {name: value for name, value in patches.model_inputs(alone).items() if name != "labels"}
        logits = model(**given).logits[0, :-1]
        assert torch.allclose(learned, torch.nn.functional.cross_entropy(logits, shifted[0]))
    with pytest.raises(ValueError, match="no turns"):
        patches([*chat, *chat], images=IMAGES[0])
