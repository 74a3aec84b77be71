# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""Image tokens against models: changed pixels change the embeddings of the tokens whose boxes have these pixels."""

import doctest
import json
import pickle
import sys
from contextlib import suppress
from functools import cache
from types import SimpleNamespace

import numpy as np
import pytest
import torch
import transformers
from packaging import version
from PIL import Image
from transformers import AutoConfig
from transformers.models.auto import modeling_auto
from transformers.models.auto.modeling_auto import MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES

from grounded_attention.processing import image_tokens
from grounded_attention.processing.image_tokens import (
    IMAGE_TOKEN_FAMILIES,
    REFUSED_FAMILIES,
    get_image_token_family,
    locate_image_tokens,
)
from grounded_attention.processing.patch_grounding import PatchGroundingProcessor
from grounded_attention.supervision.supervise import find_language_model
from tests.helpers.tiny_vlm_models import make_model, unmix_patches
from tests.helpers.tiny_vlm_processors import (
    ANSWERERS,
    PROCESSORS,
    image_backends,
    make_processor,
    meant,
    placeholder,
    type_of,
)
from tests.helpers.tiny_vlm_relatives import OTHER

CODED = ("chameleon", "emu3", "apertus1p5")  # a word of a codebook stays the same through some changes
RESIZED_TWICE = ("idefics3", "smolvlm")
NEAREST = 0  # every pixel of a resized picture is one pixel of the image
# Sizes (width, height) of the images of one example.
ODD = json.loads("[[[17, 90]], [[31, 64], [121, 33]], [[40, 40], [7, 9], [29, 30]]]")
PAN_AND_SCAN = json.loads("""{"do_pan_and_scan": true, "pan_and_scan_min_crop_size": 10,
    "pan_and_scan_max_num_crops": 3, "pan_and_scan_min_ratio_to_activate": 1.2}""")
NOT_RESIZED = [[48, 32]]
CASES = [
    *((model_type, sizes, {}) for model_type in PROCESSORS for sizes in ODD),
    *((model_type, sizes[:1], {}) for model_type in ANSWERERS for sizes in ODD),
    *(("gemma3", sizes, PAN_AND_SCAN) for sizes in ODD),
    ("smolvlm", NOT_RESIZED, {}),
    *json.loads(
        """[]"""
        if OTHER
        else """[["idefics3", [[53, 37], [30, 60]], {"do_image_splitting": false}],
    ["idefics3", [[53, 37]], {"size": {"longest_edge": 16}}],
    ["perception_lm", [[17, 90]], {"vision_input_type": "thumb+tile"}],
    ["perception_lm", [[121, 33]], {"vision_input_type": "thumb+tile"}],
    ["perception_lm", [[40, 40]], {"vision_input_type": "thumb+tile"}],
    ["unlimited_ocr", [[53, 37], [30, 60]], {"crop_to_patches": false, "maximum_pad_value": 9}],
    ["unlimited_ocr", [[53, 37], [30, 60]], {"crop_to_patches": false, "maximum_pad_value": 64}],
    ["got_ocr2", [[53, 37], [30, 60]], {"crop_to_patches": true}],
    ["internvl", [[53, 37], [30, 60]], {"crop_to_patches": false}],
    ["llava_onevision", [[64, 64]], {}],
    ["llava_next", [[40, 3], [3, 40]], {}],
    ["llava", [[24, 26]], {"do_resize": false}],
    ["llava", [[50, 21]], {"do_center_crop": false, "size": {"height": 24, "width": 24}}]]"""
    ),
]


def is_tested(model_type, sizes, settings, first):
    """Fewer cases with a second image processor, and for families that others stand for (`make families-vlm`: all)."""
    if settings:
        return True
    if model_type in meant():
        return first or sizes is ODD[1]
    return first and sizes[0] in ODD[1]


PAIRS = []
for model_type, sizes, settings in CASES:
    if model_type in PROCESSORS | ANSWERERS:
        for number, backend in enumerate(image_backends(model_type)):
            if is_tested(model_type, sizes, settings, number == 0):
                PAIRS.append((backend, model_type, sizes, settings))


