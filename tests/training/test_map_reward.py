# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""The part of a map inside boxes as a reward: by loops, against recorded rewards, and in TRL's GRPO."""

from pathlib import Path

import numpy as np
import pytest
import torch
from datasets import Dataset
from PIL import Image
from trl import GRPOConfig

from grounded_attention.lens.look import look
from grounded_attention.modeling.finite_numbers import NotFiniteError
from grounded_attention.supervision import get_method
from grounded_attention.training.loop.map_reward import MapReward, mass_in_boxes
from grounded_attention.training.loop.rewarded import GroundedGRPOTrainer
from tests.helpers.tiny_trainer import weights
from tests.helpers.tiny_vlm_models import make_pair
from tests.training.runs import changed_names

PARITY = Path(__file__).parents[3] / "shared/parity/explanations.pt"
HEADS = [(1, 2), (0, 0)]
BOXES = [[0.1, 0.2, 0.63, 0.9], [0.5, 0.1, 1.0, 0.45]]
QUESTION = "what is this ?"
SIZES = [(40, 24), (24, 56), (32, 32)]  # wide, tall, square


def cell_boxes(rows, columns):
    boxes = []
    for y in range(rows):
        for x in range(columns):
            boxes.append([x / columns, y / rows, (x + 1) / columns, (y + 1) / rows])
    return np.array(boxes)


