# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""VCR: words tied to regions, both losses, region classes, items of two runs joined."""

from types import SimpleNamespace

import pytest
import torch

from grounded_attention.modeling import VLBertConfig, VLBertForMultipleChoice
from grounded_attention.tasks import TASKS
from grounded_attention.tasks.vcr import VCROptions, join_runs, score
from grounded_attention.training.loop.data import Collator
from tests.helpers.task_inputs import task_inputs
from tests.helpers.tiny_vgp import tiny_model, tiny_processor
from tests.tasks.vcr_rows import regions, row

TASK = TASKS["vcr"]


def collated(*rows, table=None, **options):
    return Collator(TASK, tiny_processor(), regions() if table is None else table, options=options)(list(rows))


def model(**config):
    fields = {**tiny_model().config.to_dict(), **config}
    for name in ("id2label", "label2id", "architectures", "auto_map", "model_type", "transformers_version", "dtype"):
        fields.pop(name, None)
    torch.manual_seed(0)
    return VLBertForMultipleChoice(VLBertConfig(**fields)).eval()


def test_words_that_name_objects_see_their_regions():
    batch = collated(row())
    assert batch["input_ids"].shape == (1, 4, 10)
    assert batch["region_boxes"].shape == (1, 3, 4)
    # [CLS] a b c [SEP] f a [SEP]: the whole image is region column 0.
    assert batch["token_regions"][0, 1].tolist() == [-1, -1, 1, 2, -1, -1, 2, -1, -1, -1]
    assert batch["token_type_ids"][0, 1].tolist() == [0, 0, 0, 0, 0, 1, 1, 1, 0, 0]
    assert batch["region_class_labels"].tolist() == [[0, 1, 61]]
    assert batch["labels"].tolist() == [2]


def test_long_texts_lose_their_ends():
    batch = collated(row(), max_text_length=4)
    assert batch["attention_mask"].sum(-1).tolist() == [[7, 7, 7, 7]]


@pytest.mark.parametrize("form", ["sigmoid", "softmax"])
def test_the_losses_are_the_models_own(form):
    vcr = model(choice_loss=form)
    batch = collated(row(), row(1, label=-1), row(2, label=0))
    task = TASK.configure(VCROptions(), vcr.config)
    for name, targets in (("choices", "labels"), ("region_classes", "region_class_labels")):
        found = vcr(**task_inputs(TASK, batch, targets))
        (component,) = [loss for loss in task.losses if loss.name == name]
        mean = component.total(found, batch) / component.count(batch)
        assert mean.item() == pytest.approx(found.loss.item(), rel=1e-5), name


def test_region_classes_are_left_out_when_not_asked_for():
    batch = collated(row(objects=("cone", "ball")), region_classes=False)
    assert "region_class_labels" not in batch
    assert [component.count(batch) is None for component in TASK.losses] == [False, True]


def test_items_hold_the_choice():
    batch = collated(row(), row(1, label=1))
    scored = score(SimpleNamespace(logits=torch.tensor([[0.0, 0, 5, 0], [0, 0, 0, 1]])), batch)
    assert scored.scores == {"vcr_accuracy": [True, False], "vcr_chance": [0.25, 0.25]}
    assert scored.notes == {"chosen": [2, 3], "label": [2, 1]}
    unlabelled = score(SimpleNamespace(logits=torch.eye(4)[:1]), collated(row(label=-1)))
    assert not unlabelled.scores
    assert unlabelled.notes["chosen"] == [0]


def items(chosen, labels):
    names = [f"val-{number}" for number in range(len(chosen))]
    return {"example_id": names, "image_id": names, "chosen": chosen, "label": labels}


def test_two_runs_are_joined():
    answers = items([0, 1, 2, 3], [0, 1, 0, 0])
    rationales = items([1, 2, 3, 0], [1, 0, 3, 1])
    expected = {"q_to_a": 0.5, "qa_to_r": 0.5, "q_to_ar": 0.25}
    assert join_runs(answers, rationales) == expected
    with pytest.raises(ValueError, match="3 are in one run only, such as val-1"):
        join_runs(answers, items([0], [0]))


def test_the_test_split_cannot_be_joined_here():
    unlabelled = items([0], [0])
    unlabelled.pop("label")
    with pytest.raises(ValueError, match="have no label"):
        join_runs(unlabelled, unlabelled)


@pytest.mark.parametrize(
    "rows, table, message",
    [
        ([row()], regions(3), "image 1: the region table has 3 regions"),
        ([row(objects=("person", "cone"))], regions(), "image 1: the object 'cone' is not one of the 80 categories"),
    ],
)
def test_regions_that_are_not_the_objects(rows, table, message):
    with pytest.raises(ValueError, match=message):
        collated(*rows, table=table)


def test_more_classes_than_the_model_has():
    vcr = model(choice_region_classes=5)
    batch = collated(row())
    found = vcr(**task_inputs(TASK, batch))
    with pytest.raises(ValueError, match="choice_region_classes is 5"):
        TASK.losses[1].total(found, batch)
