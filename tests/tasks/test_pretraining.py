# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""Pre-training batches: what is masked, exchanged and predicted, whatever else is in the batch; losses and metrics."""

import numpy as np
import pytest
import torch
from datasets import Dataset
from transformers import set_seed

from grounded_attention.dataset_scripts.regions.table import Regions
from grounded_attention.modeling import LXMERTConfig, ViLBertConfig, VLBertConfig, VLBertForPreTraining
from grounded_attention.tasks import TASKS
from grounded_attention.training.loop.data import Collator
from tests.helpers.tiny_vgp import FEATURE_SIZE, WORDS, TinyTable, tiny_processor

TASK = TASKS["pretraining"]
IMAGES = 6
CLASSES = 5
LENGTHS = (1, 2, 4, 7, 3, 5)
HALF = {"word_probability": 0.5, "region_probability": 0.5}


def table_of(**without):
    rng = np.random.default_rng(0)
    table = TinyTable()
    for image in range(IMAGES):
        count = int(rng.integers(2, 6))
        corner = rng.uniform(0, 0.5, (count, 2))
        boxes = np.concatenate([corner, corner + 0.3], axis=1).astype(np.float32)
        probs = rng.dirichlet(np.ones(CLASSES + 1), count).astype(np.float16)
        record = {
            "features": rng.random((count, FEATURE_SIZE)).astype(np.float16),
            "boxes": boxes,
            "classes": rng.integers(0, CLASSES, count).astype(np.int32),
            "scores": rng.random(count).astype(np.float32),
            "class_probs": probs,
        }
        table[str(image)] = Regions(str(image), 10, 10, **{k: v for k, v in record.items() if k not in without})
    return table


@pytest.fixture
def table():
    return table_of()


@pytest.fixture
def rows():
    """Two captions an image; the words of an image's captions are its own."""
    return Dataset.from_list(
        [
            {"image_id": str(i), "caption_id": f"{i}#{j}", "text": " ".join([WORDS[5 + 2 * i + j]] * LENGTHS[i])}
            for i in range(IMAGES)
            for j in range(2)
        ]
    )


@pytest.fixture
def texts():
    return Dataset.from_list([{"text_id": str(i), "text": " ".join("lmnop"[i:])} for i in range(5)])


def collator(table, rows=None, texts=None, **options):
    options = {"relationship": False, **HALF, **options}
    return Collator(TASK, tiny_processor(), table, seed=3, split=rows, texts=texts, options=options)


def batch_of(collate, rows, which):
    return collate([rows[i] for i in which])


def row_of(batch, row):
    """What one row holds, without its padding."""
    text = batch["attention_mask"][row].bool()
    regions = batch["region_attention_mask"][row].bool()
    kept = {name: batch[name][row][text].tolist() for name in ("input_ids", "labels")}
    return kept | {
        name: batch[name][row][regions].tolist()
        for name in ("region_features", "masked_regions", "region_labels")
        if name in batch
    }


def test_the_draws_of_a_row_do_not_depend_on_its_batch(table, rows):
    collate = collator(table, rows, relationship=True)
    whole = batch_of(collate, rows, range(len(rows)))
    for first in range(0, len(rows), 3):
        part = batch_of(collate, rows, range(first, first + 3))
        for row in range(3):
            assert row_of(part, row) == row_of(whole, first + row)
            assert part["relationship_labels"][row] == whole["relationship_labels"][first + row]


def test_draws_differ_by_epoch_and_not_for_what_is_measured(table, rows):
    collate = collator(table, rows)
    first = batch_of(collate, rows, range(12))
    measured = batch_of(collate.evaluating(rows), rows, range(12))
    collate.set_epoch(1)
    second = batch_of(collate, rows, range(12))
    assert (first["labels"] != second["labels"]).any()
    assert (first["region_labels"] != second["region_labels"]).any()
    again = batch_of(collate.evaluating(rows), rows, range(12))
    assert torch.equal(measured["labels"], again["labels"])
    assert (measured["labels"] != first["labels"]).any()
    collate.set_epoch(0)
    assert torch.equal(batch_of(collate, rows, range(12))["labels"], first["labels"])


def test_regions_are_the_tables_and_the_whole_image_shows_no_hidden_one(table, rows):
    batch = batch_of(collator(table, rows, regions_kept=0.5), rows, range(12))
    hidden = batch["masked_regions"]
    labels = batch["region_labels"]
    assert hidden.any()
    assert ((labels >= 0) & ~hidden).any()
    assert not (hidden & (labels < 0)).any()
    for row, example in enumerate(rows):
        record = table[example["image_id"]]
        count = len(table[example["image_id"]])
        predicted = labels[row, 1 : count + 1] >= 0
        assert (labels[row, 1 : count + 1][predicted] == torch.from_numpy(record.classes)[predicted] + 1).all()
        assert labels[row, 0] == -100
        assert (labels[row, count + 1 :] == -100).all()
        visible = record.features[~hidden[row, 1 : count + 1].numpy()].astype(np.float32)
        expected = visible.mean(0) if len(visible) else np.zeros(FEATURE_SIZE)
        assert np.allclose(batch["region_features"][row, 0], expected, atol=1e-6)


