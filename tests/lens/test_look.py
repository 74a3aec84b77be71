# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""`look` reads what eager generation reports, for words of prompt and answer, in every family."""

import json
from dataclasses import replace
from types import SimpleNamespace
from unicodedata import normalize

import numpy as np
import pytest
import torch
from numpy.testing import assert_allclose
from peft import LoraConfig, PromptTuningConfig, get_peft_model
from PIL import Image
from tokenizers import AddedToken
from torch.testing import assert_close
from torch.utils._python_dispatch import TorchDispatchMode
from transformers import AutoModelForImageTextToText, AutoProcessor

from grounded_attention.lens.batches import read_batch
from grounded_attention.lens.exchanges import NEUTRAL
from grounded_attention.lens.forms import WINDOW
from grounded_attention.lens.look import look
from grounded_attention.lens.page import lens_page
from grounded_attention.lens.sequences import (
    add_answer,
    generate,
    generate_and_read,
    read_prompt,
)
from grounded_attention.processing.image_tokens import IMAGE_TOKEN_FAMILIES
from grounded_attention.processing.patch_grounding import PatchGroundingProcessor
from grounded_attention.processing.patch_sequences import decode_each
from grounded_attention.processing.videos import open_video
from grounded_attention.supervision.supervise import find_language_model, head_layers
from tests.helpers.tiny_vlm_files import save_llava
from tests.helpers.tiny_vlm_models import make_model, make_pair
from tests.helpers.tiny_vlm_processors import (
    ANSWERERS,
    PROCESSORS,
    add_videos,
    make_processor,
    make_tokenizer,
    type_of,
)

pytestmark = pytest.mark.drawn_figures
TEXT = "what is the small cat near two red balls ?"
FAMILIES = [name for name in PROCESSORS if type_of(name) == name]
VIDEOS = [name for name in FAMILIES if IMAGE_TOKEN_FAMILIES[name].frames is not None]


def picture(width=56, height=40, seed=0):
    return Image.fromarray(np.random.default_rng(seed).integers(0, 255, (height, width, 3), dtype=np.uint8))


PICTURE = picture()
FRAMES = [picture(seed=seed) for seed in range(5)]
LLAVA = make_pair("llava")


def look_with(text=TEXT, **options):
    return look(*LLAVA, PICTURE, text, **options)


def read_picture(processor):
    """The processor for places of patches, and the prompt of a question about a picture."""
    patches = PatchGroundingProcessor(processor)
    return patches, read_prompt(patches, TEXT, [TEXT], [PICTURE])


def answer_length(count, processor):
    """Options of `generate` for an answer of so many tokens, all of them words."""
    special = [token for token in processor.tokenizer.all_special_ids if token is not None]
    return {"max_new_tokens": count, "min_new_tokens": count, "suppress_tokens": special}


@pytest.mark.parametrize("family", [*FAMILIES, *ANSWERERS])
def test_rows_equal_eager_generation(family):
    """The own row of each generated token and the rows of the prompt, against maps of generate."""
    compare_with_eager(*make_pair(family), family, [PICTURE])


@pytest.mark.parametrize("family", VIDEOS)
def test_rows_about_a_video_equal_eager_generation(family):
    processor = add_videos(make_processor(family), family)
    video = open_video(FRAMES, 2.0)
    pictures = [PICTURE, video] if IMAGE_TOKEN_FAMILIES[family].frames_and_images else [video]
    compare_with_eager(make_model(family, processor.tokenizer), processor, family, pictures)


def read_rows(model, whole, rows, columns):
    """Layer -> rows of a sequence, of all layers."""
    [read] = read_batch(model, whole.inputs, [[*rows]], [columns], head_layers(model))
    return read.of(rows)


