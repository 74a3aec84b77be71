"""Rows that go through a template of others: whatever it inserts and cuts, tokens of phrases are their words."""

import json
import random

import pytest

from grounded_attention.processing.phrase import Phrase
from grounded_attention.training.trainers.followed_rows import FollowedRow, TrainerOptions
from tests.helpers.tiny_vlm_processors import make_tokenizer

WORDS = ("a", "red", "ball", "on", "the", "grass", "고양이", "नमस्ते", "gato", "😀")


def draw_row(seed):
    draw = random.Random(seed)
    texts = [" ".join(draw.choices(WORDS, k=draw.randint(1, 12))) for _ in range(draw.randint(1, 3))]
    phrases = []
    for sentence, text in enumerate(texts):
        starts = [0, *(place + 1 for place, letter in enumerate(text) if letter == " ")]
        for _ in range(draw.randint(0, 3)):
            start = draw.choice(starts)
            end = draw.choice([place for place in [*(each - 1 for each in starts), len(text)] if place > start])
            phrases.append(Phrase(text[start:end], start, end, sentence, boxes=[[0, 0, 1, 1]]))
    return draw, texts, phrases


@pytest.mark.parametrize("seed", range(25))
def test_tokens_of_phrases_are_their_words(seed):
    draw, texts, phrases = draw_row(seed)
    tokenizer = make_tokenizer(byte_pairs=True)
    row = FollowedRow(texts, phrases)
    ids = []
    for sentence in range(len(texts)):
        ids += [3] * draw.randint(0, 4)  # what a template inserts besides
        marked = f"user: {row.marked(sentence)} end."
        ids += row.encode(marked, tokenizer, lambda text: tokenizer(text, add_special_tokens=False)["input_ids"])
    whole = len(ids)
    kept = ids[: draw.randint(whole // 2, whole)]
    entry = json.loads(row.entry(kept, [], {3}))
    assert len(entry["phrases"]) + entry["lost"] == len(phrases)
    assert not entry["lost"] or len(kept) < whole
    for phrase in entry["phrases"]:
        start, end = phrase["start"], phrase["end"]
        assert entry["text"][start:end] == phrase["text"]
        inside = [token for token, span in zip(kept, entry["spans"], strict=True) if span[0] < end and span[1] > start]
        # A token at an edge has the blank before the words too.
        assert tokenizer.decode(inside).strip() == phrase["text"]


def test_another_tokenizer_and_lost_marks_are_told():
    tokenizer = make_tokenizer(byte_pairs=True)
    row = FollowedRow(["a red ball"], [Phrase("red", 2, 5)])
    row.encode(row.marked(0), tokenizer, lambda text: [5])
    assert "other tokens" in json.loads(row.entry([5], [], set()))["problem"]
    row = FollowedRow(["a red ball"], [Phrase("red", 2, 5)])
    assert "0 of 2 marks" in json.loads(row.entry([], [], set()))["problem"]


@pytest.mark.parametrize(
    "text, found",
    [
        ("method: direkt", "method"),
        ("weight: 1", "weight"),
        ("options: {layer: [1]}", "layer"),
        ("heads_file: none.json", "none.json"),
    ],
)
def test_wrong_options_are_named(tmp_path, text, found):
    path = tmp_path / "grounding.yaml"
    path.write_text(text)
    with pytest.raises((ValueError, OSError), match=found):
        TrainerOptions.from_file(path)
