# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""Pre-training as LXMERT does it: answers to questions, and regions with the features of other regions."""

import json
from collections import Counter

import numpy as np
import pytest
import torch
from datasets import Dataset
from transformers import TrainingArguments

from grounded_attention.dataset_scripts.regions.table import Regions
from grounded_attention.modeling import LXMERTConfig, LXMERTForPreTraining, ViLBertConfig, VLBertConfig
from grounded_attention.modeling.task_config import plain_answer
from grounded_attention.processing import LXMERTProcessor, ViLBertProcessor
from grounded_attention.supervision import get_method
from grounded_attention.tasks import TASKS
from grounded_attention.training.loop.data import Collator
from grounded_attention.training.loop.trainer import GroundingTrainer
from tests.helpers.tiny_vgp import FEATURE_SIZE, WORDS, TinyTable, tiny_processor

TASK = TASKS["pretraining"]
IMAGES = 6
CLASSES = 5
REGIONS = 4
ANSWERS = ["red", "2", "a net"]
GIVEN = [{"Red.": 1.0}, {"two": 0.9, "net": 0.3, "unheard": 5.0}, {"unheard": 1.0}, {}]
RECORDS = {"visual_loss": "masked", "num_object_labels": CLASSES, "num_attr_labels": 3}


def answers_of(given):
    return [{"answer": answer, "score": score} for answer, score in given.items()]


@pytest.fixture
def table():
    """The features of a region are its image and its number, so that a feature names its region."""
    rng = np.random.default_rng(0)
    table = TinyTable()
    for image in range(IMAGES):
        features = np.zeros((REGIONS, FEATURE_SIZE), np.float16)
        features[:, 0], features[:, 1] = image + 1, np.arange(REGIONS)
        boxes = np.tile(np.array([0.1, 0.1, 0.6, 0.6], np.float32), (REGIONS, 1))
        classes = rng.integers(0, CLASSES, REGIONS).astype(np.int32)
        attributes = classes % 3
        scores = np.ones(REGIONS, np.float32)
        table[str(image)] = Regions(
            str(image), 10, 10, boxes, features, classes, scores, attributes=attributes, attribute_scores=scores
        )
    return table


@pytest.fixture
def rows():
    return Dataset.from_list(
        [
            {"image_id": str(i), "caption_id": f"{i}#{j}", "text": WORDS[5 + i] * 2, "answers": answers_of(given)}
            for i in range(IMAGES)
            for j, given in enumerate(GIVEN)
        ]
    )


def processor_of(kind=LXMERTProcessor):
    return kind(tiny_processor().tokenizer, region_feature_size=FEATURE_SIZE)


def model_of(**config):
    torch.manual_seed(0)
    sizes = {"hidden_size": 16, "num_attention_heads": 2, "intermediate_size": 16, "vocab_size": len(WORDS)}
    sizes |= {"l_layers": 1, "r_layers": 1, "x_layers": 1, "visual_feat_dim": FEATURE_SIZE}
    return LXMERTForPreTraining(LXMERTConfig(**{**sizes, **RECORDS, **config})).eval()


def fitted(rows, **options):
    options = {"background": False, "answers": ANSWERS, **options}
    return TASK.configure(TASK.Options(**options)).fit_options({"train": rows})


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
    found = Counter(drawn)
    assert found.keys() == {1, 2}
    assert found[1] / len(drawn) == pytest.approx(0.75, abs=0.08)


def test_an_exchanged_question_has_no_answer_and_other_draws_stay(table, rows):
    plain = collator(table, rows, TASK.Options(background=False))(list(rows))
    batch = collator(table, rows, fitted(rows))(list(rows))
    assert batch.keys() - plain.keys() == {"answer_labels"}
    assert all(torch.equal(batch[name], value) for name, value in plain.items())
    labels = batch["answer_labels"].view(IMAGES, -1)
    related = batch["relationship_labels"].view(IMAGES, -1) == 1
    assert not related[:, :2].all()
    assert related[:, :2].any()
    assert ((labels[:, :2] >= 0) == related[:, :2]).all()
    part = collator(table, rows, fitted(rows))([rows[n] for n in (5, 1)])
    assert part["answer_labels"].tolist() == batch["answer_labels"][[5, 1]].tolist()


def test_texts_without_images_and_rows_without_answers_have_no_label(table, rows):
    texts = Dataset.from_list([{"text_id": "0", "text": "l m"}])
    batch = collator(table, rows, fitted(rows, relationship=False), texts=texts)(list(rows)[:3])
    assert batch["answer_labels"].tolist()[3:] == [-100] * 3
    assert batch["answer_labels"][0] == 0
    captions = rows.remove_columns("answers")
    batch = collator(table, captions, fitted(captions, relationship=False))(list(captions)[:3])
    assert batch["answer_labels"].tolist() == [-100] * 3


