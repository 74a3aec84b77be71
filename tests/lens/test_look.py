# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""`look` reads what eager generation reports, for words of prompt and answer, in every family."""

import json

import numpy as np
import pytest
import torch
from PIL import Image

from grounded_attention.lens.look import look
from grounded_attention.lens.sequences import add_answer, decode_each, generate, read_prompt, read_rows
from grounded_attention.processing.patch_grounding import PatchGroundingProcessor
from grounded_attention.supervision.supervise import find_language_model
from tests.helpers.tiny_vlm_models import make_pair
from tests.helpers.tiny_vlm_processors import PROCESSORS, make_tokenizer, type_of

TEXT = "what is the small cat near two red balls ?"
FAMILIES = [name for name in PROCESSORS if type_of(name) == name]


def picture(width=56, height=40, seed=0):
    return Image.fromarray(np.random.default_rng(seed).integers(0, 255, (height, width, 3), dtype=np.uint8))


@pytest.mark.parametrize("family", FAMILIES)
def test_rows_equal_eager_generation(family):
    """The own row of each generated token and the rows of the prompt, against maps of generate."""
    model, processor = make_pair(family)
    patches = PatchGroundingProcessor(processor, family)
    prompt = read_prompt(patches, TEXT, [TEXT], [picture()])
    special = [token for token in processor.tokenizer.all_special_ids if token is not None]
    options = {"max_new_tokens": 5, "min_new_tokens": 5, "suppress_tokens": special}
    ids = generate(model, patches, prompt, **options)
    whole = add_answer(model, processor.tokenizer, prompt, ids)
    columns, length = prompt.batch["region_positions"][0], prompt.prompt_length
    rows = [*range(length - 4, length), *range(length, length + 4)]  # the last token is never fed back
    read = read_rows(model, whole.inputs, rows, columns)

    find_language_model(model).set_attn_implementation("eager")
    eager = model.generate(
        **prompt.inputs, **options, do_sample=False, output_attentions=True, return_dict_in_generate=True
    )
    assert eager.sequences[0, length:].tolist() == ids
    for layer, attention in enumerate(read.values()):  # eager maps are those of layers with heads
        first = eager.attentions[0][layer][0][:, length - 4 :, :][..., columns]
        later = torch.stack([step[layer][0, :, -1][:, columns] for step in eager.attentions[1:]], 1)
        torch.testing.assert_close(attention, torch.cat([first, later], 1), atol=2e-6, rtol=0)


@pytest.mark.parametrize("family", ["llava", "qwen2_5_vl"])
def test_a_word_is_the_mean_of_its_tokens_and_a_map_has_the_size_of_the_image(family):
    model, processor = make_pair(family)
    image = picture(61, 35)
    lens = look(model, processor, image, TEXT, answer="a dog runs", heads=[(1, 2), (0, 0)])
    assert lens.answer == "a dog runs"
    assert [word.text for word in lens.words if word.answer] == ["a", "dog", "runs"]
    assert lens.heads == ((1, 2), (0, 0))
    dog = lens["dog"]
    assert dog.map.shape == (35, 61)
    assert dog.cells.sum() == pytest.approx(1, abs=1e-5)
    both = lens["small cat"]
    parts = [lens.attention[:, number].mean(0) for number in range(len(lens.words))]
    names = [word.text for word in lens.words]
    mean = (parts[names.index("small")] + parts[names.index("cat")]) / 2
    assert both.share == pytest.approx(mean[lens.token_images == 0].sum(), abs=1e-6)
    with pytest.raises(KeyError, match=r"'dogs' is not.*'dog'"):
        lens["dogs"]
    assert lens["the", 0].text == "the"


def test_words_of_several_images_and_turns():
    model, processor = make_pair("qwen2_5_vl")
    messages = [
        {
            "role": "user",
            "content": [{"type": "image", "image": picture()}, {"type": "text", "text": "what is this ?"}],
        },
        {"role": "assistant", "content": [{"type": "text", "text": "a small cat"}]},
        {"role": "user", "content": [{"type": "image"}, {"type": "text", "text": "and this ?"}]},
    ]
    lens = look(model, processor, [picture(40, 64, 1)], messages=messages, answer="two balls")
    assert len(lens.images) == 2
    assert lens.share.shape == (len(lens.words), 2)
    assert {word.sentence for word in lens.words} == {0, 1, 2, 3}
    before = [number for number, word in enumerate(lens.words) if word.sentence == 0]
    assert np.allclose(lens.share[before, 1], 0), "words before the second image cannot see it"
    assert lens.images[1].size == (40, 64)


def test_bytes_of_one_character_belong_to_it():
    tokenizer = make_tokenizer(byte_pairs=True)
    text = "né 犬 🐕 ok"
    ids = tokenizer(text, add_special_tokens=False)["input_ids"]
    assert len(ids) > len(text)
    read, spans = decode_each(tokenizer, [*ids, tokenizer.eos_token_id])
    assert read == text
    for place, character in enumerate(text):
        bytes_of = [token for token, (start, end) in enumerate(spans) if start <= place < end]
        assert len(bytes_of) == len(character.encode()), character
    assert spans[-1] == (len(text), len(text))


def test_forms_change_the_maps_and_the_relative_map_of_the_neutral_prompt_is_even():
    model, processor = make_pair("llava")
    plain = look(model, processor, picture(), TEXT, answer="a dog", heads="all")
    ratio = look(model, processor, picture(), TEXT, answer="a dog", heads="all", form="relative")
    assert not np.allclose(plain["dog"].cells, ratio["dog"].cells, atol=1e-4)
    rolled = look(model, processor, picture(), TEXT, answer="a dog", form="rollout")
    assert rolled.heads == ()
    assert rolled.attention.shape[0] == 1
    with pytest.raises(ValueError, match="form 'relativ' is unknown"):
        look(model, processor, picture(), TEXT, form="relativ")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({}, "needs an image"),
        (
            {"images": picture(), "messages": [{"role": "user", "content": "a"}], "text": "a"},
            "either text or messages",
        ),
        ({"images": picture(), "heads": [(7, 0)]}, r"no layer and head \(7, 0\)"),
        ({"images": picture(), "heads": 9}, "layer 9 has no heads"),
        ({"images": picture(), "heads": []}, "heads is empty"),
    ],
)
def test_what_cannot_be_looked_at_is_refused(options, message):
    model, processor = make_pair("llava")
    with pytest.raises(ValueError, match=message):
        look(model, processor, **{"text": TEXT, "answer": "a dog", **options})


def test_asking_again_crops_the_first_image():
    model, processor = make_pair("qwen2_5_vl")
    lens = look(model, processor, picture(640, 480), TEXT, again=True, max_new_tokens=2)
    x1, y1, x2, y2 = lens.crop
    assert 0 <= x1 < x2 <= 640 and 0 <= y1 < y2 <= 480
    assert [image.size for image in lens.second.images] == [(640, 480), (x2 - x1, y2 - y1)]


def test_files(tmp_path):
    model, processor = make_pair("llava")
    lens = look(model, processor, picture(), TEXT, answer="a dog </script> runs")
    for suffix in ("html", "json", "png"):
        lens.save(tmp_path / f"lens.{suffix}")
    page = (tmp_path / "lens.html").read_text()
    assert "</script> runs" not in page
    assert len(page) < 1_000_000
    written = json.loads((tmp_path / "lens.json").read_text())
    assert [word["text"] for word in written["words"]] == [word.text for word in lens.words]
    assert Image.open(tmp_path / "lens.png").width > 100
    with pytest.raises(ValueError, match=r"lens\.txt"):
        lens.save(tmp_path / "lens.txt")
