# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""Models with code of their own, loaded as from the Hub: what is read of them is in their own maps."""

import numpy as np
import pytest
import torch
from numpy.testing import assert_allclose
from PIL import Image
from transformers import AutoModel, AutoProcessor

from grounded_attention import get_method, grounding_loss, look
from grounded_attention.heads.reading import get_observer, read_phrases
from grounded_attention.lens.answered import look_many
from grounded_attention.lens.sequences import add_answer, generate, read_prompt
from grounded_attention.processing.patch_grounding import PatchGroundingProcessor
from grounded_attention.supervision.supervise import find_language_model
from tests.helpers.hub_code import LAYERS, PATCH, WORDS, SeerConfig, SeerModel, SeerProcessor, find_columns
from tests.helpers.tiny_vlm_processors import make_tokenizer

TEXT = "what is the small cat near two red balls ?"
ANSWER = "a dog runs"
PICTURE = Image.fromarray(np.random.default_rng(0).integers(0, 255, (40, 56, 3), dtype=np.uint8))
LENGTH = len(make_tokenizer(byte_pairs=True))
# Ids above those of the tokenizer are no words.
OPTIONS = {"max_new_tokens": 4, "suppress_tokens": [*range(4), *range(LENGTH, WORDS)]}
INTERFACE = ("library", "interface")
READ = (*INTERFACE, "maps")


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    """Kind -> model and processor of code in the folder of the weights."""
    made = {}
    for kind in (*INTERFACE, "maps", "none"):
        folder = tmp_path_factory.mktemp(kind)
        torch.manual_seed(0)
        model = SeerModel(SeerConfig(kind))
        for parameter in model.parameters():
            torch.nn.init.normal_(parameter, std=0.25)
        model.save_pretrained(folder)
        SeerProcessor(make_tokenizer(byte_pairs=True)).save_pretrained(folder)
        processor = AutoProcessor.from_pretrained(folder, trust_remote_code=True)
        patches = PatchGroundingProcessor(processor, image_tokens=find_columns)
        made[kind] = AutoModel.from_pretrained(folder, trust_remote_code=True).eval(), patches
    assert type(made["library"][0]).__module__.startswith("transformers_modules.")
    return made


def own_maps(model, patches, ids):
    """The maps of the model's own eager attention (L, H, N, N) of prompt and answer, and the columns of the image."""
    prompt = read_prompt(patches, TEXT, [TEXT], [PICTURE])
    whole = add_answer(model, patches.tokenizer, prompt, ids)
    part = find_language_model(model)
    before = part.config._attn_implementation
    part.config._attn_implementation = "eager"
    outputs = model(**whole.inputs, output_attentions=True)
    part.config._attn_implementation = before
    return torch.stack(outputs.attentions)[:, 0].detach(), prompt.batch["region_positions"][0], whole


def compare(lens, maps, columns, words):
    for number, word in enumerate(words):
        for place, (layer, head) in enumerate(lens.heads):
            expected = maps[layer, head, [*word.rows]][:, columns].mean(0)
            assert_allclose(lens.attention[place, number], expected, atol=2e-6)


@pytest.mark.parametrize("kind", READ)
def test_rows_are_those_of_own_maps(saved, kind):
    """Of an answer that is generated, of one that is given, and of the latter in a batch."""
    model, patches = saved[kind]
    prompt = read_prompt(patches, TEXT, [TEXT], [PICTURE])
    ids = generate(model, patches, prompt, **OPTIONS)
    assert len(ids) == OPTIONS["max_new_tokens"]
    assert PATCH not in ids
    maps, columns, whole = own_maps(model, patches, ids)
    heads = [(layer, head) for layer in range(LAYERS) for head in range(4)]
    said = look(model, patches, PICTURE, TEXT, heads=heads, **OPTIONS)
    assert said.answer == whole.texts[-1]
    compare(said, maps, columns, whole.words)
    given = look(model, patches, PICTURE, TEXT, answer=ANSWER, heads=heads)
    maps, columns, whole = own_maps(model, patches, patches.tokenizer(ANSWER)["input_ids"])
    compare(given, maps, columns, whole.words)
    row = {"image": PICTURE, "text": TEXT}
    for lens in look_many(model, patches, [row, {**row, "text": "a cat"}], [ANSWER, "a"], heads=heads):
        if lens.answer == ANSWER:
            assert_allclose(lens.attention, given.attention, atol=2e-6)


def test_contributions_go_through_a_language_model_of_transformers(saved):
    """Those of heads add up to those of all of them."""
    model, patches = saved["library"]
    said = look(model, patches, PICTURE, TEXT, answer=ANSWER)
    assert said.form == ("contribution",)
    known = look(model, patches, PICTURE, TEXT, answer=ANSWER, heads=[(0, 0), (1, 1)], form="contribution")
    other = look(model, patches, PICTURE, TEXT, answer=ANSWER, heads=[(0, 0)], form="contribution")
    last = look(model, patches, PICTURE, TEXT, answer=ANSWER, heads=[(1, 1)], form="contribution")
    assert_allclose(known.contributions, other.contributions + last.contributions, atol=1e-5)


