# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""Phrases in pre-training: their words and regions after exchange, masking, truncation and flips, by loops."""

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
from tests.helpers.tiny_vgp import FEATURE_SIZE, WORDS, TinyTable

IMAGES = 6
CLASSES = 5
TASK = TASKS["pretraining"]


def table():
    rng = np.random.default_rng(0)
    made = TinyTable()
    for image in range(IMAGES):
        count = int(rng.integers(3, 7))
        corner = rng.uniform(0, 0.5, (count, 2))
        boxes = np.concatenate([corner, corner + rng.uniform(0.2, 0.5, (count, 2))], axis=1).astype(np.float32)
        record = {
            "features": rng.random((count, FEATURE_SIZE)).astype(np.float16),
            "boxes": boxes,
            "classes": rng.integers(0, CLASSES, count).astype(np.int32),
            "scores": rng.random(count).astype(np.float32),
        }
        made[str(image)] = Regions(str(image), 10, 10, **record)
    return made


REGIONS = table()


def rows():
    """Two captions for each image, of words of one token; phrases of one to three words with up to two boxes."""
    rng = np.random.default_rng(1)
    made = []
    for image in range(IMAGES):
        for number in range(2):
            words = [str(word) for word in rng.choice(WORDS[5:], int(rng.integers(5, 10)))]
            phrases = []
            place = 0
            while place < len(words):
                length = min(int(rng.integers(1, 4)), len(words) - place)
                boxes = REGIONS[str(image)].boxes
                chosen = boxes[rng.permutation(len(boxes))[: int(rng.integers(1, 3))]]
                text = " ".join(words[place : place + length])
                start = len(" ".join(words[:place])) + (place > 0)
                scores = rng.uniform(0.1, 1.0, len(chosen))
                phrase = {"text": text, "start": start, "end": start + len(text)}
                phrases.append(phrase | {"boxes": chosen.tolist(), "scores": scores.tolist()})
                place += length + 1  # one word between phrases
            row = {"image_id": str(image), "caption_id": f"{image}#{number}", "text": " ".join(words)}
            made.append({**row, "phrases": phrases})
    return made


ROWS = rows()


def processor(family):
    tokenizer = BertTokenizer(vocab={word: index for index, word in enumerate(WORDS)})
    return FAMILIES[family].processor_class(tokenizer, region_feature_size=FEATURE_SIZE)


def collator(family, task="pretraining", method=None, texts=None, **options):
    given = {
        "word_probability": 0.6,
        **({"regions": None, "region_probability": 0.5} if task == "pretraining" else {}),
    }
    made = TASKS[task].Options(**{**given, **options})
    config = FAMILIES[family].config_class(**({"visual_attr_loss": False} if family == "lxmert" else {}))
    configured = TASKS[task].configure(made, config)
    split = Dataset.from_list([{k: v for k, v in row.items() if k != "phrases"} for row in ROWS])
    return Collator(
        configured, processor(family), REGIONS, seed=3, split=split, texts=texts, options=made, method=method
    )


def overlap(one, other):
    width, height = (min(one[2 + i], other[2 + i]) - max(one[i], other[i]) for i in (0, 1))
    area = [(box[2] - box[0]) * (box[3] - box[1]) for box in (one, other)]
    shared = max(width, 0) * max(height, 0)
    return shared / (area[0] + area[1] - shared)


def check_phrases(batch, row, phrases, first=0, shift=1):
    """Compares the phrases of a row, from number `first` on, with loops; returns how many are there. A word is one
    token; the first is in column `shift`."""
    length = int(batch["attention_mask"][row].sum())
    found = 0
    boxes = batch["region_boxes"][row].tolist()
    candidates = batch["region_candidate_mask"][row].tolist()
    for number, phrase in enumerate(phrases, first):
        before = ROWS_TEXT[phrase["source"]][: phrase["start"]].count(" ")
        columns = [shift + before + i for i in range(phrase["text"].count(" ") + 1)]
        cut = columns[-1] >= length - 1  # [SEP] is last
        mask = batch["phrase_mask"][row, number].nonzero()[:, 0].tolist()
        regions = batch["phrase_regions"][row, number].nonzero()[:, 0].tolist()
        assert mask == ([] if cut else columns)
        if cut:
            assert regions == []
            continue
        found += 1
        scores = {}
        for column, box in enumerate(boxes):
            near = [s for b, s in zip(phrase["boxes"], phrase["scores"], strict=True) if overlap(b, box) >= 0.5]
            if candidates[column] and near:
                scores[column] = max(near)
        assert regions == sorted(scores)
        for column in range(len(boxes)):
            wanted = scores.get(column, max(phrase["scores"]))
            assert batch["phrase_scores"][row, number, column].item() == pytest.approx(wanted)
    return found