def compare_with_eager(model, processor, family, pictures):
    patches = PatchGroundingProcessor(processor, family)
    prompt = read_prompt(patches, TEXT, [TEXT], pictures)
    options = answer_length(5, processor)
    ids = generate(model, patches, prompt, **options)
    whole = add_answer(model, processor.tokenizer, prompt, ids)
    columns = prompt.batch["region_positions"][0]
    length = prompt.prompt_length
    rows = range(max(length - 4, 0), length + 4)  # the last token is never fed back
    read = read_rows(model, whole, rows, columns)
    answer, beside = generate_and_read(model, patches, prompt, read, **options)
    assert answer == ids
    with_last = [*range(length - 1, length + 5)]
    again = read_rows(model, whole, with_last, columns)
    for layer, attention in beside.of(with_last).items():
        assert beside.of([length + 1], [layer])[layer].equal(attention[:, 2:3])
        assert_close(attention, again[layer], atol=2e-6, rtol=0)

    find_language_model(model).set_attn_implementation("eager")
    eager = model.generate(
        **prompt.inputs, **options, do_sample=False, output_attentions=True, return_dict_in_generate=True
    )
    assert eager.sequences[0, length:].tolist() == ids
    apart = IMAGE_TOKEN_FAMILIES[family].keys == "images"  # other layers have maps too
    maps = eager.cross_attentions if family in ANSWERERS else eager.attentions
    for place, (layer, attention) in enumerate(read.items()):  # eager maps are those of layers with heads
        if apart:
            place = layer
        steps = [step[place][0][:, -4:, columns] for step in maps]  # (heads, 4 or 1, columns)
        assert_close(attention, torch.cat(steps, 1), atol=2e-6, rtol=1e-5)


@pytest.mark.parametrize("written", [False, True])
@pytest.mark.parametrize("family", ["llava", "qwen2_5_vl", "paligemma"])
def test_rows_of_words_and_rows_that_produced_them(family, written):
    """Against eager maps of prompt and answer: the row before a token produced it."""
    processor = make_processor(family, byte_pairs=True)
    model = make_model(family, processor.tokenizer)
    patches, prompt = read_picture(processor)
    options = answer_length(8, processor)
    ids = generate(model, patches, prompt, **options)
    whole = add_answer(model, processor.tokenizer, prompt, ids)
    if written:
        options["answer"] = whole.texts[-1]
        ids = processor.tokenizer(options["answer"], add_special_tokens=False)["input_ids"]
        whole = add_answer(model, processor.tokenizer, prompt, ids)
    heads = [(1, 2), (0, 0)]
    own = look(model, processor, PICTURE, TEXT, rows="own", heads=heads, **options)
    before = look(model, processor, PICTURE, TEXT, rows="before", heads=heads, **options)
    assert before.to_dict()["rows"] == before.rows == "before"

    find_language_model(model).set_attn_implementation("eager")
    maps = model(**whole.inputs, output_attentions=True).attentions
    columns = prompt.batch["region_positions"][0]
    for number, word in enumerate(whole.words):
        previous = [max(row - 1, 0) for row in word.rows]
        for place, (layer, head) in enumerate(heads):
            attention = maps[layer][0, head][:, columns].detach()
            assert_allclose(own.attention[place, number], attention[[*word.rows]].mean(0), atol=2e-6)
            assert_allclose(before.attention[place, number], attention[previous].mean(0), atol=2e-6)


def test_a_phrase_is_the_mean_of_its_words_and_a_map_has_the_size_of_the_image():
    lens = look(*make_pair("qwen2_5_vl"), picture(61, 35), TEXT, answer="a dog runs", heads=[(1, 2), (0, 0)])
    assert lens.answer == "a dog runs"
    assert [word.text for word in lens.words if word.answer] == ["a", "dog", "runs"]
    assert lens.heads == ((1, 2), (0, 0))
    assert lens["dog"].map.shape == (35, 61)
    assert lens["dog"].cells.sum() == pytest.approx(1, abs=1e-5)
    names = [word.text for word in lens.words]
    attention = lens.attention.mean(0)
    mean = (attention[names.index("small")] + attention[names.index("cat")]) / 2
    assert lens["small cat"].share == pytest.approx(mean[lens.token_images == 0].sum(), abs=1e-6)
    assert lens["the", 0].text == "the"
    with pytest.raises(KeyError, match=r"'dogs' is not.*'dog'"):
        lens["dogs"]


def test_words_of_several_images_and_turns():
    first = [{"type": "image", "image": PICTURE}, {"type": "text", "text": "what is this ?"}]
    reply = [{"type": "text", "text": "a small cat"}]
    second = [{"type": "image"}, {"type": "text", "text": "and this ?"}]
    turns = zip(("user", "assistant", "user"), (first, reply, second), strict=True)
    messages = [{"role": role, "content": content} for role, content in turns]
    lens = look(*make_pair("qwen2_5_vl"), [picture(40, 64, 1)], messages=messages, answer="two balls")
    assert [image.size for image in lens.images] == [(56, 40), (40, 64)]
    assert lens.share.shape == (len(lens.words), 2)
    sentences = np.array([word.sentence for word in lens.words])
    assert {*sentences} == {0, 1, 2, 3}
    assert np.allclose(lens.share[sentences == 0, 1], 0), "words before the second image cannot see it"


