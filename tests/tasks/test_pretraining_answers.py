# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""Pre-training as LXMERT does it: answers to questions, and regions with the features of other regions."""

from dataclasses import replace
from itertools import pairwise
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from datasets import Dataset, concatenate_datasets
from torch.nn import functional as F
from transformers import TrainingArguments

from grounded_attention.dataset_scripts.regions.table import Regions
from grounded_attention.modeling import LXMERTConfig, LXMERTForPreTraining, ViLBertConfig, VLBertConfig
from grounded_attention.modeling.task_config import plain_answer
from grounded_attention.processing import LXMERTProcessor, ViLBertProcessor
from grounded_attention.supervision import get_method
from grounded_attention.tasks import TASKS
from grounded_attention.training.loop.data import Collator
from grounded_attention.training.loop.trainer import GroundingTrainer
from tests.helpers.task_inputs import task_inputs
from tests.helpers.tiny_vgp import FEATURE_SIZE, WORDS, TinyTable, tiny_processor

TASK = TASKS["pretraining"]
IMAGES = 6
CLASSES = 5
REGIONS = 4
FIXED = {"optim": "sgd", "learning_rate": 0.1, "lr_scheduler_type": "constant", "max_grad_norm": 0.0}
FIXED |= {"logging_steps": 1, "save_strategy": "no", "report_to": "none", "use_cpu": True, "disable_tqdm": True}
FIXED |= {"remove_unused_columns": False, "label_names": [], "per_device_train_batch_size": 8}
ANSWERS = ["red", "2", "a net"]
GIVEN = [{"Red.": 1.0}, {"two": 0.9, "net": 0.3, "unheard": 5.0}, {"unheard": 1.0}, {}]
RECORDS = {"visual_loss": "masked", "num_object_labels": CLASSES, "num_attr_labels": 3}


@pytest.fixture
def table():
    """The features of a region are its image and its number, so that a feature names its region."""
    rng = np.random.default_rng(0)
    table = TinyTable()
    for image in range(IMAGES):
        features = np.zeros((REGIONS, FEATURE_SIZE), np.float16)
        features[:, 0] = image + 1
        features[:, 1] = np.arange(REGIONS)
        boxes = np.full((REGIONS, 4), [0.1, 0.1, 0.6, 0.6], np.float32)
        classes = rng.integers(0, CLASSES, REGIONS).astype(np.int32)
        scores = np.ones(REGIONS, np.float32)
        attributes = {"attributes": classes % 3, "attribute_scores": scores}
        table[str(image)] = Regions(str(image), 10, 10, boxes, features, classes, scores, **attributes)
    return table


@pytest.fixture
def rows():
    rows = []
    for image in range(IMAGES):
        for number, scores in enumerate(GIVEN):
            row = {"image_id": str(image), "caption_id": f"{image}#{number}", "text": WORDS[5 + image] * 2}
            answers = [{"answer": answer, "score": score} for answer, score in scores.items()]
            rows.append({**row, "answers": answers})
    return Dataset.from_list(rows)


@pytest.fixture
def predicted(table, rows):
    """A task that predicts answers, its model, and a batch."""
    options = fitted(rows)
    model = model_of(**TASK.configure(options).model_config())
    task = TASK.configure(options, model.config)
    return task, model, collator(table, rows, options, config=model.config)(list(rows))


def processor_of(kind=LXMERTProcessor):
    return kind(tiny_processor().tokenizer, region_feature_size=FEATURE_SIZE)


def model_of(**config):
    torch.manual_seed(0)
    sizes = {"hidden_size": 16, "num_attention_heads": 2, "intermediate_size": 16, "vocab_size": len(WORDS)}
    sizes |= {"l_layers": 1, "r_layers": 1, "x_layers": 1, "visual_feat_dim": FEATURE_SIZE}
    return LXMERTForPreTraining(LXMERTConfig(**sizes, **RECORDS, **config)).eval()


def fitted(rows, **options):
    options = TASK.Options(**{"background": False, "answers": ANSWERS, **options})
    return TASK.configure(options).fit_options({"train": rows})


def collator(table, rows, options, processor=None, config=None, texts=None):
    task = TASK if config is None else TASK.configure(options, config)
    return Collator(task, processor or processor_of(), table, seed=3, split=rows, options=options, texts=texts)


def test_a_question_has_one_of_its_known_answers(table, rows):
    collate = collator(table, rows, fitted(rows, relationship=False))
    drawn = []
    for epoch in range(40):
        collate.set_epoch(epoch)
        labels = collate(list(rows))["answer_labels"].view(IMAGES, len(GIVEN))
        assert labels.dtype == torch.int64
        assert (labels[:, 0] == 0).all()
        assert (labels[:, 2:] == -100).all()
        drawn += labels[:, 1].tolist()
    assert {*drawn} == {1, 2}
    assert drawn.count(1) / len(drawn) == pytest.approx(0.75, abs=0.08)