ROWS_TEXT = [row["text"] for row in ROWS]


def of_row(index):
    return [{**phrase, "source": index} for phrase in ROWS[index]["phrases"]]


@pytest.mark.parametrize("length", [None, 11])
@pytest.mark.parametrize("family", FAMILIES)
def test_phrases_after_exchange_masking_and_truncation(family, length):
    batch = collator(family, max_sequence_length=length)(ROWS)
    related = batch["relationship_labels"]
    labels = batch["labels"]
    kept = 0
    assert 0 < related.sum() < len(ROWS)
    assert (labels >= 0).any()
    for row in range(len(ROWS)):
        if related[row]:
            kept += check_phrases(batch, row, of_row(row))
        else:
            assert not batch["phrase_mask"][row].any()
            assert not batch["phrase_regions"][row].any()
    everything = sum(len(ROWS[row]["phrases"]) for row in range(len(ROWS)) if related[row])
    assert kept == everything if length is None else 0 < kept < everything
    assert (batch["phrase_mask"].any(1) & (labels >= 0)).any()  # a masked word stays in its phrase


@pytest.mark.parametrize("family", FAMILIES)
def test_everything_else_is_as_without_phrases(family):
    collate = collator(family, relationship=True)
    batch = collate(ROWS)
    plain = collate([{k: v for k, v in row.items() if k != "phrases"} for row in ROWS])
    assert batch.keys() - plain.keys() == {"phrase_mask", "phrase_regions", "phrase_scores", "dropped_phrases"}
    assert all(torch.equal(value, batch[name]) for name, value in plain.items())


@pytest.mark.parametrize("name", ["direct", "indirect", "grounding_alignment"])
def test_rows_of_text_alone_have_no_phrases(name):
    texts = Dataset.from_list([{"text": " ".join("abcdefghijklmnop")}])  # longer than any caption
    method = get_method(name)
    plain = collator("vl_bert", method=method, relationship=False)(ROWS)
    batch = collator("vl_bert", method=method, texts=texts, relationship=False)(ROWS)
    assert batch["text_only"].sum() == len(ROWS)
    assert batch["phrase_mask"].shape[2] == batch["input_ids"].shape[1]
    assert not batch["phrase_mask"][len(ROWS) :].any()
    mask = batch["phrase_mask"][: len(ROWS)]
    assert torch.equal(mask[..., : plain["phrase_mask"].shape[2]], plain["phrase_mask"])
    supervised = method.counts(batch).keys()
    assert all(batch["component_counts"][key] == plain["component_counts"][key] > 0 for key in supervised)


def pair_rows():
    made = TASKS["caption_match_pretraining"]
    split = Dataset.from_list(ROWS)
    return list(made.to_rows(split, True))


@pytest.mark.parametrize("length", [128, 14])
def test_both_captions_of_visualbert_have_their_phrases(length):
    given = pair_rows()
    assert given[0]["other_phrases"] == [given[1]["phrases"]]
    task = "caption_match_pretraining"
    batch = collator("visualbert", task, max_text_length=length)(given)
    related = batch["relationship_labels"].tolist()
    kept = [0, 0]
    assert 0 < sum(related) < len(given)
    for row, same in enumerate(related):
        types = batch["token_type_ids"][row].tolist()
        first_end = types.index(1)  # the column after the [SEP] of the first caption
        own = dict(batch)
        own["attention_mask"] = torch.arange(len(types))[None].expand(len(given), -1) < first_end
        kept[0] += check_phrases(own, row, of_row(row))
        count = len(given[row]["phrases"])
        if same:
            other = row + 1 if row % 2 == 0 else row - 1
            kept[1] += check_phrases(batch, row, of_row(other), first=count, shift=first_end)
            count += len(given[other]["phrases"])
        assert not batch["phrase_mask"][row, count:].any()
    assert all(kept)