def test_a_video_has_a_map_for_each_step_of_its_frames(tmp_path):
    processor = add_videos(make_processor("qwen3_vl"), "qwen3_vl")
    model = make_model("qwen3_vl", processor.tokenizer)
    lens = look(model, processor, picture(30, 50), TEXT, video=FRAMES, fps=4, answer="a dog", form="relative")
    assert lens.names == ("image 1", "frames 1–2, 0.1 s", "frames 3–4, 0.6 s", "frame 5, 1.0 s")
    assert [image.size for image in lens.images] == [(30, 50), *[(56, 40)] * 3]
    maps = lens.maps("dog")
    shares = [steps.share for steps in maps]
    assert [steps.image for steps in maps] == [0, 1, 2, 3]
    assert shares == pytest.approx(lens.share[-1].tolist())
    assert lens["dog"].share == max(shares)
    assert maps[2].map.shape == (40, 56)
    lens.save(tmp_path / "lens.html")
    assert lens.to_dict()["images"] == list(lens.names)

    parts = [{"type": "video", "video": FRAMES[:4]}, {"type": "image"}, {"type": "text", "text": TEXT}]
    other = look(model, processor, PICTURE, messages=[{"role": "user", "content": parts}], answer="a dog")
    assert other.names == ("frames 1–2, 0.2 s", "frames 3–4, 1.2 s", "image 3")


def test_bytes_of_one_character_belong_to_it():
    tokenizer = make_tokenizer(byte_pairs=True)
    text = "né 犬 🐕 ok"
    ids = tokenizer(text, add_special_tokens=False)["input_ids"]
    read, spans = decode_each(tokenizer, [*ids, tokenizer.eos_token_id])
    assert read == text
    for place, character in enumerate(text):
        tokens = [span for span in spans if span[0] <= place < span[1]]
        assert len(tokens) == len(character.encode()), character
    assert spans[-1] == (len(text), len(text))


def test_tokens_that_end_a_turn_are_no_words():
    """Some are special to the tokenizer but none of its named ones."""
    tokenizer = make_tokenizer(byte_pairs=True)
    tokenizer.add_tokens([AddedToken("<end_of_turn>", special=True)])
    end = tokenizer.convert_tokens_to_ids("<end_of_turn>")
    assert end not in tokenizer.all_special_ids
    words = tokenizer("a dog", add_special_tokens=False)["input_ids"]
    assert decode_each(tokenizer, [*words, end])[0] == "a dog"


@pytest.mark.parametrize("options", [{"num_beams": 2, "max_new_tokens": 4}, {"max_new_tokens": 70}])
def test_what_is_not_read_while_the_model_answers_is_read_afterwards(options):
    """Beams are several sequences; a cache with a window of keys forgets the first ones."""
    model, processor = make_pair("gemma3")
    model.config.get_text_config().sliding_window = 64
    patches, prompt = read_picture(processor)
    options |= {"min_new_tokens": options["max_new_tokens"]}
    ids, beside = generate_and_read(model, patches, prompt, [0, 1], **options)
    assert beside is None or beside.of([prompt.prompt_length]) is None
    assert ids == generate(model, patches, prompt, **options)
    lens = look(model, processor, PICTURE, TEXT, heads="all", **options)
    whole = add_answer(model, processor.tokenizer, prompt, ids)
    single = [number for number, word in enumerate(whole.words) if len(word.rows) == 1]
    rows = [whole.words[number].rows[0] for number in single]
    read = read_rows(model, whole, rows, prompt.batch["region_positions"][0])
    heads = torch.stack([read[layer][head] for layer, head in lens.heads])
    assert_allclose(lens.attention[:, single], heads, atol=1e-6)