def test_an_exchanged_question_has_no_answer_and_other_draws_stay(table, rows):
    plain = collator(table, rows, TASK.Options(background=False))(list(rows))
    collate = collator(table, rows, fitted(rows))
    batch = collate(list(rows))
    assert batch.keys() - plain.keys() == {"answer_labels"}
    for name, value in plain.items():
        assert torch.equal(batch[name], value)
    answered = batch["answer_labels"].view(IMAGES, -1)[:, :2] >= 0
    related = batch["relationship_labels"].view(IMAGES, -1)[:, :2] == 1
    assert not related.all()
    assert related.any()
    assert torch.equal(answered, related)
    part = collate([rows[5], rows[1]])
    assert torch.equal(part["answer_labels"], batch["answer_labels"][[5, 1]])


def test_texts_without_images_and_rows_without_answers_have_no_label(table, rows):
    rows = rows.select(range(3))
    texts = Dataset.from_list([{"text_id": "0", "text": "l m"}])
    labels = collator(table, rows, fitted(rows, relationship=False), texts=texts)(list(rows))["answer_labels"]
    assert labels[0] == 0
    assert (labels[3:] == -100).all()
    captions = rows.remove_columns("answers")
    batch = collator(table, captions, fitted(captions, relationship=False))(list(captions))
    assert batch["answer_labels"].tolist() == [-100] * 3


def test_the_list_of_answers(tmp_path, rows):
    captions = rows.remove_columns("answers")
    path = tmp_path / "all_ans.json"
    path.write_text('[{"ans": "red", "dsets": ["vqa"]}, {"ans": "net", "dsets": ["vqa", "gqa"]}]')
    assert TASK.to_rows(rows.add_column("source", ["vqa"] * len(rows))).column_names == rows.column_names
    assert fitted(rows, answers=str(path)).answers == ["red", "net"]
    # The answer with the best score counts, as it is written without articles and with digits.
    assert fitted(rows, answers={"fewest": 6}).answers == ["unheard", "red"]
    assert TASK.configure(fitted(rows)).remarks({"train": rows, "test": captions}) == [
        "answers: 3",
        "answers, train: 12 of 18 questions have one in the list",
        "answers, test: 0 of 0 questions have one in the list",
    ]
    assert TASK.configure(TASK.Options()).remarks({"train": rows}) == []
    with pytest.raises(ValueError, match="call fit_options first"):
        TASK.Options(answers=str(path)).answer_index  # noqa: B018
    with pytest.raises(ValueError, match="fewest"):
        fitted(captions, answers={"fewest": 1})


@pytest.mark.parametrize(
    "answer, plain",
    {"A man": "man", "the Bus.": "bus", "two": "2", "a grey": "gray", "the": "the", "one way": "one way"}.items(),
)
def test_plain_answers(answer, plain):
    assert plain_answer(answer) == plain


@pytest.mark.parametrize("config", [VLBertConfig(), ViLBertConfig()])
def test_a_family_without_answers_is_refused(rows, config):
    with pytest.raises(ValueError, match="predict no answers"):
        TASK.configure(fitted(rows), config)


def test_a_model_without_answers_has_no_head_and_no_loss_of_them():
    assert "answers" not in [term.name for term in TASK.configure(TASK.Options(), LXMERTConfig()).losses]
    bare = model_of(**TASK.configure(TASK.Options()).model_config())
    assert bare.answer_head is None
    assert "answers" not in TASK.trained_options(bare.config, True)


def test_the_configuration_has_the_answers(predicted):
    task, model, _ = predicted
    fields = {"relationship_head": True, "task_qa": True, "qa_answers": ANSWERS, "num_qa_labels": 3}
    assert task.model_config() == fields
    assert TASK.trained_options(model.config, True)["answers"] == ANSWERS


def find(parts, name):
    return next(part for part in parts if part.name == name)


def test_loss_and_accuracy_of_answers(predicted):
    task, model, batch = predicted
    outputs = model(**task_inputs(TASK, batch))
    term = find(task.losses, "answers")
    labels = batch["answer_labels"]
    logits = outputs.answer_logits
    expected = F.cross_entropy(logits, labels, reduction="sum")
    assert term.total(outputs, batch).item() == pytest.approx(expected.item(), abs=1e-5)
    assert term.count(batch) == (labels >= 0).sum() > 0
    metric = find(TASK.metrics(), "answers")
    metric.update(outputs, batch)
    right = (logits.argmax(-1) == labels)[labels >= 0]
    accuracy = right.double().mean().item()
    assert metric.compute(metric.state())["answers_accuracy"] == pytest.approx(accuracy)
    # A batch without answers: no loss and no NaN, unlike the public code.
    empty = batch | {"answer_labels": torch.full_like(labels, -100)}
    assert term.total(outputs, empty) == 0
    assert term.count(empty) == 0


