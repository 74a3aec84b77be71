# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""Forms in which rows have one conversation: each is read equal, or refused by the name of the column."""

import json

import numpy as np
import pytest
from PIL import Image

from grounded_attention import GroundingCollator, get_method
from tests.helpers.tiny_vlm_processors import make_processor

ASKED = "What is this?"
SAID = "a red ball"
ANSWER = {"role": "assistant", "content": SAID}
USUAL = [{"role": "user", "content": ASKED}, ANSWER]
PARTS = [{"type": "image"}, {"type": "text", "text": ASKED}]
SHARED = [{"from": "human", "value": ASKED}, {"from": "gpt", "value": SAID}]
EQUAL = {
    "JSON text": {"messages": json.dumps(USUAL)},
    "indented JSON": {"messages": json.dumps(USUAL, indent=2)},
    "parts": {"messages": [{"role": "user", "content": PARTS}, ANSWER]},
    "parts with Arrow's null": {
        "messages": [{"role": "user", "content": [{**PARTS[0], "text": None}, PARTS[1]]}, ANSWER]
    },
    "parts as JSON text": {"messages": [{"role": "user", "content": json.dumps(PARTS)}, ANSWER]},
    "a tuple": {"messages": tuple(USUAL)},
    "an array": {"messages": np.array(USUAL, dtype=object)},
    "a struct of lists": {"messages": {"role": ["user", "assistant"], "content": [ASKED, SAID]}},
    "keys without value": {"messages": [{**each, "name": None, "tool_calls": None} for each in USUAL]},
    "ShareGPT": {"conversations": SHARED},
    "ShareGPT as JSON text": {"conversations": json.dumps(SHARED)},
    "ShareGPT under messages": {"messages": SHARED},
    "LLaVA": {"conversations": [{"from": "human", "value": f"<image>\n{ASKED}"}, SHARED[1]]},
    "prompt and completion": {"prompt": USUAL[:1], "completion": USUAL[1:]},
}
REFUSED = {
    "none": [],
    "no JSON": "what",
    "cut JSON": json.dumps(USUAL)[:-5],
    "bytes": json.dumps(USUAL).encode(),
    "lists of two": [["user", ASKED], ["assistant", SAID]],
    "an unknown role": [{"role": "me", "content": ASKED}, ANSWER],
    "a number": [{"role": "user", "content": 3}, ANSWER],
    "an unknown part": [{"role": "user", "content": [{"type": "audio", "audio": "x"}, PARTS[1]]}, ANSWER],
}


@pytest.fixture(scope="module")
def read():
    collator = GroundingCollator(make_processor("qwen2_5_vl", byte_pairs=True), get_method("direct"))
    phrases = [{"text": SAID, "boxes": [[0.1, 0.2, 0.4, 0.9]]}]
    row = {"images": [Image.new("RGB", (60, 40))], "phrases": phrases}
    return lambda columns: collator([{**row, **columns}])["input_ids"].tolist()


def test_forms_of_one_conversation_are_equal(read):
    wanted = read({"messages": USUAL})
    assert [name for name, columns in EQUAL.items() if read(columns) != wanted] == []


@pytest.mark.parametrize("form", REFUSED)
def test_other_forms_are_refused(read, form):
    with pytest.raises(ValueError, match="messages"):
        read({"messages": REFUSED[form]})