@pytest.mark.parametrize("heads", ["auto", "all"])
@pytest.mark.parametrize("family", ["qwen2_5_vl", "paligemma", "qwen3_5"])
def test_rows_that_are_scored_together_or_one_by_one_are_the_same(family, heads, monkeypatch):
    model, processor = make_pair(family)
    passes = []
    model.base_model.register_forward_pre_hook(lambda *inputs: passes.append(inputs))
    one = look(model, processor, PICTURE, TEXT, answer="a small cat", heads=heads, form="plain")
    monkeypatch.setattr("grounded_attention.lens.sequences.MOST_BYTES", 1)
    many = look(model, processor, PICTURE, TEXT, answer="a small cat", heads=heads, form="plain")
    assert len(passes) == 2
    assert one.heads == many.heads
    assert_allclose(one.attention, many.attention, atol=1e-6)


@pytest.mark.parametrize("family", ["llama4", "kimi_k25", "llava"])
def test_half_precision(family):
    model, processor = make_pair(family)
    lens = look(model.bfloat16(), processor, PICTURE, TEXT, answer="a dog", heads="all")
    assert np.isfinite(lens.attention).all()
    assert lens.attention.any()


def planted_lens(form, rows):
    """A lens of six words, four of them the answer, on two images of 36 tokens; their attention is `rows` (6, 72)."""
    with pytest.MonkeyPatch.context() as patch:
        planted = SimpleNamespace(of=lambda *wanted: {0: rows[None]})
        patch.setattr("grounded_attention.lens.exchanges.read_batch", lambda *arguments: [planted])
        return look(*LLAVA, FRAMES[:2], "what is", answer="the small cat near", heads=[(0, 0)], form=form)


def test_a_sink_does_not_decide_at_which_image_a_word_looks():
    rows = torch.full((6, 72), 0.001)
    rows[:, 3] = 0.5  # of the first image
    rows[:2, 36:] = 0.0  # these words stand before the second image
    rows[2:, 40] = 0.1  # and a sink there
    rows[4, 50] = 0.3
    assert planted_lens("plain", rows)[4].image == 0
    lens = planted_lens("sinks", rows)
    assert (lens.attention[0] == 0).all(0).nonzero()[0].tolist() == [3, 40]
    assert lens[4].image == 1
    assert lens[4].share == pytest.approx(0.3 + 34 * 0.001)


def test_words_on_two_images_are_drawn_on_both():
    rows = torch.full((6, 72), 0.001)
    rows[2, 3] = 0.5
    rows[3, 40] = 0.5
    black = Image.new("RGB", (56, 40))
    lens = replace(planted_lens("plain", rows), images=(black, black))
    panels = lens.show(["the", "small"]).axes
    assert [len(axes.patches) for axes in panels] == [1, 0, 0, 1], "the box is on the image with most"
    assert [axes.get_title().split("\n")[0] for axes in panels] == ["the", "the", "small", "small"]
    lightest = [np.asarray(axes.images[0].get_array())[2:-2, 2:-2].sum(-1).max() for axes in panels]
    assert lightest[0] > lightest[1] + 50, "on one scale"
    assert lightest[3] > lightest[2] + 50


@pytest.mark.parametrize("count", [5, 14])
def test_a_video_is_drawn_as_a_strip_of_frames(count, tmp_path):
    processor = add_videos(make_processor("qwen3_vl"), "qwen3_vl")
    model = make_model("qwen3_vl", processor.tokenizer)
    video = [picture(seed=seed) for seed in range(count)]
    lens = look(model, processor, None, TEXT, video=video, answer="a dog")
    panels = lens.show(["dog"]).axes
    shown = [lens.names.index(axes.get_title().split("\n")[1]) for axes in panels]
    most = lens.share[-1].argsort()[::-1][:5].tolist()
    assert shown == sorted(most)
    assert [len(axes.patches) for axes in panels] == [int(number == most[0]) for number in shown]
    for axes, number in zip(panels, shown, strict=True):
        assert f"\n{lens.share[-1, number]:.0%} of" in axes.get_title()
    figure = lens.show()
    assert len(figure.axes) == 2 * len(shown)
    assert ("5 of 7" in figure.get_supxlabel()) == (count == 14)
    lens.save(tmp_path / "strip.png")


@pytest.mark.parametrize("text", ["?", "! ."])
def test_an_empty_answer_and_no_letters(text, tmp_path):
    lens = look_with(text=text, answer="")
    lens.save(tmp_path / "lens.png")
    assert [word.answer for word in lens.words] == [False] * len(text.split())