def test_without_a_background_class_labels_are_the_tables(table, rows):
    one, other = (batch_of(collator(table, rows, background=b), rows, [0])["region_labels"] for b in (True, False))
    assert (one[one >= 0] == other[other >= 0] + 1).all()


def test_soft_targets_are_the_tables_distributions(table, rows):
    hard = batch_of(collator(table, rows), rows, range(12))
    soft = batch_of(collator(table, rows, region_targets="soft"), rows, range(12))
    probs = soft["region_label_probs"]
    assert "region_labels" not in soft
    assert torch.equal(soft["masked_regions"], hard["masked_regions"])
    for row, example in enumerate(rows):
        for column in range(probs.shape[1]):
            expected = np.zeros(CLASSES + 1)
            if hard["region_labels"][row, column] >= 0:
                expected = table[example["image_id"]].class_probs[column - 1]
            assert np.allclose(probs[row, column], expected)


@pytest.mark.parametrize(
    ("missing", "options", "words"),
    [
        ("classes", {}, ["detector classes", "options.region_targets=hard", "image 0"]),
        ("class_probs", {"region_targets": "soft"}, ["class_probs", "options.region_targets=soft"]),
    ],
)
def test_targets_that_the_table_lacks(rows, missing, options, words):
    with pytest.raises(ValueError) as error:
        batch_of(collator(table_of(**{missing: None}), rows, **options), rows, [0])
    for word in [*words, "options.regions=false"]:
        assert word in str(error.value)


def test_exchanged_captions_are_of_other_images(table, rows):
    collate = collator(table, rows, words=False, relationship=True)
    labels = []
    for epoch in range(20):
        collate.set_epoch(epoch)
        batch = batch_of(collate, rows, range(12))
        for row, example in enumerate(rows):
            text = collate.processor.tokenizer.decode(batch["input_ids"][row], skip_special_tokens=True)
            own = {other["text"] for other in rows if other["image_id"] == example["image_id"]}
            assert (text in own) == bool(batch["relationship_labels"][row])
        labels += batch["relationship_labels"].tolist()
    assert np.mean(labels) == pytest.approx(0.5, abs=0.1)


def test_one_image_has_no_other_caption(table, rows):
    collate = collator(table, rows.select([0, 1]), relationship=True)
    with pytest.raises(ValueError, match="relationship needs several images"):
        for epoch in range(20):
            collate.set_epoch(epoch)
            batch_of(collate, rows, [0])


def test_texts_stand_below_the_images(table, rows, texts):
    images = batch_of(collator(table, rows), rows, range(4))
    both = batch_of(collator(table, rows, texts, texts_per_image=2), rows, range(4))
    assert both["text_only"].tolist() == [False] * 4 + [True] * 8
    for row in range(4):
        assert row_of(both, row) == row_of(images, row)
    tokens = {name: both[name][4:] for name in both}
    assert not tokens["region_attention_mask"].any()
    assert (tokens["region_labels"] == -100).all()
    ids = tokens["input_ids"]
    labels = tokens["labels"]
    original = torch.where(labels >= 0, labels, ids)[tokens["attention_mask"].bool()]
    assert all(id_ >= WORDS.index("l") for id_ in original.tolist()), "no [CLS], no [SEP], words of the corpus"
    part = batch_of(collator(table, rows, texts, texts_per_image=2), rows, [2])
    assert row_of(part, 1) == row_of(both, 8)
    assert row_of(part, 2) == row_of(both, 9)


