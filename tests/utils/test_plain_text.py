# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""Messages keep their sentences whole; what is long in them are values, which are shortened in their middle."""

import pytest

from grounded_attention.utils.plain_text import first_sentences, printable, shorten_values

TORCHVISION = (
    "\nQwen2VLVideoProcessor requires the Torchvision library but it was not found in your environment. Check out the "
    "instructions on the\ninstallation page: https://pytorch.org/get-started/locally/ and follow the ones that match "
    "your environment.\nPlease note that you may need to restart your runtime after installation.\n"
)


@pytest.mark.parametrize(
    "value",
    [
        "data:image/png;base64," + "A" * 79000,
        "'" + "a word " * 2000 + "'",
        str(list(range(9000))),
        "{'a': " + "1" * 5000 + "}",
        "/very" * 200,
    ],
)
def test_a_long_value_is_shortened_in_its_middle(value):
    text = f"rows.json, record 3: image doesn't exist: found {value}, expected a user's path; isn't it elsewhere?"
    short = shorten_values(text)
    before, _, after = short.partition(value[:40])
    assert before == "rows.json, record 3: image doesn't exist: found "
    assert "…" in after
    assert after.endswith(f"{value[-20:]}, expected a user's path; isn't it elsewhere?")
    assert len(short) < 400


@pytest.mark.parametrize(
    "text",
    [
        "known keys: " + ", ".join(f"key_{number}" for number in range(200)),
        "the models' names aren't those of the files' " * 20,
        "expected one of ['linear', 'cosine', 'constant']",
    ],
)
def test_a_sentence_is_not_shortened(text):
    assert shorten_values(text) == text == printable(text, 10**5)


def test_the_messages_of_libraries_end_with_a_sentence():
    found = first_sentences(TORCHVISION)
    assert found.startswith("Qwen2VLVideoProcessor requires")
    assert found.endswith(".")
    assert "\n" not in found
    assert " ".join(TORCHVISION.split()).startswith(found)
    assert "on the installation page" in found


def test_more_sentences_are_left_out_whole():
    one = "A first one, " + "word " * 40 + "ends."
    two = "A second 1.5 of e.g. these."
    three = "A third " + "x " * 90
    assert first_sentences(f"{one}\n{two}\n{three}") == f"{one} {two}"
    assert first_sentences(three * 3) == (three * 3).strip()  # no end, so it is whole
    assert first_sentences(ValueError()) == "ValueError"