def test_words_are_found_as_they_stand():
    lens = look_with(text="is it a dog, red ?", answer="red")
    assert lens["a dog, red ?"].text == "a dog, red ?"
    assert lens._find("red") == [len(lens.words) - 1]
    assert lens._find(("red", 1)) == [5]
    for occurrence in (2, -1, -9):
        with pytest.raises(KeyError):
            lens["red", occurrence]


@pytest.mark.parametrize(
    "question, answer, asked",
    [
        ("哪里有球？", "红色的球在桌子上。", ["球", "桌子", "红色的球"]),
        ("ボールは？", "赤いサッカーボールがある", ["ボール", "サッカーボール", "赤い"]),
        ("?", "ลูกบอลสีแดงในน้ำ", ["ลูกบอล", "สีแดง", "น้ำ"]),
        ("?", "हिन्दी में गेंद", ["गेंद", "में गेंद"]),
        ("?", "un cafe\u0301 rouge", ["caf\u00e9", "cafe\u0301 rouge"]),
        ("?", "a 👩‍👩‍👧 in H₂O at 3.5", ["👩‍👩‍👧", "H₂O", "3.5"]),
    ],
)
def test_words_of_every_script_are_asked_for(question, answer, asked):
    """A run of characters has the mean of its tokens, each once: those that share a byte with it."""
    processor = make_processor("llava", byte_pairs=True)
    model = make_model("llava", processor.tokenizer)
    lens = look(model, processor, PICTURE, question, answer=answer, heads=[(0, 1)])
    for text in asked:
        numbers = lens._find(text)
        found = answer[lens.words[numbers[0]].start : lens.words[numbers[-1]].end]
        assert lens[text].text == found
        assert normalize("NFC", found) == normalize("NFC", text)
        assert all(lens.words[number].answer for number in numbers)
        assert lens[text].share == pytest.approx(lens.share[numbers, 0].mean(), abs=1e-6)
    with pytest.raises(KeyError):
        lens["犬"]


def test_characters_of_one_token_count_once():
    lens = look_with(text="what is", answer="the small cat near", heads=[(0, 0)])
    words = [*lens.words]
    [small] = lens._find("small")
    [cat] = lens._find("cat")
    words[cat] = replace(words[cat], rows=words[small].rows)
    together = replace(lens, words=tuple(words))["the small cat"]
    assert together.share == pytest.approx((lens["the"].share + lens["cat"].share) / 2)


def test_adapters(tmp_path):
    """The rows are those of the merged model; heads that were measured without the adapter are not taken."""
    folder = save_llava(tmp_path / "llava")
    heads = {"format": 2, "layers": ["0", "1"], "heads": 4, "about": {"word": "mean"}}
    (folder / "heads.json").write_text(json.dumps({**heads, "chosen": [{"layer": 1, "head": 2}]}))
    processor = AutoProcessor.from_pretrained(folder)
    load = AutoModelForImageTextToText.from_pretrained

    def lens(model, heads="auto"):
        return look(model, processor, PICTURE, TEXT, answer="a dog", heads=heads, form="plain")

    assert lens(load(folder)).heads == ((1, 2),)
    settings = LoraConfig(target_modules=["q_proj"], init_lora_weights=False)
    adapted = get_peft_model(load(folder), settings)
    for model in (adapted, adapted.get_base_model()):
        assert "Localization Heads" in lens(model).heads_from
    read = lens(adapted, "all").attention
    assert not np.allclose(read, lens(load(folder), "all").attention, atol=1e-3)
    assert_allclose(read, lens(adapted.merge_and_unload(), "all").attention, atol=1e-5)
    virtual = get_peft_model(load(folder), PromptTuningConfig(task_type="CAUSAL_LM", num_virtual_tokens=4))
    with pytest.raises(ValueError, match="virtual tokens"):
        lens(virtual)


def test_the_model_answers_as_asked():
    model, processor = LLAVA
    options = {"max_new_tokens": 3, "num_beams": 2}
    lens = look(model, processor, PICTURE, TEXT, **options, num_return_sequences=2, return_dict_in_generate=True)
    _, prompt = read_picture(processor)
    options["bad_words_ids"] = [[model.config.image_token_id]]
    best = model.generate(**prompt.inputs, **options, pad_token_id=processor.tokenizer.pad_token_id)
    assert lens.answer == processor.tokenizer.decode(best[0, -3:], skip_special_tokens=True)


