# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""Many questions in one call of `look` equal single calls: answers that are generated together, and given ones."""

import pytest
from numpy.testing import assert_allclose

from grounded_attention.heads.heads_file import ChosenHeads, DoubtModel
from grounded_attention.lens.look import look
from tests.helpers.tiny_vlm_models import make_model, make_pair
from tests.helpers.tiny_vlm_processors import ANSWERERS, PROCESSORS, add_videos, make_processor, type_of
from tests.lens.answered_rows import ANSWERS, HEADS, ROWS

FAMILIES = [name for name in PROCESSORS if type_of(name) == name]
LLAVA = make_pair("llava")
IMAGES = [row["image"] for row in ROWS]
TEXTS = [row["text"] for row in ROWS]


def words_only(processor, count=4):
    """Options of `generate` for answers of so many tokens, none of them special."""
    special = [token for token in processor.tokenizer.all_special_ids if token is not None]
    return {"max_new_tokens": count, "min_new_tokens": count, "suppress_tokens": special}


def assert_equal(many, alone):
    assert (many.texts, many.words, many.heads) == (alone.texts, alone.words, alone.heads)
    assert (many.form, many.rows, many.crop, many.names) == (alone.form, alone.rows, alone.crop, alone.names)
    assert_allclose(many.attention, alone.attention, atol=1e-5)
    assert_allclose(many.share, alone.share, atol=1e-5)
    assert (many.token_images == alone.token_images).all()
    assert many.doubts == pytest.approx(alone.doubts)


@pytest.mark.parametrize("family", [*FAMILIES, *ANSWERERS])
def test_generated_answers_equal_single_looks(family):
    """Prompts of several lengths, pictures of several sizes, in one batch."""
    model, processor = make_pair(family)
    options = words_only(processor)
    if family in ANSWERERS:  # its prompt has no word
        options["suppress_tokens"] += range(len(processor.tokenizer), 1400)
        options["suppress_tokens"] += processor.tokenizer.convert_tokens_to_ids([*".,:?\n"])
        options["suppress_tokens"] += processor.tokenizer.added_tokens_decoder
    lenses = look(model, processor, IMAGES[:3], TEXTS[:3], heads="all", **options)
    for image, text, lens in zip(IMAGES, TEXTS, lenses, strict=False):
        assert_equal(lens, look(model, processor, image, text, heads="all", **options))


@pytest.mark.parametrize("family", ["mllama", "qwen2_5_vl"])
def test_questions_about_several_numbers_of_images(family):
    model, processor = make_pair(family)
    images = [IMAGES[0], IMAGES[1:3], IMAGES[3:4]]
    lenses = look(model, processor, images, TEXTS[:3], heads="all", answer=ANSWERS[:3])
    for image, text, answer, lens in zip(images, TEXTS, ANSWERS, lenses, strict=False):
        assert_equal(lens, look(model, processor, image, text, heads="all", answer=answer))


@pytest.mark.parametrize("family", ["mllama", *ANSWERERS])
def test_the_default_form_falls_back_in_lists_too(family):
    model, processor = make_pair(family)
    lenses = look(model, processor, IMAGES[:2], TEXTS[:2], answer=ANSWERS[:2])
    assert [lens.form for lens in lenses] == [("plain",)] * 2
    assert_equal(lenses[1], look(model, processor, IMAGES[1], TEXTS[1], answer=ANSWERS[1]))


def test_videos_of_several_lengths():
    """InternVL reads only videos of as many frames together."""
    processor = add_videos(make_processor("internvl"), "internvl")
    model = make_model("internvl", processor.tokenizer)
    videos = [[IMAGES[0].resize((60, 40))] * count for count in (4, 7)]
    lenses = look(model, processor, None, TEXTS[:2], video=videos, heads="all", answer=ANSWERS[:2])
    for video, text, answer, lens in zip(videos, TEXTS, ANSWERS, lenses, strict=False):
        assert_equal(lens, look(model, processor, text=text, video=video, heads="all", answer=answer))