def make_pictures(sizes, generator):
    return [generator.integers(0, 120, (height, width, 3), dtype=np.uint8) for width, height in sizes]


def embeddings(model, processor, examples, settings, known=None):
    """What the language model reads at every position, or of the image apart, (B, N, D), and the input ids."""
    image = placeholder(processor)
    family = get_image_token_family(processor, known)
    prompt = f"a {image} dog " + f"{image} the" * (len(examples[0]) - 1)
    if family.decoder is not None and family.decoder.prompt is not None:
        prompt = "a dog"  # the processor adds the image
    seen: list[torch.Tensor] = []

    def stop(module, args, kwargs):
        if kwargs.get("cross_attention_states") is not None:  # of tiles
            seen.append(kwargs["cross_attention_states"].unflatten(0, (len(kwargs["input_ids"]), -1)).flatten(1, 2))
            raise StopIteration
        read = args[0] if args else kwargs["inputs_embeds"]
        layers = kwargs.get("deepstack_features")
        if isinstance(layers, dict):  # Granite adds all that it reads of an image to hidden states
            read = read.masked_scatter(kwargs["vision_mask"], sum(layers.values()))
        seen.append(read)
        raise StopIteration  # what follows is not looked at

    language = find_language_model(model)
    part = language if language is not model else model.model.layers[0]
    if family.decoder is not None:
        part = find_language_model(model.get_encoder())
    hook = part.register_forward_pre_hook(stop, with_kwargs=True)
    words = {"padding": True, "return_tensors": "pt"}
    with torch.no_grad(), hook:
        # Qwen2.5-VL of transformers 5.4 cannot read more images than a sequence has tokens.
        for start in range(0, len(examples), 8):
            images = [[Image.fromarray(picture) for picture in one] for one in examples[start : start + 8]]
            call = {"text_kwargs": words, "images_kwargs": {**settings, "return_tensors": "pt"}}
            given = {"text": [prompt] * len(images), "images": family.arrange(images)}
            inputs = processor(**given, **call, **family.arguments)
            with suppress(StopIteration):
                model(**inputs)
    return torch.cat(seen), inputs["input_ids"]


def choose_areas(tokens, sizes, generator):
    """(image, (x1, y1, x2, y2) in pixels): the whole pixels inside boxes of tokens, whole images, others."""
    areas = []
    placed = np.flatnonzero(tokens.has_box)
    for token in {placed[0], placed[-1], *generator.choice(placed, min(6, len(placed)), replace=False)}:
        image = int(tokens.images[token])
        box = tokens.boxes[token].astype(np.float64) * np.tile(sizes[image], 2)
        areas.append((image, np.array([*np.ceil(box[:2] - 1e-4), *np.floor(box[2:] + 1e-4)], int)))
    for image, size in enumerate(sizes):
        areas.append((image, np.array([0, 0, *size])))
        for _ in range(2):
            corners = np.sort(generator.integers(0, np.array(size) + 1, (2, 2)), axis=0)
            areas.append((image, corners.flatten()))
    return [(image, area) for image, area in areas if (area[:2] < area[2:]).all()]


def overlap_of(tokens, image, area, size):
    """Pixels that the area shares with each token's box, the smaller of both axes (N,), and the pixels of a sample."""
    here = (tokens.images == image) & tokens.has_box
    boxes = np.where(here[:, None], tokens.boxes * [*size, *size], -9.0)
    shared = np.minimum(boxes[:, 2:], area[2:]) - np.maximum(boxes[:, :2], area[:2])
    step = np.zeros_like(shared)
    for view in np.unique(tokens.views[tokens.images == image]):
        chosen = here & (tokens.views == view)
        # A patch has at least 4 pixels on each side; boxes at the border may be cut.
        step[chosen] = (boxes[chosen, 2:] - boxes[chosen, :2]).max(axis=0, initial=0) / 4
    return shared, step