def test_forms_change_the_maps():
    plain = look_with(answer="a dog", heads="all")
    ratio = look_with(answer="a dog", heads="all", form="relative")
    assert not np.allclose(plain["dog"].cells, ratio["dog"].cells, atol=1e-4)
    rolled = look_with(answer="a dog", form="rollout")
    assert rolled.heads == ()
    assert rolled.attention.shape[0] == 1


@pytest.mark.parametrize(
    "options, message",
    [
        ({"images": None}, "needs an image"),
        ({"images": None, "video": FRAMES}, "videos of this type of model are not read"),
        ({"messages": [{"role": "user", "content": "a"}]}, "either text or messages"),
        ({"heads": [(7, 0)]}, r"layer and head \(7, 0\)"),
        ({"heads": 9}, "layer 9 has no heads"),
        ({"heads": []}, "heads is empty"),
        ({"answer": "a <image> dog"}, "answer: a text has '<image>'"),
        ({"text": "", "answer": ""}, "is empty"),
        ({"rows": "next"}, "own, before"),
        ({"form": "relativ"}, "form 'relativ' is unknown"),
    ],
)
def test_what_cannot_be_looked_at_is_refused(options, message):
    with pytest.raises(ValueError, match=message):
        look(*LLAVA, **{"images": PICTURE, "text": TEXT, "answer": "a dog", **options})


@pytest.mark.parametrize("options", [{"answer": "a dog"}, {"again": True, "max_new_tokens": 2}, {"heads": "all"}])
def test_attention_that_is_no_number_is_not_shown(options):
    """As in half precision, where scores can be larger than its numbers."""
    model, processor = make_pair("llava")
    with torch.no_grad():
        model.model.language_model.layers[0].self_attn.q_proj.weight.fill_(torch.inf)
    with pytest.raises(ValueError, match="NaN or infinite"):
        look(model, processor, PICTURE, TEXT, **options)


@pytest.mark.parametrize("family", ["qwen2_5_vl", "llava_padded", "idefics3"])
@pytest.mark.parametrize("scale", [1, 3])
def test_asking_again_crops_a_part_of_the_first_image(family, scale):
    """Whatever the settings of the image processor, and how many pixels the image has."""
    lens = look(*make_pair(family), picture(320 * scale, 240 * scale), TEXT, again=True, max_new_tokens=2)
    x1, y1, x2, y2 = lens.crop
    assert 0 <= x1 < x2 <= 320 * scale
    assert 0 <= y1 < y2 <= 240 * scale
    assert WINDOW * 240 * scale - 2 <= min(x2 - x1, y2 - y1) <= max(x2 - x1, y2 - y1) <= 2 * WINDOW * 240 * scale
    assert [image.size for image in lens.second.images] == [(320 * scale, 240 * scale), (x2 - x1, y2 - y1)]


@pytest.mark.parametrize("family", ["qwen3_vl", "internvl"])
def test_asking_again_crops_the_frame_with_most_attention_relative_to_a_neutral_question(family):
    processor = add_videos(make_processor(family), family)
    model = make_model(family, processor.tokenizer)
    frames = [picture(640, 480, seed) for seed in range(4)]
    lens = look(model, processor, None, TEXT, video=frames, heads=[(1, 2)], again=True, max_new_tokens=2)
    x1, y1, x2, y2 = lens.crop
    *shown, crop = lens.second.images
    assert shown == [*lens.images]
    assert crop == lens.images[lens.crop_image].crop((x1, y1, x2, y2))
    assert lens.second.names[:-1] == lens.names

    patches = PatchGroundingProcessor(processor, family)
    find_language_model(model).set_attn_implementation("eager")
    rows = []
    for words in (TEXT, NEUTRAL):
        batch = patches(words, images=[open_video(frames)])
        with torch.no_grad():
            maps = model(**patches.model_inputs(batch), output_attentions=True).attentions
        rows.append(maps[1][0, 2, -1, batch["region_positions"][0]])
    ratio = rows[0] / rows[1]
    sums = [ratio[batch["region_image"][0] == frame].sum().item() for frame in range(len(lens.images))]
    assert lens.crop_image == np.argmax(sums)


