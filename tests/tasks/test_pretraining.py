# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""Pre-training batches: what is masked, exchanged and predicted, whatever else is in the batch; losses and metrics."""

import json
from dataclasses import replace

import numpy as np
import pytest
import torch
from datasets import Dataset
from transformers import set_seed

from grounded_attention.dataset_scripts.regions.table import Regions
from grounded_attention.modeling import LXMERTConfig, ViLBertConfig, VLBertConfig, VLBertForPreTraining
from grounded_attention.tasks import TASKS
from grounded_attention.training.loop.data import Collator
from tests.helpers.task_inputs import task_inputs
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
        record = Regions(
            str(image),
            10,
            10,
            features=rng.random((count, FEATURE_SIZE)).astype(np.float16),
            boxes=np.concatenate([corner, corner + 0.3], axis=1).astype(np.float32),
            classes=rng.integers(0, CLASSES, count).astype(np.int32),
            scores=rng.random(count).astype(np.float32),
            class_probs=rng.dirichlet(np.ones(CLASSES + 1), count).astype(np.float16),
        )
        table[str(image)] = replace(record, **without)
    return table


@pytest.fixture
def table():
    return table_of()


@pytest.fixture
def rows():
    """Two captions an image; the words of an image's captions are its own."""
    made = []
    for image, length in enumerate(LENGTHS):
        for number in range(2):
            text = " ".join([WORDS[5 + 2 * image + number]] * length)
            made.append({"image_id": str(image), "caption_id": f"{image}#{number}", "text": text})
    return Dataset.from_list(made)


@pytest.fixture
def texts():
    return Dataset.from_dict({"text_id": [*"01234"], "text": ["l m n o p", "m n o p", "n o p", "o p", "p"]})


def collator(table, rows=None, texts=None, **options):
    options = {"relationship": False, **HALF, **options}
    return Collator(TASK, tiny_processor(), table, seed=3, split=rows, texts=texts, options=options)


def batch_of(collate, rows, which=range(12)):
    return collate([rows[i] for i in which])


def row_of(batch, row):
    """What one row holds, without its padding."""
    text = batch["attention_mask"][row].bool()
    regions = batch["region_attention_mask"][row].bool()
    of_text = [batch[name][row][text].tolist() for name in ("input_ids", "labels")]
    of_regions = [
        batch[name][row][regions].tolist() for name in ("region_features", "masked_regions", "region_labels")
    ]
    return of_text + of_regions


def test_the_draws_of_a_row_do_not_depend_on_its_batch(table, rows):
    collate = collator(table, rows, relationship=True)
    whole = batch_of(collate, rows)
    for first in range(0, len(rows), 3):
        part = batch_of(collate, rows, range(first, first + 3))
        assert torch.equal(part["relationship_labels"], whole["relationship_labels"][first : first + 3])
        for row in range(3):
            assert row_of(part, row) == row_of(whole, first + row)


def test_draws_differ_by_epoch_and_not_for_what_is_measured(table, rows):
    collate = collator(table, rows)
    first = batch_of(collate, rows)
    measured = batch_of(collate.evaluating(rows), rows)
    collate.set_epoch(1)
    second = batch_of(collate, rows)
    again = batch_of(collate.evaluating(rows), rows)
    collate.set_epoch(0)
    repeated = batch_of(collate, rows)
    for name in ("labels", "region_labels"):
        assert (first[name] != second[name]).any()
    assert torch.equal(measured["labels"], again["labels"])
    assert (measured["labels"] != first["labels"]).any()
    assert torch.equal(repeated["labels"], first["labels"])


def test_regions_are_the_tables_and_the_whole_image_shows_no_hidden_one(table, rows):
    batch = batch_of(collator(table, rows, regions_kept=0.5), rows)
    hidden = batch["masked_regions"].numpy()
    labels = batch["region_labels"].numpy()
    predicted = labels >= 0
    assert hidden.any()
    assert (predicted & ~hidden).any()
    assert predicted[hidden].all()
    assert not predicted[:, 0].any()
    for row, example in enumerate(rows):
        record = table[example["image_id"]]
        columns = slice(1, len(record) + 1)
        expected = np.where(predicted[row, columns], record.classes + 1, -100)
        assert np.array_equal(labels[row, columns], expected)
        assert not predicted[row, columns.stop :].any()
        visible = record.features[~hidden[row, columns]].astype(np.float32)
        mean = visible.sum(0) / max(len(visible), 1)
        assert np.allclose(batch["region_features"][row, 0], mean, atol=1e-6)


