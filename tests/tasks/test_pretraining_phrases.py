# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""Phrases in pre-training: their words and regions after exchange, masking, truncation and flips, by loops."""

import json

import numpy as np
import pytest
import torch
from datasets import Dataset
from PIL import Image
from transformers import BertTokenizer

from grounded_attention.dataset_scripts.regions.table import Regions
from grounded_attention.families import FAMILIES
from grounded_attention.supervision import get_method
from grounded_attention.tasks import TASKS
from grounded_attention.tasks.flipping import flip_some
from grounded_attention.training.loop.data import Collator
from tests.helpers.plain_overlap import plain_iou
from tests.helpers.tiny_vgp import FEATURE_SIZE, WORDS, TinyTable

IMAGES = 6
CLASSES = 5
TASK = TASKS["pretraining"]


def table():
    rng = np.random.default_rng(0)
    regions = TinyTable()
    for image in range(IMAGES):
        count = int(rng.integers(3, 7))
        corner = rng.uniform(0, 0.5, (count, 2))
        boxes = np.concatenate([corner, corner + rng.uniform(0.2, 0.5, (count, 2))], axis=1).astype(np.float32)
        features = rng.random((count, FEATURE_SIZE)).astype(np.float16)
        classes = rng.integers(0, CLASSES, count).astype(np.int32)
        regions[str(image)] = Regions(str(image), 10, 10, boxes, features, classes, np.ones(count, np.float32))
    return regions


REGIONS = table()