def test_the_list_of_answers(tmp_path, rows):
    assert TASK.to_rows(rows.add_column("source", ["vqa"] * len(rows))).column_names == rows.column_names
    path = tmp_path / "all_ans.json"
    path.write_text(json.dumps([{"ans": "red", "dsets": ["vqa"]}, {"ans": "net", "dsets": ["vqa", "gqa"]}]))
    assert fitted(rows, answers=str(path)).answers == ["red", "net"]
    # The answer with the best score counts, as it is written without articles and with digits.
    assert fitted(rows, answers={"fewest": 6}).answers == ["unheard", "red"]
    assert TASK.configure(fitted(rows)).remarks({"train": rows, "test": rows.remove_columns("answers")}) == [
        "answers: 3",
        "answers, train: 12 of 18 questions have one in the list",
        "answers, test: 0 of 0 questions have one in the list",
    ]
    assert TASK.configure(TASK.Options()).remarks({"train": rows}) == []
    with pytest.raises(ValueError, match="call fit_options first"):
        TASK.Options(answers=str(path)).answer_index  # noqa: B018
    with pytest.raises(ValueError, match="fewest"):
        fitted(rows.remove_columns("answers"), answers={"fewest": 1})


@pytest.mark.parametrize(
    ("answer", "plain"),
    [("A man", "man"), ("the Bus.", "bus"), ("two", "2"), ("a grey", "gray"), ("the", "the"), ("one way", "one way")],
)
def test_plain_answers(answer, plain):
    assert plain_answer(answer) == plain


def test_only_a_family_with_answers_predicts_them(rows):
    for config in (VLBertConfig(), ViLBertConfig()):
        with pytest.raises(ValueError, match="predict no answers"):
            TASK.configure(fitted(rows), config)
    assert [term.name for term in TASK.configure(TASK.Options(), LXMERTConfig()).losses][-1] == "relationship"
    fields = TASK.configure(fitted(rows)).model_config()
    assert fields == {"relationship_head": True, "task_qa": True, "qa_answers": ANSWERS, "num_qa_labels": 3}
    model = model_of(**fields)
    assert TASK.trained_options(model.config, True)["answers"] == ANSWERS
    bare = model_of(**TASK.configure(TASK.Options()).model_config())
    assert bare.answer_head is None
    assert "answers" not in TASK.trained_options(bare.config, True)


def test_loss_and_accuracy_of_answers(table, rows):
    options = fitted(rows)
    model = model_of(**TASK.configure(options).model_config())
    task = TASK.configure(options, model.config)
    batch = collator(table, rows, options, config=model.config)(list(rows))
    outputs = model(**{name: batch[name] for name in TASK.model_inputs if name in batch})
    term = next(term for term in task.losses if term.name == "answers")
    labelled = batch["answer_labels"] >= 0
    logits = outputs.answer_logits[labelled]
    labels = batch["answer_labels"][labelled]
    expected = -logits.log_softmax(-1)[torch.arange(len(labels)), labels].sum()
    assert term.total(outputs, batch).item() == pytest.approx(expected.item(), abs=1e-5)
    assert term.count(batch) == len(labels) > 0
    metric = next(metric for metric in TASK.metrics() if metric.name == "answers")
    metric.update(outputs, batch)
    accuracy = (logits.argmax(-1) == labels).double().mean().item()
    assert metric.compute(metric.state())["answers_accuracy"] == pytest.approx(accuracy)
    # A batch without answers: no loss and no NaN, unlike the public code.
    empty = batch | {"answer_labels": torch.full_like(batch["answer_labels"], -100)}
    assert term.total(outputs, empty) == 0
    assert term.count(empty) == 0