def test_answers_end_apart():
    model, processor = LLAVA
    options = words_only(processor, 8) | {"min_new_tokens": 0}
    longest = look(model, processor, IMAGES[0], TEXTS[0], heads=HEADS, **options)
    ends = processor.tokenizer(longest.words[-1].text, add_special_tokens=False)["input_ids"]
    options["eos_token_id"] = ends
    lenses = look(model, processor, IMAGES, TEXTS, heads=HEADS, **options)
    for image, text, lens in zip(IMAGES, TEXTS, lenses, strict=True):
        assert_equal(lens, look(model, processor, image, text, heads=HEADS, **options))
    assert len({len(lens.words) for lens in lenses}) > 1


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"form": "relative", "heads": HEADS},
        {"form": "rollout"},
        {"form": "tam"},
        {"heads": "auto", "form": "sinks"},
        {"rows": "before", "heads": HEADS},
        {"again": True, "heads": HEADS},
        {"num_beams": 2, "num_return_sequences": 2, "heads": HEADS},
        {"answer": ANSWERS, "form": "plain"},
        {"answer": ["", *ANSWERS[1:]]},
    ],
)
def test_options_are_those_of_single_looks(options):
    """Forms that are read one by one, beams and given answers."""
    options = words_only(LLAVA[1]) | options
    lenses = look(*LLAVA, IMAGES, TEXTS, **options)
    answers = options.pop("answer", [None] * len(TEXTS))
    for image, text, answer, lens in zip(IMAGES, TEXTS, answers, lenses, strict=True):
        alone = look(*LLAVA, image, text, answer=answer, **options)
        assert_equal(lens, alone)
        if "again" in options:
            assert_equal(lens.second, alone.second)


def test_several_images_conversations_and_videos():
    processor = add_videos(make_processor("qwen2_5_vl"), "qwen2_5_vl")
    pair = make_pair("qwen2_5_vl")[0], processor
    options = words_only(processor) | {"heads": HEADS}
    lenses = look(*pair, [IMAGES[:2], IMAGES[2]], TEXTS[:2], **options)
    assert_equal(lenses[0], look(*pair, IMAGES[:2], TEXTS[0], **options))
    assert_equal(lenses[1], look(*pair, IMAGES[2], TEXTS[1], **options))

    turns = []
    frames = [IMAGES[0]] * 3
    for part in ({"type": "image"}, {"type": "image", "image": IMAGES[1]}, {"type": "video", "video": frames}):
        turns.append([{"role": "user", "content": [part, {"type": "text", "text": "what ?"}]}])
    for chats, images in ((turns, [IMAGES[2], None, None]), (turns[1:2], None)):
        lenses = look(*pair, images, messages=chats, **options)
        for image, chat, lens in zip(images or [None], chats, lenses, strict=True):
            assert_equal(lens, look(*pair, image, messages=chat, **options))


def test_doubt_is_that_of_single_looks():
    doubt = DoubtModel(0.1, 1.0, -2.0, 0.5, ["cat", "dog", "ball", "balls"])
    heads = ChosenHeads(tuple(HEADS), source="a test", doubt=doubt)
    lenses = look(*LLAVA, IMAGES, TEXTS, answer=ANSWERS, heads=heads)
    for image, text, answer, lens in zip(IMAGES, TEXTS, ANSWERS, lenses, strict=True):
        assert_equal(lens, look(*LLAVA, image, text, answer=answer, heads=heads))
    assert any(lens.doubts for lens in lenses)


WRONG = {
    "images: found 3, .* 1 questions": {"images": IMAGES[:3], "text": ["what ?"]},
    "images: found Image, .* 2 questions": {"images": IMAGES[0], "text": TEXTS[:2]},
    "answer: found str": {"images": IMAGES[:2], "text": TEXTS[:2], "answer": "a"},
    "answer: expected a text, found list": {"images": IMAGES[:2], "text": "what ?", "answer": ["a", "b"]},
    "question 1: answer: expected a text, found NoneType": {
        "images": IMAGES[:4],
        "text": TEXTS[:4],
        "answer": ["a dog", None, "a", None],
    },
    "question 1: the question is empty": {"images": IMAGES[:2], "text": ["what ?", " "]},
    "question 0: look needs an image": {"text": TEXTS[:2]},
    "question 1: expected a text": {"images": IMAGES[:2], "text": ["what ?", 3]},
    r"question 1: .*no\.png": {"images": [IMAGES[0], "no.png"], "text": TEXTS[:2]},
    "either text or messages": {"images": IMAGES[:1], "text": ["what ?"], "messages": ["what ?"]},
    "question 0: video": {"text": TEXTS[:2], "video": IMAGES[:2]},
}


@pytest.mark.parametrize("message", WRONG)
def test_ambiguous_lists_are_refused(message):
    with pytest.raises(ValueError, match=message) as error:
        look(*LLAVA, **WRONG[message])
    assert "\n" not in str(error.value)
