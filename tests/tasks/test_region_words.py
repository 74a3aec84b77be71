# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""The loss of region words by loops, on every family of vision-language models, and as an option of the task."""

import math
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from PIL import Image

from grounded_attention.processing.image_tokens import IMAGE_TOKEN_FAMILIES
from grounded_attention.processing.patch_grounding import PatchGroundingProcessor
from grounded_attention.supervision import get_method
from grounded_attention.tasks import TASKS
from grounded_attention.tasks.grounded_generation import (
    SCALE,
    GroundedGenerationOptions,
    count_region_words,
    region_word_loss,
)
from grounded_attention.tasks.task import Examples
from grounded_attention.training.loop.data import Collator
from tests.helpers.task_inputs import task_inputs
from tests.helpers.tiny_vlm_models import make_model
from tests.helpers.tiny_vlm_processors import make_processor, meant

TASK = TASKS["grounded_generation"]
OPTIONS = GroundedGenerationOptions(region_words=0.5)
BOXES = [[0.1, 0.1, 0.5, 0.9]], [[0.5, 0.2, 0.9, 0.8]]


def rows(*texts):
    """A caption for each text, of which two words are a phrase with boxes."""
    made = []
    for number, (text, words) in enumerate(texts):
        start = text.index(words)
        phrase = {"text": words, "start": start, "end": start + len(words), "boxes": BOXES[number % 2]}
        made.append({"image_id": "7", "caption_id": str(number), "text": text, "phrases": [phrase]})
    return made


TEXTS = rows(("a dog runs after the small cat .", "small cat"), ("the dog runs", "the dog"))


def make_batch(processor, texts=TEXTS, training=True):
    pictures = [Image.fromarray(np.full((48, 64, 3), 90 * i, dtype=np.uint8)) for i in range(len(texts))]
    return TASK.configure(OPTIONS).collate(Examples(texts, None, None, images=pictures, training=training), processor)


def by_loops(states, batch):
    """Sum and count of the loss, one phrase and word at a time."""
    phrases = []
    words = {}
    states = states.double()
    for example, number in np.ndindex(*batch["phrase_mask"].shape[:2]):
        tokens = batch["phrase_mask"][example, number]
        regions = batch["phrase_regions"][example, number].bool()
        if not tokens.any() or not regions.any():
            continue
        mean = states[example, batch["region_positions"][example, regions]].mean(0)
        positions = batch["text_positions"][example, tokens]
        ids = batch["input_ids"][example, positions].tolist()
        phrases.append((mean, ids))
        for word, place in zip(ids, positions, strict=True):
            words.setdefault(word, states[example, place])
    cosine = torch.nn.CosineSimilarity(dim=0)
    losses = []
    for mean, ids in phrases:
        shares = {word: math.exp(SCALE * cosine(mean, state)) for word, state in words.items()}
        for word in ids:
            losses.append(math.log(sum(shares.values()) / shares[word]))
    return sum(losses), len(losses)


ONE_SEQUENCE = {name for name, each in IMAGE_TOKEN_FAMILIES.items() if each.keys == "sequence" and not each.decoder}

# Types whose image tokens are codes.
CODES = ("apertus1p5", "chameleon", "emu3")


# The task needs a chat template, which PaliGemma has not.
@pytest.mark.parametrize("model_type", sorted(ONE_SEQUENCE & {*meant(), "gemma3n", *CODES} - {"paligemma"}))
def test_the_loss_by_loops_and_its_gradients(model_type):
    processor = PatchGroundingProcessor(make_processor(model_type))
    model = make_model(model_type, processor.tokenizer).eval()
    batch = make_batch(processor)
    outputs = model(**task_inputs(TASK, batch))
    loss = region_word_loss(outputs, batch)
    count = count_region_words(batch)
    states = outputs.hidden_states[0].detach()
    if states.dim() == 3:
        streams = states
    else:
        streams = states[0] if model_type == "gemma3n" else states[:, :, 0]
    expected, words = by_loops(streams, batch)
    assert int(count) == words >= 4
    assert loss.item() == pytest.approx(expected, rel=1e-4)
    loss.backward()
    learning = {name for name, weight in model.named_parameters() if weight.grad is not None and weight.grad.any()}
    seen = any("vision" in name or "visual" in name or "tower" in name for name in learning)
    assert seen == (model_type not in CODES)
    assert model.get_input_embeddings().weight.grad.any()
    assert not any("self_attn" in name and "language_model" in name for name in learning)


def test_phrases_without_image_tokens_or_words_do_not_count():
    processor = PatchGroundingProcessor(make_processor("llava"))
    batch = make_batch(processor)
    states = SimpleNamespace(hidden_states=[torch.randn(*batch["input_ids"].shape, 8, requires_grad=True)])
    batch["phrase_regions"][1] = False
    assert int(count_region_words(batch)) == 2
    expected, _ = by_loops(states.hidden_states[0].detach(), batch)
    assert region_word_loss(states, batch).item() == pytest.approx(expected)
    batch["phrase_mask"][0] = False
    assert int(count_region_words(batch)) == 0
    loss = region_word_loss(states, batch)
    assert loss.item() == 0.0
    assert loss.requires_grad


def test_a_control_of_attention_leaves_region_words_gold():
    processor = PatchGroundingProcessor(make_processor("llava"))
    losses = []
    taught = []
    for labels in ("gold", "random"):
        collator = Collator(TASK, processor, None, options=OPTIONS, labels=labels, method=get_method("direct"))
        batch = collator.prepare(make_batch(processor), TEXTS)
        torch.manual_seed(0)
        states = SimpleNamespace(hidden_states=[torch.randn(*batch["input_ids"].shape, 8)])
        losses.append((region_word_loss(states, batch).item(), int(count_region_words(batch))))
        taught.append(batch["phrase_regions"].bool())
    assert losses[0] == losses[1]
    assert taught[0].any()
    assert not (taught[0] & taught[1]).any()


def test_only_training_batches_ask_for_states():
    processor = PatchGroundingProcessor(make_processor("llava"))
    assert make_batch(processor)["output_hidden_states"] is True
    assert "output_hidden_states" not in make_batch(processor, training=False)
    configured = TASK.configure(OPTIONS, None)
    assert [loss.name for loss in configured.losses] == ["language", "region_words"]
    assert configured.losses[1].weight == 0.5
    assert len(TASK.configure(GroundedGenerationOptions()).losses) == 1