@pytest.mark.parametrize("length", [{"max_steps": 6}, {"num_train_epochs": 2}])
def test_answers_are_learned_from_a_share_of_the_steps_on(table, rows, tmp_path, length):
    rows = rows.filter(lambda row: row["caption_id"][-1] in "01")
    rows = rows.select([*range(len(rows)), *range(len(rows))])
    options = fitted(rows, relationship=False, answers_from=0.5)
    model = model_of(**TASK.configure(options).model_config())
    task = TASK.configure(options, model.config)
    method = get_method("none")
    head = model.answer_head.logit_fc[3].weight
    seen = []

    class Recorded(GroundingTrainer):
        def training_step(self, *args, **kwargs):
            before = head.detach().clone()
            loss = super().training_step(*args, **kwargs)
            seen.append((bool(head.grad is not None and head.grad.abs().sum() > 0), before))
            return loss

    fixed = {"optim": "sgd", "learning_rate": 0.1, "lr_scheduler_type": "constant", "max_grad_norm": 0.0}
    fixed |= {"logging_steps": 1, "save_strategy": "no", "report_to": "none", "use_cpu": True, "disable_tqdm": True}
    fixed |= {"remove_unused_columns": False, "label_names": [], "per_device_train_batch_size": 8, **length}
    collate = Collator(task, processor_of(), table, seed=3, split=rows, options=options, method=method)
    trainer = Recorded(
        model,
        TrainingArguments(str(tmp_path), **fixed),
        data_collator=collate,
        train_dataset=rows,
        task=task,
        method=method,
        metrics=task.metrics,
    )
    trainer.train()
    assert [learned for learned, _ in seen] == [False] * 3 + [True] * 3
    assert torch.equal(seen[0][1], seen[3][1])
    assert not torch.equal(seen[3][1], seen[5][1])
    history = [entry for entry in trainer.state.log_history if "loss_answers" in entry]
    assert len(history) == 6
    assert all(entry["loss_answers"] > 0 for entry in history)
    parts = [{k: v for k, v in entry.items() if k.startswith("loss_")} for entry in history]
    assert history[0]["loss"] == pytest.approx(sum(parts[0].values()) - parts[0]["loss_answers"], abs=1e-3)
    assert history[5]["loss"] == pytest.approx(sum(parts[5].values()), abs=1e-3)


SHARES = {"region_probability": 0.5, "regions_kept": 0.2, "relationship": False, "background": False}


@pytest.mark.parametrize("family", ["lxmert", "vilbert"])
def test_exchanged_regions_show_another_image_and_are_predicted_as_themselves(table, rows, family):
    kind, config = {
        "lxmert": (LXMERTProcessor, LXMERTConfig(**RECORDS)),
        "vilbert": (ViLBertProcessor, ViLBertConfig(visual_target="features", v_target_size=2048)),
    }[family]
    processor = processor_of(kind)
    before = collator(table, rows, TASK.Options(**SHARES), processor, config)(list(rows))
    options = TASK.Options(**SHARES, regions_exchanged=0.5)
    batch = collator(table, rows, options, processor, config)(list(rows))
    assert batch.keys() - before.keys() == {"region_feature_targets"}
    for name in ("input_ids", "labels", "predicted_regions", "region_labels", "region_boxes"):
        assert name not in before or torch.equal(before[name], batch[name])
    shown = batch["region_features"]
    own = before["region_features"]
    candidates = batch["region_candidate_mask"]
    assert torch.equal(batch["region_feature_targets"][candidates], own[candidates])
    changed = (shown != own).any(-1) & candidates
    assert torch.equal(changed, before["masked_regions"] & ~batch["masked_regions"])
    assert changed.sum() / batch["predicted_regions"].sum() == pytest.approx(0.5, abs=0.15)
    images = shown[..., 0]
    known = {float(image) for image in range(1, IMAGES + 1)}
    assert {*images[changed].tolist()} <= known
    assert (images != own[..., 0])[changed].all()
    if processor.whole_image:  # the mean of what the model sees
        visible = candidates & ~batch["masked_regions"]
        means = (shown * visible[..., None]).sum(1) / visible.sum(1).clamp(min=1)[:, None]
        assert torch.allclose(shown[:, 0], means, atol=1e-5)
    part = collator(table, rows, options, processor, config)([rows[7]])
    assert torch.equal(part["region_features"][0], shown[7])


def test_the_feature_loss_compares_with_the_regions_own_features(table, rows):
    config = LXMERTConfig(**RECORDS, visual_feat_dim=FEATURE_SIZE)
    options = TASK.Options(**SHARES, regions_exchanged=0.8)
    task = TASK.configure(options, config)
    batch = collator(table, rows, options, config=config)(list(rows))
    own = [torch.from_numpy(table[row["image_id"]].features).float() for row in rows]
    outputs = type("Outputs", (), {"predicted_features": torch.stack(own)})
    term = next(term for term in task.losses if term.name == "features")
    assert (batch["region_features"] != torch.stack(own)).any()
    assert term.total(outputs, batch) == 0


def test_pictures_have_no_features_to_exchange(rows):
    with pytest.raises(ValueError, match="regions_exchanged needs region features"):
        table = TinyTable({str(i): Regions(str(i), 9, 9, np.zeros((1, 4), np.float32), None) for i in range(IMAGES)})
        collator(table, rows, TASK.Options(regions_exchanged=0.5, region_probability=1.0))(list(rows))