@cache
def make_unmixed(model_type, backend):
    """A processor, and a model in which every patch is embedded by itself."""
    processor = make_processor(model_type, backend=backend, resample=NEAREST)
    model = make_model(model_type, processor.tokenizer)
    unmix_patches(model)
    return processor, model


@pytest.mark.parametrize("backend, model_type, sizes, settings", PAIRS, ids=lambda value: str(value)[:40])
def test_pixels_inside_a_box_change_the_tokens_of_that_place(model_type, sizes, settings, backend, monkeypatch):
    generator = np.random.default_rng(1)
    processor, model = make_unmixed(model_type, backend)
    if model_type in ("hunyuan_vl", "hy_v4_vl"):  # it resizes with bicubic weights, whatever its settings say
        file = sys.modules[type(processor.image_processor).__module__]
        monkeypatch.setattr(file, "PILImageResampling", SimpleNamespace(BICUBIC=Image.Resampling.NEAREST))
    pictures = make_pictures(sizes, generator)
    known = model_type if model_type in ANSWERERS else None
    _, ids = embeddings(model, processor, [pictures], settings, known)
    (tokens,) = locate_image_tokens(processor, ids, [sizes], known, image_settings=settings)
    areas = choose_areas(tokens, sizes, generator)
    examples = [pictures]
    factors = (-1, -0.5, -1.5) if model_type in CODED else (-1,)  # a brighter patch may be normalised away
    for factor in factors:
        for image, (x1, y1, x2, y2) in areas:
            changed = [picture.copy() for picture in pictures]
            changed[image][y1:y2, x1:x2] = 255 + factor * changed[image][y1:y2, x1:x2].astype(float)
            examples.append(changed)
    embedded, _ = embeddings(model, processor, examples, settings, known)
    # The rows of a batch differ by rounding.
    differs = ((embedded[1:] - embedded[:1]).abs().amax(-1) > 1e-5).numpy()
    differs = differs.reshape(len(factors), len(areas), -1).any(axis=0)
    assert not np.delete(differs, tokens.positions, axis=1).any()
    required_count = 0
    for (image, area), row in zip(areas, differs[:, tokens.positions], strict=True):
        if model_type == "florence2":  # the mean of all
            assert row[0] == row.any()
            row[0] = False
        shared, step = overlap_of(tokens, image, area, sizes[image])
        # Idefics3 resizes several times: a pixel of the picture may then be one of a neighbour.
        blur = max(sizes[image]) / 48 if model_type in RESIZED_TWICE and sizes is not NOT_RESIZED else 0.0
        required = (shared > step + 2 * blur + 1e-3).all(axis=1)
        allowed = (shared > -blur + 1e-3).all(axis=1)
        assert row[required].all(), (image, area)
        assert allowed[row].all(), (image, area)
        required_count += required.sum()
    assert required_count >= tokens.has_box.sum()


def test_every_family_is_tested():
    installed = set(IMAGE_TOKEN_FAMILIES) & set(MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES)
    assert {type_of(name) for name in PROCESSORS | ANSWERERS} == installed


def test_every_type_of_transformers_is_known_or_refused_by_a_reason():
    assert not set(IMAGE_TOKEN_FAMILIES) & set(REFUSED_FAMILIES)
    if version.parse(transformers.__version__).release[:2] == (5, 24):  # a newer one has more types
        known = {*IMAGE_TOKEN_FAMILIES, *REFUSED_FAMILIES}
        assert set(MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES) <= known
        for name in {*modeling_auto.MODEL_FOR_MULTIMODAL_LM_MAPPING_NAMES} - known:
            config = AutoConfig.for_model(name)  # they hear, or have a thinker that sees
            assert not hasattr(config, "vision_config"), name
            assert not hasattr(config, "thinker_config") or f"{name}_thinker" in known, name