@pytest.mark.parametrize("kind", ["interface", "maps"])
def test_code_that_is_not_followed_shows_attention(saved, kind):
    model, patches = saved[kind]
    assert look(model, patches, PICTURE, TEXT, answer=ANSWER).form == ("plain",)
    with pytest.raises(ValueError, match=r"take another form|not known"):
        look(model, patches, PICTURE, TEXT, answer=ANSWER, form="contribution")


def test_maps_are_read_up_to_a_size_and_not_taught(saved, monkeypatch):
    model, patches = saved["maps"]
    with pytest.raises(ValueError, match="cannot be supervised"):
        get_method("direct").prepare(model)
    monkeypatch.setattr("grounded_attention.heads.reading.MAPS_GIB", 1e-6)
    with pytest.raises(ValueError, match=r"GiB.* tokens") as error:
        look(model, patches, PICTURE, TEXT, answer=ANSWER, heads="all")
    assert "\n" not in str(error.value)


def test_attention_that_nothing_returns_is_one_line(saved):
    model, patches = saved["none"]
    for way in ({"heads": "all"}, {}):
        with pytest.raises(ValueError, match="cannot be read") as error:
            look(model, patches, PICTURE, TEXT, answer=ANSWER, **way)
        assert "\n" not in str(error.value)


def test_a_generate_that_cannot_be_called_or_followed(saved, monkeypatch):
    """It wants other inputs, or gives as many tokens as the prompt has, which may be both."""
    model, patches = saved["library"]
    own = type(model).generate
    monkeypatch.setattr(type(model), "generate", lambda self, images: images)
    with pytest.raises(ValueError, match="give answer="):
        look(model, patches, PICTURE, TEXT, **OPTIONS)
    monkeypatch.setattr(type(model), "generate", lambda self, input_ids, **options: input_ids + 1)
    with pytest.raises(ValueError, match="give answer="):
        look(model, patches, PICTURE, TEXT, **OPTIONS)
    monkeypatch.setattr(type(model), "generate", own)
    assert look(model, patches, PICTURE, TEXT, **OPTIONS).answer


def test_pixels_of_a_cell_are_read_at_its_place(saved):
    model, patches = saved["maps"]
    batch = patches(TEXT, images=[PICTURE])
    places = batch["region_candidate_mask"][0].nonzero()[:, 0]
    before = model.tower(batch["pixel_values"])
    for cell in (0, 4, len(places) - 1):
        x1, y1, x2, y2 = (batch["region_boxes"][0, places[cell]] * torch.tensor([56, 40, 56, 40])).tolist()
        pixels = np.array(PICTURE)
        pixels[int(y1) : int(np.ceil(y2)), int(x1) : int(np.ceil(x2))] ^= 255
        after = model.tower(patches(TEXT, images=[Image.fromarray(pixels)])["pixel_values"])
        assert (after - before).abs().sum(1).argmax() == cell


@pytest.mark.parametrize("kind", READ)
def test_phrases(saved, kind):
    """Rows of phrases are those of own maps."""
    model, patches = saved[kind]
    batch = patches([TEXT, "a cat"], images=[PICTURE, PICTURE], phrases=[[{"text": "red balls"}], [{"text": "cat"}]])
    read = read_phrases(get_observer(model), batch)
    maps, columns, _ = own_maps(model, patches, [])
    asked = batch["text_positions"][0][batch["phrase_mask"][0, 0]]
    assert_allclose(read[:, 0, :, 0], maps[:, :, asked][..., columns].mean(2), atol=2e-6)


@pytest.mark.parametrize("kind", INTERFACE)
def test_training(saved, kind):
    """The loss has gradients of the language model."""
    model, patches = saved[kind]
    method = get_method("direct")
    method.prepare(model)
    phrases = [[{"text": "red balls", "boxes": [[0.1, 0.1, 0.6, 0.9]]}]] * 2
    batch = patches([TEXT, TEXT], images=[PICTURE, PICTURE], phrases=phrases)
    outputs = model(**patches.model_inputs(batch), **method.forward_kwargs(batch))
    grounding_loss(method, outputs, batch).backward()
    gradients = [part.grad.abs().sum() for part in find_language_model(model).parameters() if part.grad is not None]
    assert sum(gradients) > 0
    model.zero_grad()


def test_a_model_that_reads_more_positions_than_tokens_is_refused(saved, monkeypatch):
    model, patches = saved["library"]
    embed = type(model).embed
    monkeypatch.setattr(type(model), "embed", lambda self, *given: embed(self, *given).repeat(1, 2, 1))
    with pytest.raises(ValueError, match="positions that it reads"), torch.no_grad():
        look(model, patches, PICTURE, TEXT, answer=ANSWER, heads="all")
