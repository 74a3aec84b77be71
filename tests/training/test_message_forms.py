# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""Forms in which rows have one conversation: each is read equal, or refused by the name of the column."""

import json

import numpy as np
import pytest
import torch
import yaml
from PIL import Image

from grounded_attention import GroundingCollator, get_method
from tests.helpers.tiny_vlm_processors import make_processor

USUAL = [{"role": "user", "content": "Name this."}, {"role": "assistant", "content": "a red ball"}]
EQUAL = r"""
JSON text:
  messages: '[{"role": "user", "content": "Name this."}, {"role": "assistant", "content": "a red ball"}]'
parts:
  messages:
  - {role: user, content: [{type: image}, {type: text, text: Name this.}]}
  - {role: assistant, content: a red ball}
parts with Arrow's null:
  messages:
  - {role: user, content: [{type: image, text: null}, {type: text, text: Name this.}]}
  - {role: assistant, content: [{type: text, text: a red ball}]}
parts as JSON text:
  messages:
  - {role: user, content: '[{"type": "image"}, {"type": "text", "text": "Name this."}]'}
  - {role: assistant, content: a red ball}
a struct of lists:
  messages: {role: [user, assistant], content: [Name this., a red ball]}
keys without value:
  messages:
  - {role: user, content: Name this., name: null, tool_calls: null}
  - {role: assistant, content: a red ball, name: null, tool_calls: null}
ShareGPT:
  conversations: [{from: human, value: Name this.}, {from: gpt, value: a red ball}]
ShareGPT as JSON text:
  conversations: '[{"from": "human", "value": "Name this."}, {"from": "gpt", "value": "a red ball"}]'
ShareGPT under messages:
  messages: [{from: human, value: Name this.}, {from: gpt, value: a red ball}]
LLaVA:
  conversations: [{from: human, value: "<image>\nName this."}, {from: gpt, value: a red ball}]
prompt and completion:
  prompt: [{role: user, content: Name this.}]
  completion: [{role: assistant, content: a red ball}]
texts:
  prompt: Name this.
  completion: a red ball
a span:
  prompt: Name this.
  completion: a red ball
  phrases: [{sentence: 1, start: 0, end: 10, boxes: [[0.1, 0.2, 0.4, 0.9]]}]
"""
REFUSED = """
none: []
no JSON: what
cut JSON: '[{"role": "user", "content": "Name this."}, {"role": "assistant", "content": "a red'
lists of two: [[user, Name this.], [assistant, a red ball]]
an unknown role: [{role: me, content: Name this.}, {role: assistant, content: a red ball}]
a number: [{role: user, content: 3}, {role: assistant, content: a red ball}]
an unknown part:
- {role: user, content: [{type: audio, audio: x}, {type: text, text: Name this.}]}
- {role: assistant, content: a red ball}
"""
FORMS = yaml.safe_load(EQUAL)
FORMS["indented JSON"] = {"messages": json.dumps(USUAL, indent=2)}
FORMS["a tuple"] = {"messages": tuple(USUAL)}
FORMS["an array"] = {"messages": np.array(USUAL, dtype=object)}
OTHERS = yaml.safe_load(REFUSED)
OTHERS["bytes"] = json.dumps(USUAL).encode()


@pytest.fixture(scope="module")
def read():
    collator = GroundingCollator(make_processor("qwen2_5_vl", byte_pairs=True), get_method("direct"))
    phrases = [{"text": "a red ball", "boxes": [[0.1, 0.2, 0.4, 0.9]]}]
    row = {"images": [Image.new("RGB", (60, 40))], "phrases": phrases}
    return lambda columns: collator([{**row, **columns}])


@pytest.mark.parametrize("form", FORMS)
def test_forms_of_one_conversation_are_equal(read, form):
    expected = read({"messages": USUAL})
    found = read(FORMS[form])
    assert expected["phrase_mask"].any()
    for name in ("input_ids", "labels", "phrase_mask", "phrase_regions"):
        assert torch.equal(found[name], expected[name]), name


@pytest.mark.parametrize("form", OTHERS)
def test_other_forms_are_refused(read, form):
    with pytest.raises(ValueError, match="messages"):
        read({"messages": OTHERS[form]})
