# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""The labels of `PatchGroundingProcessor`: which words a language model learns, found by reading them back."""

import numpy as np
import pytest

from grounded_attention.processing.patch_grounding import PatchGroundingProcessor
from tests.helpers.tiny_vlm_processors import PROCESSORS, make_processor

PICTURE = np.random.default_rng(0).integers(0, 255, (37, 53, 3), dtype=np.uint8)
WITH_TEMPLATE = [name for name in PROCESSORS if name != "paligemma"]


def words(processor, ids):
    return processor.tokenizer.convert_ids_to_tokens(ids.tolist())


@pytest.mark.parametrize("padding_side", ["right", "left"])
@pytest.mark.parametrize("model_type", WITH_TEMPLATE)
def test_the_answer_and_its_end_are_learned(model_type, padding_side):
    processor = make_processor(model_type, padding_side)
    grounding = PatchGroundingProcessor(processor)
    batch = grounding(["what is this ?", "a dog ?"], ["a small dog .", "two"], images=[PICTURE, PICTURE], labels=True)
    learned = [row[row >= 0] for row in batch["labels"]]
    # The template writes a line end after the answer, and no special token: the end token is added.
    assert words(processor, learned[0]) == ["a", "small", "dog", ".", "\n", "</s>"]
    assert words(processor, learned[1]) == ["two", "\n", "</s>"]
    kept = batch["labels"] >= 0
    assert (batch["labels"][kept] == batch["input_ids"][kept]).all()
    assert (batch["attention_mask"][kept] == 1).all()
    assert "labels" not in grounding("a dog ?", "two", images=PICTURE)


def test_every_answer_of_a_conversation_is_learned_up_to_its_special_token():
    processor = make_processor("llava")
    processor.chat_template = (
        "{% for message in messages %}{{ message['role'] }}: {% for part in message['content'] %}"
        "{{ '<image>' if part['type'] == 'image' else part['text'] }}{% endfor %}"
        "{{ '<end_of_utterance>\n' if message['role'] == 'assistant' else '\n' }}{% endfor %}"
    )

    def say(role, text, *before):
        return {"role": role, "content": [*before, {"type": "text", "text": text}]}

    chat = [say("user", "a dog ?", {"type": "image"}), say("assistant", "two dog"), say("user", "what ?")]
    batch = PatchGroundingProcessor(processor)([[*chat, say("assistant", "red")]], images=[PICTURE], labels=True)
    learned = batch["labels"][batch["labels"] >= 0]
    assert words(processor, learned) == ["two", "dog", "<end_of_utterance>", "red", "<end_of_utterance>"]
    with pytest.raises(ValueError, match="Example 0: labels need an answer to learn"):
        PatchGroundingProcessor(processor)([chat], images=[PICTURE], labels=True)


def test_a_model_without_a_chat_template_has_no_answers():
    grounding = PatchGroundingProcessor(make_processor("paligemma"))
    with pytest.raises(ValueError, match="Example 0: labels need an answer"):
        grounding(["a dog"], images=[PICTURE], labels=True)
