# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""Words are found as whole words, in every path that looks words up, and in scripts without spaces too."""

import re

import numpy as np
import pytest
from PIL import Image

from grounded_attention.labelling.phrases import locate
from grounded_attention.modeling.caption_phrases import find_phrases
from grounded_attention.training.loop.grounding_collator import GroundingCollator
from grounded_attention.utils.whole_words import whole_words
from tests.helpers.tiny_vlm_processors import make_processor

WHOLE = [
    ("a man's hat", "man"), ("a man\u2019s hat", "man"), ("MAN'S HAT", "MAN"), ("the dogs' bowl", "dogs"),
    ("l'homme court", "homme"), ("a dog.", "dog"), ("(dog)", "(dog)"), ("cat\u2014dog", "dog"),
    ("a T-shirt", "T-shirt"),
    ("\u0915\u0941\u0924\u094d\u0924\u093e \u0926\u094c\u0921\u093c", "\u0915\u0941\u0924\u094d\u0924\u093e"),
    ("\ub0a8\uc790\uac00 \ub2ec\ub9b0\ub2e4", "\ub0a8\uc790"), ("\u4e00\u53ea\u72d7\u5728\u8dd1", "\u72d7"),
    ("\u72ac\u304c\u8d70\u308b", "\u72ac"), ("3D\u6253\u5370", "\u6253\u5370"),
]  # fmt: skip
PARTS = [
    ("a woman runs", "man"), ("two dogs", "dog"), ("a bored dog", "red"), ("a man-made lake", "man"),
    ("a snow-man", "man"), ("a T-shirt", "shirt"), ("he can't", "can"), ("M\u00e4nner", "M\u00e4nn"),
    ("cafe\u0301", "cafe"), ("dog2", "dog"),
    ("\u0915\u0941\u0924\u094d\u0924\u093e", "\u0915\u0941\u0924\u094d\u0924"),
]  # fmt: skip


def collated(text, words):
    row = {"image": Image.new("RGB", (60, 40)), "prompt": "What?", "completion": text}
    row["phrases"] = [{"words": words, "boxes": [[0.1, 0.2, 0.4, 0.9]]}]
    processor = make_processor("qwen2_5_vl", byte_pairs=True)
    batch = GroundingCollator(processor)([row])
    places = batch["text_positions"][0][np.asarray(batch["phrase_mask"][0, 0])]
    return processor.tokenizer.decode(batch["input_ids"][0][places])


@pytest.mark.parametrize(("text", "words"), WHOLE)
def test_whole_words_are_found(text, words):
    found = [text[start:end] for start, end in whole_words(re.escape(words), text)]
    assert found == [words] and [each.text for each in find_phrases(text, [words])[0]] == [words]
    assert [each.text for each in locate(text, [words])[0]] == [words] and words in collated(text, words)


@pytest.mark.parametrize(("text", "words"), PARTS)
def test_parts_of_words_are_refused(text, words):
    assert not [*whole_words(re.escape(words), text)] and locate(text, [words]) == ([], 1)
    for look_up in (lambda: find_phrases(text, [words]), lambda: collated(text, words)):
        with pytest.raises(ValueError, match=re.escape(repr(words))):
            look_up()
    both = f"{text} {words}"  # the second occurrence is a word of its own
    assert find_phrases(both, [words])[0][0].start == len(text) + 1
