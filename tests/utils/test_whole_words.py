# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""Words are found as whole words, in every path that looks words up, and in scripts without spaces too."""

import re

import numpy as np
import pytest
from PIL import Image

from grounded_attention.labelling.phrases import locate
from grounded_attention.modeling.grounding_items import find_phrases
from grounded_attention.training.loop.grounding_collator import GroundingCollator
from grounded_attention.utils.whole_words import find_words, whole_words
from tests.helpers.tiny_vlm_processors import make_processor

# Text and words in it.
WHOLE = """\
a man's hat | man
a man\u2019s hat | man
MAN'S HAT | MAN
the dogs' bowl | dogs
l'homme court | homme
a dog. | dog
(dog) | (dog)
cat\u2014dog | dog
a T-shirt | T-shirt
\u0915\u0941\u0924\u094d\u0924\u093e \u0926\u094c\u0921\u093c | \u0915\u0941\u0924\u094d\u0924\u093e
\ub0a8\uc790\uac00 \ub2ec\ub9b0\ub2e4 | \ub0a8\uc790
\u4e00\u53ea\u72d7\u5728\u8dd1 | \u72d7
\u72ac\u304c\u8d70\u308b | \u72ac
3D\u6253\u5370 | \u6253\u5370
红色的球在桌子上 | 桌子
サッカーボール | ボール
ลูกบอลสีแดง | ลูกบอล
ໝາກບານສີແດງ | ສີແດງ
បាល់ក្រហម | ក្រហម
အနီရောင်ဘောလုံး | ဘောလုံး
man\u0303ana roja | roja
a dog.It runs | dog
🇩🇪🇫🇷 | 🇫🇷
at 3.5, 7 | 3.5
3. a dog | 3
אַבָּא וְאִמָּא | אַבָּא
"""
PARTS = """\
a woman runs | man
two dogs | dog
a bored dog | red
a man-made lake | man
a snow-man | man
a T-shirt | shirt
he can't | can
M\u00e4nner | M\u00e4nn
cafe\u0301 | cafe
dog2 | dog
\u0915\u0941\u0924\u094d\u0924\u093e | \u0915\u0941\u0924\u094d\u0924
carpet | car
man\u0303ana | man
Fußballplatz | Fußball
น้ำ | น
မာ | မ
H₂O | H
👩‍👩‍👧 | 👧
👍🏽 | 👍
🇩🇪🇫🇷 | 🇪🇫
1️⃣ | 1
3.5 | 3
1,000 | 000
\u1100\u1161\u11a8 | \u1100
"""
# As UAX #29 cuts them, but for hyphens, full stops and colons before letters, and kana, each of which is apart.
CUT = {
    "the man's well-kept dog, aged 3.": "the|man's|well-kept|dog|,|aged|3|.",
    "'apple' rock'n'roll 90's": "'|apple|'|rock'n'roll|90's",
    "3.5 and 1,000 x² dog.It a:b": "3.5|and|1,000|x|²|dog|.|It|a|:|b",
    "http://a.b/c?d=1 __init__": "http|:|/|/|a|.|b|/|c|?|d|=|1|__init__",
    "हिन्दी में गेंद": "हिन्दी|में|गेंद",
    "சிவப்பு பந்து": "சிவப்பு|பந்து",
    "الكُرَةُ الحَمْراءُ": "الكُرَةُ|الحَمْراءُ",
    'אַבָּא צה"ל': 'אַבָּא|צה"ל',
    "cafe\u0301 mañana": "cafe\u0301|mañana",
    "红色的球，iPhone手机。": "红|色|的|球|，|iPhone|手|机|。",
    "赤いボール か\u3099き": "赤|い|ボ|ー|ル|か\u3099|き",
    "น้ำสีแดง": "น้ำ|สี|แ|ด|ง",
    "ខ្មែរ မာ ລາວ": "ខ្មែ|រ|မာ|ລ|າ|ວ",
    "빨간 공이": "빨간|공이",
    "a 👩‍👩‍👧 👍🏽 🇩🇪🇫🇷 1️⃣ 🏳️‍🌈": "a|👩‍👩‍👧|👍🏽|🇩🇪|🇫🇷|1️⃣|🏳️‍🌈",
    " \u200b\n": "",
}


def pairs(table):
    return [line.split(" | ") for line in table.splitlines()]


@pytest.mark.parametrize("text", CUT)
def test_words_of_every_script(text):
    assert "|".join(text[start:end] for start, end in find_words(text)) == CUT[text]


@pytest.mark.parametrize("text", ["🇩", "a\u0301", "球", "-a", "1,", "क्"])
def test_a_long_text_is_read_in_one_go(text):
    spans = find_words(text * 20_000)
    assert spans == sorted(spans)
    assert spans[-1][1] in (len(text) * 20_000, len(text) * 20_000 - 1)


def collated(text, words):
    row = {"image": Image.new("RGB", (60, 40)), "prompt": "What?", "completion": text}
    row["phrases"] = [{"text": words, "boxes": [[0.1, 0.2, 0.4, 0.9]]}]
    processor = make_processor("qwen2_5_vl", byte_pairs=True)
    batch = GroundingCollator(processor)([row])
    places = batch["text_positions"][0][np.asarray(batch["phrase_mask"][0, 0])]
    return processor.tokenizer.decode(batch["input_ids"][0][places])


@pytest.mark.parametrize("text, words", pairs(WHOLE))
def test_whole_words_are_found(text, words):
    found = [text[start:end] for start, end in whole_words(re.escape(words), text)]
    assert found == [words]
    assert [phrase.text for phrase in find_phrases(text, [words])[0]] == [words]
    assert [phrase.text for phrase in locate(text, [words])] == [words]
    assert words in collated(text, words)


@pytest.mark.parametrize("text, words", pairs(PARTS))
def test_parts_of_words_are_refused(text, words):
    assert not [*whole_words(re.escape(words), text)]
    assert locate(text, [words]) == []
    with pytest.raises(ValueError, match=re.escape(repr(words))):
        find_phrases(text, [words])
    with pytest.raises(ValueError, match=re.escape(repr(words))):
        collated(text, words)
    both = f"{text} {words}"  # the second occurrence is a word of its own
    assert find_phrases(both, [words])[0][0].start == len(text) + 1