def rows():
    """Two captions for each image, of words of one token; phrases of one to three words with up to two boxes."""
    rng = np.random.default_rng(1)
    rows = []
    for number in range(2 * IMAGES):
        image = str(number // 2)
        boxes = REGIONS[image].boxes
        words = rng.choice(WORDS[5:], int(rng.integers(5, 10))).tolist()
        phrases = []
        place = 0
        while place < len(words):
            text = " ".join(words[place : place + int(rng.integers(1, 4))])
            chosen = rng.permutation(boxes)[: int(rng.integers(1, 3))]
            start = 2 * place  # a word has one letter
            phrase = {"text": text, "start": start, "end": start + len(text), "boxes": chosen.tolist()}
            phrases.append({**phrase, "scores": rng.uniform(0.1, 1.0, len(chosen)).tolist()})
            place += len(text) // 2 + 2  # one word between phrases
        row = {"image_id": image, "caption_id": f"{image}#{number % 2}", "text": " ".join(words)}
        rows.append({**row, "phrases": phrases})
    return rows


ROWS = rows()
PLAIN_ROWS = [{name: row[name] for name in ("image_id", "caption_id", "text")} for row in ROWS]


def processor(family):
    tokenizer = BertTokenizer(vocab={word: index for index, word in enumerate(WORDS)})
    return FAMILIES[family].processor_class(tokenizer, region_feature_size=FEATURE_SIZE)


def collator(family, task="pretraining", method=None, texts=None, **options):
    task = TASKS[task]
    options.setdefault("word_probability", 0.6)
    if task is TASK:
        options = {"regions": None, "region_probability": 0.5, **options}
    options = task.Options(**options)
    config = FAMILIES[family].config_class(**({"visual_attr_loss": False} if family == "lxmert" else {}))
    arguments = {"split": Dataset.from_list(PLAIN_ROWS), "texts": texts, "options": options, "method": method}
    return Collator(task.configure(options, config), processor(family), REGIONS, seed=3, **arguments)


def check_phrases(batch, row, phrases, first=0, shift=1):
    """Compares the phrases of a row, from number `first` on, with loops; returns how many are there. A word is one
    token of one letter; the first is in column `shift`."""
    length = int(batch["attention_mask"][row].sum())
    found = 0
    for number, phrase in enumerate(phrases, first):
        start = shift + phrase["start"] // 2
        end = shift + phrase["end"] // 2 + 1
        mask = batch["phrase_mask"][row, number].nonzero().flatten().tolist()
        regions = batch["phrase_regions"][row, number].nonzero().flatten().tolist()
        if end > length - 1:  # [SEP] is last
            assert mask == regions == []
            continue
        found += 1
        assert mask == [*range(start, end)]
        gold = []
        for column, box in enumerate(batch["region_boxes"][row].tolist()):
            score = max(phrase["scores"])
            if batch["region_candidate_mask"][row, column]:
                pairs = zip(phrase["boxes"], phrase["scores"], strict=True)
                near = [of_box for gold_box, of_box in pairs if plain_iou(gold_box, box) >= 0.5]
                if near:
                    gold.append(column)
                    score = max(near)
            assert batch["phrase_scores"][row, number, column].item() == pytest.approx(score)
        assert regions == gold
    return found


@pytest.mark.parametrize("length", [None, 11])
@pytest.mark.parametrize("family", FAMILIES)
def test_phrases_after_exchange_masking_and_truncation(family, length):
    batch = collator(family, max_sequence_length=length)(ROWS)
    related = batch["relationship_labels"].tolist()
    kept = 0
    count = 0
    assert 0 < sum(related) < len(ROWS)
    for row, label in enumerate(related):
        if label:
            kept += check_phrases(batch, row, ROWS[row]["phrases"])
            count += len(ROWS[row]["phrases"])
        else:
            assert not batch["phrase_mask"][row].any()
            assert not batch["phrase_regions"][row].any()
    assert kept == count if length is None else 0 < kept < count
    assert (batch["phrase_mask"].any(1) & (batch["labels"] >= 0)).any()  # a masked word stays in its phrase


@pytest.mark.parametrize("family", FAMILIES)
def test_everything_else_is_as_without_phrases(family):
    collate = collator(family, relationship=True)
    batch = collate(ROWS)
    plain = collate(PLAIN_ROWS)
    assert batch.keys() - plain.keys() == {"phrase_mask", "phrase_regions", "phrase_scores", "dropped_phrases"}
    for name, value in plain.items():
        assert torch.equal(value, batch[name])


@pytest.mark.parametrize("name", ["direct", "indirect", "grounding_alignment"])
def test_rows_of_text_alone_have_no_phrases(name):
    texts = Dataset.from_list([{"text": " ".join("abcdefghijklmnop")}])  # longer than any caption
    method = get_method(name)
    plain = collator("vl_bert", method=method, relationship=False)(ROWS)
    batch = collator("vl_bert", method=method, texts=texts, relationship=False)(ROWS)
    of_captions = plain["phrase_mask"]
    count, phrases, columns = of_captions.shape
    expected = torch.zeros(2 * count, phrases, batch["input_ids"].shape[1], dtype=torch.bool)
    expected[:count, :, :columns] = of_captions
    assert batch["text_only"].sum() == count
    assert torch.equal(batch["phrase_mask"], expected)
    for key in method.counts(batch):
        assert batch["component_counts"][key] == plain["component_counts"][key] > 0


@pytest.mark.parametrize("length", [128, 14])
def test_both_captions_of_visualbert_have_their_phrases(length):
    task = "caption_match_pretraining"
    given = list(TASKS[task].to_rows(Dataset.from_list(ROWS), True))
    assert given[0]["other_phrases"] == [given[1]["phrases"]]
    batch = collator("visualbert", task, max_text_length=length)(given)
    related = batch["relationship_labels"].tolist()
    assert {*related} == {0, 1}
    kept_first = 0
    kept_second = 0
    for row, same in enumerate(related):
        types = batch["token_type_ids"]
        end = types[row].tolist().index(1)  # the column after the [SEP] of the first caption
        first = {**batch, "attention_mask": torch.ones_like(types[:, :end])}
        kept_first += check_phrases(first, row, ROWS[row]["phrases"])
        count = len(ROWS[row]["phrases"])
        if same:
            second = ROWS[row ^ 1]["phrases"]  # the other caption of the image
            kept_second += check_phrases(batch, row, second, first=count, shift=end)
            count += len(second)
        assert not batch["phrase_mask"][row, count:].any()
    assert kept_first
    assert kept_second


def test_rows_are_as_before_without_the_wish_for_phrases():
    row = """{"image_id": "1", "captions": ["a b c", "b"], "caption_ids": ["1#0", "1#1"], "related": [true, false],
        "phrases": [{"text": "a b", "start": 0, "end": 3, "sentence": 0, "boxes": [[0.0, 0.0, 0.5, 0.5]]},
                    {"text": "c", "start": 4, "end": 5, "sentence": 0, "boxes": []}]}"""
    split = Dataset.from_list([json.loads(row)])
    plain = {"image_id": "1", "caption_id": "1#0", "text": "a b c"}
    with_phrases = {**plain, "phrases": split[0]["phrases"][:1]}
    flat = Dataset.from_list([{**with_phrases, "more": 1}])
    for nested in (split, flat):
        assert list(TASK.to_rows(nested)) == [plain]
        assert list(TASK.to_rows(nested, True)) == [with_phrases]
    assert list(TASK.to_rows(split.remove_columns("phrases"), True)) == [plain]


def test_a_flipped_picture_has_flipped_phrases():
    text = "the dog left of a cat"
    phrase = {"start": 16, "end": 21, "boxes": [[0.0, 0.25, 0.25, 0.625]], "scores": [0.5]}
    mirrored = {"start": 17, "end": 22, "boxes": [[0.75, 0.25, 1.0, 0.625]], "scores": [0.5]}
    rng = np.random.default_rng(0)
    picture = Image.new("RGB", (4, 4))
    for probability, expected in ((1.0, ("the dog right of a cat", mirrored)), (0.0, (text, phrase))):
        texts, _, _, phrases = flip_some([text] * 2, None, [picture] * 2, [rng] * 2, probability, [[phrase], []])
        assert texts == [expected[0]] * 2
        assert phrases == [[expected[1]], []]


def test_scores_that_do_not_fit_their_boxes_are_named():
    phrase = {**ROWS[0]["phrases"][0], "scores": [1.5]}
    with pytest.raises(ValueError, match=r"image 0: Example 0, phrase 0: scores .* one number above 0"):
        collator("vl_bert", relationship=False)([{**ROWS[0], "phrases": [phrase]}])


@pytest.mark.parametrize("task", ["pretraining", "caption_match_pretraining"])
def test_the_weight_of_the_caption_match(task):
    options = TASKS[task].Options(relationship_weight=0.25)
    for loss in TASKS[task].configure(options, FAMILIES["vl_bert"].config_class()).losses:
        assert loss.weight == (0.25 if loss.name == "relationship" else 1.0)


@pytest.mark.parametrize("labels", ["random", "shuffled"])
def test_controls_of_captions_of_which_some_are_exchanged(labels):
    """Wrong targets are the same in every epoch, although the exchanged captions are others."""
    options = TASK.Options(word_probability=0.6)
    arguments = {"seed": 3, "split": Dataset.from_list(ROWS), "options": options}
    right = Collator(TASK, processor("vl_bert"), REGIONS, labels="gold", **arguments)
    control = Collator(TASK, processor("vl_bert"), REGIONS, labels=labels, **arguments)
    first = {}
    exchanged = set()
    wrong = 0
    for epoch in range(4):
        right.set_epoch(epoch)
        control.set_epoch(epoch)
        batch = right(ROWS)
        drawn = control(ROWS)["phrase_regions"]
        exchanged.add(tuple(batch["relationship_labels"].tolist()))
        for row, phrase in np.ndindex(*drawn.shape[:2]):
            gold = batch["phrase_regions"][row, phrase]
            found = drawn[row, phrase]
            if not gold.any():
                assert not found.any()
                continue
            assert batch["relationship_labels"][row]
            assert torch.equal(first.setdefault((row, phrase), found), found)
            wrong += not torch.equal(found, gold)
            if labels == "random":
                others = batch["region_candidate_mask"][row].sum() - gold.sum()
                assert not (found * gold).any()
                assert found.sum() == min(gold.sum(), others)
    assert len(exchanged) > 1
    assert wrong > len(first) / 2