def test_without_a_background_class_labels_are_the_tables(table, rows):
    shifted = batch_of(collator(table, rows), rows)["region_labels"]
    plain = batch_of(collator(table, rows, background=False), rows)["region_labels"]
    assert torch.equal(plain, torch.where(shifted >= 0, shifted - 1, shifted))


def test_soft_targets_are_the_tables_distributions(table, rows):
    hard = batch_of(collator(table, rows), rows)
    soft = batch_of(collator(table, rows, region_targets="soft"), rows)
    assert "region_labels" not in soft
    assert torch.equal(soft["masked_regions"], hard["masked_regions"])
    expected = np.zeros(soft["region_label_probs"].shape)
    for row, column in (hard["region_labels"] >= 0).nonzero().tolist():
        expected[row, column] = table[rows[row]["image_id"]].class_probs[column - 1]
    assert np.allclose(soft["region_label_probs"], expected)


@pytest.mark.parametrize(
    "missing, targets, message",
    [
        ("classes", "hard", "image 0.*detector classes.*options.region_targets=hard.*options.regions=false"),
        ("class_probs", "soft", "class_probs.*options.region_targets=soft.*options.regions=false"),
    ],
)
def test_targets_that_the_table_lacks(rows, missing, targets, message):
    table = table_of(**{missing: None})
    with pytest.raises(ValueError, match=message):
        batch_of(collator(table, rows, region_targets=targets), rows)


def test_exchanged_captions_are_of_other_images(table, rows):
    collate = collator(table, rows, words=False, relationship=True)
    own = {(row["image_id"], row["text"]) for row in rows}
    labels = []
    for epoch in range(20):
        collate.set_epoch(epoch)
        batch = batch_of(collate, rows)
        related = batch["relationship_labels"].tolist()
        texts = collate.processor.tokenizer.batch_decode(batch["input_ids"], skip_special_tokens=True)
        for row, text, label in zip(rows, texts, related, strict=True):
            assert ((row["image_id"], text) in own) == label
        labels += related
    assert np.mean(labels) == pytest.approx(0.5, abs=0.1)


def test_one_image_has_no_other_caption(table, rows):
    collate = collator(table, rows.select([0, 1]), relationship=True)
    with pytest.raises(ValueError, match="relationship needs several images"):
        for epoch in range(20):
            collate.set_epoch(epoch)
            batch_of(collate, rows, [0])


def test_texts_stand_below_the_images(table, rows, texts):
    images = batch_of(collator(table, rows), rows, range(4))
    collate = collator(table, rows, texts, texts_per_image=2)
    both = batch_of(collate, rows, range(4))
    assert both["text_only"].tolist() == [False] * 4 + [True] * 8
    for row in range(4):
        assert row_of(both, row) == row_of(images, row)
    assert not both["region_attention_mask"][4:].any()
    assert (both["region_labels"][4:] == -100).all()
    labels = both["labels"][4:]
    original = torch.where(labels >= 0, labels, both["input_ids"][4:])
    words = original[both["attention_mask"][4:].bool()]
    assert (words >= WORDS.index("l")).all(), "no [CLS], no [SEP], words of the corpus"
    part = batch_of(collate, rows, [2])
    assert row_of(part, 1) == row_of(both, 8)
    assert row_of(part, 2) == row_of(both, 9)


def model_of(**config):
    set_seed(0)
    sizes = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 16}
    sizes |= {"vocab_size": len(WORDS), "max_position_embeddings": 64, "region_feature_size": FEATURE_SIZE}
    return VLBertForPreTraining(VLBertConfig(**sizes, region_classes=CLASSES + 1, **config)).eval()


def terms_of(outputs, batch):
    terms = {}
    for term in TASK.losses:
        count = term.count(batch)
        if count is not None:
            terms[term.name] = (term.total(outputs, batch), count)
    return terms


