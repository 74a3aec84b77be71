# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""The Trainer: ragged counts give the loss of the large batch, accumulated or over processes; exact resume."""

import math

import pytest
import torch
from datasets import Dataset
from transformers import Trainer, TrainingArguments

from grounded_attention.supervision import align
from grounded_attention.supervision import method as method_file
from grounded_attention.tasks import TASKS
from grounded_attention.training.loop.grounding_collator import COUNTS, GroundingCollator
from tests.helpers.exported import MAKERS
from tests.helpers.exported import tiny_model as tiny_model_of
from tests.helpers.tiny_trainer import IMAGES, METHODS, assert_same, logged, make_trainer, weights
from tests.helpers.tiny_vgp import tiny_rows, tiny_table

# Components of the loss that a method adds to the two of the task.
PARTS = {"none": 0, "indirect": 1, "boxes": 3, "grounding_alignment": 1, "direct+grounding_alignment": 3}


@pytest.mark.parametrize("method", METHODS)
def test_accumulation_equals_the_large_batch(tmp_path, method):
    large = make_trainer(tmp_path, method, per_device_train_batch_size=16, max_steps=2)
    small = make_trainer(tmp_path, method, per_device_train_batch_size=3, gradient_accumulation_steps=6, max_steps=2)
    large.train()
    small.train()
    assert_same(weights(large.model), weights(small.model), 1e-5)
    parts = 2 + PARTS.get(method, 2)
    for one, other in zip(logged(large), logged(small), strict=True):
        losses = {key: value for key, value in one.items() if key.startswith("loss")}
        assert {key: other[key] for key in losses} == pytest.approx(losses, abs=1e-5)
        total = losses.pop("loss")
        assert len(losses) == parts
        assert sum(losses.values()) == pytest.approx(total, abs=1e-5)


def test_the_loss_is_the_plain_mean_over_the_batch(tmp_path):
    """Second formulation: cross-entropies averaged by torch over all labelled items of the whole data set."""
    trainer = make_trainer(tmp_path, "none", per_device_train_batch_size=16, max_steps=1)
    batch = trainer.data_collator([trainer.train_dataset[i] for i in range(16)])
    names = ("identification_labels", "vgp_labels", *TASKS["vgp"].model_inputs)
    expected = trainer.model(**{name: batch[name] for name in names if name in batch}).loss.item()
    trainer.train()
    assert logged(trainer)[0]["loss"] == pytest.approx(expected, abs=1e-5)


def test_a_batch_without_grounding_or_pairs_trains_on(tmp_path):
    table = tiny_table(IMAGES)
    bare = tiny_rows(table).map(lambda row: {"phrases": [], "phrase_pairs": []})
    trainer = make_trainer(tmp_path, "direct", rows=bare, per_device_train_batch_size=4, max_steps=2)
    trainer.train()
    assert all(math.isfinite(value) for value in logged(trainer)[0].values())
    assert logged(trainer)[0]["loss_text_to_region"] == 0
    assert all(torch.isfinite(value).all() for value in weights(trainer.model).values())


# Without a collator, a method that draws draws something else.
@pytest.mark.parametrize("method", [name for name in METHODS if "grounding_alignment" not in name])
def test_targets_are_made_once_a_batch_and_counted_without_a_tensor(tmp_path, method, monkeypatch):
    """In the collator, and the same as where a batch comes without them."""
    trainer = make_trainer(tmp_path, method)
    rows = [trainer.train_dataset[i] for i in range(8)]
    aligned = []
    monkeypatch.setattr(method_file, "align", lambda batch: aligned.append(batch) or align(batch))
    batch = trainer.data_collator(rows)
    assert len(aligned) == (method not in ("none", "indirect"))
    loss = trainer.compute_loss(trainer.model, batch)
    assert len(aligned) <= 1
    assert all(type(count) is int for count in batch[COUNTS].values())
    trainer.data_collator.method = None
    trainer.data_collator._readers = ()
    plain = trainer.data_collator(rows)
    assert not {COUNTS, method_file.TARGETS} & set(plain)
    assert torch.equal(trainer.compute_loss(trainer.model, plain), loss)