def test_a_crop_beside_a_video_is_refused_where_images_are():
    processor = add_videos(make_processor("glm4v"), "glm4v")
    with pytest.raises(ValueError, match="crop beside the video"):
        look(make_model("glm4v", processor.tokenizer), processor, None, TEXT, video=FRAMES, again=True)


def test_files(tmp_path):
    lens = look_with(answer="a dog </script> runs")
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


def test_boxes_that_an_answer_says_are_drawn():
    processor = make_processor("llava", byte_pairs=True)
    model = make_model("llava", processor.tokenizer)
    lens = look(model, processor, PICTURE, TEXT, answer="at [0.1, 0.2, 0.5, 0.75]", heads="all")
    assert lens.boxes == (pytest.approx((0.1, 0.2, 0.5, 0.75)),)
    assert '"said":[[0.1,0.2,0.5,0.75]]' in lens_page([lens]).replace(" ", "")
    for lenses, names in (([], []), ([lens], ["a", "b"]), ([lens, lens], ["a"])):
        with pytest.raises(ValueError, match=f"{len(names)} names for {len(lenses)} looks; give one for each"):
            lens_page(lenses, names)
    other = look(model, processor, PICTURE, TEXT, answer="at [10, 20, 50, 75]", heads="all")
    assert other.boxes == ()  # not on the scale of LLaVA


class Operations(TorchDispatchMode):
    """Counts the operations of PyTorch."""

    count = 0

    def __torch_dispatch__(self, operator, types, args=(), kwargs=None):
        self.count += 1
        return operator(*args, **kwargs or {})


def test_a_longer_answer_costs_no_more_operations_to_read():
    """A GPU would wait for each of them: what reading adds to `generate` does not grow with the answer."""
    model, processor = LLAVA
    patches, prompt = read_picture(processor)
    added = []
    for length in (4, 12):
        options = answer_length(length, processor)
        with Operations() as plain:
            generate(model, patches, prompt, **{**options, "max_new_tokens": length + 1})
        with Operations() as reading:
            _, rows = generate_and_read(model, patches, prompt, range(2), **options)
            read = rows.of(range(prompt.prompt_length - 1, prompt.prompt_length + length), [1])
        assert read[1].shape[1] == length + 1
        added.append(reading.count - plain.count)
    assert added[0] == added[1] > 0


class Scores(TorchDispatchMode):
    """The most rows whose scores are summed at once."""

    rows = 0

    def __torch_dispatch__(self, operator, types, args=(), kwargs=None):
        if operator is torch.ops.aten.logsumexp.default:
            self.rows = max(self.rows, args[0].shape[2])
        return operator(*args, **kwargs or {})


@pytest.mark.parametrize("family", ["llava", "inkling2", "muse_glimmer", "paligemma"])
def test_scores_of_rows_that_were_kept_have_a_bound(family, monkeypatch):
    """Those of a long prompt to all of its tokens would take more memory than the model."""
    model, processor = make_pair(family)
    patches, prompt = read_picture(processor)
    _, rows = generate_and_read(model, patches, prompt, [1], **answer_length(5, processor))
    positions = sorted({row for word in prompt.words for row in word.rows})
    positions += range(prompt.prompt_length, prompt.prompt_length + 5)
    with Scores() as together:
        expected = rows.of(positions)[1]
    monkeypatch.setattr("grounded_attention.lens.sequences.MOST_BYTES", 1)
    with Scores() as alone:
        attention = rows.of(positions)[1]
    assert_close(attention, expected, atol=2e-6, rtol=0)
    assert together.rows > alone.rows == 1


@pytest.mark.parametrize("length", [5, 16])
def test_a_prompt_that_is_read_in_parts_is_read_the_same(length):
    """Words before an image do not see it; the pass that has them has none of its tokens."""
    model, processor = make_pair("qwen2_5_vl")
    parts = [
        {"type": "text", "text": TEXT},
        {"type": "image", "image": PICTURE},
        {"type": "text", "text": "a dog ?"},
    ]
    options = {"messages": [{"role": "user", "content": parts}], "heads": "all", "max_new_tokens": 4}
    whole = look(model, processor, **options)
    model.generation_config.prefill_chunk_size = length
    assert_allclose(look(model, processor, **options).attention, whole.attention, atol=1e-6)
    assert whole.attention[:, -1].any()