def model_of(**config):
    set_seed(0)
    fields = {"vocab_size": len(WORDS), "hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
    fields |= {"intermediate_size": 16, "max_position_embeddings": 64, "region_feature_size": FEATURE_SIZE}
    return VLBertForPreTraining(VLBertConfig(**{**fields, "region_classes": CLASSES + 1, **config})).eval()


def outputs_of(model, batch):
    return model(**{name: batch[name] for name in TASK.model_inputs if name in batch})


def terms_of(outputs, batch):
    present = [term for term in TASK.losses if term.count(batch) is not None]
    return {term.name: (term.total(outputs, batch), term.count(batch)) for term in present}


@pytest.mark.parametrize("targets", ["hard", "soft"])
def test_the_losses_are_the_models(table, rows, targets):
    """Second formulation: the model's own mean losses over the batch."""
    batch = batch_of(collator(table, rows, relationship=True, region_targets=targets), rows, range(12))
    model = model_of(relationship_head=True)
    terms = terms_of(outputs_of(model, batch), batch)
    assert terms.keys() == {"words", "regions", "relationship"}
    names = (*TASK.model_inputs, "labels", "region_labels", "region_label_probs", "relationship_labels")
    expected = model(**{name: batch[name] for name in names if name in batch}).loss
    assert sum(total / count for total, count in terms.values()).item() == pytest.approx(expected.item(), abs=1e-5)


def test_words_beside_images_and_in_texts_are_counted_apart(table, rows, texts):
    batch = batch_of(collator(table, rows, texts), rows, range(12))
    model = model_of()
    outputs = outputs_of(model, batch)
    terms = terms_of(outputs, batch)
    losses = torch.nn.functional.cross_entropy(outputs.mlm_logits.transpose(1, 2), batch["labels"], reduction="none")
    for name, part in (("words", slice(0, 12)), ("text_words", slice(12, None))):
        total, count = terms[name]
        assert total.item() == pytest.approx(losses[part].sum().item(), abs=1e-4)
        assert count == (batch["labels"][part] >= 0).sum() > 0


@pytest.mark.parametrize("off", ["words", "regions", "relationship"])
def test_an_objective_that_is_off_has_no_term_and_no_figure(table, rows, off):
    options = {"relationship": True, off: False}
    batch = batch_of(collator(table, rows, **options), rows, range(4))
    outputs = outputs_of(model_of(relationship_head=True), batch)
    assert off not in terms_of(outputs, batch)
    figures = {}
    for metric in TASK.metrics():
        metric.update(outputs, batch)
        figures |= metric.compute(metric.state())
    assert {key.removesuffix("_accuracy") for key in figures if key.endswith("_accuracy")} == {
        "words",
        "regions",
        "relationship",
    } - {off}


def test_nothing_masked_is_no_nan(table, rows, texts):
    options = {"word_probability": 0.0, "region_probability": 0.0}
    for targets in ("hard", "soft"):
        batch = batch_of(collator(table, rows, texts, region_targets=targets, **options), rows, range(4))
        terms = terms_of(outputs_of(model_of(), batch), batch)
        assert all(total == 0 and total.requires_grad and count == 0 for total, count in terms.values())


def test_soft_accuracy_is_of_the_most_likely_class(table, rows):
    batch = batch_of(collator(table, rows, region_targets="soft"), rows, range(12))
    outputs = outputs_of(model_of(), batch)
    hits = [
        bool(logits.argmax() == probs.argmax())
        for logits, probs in zip(
            outputs.region_logits.flatten(0, 1), batch["region_label_probs"].flatten(0, 1), strict=True
        )
        if probs.sum() > 0.5
    ]
    metric = next(metric for metric in TASK.metrics() if metric.name == "regions")
    metric.update(outputs, batch)
    figures = metric.compute(metric.state())
    assert figures["regions_accuracy"] == pytest.approx(np.mean(hits))
    assert figures["regions_count"] == len(hits)


@pytest.mark.parametrize("targets", ["hard", "soft"])
def test_more_classes_than_the_model_has(table, rows, targets):
    collate = collator(table, rows, region_targets=targets)
    collate.task = collate.task.configure(config=VLBertConfig(region_classes=3))
    with pytest.raises(ValueError, match="region_classes is 3"):
        batch_of(collate, rows, range(12))


def test_rows_of_every_kind_become_captions():
    told = {"image_id": "7", "captions": ["x", "y"], "caption_ids": ["a", "b"]}
    nested = Dataset.from_list([{**told, "year": 4, "related": [True, False]}])
    plain = Dataset.from_list([{**told, "captions": ["x"], "caption_ids": ["a"]}])
    flat = Dataset.from_list([{"image_id": "7", "caption_id": "a", "text": "x", "url": "http"}])
    for split in (nested, plain, flat):
        assert list(TASK.to_rows(split)) == [{"image_id": "7", "caption_id": "a", "text": "x"}]
    with pytest.raises(ValueError, match="the columns answer"):
        TASK.to_rows(Dataset.from_list([{"answer": "7"}]))


@pytest.mark.parametrize(
    "config", [LXMERTConfig(), ViLBertConfig(visual_target="features"), ViLBertConfig(visual_target="nce")]
)
def test_soft_targets_that_a_family_would_not_use_are_refused(config):
    with pytest.raises(ValueError, match=rf"region_targets=soft has no effect.*{config.model_type}"):
        TASK.configure(TASK.Options(region_targets="soft"), config)
    TASK.configure(TASK.Options(region_targets="hard"), config)
    TASK.configure(TASK.Options(region_targets="soft"), ViLBertConfig())