@pytest.mark.parametrize("targets", ["hard", "soft"])
def test_the_losses_are_the_models(table, rows, targets):
    """Second formulation: the model's own mean losses over the batch."""
    batch = batch_of(collator(table, rows, relationship=True, region_targets=targets), rows)
    model = model_of(relationship_head=True)
    terms = terms_of(model(**task_inputs(TASK, batch)), batch)
    assert terms.keys() == {"words", "regions", "relationship"}
    targets = ("labels", "region_labels", "region_label_probs", "relationship_labels")
    expected = model(**task_inputs(TASK, batch, *targets)).loss
    assert sum(total / count for total, count in terms.values()).item() == pytest.approx(expected.item(), abs=1e-5)


def test_words_beside_images_and_in_texts_are_counted_apart(table, rows, texts):
    batch = batch_of(collator(table, rows, texts), rows)
    outputs = model_of()(**task_inputs(TASK, batch))
    terms = terms_of(outputs, batch)
    labels = batch["labels"]
    losses = torch.nn.functional.cross_entropy(outputs.mlm_logits.transpose(1, 2), labels, reduction="none")
    for name, part in {"words": slice(0, 12), "text_words": slice(12, None)}.items():
        total, count = terms[name]
        assert total.item() == pytest.approx(losses[part].sum().item(), abs=1e-4)
        assert count == (labels[part] >= 0).sum() > 0


@pytest.mark.parametrize("off", ["words", "regions", "relationship"])
def test_an_objective_that_is_off_has_no_term_and_no_figure(table, rows, off):
    options = {"relationship": True, off: False}
    batch = batch_of(collator(table, rows, **options), rows, range(4))
    outputs = model_of(relationship_head=True)(**task_inputs(TASK, batch))
    assert off not in terms_of(outputs, batch)
    measured = {}
    for metric in TASK.metrics():
        metric.update(outputs, batch)
        measured |= metric.compute(metric.state())
    for name in ("words", "regions", "relationship"):
        assert (f"{name}_accuracy" in measured) == (name != off)


@pytest.mark.parametrize("targets", ["hard", "soft"])
def test_nothing_masked_is_no_nan(table, rows, texts, targets):
    options = {"word_probability": 0.0, "region_probability": 0.0, "region_targets": targets}
    batch = batch_of(collator(table, rows, texts, **options), rows, range(4))
    outputs = model_of()(**task_inputs(TASK, batch))
    for total, count in terms_of(outputs, batch).values():
        assert total == 0
        assert total.requires_grad
        assert count == 0


def test_soft_accuracy_is_of_the_most_likely_class(table, rows):
    batch = batch_of(collator(table, rows, region_targets="soft"), rows)
    outputs = model_of()(**task_inputs(TASK, batch))
    probs = batch["region_label_probs"]
    predicted = probs.sum(-1) > 0.5
    hits = outputs.region_logits[predicted].argmax(-1) == probs[predicted].argmax(-1)
    metric = next(metric for metric in TASK.metrics() if metric.name == "regions")
    metric.update(outputs, batch)
    figures = metric.compute(metric.state())
    assert figures["regions_accuracy"] == pytest.approx(hits.double().mean().item())
    assert figures["regions_count"] == len(hits)


@pytest.mark.parametrize("targets", ["hard", "soft"])
def test_more_classes_than_the_model_has(table, rows, targets):
    collate = collator(table, rows, region_targets=targets)
    collate.task = collate.task.configure(config=VLBertConfig(region_classes=3))
    with pytest.raises(ValueError, match="region_classes is 3"):
        batch_of(collate, rows)


@pytest.mark.parametrize(
    "row",
    [
        '{"image_id": "7", "captions": ["x", "y"], "caption_ids": ["a", "b"], "year": 4, "related": [true, false]}',
        '{"image_id": "7", "captions": ["x"], "caption_ids": ["a"]}',
        '{"image_id": "7", "caption_id": "a", "text": "x", "url": "http"}',
    ],
)
def test_rows_of_every_kind_become_captions(row):
    rows = TASK.to_rows(Dataset.from_list([json.loads(row)]))
    assert list(rows) == [{"image_id": "7", "caption_id": "a", "text": "x"}]


def test_rows_without_texts_are_refused():
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