def test_tokens_of_padding_have_no_box():
    """A wide image in a square: above and below it there is nothing."""
    processor = make_processor("llava_padded")
    (tokens,) = locate_image_tokens(processor, [[processor.image_token_id] * 36], [[(60, 20)]])
    assert tokens.has_box.nonzero()[0].tolist() == [*range(12, 24)]
    assert np.isnan(tokens.boxes[~tokens.has_box]).all()
    np.testing.assert_allclose(tokens.boxes[13], [1 / 6, 0, 2 / 6, 0.5], atol=1e-6)


def test_positions_are_those_of_a_padded_batch():
    processor = make_processor("gemma3", padding_side="left")
    picture = Image.new("RGB", (20, 30))
    image = placeholder(processor)
    prompts = [f"a {image}", f"{image} a dog {image} runs"]
    pictures = [[picture], [picture, picture]]
    ids = processor(text=prompts, images=pictures, padding=True, return_tensors="np")["input_ids"]
    found = locate_image_tokens(processor, ids, [[(20, 30)], [(20, 30)] * 2])
    for tokens, row in zip(found, ids, strict=True):
        assert np.array_equal(tokens.positions, np.flatnonzero(row == processor.tokenizer.image_token_id))
    assert found[1].images.tolist() == [0] * 4 + [1] * 4


UNKNOWN = {
    "bert": "model type bert: its image tokens are not known",
    "blip-2": "model type blip-2: its image tokens are learned queries",
    "qwen3vl": r"not known; closest known types: qwen3_vl, [^;]+; docs/api/tables/vlm_families.md",
    None: "str: the image tokens of this processor are not known",
}


@pytest.mark.parametrize("model_type, message", UNKNOWN.items())
def test_a_model_that_is_not_known_is_refused(model_type, message):
    with pytest.raises(ValueError, match=message):
        locate_image_tokens("processor", [[1]], [[]], model_type=model_type)


@pytest.mark.parametrize("model_type", ["qwen2_vl", "llama4", "minicpmv4_6", "cohere2_vision", "mistral3", "gemma4"])
def test_a_processor_of_another_type_is_refused(model_type):
    patches = PatchGroundingProcessor(make_processor("llava"), model_type)
    with pytest.raises(ValueError):
        patches("a dog", images=[Image.new("RGB", (20, 30))])


def test_an_older_transformers_is_named_where_its_processor_differs(monkeypatch):
    """As MiniCPM-V 4.6 of transformers 5.17, whose processor has the same name."""
    processor = make_processor("minicpmv4_6")
    monkeypatch.delattr(type(processor.image_processor), "find_best_resize")
    messages = {"5.24.0": "give another model type", "5.17.0": r"5\.17\.0 does not .*>=5\.24\.0"}
    for installed, message in messages.items():
        monkeypatch.setattr(image_tokens, "transformers", SimpleNamespace(__version__=installed))
        with pytest.raises(ValueError, match=message):
            locate_image_tokens(processor, [[1]], [[(20, 30)]])


@pytest.mark.parametrize(
    "sizes, message",
    {
        "[[[16, 16]]]": "Example 0: 3 image tokens in the sequence",
        "[[[0, 16]]]": r"image 0: size \[0, 16\]",
        "[[], []]": "image_sizes has 2 entries",
    }.items(),
)
def test_sizes_that_do_not_fit_the_tokens_are_refused(sizes, message):
    processor = make_processor("qwen2_vl")
    with pytest.raises(ValueError, match=message):
        locate_image_tokens(processor, [[processor.image_token_id] * 3], json.loads(sizes))


def test_the_docstring_example_runs():
    result = doctest.testmod(sys.modules[image_tokens.__name__], optionflags=doctest.NORMALIZE_WHITESPACE)
    assert result.attempted >= 5
    assert result.failed == 0


@pytest.mark.parametrize("model_type", IMAGE_TOKEN_FAMILIES)
def test_a_family_can_be_sent_to_another_process(model_type):
    family = IMAGE_TOKEN_FAMILIES[model_type]
    assert pickle.loads(pickle.dumps(family)) == family