def test_rows_are_as_before_without_the_wish_for_phrases():
    images = [
        {
            "image_id": "1",
            "captions": ["a b c", "b"],
            "caption_ids": ["1#0", "1#1"],
            "related": [True, False],
            "phrases": [
                {"text": "a b", "start": 0, "end": 3, "sentence": 0, "boxes": [[0.0, 0.0, 0.5, 0.5]]},
                {"text": "c", "start": 4, "end": 5, "sentence": 0, "boxes": []},
            ],
        }
    ]
    split = Dataset.from_list(images)
    plain = {"image_id": "1", "caption_id": "1#0", "text": "a b c"}
    assert list(TASK.to_rows(split)) == [plain]
    phrases = images[0]["phrases"][:1]
    assert list(TASK.to_rows(split, True)) == [{**plain, "phrases": phrases}]
    bare = split.remove_columns("phrases")
    assert list(TASK.to_rows(bare, True)) == [plain]
    rows_with = Dataset.from_list([{**plain, "phrases": phrases, "more": 1}])
    assert list(TASK.to_rows(rows_with)) == [plain]
    assert list(TASK.to_rows(rows_with, True)) == [{**plain, "phrases": phrases}]


def test_a_flipped_picture_has_flipped_phrases():
    text = "the dog left of a cat"
    box = [0.0, 0.2, 0.25, 0.6]
    phrase = {"sentence": 0, "start": text.index("a cat"), "end": len(text), "boxes": [box], "scores": [0.5]}
    rngs = [np.random.default_rng(0)] * 2
    pictures = [Image.new("RGB", (4, 4))] * 2
    texts, _, _, phrases = flip_some([text] * 2, None, pictures, rngs, 1.0, [[phrase], []])
    [moved] = phrases[0]
    assert texts[0][moved["start"] : moved["end"]] == "a cat"
    assert "right of" in texts[0]
    assert moved["boxes"] == [pytest.approx([0.75, 0.2, 1.0, 0.6])]
    assert moved["scores"] == [0.5]
    assert phrases[1] == []
    same = flip_some([text], None, pictures[:1], rngs[:1], 0.0, [[phrase]])
    assert same[0] == [text]
    assert same[3] == [[phrase]]


def test_scores_that_do_not_fit_their_boxes_are_named():
    broken = [{**ROWS[0], "phrases": [{**ROWS[0]["phrases"][0], "scores": [1.5]}]}]
    with pytest.raises(ValueError, match=r"image 0: Example 0, phrase 0: scores .* one number above 0"):
        collator("vl_bert", relationship=False)(broken)


def test_the_weight_of_the_caption_match():
    for task in ("pretraining", "caption_match_pretraining"):
        options = TASKS[task].Options(relationship_weight=0.25)
        config = FAMILIES["vl_bert"].config_class()
        weights = {each.name: each.weight for each in TASKS[task].configure(options, config).losses}
        assert weights.pop("relationship") == 0.25
        assert set(weights.values()) == {1.0}


@pytest.mark.parametrize("labels", ["random", "shuffled"])
def test_controls_of_captions_of_which_some_are_exchanged(labels):
    """Wrong targets are the same in every epoch, although the exchanged captions are others."""

    def batch_of(labels, epoch):
        options = TASKS["pretraining"].Options(word_probability=0.6)
        made = Collator(
            TASKS["pretraining"],
            processor("vl_bert"),
            REGIONS,
            seed=3,
            split=Dataset.from_list(ROWS),
            options=options,
            labels=labels,
        )
        made.set_epoch(epoch)
        return made(ROWS)

    found = {}
    exchanged = set()
    wrong = 0
    for epoch in range(4):
        gold = batch_of("gold", epoch)
        drawn = batch_of(labels, epoch)
        related = gold["relationship_labels"]
        exchanged.add(tuple(related.tolist()))
        for row, phrase in torch.cartesian_prod(*map(torch.arange, gold["phrase_regions"].shape[:2])).tolist():
            right, taken = (
                set(batch["phrase_regions"][row, phrase].nonzero()[:, 0].tolist()) for batch in (gold, drawn)
            )
            if not right:
                assert not taken
                continue
            assert related[row]
            assert found.setdefault((row, phrase), taken) == taken
            wrong += taken != right
            others = int(gold["region_candidate_mask"][row].sum()) - len(right)
            assert labels == "shuffled" or (not taken & right and len(taken) == min(len(right), others))
    assert len(exchanged) > 1
    assert wrong > len(found) / 2
