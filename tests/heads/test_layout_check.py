# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""`check_layout`: right layouts are confirmed for every type, wrong ones are found, and the model stays as it was."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from PIL import Image

from grounded_attention.commands import heads
from grounded_attention.heads import layout_check
from grounded_attention.heads.layout_check import check_layout
from grounded_attention.processing.patch_grounding import PatchGroundingProcessor
from tests.helpers.commands import read_error
from tests.helpers.tiny_vlm_files import save_llava
from tests.helpers.tiny_vlm_models import make_model, make_pair
from tests.helpers.tiny_vlm_processors import ANSWERERS, KINDS, PROCESSORS, make_processor, meant

SIZES = (((53, 37),), ((31, 64), (121, 33)))
# Types whose image tokens are words of a codebook.
CODES = ("chameleon", "emu3", "apertus1p5")
SEEN = [name for name in PROCESSORS if name not in CODES]


@pytest.mark.parametrize("model_type", [*PROCESSORS, *ANSWERERS])
def test_known_layouts_are_confirmed(model_type):
    others = {*PROCESSORS} - {*meant()}
    sizes = SIZES[1:] if model_type in others else SIZES
    report = check_layout(*make_pair(model_type), sizes, cells=4)
    assert report.outcome == ("cannot tell" if model_type in CODES else "placed"), report
    if model_type in CODES:
        assert "codebook" in str(report)


def change_boxes(part, change):
    """A layout with other boxes of the tokens that have some."""
    if isinstance(part, str):
        return part
    if isinstance(part, list):
        return [change_boxes(each, change) for each in part]
    placed = ~np.isnan(part[:, 0])
    changed = np.array(part)
    changed[placed] = change(changed[placed])
    return changed


def half_a_cell_lower(boxes):
    height = (boxes[:, 3:] - boxes[:, 1:2]) / 2
    return (boxes + height * [0, 1, 0, 1]).clip(0, 1)


def larger(boxes):
    """Three times as wide and high."""
    sides = boxes[:, 2:] - boxes[:, :2]
    return (boxes + np.concatenate([-sides, sides], axis=1)).clip(0, 1)


WRONG = {
    "the whole picture": lambda boxes: np.broadcast_to([0.0, 0.0, 1.0, 1.0], boxes.shape),
    "too large": larger,
    "next token": lambda boxes: np.roll(boxes, 1, axis=0),
    "columns before rows": lambda boxes: boxes[:, [1, 0, 3, 2]],
    "half a cell lower": half_a_cell_lower,
    "upside down": lambda boxes: np.stack([boxes[:, 0], 1 - boxes[:, 3], boxes[:, 2], 1 - boxes[:, 1]], axis=1),
}


@pytest.mark.parametrize("wrong", WRONG)
@pytest.mark.parametrize("model_type", KINDS)
def test_wrong_layouts_are_found(model_type, wrong):
    model, processor = make_pair(model_type)
    patches = PatchGroundingProcessor(processor, model.config.model_type)
    right = patches.family.layout
    patches.family = replace(patches.family, layout=lambda settings: change_boxes(right(settings), WRONG[wrong]))
    report = check_layout(model, patches, (((53, 37),),), cells=24)
    assert report.outcome == "misplaced", report
    assert "image token" in str(report)


def make_llava():
    """With a tokenizer whose tokens say all of a text."""
    processor = make_processor("llava", byte_pairs=True)
    return make_model("llava", processor.tokenizer), processor


def test_image_tokens_that_are_missing_are_found():
    model, processor = make_llava()

    def first_two(ids, inputs, sizes):
        places = np.flatnonzero(ids == processor.image_token_id)
        return [(places[:2], [[0, 0, 1 / 6, 1 / 6], [1 / 6, 0, 2 / 6, 1 / 6]])]

    patches = PatchGroundingProcessor(processor, image_tokens=first_two)
    assert check_layout(model, patches, (((60, 60),),)).outcome == "misplaced"


@pytest.mark.parametrize("boxes", [[[np.nan] * 4] * 36, [[0.5, 0.5, 0.51, 0.51]] * 36], ids=["none", "small"])
def test_what_shows_no_pixels_cannot_be_told(boxes):
    model, processor = make_llava()
    patches = PatchGroundingProcessor(
        processor, image_tokens=lambda ids, *more: [(np.flatnonzero(ids == processor.image_token_id), boxes)]
    )
    report = check_layout(model, patches, (((60, 60),),))
    assert report.outcome == "cannot tell"
    assert report.cases[0].tokens == 36


@torch.no_grad()
def test_weights_that_convolutions_share_are_restored_after_an_interruption(monkeypatch):
    model, processor = make_pair("fast_vlm")
    first, *_ = [module for module in model.modules() if isinstance(module, torch.nn.Conv2d)]
    model.register_module("again", torch.nn.Conv2d(1, 1, 1))
    model.again.weight = first.weight
    model.again.padding, model.again.stride = first.padding, first.stride
    model.again.kernel_size = first.kernel_size
    before = first.weight.clone()
    monkeypatch.setattr(layout_check, "read_by_language_model", lambda *given: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        check_layout(model, processor, SIZES)
    assert torch.equal(first.weight, before)


def test_two_pictures_that_are_exchanged_are_found():
    model, processor = make_pair("llava")
    patches = PatchGroundingProcessor(processor, "llava")
    call = patches.__call__
    exchanged = type("Exchanged", (PatchGroundingProcessor,), {})
    patches.__class__ = exchanged

    def other_order(self, text, images):
        batch = call(text, images=images)
        batch["region_image"] = 1 - batch["region_image"]
        return batch

    exchanged.__call__ = other_order
    assert check_layout(model, patches, (((40, 40), (40, 40)),)).outcome == "misplaced"


@torch.no_grad()
@pytest.mark.parametrize("model_type", ["qwen2_5_vl", "fast_vlm", "granite4_vision"])
def test_the_model_stays_as_it_was(model_type):
    model, processor = make_pair(model_type)
    patches = PatchGroundingProcessor(processor, model.config.model_type)
    inputs = patches.model_inputs(patches("a dog", images=[Image.new("RGB", (53, 37), "red")]))
    before = model(**inputs).logits
    weights = {name: value.clone() for name, value in model.state_dict().items()}
    check_layout(model, processor, SIZES, cells=2)
    assert torch.equal(model(**inputs).logits, before)
    assert all(torch.equal(value, weights[name]) for name, value in model.state_dict().items())


@torch.no_grad()
def test_a_tower_that_mixes_patches_is_not_called_wrong(monkeypatch):
    """As of a tower whose attention has another name, and says more than the patches themselves."""
    monkeypatch.setattr(layout_check, "_MIXING", ())
    model, processor = make_pair("qwen2_vl")
    for name, weight in model.named_parameters():
        if "visual" in name and name.endswith("attn.proj.weight"):
            weight.mul_(1e4)
    report = check_layout(model, processor, (((90, 70),),), cells=12)
    assert report.outcome == "cannot tell", report
    assert "mixes" in str(report)


def test_the_command(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(layout_check, "SIZES", SIZES)
    model = str(save_llava(tmp_path / "llava"))
    assert heads.main(["--model", model, "--check", "--device", "cpu"]) == 0
    printed = capsys.readouterr().out
    assert printed.startswith("llava: placed")
    assert len(printed.splitlines()) == 7
    assert heads.main(["--model", model, "--check", "--split", "test"]) == 2
    assert "--split" in read_error(capsys)