@pytest.mark.parametrize("length", [{"max_steps": 6}, {"num_train_epochs": 2}])
def test_answers_are_learned_from_a_share_of_the_steps_on(table, rows, tmp_path, length):
    rows = rows.filter(lambda row: row["caption_id"][-1] in "01")
    rows = concatenate_datasets([rows, rows])
    options = fitted(rows, relationship=False, answers_from=0.5)
    model = model_of(**TASK.configure(options).model_config())
    head = model.answer_head.logit_fc[3].weight
    weights = []

    class Recorded(GroundingTrainer):
        def training_step(self, *args, **kwargs):
            weights.append(head.detach().clone())
            return super().training_step(*args, **kwargs)

    collate = collator(table, rows, options, config=model.config)
    trainer = Recorded(
        model,
        TrainingArguments(str(tmp_path), **FIXED, **length),
        data_collator=collate,
        train_dataset=rows,
        task=collate.task,
        method=get_method("none"),
        metrics=collate.task.metrics,
    )
    trainer.train()
    changed = [not torch.equal(before, after) for before, after in pairwise([*weights, head])]
    assert changed == [False] * 3 + [True] * 3
    history = [entry for entry in trainer.state.log_history if "loss_answers" in entry]
    assert len(history) == 6
    for step, entry in enumerate(history):
        parts = {name: value for name, value in entry.items() if name.startswith("loss_")}
        assert parts["loss_answers"] > 0
        if step < 3:
            parts.pop("loss_answers")
        assert entry["loss"] == pytest.approx(sum(parts.values()), abs=1e-3)


SHARES = {"region_probability": 0.5, "regions_kept": 0.2, "relationship": False, "background": False}


FAMILIES = {
    LXMERTProcessor: LXMERTConfig(**RECORDS),
    ViLBertProcessor: ViLBertConfig(visual_target="features", v_target_size=2048),
}


@pytest.mark.parametrize("kind, config", FAMILIES.items())
def test_exchanged_regions_show_another_image_and_are_predicted_as_themselves(table, rows, kind, config):
    processor = processor_of(kind)
    before = collator(table, rows, TASK.Options(**SHARES), processor, config)(list(rows))
    options = TASK.Options(**SHARES, regions_exchanged=0.5)
    collate = collator(table, rows, options, processor, config)
    batch = collate(list(rows))
    assert batch.keys() - before.keys() == {"region_feature_targets"}
    for name in before.keys() - {"region_features", "masked_regions"}:
        assert torch.equal(before[name], batch[name])
    shown = batch["region_features"]
    own = before["region_features"]
    candidates = batch["region_candidate_mask"]
    hidden = batch["masked_regions"]
    assert torch.equal(batch["region_feature_targets"][candidates], own[candidates])
    changed = (shown != own).any(-1) & candidates
    assert torch.equal(changed, before["masked_regions"] & ~hidden)
    assert changed.sum() / batch["predicted_regions"].sum() == pytest.approx(0.5, abs=0.15)
    images = shown[changed][:, 0]
    assert {*images.tolist()} <= {*range(1, IMAGES + 1)}
    assert (images != own[changed][:, 0]).all()
    if processor.whole_image:  # the mean of what the model sees
        visible = (candidates & ~hidden)[..., None]
        mean = (shown * visible).sum(1) / visible.sum(1).clamp(min=1)
        assert torch.allclose(shown[:, 0], mean, atol=1e-5)
    assert torch.equal(collate([rows[7]])["region_features"][0], shown[7])


def test_the_feature_loss_compares_with_the_regions_own_features(table, rows):
    config = LXMERTConfig(**RECORDS, visual_feat_dim=FEATURE_SIZE)
    options = TASK.Options(**SHARES, regions_exchanged=0.8)
    batch = collator(table, rows, options, config=config)(list(rows))
    own = np.stack([table[row["image_id"]].features for row in rows])
    outputs = SimpleNamespace(predicted_features=torch.from_numpy(own).float())
    assert (batch["region_features"] != outputs.predicted_features).any()
    assert find(TASK.configure(options, config).losses, "features").total(outputs, batch) == 0


def test_pictures_have_no_features_to_exchange(table, rows):
    pictures = TinyTable({name: replace(record, features=None) for name, record in table.items()})
    options = TASK.Options(regions_exchanged=0.5, region_probability=1.0)
    with pytest.raises(ValueError, match="regions_exchanged needs region features"):
        collator(pictures, rows, options)(list(rows))