def test_a_plain_collator_serves_region_models(tmp_path):
    """It gives the processor the regions of the table, or of the rows."""
    task = make_trainer(tmp_path).data_collator
    rows = []
    for row in tiny_rows(task.regions):
        phrases = [phrase for phrase in row["phrases"] if not phrase["sentence"]]
        rows.append({"text": row["captions"][0], "image_id": row["image_id"], "phrases": phrases})
    records = [task.regions[row["image_id"]] for row in rows]
    expected = task.processor(
        [row["text"] for row in rows],
        phrases=[row["phrases"] for row in rows],
        region_features=[record.features for record in records],
        region_boxes=[record.boxes for record in records],
    )
    with_regions = [{**row, "regions": task.regions[row["image_id"]]} for row in rows]
    of_table = GroundingCollator(task.processor, task.method, task.regions)(rows)
    of_rows = GroundingCollator(task.processor, task.method)(with_regions)
    for batch in (of_table, of_rows):
        assert batch["phrase_mask"].any()
        assert batch[COUNTS] == task.method.counts(batch)
        for name, value in expected.items():
            assert torch.equal(batch[name], value), name
    with pytest.raises(ValueError, match="row 1 of the batch"):
        GroundingCollator(task.processor, regions=task.regions)([rows[0], {"image_id": rows[1]["image_id"]}])


def test_every_example_is_measured_once(tmp_path):
    trainer = make_trainer(tmp_path, per_device_eval_batch_size=3)
    figures = trainer.measure(trainer.eval_dataset)
    assert figures["identification_count"] == len(trainer.eval_dataset) == 16
    assert figures["vgp_count"] == sum(len(row["phrase_pairs"]) for row in trainer.eval_dataset)


def test_figures_after_mixed_precision_are_those_of_the_checkpoint(tmp_path):
    trainer = make_trainer(tmp_path, max_steps=1, bf16=True)
    trainer.train()
    dtypes = []
    layer = trainer.model.vl_bert.encoder.layer[0].output.dense
    layer.register_forward_hook(lambda module, inputs, output: dtypes.append(output.dtype))
    rows = tiny_rows(tiny_table(8), seed=9)
    figures = trainer.measure(rows)
    assert set(dtypes) == {torch.float32}
    trainer.model.save_pretrained(tmp_path / "saved")
    loaded = type(trainer.model).from_pretrained(tmp_path / "saved")
    assert make_trainer(tmp_path / "fresh", model=loaded).measure(rows) == figures
    dtypes.clear()
    trainer.training_step(trainer.model, next(iter(trainer.get_train_dataloader())))
    assert set(dtypes) == {torch.bfloat16}  # training goes on in bfloat16


def test_one_process_uses_one_of_several_gpus(tmp_path, caplog):
    class TwoGPUs(TrainingArguments):
        def __post_init__(self):
            super().__post_init__()
            self._n_gpu = 2

    trainer = make_trainer(tmp_path, arguments_class=TwoGPUs, per_device_train_batch_size=4)
    assert next(iter(trainer.get_train_dataloader()))["input_ids"].shape[0] == 4
    assert trainer.args.n_gpu == 1
    assert trainer.args.eval_batch_size == trainer.args.per_device_eval_batch_size
    assert "one of the 2 GPUs" in caplog.text
    assert "accelerate launch --multi_gpu --num_processes 2" in caplog.text


@pytest.mark.parametrize("family", MAKERS)
@pytest.mark.parametrize("head", ["vgp", "vqa"])
def test_a_plain_trainer_keeps_the_inputs_of_families(tmp_path, family, head):
    """Columns that the signature of `forward` does not have are dropped in silence."""
    rows = Dataset.from_dict({"a": [1]})
    arguments = TrainingArguments(str(tmp_path), use_cpu=True, report_to="none")
    trainer = Trainer(tiny_model_of(family, head), arguments, train_dataset=rows)
    trainer._set_signature_columns_if_needed()
    assert {"input_ids", "region_token_type_ids", "task_ids", "pixel_values"} <= set(trainer._signature_columns)