@pytest.mark.parametrize("rows, columns", [(2, 5), (5, 2), (4, 4)])
def test_the_mass_by_fine_cells(rows, columns):
    """Boxes that overlap and end inside tokens, at a hundredth of the picture; x is of the width, y of the height."""
    values = np.random.default_rng(rows).normal(size=(rows, columns))
    fine = np.kron(values.clip(0), np.ones((100 // rows, 100 // columns)))
    inside = np.zeros(fine.shape, dtype=bool)
    for x1, y1, x2, y2 in np.round(np.array(BOXES) * 100).astype(int):
        inside[y1:y2, x1:x2] = True
    found = mass_in_boxes(values.ravel(), cell_boxes(rows, columns), BOXES)
    assert found == pytest.approx(fine[inside].sum() / fine.sum(), abs=1e-6)


def test_an_empty_map_has_no_mass_and_nan_is_an_error():
    tokens = cell_boxes(2, 2)
    assert mass_in_boxes(np.array([0.0, -1.0, 0.0, -2.0]), tokens, BOXES) == 0
    with pytest.raises(NotFiniteError):
        mass_in_boxes(np.array([0.0, np.nan, 1.0, 1.0]), tokens, BOXES)


@pytest.mark.skipif(not PARITY.exists(), reason="no reference tensors here")
def test_boxes_that_end_with_pixels_give_the_recorded_rewards():
    """The authors count whole pixels, both ends included (S2): boxes drawn around these have their rewards."""
    recorded = torch.load(PARITY, weights_only=True)["saliency_reward"]
    for number in range(3):
        values = recorded[f"map_{number}"]
        height, width = values.shape
        tokens = cell_boxes(height, width)
        scale = np.array([width, height] * 2)
        pixels = np.floor(recorded[f"boxes_{number}"].numpy() * scale)
        pixels[:, 2:] += 1
        found = [mass_in_boxes(values.flatten().numpy(), tokens, box) for box in (pixels / scale).clip(0, 1)]
        expected = recorded[f"reward_y2_by_height_{number}"]
        assert found * recorded[f"well_formed_{number}"].numpy() == pytest.approx(expected.numpy(), abs=1e-6)
        assert expected.any()


def pictures():
    generator = np.random.default_rng(0)
    return [Image.fromarray(generator.integers(0, 255, (y, x, 3), dtype=np.uint8)) for x, y in SIZES]


def asked(picture):
    return [{"role": "user", "content": [{"type": "image", "image": picture}, {"type": "text", "text": QUESTION}]}]


@pytest.mark.parametrize("form", ["plain", "contribution", "tam"])
def test_rewards_are_those_of_single_looks(form):
    """Also of pictures that are not square; a row without boxes has none, and the mode of the model stays."""
    model, processor = make_pair("qwen2_5_vl")
    model.train()
    answers = ["a small cat .", "two red balls", "near a dog"]
    ids = [processor.tokenizer(each, add_special_tokens=False)["input_ids"] for each in answers]
    phrases = [[{"text": "cat", "boxes": BOXES}]] * 2 + [[]]
    prompts = [asked(picture) for picture in pictures()]
    found = MapReward(model, processor, HEADS, form)(prompts, answers, ids, phrases=phrases)
    assert model.training
    assert found[2] is None
    for picture, answer, reward in zip(pictures()[:2], answers, found, strict=False):
        lens = look(model, processor, messages=asked(picture), answer=answer, heads=HEADS, form=form)
        maps = [lens.attention[:, number].mean(0) for number, word in enumerate(lens.words) if word.answer]
        assert reward == pytest.approx(mass_in_boxes(np.mean(maps, 0), lens.token_boxes, BOXES), abs=1e-5)


def test_a_policy_learns_from_it(tmp_path):
    """What is logged of each step is the mean of its rollouts' rewards, and weights move; beside an attention loss."""
    model, processor = make_pair("llava")
    reward = MapReward(model, processor, HEADS)
    seen = []

    def rewarded(**given):
        seen.append(reward(**given))
        return seen[-1]

    # The tiny model has more tokens than its tokenizer.
    image = processor.tokenizer.convert_tokens_to_ids(processor.image_token)
    unknown = [image, *range(len(processor.tokenizer), model.config.text_config.vocab_size)]
    options = {"max_steps": 2, "num_generations": 4, "per_device_train_batch_size": 4, "max_completion_length": 5}
    options |= {"report_to": "none", "use_cpu": True, "bf16": False, "save_strategy": "no", "logging_steps": 1}
    options |= {"remove_unused_columns": False, "generation_kwargs": {"suppress_tokens": unknown}, "seed": 3}
    row = {"images": pictures()[:1], "prompt": [{"role": "user", "content": QUESTION}]}
    row["phrases"] = [{"text": "cat", "boxes": BOXES}]
    trainer = GroundedGRPOTrainer(
        model,
        rewarded,
        args=GRPOConfig(str(tmp_path), **options),
        train_dataset=Dataset.from_list([row]),
        processing_class=processor,
        method=get_method("direct"),
        attention_weight=0.0,
    )
    before = weights(model)
    trainer.train()
    logged = [entry["rewards/rewarded/mean"] for entry in trainer.state.log_history if "loss" in entry]
    assert logged == pytest.approx([np.mean(each) for each in seen], abs=1e-6)
    assert np.std(seen) > 0
    assert changed_names(weights(model), before)


def test_completions_that_cannot_be_read_get_nothing(caplog):
    """Without a word, and with a token that the tokenizer does not know; it is said of how many."""
    model, processor = make_pair("llava")
    [cat] = processor.tokenizer("cat", add_special_tokens=False)["input_ids"]
    [dog] = processor.tokenizer("dog", add_special_tokens=False)["input_ids"]
    ids = [[processor.tokenizer.eos_token_id], [cat, len(processor.tokenizer)], [cat], [dog]]
    given = [asked(pictures()[0])] * 4
    phrases = [[{"text": "cat", "boxes": BOXES}]] * 4
    rewards = MapReward(model, processor, HEADS)(given, [""] * 4, ids, phrases=phrases)
    assert rewards[:2] == [0.0, 0.0]
    [record] = caplog.records
    assert "2 of 4" in record.message
    # What a word attends to depends on the word.
    assert rewards[2] != pytest.approx(rewards[3], abs=1e-6)


def test_rows_without_phrases_are_refused():
    with pytest.raises(ValueError, match="phrases"):
        MapReward(*make_pair("llava"), HEADS)([asked(pictures()[0])], ["a"], [[5]])
